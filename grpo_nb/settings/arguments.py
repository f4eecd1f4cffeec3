"""Which arguments the installed trainer takes, read from its source without importing it, and what to write instead of others.

TRL refuses an unknown name only when training starts, and Unsloth's version on a GPU drops it with a printed line
(unsloth/models/rl_config_compat.py, `filter_config_init_kwargs`). Importing either takes ten seconds, so the names are read
with `ast` here: settings can then be checked in the line that makes them. Where trl is not installed nothing is known, and
the check waits until training, which asks the class itself.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from grpo_nb.core.arguments import did_you_mean

# Fields that Unsloth adds to GRPOConfig on a GPU (unsloth 2026.10.9, unsloth/models/rl.py, the class template). Its CPU
# backend leaves TRL's class as it is, so there they do not exist.
UNSLOTH_ARGUMENTS = (
    "vllm_sampling_params", "unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch",
    "max_seq_length", "context_parallel_size", "context_parallel_backend",
)  # fmt: skip
_UNSLOTH_CHOICES = {"optim": ("adamw_flash",)}
_COMPARED = (
    "loss_type", "importance_sampling_level", "scale_rewards", "multi_objective_aggregation", "vllm_importance_sampling_mode"
)  # fmt: skip
# They go by an evaluation of the trainer's own, which a run of the kit has not.
_NEED_EVALUATION = ("reduce_lr_on_plateau", "greedy")

# Arguments that the kit sets from something else: what to change instead.
_OWNED = {
    "output_dir": "checkpoints belong into the run's folder: set run_root, and name in gn.train(..., name=...)",
    "reward_weights": "a weight belongs to its reward: gn.rewards.correctness(weight=2.0)",
    "use_vllm": "the setting is fast_inference, which also loads the model for it",
    "vllm_gpu_memory_utilization": "the setting is gpu_memory_utilization; Unsloth starts vLLM when the model is loaded",
    "model_init_kwargs": "the model is loaded before the trainer exists, by gn.load_model, so it would do nothing",
    "resume_from_checkpoint": "transformers reads it only in its own scripts, so it would do nothing",
    **dict.fromkeys(("bf16", "fp16"), "the setting is dtype, for the model and the trainer alike"),
    **dict.fromkeys(("eval_strategy", "eval_on_start", "do_eval"), "the setting is holdout_every, a held-out curve"),
    "save_strategy": "the setting is save_steps; 0 saves every few minutes",
    "load_best_model_at_end": "the trainer evaluates nothing; the setting for a held-out curve is holdout_every",
    "logging_strategy": "a run is recorded by steps: set logging_steps",
    "sync_ref_model": "with a LoRA there is no second model to synchronise, and TRL refuses it",
    **dict.fromkeys(
        ("fsdp", "fsdp_config", "deepspeed", "ddp_backend", "parallelism_config"),
        "a run is trained in one process, and this is for several",
    ),
    "auto_find_batch_size": "a smaller batch would cut groups, and TRL refuses it: set per_device_train_batch_size",
}

# The words of an annotation that a value can be held against.
_KINDS = {
    "bool": bool, "int": int, "float": (int, float), "str": str, "dict": Mapping, "list": (list, tuple), "None": NoneType,
}  # fmt: skip
_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}
# Of arguments without a field in the settings. TRL and transformers check few of them, and some only in the first step.
_BOUNDS_OF_EXTRA: Mapping[str, Mapping[str, float]] = {
    "num_iterations": {"least": 1},
    "logging_steps": {"least": 1},
    "torch_empty_cache_steps": {"least": 1},
    "dataloader_num_workers": {"least": 0},
    "data_seed": {"least": 0, "most": 2**32 - 1},
    "adam_beta1": {"least": 0, "below": 1},
    "adam_beta2": {"least": 0, "below": 1},
    **{key: {"least": 0, "most": 1} for key in ("epsilon", "min_p", "top_entropy_quantile", "label_smoothing_factor")},
    **{key: {"above": 0} for key in ("epsilon_high", "delta", "repetition_penalty", "adam_epsilon")},
    **{key: {"above": 0} for key in ("sapo_temperature_neg", "sapo_temperature_pos")},
}
# Where an annotation says more or less than what works: True, False and None are older words for two kinds of scaling.
_KIND_OF_EXTRA = {
    "scale_rewards": "str | bool | None",
    "mask_truncated_completions": "bool | None",
    "logging_steps": "int",
    # A text would be the path of a file, or not be read at all.
    **dict.fromkeys(("generation_kwargs", "chat_template_kwargs", "lr_scheduler_kwargs"), "dict | None"),
    **dict.fromkeys(("gradient_checkpointing_kwargs", "transformers_continuous_batching_config"), "dict | None"),
    "accelerator_config": "dict | None",
    "hub_strategy": "str",
}

# Names of guides and older releases. Used only for names that the installed class does not take.
REPLACED = {
    "warmup_ratio": "gone since transformers 5: set warmup_steps, a share of max_steps in whole steps",
    "max_length": "set max_prompt_length and max_completion_length",
    "max_new_tokens": "the setting is max_completion_length",
    "batch_size": "the setting is per_device_train_batch_size",
    "group_size": "the setting is num_generations",
    "epochs": "a run is counted in steps: set max_steps",
    "kl_coef": "the setting is beta",
    "r": "the setting is lora_rank",
    "lora_r": "the setting is lora_rank",
    "target_modules": "the setting is lora_target_modules",
    "use_liger_loss": "renamed in trl 0.28: use_liger_kernel",
    "vllm_guided_decoding_regex": "renamed in trl 0.28: vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "renamed in trl 0.27: log_unique_prompts",
    "evaluation_strategy": "the setting is holdout_every, a held-out curve",
    "push_to_hub_token": "renamed in transformers 5: hub_token",
    "per_gpu_train_batch_size": "the setting is per_device_train_batch_size",
    "per_gpu_eval_batch_size": "renamed in transformers 5: per_device_eval_batch_size",
    "group_by_length": 'gone since transformers 5: train_sampling_strategy="group_by_length"',
    "no_cuda": "gone since transformers 5: use_cpu=True",
    "include_tokens_per_second": 'gone since transformers 5: include_num_input_tokens_seen="all"',
    "logging_dir": "gone since transformers 5: the environment variable TENSORBOARD_LOGGING_DIR",
    "save_safetensors": "gone since transformers 5: checkpoints are always safetensors",
    "overwrite_output_dir": "gone since transformers 5: every run has a folder of its own",
    "fp16_backend": "gone since transformers 5: leave it out",
    "half_precision_backend": "gone since transformers 5: leave it out",
}  # fmt: skip


def check_value(name: str, value: Any, kind: str, why: str = "", instead: str = "", **bounds: float) -> None:
    """Refuse a value of another type than an annotation says, a number that is none or not finite, or one out of its bounds.

    Args:
        name: Of the argument.
        value: Seen.
        kind: The annotation, such as `float | None`; one with other words than Python's plain types refuses no type.
        why: Put behind the bounds.
        instead: What to write, put behind all.
        **bounds: `least`, `above`, `most`, `below`.

    Raises:
        ValueError: With the name and the value.

    >>> check_value("threshold", 0.5, "float", least=0, most=1)
    """
    words = re.sub(r"\[[^]]*\]", "", kind).split(" | ")
    fits = (isinstance(value, _KINDS[w]) and isinstance(value, bool) == (w == "bool") for w in words if w in _KINDS)
    if _KINDS.keys() >= set(words) and not any(fits):
        raise ValueError(f"{name} = {value!r:.80} is of type {type(value).__name__}, but {name} takes {kind}{instead}.")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        wanted = [f"{_BOUNDS[word][0]} {bound}" for word, bound in bounds.items()]
        is_finite = isinstance(value, int) or math.isfinite(value)
        if not is_finite or not all(_BOUNDS[word][1](value, bound) for word, bound in bounds.items()):
            asked = " and ".join(wanted) or "a finite number"
            raise ValueError(f"{name} = {value!r:.80} must be {asked}{why}{instead}.")


def check_extra(extra: Mapping[str, Any], fields: Collection[str], known: Collection[str], *, has_gpu: bool) -> None:
    """Refuse names in `extra` that would be dropped, do nothing, or contradict a setting.

    Args:
        extra: Name -> value.
        fields: The names of the settings.
        known: What the trainer's configuration takes.
        has_gpu: Whether Unsloth's own fields exist.

    Raises:
        ValueError: With the name and what to write instead.

    >>> check_extra({"epsilon": 0.1}, {"beta"}, {"epsilon", "beta"}, has_gpu=False)
    """
    for name, value in extra.items():
        if name in fields:
            raise ValueError(f"extra holds {name!r}, which is a setting of its own: write {name}={value!r}.")
        if name in _OWNED:
            raise ValueError(f"extra holds {name!r}, which the kit sets: {_OWNED[name]}.")
        if name in known or (has_gpu and name in UNSLOTH_ARGUMENTS):
            _check_value_of_extra(name, value)
            continue
        if name in UNSLOTH_ARGUMENTS:
            raise ValueError(f"extra holds {name!r}, which only Unsloth's trainer on a GPU takes: leave it out.")
        if name in REPLACED:
            raise ValueError(f"extra holds {name!r}, which the installed GRPOConfig lacks: {REPLACED[name]}.")
        near = did_you_mean(name, {*known, *fields, *UNSLOTH_ARGUMENTS})
        raise ValueError(f"extra holds {name!r}, which the installed GRPOConfig lacks{near}")


def _check_value_of_extra(name: str, value: Any) -> None:
    kind = _KIND_OF_EXTRA.get(name) or (installed_arguments() or {}).get(name, "Any")
    check_value(f"extra[{name!r}]", value, kind, instead="; or leave it out", **_BOUNDS_OF_EXTRA.get(name, {}))
    if isinstance(value, str) and (choices := installed_choices().get(name)):
        check_choice(name, value, sorted(choices))


def check_choice(name: str, value: Any, known: Iterable[Any]) -> None:
    """Refuse a value that is none of the known ones.

    Raises:
        ValueError: With the nearest one, or with those that there are.

    >>> check_choice("loss_type", "grpo", ("grpo", "dapo"))
    """
    known = tuple(known)
    # By type first: an array would compare each of its values.
    if not any(type(value) is type(one) and value == one for one in known):
        raise ValueError(f"{name} = {value!r:.80} is not known here{did_you_mean(value, known)}")


@functools.cache
def installed_arguments() -> Mapping[str, str] | None:
    """Name -> annotation of what the installed `GRPOConfig` takes, without importing it; None where a package is missing."""
    classes = (
        _class_body("transformers", "training_args.py", "TrainingArguments"),
        _class_body("trl", "trainer/base_config.py", "_BaseConfig"),
        _class_body("trl", "trainer/grpo_config.py", "GRPOConfig"),
    )
    fields = (node for body in classes for node in body if isinstance(node, ast.AnnAssign))
    found = {node.target.id: ast.unparse(node.annotation) for node in fields}
    return found if all(classes) else None


@functools.cache
def installed_choices() -> Mapping[str, frozenset[str]]:
    """The values of settings that the installed packages have, as far as they can be read."""
    found = {
        **_compared_in_trainer(),
        "optim": _enum_values("training_args.py", "OptimizerNames"),
        "lr_scheduler_type": _enum_values("trainer_utils.py", "SchedulerType").difference(_NEED_EVALUATION),
        "hub_strategy": _enum_values("trainer_utils.py", "HubStrategy"),
        "vllm_mode": frozenset({"colocate", "server"}),
    }
    return {name: values.union(_UNSLOTH_CHOICES.get(name, ())) for name, values in found.items() if values}


def loss_types() -> tuple[str, ...]:
    """Return every `loss_type` of the installed TRL; docs/reference/losses.md says what each changes, with its paper.

    Not covered: what Unsloth's own trainer on a GPU makes of them.

    >>> "dapo" in loss_types()
    True
    """
    return _choices_of_trl("loss_type")


def importance_sampling_levels() -> tuple[str, ...]:
    """Return every `importance_sampling_level` of the installed TRL.

    >>> importance_sampling_levels()
    ('sequence', 'token')
    """
    return _choices_of_trl("importance_sampling_level")


def _choices_of_trl(name: str) -> tuple[str, ...]:
    if name not in installed_choices():
        raise ModuleNotFoundError("trl is not installed: run `pip install -r requirements.txt`.")
    return tuple(sorted(installed_choices()[name]))


def _source(package: str, file: str) -> list[ast.stmt]:
    """The statements of a file of an installed package; none where it is missing."""
    # Of a top-level package only: the specification of a submodule would import its parents.
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / file if spec is not None and spec.origin else None
    return ast.parse(path.read_text(encoding="utf-8")).body if path is not None and path.is_file() else []


def _class_body(package: str, file: str, name: str) -> list[ast.stmt]:
    statements = _source(package, file)
    classes = (node.body for node in statements if isinstance(node, ast.ClassDef) and node.name == name)
    return next(classes) if statements else []


def _enum_values(file: str, class_name: str) -> frozenset[str]:
    body = _class_body("transformers", file, class_name)
    return _strings(node.value for node in body if isinstance(node, ast.Assign))


def _strings(nodes: Iterable[ast.expr]) -> frozenset[str]:
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _compared_in_trainer() -> dict[str, frozenset[str]]:
    """The strings that TRL's GRPO trainer compares `self.<attribute>` with, which are its values; none where trl is missing.

    Raises:
        RuntimeError: It compares one with nothing any more.
    """
    statements, found = _source("trl", "trainer/grpo_trainer.py"), dict.fromkeys(_COMPARED, frozenset[str]())
    for node in (node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Compare)):
        name = ast.unparse(node.left).removeprefix("self.")
        if name in found:
            found[name] |= _strings(part for with_ in node.comparators for part in ast.walk(with_))
    if statements and (lost := [name for name, values in found.items() if not values]):
        raise RuntimeError(f"trl's GRPO trainer no longer compares self.{lost[0]} with names; look into its source.")
    return found
