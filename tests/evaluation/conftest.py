"""What the tests of held-out evaluation ask, and whom."""

import shutil
from pathlib import Path

import pytest

import grpo_nb as gn


@pytest.fixture(scope="module")
def task(tiny_run: gn.runs.Run) -> gn.tasks.Task:
    return gn.load_task("arithmetic", tiny_run.settings, train_size=20, holdout_size=10)


@pytest.fixture
def run(tiny_run: gn.runs.Run, tmp_path: Path) -> gn.runs.Run:
    """The run from a folder of its own, without the model in memory and without what it was compared with before."""
    return gn.open_run(
        shutil.copytree(
            tiny_run.path, tmp_path / "run", ignore=shutil.ignore_patterns("comparison")
        )
    )
