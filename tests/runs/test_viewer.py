"""The groups of a step and the run viewer, driven as a front end drives them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.runs.writing import write_step
from grpo_nb.scoring.advantages import group_advantages
from tests.support.run_folders import info_of, write_run_folder

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>&amp;\x00"


def add_step(
    run: gn.runs.Run, step: int, text: str = "", is_flat: bool = False, **alert: Any
) -> None:
    """Add a step with two groups of the same scores, as a training does."""
    right, form = (
        ([1.0] * 4, [1.0] * 4) if is_flat else ([1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0])
    )
    totals = [2 * a + b for a, b in zip(right, form, strict=True)]
    turns = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{text}{n}?"}]
        for n in (1, 2)
    ]
    prompts = [json.dumps(asked) for asked in turns for _ in range(4)]
    columns = {"group": [0] * 4 + [1] * 4, "prompt": prompts, "right": right * 2, "form": form * 2}
    texts = [f"{text}step {step} completion {i}" for i in range(8)]
    scored = {"total": totals * 2, "advantage": group_advantages(totals, 4) * 2}
    row: dict[str, Any] = {
        "step": step,
        "reward": 0.1 * step,
        "kl": 0.01,
        f"rewards/{text}right/mean": 0.5,
    }
    if alert:
        row["alerts"] = [
            {"step": step, "severity": "warning", "rule": "zero_variance", "advice": "Raise it."}
            | alert
        ]
    write_step(run, row, pandas.DataFrame({"step": step, **columns, "completion": texts, **scored}))


@pytest.fixture
def empty(tmp_path: Path) -> gn.runs.Run:
    return write_run_folder(tmp_path / "made", info_of({"right": 2.0, "form": 1.0}))


@pytest.fixture
def run(empty: gn.runs.Run) -> gn.runs.Run:
    """Steps 1 to 30. Steps 2, 4 and 30 have completions; those of step 4 have equal scores."""
    for step in range(1, 31):
        if step in (2, 30):
            add_step(empty, step)
        elif step == 4:
            add_step(empty, step, is_flat=True, message=HOSTILE)
        else:
            write_step(empty, {"step": step, "reward": 0.1 * step}, None)
    return empty


def test_step_has_the_logged_completions(run: gn.runs.Run) -> None:
    step = run.step(2)
    first, second = step.groups
    assert (first.question, second.question) == ("1?", "2?")
    assert first.messages[0]["content"] == "Be brief."
    assert list(first.table["total"]) == [3, 2, 1, 0]
    assert list(first.table["right"]) == [1, 1, 0, 0]
    assert first.weights == {"right": 2.0, "form": 1.0}
    assert list(first.table["advantage"]) == pytest.approx(
        sorted(group_advantages([2, 1, 0, 3], 4), reverse=True)
    )
    assert run.step(4).signal_count == 0
    assert step.signal_count == 2
    assert "Step 2 of made" in repr(step)
    assert "learned nothing" in run.step(4)._repr_html_()


def test_group_alone_shows_its_step_and_number(run: gn.runs.Run) -> None:
    step = run.step(2)
    title = "<b>Step 2, group 1</b>"
    assert title in step.groups[1]._repr_html_()
    assert repr(step.groups[1]).startswith("Step 2, group 1: ")
    assert title not in step._repr_html_(), "there the line to unfold is the title"


def test_short_completion_takes_one_line(empty: gn.runs.Run) -> None:
    add_step(empty, 2, "a\nb ")
    add_step(empty, 3, "a line of code\n" * 10)
    assert "<code>a \u21b5 b step 2 completion 0</code>" in empty.step(2)._repr_html_()
    assert "a line of code<br>a line of code<br>" in empty.step(3)._repr_html_()


def test_viewer_opens_at_the_last_step(run: gn.runs.Run) -> None:
    shows = gn.RunViewer(run.path)
    assert shows._slider.value == 30
    assert shows._error_view.value == ""
    assert repr(shows) == "RunViewer of made: step 30"
    groups = shows._step_view.value
    assert groups.count("<details open") == 1
    assert f"{group_advantages([2.0, 1.0, 0.0, 3.0], 4)[3]:+.3f}" in groups
    assert re.findall(r"step 30 completion (\d)", groups)[:4] == ["3", "0", "1", "2"]
    assert "&times; 2" in groups
    assert "Group 1: 2?" in groups
    heading = shows.children[-1].children[0].value
    assert "run.step(number)" in heading


def test_viewer_shows_the_picked_step(run: gn.runs.Run) -> None:
    (run.path / "completions" / "step_000059.parquet").write_bytes(b"not parquet")
    shows = gn.RunViewer(run)
    assert "step_000059.parquet is damaged" in shows._error_view.value
    shows._slider.value = 4
    assert "learned nothing" in shows._step_view.value
    shows._slider.value = 30
    assert shows._error_view.value == ""
    assert "Step 30" in shows._step_view.value


def test_viewer_of_a_running_run_opens_at_its_newest_step(run: gn.runs.Run) -> None:
    gn.RunViewer(run)
    add_step(run, 31)
    shows = gn.RunViewer(run)
    assert shows._slider.value == 31
    assert "step 31 completion" in shows._step_view.value


def test_viewer_without_completions_says_so(empty: gn.runs.Run) -> None:
    with pytest.raises(FileNotFoundError, match="the run 'made' has no completions yet"):
        gn.RunViewer(empty)


def test_everything_is_escaped(empty: gn.runs.Run) -> None:
    add_step(empty, 1, text=HOSTILE, rule=HOSTILE, message=HOSTILE, advice=HOSTILE)
    shows = gn.RunViewer(empty)
    assert shows._error_view.value == ""
    views = [view.value for view in vars(shows).values() if type(view).__name__ == "HTML"]
    pages = [*views, shows._repr_mimebundle_()["text/html"], empty.step(1)._repr_html_()]
    pages += [alert._repr_html_() for alert in empty.alerts]
    assert sum("alert(" in page for page in pages) >= 4, (
        "the hostile text has to be there to be escaped"
    )
    for page in pages:
        assert "<script" not in page
        assert "\x00" not in page
        assert all(
            'src="data:image/png;base64,' in image for image in re.findall("<img[^>]*>", page)
        )
        assert not any(
            "onerror" in re.sub(r'"[^"]*"', "", tag) for tag in re.findall(r"<[^>]*>", page)
        )
