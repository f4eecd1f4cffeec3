"""Whether it is worth trying to generate with vLLM here, and if not, why, with what to do.

Four cheap reasons; whether it imports is tried in a process of its own (`grpo_nb.machine.packages.vllm_problem`), because a
wrong CUDA kills a kernel. What else may be in its way (the model, 4 bit, versions, a length) is tried, and `load_model` says
what it said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.packages import installed_version, vllm_problem

_INSTALL = "pip install -r requirements.txt -r requirements-gpu.txt, then restart the kernel"
# An import that runs out of time has read most of vLLM's files, and the next one finds them in memory.
_AGAIN = (
    "run this cell again: the next try starts with the files in memory; or fast_inference=False"
)
_WITHOUT = "fast_inference=False says that you want it so"


@dataclass(frozen=True)
class VllmObstacle:
    """Why vLLM is not used, and what to do about it."""

    reason: str
    fix: str
    said: str = field(default="", compare=False)
    """What vLLM and Unsloth said last; never twice the same, so that it does not count when two are compared."""

    def __str__(self) -> str:
        return f"{self.reason} ({self.fix})"


def vllm_obstacle(
    settings: Settings, gpu: Gpu | None, *, try_import: bool = True
) -> VllmObstacle | None:
    """Say why vLLM cannot generate for these settings on this GPU, or return None if nothing is known to be in the way.

    Args:
        settings: Of the run.
        gpu: That trains; without one there is no vLLM.
        try_import: Import it once per kernel in another process, which takes some seconds.

    >>> vllm_obstacle(Settings(), None).reason
    'fast_inference is off'
    """
    if not settings.fast_inference:
        return VllmObstacle(
            "fast_inference is off", "settings.replace(fast_inference=True) turns it on"
        )
    if gpu is None:
        return VllmObstacle("vLLM needs a GPU", _WITHOUT)
    if gpu.compute_capability < (7, 0):
        return VllmObstacle(
            f"vLLM needs compute capability 7.0, which {gpu.name} has not", _WITHOUT
        )
    if installed_version("vllm") is None:
        return VllmObstacle("vLLM is not installed", _INSTALL)
    if not try_import:
        return None
    try:
        problem = vllm_problem()
    except TimeoutError as error:
        return VllmObstacle(f"vLLM was not ready in time: {error}", _AGAIN)
    if problem is not None:
        return VllmObstacle(f"vLLM does not load: {problem}", _INSTALL)
    return None
