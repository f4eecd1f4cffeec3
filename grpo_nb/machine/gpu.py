"""Read the first visible NVIDIA GPU from its driver, without loading a CUDA library.

`CUDA_VISIBLE_DEVICES` decides which GPUs are visible. They are counted in the order of their PCI
slots, and `models/unsloth_import.py` makes CUDA count in the same order. No answer is cached: after
a failure the next call asks the driver again.
"""

import os
import re
from dataclasses import dataclass

from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.machine.packages import minor_release, read_torch_build

# nvidia-smi hangs while a GPU is being lost ("fallen off the bus").
_NVIDIA_SMI_SECONDS = 20


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver reports it."""

    name: str
    memory_gib: float
    """Memory that CUDA can use: the memory of the GPU minus the part that the driver reserves."""
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class GpuState:
    """A GPU with its current free memory and the CUDA of its driver."""

    gpu: Gpu
    free_gib: float
    newest_cuda: tuple[int, int]
    """Newest CUDA version that the driver can run."""


class UnreadableGpuError(LookupError):
    """Error for an NVIDIA driver without a usable GPU; the message gives the reason."""


def _first_visible() -> str:
    """Return the first entry of `CUDA_VISIBLE_DEVICES`: the number or UUID of a GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def is_gpu_hidden() -> bool:
    """Return True if `CUDA_VISIBLE_DEVICES` hides every GPU."""
    # CUDA ignores all entries from the first that is no GPU.
    return _first_visible() in ("", "-1")


def read_gpu() -> GpuState | None:
    """Return the first visible GPU and its state now, whether or not torch can use it.

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
    first_visible = _first_visible()
    try:
        nv.nvmlInit()
        if first_visible.isdecimal():
            handle = nv.nvmlDeviceGetHandleByIndex(int(first_visible))
        else:
            handle = nv.nvmlDeviceGetHandleByUUID(first_visible)
        # Version 1 of this call counts the memory that the driver reserves as used.
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        gpu = Gpu(
            name=nv.nvmlDeviceGetName(handle),
            memory_gib=(memory.total - memory.reserved) / 2**30,
            compute_capability=nv.nvmlDeviceGetCudaComputeCapability(handle),
        )
        # As 1000 * major + 10 * minor: 12080 is CUDA 12.8.
        cuda = nv.nvmlSystemGetCudaDriverVersion_v2()
    except nv.NVMLError_LibraryNotFound:
        return None
    except nv.NVMLError as error:
        raise UnreadableGpuError(f"the NVIDIA driver says: {error}") from None
    newest_cuda = (cuda // 1000, cuda % 1000 // 10)
    return GpuState(gpu=gpu, free_gib=memory.free / 2**30, newest_cuda=newest_cuda)


def find_gpu() -> Gpu | None:
    """Return the first visible GPU; None if there is none, or if torch was built for a CPU.

    Before torch is installed, the first visible GPU is returned.
    """
    torch_build = read_torch_build()
    if torch_build is not None and torch_build.cuda is None:
        return None
    try:
        state = read_gpu()
    except UnreadableGpuError:
        return None
    return None if state is None else state.gpu


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver can run, or None without a working GPU.

    The version is read from the header of `nvidia-smi`, so this function works before anything is
    installed, unlike `read_gpu`. It ignores `CUDA_VISIBLE_DEVICES`.
    """
    try:
        header = "\n".join(run_command(["nvidia-smi"], seconds=_NVIDIA_SMI_SECONDS))
    except (OSError, ChildError):
        return None
    # Drivers from 590 on write "CUDA UMD Version".
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", header)
    return minor_release(match[1]) if match else None
