"""Which number type a model computes in: the one place that decides, for the loader, the trainer, the plan and the evaluation.

On a CPU it is float32, with or without bfloat16 instructions, so that a run gives the same numbers on every machine; bfloat16
where float32 does not fit into memory and it does. The user's word stands: first `Settings.dtype`, then the variable
UNSLOTH_CPU_BF16; but float16, whose gradients would vanish there, becomes float32. On a GPU it is bfloat16, or float16 where
the card has none, as Unsloth chooses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.host import usable_memory_gib
from grpo_nb.settings.memory import memory_parts, peak_gb
from grpo_nb.settings.settings import Settings
from grpo_nb.settings.shapes import shape_of

VARIABLE = "UNSLOTH_CPU_BF16"
"""Unsloth's own switch (unsloth_zoo/cpu/runtime.py, `cpu_bf16_supported`): 1 for bfloat16, 0 for float32."""
_WORDS = dict.fromkeys(("1", "true", "yes", "on"), "bfloat16") | dict.fromkeys(("0", "false", "no", "off"), "float32")


@dataclass(frozen=True)
class NumberType:
    """What weights and activations are computed in, and the reason."""

    name: str
    """`float32`, `bfloat16` or `float16`."""
    why: str
    is_for_memory: bool = False
    """Whether nobody chose it and the memory decided: `load_model` says so."""

    @property
    def size(self) -> int:
        """Bytes of one number."""
        return 4 if self.name == "float32" else 2


def number_type(settings: Settings, gpu: Gpu | None) -> NumberType:
    """Decide for a run: from its settings, the user's environment and, on a CPU, from what fits into the memory.

    Args:
        settings: Of the run.
        gpu: That trains, or None for a CPU.
    """
    if gpu is None:
        return cpu_number_type(settings.dtype, lambda size: _fits(settings, size))
    if settings.dtype != "auto":
        return NumberType(settings.dtype, "As set.")
    if gpu.compute_capability >= (8, 0):
        return NumberType("bfloat16", "This card computes it fastest.")
    major, minor = gpu.compute_capability
    return NumberType("float16", f"{gpu.name} has no bfloat16 (compute capability {major}.{minor}).")


def number_type_of(model: Any, settings: Settings, gpu: Gpu | None) -> NumberType:
    """What a loaded model computes in: on a CPU as its frozen weights are, on a GPU as decided, where Unsloth may hold some
    layers in another type than it computes in."""
    if gpu is not None:
        return number_type(settings, gpu)
    weights = [p for p in model.parameters() if p.is_floating_point()]
    kind = next((p.dtype for p in weights if not p.requires_grad), weights[0].dtype)
    return NumberType(str(kind).removeprefix("torch."), "As the model was loaded.")


def cpu_number_type(asked: str = "auto", fits: Callable[[int], bool] = lambda size: True) -> NumberType:
    """Decide for a CPU.

    Args:
        asked: `Settings.dtype`.
        fits: Whether the memory suffices with that many bytes a number; asked only where nobody has chosen.
    """
    if asked == "float16":
        return NumberType("float32", "A CPU computes float16 slowly, and its gradients would vanish.")
    if asked != "auto":
        return NumberType(asked, "As set.")
    users = _WORDS.get(os.environ.get(VARIABLE, "").strip().lower())
    if users is not None:
        return NumberType(users, f"As set by {VARIABLE}.")
    if not fits(4) and fits(2):
        why = "In float32 this model does not fit into the memory here, in bfloat16 it does. The same run gives other numbers "
        return NumberType("bfloat16", f'{why}there. dtype="float32" insists.', is_for_memory=True)
    return NumberType("float32", "On every CPU, so that a run gives the same numbers everywhere.")


def _fits(settings: Settings, size: int) -> bool:
    """Whether a run fits into this computer's memory; True where the sizes of the model are not known."""
    shape = shape_of(settings.model)
    if shape is None:
        return True
    parts = memory_parts(settings, shape, None, size, settings.max_prompt_length)
    return peak_gb(parts) <= usable_memory_gib() * 2**30 / 1e9
