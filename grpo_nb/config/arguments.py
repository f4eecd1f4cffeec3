"""Values and names that settings can have: what is refused where it is written, with what to write instead.

TRL refuses an unknown name only when training starts, and Unsloth's version on a GPU drops it with a printed line
(unsloth/models/rl_config_compat.py, `filter_config_init_kwargs`). Importing either takes ten seconds, so the names are
written down in `grpo_config_fields`. Values of `extra` are TRL's to refuse: the trainer is built before the run has a
folder, and what it does not refuse then, it does in the first step.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from grpo_nb.config.grpo_config_fields import GRPO_CONFIG_FIELDS
from grpo_nb.core.words import did_you_mean

# Of the pinned trl; a test compares them with its source. docs/reference/losses.md says what each changes, with its paper.
LOSS_TYPES = ("bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo")
IMPORTANCE_SAMPLING_LEVELS = ("sequence", "token")

# Fields that Unsloth adds to GRPOConfig on a GPU (unsloth 2026.10.9, unsloth/models/rl.py, the class template). Its CPU
# backend leaves TRL's class as it is, which then refuses them. Not here: `vllm_sampling_params`, an object that no file of
# settings can hold, and `max_seq_length`, which the kit computes.
UNSLOTH_ARGUMENTS = {
    "unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch",
}  # fmt: skip
# Names that `extra` may hold.
_EXTRA_NAMES = GRPO_CONFIG_FIELDS | UNSLOTH_ARGUMENTS


@dataclass(frozen=True)
class _Instead:
    """Why a name cannot be used, and the settings that say the same."""

    reason: str
    change: Callable[[Any], dict[str, Any]] = lambda value: {}
    """Settings to write in place of a value of that name; none where the name is to be left out."""


def _renamed(setting: str, reason: str = "") -> _Instead:
    """The kit has the same value under another name."""
    return _Instead(reason or f"the setting is {setting}", lambda value: {setting: value})


def _held_out(value: Any) -> dict[str, Any]:
    """Turn a number of evaluation steps into the setting for the held-out curve."""
    is_steps = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return {"holdout_every": value} if is_steps else {}


def _sampling_settings(value: Any) -> dict[str, Any]:
    """Read vLLM's SamplingParams, or a dict of them, as settings."""
    held = (
        value
        if isinstance(value, Mapping)
        else {name: getattr(value, name, None) for name in _SAMPLED}
    )
    neutral = {"min_p": 0.0, "repetition_penalty": 1.0}
    given = {
        name: held[name] for name in _SAMPLED if held.get(name) not in (None, neutral.get(name))
    }
    if given.get("top_k") == -1:  # vLLM's word for no limit
        given["top_k"] = 0
    extra = {name: given.pop(name) for name in ("min_p", "repetition_penalty") if name in given}
    return {**given, "extra": extra} if extra else given


_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PRECISION = (
    'the setting is dtype, for the model and the trainer alike: its default dtype="auto" takes bfloat16 '
    'where the GPU has it, dtype="bfloat16" or dtype="float16" asks for it anyway'
)
_NO_EVALUATION = (
    "TRL's evaluation does not run here, so it would do nothing: the setting is holdout_every, "
    "a held-out curve, and gn.compare(run) compares afterwards"
)
_NO_SAVING = (
    "the kit saves and keeps checkpoints itself, so it would do nothing: the setting is save_steps"
)
_ONLY_SCRIPTS = "transformers reads it only in its own example scripts, so it would do nothing"

