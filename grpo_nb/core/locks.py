"""Lock a folder for the process that writes it, and find out later if it is still being written.

The lock is `flock` on a hidden file, which stays in the folder. The operating system releases the
lock when the process ends, even after a crash; only a forked child that still runs keeps the lock.
Some network drives have no `flock`; there, the kit works without a lock.
"""

import contextlib
import fcntl
import logging
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

LOCK_FILE = ".lock"
_log = logging.getLogger(__name__)
# A process that reads the status holds a shared lock for a moment, so retry for about a second.
_TRIES = 20
_SECONDS_BETWEEN_TRIES = 0.05


class FolderLockedError(ValueError):
    """Refusal of a lock: another process, or another thread of this one, holds it."""


@contextlib.contextmanager
def holding_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder for the length of the block.

    On a drive without locks, the block runs without a lock, and a log message warns of that.

    Raises:
        FolderLockedError: Another process, or another thread of this one, holds the lock.
        OSError: The lock file belongs to another user or is a link, or the folder is read-only.
    """
    # O_NOFOLLOW: in a folder that somebody sends, the lock file could be a link to one of the
    # user's files. The umask decides who may use the lock, as for the other files of the folder.
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    holder = os.getpid()
    try:
        try:
            _acquire_lock(descriptor)
        except OSError as error:
            # Some network drives refuse every lock, each with an error of its own.
            _log.warning(
                "The drive of this folder has no locks (%s), so nothing stops a second process "
                "from training the same run: start only one.",
                error.strerror,
            )
        yield
    finally:
        # Closing the file is not enough: a forked child that still runs, such as a worker of a
        # reward's pool, would keep the lock. A forked child that leaves this block must not release
        # the lock of its parent.
        if os.getpid() == holder:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _acquire_lock(descriptor: int) -> None:
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_SECONDS_BETWEEN_TRIES)
    raise FolderLockedError("another process or thread is writing to this folder")


def writer_status(folder: Path, host: str | None) -> Literal["running", "crashed", "unknown"]:
    """Return the state of the process that was writing an unfinished folder.

    Args:
        folder: Folder without a recorded end of the writing.
        host: Name of the machine of that process, or None if it is unknown.

    Returns:
        `running` if a process holds the lock, `crashed` if none does, `unknown` if the process was
        on another machine or the drive has no locks.
    """
    if host != platform.node():
        return "unknown"
    try:
        # In a folder that somebody sends, the file may be a link, which is refused, or a pipe, on
        # which opening would wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(folder / LOCK_FILE, flags), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except FileNotFoundError:
        return "crashed"
    except OSError:
        return "unknown"
    return "crashed"
