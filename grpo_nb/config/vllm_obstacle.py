"""The rule for "can vLLM run here?": the settings, the GPU, and what is installed.

Before a model is loaded, `vllm_obstacle` decides. Once it is loaded, the model has a vLLM engine or
has none, and `generation.choose_engine` decides.

Three checks are cheap. The fourth imports vLLM in a process of its own, because a wrong CUDA kills
a kernel. Further obstacles (the model, 4 bit, versions, a length) show when the model is loaded.
"""

from dataclasses import dataclass, field
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.packages import installed_version, vllm_problem

_INSTALL = "pip install -r requirements.txt -r requirements-gpu.txt, then restart the kernel"
_WITHOUT = "set fast_inference=False"
_LEAST_CAPABILITY_FOR_VLLM = (7, 0)


@dataclass(frozen=True)
class VllmObstacle:
    """Reason why vLLM is not used, and how to change that."""

    reason: str
    fix: str
    last_output: str = field(default="", compare=False)
    """Last lines that vLLM and Unsloth printed. They differ each time, so they are not compared."""

    def __str__(self) -> str:
        return f"{self.reason} ({self.fix})"


def has_engine(model: Any) -> bool:
    """Return whether a vLLM engine shares a loaded model's weights. Unsloth puts it on the model.

    >>> has_engine(None)
    False
    """
    return getattr(model, "vllm_engine", None) is not None


def vllm_obstacle(
    settings: Settings, gpu: Gpu | None, *, try_import: bool = True
) -> VllmObstacle | None:
    """Return why vLLM cannot generate for these settings on this GPU; None if nothing is known.

    Args:
        settings: Settings of the run.
        gpu: GPU that trains; None for a CPU, on which there is no vLLM.
        try_import: Import vLLM in another process, once per kernel, which takes some seconds.

    >>> vllm_obstacle(Settings(), None).reason
    'fast_inference is off'
    """
    if not settings.fast_inference:
        return VllmObstacle(
            "fast_inference is off", "settings.replace(fast_inference=True) turns it on"
        )
    if gpu is None:
        return VllmObstacle("vLLM needs a GPU", _WITHOUT)
    if gpu.compute_capability < _LEAST_CAPABILITY_FOR_VLLM:
        return VllmObstacle(f"vLLM needs compute capability 7.0, and {gpu.name} has less", _WITHOUT)
    if installed_version("vllm") is None:
        return VllmObstacle("vLLM is not installed", _INSTALL)
    if not try_import:
        return None
    problem = vllm_problem()
    if problem is not None:
        return VllmObstacle(f"vLLM does not load: {problem}", _INSTALL)
    return None
