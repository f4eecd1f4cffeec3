"""What the NVIDIA driver says about itself and its GPUs, asked through `nvidia-smi`. Loads no CUDA library.

`libcuda.so.1` would know its order of the cards and its slices without the rules below, but not what is free and who holds the
rest, so that `nvidia-smi` would have to be asked as well.
"""

from __future__ import annotations

import csv
import functools
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.machine.host import usable_memory_gib
from grpo_nb.machine.packages import read_torch_build

# The newest CUDA that a driver branch runs, for drivers whose `nvidia-smi` does not say it (NVIDIA's CUDA release
# notes, table "CUDA Toolkit and Corresponding Driver Versions").
_CUDA_OF_DRIVER = {
    580: (13, 0), 575: (12, 9), 570: (12, 8), 565: (12, 7), 560: (12, 6), 555: (12, 5), 550: (12, 4), 545: (12, 3),
    535: (12, 2), 530: (12, 1), 525: (12, 0), 520: (11, 8), 450: (11, 0),
}  # fmt: skip
_GPU_FIELDS = "name,memory.total,compute_cap,memory.free,uuid"
# Drivers before 510 refuse a question with a field that they do not know.
_NEWER_FIELDS = "memory.reserved,mig.mode.current"
_PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"
# Where the driver's tool lies when it is not on the path: in WSL, in Google's containers and machines, in other containers.
_PLACES = ("/usr/lib/wsl/lib", "/usr/local/nvidia/bin", "/opt/bin", "/usr/bin")

_CARD = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)")

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

    Loads no CUDA library. Where torch is not installed yet, the GPU that is there. The driver is asked until it answers.
    """
    tool, visible = nvidia_smi(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if tool is None or visible in ("", "-1"):
        return None
    build = read_torch_build()
    if build is not None and build.cuda is None:
        return None
    try:
        return _first_gpu(tool, visible, os.environ.get("CUDA_DEVICE_ORDER"))
    except ConnectionError:
        return None  # a driver that does not answer is no GPU for us; check_environment has the row that says so


@functools.cache
def _first_gpu(tool: str, visible: str | None, order: str | None) -> Gpu | None:
    """The answer is kept for all that it depends on: the cards do not change while a kernel runs, and asking takes time."""
    driver = read_driver(visible=visible, cards_only=True)
    if driver.failure:
        raise ConnectionError(driver.failure)  # which the cache does not keep: it may answer the next time
    return driver.gpus[0].gpu if driver.gpus else None


def is_gpu_listed() -> bool:
    """Whether the driver lists a GPU, hidden from this process or not: what an environment is made for."""
    try:
        return ask_nvidia_smi(["-L"]).startswith("GPU ")
    except (OSError, ChildError):
        return False  # a driver that hangs or cannot start is no GPU that one could train on


def nvidia_smi() -> str | None:
    """The path of the driver's own tool, also where it is installed but not on the path; None if there is none."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(_PLACES))


def ask_nvidia_smi(arguments: Sequence[str]) -> str:
    """Return what `nvidia-smi` prints.

    Raises:
        OSError, ChildError: It is missing, fails, or hangs, as it does while a GPU falls off the bus.
    """
    return "\n".join(run_command([nvidia_smi() or "nvidia-smi", *arguments], seconds=20))


def read_driver(ask: Ask = ask_nvidia_smi, visible: str | None = None, *, cards_only: bool = False) -> Driver:
    """Return what the driver says about itself and the GPUs that torch would see.

    Args:
        ask: Answers for `nvidia-smi`; the tests hand in recorded answers.
        visible: The value of `CUDA_VISIBLE_DEVICES`, None if it is not set.
        cards_only: Neither its versions nor who holds memory of the cards: one question instead of three.
    """
    try:
        header = "" if cards_only else ask([])
        states, is_mixed = _read_gpus(ask, visible, with_processes=not cards_only)
    except ChildError as error:
        return Driver(failure=" ".join(" ".join(error.lines).split())[:300] or str(error))
    except (OSError, ValueError) as error:
        return Driver(failure=str(error))
    # Drivers from 590 on write "KMD Version" and "CUDA UMD Version".
    version = re.search(r"(?:Driver|KMD) Version\s*:\s*([\d.]+)", header)
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", header)
    text = version[1] if version else ""
    branch = int(text.partition(".")[0] or 0)
    runs = (int(cuda[1]), int(cuda[2])) if cuda else next((v for n, v in _CUDA_OF_DRIVER.items() if branch >= n), None)
    return Driver(version=text, cuda=runs, gpus=states, is_mixed=is_mixed)


