"""The notebook about rewards, executed; as published with the real model."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import (
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    outputs,
    printed,
    text_of,
)

pytestmark = pytest.mark.begins(30)


@pytest.fixture
def notebook(reward_lab: Path) -> nbformat.NotebookNode:
    return nbformat.read(reward_lab, as_version=4)


def test_no_cell_warns_or_shows_an_error(reward_lab: Path) -> None:
    assert_nothing_went_wrong(reward_lab)


def test_sound_rewards_pass_the_check(notebook: nbformat.NotebookNode) -> None:
    shown = text_of(cell_with(notebook, "report = gn.check_rewards"))
    assert shown.startswith("Nothing found.")


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param("critical: gold_somewhere: every candidate", id="lists-all-numbers"),
        pytest.param("critical: gold_somewhere: answer outside the slot", id="outside-the-slot"),
        pytest.param("warning: thinks_long: repetition is rewarded", id="repetition"),
    ],
)
def test_check_names_the_loopholes_before_training(
    notebook: nbformat.NotebookNode, finding: str
) -> None:
    assert finding in text_of(cell_with(notebook, "def thinks_long"), "text/html")


def test_fixed_reward_passes_the_check(notebook: nbformat.NotebookNode) -> None:
    assert text_of(cell_with(notebook, "def gold_in_its_place")).startswith("Nothing found.")


@only_published
def test_model_exploits_the_loophole(notebook: nbformat.NotebookNode) -> None:
    """The reward rises clearly, and the answers get worse."""
    last = printed(cell_with(notebook, "hacked.rise()"))
    assert last.startswith("With loopholes: The reward rose from ")
    verdict = text_of(cell_with(notebook, "gn.compare(hacked, task"))
    assert "Worse: the answers" in verdict


def test_lab_is_shown_with_and_without_a_kernel(notebook: nbformat.NotebookNode) -> None:
    cell = cell_with(notebook, "gn.RewardLab(")
    assert outputs(cell, "application/vnd.jupyter.widget-view+json")
    page = text_of(cell, "text/html")
    assert '<td class="gn-number gn-strong gn-total">3.5</td>' in page


@pytest.fixture
def baselines(notebook: nbformat.NotebookNode) -> str:
    """Return the text of both baselines, without and with an example in the prompt."""
    cell = cell_with(notebook, "with_example = gn.baseline(")
    return "\n".join(output.data["text/plain"] for output in outputs(cell, "text/plain"))


def test_prompt_without_an_example_gives_no_signal(baselines: str, size: str) -> None:
    groups = 4 if size == "small" else 8
    # About one completion in 400 contains a tag by chance.
    assert re.search(rf"No signal: in 0 of {groups}|Weak signal: in 1 of {groups}", baselines)


@only_published
def test_example_in_the_prompt_gives_a_signal(baselines: str) -> None:
    assert re.search(r"(Signal|Format only): in [678] of 8 groups", baselines)
