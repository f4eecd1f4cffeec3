"""Values and names that settings can have: what is refused where it is written, with what to write instead.

TRL refuses an unknown name only when training starts, and Unsloth's version on a GPU drops it with a printed line
(unsloth/models/rl_config_compat.py, `filter_config_init_kwargs`). Importing either takes ten seconds, so the names are read
from their source here. Values of `extra` are TRL's to refuse: the trainer is built before the run has a folder, and
what it does not refuse then, it does in the first step.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import operator
from collections.abc import Collection, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from grpo_nb.core.words import did_you_mean

# Of the pinned trl; a test compares them with its source. docs/reference/losses.md says what each changes, with its paper.
LOSS_TYPES = ("bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo")
IMPORTANCE_SAMPLING_LEVELS = ("sequence", "token")

# Fields that Unsloth adds to GRPOConfig on a GPU (unsloth 2026.10.9, unsloth/models/rl.py, the class template). Its CPU
# backend leaves TRL's class as it is, which then refuses them.
UNSLOTH_ARGUMENTS = {
    "vllm_sampling_params", "unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch",
    "max_seq_length", "context_parallel_size", "context_parallel_backend",
}  # fmt: skip

# Arguments that the kit sets from something else: what to change instead.
_OWNED = {
    "output_dir": "checkpoints belong into the run's folder: set run_root, and name in gn.train(..., name=...)",
    "reward_weights": "a weight belongs to its reward: gn.rewards.correctness(weight=2.0)",
    "use_vllm": "the setting is fast_inference, which also loads the model for it",
    "vllm_gpu_memory_utilization": "the setting is gpu_memory_utilization; Unsloth starts vLLM when the model is loaded",
    "model_init_kwargs": "the model is loaded before the trainer exists, by gn.load_model, so it would do nothing",
    "resume_from_checkpoint": "transformers reads it only in its own scripts: gn.train(..., resume=...)",
    **dict.fromkeys(("bf16", "fp16"), "the setting is dtype, for the model and the trainer alike"),
    **dict.fromkeys(("eval_strategy", "eval_on_start"), "the setting is holdout_every, a held-out curve"),
    "save_strategy": "the setting is save_steps; 0 saves every few minutes",
    "logging_strategy": "a run is recorded by steps: set logging_steps",
    "max_tool_calling_iterations": "tools belong to the task: task.with_tools(..., rounds=8)",
    **dict.fromkeys(("fsdp", "deepspeed"), "a run is trained in one process; gn.scaleout is for several"),
}

# Names that people know from elsewhere. Used only for names that the installed class does not take.
_REPLACED = {
    "warmup_ratio": "gone since transformers 5: set warmup_steps, or None for a tenth of the run",
    "max_length": "set max_prompt_length and max_completion_length",
    "max_new_tokens": "the setting is max_completion_length",
    "batch_size": "the setting is per_device_train_batch_size",
    "group_size": "the setting is num_generations",
    "epochs": "a run is counted in steps: set max_steps",
    "kl_coef": "the setting is beta",
    "lora_r": "the setting is lora_rank",
    **dict.fromkeys(("tools", "environment_factory"), "they belong to the task: task.with_tools(...)"),
    "rollout_func": "held-out episodes could not be played by it: task.with_tools(...) has the loop of TRL",
}

# The words of an annotation that a value can be held against.
_KINDS = {"bool": bool, "int": int, "float": (int, float), "str": str, "None": NoneType}
_BOUNDS = {
    "least": ("at least", operator.ge), "above": ("above", operator.gt),
    "most": ("at most", operator.le), "below": ("below", operator.lt),
}  # fmt: skip
_CLASSES = (
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
)


def check_value(name: str, value: Any, kind: str, why: str = "", **bounds: float) -> None:
    """Refuse a value of another type than an annotation says, a number that is none or not finite, or one out of its bounds.

    Args:
        name: Of the argument.
        value: Seen.
        kind: The annotation, such as `float | None`; one with other words than Python's plain types refuses no type.
        why: Put behind the bounds.
        **bounds: `least`, `above`, `most`, `below`.

    Raises:
        ValueError: With the name and the value.

    >>> check_value("threshold", 0.5, "float", least=0, most=1)
    """
    words = kind.split(" | ")
    fits = (isinstance(value, _KINDS[w]) and isinstance(value, bool) == (w == "bool") for w in words if w in _KINDS)
    if _KINDS.keys() >= set(words) and not any(fits):
        raise ValueError(f"{name} = {value!r:.80} is of type {type(value).__name__}, but {name} takes {kind}.")
    if isinstance(value, (int, float)):
        is_inside = all(_BOUNDS[word][1](value, bound) for word, bound in bounds.items())
        if not (is_inside and abs(value) < math.inf):
            asked = " and ".join(f"{_BOUNDS[word][0]} {bound}" for word, bound in bounds.items())
            raise ValueError(f"{name} = {value!r:.80} must be {asked or 'a finite number'}{why}.")


def check_choice(name: str, value: Any, known: Collection[Any]) -> None:
    """Refuse a value that is none of the known ones.

    Raises:
        ValueError: With the nearest one, or with those that there are.

    >>> check_choice("loss_type", "grpo", ("grpo", "dapo"))
    """
    if not any(type(value) is type(one) and value == one for one in known):
        raise ValueError(f"{name} = {value!r:.80} is not known here{did_you_mean(value, known)}")


def check_extra(extra: Mapping[str, Any], fields: Collection[str]) -> None:
    """Refuse names in `extra` that would be dropped, do nothing, or contradict a setting.

    Args:
        extra: Name -> value.
        fields: The names of the settings.

    Raises:
        ValueError: With the name and what to write instead.

    >>> check_extra({"epsilon": 0.1}, {"beta"})
    """
    for name, value in extra.items():  # mostly empty, and then nothing is read
        if name in fields:
            raise ValueError(f"extra holds {name!r}, which is a setting of its own: write {name}={value!r}.")
        if name in _OWNED:
            raise ValueError(f"extra holds {name!r}, which the kit sets: {_OWNED[name]}.")
        known = installed_arguments()
        if name not in known | UNSLOTH_ARGUMENTS:
            raise ValueError(f"extra holds {name!r}, which GRPOConfig lacks{instead_of(name, {*known, *fields})}")


def instead_of(name: str, known: Collection[str]) -> str:
    """What to write in place of an unknown name: what replaced it, or the nearest of those known."""
    return f": {_REPLACED[name]}." if name in _REPLACED else did_you_mean(name, known)


@functools.cache
def installed_arguments() -> frozenset[str]:
    """What the installed `GRPOConfig` takes, without importing it."""
    found: set[str] = set()
    for package, file, name in _CLASSES:
        # Of a top-level package only: the specification of a submodule would import its parents.
        spec = importlib.util.find_spec(package)
        tree = ast.parse((Path(spec.origin).parent / file).read_text(encoding="utf-8"))
        (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        found |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    return frozenset(found)
