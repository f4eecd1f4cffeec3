"""The notebook about exports, executed on a run of the tiny model, and with a run of its own."""

import json
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(120)


def test_no_cell_warns_or_shows_an_error(export: Path) -> None:
    assert_nothing_went_wrong(export)


def test_a_run_that_is_given_is_opened_and_not_loaded(export: Path) -> None:
    cell = cell_with(nbformat.read(export, as_version=4), "run = gn.open_run(RUN)")
    opened = SimpleNamespace(settings="its own")
    stand_in = SimpleNamespace(
        open_run=lambda folder: opened, load_task=lambda **asked: asked
    )  # and nothing that loads
    names = {"gn": stand_in, "RUN": "runs/tiny", "TASK": {}}
    exec(cell.source, names)
    assert names["run"] is opened and names["task"] == {"settings": "its own"}


def test_the_export_notebook_makes_and_uses(export: Path) -> None:
    notebook = nbformat.read(export, as_version=4)
    folder = export.parent.parent.parent / "exports" / "notebook"
    for kind in ("merged", "adapter", "gguf"):
        verification = json.loads((folder / kind / "verification.json").read_text())
        assert verification["passed"] and all(verification["checks"].values()), kind
        assert (folder / kind / "README.md").is_file() and (folder / kind / "figures" / "training.png").is_file()
    answers = [printed(cell_with(notebook, text)) for text in ('pipeline("text-generation', "server = xllamacpp")]
    (run,) = (folder.parent.parent / "runs").glob("*/run.json")
    question = gn.open_run(run.parent).holdout[0]["question"]
    assert all(answer.startswith(f"{question} -> ") for answer in answers)
    (problems,) = [cell for cell in notebook.cells if cell.source == "gn.export.push_problems(merged)"]
    assert text_of(problems).strip() == "[]"
    assert printed(cell_with(notebook, "gn.export.push_to_hub(")) == "Nothing was sent: PUSH_TO is empty.\n"
    assert "FROM ./gguf-q8_0.gguf" in printed(cell_with(notebook, "Modelfile"))
    assert "It worked: merged and adapter verified, GGUF verified and served" in printed(
        cell_with(notebook, "It worked")
    )
