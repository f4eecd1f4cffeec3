"""GPUs that the presets are for, and plans as a machine with such a GPU makes them."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.config import hardware, planning
from grpo_nb.machine.gpu import Gpu

# The memory is what CUDA can use: less than is printed on the box, and a little different for each
# driver (an A100 of 40 GB: 39.39 to 39.59 GiB in reports of out-of-memory errors).
GPUS: Mapping[str, Gpu] = {
    "t4": Gpu("Tesla T4", 14.56, (7, 5)),
    "l4": Gpu("NVIDIA L4", 22.03, (8, 9)),
    "a100": Gpu("NVIDIA A100-SXM4-40GB", 39.39, (8, 0)),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 79.1, (9, 0)),
}


def plan_on(gpu: Gpu | None, settings: gn.Settings, *arguments: Any, **more: Any) -> planning.Plan:
    """Return the plan on a machine with vLLM and this GPU, all of whose memory is free."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "find_gpu", lambda: gpu)
        if gpu is not None:
            state = SimpleNamespace(free_gib=gpu.memory_gib)
            patch.setattr(planning, "read_gpu_state", lambda: state)
        patch.setattr(hardware, "installed_version", lambda name: "0.31.0")
        return gn.plan(settings, *arguments, **more)
