"""What the KL of a run is measured to: the base model, or the adapter as it was when the run began."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from grpo_nb.config import Settings
from grpo_nb.environment import find_gpu

Reference = Literal["start", "base"]
# As run.json has it.
BASE_MODEL, START_ADAPTER = "the base model", "the adapter it started from"


def reference_of(model: Any, settings: Settings, reference: Reference) -> str:
    """Return what the KL of a new run is measured to, with a warning where that is not what was asked for.

    On a GPU it is the base model always: Unsloth takes the lines out of TRL's trainer that make a frozen copy of the adapter
    (unsloth/models/rl.py), and vLLM would be handed the tensors of that copy among those of the trained adapter.
    """
    if settings.beta == 0 or reference == "base" or is_untrained(model):
        return BASE_MODEL
    if find_gpu() is None:
        return START_ADAPTER
    warnings.warn(
        "On a GPU Unsloth measures the KL to the base model, not to the adapter as it is now, so this run is held to the base "
        'model. reference="base" says that you want it so.',
        stacklevel=3,
    )
    return BASE_MODEL


def is_untrained(model: Any) -> bool:
    """Whether the LoRA is still as it was made, so that the model is the base model."""
    return all(not p.detach().any() for n, p in model.named_parameters() if "lora_B.default" in n)