# Arguments of GRPOConfig that the kit sets from something else, or that do nothing in a run of the kit.
_OWNED = {
    "output_dir": _renamed(
        "run_root",
        "checkpoints belong into the run's folder: set run_root, and name it in gn.train(..., name=...)",
    ),
    "reward_weights": _Instead("a weight belongs to its reward: gn.rewards.correctness(weight=2.0)"),
    "use_vllm": _renamed(
        "fast_inference", "the setting is fast_inference, which also loads the model for it"
    ),
    "vllm_gpu_memory_utilization": _renamed(
        "gpu_memory_utilization",
        "the setting is gpu_memory_utilization; Unsloth starts vLLM when the model is loaded",
    ),
    "model_init_kwargs": _Instead(
        "the model is loaded before the trainer exists, so it would do nothing: "
        "gn.load_model(settings, loader={...})"
    ),
    "trust_remote_code": _Instead("the model is loaded before the trainer exists, so it would do nothing"),
    "resume_from_checkpoint": _Instead(f"{_ONLY_SCRIPTS}: gn.train(..., resume=\"auto\")"),
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), _Instead(_ONLY_SCRIPTS)),
    **dict.fromkeys(("bf16", "fp16"), _Instead(_PRECISION)),
    **dict.fromkeys(("eval_strategy", "eval_on_start", "eval_delay"), _Instead(_NO_EVALUATION)),
    "eval_steps": _Instead(_NO_EVALUATION, _held_out),
    **dict.fromkeys(
        ("per_device_eval_batch_size", "eval_accumulation_steps", "bf16_full_eval", "fp16_full_eval",
         "num_generations_eval", "prediction_loss_only", "batch_eval_metrics"),
        _Instead(_NO_EVALUATION),
    ),
    **dict.fromkeys(
        ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        _Instead("the setting is keep_adapter: keep_adapter=\"best\", holdout_every=5 keeps the adapter with the best held-out score"),
    ),
    "save_strategy": _Instead("the setting is save_steps; 0 saves every few minutes"),
    **dict.fromkeys(("save_total_limit", "save_only_model", "save_on_each_node"), _Instead(_NO_SAVING)),
    "logging_strategy": _Instead("a run is recorded by steps: set logging_steps in extra"),
    "max_tool_calling_iterations": _Instead("tools belong to the task: task.with_tools(..., rounds=8)"),
    **dict.fromkeys(
        ("fsdp", "deepspeed"),
        _Instead("a run is trained in one process; gn.scaleout is for several"),
    ),
}  # fmt: skip

# Names that people know from elsewhere. Used only for names that the installed class does not take.
_REPLACED = {
    "warmup_ratio": _Instead(
        "gone since transformers 5: set warmup_steps, or warmup_steps=None for a tenth of the run",
        lambda value: {"warmup_steps": None if value else 0},
    ),
    "max_length": _Instead("set max_prompt_length and max_completion_length"),
    "max_seq_length": _Instead("set max_prompt_length and max_completion_length, whose sum it is"),
    "max_new_tokens": _renamed("max_completion_length"),
    "batch_size": _renamed("per_device_train_batch_size"),
    "group_size": _renamed("num_generations"),
    **dict.fromkeys(("epochs", "num_epochs"), _renamed("num_train_epochs")),
    "keep": _renamed("keep_adapter"),
    "kl_coef": _renamed("beta"),
    "lr": _renamed("learning_rate"),
    **dict.fromkeys(("lora_r", "r", "max_lora_rank"), _renamed("lora_rank")),
    "target_modules": _renamed("lora_target_modules"),
    "random_state": _renamed("seed"),
    **dict.fromkeys(("model_name", "model_name_or_path"), _renamed("model")),
    "torch_dtype": _Instead(_PRECISION),
    "use_gradient_checkpointing": _Instead(
        "the kit sets it when the model is loaded, on a GPU; in training it is extra={'gradient_checkpointing': ...}"
    ),
    **dict.fromkeys(
        ("load_in_8bit", "load_in_fp8", "full_finetuning", "attn_implementation"),
        _Instead("it belongs to the loader of the model: gn.load_model(settings, loader={...})"),
    ),
    "evaluation_strategy": _Instead(_NO_EVALUATION),
    "logging_dir": _Instead("gone since transformers 5, and a run records its steps in its folder"),
    "vllm_sampling_params": _Instead(
        "sampling is set by temperature, top_p and top_k, and extra={'min_p': ...}, for vLLM too; "
        "texts to stop at are extra={'generation_kwargs': {'stop': [...]}}",
        _sampling_settings,
    ),
    **dict.fromkeys(
        ("tools", "environment_factory"), _Instead("they belong to the task: task.with_tools(...)")
    ),
    "rollout_func": _Instead(
        "held-out episodes could not be played by it: task.with_tools(...) has the loop of TRL"
    ),
}

# Arguments with which building or ending a trainer creates a repository or a Space on the Hub, and fills
# it with what nobody has verified (trl 1.15, grpo_trainer.py, `create_repo`; transformers 5.17,
# `Trainer.init_hf_repo` and the callback of trackio).
_PUBLISHING = re.compile(
    r"push_to_hub.*|hub_.*|log_completions_hub_repo|trackio_(space|static_space|bucket)_id"
)
_PUSH = 'gn.export.push_to_hub(gn.export_merged(run, "exports/name"), "user/name")'


def is_publishing(name: str) -> bool:
    """Return whether an argument of GRPOConfig sends something to the Hub.

    >>> is_publishing("push_to_hub"), is_publishing("hub_model_id"), is_publishing("beta")
    (True, True, False)
    """
    return _PUBLISHING.fullmatch(name) is not None


