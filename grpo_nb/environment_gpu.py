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

# The newest CUDA that a driver branch runs, for drivers whose `nvidia-smi` does not say it (NVIDIA's CUDA release
# notes, table "CUDA Toolkit and Corresponding Driver Versions").
_CUDA_OF_DRIVER = {
    580: (13, 0), 575: (12, 9), 570: (12, 8), 565: (12, 7), 560: (12, 6), 555: (12, 5), 550: (12, 4), 545: (12, 3),
    535: (12, 2), 530: (12, 1), 525: (12, 0), 520: (11, 8), 450: (11, 0),
}  # fmt: skip
_GPU_FIELDS = "name,memory.total,compute_cap,memory.free,uuid"
_PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver reports it."""

    name: str
    memory_gib: float
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


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The driver's answer: its version, the newest CUDA it runs, the GPUs; or why there is none."""

    failure: str = ""
    """What `nvidia-smi` said instead of an answer."""
    version: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[GpuState, ...] = ()


def find_gpu() -> Gpu | None:
    """Return the NVIDIA GPU that torch would use, or None. Loads no CUDA library."""
    if not has_nvidia_smi() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    try:
        states = _read_gpus(ask_nvidia_smi, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except (OSError, subprocess.SubprocessError, ValueError):
        # A driver that does not answer is no GPU for us; check_environment has the row that says so.
        return None
    return states[0].gpu if states else None


def has_nvidia_smi() -> bool:
    """Whether the driver's own tool is on the path."""
    return shutil.which("nvidia-smi") is not None


def ask_nvidia_smi(arguments: Sequence[str]) -> str:
    """Return what `nvidia-smi` prints.

    Raises:
        OSError, subprocess.SubprocessError: It is missing, fails, or hangs, as it does while a GPU falls off the bus.
    """
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def read_driver(ask: Ask = ask_nvidia_smi, visible: str | None = None) -> Driver:
    """Return what the driver says about itself and the GPUs that torch would see.

    Args:
        ask: Answers for `nvidia-smi`; the tests hand in recorded answers.
        visible: The value of `CUDA_VISIBLE_DEVICES`, None if it is not set.
    """
    try:
        header = ask([])
        states = _read_gpus(ask, visible)
    except subprocess.CalledProcessError as error:
        return Driver(failure=" ".join(f"{error.stdout or ''} {error.stderr or ''}".split())[:300] or str(error))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Driver(failure=str(error))
    # Drivers from 590 on write "KMD Version" and "CUDA UMD Version".
    version = re.search(r"(?:Driver|KMD) Version\s*:\s*([\d.]+)", header)
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", header)
    text = version.group(1) if version else ""
    return Driver(version=text, cuda=(int(cuda.group(1)), int(cuda.group(2))) if cuda else _cuda_of(text), gpus=states)


def _cuda_of(version: str) -> tuple[int, int] | None:
    branch = version.partition(".")[0]
    if not branch.isdecimal():
        return None
    return next((cuda for least, cuda in _CUDA_OF_DRIVER.items() if int(branch) >= least), None)


def _read_gpus(ask: Ask, visible: str | None) -> tuple[GpuState, ...]:
    rows = _rows(ask([f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]), 5)
    processes = _read_processes(ask) if rows else []
    states = []
    for name, total, capability, free, uuid in rows:
        major, _, minor = capability.partition(".")
        # GPUs that share the machine's memory, as the GB10, answer "[N/A]" for their own.
        shared = not _is_number(total)
        gpu = Gpu(name, _system_memory_gib() if shared else float(total) / 1024, (int(major), int(minor)))
        theirs = tuple(process for owner, process in processes if owner == uuid)
        free_gib = float(free) / 1024 if _is_number(free) else None
        states.append((uuid, GpuState(gpu=gpu, free_gib=free_gib, processes=theirs)))
    return _visible(states, visible)


def _visible(states: list[tuple[str, GpuState]], visible: str | None) -> tuple[GpuState, ...]:
    """The GPUs that CUDA would show, in its order; an entry that names none ends the list, as in CUDA."""
    if visible is None:
        return tuple(state for _, state in states)
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        found = [s for i, (uuid, s) in enumerate(states) if entry and (entry == str(i) or uuid.startswith(entry))]
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
