"""The notebook about tools, executed: played by hand, trained, compared on longer chains."""

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


@pytest.fixture
def notebook(tools: Path) -> nbformat.NotebookNode:
    return nbformat.read(tools, as_version=4)


def test_no_cell_warns_or_shows_an_error(tools: Path) -> None:
    assert_nothing_went_wrong(tools)


def test_reading_earns_and_guessing_does_not(notebook: nbformat.NotebookNode) -> None:
    by_hand = printed(cell_with(notebook, "for place in episode.row"))
    totals = [line.rpartition("total ")[2] for line in by_hand.splitlines()]
    assert totals == ["0.5", "1", "3", "0"]


def test_prompt_shows_the_tool_and_two_episodes(notebook: nbformat.NotebookNode) -> None:
    prompt = text_of(cell_with(notebook, "example = [*short.example"))
    assert prompt.count("<call>read(place=") == 3
    assert "read(place): Read the note at a place." in prompt


def test_figure_is_updated_in_place(notebook: nbformat.NotebookNode) -> None:
    assert len(outputs(cell_with(notebook, "run = gn.train("), "image/png")) == 1


def test_verdict_covers_both_comparisons(notebook: nbformat.NotebookNode) -> None:
    last = printed(cell_with(notebook, "Chains of three:"))
    assert "Held-out: " in last
    assert "Chains of three: " in last


@only_published
def test_model_learns_to_read_until_it_knows(tools: Path, notebook: nbformat.NotebookNode) -> None:
    (folder,) = (tools.parents[1]).glob("*/run.json")
    assert gn.open_run(folder.parent).comparison.verdict == "better"
    assert "\N{RIGHTWARDS ARROW}" in text_of(cell_with(notebook, "run.step(run.steps[-1])"))
    last = printed(cell_with(notebook, "Chains of three:"))
    assert last.startswith("It worked.")
    assert "Chains of three: Better" in last
