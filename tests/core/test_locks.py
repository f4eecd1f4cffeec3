"""One process holds the lock of a folder until its end, and a living writer is recognised."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
from pathlib import Path

import pytest

from grpo_nb.core import locks
from grpo_nb.core.locks import FolderLockedError, holding_lock, writer_status
from tests.support.locks import holder_of


def unsupported(*arguments: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_SECONDS_BETWEEN_TRIES", 0.0)


@pytest.mark.usefixtures("_no_waiting")
def test_lock_of_another_process_is_refused(tmp_path: Path) -> None:
    with holder_of(tmp_path), pytest.raises(FolderLockedError):
        holding_lock(tmp_path).__enter__()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        pass
    with holding_lock(tmp_path):
        assert (tmp_path / ".lock").is_file()


def test_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with holding_lock(tmp_path):
            assert (tmp_path / ".lock").is_file()


@pytest.mark.usefixtures("_no_waiting")
def test_lock_is_held_against_the_same_process_too(tmp_path: Path) -> None:
    with holding_lock(tmp_path), pytest.raises(FolderLockedError):
        holding_lock(tmp_path).__enter__()


def test_lock_waits_for_a_process_that_reads_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(locks.time, "sleep", lambda seconds: reader.close())
        with holding_lock(tmp_path):
            assert writer_status(tmp_path, platform.node()) == "running"


def test_lock_of_a_moved_folder_leaves_its_successor_locked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with holding_lock(folder):
        folder.rename(tmp_path / "aside")
        folder.mkdir()
        later = holding_lock(folder)
        later.__enter__()
    assert (folder / ".lock").is_file()
    later.__exit__(None, None, None)


def test_lock_is_skipped_where_the_drive_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with caplog.at_level(logging.WARNING), holding_lock(tmp_path):
        pass
    (record,) = caplog.records
    assert "has no locks (No locks available)" in record.getMessage()


def test_lock_of_another_user_in_a_shared_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), ".lock")

    monkeypatch.setattr(locks.os, "open", refused)
    with pytest.raises(PermissionError, match=r"\.lock"):
        holding_lock(tmp_path).__enter__()


def test_lock_of_a_group_can_be_written_by_the_group(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with holding_lock(tmp_path):
            assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic links.*/\.lock'"):
        holding_lock(tmp_path).__enter__()
    assert not (tmp_path / "elsewhere").exists()


def status(folder: Path) -> str:
    return writer_status(folder, platform.node())


def test_writer_status_of_locked_folder_is_running(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        assert status(tmp_path) == "running"


def test_writer_status_of_own_locked_folder_is_running(tmp_path: Path) -> None:
    with holding_lock(tmp_path):
        assert status(tmp_path) == "running"


def test_writer_status_of_killed_process_is_crashed(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        pass
    assert status(tmp_path) == "crashed"


def test_writer_status_after_the_lock_is_crashed(tmp_path: Path) -> None:
    with holding_lock(tmp_path):
        pass
    assert status(tmp_path) == "crashed"


def test_writer_status_without_a_lock_file_is_crashed(tmp_path: Path) -> None:
    assert status(tmp_path) == "crashed"


def test_writer_status_on_other_host_is_unknown(tmp_path: Path) -> None:
    with holding_lock(tmp_path):
        assert writer_status(tmp_path, "elsewhere") == "unknown"


def test_writer_status_on_a_drive_without_locks_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert status(tmp_path) == "unknown"


def test_writer_status_of_a_pipe_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    assert writer_status(tmp_path, platform.node()) in ("crashed", "unknown")
