"""The notebook of the reward lab, executed with the real model."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, outputs, printed, text_of

pytestmark = pytest.mark.begins(100)


def test_no_cell_warns_or_shows_an_error(reward_lab: Path) -> None:
    assert_nothing_went_wrong(reward_lab)


def test_the_lab_notebook_shows_what_its_prose_says(reward_lab: Path) -> None:
    notebook = nbformat.read(reward_lab, as_version=4)
    reading = cell_with(notebook, "task.format.extract(text)")
    assert [line.split(" -> ")[1] for line in printed(reading).splitlines()] == [
        "7",
        "None",
        "None",
    ]
    assert text_of(cell_with(notebook, "report = gn.check_rewards")).startswith("Nothing found.")
    holed = cell_with(notebook, "def gold_somewhere")
    assert printed(holed) == "[1.0, 1.0, 1.0]\n"
    assert "critical: gold_somewhere: answer outside the slot" in text_of(holed)
    mended = cell_with(notebook, "def gold_in_its_slot")
    assert printed(mended) == "[1.0, 0.0, 0.0]\n" and text_of(mended).startswith("Nothing found.")
    assert "format outweighs the answer" in text_of(cell_with(notebook, "formal = {"))


def test_the_lab_is_there_with_and_without_a_kernel(reward_lab: Path) -> None:
    notebook = nbformat.read(reward_lab, as_version=4)
    cell = cell_with(notebook, "gn.RewardLab(")
    assert outputs(cell, "application/vnd.jupyter.widget-view+json")
    page = text_of(cell, "text/html")
    assert '<td class="gn-number gn-strong gn-total">3.5</td>' in page, (
        "what a page without a kernel shows"
    )
    scores = cell_with(notebook, "scores = gn.score(")
    assert "advantages: [1.04, -0.09, -0.95]" in printed(scores)
    assert "It is 2, or one more." in text_of(scores, "text/html"), (
        "the completions are there as a whole"
    )


def test_the_gate_tells_the_example_turn(reward_lab: Path, size: str) -> None:
    notebook, (groups, each) = (
        nbformat.read(reward_lab, as_version=4),
        (4, 4) if size == "small" else (8, 8),
    )
    without, with_example = (
        text_of(cell_with(notebook, f"{name} = gn.baseline(")) for name in ("before", "after")
    )
    # About one completion in 400 holds a tag by chance; which, depends on how a machine rounds.
    assert re.match(rf"No signal: in 0 of {groups}|Weak signal: in 1 of {groups}", without)
    assert f"answer can be read in none of {each * groups} completions" in without
    assert (
        re.findall(r"advice: (.+?):", without)[0] == "example turn"
        and "example turn" not in with_example
    )
    weak = "|Weak signal" if size == "small" else ""
    differing = "[1234]" if size == "small" else "[678]"
    assert re.match(
        rf"(Signal|Format only{weak}): in {differing} of {groups} groups of {each} completions",
        with_example,
    )
    assert int(re.search(rf"read +(\d+) of {each * groups}", with_example)[1]) > 3 * (
        size != "small"
    )
    last = printed(cell_with(notebook, "The loophole was found"))
    assert ("With it: " if size == "small" else "more groups have a learning signal") in last
