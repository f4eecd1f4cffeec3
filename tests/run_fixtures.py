"""Fixtures that train or export: settings, a run of the tiny model, its merge, the quickstart.

`tests/conftest.py` registers this plugin unless all tests of a session do without a model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.export.saved_export import Export
from tests.support.notebooks import SIZES, execute_notebook, executed_in
from tests.support.scale import letters_folder, plain_trl
from tests.support.shared import made_once

__all__ = ["letters_folder", "plain_trl"]  # fixtures


@pytest.fixture
def tiny_settings(tiny_folder: Path, tmp_path: Path) -> gn.Settings:
    """Settings for a run of seconds on the tiny model."""
    return gn.preset(
        "cpu",
        model=str(tiny_folder),
        max_steps=3,
        max_completion_length=12,
        learning_rate=5e-3,
        max_grad_norm=10.0,
        run_root=str(tmp_path / "runs"),
    )


def brevity(completions: list, **columns: object) -> list[float]:
    """A reward that a random model can earn: fewer words are better."""
    return [1 / (1 + len(c[-1]["content"].split())) for c in completions]


@pytest.fixture(scope="session")
def tiny_run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.runs.Run:
    """A finished run on the tiny model, with its model."""
    settings = gn.preset(
        "cpu",
        model=str(tiny_folder),
        max_steps=14,
        max_completion_length=12,
        learning_rate=2e-2,
        max_grad_norm=10.0,
        run_root=str(tmp_path_factory.mktemp("runs")),
    )
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout=10, tokenizer=tokenizer)
    return gn.train(
        model, tokenizer, task, [brevity, gn.rewards.partial_format()], settings, name="tiny"
    )


@pytest.fixture(scope="session")
def merged(tiny_run: gn.runs.Run, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Return the merged model of that run, in a folder whose name needs quoting.

    Tests that change the model copy it first.
    """
    from tests.support.checks import run_script_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_nb.export.staged_export.run_script", run_script_here)
        return gn.export_merged(tiny_run, tmp_path_factory.mktemp("it's an export") / "tiny")


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check exports in this process, which has imported everything already.

    For tests that check several times. The notebooks 00 and 06 test the check in its own process.
    """
    from tests.support.checks import run_script_here

    monkeypatch.setattr("grpo_nb.export.staged_export.run_script", run_script_here)


@pytest.fixture(scope="session", params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    """Size of the notebooks: "small" in `make test`, also "published" in `make test-all`."""
    return request.param


@pytest.fixture(scope="session")
def quickstart(size: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, gn.runs.Run]:
    """`notebooks/00_quickstart`, executed once for all processes: (executed notebook, its run).

    As published with an empty cache, as by a first user; small, the same model trains two steps
    and answers six held-out questions.
    """

    def execute(folder: Path) -> object:
        if size == "small":
            changes = {
                "max_steps": 2,
                "warmup_steps": 0,
                "per_device_train_batch_size": 8,
                "max_completion_length": 32,
                "holdout_every": 0,
            }
            task = {"source": "arithmetic", "holdout": 6}
            return execute_notebook("00_quickstart", folder, size, CHANGES=changes, TASK=task)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRPO_NB_CACHE", str(folder / "cache"))
            return execute_notebook("00_quickstart", folder, size)

    folder = made_once(tmp_path_factory, f"quickstart-{size}", execute)
    (run,) = (folder / "runs").glob("*/run.json")
    return executed_in(folder, "00_quickstart"), gn.open_run(run.parent)
