"""Lock a folder, so that only one process at a time works in it.

The lock is `flock` on a hidden file in the folder. The operating system releases the lock when the
process ends, also after a crash. The file names the holder, for the error of the next process. Some
network drives have no `flock`; there, the kit works without a lock.
"""

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.core.writers import process_identity

LOCK_FILE = ".lock"
_log = logging.getLogger(__name__)
# Errors of flock(2) that mean: this file system has no locks.
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# A holder's identity takes about 100 bytes. A file that the kit did not write may be of any length.
_LONGEST_HOLDER_BYTES = 4096
_SECONDS_BETWEEN_TRIES = 0.02
# Descriptors of the locks that this process holds.
_held: set[int] = set()


class FolderLockedError(ValueError):
    """Another process, or another thread of this one, works in the folder."""

    def __init__(self, folder: Path, holder: Mapping[str, Any]) -> None:
        self.folder = folder
        self.holder = holder
        super().__init__(f"{str(folder)!r} is locked by {self.holder_sentence}.")

    @property
    def holder_sentence(self) -> str:
        """The process that holds the lock, in words."""
        if not self.holder:
            return "another process"
        get = self.holder.get
        return f"process {get('pid')} on {get('host')!r} since {get('since')}"


@contextlib.contextmanager
def locked(folder: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder for the length of the block.

    A folder that cannot be written to needs no lock. On a drive without locks, the block runs
    without a lock, and a log message warns of that.

    Args:
        folder: The folder.
        wait_seconds: How long to wait for another holder to release the lock.

    Raises:
        FolderLockedError: Another process, or another thread of this one, holds the lock.
    """
    file = folder / LOCK_FILE
    descriptor = _acquire_within(file, wait_seconds)
    try:
        yield
    finally:
        if descriptor in _held:
            _release(file, descriptor)


def _acquire_within(file: Path, wait_seconds: float) -> int | None:
    """Return the descriptor of the locked file, or None if the folder cannot be locked."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return _acquire(file)
        except FolderLockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _acquire(file: Path) -> int | None:
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
            holder = _holder_of(descriptor)
            os.close(descriptor)
            raise FolderLockedError(file.parent, holder) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NOT_SUPPORTED:
                raise
            file.unlink(missing_ok=True)
            _warn_not_supported(os.strerror(error.errno))
            return None
        if _is_at(file, descriptor):
            break
        # The last holder has removed the file since `os.open`, so the loop opens a new one.
        os.close(descriptor)
    _held.add(descriptor)
    _write_holder(descriptor)
    return descriptor


def _write_holder(descriptor: int) -> None:
    identity = process_identity() | {"since": time.strftime("%Y-%m-%d %H:%M:%S")}
    # On a full disk, the lock still works; the file then does not name the holder.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(identity).encode())


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


def _holder_of(descriptor: int) -> dict[str, Any]:
    """Return the identity in a lock's file; empty if the holder has not written it yet."""
    try:
        holder = json.loads(os.pread(descriptor, _LONGEST_HOLDER_BYTES, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


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
