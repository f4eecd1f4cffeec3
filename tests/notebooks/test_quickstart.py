"""The quickstart, executed with the real model as `make run` does it: it does and shows what it promises."""

import json
from pathlib import Path

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import assert_nothing_went_wrong, cell_with, outputs, printed, text_of

# The longest of all, and another notebook waits for its run.
pytestmark = pytest.mark.begins(10)


def test_it_learns_visibly(quickstart: tuple[Path, gn.runs.Run], size: str) -> None:
    _, run = quickstart
    assert run.status == "finished" and len(run.rows) == run.settings.max_steps
    rise = run.rise()
    assert rise.first < rise.last and (rise.is_clear or size == "small"), "six steps are too few to be sure of a rise"
    comparison = run.comparison
    assert comparison.verdict == "better" and comparison.interval[0] > 0
    assert run.rows[-1]["kl"] > 0
    (exported,) = run.exports
    verification = json.loads((run.path.parent.parent / exported.path / "verification.json").read_text())
    assert verification["passed"] and verification["imported_unsloth_or_kit"] == []


def test_no_cell_warns_or_shows_an_error(quickstart: tuple[Path, gn.runs.Run]) -> None:
    assert_nothing_went_wrong(quickstart[0])


def test_the_curves_the_comparison_and_the_pipeline_are_shown(quickstart: tuple[Path, gn.runs.Run]) -> None:
    notebook = nbformat.read(quickstart[0], as_version=4)
    (image,) = outputs(cell_with(notebook, "gn.train("), "image/png")  # one, updated in place
    assert image.metadata["image/png"]["alt"].startswith("Training curves. The reward rose from")
    page = text_of(cell_with(notebook, "gn.compare("), "text/html")
    assert "better: accuracy" in page and page.count("<pre style='margin:0;white-space:pre-wrap'>What is") == 3
    assert "<answer>" in printed(cell_with(notebook, "pipeline("))
    assert printed(cell_with(notebook, "run.rise()")).startswith("It worked.")


def test_the_easiest_level_was_taken_after_one_measurement(quickstart: tuple[Path, gn.runs.Run], size: str) -> None:
    shown = text_of(cell_with(nbformat.read(quickstart[0], as_version=4), "choose_level("))
    assert shown.startswith("Level 0 is taken") and "There is something to learn." in shown
    # With other options there is one level.
    options = {"holdout_size": 24} if size == "small" else {}
    assert shown.count("not measured") == (0 if options else len(gn.tasks.ARITHMETIC_LEVELS) - 1)
    task = gn.load_task("arithmetic", quickstart[1].settings, **options)
    assert quickstart[1].info["task"]["fingerprint"] == task.fingerprint
