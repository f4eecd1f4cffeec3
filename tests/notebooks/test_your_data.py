"""The notebook of one's own data, executed: what it shows of a file full of dirt, and of a run."""

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import (
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    only_small,
    printed,
    text_of,
)

pytestmark = pytest.mark.begins(20)


def test_no_cell_warns_or_shows_an_error(your_data: Path) -> None:
    assert_nothing_went_wrong(your_data)


def test_it_shows_what_its_prose_says(your_data: Path) -> None:
    notebook = nbformat.read(your_data, as_version=4)
    told = printed(cell_with(notebook, "for attempt in"))
    assert """columns={"question": "Guest's remark", "answer": "mood (by hand)"}""" in told, (
        "a map to copy"
    )
    assert 'on_conflict="drop"' in told and "['negative', 'neutral']" in told
    task = text_of(cell_with(notebook, "task = gn.load_task("))
    told = (
        "with an empty answer",
        "repeated",
        "contradictory",
        "read as cp1252",
        "one of: negative, neutral, p",
    )
    assert [shown for shown in told if shown not in task] == []
    assert "critical: names_the_mood: every candidate" in text_of(
        cell_with(notebook, "def names_the_mood")
    )
    assert "always answering 'positive' would get 43%" in text_of(
        cell_with(notebook, "gate = gn.baseline(")
    )


@only_small
def test_a_run_of_two_steps_is_trained_and_compared_and_claims_nothing(your_data: Path) -> None:
    notebook = nbformat.read(your_data, as_version=4)
    assert "2 of 2" in text_of(cell_with(notebook, "gn.runs.list("))
    comparison = text_of(cell_with(notebook, "gn.compare("))
    assert "Always answering 'positive' would get 35.7%" in comparison
    said = printed(cell_with(notebook, "run.outcome("))
    assert said.startswith("No gain is shown: ") and "Train at least 5 steps" in said


@only_published
def test_the_run_is_better_and_is_held_against_the_floor(your_data: Path) -> None:
    notebook = nbformat.read(your_data, as_version=4)
    assert text_of(cell_with(notebook, "gate = gn.baseline(")).startswith("Signal")
    said = printed(cell_with(notebook, "run.outcome("))
    assert said.startswith("It worked.") and "Held-out: Better" in said
    assert "Always answering 'positive' would get 35.7%" in said
    assert "above that baseline." in said
    assert "12 of 12" in text_of(cell_with(notebook, "gn.runs.list("))
