"""The notebook of one's own data, executed: what it shows of a file full of dirt, and of a run."""

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import (
    all_text_of,
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


@pytest.fixture
def notebook(your_data: Path) -> nbformat.NotebookNode:
    return nbformat.read(your_data, as_version=4)


def test_errors_of_the_first_attempt_show_the_line_to_write(
    notebook: nbformat.NotebookNode,
) -> None:
    errors = printed(cell_with(notebook, "for attempt in"))
    assert """columns={"question": "Guest's remark", "answer": "mood (by hand)"}""" in errors
    assert 'on_conflict="drop"' in errors
    assert "['negative', 'neutral']" in errors


@pytest.mark.parametrize(
    "text",
    [
        "with an empty answer",
        "repeated",
        "contradictory",
        "read as cp1252",
        "one of: negative, neutral, p",
    ],
)
def test_task_shows_what_happened_to_the_rows(notebook: nbformat.NotebookNode, text: str) -> None:
    assert text in text_of(cell_with(notebook, "holdout=0.3"))


def test_loophole_of_the_first_reward_is_found(notebook: nbformat.NotebookNode) -> None:
    shown = text_of(cell_with(notebook, "def names_the_mood"))
    assert "critical: names_the_mood: every candidate" in shown


def test_baseline_names_the_majority_class(notebook: nbformat.NotebookNode) -> None:
    shown = all_text_of(cell_with(notebook, "gate = gn.baseline("))
    assert "always answering 'positive' would get 43%" in shown


@only_small
def test_run_of_two_steps_claims_no_gain(notebook: nbformat.NotebookNode) -> None:
    comparison = all_text_of(cell_with(notebook, "comparison = gn.compare(run"))
    assert "Always answering 'positive' would get 42.9%" in comparison
    verdict = printed(cell_with(notebook, "run.outcome("))
    assert verdict.startswith("First training. No gain is shown: ")
    assert "fewer than 5 logged steps are too few" in " ".join(verdict.split())


@only_published
def test_greedy_answers_clear_the_baseline(notebook: nbformat.NotebookNode) -> None:
    assert "\nSignal: " in all_text_of(cell_with(notebook, "gate = gn.baseline("))
    verdict = printed(cell_with(notebook, "run.outcome("))
    assert verdict.startswith("First training. It worked.")
    assert verdict.count("It worked.") == 2
    assert "Always answering 'positive' would get 42.9%" in verdict


@only_published
def test_reason_of_the_failure_is_shown(notebook: nbformat.NotebookNode) -> None:
    before = all_text_of(cell_with(notebook, "gate = gn.baseline("))
    assert "groups without one" in before
    reason = all_text_of(cell_with(notebook, "pushes = "))
    for mood in ("negative", "neutral", "positive"):
        assert mood in reason


@only_published
@pytest.mark.parametrize(
    ("code", "neutral_answers"),
    [
        pytest.param("comparison = gn.compare(run", 0, id="first training"),
        pytest.param("second = gn.train(", 9, id="with more neutral rows"),
    ],
)
def test_more_rows_teach_the_rare_label(
    notebook: nbformat.NotebookNode, code: str, neutral_answers: int
) -> None:
    table = text_of(cell_with(notebook, code)).replace("no label", "none")
    lines = table.removeprefix("answer after").splitlines()
    labels = lines[0].split()
    (counts,) = (line.split()[1:] for line in lines if line.startswith("neutral"))
    given = dict(zip(labels, counts, strict=True))
    assert given.get("neutral", "0") == str(neutral_answers)
