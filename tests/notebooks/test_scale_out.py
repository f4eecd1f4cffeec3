"""The notebook about many processes, executed on a run of a model of letters, and with a run of its own."""

import json
from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(110)


def test_no_cell_warns_or_shows_an_error(scale_out: Path) -> None:
    assert_nothing_went_wrong(scale_out)


def test_two_processes_compute_what_the_run_did_and_bring_theirs_back(
    scale_out: Path, size: str
) -> None:
    notebook = nbformat.read(scale_out, as_version=4)
    folder = scale_out.parent.parent.parent / "anywhere"
    assert "bnpo becomes dapo" in text_of(cell_with(notebook, "gn.scaleout.write("))
    alone = [] if size == "small" else ['print(start("train.py", "--replay"))']
    for cell in ("same = start(", *alone):
        said = printed(cell_with(notebook, cell))
        assert (
            "The same numbers in 3 steps, to 0.0001." in said
            and "grad_norm: largest difference" in said
        )
    assert json.loads((folder / "replay" / "finished.json").read_text())["processes"] == (
        1 if size == "small" else 2
    )
    back = gn.scaleout.open(folder).run
    assert len(back.rows) == 3 and "2 processes" in back.info["rollout"]
    assert "came back as a run" in printed(cell_with(notebook, "came back as a run"))
