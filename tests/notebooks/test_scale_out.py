"""The notebook about many processes, as published: tests/scaleout has its steps in small."""

import json
from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import (
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    printed,
    text_of,
)

pytestmark = [pytest.mark.begins(110), only_published]


def test_no_cell_warns_or_shows_an_error(scale_out: Path) -> None:
    assert_nothing_went_wrong(scale_out)


@pytest.fixture
def notebook(scale_out: Path) -> nbformat.NotebookNode:
    return nbformat.read(scale_out, as_version=4)


@pytest.fixture
def folder(scale_out: Path) -> Path:
    return scale_out.parent.parent.parent / "anywhere"


def test_folder_names_what_was_changed(notebook: nbformat.NotebookNode) -> None:
    assert "dapo" in text_of(cell_with(notebook, "gn.scaleout.write_project("))


@pytest.mark.parametrize("cell", ['print(start("train.py", "--replay"))', "same = start("])
def test_replay_gives_the_same_numbers(notebook: nbformat.NotebookNode, cell: str) -> None:
    shown = printed(cell_with(notebook, cell))
    assert "The same numbers in 3 steps, to 0.0001." in shown
    assert "grad_norm: largest difference" in shown


def test_last_replay_had_two_processes(scale_out: Path, folder: Path) -> None:
    finished = json.loads((folder / "replay" / "finished.json").read_text())
    assert finished["processes"] == 2


def test_training_in_the_folder_comes_back_as_a_run(
    notebook: nbformat.NotebookNode, folder: Path
) -> None:
    folder_run = gn.scaleout.open(folder).run
    assert len(folder_run.rows) == 3
    assert "processes: 2" in folder_run.info["engine"]
    assert "came back as a run" in printed(cell_with(notebook, "came back as a run"))
