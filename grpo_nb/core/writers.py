"""Is the process that writes a folder still there? Answered from what was noted about it, and never guessed."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Folders that this very process is writing: a kernel outlives its runs, so that its pid says nothing about them.
_writing: set[Path] = set()


def process_identity() -> dict[str, Any]:
    """What tells this process from all others, for `run.json`: its number, its start, and its host."""
    return {"pid": os.getpid(), "process_start": _start_of(os.getpid()), "host": platform.node()}


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

    A process is the one that was noted if it has the same pid and the same start: days later, another process can have its
    number.
    """
    start = _start_of(info["pid"])
    if start is not None and abs(start - info.get("process_start", start)) < 0.1:
        is_left = info["pid"] == os.getpid() and path.absolute() not in _writing
        return "crashed" if is_left else "running"
    return "crashed" if info["host"] == platform.node() else "unknown"


def _start_of(pid: int) -> float | None:
    """When a process started, in seconds since the boot, which no change of the clock moves; None if it is gone."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.create_time() - psutil.boot_time()
    return None
