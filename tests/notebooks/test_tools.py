"""The notebook about tools, executed: played by hand, shown, trained, and played on what nobody trained."""

from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import (
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    outputs,
    printed,
    text_of,
)

pytestmark = pytest.mark.begins(35)


def test_no_cell_warns_or_shows_an_error(tools: Path) -> None:
    assert_nothing_went_wrong(tools)


def test_the_tools_notebook_shows_what_its_prose_says(tools: Path) -> None:
    notebook = nbformat.read(tools, as_version=4)
    by_hand = printed(cell_with(notebook, "for place in hand.row"))
    assert [line.rpartition("total ")[2] for line in by_hand.splitlines()] == ["0.5", "1", "3", "0"]
    prompt = text_of(cell_with(notebook, "shown = [*one.example"))
    assert (
        prompt.count("<call>read(place=") == 3
        and "read(place): Read the note at a place." in prompt
    )
    assert len(outputs(cell_with(notebook, "run = gn.train("), "image/png")) == 1, (
        "the figure must be updated in place"
    )
    last = printed(cell_with(notebook, "Chains of three: {"))
    assert "Held-out: " in last and "Chains of three: " in last


@only_published
def test_it_learns_to_go_on_until_it_knows(tools: Path) -> None:
    (folder,) = (tools.parents[1]).glob("*/run.json")
    run, notebook = gn.open_run(folder.parent), nbformat.read(tools, as_version=4)
    assert run.comparison.verdict == "better" and "→" in printed(
        cell_with(notebook, "run.step(run.steps[-1])")
    )
    last = printed(cell_with(notebook, "Chains of three: {"))
    assert last.startswith("It worked.") and "Chains of three: Better" in last
