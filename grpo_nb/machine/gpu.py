"""Read the first visible NVIDIA GPU from its driver, without loading CUDA.

CUDA is NVIDIA's software for computing on GPUs, which torch and vLLM use. A driver can run CUDA up
to some version. The variable `CUDA_VISIBLE_DEVICES` decides which GPUs are visible. GPUs are
counted in the order of their PCI slots, and `models/unsloth_import.py` makes CUDA count in the same
order. No answer is cached: after a failure the next call asks the driver again.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.machine.packages import major_minor, read_torch_build

# nvidia-smi hangs while a GPU is being lost ("fallen off the bus").
_NVIDIA_SMI_SECONDS = 20


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as the driver reports it."""

    name: str
    memory_gib: float
    """Memory that CUDA can use: the memory of the GPU minus the part that the driver reserves."""
    compute_capability: tuple[int, int]
    """NVIDIA's version number of the GPU's architecture, such as (7, 5) for a T4."""


@dataclass(frozen=True)
class GpuState:
    """A GPU with its free memory at the time of the call, and the CUDA version of its driver."""

    gpu: Gpu
    free_gib: float
    newest_cuda: tuple[int, int]
    """Newest CUDA version that the driver can run."""


class UnreadableGpuError(LookupError):
    """Error of an NVIDIA driver that reports no usable GPU. The message gives the reason."""


def _first_visible() -> str:
    """Return the first entry of `CUDA_VISIBLE_DEVICES`: the number or UUID of a GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def is_gpu_hidden() -> bool:
    """Return True if `CUDA_VISIBLE_DEVICES` hides every GPU."""
    # CUDA ignores the first entry that is no GPU, and all entries after it.
    return _first_visible() in ("", "-1")


def read_gpu_state() -> GpuState | None:
    """Return the first visible GPU and its current state, even if torch cannot use this GPU.

    Returns:
        None if there is no NVIDIA driver, if the GPU is hidden, or if pynvml is not installed.

    Raises:
        UnreadableGpuError: The driver does not answer, or does not know this GPU.
    """
    try:
        import pynvml as nv
    except ImportError:
        return None
    if is_gpu_hidden():
        return None
    try:
        nv.nvmlInit()
        handle = _first_visible_handle(nv)
        # Version 1 of this call counts the memory that the driver reserves as used.
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        gpu = Gpu(
            name=nv.nvmlDeviceGetName(handle),
            memory_gib=(memory.total - memory.reserved) / 2**30,
            compute_capability=nv.nvmlDeviceGetCudaComputeCapability(handle),
        )
        # A number such as 12080, which is CUDA 12.8.
        cuda = nv.nvmlSystemGetCudaDriverVersion_v2()
    except nv.NVMLError_LibraryNotFound:
        return None
    except nv.NVMLError as error:
        raise UnreadableGpuError(f"the NVIDIA driver reports: {error}") from None
    return GpuState(
        gpu=gpu, free_gib=memory.free / 2**30, newest_cuda=(cuda // 1000, cuda % 1000 // 10)
    )


def _first_visible_handle(nv: Any) -> Any:
    """Return the handle by which the module `nv` (pynvml) refers to the first visible GPU."""
    first_visible = _first_visible()
    if first_visible.isdecimal():
        return nv.nvmlDeviceGetHandleByIndex(int(first_visible))
    try:
        return nv.nvmlDeviceGetHandleByUUID(first_visible)
    except nv.NVMLError:
        # CUDA also accepts the first characters of a UUID.
        for index in range(nv.nvmlDeviceGetCount()):
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            if nv.nvmlDeviceGetUUID(handle).startswith(first_visible):
                return handle
        raise


def find_gpu() -> Gpu | None:
    """Return the GPU to train on, which is the first visible one; None to train on the CPU.

    The result is also None if the installed torch was built for a CPU, if the driver does not
    answer, or if pynvml is not installed. If torch is not installed yet, only the driver decides.
    """
    torch_build = read_torch_build()
    if torch_build is not None and torch_build.cuda is None:
        return None
    try:
        state = read_gpu_state()
    except UnreadableGpuError:
        return None
    return None if state is None else state.gpu


def read_newest_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver can run, or None without a working driver.

    The program `nvidia-smi` comes with the driver and shows the version, so this function works
    before anything is installed, unlike `read_gpu_state`. It ignores `CUDA_VISIBLE_DEVICES`.
    """
    try:
        output = "\n".join(run_command(["nvidia-smi"], seconds=_NVIDIA_SMI_SECONDS))
    except (OSError, ChildError):
        return None
    # Drivers from 590 on write "CUDA UMD Version".
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", output)
    return major_minor(match[1]) if match else None
