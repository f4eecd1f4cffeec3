"""Compare the settings with the trainer's configuration, and show the differences.

Nothing is predicted: `training.effective_settings` builds the configuration of the run, and also
the one that TRL alone would build.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.arguments import GRPO_CONFIG_ARGUMENTS
from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import ReprMixin, Table, bold, code
from grpo_nb.machine.gpu import Gpu

# The kit sets `output_dir` and `reward_weights` for the bookkeeping of a run. `hub_token` is a
# secret, and the table is stored in run.json.
_NOT_SHOWN = {"output_dir", "reward_weights", "hub_token"}
# Shown as `dtype` and `fast_inference`.
_SHOWN_AS_SETTINGS = {"bf16", "fp16", "use_vllm"}
_REASON_OF_CHANGE = {
    "adam_beta2": "The kit's: 0.99 forgets early gradients sooner than transformers' 0.999, which "
    "suits short runs.",
    "gradient_checkpointing": "The kit's: it trades time for memory, which is worth it on a GPU "
    "and rarely on a CPU.",
    "optim": "The optimizer that was asked for has no code for a CPU, or is slower over a LoRA's "
    "many small tensors. Unsloth takes fused AdamW instead, with states in float32.",
    "top_k": "0 and -1 both mean no limit; vLLM writes -1.",
    "scale_rewards": 'TRL writes True as "group" and False as "none". The Dr. GRPO paper '
    "(arXiv:2503.20783) does not divide advantages by the standard deviation of their group.",
    "mask_truncated_completions": "The DAPO paper (arXiv:2503.14476) leaves truncated completions "
    "out of the loss.",
    "epsilon_high": "From the paper of this loss: DAPO 0.28 (arXiv:2503.14476), CISPO 5.0 "
    "(arXiv:2510.13786).",
    "vllm_importance_sampling_correction": "vLLM and the trainer compute slightly different "
    "probabilities. TRL corrects for that; Unsloth does so only if asked.",
}


@dataclass(frozen=True)
class ChangedSetting:
    """Row of a setting: the requested value, the value that will run, and the reason."""

    requested: Any
    effective: Any
    reason: str


@dataclass(frozen=True, repr=False)
class EffectiveSettings(ReprMixin):
    """The table "requested / effective / why"."""

    changed: Mapping[str, ChangedSetting]
    """Rows by name. A setting that runs as requested has no row."""
    arguments: Mapping[str, Any]
    """Arguments of the trainer's configuration that the kit passed, or that differ from TRL's."""

    def _shown_parts(self) -> Iterable[str | Table]:
        # There are always rows: `training.effective_settings` adds one for `dtype`.
        yield (
            "These settings run differently from what you wrote, or were set for you. All others "
            "run as written."
        )
        rows = [
            (code(name), row.requested, bold(row.effective), row.reason)
            for name, row in self.changed.items()
        ]
        yield Table(rows, head=("setting", "requested", "effective", "why"))


def passed_arguments(
    settings: Settings, *, gpu: Gpu | None, dtype: str, can_use_vllm: bool
) -> dict[str, Any]:
    """Return the arguments that the kit passes to `GRPOConfig`: the user's, and its own defaults.

    The training adds the arguments for the bookkeeping of a run: folders, logging, saving.

    Args:
        settings: Settings of the run.
        gpu: GPU that trains, or None for a CPU.
        dtype: `float32`, `bfloat16` or `float16`.
        can_use_vllm: True if vLLM can generate (`generation.choose_engine`). It is used only with
            `fast_inference`, even if a loaded model has an engine.
    """
    # Most settings have the name of an argument. `save_steps` is not passed on, because the kit
    # saves checkpoints itself.
    same_names = GRPO_CONFIG_ARGUMENTS - {"save_steps"}
    arguments = {name: value for name, value in vars(settings).items() if name in same_names}
    return {
        **arguments,
        "use_vllm": settings.fast_inference and can_use_vllm,
        "adam_beta2": 0.99,
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "gradient_checkpointing": gpu is not None,
        # The user's arguments take precedence over the kit's.
        **settings.extra,
    }


def compare_configurations(
    settings: Settings, passed: Mapping[str, Any], built: Any, trl_configuration: Any
) -> EffectiveSettings:
    """Compare the settings with the configuration that was built.

    Args:
        settings: Settings of the run.
        passed: The arguments that the kit passed (`passed_arguments`).
        built: The configuration, or a trainer's `args`.
        trl_configuration: The configuration that TRL alone builds from the same arguments.
    """
    written = {**vars(settings), **settings.extra}
    changed = {}
    arguments = {}
    for field in dataclasses.fields(trl_configuration):
        name = field.name
        value = getattr(built, name)
        is_as_in_trl = value == getattr(trl_configuration, name)
        is_untouched = name not in passed and is_as_in_trl
        if name in _NOT_SHOWN or is_untouched:
            continue
        # GRPOConfig turns some texts into enums, which are equal to their texts.
        value = getattr(value, "value", value)
        arguments[name] = value
        # The table shows an argument only if its value differs from the requested value.
        requested_value = written.get(name, field.default)
        # transformers turns `report_to="wandb"` into a list.
        is_as_requested = value in (requested_value, [requested_value])
        if name not in _SHOWN_AS_SETTINGS and not is_as_requested:
            changer = "TRL or transformers" if is_as_in_trl else "Unsloth"
            reason = _REASON_OF_CHANGE.get(name, f"Changed by {changer}.")
            changed[name] = ChangedSetting(written.get(name, "not set"), value, reason)
    return EffectiveSettings(changed, arguments)
