"""What the NVIDIA driver says about itself and its GPUs, asked through `nvidia-smi`. Loads no CUDA library."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.environment_mig import read_slices
from grpo_nb.environment_packages import read_torch_build

# The newest CUDA that a driver branch runs, for drivers whose `nvidia-smi` does not say it (NVIDIA's CUDA release
# notes, table "CUDA Toolkit and Corresponding Driver Versions").
_CUDA_OF_DRIVER = {
    580: (13, 0), 575: (12, 9), 570: (12, 8), 565: (12, 7), 560: (12, 6), 555: (12, 5), 550: (12, 4), 545: (12, 3),
    535: (12, 2), 530: (12, 1), 525: (12, 0), 520: (11, 8), 450: (11, 0),
}  # fmt: skip
_GPU_FIELDS = "name,memory.total,compute_cap,memory.free,uuid"
# Asked apart: drivers before 510 refuse a question with a field that they do not know.
_MORE_FIELDS = "uuid,memory.reserved,mig.mode.current"
_PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"
# Where the driver's tool lies when it is not on the path: in WSL, in Google's containers and machines, in other containers.
_PLACES = ("/usr/lib/wsl/lib", "/usr/local/nvidia/bin", "/opt/bin", "/usr/bin")

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver reports it."""

    name: str
    memory_gib: float
    """What CUDA can use: the card's memory less what the driver keeps for itself, of a divided card that of one slice."""
    compute_capability: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    memory_gib: float | None
    """None where the driver does not say, as on Windows and inside most containers."""
    command: str = ""
    """Its command line, where it can be read."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """A GPU, what is free of its memory, and who holds the rest."""

    gpu: Gpu
    free_gib: float | None
    processes: tuple[GpuProcess, ...] = ()
    uuid: str = ""
    """Its name for `nvidia-smi` and `CUDA_VISIBLE_DEVICES`."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The driver's answer: its version, the newest CUDA it runs, the GPUs; or why there is none."""

    failure: str = ""
    """What `nvidia-smi` said instead of an answer."""
    version: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[GpuState, ...] = ()
    is_mixed: bool = False
    """Cards of several kinds are there, and CUDA numbers them by its own idea of their speed, `nvidia-smi` by their slot."""


def find_gpu() -> Gpu | None:
    """Return the NVIDIA GPU that torch would use, or None: none is there, it is hidden, or torch was built for a CPU.

    Loads no CUDA library. Where torch is not installed yet, the GPU that is there.
    """
    if not has_nvidia_smi() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    build = read_torch_build()
    if build is not None and build.cuda is None:
        return None
    try:
        states = _read_gpus(ask_nvidia_smi, os.environ.get("CUDA_VISIBLE_DEVICES"), with_processes=False)[0]
    except (OSError, subprocess.SubprocessError, ValueError):
        # A driver that does not answer is no GPU for us; check_environment has the row that says so.
        return None
    return states[0].gpu if states else None


def has_nvidia_smi() -> bool:
    """Whether the driver's own tool is there."""
    return nvidia_smi() is not None