# The words of an annotation that a value can be held against.
_KINDS = {"bool": bool, "int": int, "float": (int, float), "str": str, "None": NoneType}
_BOUNDS = {
    "least": ("at least", operator.ge), "above": ("above", operator.gt),
    "most": ("at most", operator.le), "below": ("below", operator.lt),
}  # fmt: skip


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
    fits = (
        isinstance(value, _KINDS[w]) and isinstance(value, bool) == (w == "bool")
        for w in words
        if w in _KINDS
    )
    if _KINDS.keys() >= set(words) and not any(fits):
        raise ValueError(
            f"{name} = {value!r:.80} is of type {type(value).__name__}, but {name} takes {kind}."
        )
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


def check_names(values: Mapping[str, Any], fields: Collection[str]) -> None:
    """Refuse names of settings, and names in `extra`, that are unknown, do nothing or contradict a setting.

    All of them are reported at once, with the settings to write in their place.

    Args:
        values: The settings as they were written, by name.
        fields: The names that settings have.

    Raises:
        ValueError: With each name, why it cannot be used, and what to write instead.

    >>> check_names({"beta": 0.1, "extra": {"epsilon": 0.1}}, {"beta", "extra"})
    """
    given = values.get("extra")
    given = dict(given) if isinstance(given, Mapping) else {}
    # Names in reported form, by what is wrong with them: names with one fault are reported together.
    faults: dict[str, list[str]] = {}
    change: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    moved: dict[str, Any] = {}
    for name, value in values.items():
        if name in fields:
            continue
        if (instead := _instead_of(name)) is not None:
            faults.setdefault(f": {instead.reason}.", []).append(_written(name, value))
            _add(change, extra, instead.change(value))
        elif name in _EXTRA_NAMES:
            moved[name] = value
        else:
            faults[f"unknown setting {name!r}{did_you_mean(name, fields)}"] = []
    own = {name: value for name, value in given.items() if name in fields}
    change |= own
    for name, value in given.items():
        if name in fields:
            continue
        if (instead := _instead_of(name)) is not None:
            faults.setdefault(f": {instead.reason}.", []).append(f"extra's {_written(name, value)}")
            _add(change, extra, instead.change(value))
        elif name in _EXTRA_NAMES:
            extra[name] = value
        else:
            near = did_you_mean(name, {*_EXTRA_NAMES, *fields})
            faults[f"extra holds {name!r}, which GRPOConfig lacks{near}"] = []
    if own:
        listed = ", ".join(map(repr, own))
        what = (
            "which is a setting of its own" if len(own) == 1 else "which are settings of their own"
        )
        faults[f"extra holds {listed}, {what}: write {_keywords(own)}."] = []
    extra |= moved
    if extra.get("run_name") and extra.get("report_to") in (None, "none", []):
        name = extra.pop("run_name")
        moved.pop("run_name", None)
        faults[
            f"'run_name' ({name!r:.80}) names a run for the service in report_to, and there is none: "
            f"name the run's folder, gn.train(..., name={name!r:.80})."
        ] = []
    if moved:
        listed = ", ".join(map(repr, moved))
        what = "is an argument of TRL" if len(moved) == 1 else "are arguments of TRL"
        faults[f"{listed} {what} without a field here: write extra={moved!r}."] = []
    if not faults:
        return
    change = {name: value for name, value in change.items() if name not in values}
    if extra and extra != given:
        change["extra"] = extra
    problems = [" and ".join(names) + fault for fault, names in faults.items()]
    line = f"Write in their place: {_keywords(change)}" if change else ""
    if len(problems) == 1:
        is_said = not change or _keywords(change) in problems[0]
        raise ValueError(problems[0] if is_said else f"{problems[0]} {line}")
    listed = "\n".join(f"- {problem}" for problem in problems)
    raise ValueError(f"{len(problems)} things cannot be set as written:\n{listed}\n{line}".rstrip())


def _keywords(values: Mapping[str, Any]) -> str:
    """Return values as they are written in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _instead_of(name: str) -> _Instead | None:
    """Return what replaces a name that the kit refuses; None for any other."""
    if is_publishing(name):
        return _Instead(
            f"it would publish while the run trains, before anything is verified. Push what was verified: {_PUSH}"
        )
    return _OWNED.get(name) or (None if name in GRPO_CONFIG_FIELDS else _REPLACED.get(name))


def _written(name: str, value: Any) -> str:
    """Return a name as it is written with its value, where that is a short text or number."""
    is_shown = isinstance(value, (str, int, float)) and not is_publishing(name)
    return f"{name!r} ({value!r:.40})" if is_shown else repr(name)


def _add(change: dict[str, Any], extra: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add settings to those collected so far; what belongs into `extra` goes there."""
    extra |= more.get("extra", {})
    change |= {name: value for name, value in more.items() if name != "extra"}
