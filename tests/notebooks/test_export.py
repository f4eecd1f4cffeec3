"""The notebook about exports, executed on a run of the tiny model, and with a run of its own."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(120)


def test_no_cell_warns_or_shows_an_error(export: Path) -> None:
    assert_nothing_went_wrong(export)


def test_the_export_notebook_makes_and_uses(export: Path) -> None:
    notebook = nbformat.read(export, as_version=4)
    folder = export.parent.parent.parent / "exports" / "notebook"
    for kind in ("merged", "adapter", "gguf"):
        verification = json.loads((folder / kind / "verification.json").read_text())
        assert verification["passed"] and all(verification["checks"].values()), kind
        assert verification.get("imported_unsloth_or_kit", []) == [], (
            "checked in a process of its own"
        )
    for text in ('pipeline("text-generation', "server = xllamacpp"):
        assert re.match(r"What is .+\? -> ", printed(cell_with(notebook, text))), text
    (problems,) = [
        cell for cell in notebook.cells if cell.source == "gn.export.push_problems(merged)"
    ]
    assert text_of(problems).strip() == "[]"
    assert (
        printed(cell_with(notebook, "gn.export.push_to_hub("))
        == "Nothing was sent: PUSH_TO is empty.\n"
    )
    assert "FROM ./gguf-q8_0.gguf" in printed(cell_with(notebook, "Modelfile"))
    assert "GGUF file: verified and served" in printed(
        cell_with(notebook, "The merged model and the adapter are verified")
    )
