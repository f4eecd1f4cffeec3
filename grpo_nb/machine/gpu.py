"""The NVIDIA card that torch would use, asked of its driver. Loads no CUDA library.

One plain card: of several, the first that `CUDA_VISIBLE_DEVICES` leaves, in the order of their slots, which
`models/import_unsloth.py` makes CUDA's own too. Nothing is remembered, so that a driver that failed once is asked again.
"""

import os
import re
from dataclasses import dataclass

from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.machine.packages import read_torch_build


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver reports it."""

    name: str
    memory_gib: float
    """What CUDA can use: the card's memory less what the driver keeps for itself."""
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class GpuState:
    """A GPU and what changes about it, with its driver."""

    gpu: Gpu
    free_gib: float
    driver: str
    """Its version."""
    cuda: tuple[int, int]
    """The newest that the driver runs."""


class NoGpu(LookupError):
    """There is no GPU for torch. The message says why; it is empty where there simply is none."""


def read_gpu() -> GpuState:
    """Return the GPU that torch would use and its state now, whatever torch was built for.

    Raises:
        NoGpu: None is there, it is hidden, or the driver does not answer.
    """
    try:
        import pynvml as nv
    except ImportError:  # before anything is installed
        raise NoGpu("") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = (visible or "0").split(",")[0].strip()
    try:
        nv.nvmlInit()
        if visible in ("", "-1"):
            raise NoGpu(f"CUDA_VISIBLE_DEVICES={visible!r} hides the GPU")
        card = (
            nv.nvmlDeviceGetHandleByIndex(int(first))
            if first.isdecimal()
            else nv.nvmlDeviceGetHandleByUUID(first)
        )
        # The older version of this call counts what the driver keeps as used.
        memory = nv.nvmlDeviceGetMemoryInfo(card, version=nv.nvmlMemory_v2)
        usable, capability = (
            (memory.total - memory.reserved) / 2**30,
            nv.nvmlDeviceGetCudaComputeCapability(card),
        )
        gpu, cuda = (
            Gpu(nv.nvmlDeviceGetName(card), usable, capability),
            nv.nvmlSystemGetCudaDriverVersion_v2(),
        )
        return GpuState(
            gpu,
            memory.free / 2**30,
            nv.nvmlSystemGetDriverVersion(),
            (cuda // 1000, cuda % 1000 // 10),
        )
    except nv.NVMLError as error:
        is_none = isinstance(error, nv.NVMLError_LibraryNotFound)
        raise NoGpu("" if is_none else f"the NVIDIA driver says: {error}") from None


def find_gpu() -> Gpu | None:
    """Return the NVIDIA GPU that torch would use, or None: none is there, it is hidden, or torch was built for a CPU.

    Where torch is not installed yet, the GPU that is there.
    """
    build = read_torch_build()
    if build is not None and build.cuda is None:
        return None
    try:
        return read_gpu().gpu
    except NoGpu:
        return None


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs; None without a card, hidden or not. Needs nothing installed, unlike `read_gpu`.

    From the header of `nvidia-smi`, which it leaves out where no card answers.
    """
    try:
        header = "\n".join(run_command(["nvidia-smi"], seconds=20))
    except (
        OSError,
        ChildError,
    ):  # there is none, it fails, or hangs, as it does while a GPU falls off the bus
        return None
    # Drivers from 590 on write "CUDA UMD Version".
    found = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", header)
    return (int(found[1]), int(found[2])) if found else None
