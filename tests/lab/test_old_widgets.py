"""The reward lab's callbacks with ipywidgets 7.7.1 and IPython 7.34, which Colab has, and without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.old_widgets_env import make_environment
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def old_python() -> Path:
    """Python of an environment beside this one, kept for the next time."""
    place = Path(sys.prefix)
    if not os.access(place, os.W_OK) or sys.prefix == sys.base_prefix:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_nb"
    return make_environment(place / "old_widgets")


def run(python: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *command], capture_output=True, text=True, timeout=200, cwd=ROOT)


def test_the_callbacks_work_there_too(old_python: Path) -> None:
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-W", "error::DeprecationWarning:grpo_nb"]
    done = run(old_python, "-m", "pytest", *options, "tests/lab/test_widget.py")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout and "failed" not in done.stdout


def test_it_is_the_environment_it_says(old_python: Path) -> None:
    code = (
        "import IPython, ipywidgets, sys, grpo_nb as gn\n"
        "rows = [{'question': 'What is 20 + 3?', 'answer': '23'}]\n"
        "def odd(completions, **columns): return [0.0 for _ in completions]\n"
        "odd.__name__ = '<odd>'\n"
        "lab = gn.RewardLab([gn.rewards.correctness(), odd], rows)\n"
        # This version writes descriptions into the page as HTML.
        "print(IPython.__version__, ipywidgets.__version__, 'torch' in sys.modules, lab._weights.boxes['<odd>'].description)\n"
        "print(lab.scores.totals)"
    )
    done = run(old_python, "-c", code)
    assert done.stdout.splitlines() == ["7.34.0 7.7.1 False &lt;odd&gt;", "(2.0, 0.0)"], done.stderr
