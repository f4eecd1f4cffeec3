"""One process holds the lock of a folder, and its end releases the lock, however it ends."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from pathlib import Path

import pytest

from grpo_nb.core import locks
from grpo_nb.core.locks import FolderLockedError, locked
from tests.support.locks import holder_of


def test_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with holder_of(tmp_path) as pid:
        with pytest.raises(FolderLockedError) as caught:
            locked(tmp_path).__enter__()
        assert caught.value.holder["pid"] == pid
        assert caught.value.holder["host"] == os.uname().nodename
        assert time.strptime(caught.value.holder["since"], "%Y-%m-%d %H:%M:%S")


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        pass
    assert (tmp_path / ".lock").is_file(), "it had no time to remove its file"
    with locked(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_lock_leaves_no_file(tmp_path: Path) -> None:
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_lock_is_held_against_the_same_process_too(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FolderLockedError, match=f"process {os.getpid()} on "):
        locked(tmp_path).__enter__()


def test_lock_is_not_kept_by_a_child_of_a_dead_process(tmp_path: Path) -> None:
    """A fork shares the lock, and workers may outlive a training that is killed."""
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        lock = locked(tmp_path)  # kept, or it ends with its last reference
        lock.__enter__()
        worker = os.fork()
        if worker == 0:
            os.read(read, 1)
            os._exit(0)
        os._exit(0)
    os.waitpid(holder, 0)
    with locked(tmp_path):
        pass
    os.write(write, b"x")
    os.close(read)
    os.close(write)


def test_lock_of_a_moved_folder_leaves_its_successor_locked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder):
        folder.rename(tmp_path / "aside")
        folder.mkdir()
        later = locked(folder)
        later.__enter__()
    assert (folder / ".lock").is_file()
    later.__exit__(None, None, None)


def test_lock_is_skipped_where_the_drive_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    locks._warn_not_supported.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with locked(tmp_path):
                assert list(tmp_path.iterdir()) == []
    (record,) = caplog.records
    assert "has no locks (No locks available)" in record.getMessage()


def test_lock_is_skipped_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*arguments: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(locks.os, "open", read_only)
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic links.*/\.lock'"):
        locked(tmp_path).__enter__()
    assert not (tmp_path / "elsewhere").exists()


def test_lock_with_deep_json_still_locks(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("[" * 4096)
    with (tmp_path / ".lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FolderLockedError, match="locked by another process"):
            locked(tmp_path).__enter__()
