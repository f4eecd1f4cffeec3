"""Lock a folder for the process that writes it, and find out later if that process is alive.

The lock is `flock` on a hidden file in the folder. The operating system releases the lock when the
process ends, also after a crash. The file names the holder, for the error of the next process. Some
network drives have no `flock`; there, the kit works without a lock.

A process id alone does not prove that a writer is alive, because another process can have the same
id some days later. So its start time and its host are recorded as well.
"""

import contextlib
import errno
import fcntl
import functools
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.core.words import displayable

LOCK_FILE = ".lock"
_log = logging.getLogger(__name__)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# The name of a holder takes about 60 bytes. A file that the kit did not write may have any length.
_LONGEST_HOLDER_BYTES = 200
# Start times are rounded on their way through JSON and psutil.
_SAME_START_SECONDS = 0.1
# Descriptors of the locks that this process holds.
_held: set[int] = set()
# Folders that this process is writing now. A notebook kernel stays alive after its runs have ended,
# so a kernel that is alive may have no run in progress.
_folders_being_written: set[Path] = set()


class FolderLockedError(ValueError):
    """Another process, or another thread of this one, works in the folder.

    Attributes:
        holder: The process that holds the lock, in words.
    """

    def __init__(self, folder: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(f"{str(folder)!r} is locked by {holder}.")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder for the length of the block.

    A folder that cannot be written to needs no lock. On a drive without locks, the block runs
    without a lock, and a log message warns of that.

    Raises:
        FolderLockedError: Another process, or another thread of this one, holds the lock.
    """
    file = folder / LOCK_FILE
    descriptor = _acquire(file)
    try:
        yield
    finally:
        if descriptor in _held:
            _release(file, descriptor)


def _acquire(file: Path) -> int | None:
    """Return the descriptor of the locked file, or None if the folder cannot be locked."""
    while True:
        try:
            # A link is refused: somebody who sends a folder could overwrite other files with it.
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno in _READ_ONLY:
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The text is empty if the holder has not written it yet.
            holder = os.pread(descriptor, _LONGEST_HOLDER_BYTES, 0).decode(errors="replace")
            os.close(descriptor)
            raise FolderLockedError(file.parent, displayable(holder) or "another process") from None
        except OSError as error:
            # Some network drives refuse every lock, each with an error of its own.
            os.close(descriptor)
            file.unlink(missing_ok=True)
            _warn_not_supported(os.strerror(error.errno))
            return None
        if _is_at(file, descriptor):
            break
        # The last holder has removed the file since `os.open`, so the loop opens a new one.
        os.close(descriptor)
    _held.add(descriptor)
    holder = f"process {os.getpid()} on {platform.node()!r} since {time.strftime('%F %T')}"
    # On a full disk, the lock still works; the file then does not name the holder.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, holder.encode())
    return descriptor


def _release(file: Path, descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        # If the folder was moved, another process may have its own lock at this path.
        if _is_at(file, descriptor):
            file.unlink()
    os.close(descriptor)


def _is_at(file: Path, descriptor: int) -> bool:
    """Return True if the open file is still the file at this path."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@functools.cache
def _warn_not_supported(reason: str) -> None:
    _log.warning(
        "The drive of this folder has no locks (%s), so nothing stops a second process from "
        "training the same run: start only one.",
        reason,
    )


def _close_in_child() -> None:
    # A forked child shares the lock. A child that outlives a killed training would keep the run
    # locked.
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def process_identity() -> dict[str, Any]:
    """Return id, start time and host of this process, as `run.json` stores them."""
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


def writer_status(info: Mapping[str, Any], path: Path) -> str:
    """Return the state of the process that was writing a folder.

    Args:
        info: Result of `process_identity` in that process.
        path: The folder.

    Returns:
        `running`, `crashed`, or `unknown` if the process is on another machine.
    """
    if info["host"] != platform.node():
        return "unknown"
    start = _start_time(info["pid"])
    # A record written by hand may lack the start time, and is compared by the process id alone.
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
