"""Record which process writes a folder, and find out later if that process is alive.

A process id alone is no proof, because another process can have the same id some days later. So the
start time and the host are recorded as well.
"""

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Start times are rounded on their way through JSON and psutil.
_SAME_START_SECONDS = 0.1

# Folders that this process is writing now. A notebook kernel stays alive after its runs have ended,
# so a kernel that is alive may have no run in progress.
_folders_being_written: set[Path] = set()


def process_identity(pid: int | None = None) -> dict[str, Any]:
    """Return id, start time and host of a process, as `run.json` stores them.

    Args:
        pid: Process id; None for this process.
    """
    if pid is None:
        pid = os.getpid()
    return {"pid": pid, "process_start": _start_time(pid), "host": platform.node()}


@contextlib.contextmanager
def writing_here(path: Path) -> Iterator[None]:
    """Record for the length of the block that this process is writing the folder at `path`."""
    folder = path.absolute()
    _folders_being_written.add(folder)
    try:
        yield
    finally:
        _folders_being_written.discard(folder)


def liveness(info: Mapping[str, Any], path: Path) -> str:
    """Return the state of the process that was writing a folder.

    Args:
        info: Result of `process_identity` for that process.
        path: The folder.

    Returns:
        `running`, `crashed`, or `unknown` if the process is on another machine.
    """
    if info["host"] != platform.node():
        return "unknown"
    start = _start_time(info["pid"])
    # An old record has no start time, and is compared by the process id alone.
    noted_start = info.get("process_start", start)
    is_same_process = start is not None and abs(start - noted_start) < _SAME_START_SECONDS
    is_kernel_after_run = (
        info["pid"] == os.getpid() and path.absolute() not in _folders_being_written
    )
    return "running" if is_same_process and not is_kernel_after_run else "crashed"


def _start_time(pid: int) -> float | None:
    """Return the start of a process in seconds after the boot, or None if there is no such process.

    Counted from the boot, the start stays the same if somebody changes the clock.
    """
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).create_time() - psutil.boot_time()
    return None
