"""A warning points to the user's line, however deep in the kit it is given."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from grpo_nb.core import problems

ROOT = Path(__file__).resolve().parents[2]


def warn_inside_kit(depth: int) -> warnings.WarningMessage:
    """Return the warning that a function of the kit gives after `depth` calls of itself."""
    code = compile(
        "def inner(depth):\n"
        "    if depth:\n"
        "        return call(lambda: inner(depth - 1))\n"
        "    warn_user('change this')\n",
        f"{ROOT}/grpo_nb/made_up.py",
        "exec",
    )
    # `call` stands for another library between two frames of the kit, as TRL is in a training.
    namespace = {"warn_user": problems.warn_user, "call": lambda function: function()}
    exec(code, namespace)
    with pytest.warns(UserWarning, match="change this") as caught:
        namespace["inner"](depth)
    (warning,) = caught
    return warning


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_warn_user_points_to_the_line_of_the_user(depth: int) -> None:
    assert warn_inside_kit(depth).filename == __file__


def test_warn_user_without_user_code_still_warns() -> None:
    command = "from grpo_nb.core.problems import warn_user; warn_user('alone')"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "alone" in done.stderr


def test_error_chain_ends_at_an_error_that_is_its_own_cause() -> None:
    error = ValueError("raised as math-verify does: raise error from error")
    error.__cause__ = error
    assert list(problems.error_chain(error)) == [error]


def test_error_chain_leaves_out_a_hidden_error() -> None:
    with pytest.raises(KeyError) as hidden:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second") from None
    assert list(problems.error_chain(hidden.value)) == [hidden.value]


def test_error_chain_follows_causes_and_contexts() -> None:
    first = ValueError("first")
    second = KeyError("second")
    third = RuntimeError("third")
    second.__cause__ = first
    third.__context__ = second
    assert list(problems.error_chain(third)) == [third, second, first]
