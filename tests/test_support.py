"""What the tests share does what its users rely on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.forks import has_ended, in_child
from tests.support.shared import made_once


def test_what_is_shared_is_made_once_and_again_after_a_failure(tmp_path_factory: pytest.TempPathFactory) -> None:
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "half").touch()
        if len(calls) == 1:
            raise ZeroDivisionError
        (folder / "whole").touch()

    name = f"example-{os.getpid()}"
    with pytest.raises(ZeroDivisionError):
        made_once(tmp_path_factory, name, make)
    made = made_once(tmp_path_factory, name, make)
    assert made_once(tmp_path_factory, name, make) == made == calls[1] != calls[0] and len(calls) == 2
    assert (made / "whole").is_file() and not (calls[0] / "whole").exists()


def test_a_child_that_fails_is_an_error_and_one_that_is_killed_is_said() -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill(child: int) -> None:
        assert not has_ended(child)
        os.kill(child, signal.SIGKILL)
        while not has_ended(child):
            pass

    assert in_child(die) and not in_child(lambda: None)
    assert in_child(signal.pause, kill)
    with pytest.raises(AssertionError, match="the child failed"):
        in_child(lambda: 1 / 0)
