"""Check the names and the values of settings before anything is loaded.

TRL refuses an unknown name only when training starts, and Unsloth's version on a GPU drops it with
a printed line (unsloth/models/rl_config_compat.py, `filter_config_init_kwargs`). Importing either
takes ten seconds, so the names are written down in `grpo_config_fields`. TRL itself checks the
values in `extra`: the trainer is built before the run has a folder.

The checks are not pydantic's. Its message for a number out of bounds has four lines and a link, and
does not say what to write. Nor can pydantic see that a name belongs in `extra` instead of a field.
"""

import math
import operator
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from grpo_nb.config.grpo_config_fields import GRPO_CONFIG_FIELDS
from grpo_nb.core.words import did_you_mean

# Of the pinned TRL; a test compares them with its source. docs/reference/losses.md explains each.
LOSS_TYPES = ("bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo")
IMPORTANCE_SAMPLING_LEVELS = ("sequence", "token")

# Fields that Unsloth adds to GRPOConfig on a GPU (unsloth 2026.10.9, unsloth/models/rl.py, the
# class template). Its CPU backend leaves TRL's class as it is, which then refuses them. Two are
# missing: `vllm_sampling_params` is an object that no file of settings can hold, and the kit
# computes `max_seq_length`.
UNSLOTH_ARGUMENTS = {
    "unsloth_num_chunks",
    "unsloth_logit_chunk_multiplier",
    "unsloth_grpo_mini_batch",
}
# Names that `extra` may hold, unless `_REFUSALS` has them.
_EXTRA_NAMES = GRPO_CONFIG_FIELDS | UNSLOTH_ARGUMENTS


class _Refusal(NamedTuple):
    """Names that settings cannot have, and the reason."""

    names: str
    """Names with one reason, separated by spaces."""
    reason: str
    """Reason and, where possible, what to write instead."""
    setting: str = ""
    """Setting that takes the same value; empty if there is none."""


_NO_EVALUATION = (
    "TRL's evaluation does not run here, so it would do nothing: the setting is holdout_every, "
    "a held-out curve, and gn.compare(run) compares afterwards"
)
_PRECISION = (
    'the setting is dtype, for the model and the trainer alike: its default dtype="auto" takes '
    'bfloat16 where the GPU has it, dtype="bfloat16" or dtype="float16" asks for it anyway'
)
_ONLY_SCRIPTS = "transformers reads it only in its own example scripts, so it would do nothing"

