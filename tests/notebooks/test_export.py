"""The notebook about exports, executed on a run of the tiny model, and with a run of its own."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed

pytestmark = pytest.mark.begins(120)


@pytest.fixture
def notebook(export: Path) -> nbformat.NotebookNode:
    return nbformat.read(export, as_version=4)


def test_no_cell_warns_or_shows_an_error(export: Path) -> None:
    assert_nothing_went_wrong(export)


@pytest.mark.parametrize("kind", ["merged", "adapter", "gguf"])
def test_export_is_verified_in_a_process_of_its_own(export: Path, kind: str) -> None:
    folder = export.parent.parent.parent / "exports" / "notebook" / kind
    verification = json.loads((folder / "verification.json").read_text())
    assert verification["passed"]
    assert all(verification["checks"].values())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('pipeline("text-generation', id="transformers"),
        pytest.param("server = xllamacpp", id="llama.cpp"),
    ],
)
def test_export_answers_a_question(notebook: nbformat.NotebookNode, text: str) -> None:
    assert re.match(r"What is .+\? -> ", printed(cell_with(notebook, text)))


def test_nothing_is_uploaded_by_default(notebook: nbformat.NotebookNode) -> None:
    shown = printed(cell_with(notebook, "gn.export.push_to_hub("))
    assert shown == "Problems: []\nNothing was uploaded: PUSH_TO is empty.\n"


def test_modelfile_names_the_gguf_file(notebook: nbformat.NotebookNode) -> None:
    assert "FROM ./gguf-q8_0.gguf" in printed(cell_with(notebook, "Modelfile"))


def test_verdict_names_all_three_exports(notebook: nbformat.NotebookNode) -> None:
    last = printed(cell_with(notebook, "The merged model and the adapter are verified"))
    assert "The GGUF file is verified" in last
