"""The reward lab's callbacks with ipywidgets 7.7.1 and IPython 7.34, which Colab has, and without torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.old_jupyter import old_python


@pytest.fixture(scope="module", name="old_python")
def made_old_python() -> Path:
    return old_python()


def run(python: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *command], capture_output=True, text=True, timeout=200, cwd=ROOT)


def test_the_callbacks_work_there_too(old_python: Path) -> None:
    options = [
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-W",
        "error::DeprecationWarning:grpo_nb",
    ]
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
        "print(IPython.__version__, ipywidgets.__version__, 'torch' in sys.modules, lab._boxes['<odd>'].description)\n"
        "print(lab.scores.totals)"
    )
    done = run(old_python, "-c", code)
    assert done.stdout.splitlines() == ["7.34.0 7.7.1 False &lt;odd&gt;", "(2.0, 0.0)"], done.stderr