def nvidia_smi() -> str | None:
    """The path of the driver's own tool, also where it is installed but not on the path; None if there is none."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(_PLACES))


def ask_nvidia_smi(arguments: Sequence[str]) -> str:
    """Return what `nvidia-smi` prints.

    Raises:
        OSError, subprocess.SubprocessError: It is missing, fails, or hangs, as it does while a GPU falls off the bus.
    """
    command = [nvidia_smi() or "nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def read_driver(ask: Ask = ask_nvidia_smi, visible: str | None = None) -> Driver:
    """Return what the driver says about itself and the GPUs that torch would see.

    Args:
        ask: Answers for `nvidia-smi`; the tests hand in recorded answers.
        visible: The value of `CUDA_VISIBLE_DEVICES`, None if it is not set.
    """
    try:
        header = ask([])
        states, is_mixed = _read_gpus(ask, visible)
    except subprocess.CalledProcessError as error:
        return Driver(failure=" ".join(f"{error.stdout or ''} {error.stderr or ''}".split())[:300] or str(error))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Driver(failure=str(error))
    # Drivers from 590 on write "KMD Version" and "CUDA UMD Version".
    version = re.search(r"(?:Driver|KMD) Version\s*:\s*([\d.]+)", header)
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", header)
    text = version.group(1) if version else ""
    runs = (int(cuda.group(1)), int(cuda.group(2))) if cuda else _cuda_of(text)
    return Driver(version=text, cuda=runs, gpus=states, is_mixed=is_mixed)


def _cuda_of(version: str) -> tuple[int, int] | None:
    branch = version.partition(".")[0]
    if not branch.isdecimal():
        return None
    return next((cuda for least, cuda in _CUDA_OF_DRIVER.items() if int(branch) >= least), None)


def _read_gpus(ask: Ask, visible: str | None, *, with_processes: bool = True) -> tuple[tuple[GpuState, ...], bool]:
    """The GPUs that CUDA would show, and whether their numbers depend on CUDA's idea of their speed."""
    rows = _rows(ask([f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]), 5)
    more = _read_more(ask) if rows else {}
    processes = _read_processes(ask) if rows and with_processes else []
    # A divided card, or one that withholds its memory as divided cards do in containers.
    is_divided = any(more.get(row[4], ("", ""))[1] == "Enabled" or not _is_number(row[1]) for row in rows)
    slices = read_slices(ask) if is_divided else {}
    cards = []
    for name, total, capability, free, uuid in rows:
        major, _, minor = capability.partition(".")
        numbers = (int(major), int(minor))
        theirs = tuple(process for owner, process in processes if owner == uuid)
        if slices.get(uuid):
            parts = [
                (
                    one.uuid,
                    GpuState(gpu=Gpu(f"{name} MIG {one.profile}", one.memory_gib, numbers), free_gib=one.free_gib),
                )
                for one in slices[uuid]
            ]
            cards.append((uuid, parts))
            continue
        reserved = more.get(uuid, ("", ""))[0]
        # GPUs that share the machine's memory, as the GB10, answer "[N/A]" for their own.
        shared = not _is_number(total)
        if shared and "N/A" not in total:
            raise ValueError(f"nvidia-smi answers {total} for the memory of {name}")
        kept = float(reserved) if _is_number(reserved) else 0.0
        gpu = Gpu(name, _system_memory_gib() if shared else (float(total) - kept) / 1024, numbers)
        free_gib = float(free) / 1024 if _is_number(free) else None
        cards.append((uuid, [(uuid, GpuState(gpu=gpu, free_gib=free_gib, processes=theirs, uuid=uuid))]))
    is_mixed = len({parts[0][1].gpu.name for _, parts in cards}) > 1
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        # CUDA's own order: the fastest first. It does not say how it judges; the capability is right for common pairs.
        cards.sort(key=lambda card: card[1][0][1].gpu.compute_capability, reverse=True)
    else:
        is_mixed = False
    return _visible(cards, visible), is_mixed


def _read_more(ask: Ask) -> dict[str, tuple[str, str]]:
    """For each GPU's UUID the MiB that the driver keeps for itself, and whether it is divided; empty for old drivers."""
    try:
        rows = _rows(ask([f"--query-gpu={_MORE_FIELDS}", "--format=csv,noheader,nounits"]), 3)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {uuid: (reserved, mode) for uuid, reserved, mode in rows}


def _visible(cards: list[tuple[str, list[tuple[str, GpuState]]]], visible: str | None) -> tuple[GpuState, ...]:
    """The GPUs that CUDA would show, in its order; an entry that names none ends the list, as in CUDA.

    Of a divided card it shows the first slice, unless another one is named.
    """
    if visible is None:
        return tuple(parts[0][1] for _, parts in cards)
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        found = [
            state
            for i, (_, parts) in enumerate(cards)
            for k, (uuid, state) in enumerate(parts)
            if entry and ((entry == str(i) and k == 0) or uuid.startswith(entry))
        ]
        if not found:
            break
        chosen.append(found[0])
    return tuple(chosen)


def _read_processes(ask: Ask) -> list[tuple[str, GpuProcess]]:
    try:
        rows = _rows(ask([f"--query-compute-apps={_PROCESS_FIELDS}", "--format=csv,noheader,nounits"]), 4)
    except (OSError, subprocess.SubprocessError):
        return []  # who holds the memory is a help; not knowing it is no reason to have no GPU
    return [
        (
            uuid,
            GpuProcess(
                pid=int(pid),
                name=name,
                memory_gib=float(memory) / 1024 if _is_number(memory) else None,
                command=_command_of(int(pid)),
            ),
        )
        for uuid, pid, name, memory in rows
        if pid.isdecimal()
    ]


def _rows(answer: str, columns: int) -> list[list[str]]:
    """The lines of a CSV answer that have all their columns; "No devices were found" has not."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines())]
    return [row for row in rows if len(row) == columns]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""  # it has ended, or it lives outside of this container


def _system_memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
