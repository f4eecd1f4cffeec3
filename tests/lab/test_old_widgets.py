"""Run the tests of the reward lab with ipywidgets 7.7.1 and IPython 7.34, as on Colab."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.old_jupyter import old_python

CODE = """
import IPython, ipywidgets, sys, grpo_nb as gn
from tests.support.lab_controls import has_control
rows = [{'question': 'What is 20 + 3?', 'answer': '23'}]
def odd(completions, **columns): return [0.0 for _ in completions]
odd.__name__ = '<odd>'
lab = gn.RewardLab([gn.rewards.correctness(), odd], rows)
print(IPython.__version__, ipywidgets.__version__, 'torch' in sys.modules)
print(has_control(lab, '&lt;odd&gt;'), lab.scores.totals)
"""


@pytest.fixture(scope="module", name="old_python")
def old_python_path() -> Path:
    return old_python()


def run(python: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *command], capture_output=True, text=True, timeout=200, cwd=ROOT)


def test_lab_works_with_the_widgets_of_colab(old_python: Path) -> None:
    options = ["-q", "--noconftest", "-p", "no:cacheprovider"]
    options += ["-W", "error::DeprecationWarning:grpo_nb"]
    done = run(old_python, "-m", "pytest", *options, "tests/lab/test_widget.py")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_old_widgets_are_used_without_torch(old_python: Path) -> None:
    done = run(old_python, "-c", CODE)
    versions, shown = done.stdout.splitlines()
    assert versions == "7.34.0 7.7.1 False", done.stderr
    # This version writes descriptions into the page as HTML.
    assert shown == "True (2.0, 0.0)"