def _read_gpus(ask: Ask, visible: str | None, *, with_processes: bool) -> tuple[tuple[GpuState, ...], bool]:
    """The GPUs that CUDA would show, and whether their numbers depend on CUDA's idea of their speed."""
    rows = _query_gpus(ask)
    is_by_slot = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not is_by_slot:
        # CUDA's own order: the fastest first. It does not say how it judges; the capability is right for common pairs.
        rows.sort(key=lambda row: _numbers(row[2]), reverse=True)
    holders = _read_processes(ask) if rows and with_processes else {}
    # A divided card, or one that withholds its memory as divided cards do in containers.
    is_divided = any(mode == "Enabled" or _gib(total) is None for _, total, _, _, _, _, mode in rows)
    slices = _read_slices(ask) if is_divided else {}
    # By the names that CUDA_VISIBLE_DEVICES takes: a whole card, or the slices of a divided one.
    cards: list[dict[str, GpuState]] = []
    for name, total, capability, free, uuid, reserved, _ in rows:
        if uuid in slices:
            able = _numbers(capability)
            parts = ((one, Gpu(f"{name} MIG {kind}", gib, able), left) for one, kind, gib, left in slices[uuid])
            cards.append({one: GpuState(gpu=gpu, free_gib=left) for one, gpu, left in parts})
            continue
        memory_gib = _gib(total)
        # GPUs that share the machine's memory, as the GB10, answer "[N/A]" for their own.
        if memory_gib is None and "N/A" not in total:
            raise ValueError(f"nvidia-smi answers {total} for the memory of {name}")
        usable = usable_memory_gib() if memory_gib is None else memory_gib - (_gib(reserved) or 0.0)
        gpu = Gpu(name, usable, _numbers(capability))
        cards.append({uuid: GpuState(gpu=gpu, free_gib=_gib(free), processes=tuple(holders.get(uuid, ())), uuid=uuid)})
    return _visible(cards, visible), not is_by_slot and len({name for name, *_ in rows}) > 1


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def _query_gpus(ask: Ask) -> list[list[str]]:
    """For each GPU name, memory, capability, free memory, UUID, the memory that the driver keeps, and whether it is divided."""
    try:
        return _rows(ask, "gpu", f"{_GPU_FIELDS},{_NEWER_FIELDS}")
    except ChildError as error:
        if error.status is None:  # it hangs, and would again
            raise
        return [[*row, "", ""] for row in _rows(ask, "gpu", _GPU_FIELDS)]


def _read_slices(ask: Ask) -> dict[str, list[tuple[str, str, float, float | None]]]:
    """Return of each divided GPU's UUID its slices in CUDA's order: UUID, profile such as `3g.20gb`, usable and free GiB.

    CUDA computes on a slice (NVIDIA's MIG), and has its memory and no more. The list has the names that `CUDA_VISIBLE_DEVICES`
    takes, and only the long report has the memory: inside a container the whole card's is withheld ("Insufficient
    Permissions"), and outside it is that of all slices together.

    Raises:
        ValueError: The two answers do not name the same slices.
    """
    named: dict[str, list[tuple[str, str]]] = {}
    for line in ask(["-L"]).splitlines():
        if found := _CARD.match(line):
            slices = named.setdefault(found[1], [])
        elif found := _SLICE.match(line):
            slices.append((found[2], found[1]))
    if not any(named.values()):
        return {}
    try:
        report = ElementTree.fromstring(ask(["-q", "-x"]))
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x: {error}") from error
    memory = {
        gpu.findtext("uuid", ""): [_slice_memory(part) for part in gpu.findall("mig_devices/mig_device")]
        for gpu in report.findall("gpu")
    }
    return {
        uuid: [(*names, *gib) for names, gib in zip(slices, memory.get(uuid, []), strict=True)]
        for uuid, slices in named.items()
        if slices
    }


def _slice_memory(element: ElementTree.Element) -> tuple[float, float | None]:
    """GiB that CUDA can use, and GiB of it that are free."""
    parts = (element.findtext(f"fb_memory_usage/{name}", "") for name in ("total", "reserved", "free"))
    total, reserved, free = map(_gib, parts)
    if total is None:
        raise ValueError("nvidia-smi does not say how much memory a MIG device has")
    return total - (reserved or 0.0), free


def _visible(cards: Sequence[dict[str, GpuState]], visible: str | None) -> tuple[GpuState, ...]:
    """The GPUs that CUDA would show, in its order; an entry that names none ends the list, as in CUDA.

    Of a divided card it shows the first slice, unless another one is named.
    """
    firsts = [next(iter(card.values())) for card in cards]
    if visible is None:
        return tuple(firsts)
    numbers = {str(i): state for i, state in enumerate(firsts)}
    names = [named for card in cards for named in card.items()]
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        by_name = (state for uuid, state in names if entry and uuid.startswith(entry))
        found = numbers.get(entry) or next(by_name, None)
        if found is None:
            break
        chosen.append(found)
    return tuple(chosen)


def _read_processes(ask: Ask) -> dict[str, list[GpuProcess]]:
    """For each GPU's UUID the processes that hold its memory."""
    try:
        rows = _rows(ask, "compute-apps", _PROCESS_FIELDS)
    except (OSError, ChildError):
        return {}  # who holds the memory is a help; not knowing it is no reason to have no GPU
    found: dict[str, list[GpuProcess]] = {}
    for uuid, pid, name, memory in rows:
        if pid.isdecimal():
            process = GpuProcess(pid=int(pid), name=name, memory_gib=_gib(memory), command=_command_of(int(pid)))
            found.setdefault(uuid, []).append(process)
    return found


def _rows(ask: Ask, what: str, fields: str) -> list[list[str]]:
    """The lines of a CSV answer that have all the fields; "No devices were found" has not."""
    answer = ask([f"--query-{what}={fields}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines())]
    return [row for row in rows if len(row) == fields.count(",") + 1]


def _gib(mebibytes: str) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?: MiB)?", mebibytes.strip())
    return float(found[1]) / 1024 if found else None


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""  # it has ended, or it lives outside of this container
