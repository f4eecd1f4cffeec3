"""Decide which dtype a model computes in, for the loader, the trainer, the plan and the evaluation.

On a CPU it is float32, with or without bfloat16 instructions, so that a run gives the same numbers
on every machine. `Settings.dtype` or the variable UNSLOTH_CPU_BF16 change that, except to float16,
whose gradients would vanish there. On a GPU it is bfloat16, or float16 where the card has no
bfloat16, as Unsloth chooses.
"""

import os
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import Gpu

#: Unsloth's variable (unsloth_zoo/cpu/runtime.py, `cpu_bf16_supported`): 1 is bfloat16, 0 float32.
CPU_BF16_ENV = "UNSLOTH_CPU_BF16"
_LEAST_CAPABILITY_FOR_BFLOAT16 = (8, 0)


@dataclass(frozen=True)
class ComputeDtype:
    """Dtype of weights and activations, and the reason."""

    name: str
    """`float32`, `bfloat16` or `float16`."""
    why: str

    @property
    def bytes_per_number(self) -> int:
        """Bytes of one number."""
        return 4 if self.name == "float32" else 2


def compute_dtype(settings: Settings, gpu: Gpu | None) -> ComputeDtype:
    """Return the dtype of a run on a GPU, or on a CPU if `gpu` is None."""
    if gpu is None:
        return cpu_dtype(settings.dtype)
    if settings.dtype != "auto":
        return ComputeDtype(settings.dtype, "As set.")
    name = "bfloat16" if gpu.compute_capability >= _LEAST_CAPABILITY_FOR_BFLOAT16 else "float16"
    return ComputeDtype(
        name, "A GPU computes in bfloat16 from compute capability 8.0 on, else in float16."
    )


def cpu_dtype(wanted: str = "auto") -> ComputeDtype:
    """Return the dtype on a CPU for a value of `Settings.dtype`."""
    if wanted == "float16":
        return ComputeDtype(
            "float32", "A CPU computes float16 slowly, and its gradients would vanish."
        )
    if wanted != "auto":
        return ComputeDtype(wanted, "As set.")
    if os.environ.get(CPU_BF16_ENV, "").strip().lower() in ("1", "true", "yes", "on"):
        return ComputeDtype("bfloat16", f"As set by {CPU_BF16_ENV}.")
    return ComputeDtype("float32", "On every CPU, so that a run gives the same numbers everywhere.")


def dtype_of_model(model: Any, settings: Settings, gpu: Gpu | None) -> ComputeDtype:
    """Return the dtype that a loaded model computes in.

    On a CPU it is the dtype of the frozen weights. On a GPU the settings decide, because Unsloth
    may hold some layers in another dtype than it computes in.
    """
    if gpu is not None:
        return compute_dtype(settings, gpu)
    return ComputeDtype(str(model.dtype).removeprefix("torch."), "As the model was loaded.")
