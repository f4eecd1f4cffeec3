"""The notebook about training, executed: an alert, two stages, an interrupted and resumed run."""

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, outputs, printed, text_of

pytestmark = pytest.mark.begins(30)


@pytest.fixture
def notebook(train: Path) -> nbformat.NotebookNode:
    return nbformat.read(train, as_version=4)


def test_no_cell_warns_or_shows_an_error(train: Path) -> None:
    assert_nothing_went_wrong(train)


def test_plan_and_dry_run_come_before_the_training(notebook: nbformat.NotebookNode) -> None:
    assert "A dry run" in text_of(cell_with(notebook, "gn.dry_run("))
    assert "memory, peak" in text_of(cell_with(notebook, "gn.plan("))


def test_run_without_signal_is_stopped_by_its_alert(notebook: nbformat.NotebookNode) -> None:
    provoked = cell_with(notebook, "provoked = gn.train(")
    pages = [output.data["text/html"] for output in outputs(provoked, "text/html")]
    (table,) = [page for page in pages if "zero_variance" in page]  # one table under the figure
    assert "<b>critical</b>" in table
    assert printed(cell_with(notebook, "provoked.alerts[0]")) == "stopped after 20 of 100 steps\n"


def test_interrupted_run_is_resumed_without_a_gap(
    notebook: nbformat.NotebookNode, size: str
) -> None:
    steps = 4 if size == "small" else 8
    interrupted = printed(cell_with(notebook, "def stop_button"))
    assert interrupted.endswith(f"interrupted after {steps // 2} of {steps} steps\n")
    resumed = printed(cell_with(notebook, "stage_two = gn.train("))
    assert resumed.endswith(f"finished: steps {list(range(1, steps + 1))}\n")


@pytest.mark.parametrize(
    "text", ["provoked = gn.train(", "stage_one = gn.train(", "stage_two = gn.train("]
)
def test_figure_of_a_run_is_updated_in_place(notebook: nbformat.NotebookNode, text: str) -> None:
    assert len(outputs(cell_with(notebook, text), "image/png")) == 1


def test_viewer_has_a_view_for_pages_without_a_kernel(notebook: nbformat.NotebookNode) -> None:
    viewer = cell_with(notebook, "gn.RunViewer(")
    assert outputs(viewer, "application/vnd.jupyter.widget-view+json")
    assert "groups" in text_of(viewer, "text/html")
