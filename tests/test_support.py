"""A child process of a test that fails is no silence."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.forks import has_ended, in_child


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
