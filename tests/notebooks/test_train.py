"""The notebook about training, executed with the real model: an alert, an interruption, a resumed run, two stages."""

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, outputs, printed, text_of

pytestmark = pytest.mark.begins(30)


def test_no_cell_warns_or_shows_an_error(train: Path) -> None:
    assert_nothing_went_wrong(train)


def test_the_training_notebook_shows_what_its_prose_says(train: Path, size: str) -> None:
    notebook, steps = nbformat.read(train, as_version=4), 4 if size == "small" else 8
    assert "A dry run" in text_of(cell_with(notebook, "gn.dry_run("))
    assert "not measured yet" in text_of(cell_with(notebook, "gn.plan("))
    provoked = cell_with(notebook, "provoked = gn.train(")
    (table,) = [
        html for o in outputs(provoked, "text/html") if "no_spread" in (html := o.data["text/html"])
    ]
    assert "<b>critical</b>" in table, "alerts are one table under the figure"
    assert printed(cell_with(notebook, "provoked.alerts[0]")) == "stopped after 20 of 100 steps\n"
    stopped = printed(cell_with(notebook, "def stop_button"))
    assert stopped.endswith(f"interrupted after {steps // 2} of {steps} steps\n")
    assert (
        printed(cell_with(notebook, "run.status}: steps"))
        == f"finished: steps {list(range(1, steps + 1))}\n"
    )
    for text in ("provoked = gn.train(", "def stop_button", 'rewards, settings, resume="auto")'):
        assert len(outputs(cell_with(notebook, text), "image/png")) == 1, (
            "the figure must be updated in place"
        )
    viewer = cell_with(notebook, "gn.RunViewer(run)")
    assert outputs(viewer, "application/vnd.jupyter.widget-view+json")
    # The tiny model learns no tag from an example either.
    shown = f"{int(size == 'small')} of 1 groups without spread"
    assert shown in text_of(viewer, "text/html"), "what a page without a kernel shows"
    last = printed(cell_with(notebook, "for stage in kept"))
    assert last.startswith("The run without a learning signal stopped at step 20")
    assert "Stage form: " in last
    assert last.endswith(
        "No gain is claimed: the held-out answers were not compared. gn.compare(kept[-1], task) does it.\n"
    )