_TABLE = (
    # Arguments of GRPOConfig that the kit sets from something else, or that do nothing in its runs.
    _Refusal(
        "output_dir",
        "checkpoints are in the run's folder: set run_root, and name the run in "
        "gn.train(..., name=...)",
        setting="run_root",
    ),
    _Refusal(
        "reward_weights", "a weight belongs to its reward: gn.rewards.correctness(weight=2.0)"
    ),
    _Refusal(
        "use_vllm",
        "the setting is fast_inference, which also loads the model for it",
        setting="fast_inference",
    ),
    _Refusal(
        "vllm_gpu_memory_utilization",
        "the setting is gpu_memory_utilization; Unsloth starts vLLM when the model is loaded",
        setting="gpu_memory_utilization",
    ),
    _Refusal(
        "model_init_kwargs trust_remote_code",
        "the model is loaded before the trainer exists, so it would do nothing: "
        "gn.load_model(settings, loader={...})",
    ),
    _Refusal("resume_from_checkpoint", f'{_ONLY_SCRIPTS}: gn.train(..., resume="auto")'),
    _Refusal("do_train do_eval do_predict", _ONLY_SCRIPTS),
    _Refusal("bf16 fp16 torch_dtype", _PRECISION),
    _Refusal(
        "eval_strategy evaluation_strategy eval_steps eval_on_start eval_delay "
        "per_device_eval_batch_size eval_accumulation_steps bf16_full_eval fp16_full_eval "
        "num_generations_eval prediction_loss_only batch_eval_metrics",
        _NO_EVALUATION,
    ),
    _Refusal(
        "load_best_model_at_end metric_for_best_model greater_is_better",
        'the setting is keep_adapter: keep_adapter="best", holdout_every=5 keeps the adapter with '
        "the best held-out score",
    ),
    _Refusal("save_strategy", "the setting is save_steps; 0 saves every few minutes"),
    _Refusal(
        "save_total_limit save_only_model save_on_each_node",
        "the kit saves and keeps checkpoints itself, so it would do nothing: the setting is "
        "save_steps",
    ),
    _Refusal("logging_strategy", "a run is recorded by steps: set logging_steps in extra"),
    _Refusal(
        "max_tool_calling_iterations", "tools belong to the task: task.with_tools(..., rounds=8)"
    ),
    _Refusal("fsdp deepspeed", "a run is trained in one process; gn.scaleout is for several"),
    # Names that people know from elsewhere, which GRPOConfig does not have.
    _Refusal(
        "warmup_ratio",
        "removed in transformers 5: set warmup_steps, or warmup_steps=None for a tenth of the run",
    ),
    _Refusal("max_length", "set max_prompt_length and max_completion_length"),
    _Refusal("max_seq_length", "set max_prompt_length and max_completion_length, whose sum it is"),
    _Refusal(
        "max_new_tokens", "the setting is max_completion_length", setting="max_completion_length"
    ),
    _Refusal(
        "batch_size",
        "the setting is per_device_train_batch_size",
        setting="per_device_train_batch_size",
    ),
    _Refusal("group_size", "the setting is num_generations", setting="num_generations"),
    _Refusal("epochs num_epochs", "the setting is num_train_epochs", setting="num_train_epochs"),
    _Refusal("keep", "the setting is keep_adapter", setting="keep_adapter"),
    _Refusal("kl_coef", "the setting is beta", setting="beta"),
    _Refusal("lr", "the setting is learning_rate", setting="learning_rate"),
    _Refusal("lora_r r max_lora_rank", "the setting is lora_rank", setting="lora_rank"),
    _Refusal("target_modules", "the setting is lora_target_modules", setting="lora_target_modules"),
    _Refusal("random_state", "the setting is seed", setting="seed"),
    _Refusal("model_name model_name_or_path", "the setting is model", setting="model"),
    _Refusal(
        "use_gradient_checkpointing",
        "the kit sets it when the model is loaded, on a GPU; in training it is "
        "extra={'gradient_checkpointing': ...}",
    ),
    _Refusal(
        "load_in_8bit load_in_fp8 attn_implementation",
        "it belongs to the loader of the model: gn.load_model(settings, loader={...})",
    ),
    _Refusal(
        "full_finetuning",
        "the kit trains a LoRA and never all weights: set lora_rank for a larger LoRA",
    ),
    _Refusal("logging_dir", "removed in transformers 5, and a run records its steps in its folder"),
    _Refusal(
        "vllm_sampling_params",
        "sampling is set by temperature, top_p, top_k (0 is off) and extra={'min_p': ...}, for "
        "vLLM too; texts to stop at are extra={'generation_kwargs': {'stop': [...]}}",
    ),
    _Refusal(
        "tools environment_factory rollout_func",
        "tools and their loop belong to the task, which also runs held-out episodes: "
        "task.with_tools(...)",
    ),
)
_REFUSALS = {}
for _row in _TABLE:
    for _name in _row.names.split():
        _REFUSALS[_name] = _row

_NO_SERVICE = _Refusal(
    "run_name",
    "it names a run for the service in report_to, and there is none: name the run's folder, "
    "gn.train(..., name=...)",
)

