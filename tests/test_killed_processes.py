"""Folders and locks survive a process that is killed or forked.

These tests fork the test process. They stand apart from tests/core, so that the light part of the
suite forks nothing.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

from grpo_nb.core import files
from grpo_nb.core.locks import holding_lock
from tests.core.test_files import OLD, content, folder_with_a_file
from tests.support.forks import in_child

NEW = {"a": "new"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return folder_with_a_file(tmp_path)


def replace_until_killed(out: Path, event: str, times: int) -> None:
    """Replace the folder, and be killed just before Python's audit event occurs the nth time."""
    occurrences = itertools.count(1)

    def watch(name: str, _: object) -> None:
        if name == event and next(occurrences) == times:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with files.staged_folder(out) as staged:
        (staged / "a").write_text("new")
        files.put_in_place(staged, out)


def left_after_kill(out: Path, event: str, times: int) -> dict[str, dict[str, str]]:
    """Return the folders left next to `out`, by name without random part; the staged one is new."""
    assert in_child(lambda: replace_until_killed(out, event, times)), "it was not killed"
    left = {path.name.split("-")[0]: content(path) for path in out.parent.iterdir()}
    assert left.pop(".out.partial", NEW) == NEW
    return left


@pytest.mark.parametrize(
    ("event", "times", "left"),
    [
        pytest.param("os.rename", 1, {"out": OLD}, id="before first rename"),
        # The only moment at which the name is free.
        pytest.param("os.rename", 2, {".out.replaced": OLD}, id="between the renames"),
        pytest.param("shutil.rmtree", 1, {"out": NEW, ".out.replaced": OLD}, id="before removal"),
    ],
)
def test_killed_replacement_leaves_old_or_new(event, times, left, out: Path) -> None:
    assert left_after_kill(out, event, times) == left


@pytest.mark.parametrize(
    ("event", "left"),
    [
        pytest.param("os.rename", {}, id="before rename"),
        pytest.param("shutil.rmtree", {"out": NEW}, id="after rename"),
    ],
)
def test_killed_creation_leaves_nothing_or_new(event, left, tmp_path: Path) -> None:
    assert left_after_kill(tmp_path / "out", event, 1) == left


def test_leftovers_of_killed_process_are_not_in_the_way(out: Path) -> None:
    left_after_kill(out, "os.rename", 2)
    with files.staged_folder(out) as staged:
        files.put_in_place(staged, out)
    assert content(out) == {}


def test_lock_is_free_after_the_block_though_a_forked_child_runs(tmp_path: Path) -> None:
    read, write = os.pipe()
    with holding_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
    with holding_lock(tmp_path):
        pass
    os.write(write, b"x")
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
