"""The notebook about evaluation, on a run that learned nothing and on its own run."""

from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(90)


@pytest.fixture
def notebook(evaluate: tuple[Path, gn.runs.Run]) -> nbformat.NotebookNode:
    return nbformat.read(evaluate[0], as_version=4)


def test_no_cell_warns_or_shows_an_error(evaluate: tuple[Path, gn.runs.Run]) -> None:
    # The tiny run of the tests has a reward of its own, which its folder does not hold.
    assert_nothing_went_wrong(evaluate[0], but="The main reward of the run 'tiny' is your function")


def test_comparison_shows_its_verdict(notebook: nbformat.NotebookNode, size: str) -> None:
    verdict = "No difference shown" if size == "small" else "Better: "
    shown = text_of(cell_with(notebook, "comparison = gn.compare("), "text/html")
    assert f'alt="Held-out comparison. {verdict}' in shown
    last = printed(cell_with(notebook, "run.outcome("))
    assert last.startswith("No gain is shown: " if size == "small" else "It worked.")
    assert f"Held-out: {verdict}" in last


def test_pass_at_k_is_shown_for_both_models(notebook: nbformat.NotebookNode, size: str) -> None:
    shown = text_of(cell_with(notebook, "after = gn.evaluate("))
    assert ("pass@2" if size == "small" else "pass@4") in shown


def test_transcripts_begin_with_changed_answers(
    notebook: nbformat.NotebookNode, evaluate: tuple[Path, gn.runs.Run], size: str
) -> None:
    table = text_of(cell_with(notebook, "comparison.transcripts("), "text/html")
    assert ("gained" in table) is (size != "small")
    # The small form opens a run with other rewards, so its comparison is not the run's own.
    kept = evaluate[1].path / "comparison" / "transcripts.parquet"
    assert kept.is_file() is (size != "small")


def test_trained_question_is_refused(notebook: nbformat.NotebookNode, size: str) -> None:
    message = printed(cell_with(notebook, "is_refused = False"))
    question_count = 11 if size == "small" else 12
    assert f"1 of {question_count} held-out questions are also in the training" in message