# With these arguments, building or ending a trainer creates a repository or a Space on the Hub, and
# fills it with files that nobody has verified (trl 1.15, grpo_trainer.py, `create_repo`;
# transformers 5.17, `Trainer.init_hf_repo` and the callback of trackio).
_PUBLISHING = re.compile(
    r"push_to_hub.*|hub_.*|log_completions_hub_repo|trackio_(space|static_space|bucket)_id"
)
_NO_PUBLISHING = _Refusal(
    "",
    "it would publish while the run trains, before anything is verified. Push what was verified: "
    'gn.export.push_to_hub(gn.export_merged(run, "exports/name"), "user/name")',
)


def is_publishing(name: str) -> bool:
    """Return whether an argument of GRPOConfig sends something to the Hub.

    >>> is_publishing("push_to_hub"), is_publishing("hub_model_id"), is_publishing("beta")
    (True, True, False)
    """
    return _PUBLISHING.fullmatch(name) is not None


_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def check_value(name: str, value: Any, kind: Any, why: str = "", **bounds: float) -> None:
    """Check that a value is of a type, and that a number is finite and within bounds.

    Args:
        name: Name of the argument.
        value: Its value.
        kind: The type, or a union of types such as `float | None`. An int passes as a float, but
            True is no number.
        why: Text added after the bounds.
        **bounds: `least`, `above`, `most`, `below`.

    Raises:
        ValueError: The value is of another type or out of bounds; names the argument and the value.

    >>> check_value("threshold", 0.5, float, least=0, most=1)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    passes_as_float = is_number and isinstance(0.0, kind)
    is_bool_by_mistake = isinstance(value, bool) and kind is not bool
    if is_bool_by_mistake or not (isinstance(value, kind) or passes_as_float):
        words = kind.__name__ if isinstance(kind, type) else kind
        raise ValueError(
            f"{name} = {value!r:.80} is of type {type(value).__name__}, but {name} takes {words}."
        )
    if not is_number:
        return
    limits = [f"{_BOUNDS[word][0]} {limit}" for word, limit in bounds.items()]
    is_within = all(_BOUNDS[word][1](value, limit) for word, limit in bounds.items())
    if not (is_within and abs(value) < math.inf):
        needed = " and ".join(limits) or "a finite number"
        raise ValueError(f"{name} = {value!r:.80} must be {needed}{why}.")


def check_choice(name: str, value: Any, known: Collection[Any]) -> None:
    """Check that a value is one of the known ones.

    Raises:
        ValueError: It is none of them; names the nearest one, or all of them.

    >>> check_choice("loss_type", "grpo", ("grpo", "dapo"))
    """
    # The type is compared too, because True == 1.
    if not any(type(value) is type(choice) and value == choice for choice in known):
        raise ValueError(f"{name} = {value!r:.80} is not known here{did_you_mean(value, known)}")


class Correction(NamedTuple):
    """Problems with the names of settings, and the settings to write in their place."""

    problems: list[str]
    replacement: dict[str, Any]


def check_names(values: Mapping[str, Any], fields: Collection[str]) -> None:
    """Check the names of settings and those in `extra`; all problems are reported at once.

    Args:
        values: The settings by name, as they were written.
        fields: Names that settings have.

    Raises:
        ValueError: Names are unknown, do nothing or contradict a setting; says for each why it
            cannot be used, and what to write instead.

    >>> check_names({"beta": 0.1, "extra": {"epsilon": 0.1}}, {"beta", "extra"})
    """
    problems, replacement = correct_names(values, fields)
    if not problems:
        return
    line = f"Write instead: {as_keywords(replacement)}" if replacement else ""
    if len(problems) == 1:
        raise ValueError(f"{problems[0]} {line}".rstrip())
    listed = "\n".join(f"- {problem}" for problem in problems)
    raise ValueError(f"{len(problems)} things cannot be set as written:\n{listed}\n{line}".rstrip())


def correct_names(values: Mapping[str, Any], fields: Collection[str]) -> Correction:
    """Return the problems with the names in `values` and in its `extra`, and how to write them.

    Args:
        values: The settings by name, as they were written.
        fields: Names that settings have.
    """
    extra = values.get("extra")
    extra = extra if isinstance(extra, Mapping) else {}
    service = values.get("report_to") or extra.get("report_to")
    has_service = service not in (None, "none", [])
    written = [
        _SuspectName(name, value, is_in_extra=False)
        for name, value in values.items()
        if name not in fields
    ]
    written += [_SuspectName(name, value, is_in_extra=True) for name, value in extra.items()]
    problems = _problems(written, fields, has_service=has_service)
    replacement, corrected_extra = _split_settings_and_extra(
        written, fields, has_service=has_service
    )
    # Settings that were written as such take precedence over corrected ones.
    replacement = {name: value for name, value in replacement.items() if name not in values}
    if corrected_extra and corrected_extra != extra:
        replacement["extra"] = corrected_extra
    return Correction(problems, replacement)


class _SuspectName(NamedTuple):
    """A suspect name: not a setting, or written in `extra`."""

    name: str
    value: Any
    is_in_extra: bool

    @property
    def label(self) -> str:
        """The name and its place, with the value, which helps to find the line."""
        label = f"extra's {self.name!r}" if self.is_in_extra else repr(self.name)
        # A token for the Hub must not be shown.
        is_shown = isinstance(self.value, str | int | float) and not is_publishing(self.name)
        return f"{label} ({self.value!r:.40})" if is_shown else label


def _problems(
    written: list[_SuspectName], fields: Collection[str], *, has_service: bool
) -> list[str]:
    """Return one sentence for each unknown name, and one for all names with the same reason."""
    unknown = []
    labels_by_reason: dict[str, list[str]] = {}
    for item in written:
        refusal = _refusal_of(item.name, has_service=has_service)
        if item.name in fields:
            reason = "it is a setting, and extra takes other arguments only"
        elif refusal is not None:
            reason = refusal.reason
        elif item.name not in _EXTRA_NAMES:
            kind = "name in extra" if item.is_in_extra else "setting"
            known = {*_EXTRA_NAMES, *fields} if item.is_in_extra else fields
            unknown.append(f"unknown {kind} {item.name!r}{did_you_mean(item.name, known)}")
            continue
        elif item.is_in_extra:
            continue
        else:
            reason = "an argument of TRL without a setting here, so extra takes it"
        labels_by_reason.setdefault(reason, []).append(item.label)
    explained = [f"{', '.join(labels)}: {reason}." for reason, labels in labels_by_reason.items()]
    return unknown + explained


def _split_settings_and_extra(
    written: list[_SuspectName], fields: Collection[str], *, has_service: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that belong to a setting, and those that belong in `extra`."""
    settings: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for item in written:
        refusal = _refusal_of(item.name, has_service=has_service)
        if item.name in fields:
            settings[item.name] = item.value
        elif refusal is not None and refusal.setting:
            settings[refusal.setting] = item.value
        elif refusal is None and item.name in _EXTRA_NAMES:
            # A name may be in both places. What was written as a setting takes precedence.
            extra.setdefault(item.name, item.value)
    return settings, extra


def as_keywords(values: Mapping[str, Any]) -> str:
    """Return values as keyword arguments of a call.

    >>> as_keywords({"beta": 0.1, "optim": "sgd"})
    "beta=0.1, optim='sgd'"
    """
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def is_known(name: str) -> bool:
    """Return whether `extra` takes a name, or `correct_names` can say what to write instead."""
    return name in _EXTRA_NAMES or _refusal_of(name, has_service=False) is not None


def _refusal_of(name: str, *, has_service: bool) -> _Refusal | None:
    """Return why settings cannot have a name; None if it may be set."""
    if is_publishing(name):
        return _NO_PUBLISHING
    if name == "run_name" and not has_service:
        return _NO_SERVICE
    return _REFUSALS.get(name)
