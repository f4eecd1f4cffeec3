"""The notebook about evaluation, executed: on a copy of a run that learnt nothing, and with a run of its own."""

from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(90)


def test_no_cell_warns_or_shows_an_error(evaluate: tuple[Path, gn.runs.Run]) -> None:
    # The tiny run of the tests has a reward of its own, which its folder does not hold.
    assert_nothing_went_wrong(evaluate[0], but="The main reward of the run 'tiny' is your function")


def test_the_evaluation_notebook_shows_evidence(
    evaluate: tuple[Path, gn.runs.Run], size: str
) -> None:
    notebook, run = nbformat.read(evaluate[0], as_version=4), evaluate[1]
    shown = text_of(cell_with(notebook, "comparison = gn.compare("), "text/html")
    verdict = "No difference shown" if size == "small" else "Better: "
    assert f'alt="Held-out comparison. {verdict}' in shown
    assert ("pass@2" if size == "small" else "pass@4") in text_of(cell_with(notebook, "sampled[1]"))
    table = text_of(cell_with(notebook, "comparison.transcripts("), "text/html")
    assert ("gained" in table) is (size != "small") and table.count("<tr") == 1 + min(
        20, len(run.holdout)
    )
    assert "1 held-out question is also in the training" in printed(
        cell_with(notebook, "refused = False")
    )
    last = printed(cell_with(notebook, "run.outcome("))
    assert last.startswith("No gain is shown: " if size == "small" else "It worked.")
    assert f"Held-out: {verdict}" in last
    assert (run.path / "comparison" / "transcripts.parquet").is_file()
