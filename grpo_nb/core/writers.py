"""Is the process that writes a folder still there? Answered from what was noted about it, and never guessed."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Folders that this very process is writing: a kernel outlives its runs, so that its pid says nothing about them.
_writing: set[Path] = set()


def process_identity() -> dict[str, Any]:
    """What tells this process from all others, for `run.json`: pid, start, host, and which start of the machine it is."""
    return {"pid": os.getpid(), "process_start": _start_of(os.getpid()), "host": platform.node(), "boot": _boot_id()}


@contextlib.contextmanager
def writing_here(path: Path) -> Iterator[None]:
    """Note that this process is writing the folder at `path`, as long as the block lasts."""
    path = path.absolute()
    _writing.add(path)
    try:
        yield
    finally:
        _writing.discard(path)


def liveness(info: Mapping[str, Any], path: Path) -> str:
    """Say of a folder that calls itself being written whether it is: `running`, `crashed`, or `unknown` (another machine's).

    A process is the one that was noted if it has the same pid and the same start: after a reboot, or days later, another
    process can have its number.
    """
    boot, here = info.get("boot"), _boot_id()
    is_same_boot = boot is None or here is None or boot == here
    if is_same_boot and _is_alive(info["pid"], info.get("process_start")):
        is_own = info["pid"] == os.getpid() and info.get("process_start") is not None
        return "crashed" if is_own and path.absolute() not in _writing else "running"
    return "crashed" if info["host"] == platform.node() else "unknown"


def _is_alive(pid: int, start: float | None) -> bool:
    now = _start_of(pid)
    return now is not None and (start is None or abs(now - start) < 1.0)


def _start_of(pid: int) -> float | None:
    """When a process started, or None if it is gone: clock ticks since the boot on Linux, elsewhere seconds of the clock."""
    if sys.platform == "linux":
        try:
            # After the last bracket: the name of a process may hold brackets and blanks.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else float(fields[19])
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux, or hidden
        return None
