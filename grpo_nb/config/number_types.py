"""Which number type a model computes in: the one place that decides, for the loader, the trainer, the plan and the evaluation.

On a CPU it is float32, with or without bfloat16 instructions, so that a run gives the same numbers on every machine, unless
`Settings.dtype` or the variable UNSLOTH_CPU_BF16 says otherwise; but float16, whose gradients would vanish there, becomes
float32. On a GPU it is bfloat16, or float16 where the card has none, as Unsloth chooses.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import Gpu

VARIABLE = "UNSLOTH_CPU_BF16"
"""Unsloth's own switch (unsloth_zoo/cpu/runtime.py, `cpu_bf16_supported`): 1 for bfloat16, 0 for float32."""


@dataclass(frozen=True)
class NumberType:
    """What weights and activations are computed in, and the reason."""

    name: str
    """`float32`, `bfloat16` or `float16`."""
    why: str


def number_type(settings: Settings, gpu: Gpu | None) -> NumberType:
    """Decide for a run.

    Args:
        settings: Of the run.
        gpu: That trains, or None for a CPU.
    """
    if gpu is None:
        return cpu_number_type(settings.dtype)
    if settings.dtype != "auto":
        return NumberType(settings.dtype, "As set.")
    name = "bfloat16" if gpu.compute_capability >= (8, 0) else "float16"
    return NumberType(
        name, "On a GPU bfloat16, which begins with compute capability 8.0, or float16."
    )


def cpu_number_type(asked: str = "auto") -> NumberType:
    """Decide for a CPU; `asked` is `Settings.dtype`."""
    if asked == "float16":
        return NumberType(
            "float32", "A CPU computes float16 slowly, and its gradients would vanish."
        )
    if asked != "auto":
        return NumberType(asked, "As set.")
    if os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on"):
        return NumberType("bfloat16", f"As set by {VARIABLE}.")
    return NumberType("float32", "On every CPU, so that a run gives the same numbers everywhere.")


def number_type_of(model: Any, settings: Settings, gpu: Gpu | None) -> NumberType:
    """What a loaded model computes in: on a CPU as its frozen weights are, on a GPU as decided, where Unsloth may hold some
    layers in another type than it computes in."""
    if gpu is not None:
        return number_type(settings, gpu)
    frozen = (p.dtype for p in model.parameters() if p.is_floating_point() and not p.requires_grad)
    return NumberType(
        str(next(frozen, model.dtype)).removeprefix("torch."), "As the model was loaded."
    )
