"""What was asked beside what will run, read from the configuration that was built (`grpo_nb.training.effective_settings`).

Nothing is predicted: the value of the built configuration is shown, of each argument that the kit handed over, and of each that
came out otherwise than TRL alone would have it. The reason is added where the kit knows one.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import Shown, Table, bold, code
from grpo_nb.machine.gpu import Gpu

_SAME_NAME = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "max_completion_length",
    "max_steps", "learning_rate", "lr_scheduler_type", "max_grad_norm", "weight_decay", "beta", "temperature", "top_p", "top_k",
    "loss_type", "optim", "seed",
)  # fmt: skip
# Unsloth's variable, on unless it is 0, by which its trainer scores a group behind one copy of its prompt (without vLLM).
SHARED_SCORING = "UNSLOTH_GRPO_PREFIX_GROUPER"
# Of a run's bookkeeping, which nobody sets.
_NOT_SHOWN = {"output_dir", "reward_weights", "hub_token"}
# What a setting of another name says.
_SAID = {"bf16", "fp16", "use_vllm"}
_WHY = {
    "adam_beta2": "The kit's: a run of tens of steps forgets the first gradients sooner than transformers' 0.999 lets it.",
    "gradient_checkpointing": "The kit's: it trades time for memory, which is worth it on a GPU and rarely on a CPU.",
    "optim": "The one asked for has no code for a CPU, or is slower over a LoRA's many small tensors; the same, fused.",
    "top_k": "The same for vLLM, which writes -1 for no limit.",
    "scale_rewards": "The Dr. GRPO paper (arXiv:2503.20783) does not divide advantages by the spread of their group; True is "
    'TRL\'s older word for "group".',
    "mask_truncated_completions": "The DAPO paper (arXiv:2503.14476) leaves completions that were cut out of the loss.",
    "epsilon_high": "The paper's of this loss: DAPO 0.28 (arXiv:2503.14476), CISPO 5.0 (arXiv:2510.13786).",
    "vllm_importance_sampling_correction": "TRL corrects for vLLM's other probabilities, Unsloth does not unless asked.",
}


@dataclass(frozen=True)
class Effect:
    """One row: what was asked for, what will run, and why."""

    asked: Any
    runs: Any
    why: str = ""


@dataclass(frozen=True, repr=False)
class EffectiveSettings(Shown):
    """The table "you asked / will run / why"."""

    changed: Mapping[str, Effect]
    """By name; a setting that runs as asked has no row."""
    arguments: Mapping[str, Any]
    """What the trainer's configuration holds of what the kit handed over, and of what came out otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """As `run.json` keeps it."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))

    def _parts(self) -> Iterable[str | Table]:
        yield f"{len(self.changed)} run otherwise than asked, or were not asked for; all other settings run as asked."
        rows = [
            (code(name), row.asked, bold(row.runs), row.why) for name, row in self.changed.items()
        ]
        yield Table(rows, head=("setting", "you asked", "will run", "why"))


def requested_arguments(
    settings: Settings, *, gpu: Gpu | None, number_type: str, has_vllm: bool
) -> dict[str, Any]:
    """What the kit hands to `GRPOConfig`, but for the bookkeeping of a run (folders, logging, saving).

    Args:
        settings: Of the run.
        gpu: That trains, or None for a CPU.
        number_type: `float32`, `bfloat16` or `float16`: what it computes in.
        has_vllm: Whether vLLM generates: for a loaded model, whether it has an engine.
    """
    return {
        **{name: getattr(settings, name) for name in _SAME_NAME},
        "warmup_steps": settings.warmup,
        **({"use_vllm": True} if settings.fast_inference and gpu is not None and has_vllm else {}),
        "adam_beta2": 0.99,  # a run of tens of steps forgets the first gradients sooner than 0.999 lets it
        "bf16": number_type == "bfloat16",
        "fp16": number_type == "float16",
        "gradient_checkpointing": gpu is not None,
        **settings.extra,
    }


def compared(
    settings: Settings, asked: Mapping[str, Any], built: Any, alone: Any
) -> EffectiveSettings:
    """Hold what was asked against the configuration that was built.

    Args:
        settings: Of the run.
        asked: What the kit handed over (`requested_arguments`).
        built: The configuration, or a trainer's `args`.
        alone: What TRL alone makes of the same.
    """
    wishes = {**vars(settings), "warmup_steps": settings.warmup, **settings.extra}
    changed, arguments = {}, {}
    for field in dataclasses.fields(alone):
        name, runs = field.name, _plain(getattr(built, field.name))
        if name in _NOT_SHOWN or (name not in asked and runs == _plain(getattr(alone, name))):
            continue
        arguments[name] = runs
        if name not in _SAID and runs != _plain(wishes.get(name, field.default)):
            why = _WHY.get(name, "" if name in asked else "Unsloth's own.")
            changed[name] = Effect(wishes.get(name, "not set"), runs, why)
    return EffectiveSettings(changed, arguments)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value
