"""The task and the run of the evaluation tests."""

import shutil
from pathlib import Path

import pytest

import grpo_nb as gn


@pytest.fixture(scope="module")
def task(tiny_run: gn.runs.Run) -> gn.tasks.Task:
    return gn.load_task("arithmetic", tiny_run.settings, train_size=20, holdout=10)


@pytest.fixture
def run(tiny_run: gn.runs.Run, tmp_path: Path) -> gn.runs.Run:
    """A copy of the run without its comparison, and without the model in memory."""
    without_comparison = shutil.ignore_patterns("comparison")
    folder = shutil.copytree(tiny_run.path, tmp_path / "run", ignore=without_comparison)
    return gn.open_run(folder)
