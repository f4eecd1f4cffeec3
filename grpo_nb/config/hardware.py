"""Choose the dtype of a run on this machine, and decide if vLLM can generate.

The dtype comes from the first of these sources that gives one.

- On a CPU: 1. the loaded model; 2. `Settings.dtype` (float16 becomes float32); 3. UNSLOTH_CPU_BF16;
  4. float32, even if the CPU has bfloat16 instructions, so that a run gives the same numbers on
  every machine.
- On a GPU: 1. `Settings.dtype`; 2. bfloat16, or float16 where the GPU has no bfloat16, as Unsloth
  chooses.

Before a model is loaded, `vllm_loading_obstacle` decides if vLLM can generate. Other obstacles (the
family of the model, 4 bit, versions, a length) appear only during loading. After loading,
`generation.choose_engine` decides, because only then is it known if the model has a vLLM engine.
"""

import os
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.packages import VLLM_INSTALL_COMMAND
from grpo_nb.upstream.symbols import installed_version
from grpo_nb.upstream.unsloth import CPU_BF16_ENV

#: The rule of `choose_dtype` in a sentence, for the table of effective settings.
DTYPE_RULE = (
    "auto is float32 on a CPU, so that a run gives the same numbers everywhere, unless "
    "UNSLOTH_CPU_BF16=1 asks for bfloat16. On a GPU it is bfloat16, or float16 where the GPU has "
    "no bfloat16. float16 needs a GPU. On a CPU, a loaded model keeps its dtype."
)


def choose_dtype(settings: Settings, gpu: Gpu | None, model: Any = None) -> str:
    """Return the dtype of a run: `float32`, `bfloat16` or `float16`.

    Args:
        settings: Settings of the run.
        gpu: GPU that trains, or None for a CPU.
        model: The loaded model. On a CPU, the dtype of its frozen weights decides. On a GPU the
            settings decide, because Unsloth may store some layers in another dtype than the one
            that it computes in.
    """
    dtype = settings.dtype
    if gpu is not None:
        if dtype == "auto":
            dtype = "bfloat16" if gpu.compute_capability >= (8, 0) else "float16"
        return dtype
    # The weights of a loaded model keep their dtype, whatever the settings say.
    if model is not None:
        return str(model.dtype).removeprefix("torch.")
    if dtype == "auto":
        # The texts that Unsloth takes for "on" (unsloth_zoo/cpu/runtime.py).
        variable = os.environ.get(CPU_BF16_ENV, "").strip().lower()
        return "bfloat16" if variable in ("1", "true", "yes", "on") else "float32"
    # A CPU computes float16 slowly, and its gradients would vanish.
    return "float32" if dtype == "float16" else dtype


def has_vllm_engine(model: Any) -> bool:
    """Return True if a loaded model has a vLLM engine, which Unsloth stores on the model.

    >>> has_vllm_engine(None)
    False
    """
    return getattr(model, "vllm_engine", None) is not None


def vllm_loading_obstacle(settings: Settings, gpu: Gpu | None) -> str | None:
    """Return why vLLM cannot generate for these settings on this GPU, and what to do about it.

    None means that vLLM is installed, not that it loads. Importing vLLM takes seconds, so only
    `load_model` finds out if it loads.

    Args:
        settings: Settings of the run.
        gpu: GPU that trains, or None for a CPU.

    >>> vllm_loading_obstacle(Settings(fast_inference=True), None)
    'vLLM needs a GPU (set fast_inference=False)'
    """
    if not settings.fast_inference:
        return "fast_inference is off (settings.replace(fast_inference=True) turns it on)"
    if gpu is None:
        return "vLLM needs a GPU (set fast_inference=False)"
    if installed_version("vllm") is None:
        return f"vLLM is not installed ({VLLM_INSTALL_COMMAND}, then restart the kernel)"
    return None
