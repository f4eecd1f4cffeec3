"""The quickstart does what it promises, as `make run` runs it."""

import json
from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import (
    all_text_of,
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    outputs,
    printed,
    text_of,
)

pytestmark = pytest.mark.begins(10)


def test_quickstart_export_is_the_trained_model(
    quickstart: tuple[Path, gn.runs.Run],
) -> None:
    _, run = quickstart
    assert run.status == "finished"
    assert len(run.rows) == run.settings.max_steps
    assert run.rows[-1]["kl"] > 0
    exported = run.path.parent.parent / "exports" / "quickstart"
    verification = json.loads((exported / "verification.json").read_text())
    assert verification["passed"]


@only_published
def test_quickstart_learns_visibly(quickstart: tuple[Path, gn.runs.Run]) -> None:
    notebook = nbformat.read(quickstart[0], as_version=4)
    run = quickstart[1]
    assert run.rise().is_clear, run.rise().sentence
    assert run.comparison.verdict == "better"
    assert run.comparison.tests.accuracy.interval[0] > 0
    page = all_text_of(cell_with(notebook, "gn.compare("), "text/html")
    assert "Better: " in page
    assert "The answers themselves: " in page
    assert "<answer>" in text_of(cell_with(notebook, "gn.ask("))
    assert printed(cell_with(notebook, "run.outcome(")).startswith("It worked.")


def test_no_cell_warns_or_shows_an_error(quickstart: tuple[Path, gn.runs.Run]) -> None:
    assert_nothing_went_wrong(quickstart[0])


def test_curves_and_comparison_are_shown(quickstart: tuple[Path, gn.runs.Run]) -> None:
    notebook = nbformat.read(quickstart[0], as_version=4)
    (image,) = outputs(cell_with(notebook, "gn.train("), "image/png")  # one, updated in place
    assert image.metadata["image/png"]["alt"].startswith("Training curves. ")
    verdict = quickstart[1].comparison.verdict.capitalize()
    assert verdict in all_text_of(cell_with(notebook, "gn.compare("), "text/html")
    assert f"Held-out: {verdict}" in printed(cell_with(notebook, "run.outcome("))


def test_advantage_formula_gives_the_numbers_on_screen(
    quickstart: tuple[Path, gn.runs.Run],
) -> None:
    """The notebook computes them: (total - mean) / standard deviation."""
    table = quickstart[1].step(1).groups[0].table
    totals = table["total"]
    by_hand = (totals - totals.mean()) / (totals.std() + 1e-4)
    assert by_hand.to_numpy() == pytest.approx(table["advantage"].to_numpy(), abs=1e-3)


def test_easiest_level_is_taken_after_one_measurement(
    quickstart: tuple[Path, gn.runs.Run],
) -> None:
    notebook, run = quickstart
    shown = printed(cell_with(nbformat.read(notebook, as_version=4), "choose_level("))
    assert shown.startswith("Level 0")
    assert "There is something to learn." in shown
    asked = gn.load_task("arithmetic", run.settings, holdout=run.info["task"]["holdout"])
    assert run.info["task"]["fingerprint"] == asked.fingerprint
