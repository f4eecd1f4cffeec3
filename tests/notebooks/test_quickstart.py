"""The quickstart: it does and shows what it promises, with the tiny model and as `make run` has it."""

import json
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

pytestmark = pytest.mark.begins(10)


def test_it_trains_and_its_export_is_the_trained_model(
    quickstart: tuple[Path, gn.runs.Run],
) -> None:
    _, run = quickstart
    assert run.status == "finished" and len(run.rows) == run.settings.max_steps
    assert run.rows[-1]["kl"] > 0
    (exported,) = run.exports
    verification = json.loads(
        (run.path.parent.parent / exported.path / "verification.json").read_text()
    )
    assert verification["passed"] and verification["imported_unsloth_or_kit"] == []


@only_published
def test_it_learns_visibly(quickstart: tuple[Path, gn.runs.Run]) -> None:
    notebook, run = nbformat.read(quickstart[0], as_version=4), quickstart[1]
    assert run.rise().is_clear, run.rise().sentence
    comparison = run.comparison
    assert comparison.verdict == "better" and comparison.interval[0] > 0
    page = text_of(cell_with(notebook, "gn.compare("), "text/html")
    assert "Better: " in page and "The answers themselves: " in page
    assert page.count("<pre style='margin:0;white-space:pre-wrap'>What is") == 3
    assert "<answer>" in printed(cell_with(notebook, "pipeline("))
    assert printed(cell_with(notebook, "run.outcome(")).startswith("It worked.")


def test_no_cell_warns_or_shows_an_error(quickstart: tuple[Path, gn.runs.Run]) -> None:
    assert_nothing_went_wrong(quickstart[0])


def test_the_curves_the_comparison_and_the_pipeline_are_shown(
    quickstart: tuple[Path, gn.runs.Run],
) -> None:
    notebook, run = nbformat.read(quickstart[0], as_version=4), quickstart[1]
    (image,) = outputs(cell_with(notebook, "gn.train("), "image/png")  # one, updated in place
    assert image.metadata["image/png"]["alt"].startswith("Training curves. ")
    verdict = run.comparison.verdict.capitalize()
    assert verdict in text_of(cell_with(notebook, "gn.compare("), "text/html")
    assert "What is" in printed(cell_with(notebook, "pipeline("))
    assert f"Held-out: {verdict}" in printed(cell_with(notebook, "run.outcome("))


def test_the_easiest_level_was_taken_after_one_measurement(
    quickstart: tuple[Path, gn.runs.Run], size: str
) -> None:
    shown = text_of(cell_with(nbformat.read(quickstart[0], as_version=4), "choose_level("))
    assert shown.startswith("Level 0: ")
    assert (
        "No level gives a learning signal." if size == "small" else "There is something to learn."
    ) in shown
    assert shown.count("not measured") == len(gn.tasks.ARITHMETIC_LEVELS) - 1
    assert (
        quickstart[1].info["task"]["fingerprint"]
        == gn.load_task("arithmetic", quickstart[1].settings).fingerprint
    )
