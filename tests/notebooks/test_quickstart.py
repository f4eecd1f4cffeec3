"""The quickstart, executed with the real model as `make run` does it: it does and shows what it promises."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import grpo_nb as gn
from tests.support.notebooks import NOTEBOOKS, assert_nothing_went_wrong, cell_with, outputs, text_of
from tests.support.written_run import write_run

# The longest of all, and another notebook waits for its run.
pytestmark = pytest.mark.begins(10)


def test_it_learns_visibly(quickstart: tuple[Path, gn.runs.Run]) -> None:
    _, run = quickstart
    assert run.status == "finished" and len(run.rows) == run.settings.max_steps
    assert run.rise().is_clear, run.rise().sentence
    comparison = run.comparison
    assert comparison.verdict == "better" and comparison.interval[0] > 0
    assert run.rows[-1]["kl"] > 0
    (exported,) = run.exports
    verification = json.loads((run.path.parent.parent / exported.path / "verification.json").read_text())
    assert verification["passed"] and verification["imported_unsloth_or_kit"] == []


def test_one_live_figure_with_alternative_text(quickstart: tuple[Path, gn.runs.Run]) -> None:
    notebook = nbformat.read(quickstart[0], as_version=4)
    images = outputs(cell_with(notebook, "gn.train("), "image/png")
    assert len(images) == 1, "the figure must be updated in place"
    assert "The reward rose from" in images[0].data["text/plain"]
    assert images[0].metadata["image/png"]["alt"].startswith("Training curves. The reward rose from")


def test_no_cell_warns_or_shows_an_error(quickstart: tuple[Path, gn.runs.Run]) -> None:
    assert_nothing_went_wrong(quickstart[0])


def test_the_comparison_and_the_pipeline_are_shown(quickstart: tuple[Path, gn.runs.Run]) -> None:
    notebook = nbformat.read(quickstart[0], as_version=4)
    (shown,) = outputs(cell_with(notebook, "gn.compare("), "text/html")
    page = shown.data["text/html"]
    assert "better: accuracy" in page and page.count("<pre style='margin:0;white-space:pre-wrap'>What is") == 3
    assert "<answer>" in "".join(o.text for o in cell_with(notebook, "pipeline(").outputs if o.output_type == "stream")


def test_the_terminal_told_what_was_going_on(quickstart: tuple[Path, gn.runs.Run]) -> None:
    _, run = quickstart
    text = (run.path.parent.parent / "terminal.txt").read_text()
    steps = re.findall(r"^ +step +(\d+)/\d+  reward \d+\.\d\d  KL \d\.\d{3}  seconds [\d.]+", text, re.MULTILINE)
    assert [int(s) for s in steps] == list(range(1, run.settings.max_steps + 1))
    for wanted in (
        "Check the machine",
        "The reward rose from",
        "Held-out: better",
        "every weight is base plus adapter",
    ):
        assert wanted in text, wanted


def test_the_easiest_level_was_taken_after_one_measurement(quickstart: tuple[Path, gn.runs.Run]) -> None:
    shown = text_of(cell_with(nbformat.read(quickstart[0], as_version=4), "choose_level("))
    assert shown.startswith("Level 0 is taken") and "There is something to learn." in shown
    assert shown.count("not measured") == len(gn.tasks.ARITHMETIC_LEVELS) - 1
    assert quickstart[1].info["task"]["fingerprint"] == gn.load_task("arithmetic", quickstart[1].settings).fingerprint


@pytest.mark.parametrize(
    ("verdict", "has_room", "said"),
    [
        ("better", True, "It worked. "),
        ("no difference shown", False, "the model could do it before. Nothing is left"),
        ("no difference shown", True, "the model did not get better. "),
    ],
)
def test_the_last_cell_ends_well_whatever_was_learnt(
    verdict: str, has_room: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = cell_with(nbformat.read(NOTEBOOKS[0], as_version=4), "run.rise()")
    names = {
        "run": write_run(tmp_path / "run"),
        "comparison": SimpleNamespace(verdict=verdict, sentence=f"{verdict}: accuracy"),
        "choice": SimpleNamespace(has_room=has_room, sentence="Nothing is left to learn"),
        "has_learnt": True,
        "exported": SimpleNamespace(verification={"passed": True}),
    }
    exec(cell.source, names)
    told = capsys.readouterr().out
    assert said in told and f"Held-out: {verdict}" in told
    exec(cell.source, names | {"has_learnt": False, "exported": None})
    with pytest.raises(AssertionError, match="Not the trained model"):
        exec(cell.source, names | {"exported": SimpleNamespace(verification={"passed": False})})
