"""The run viewer without a browser: what it reads and shows, driven as a front end drives it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.rewards.scores import group_advantages
from tests.support.run_folders import append_rows, info_of, write_run_folder

WEIGHTS = {"right": 2.0, "form": 1.0}
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>&amp;\x00\ud800"


def write_step(
    folder: Path,
    step: int,
    scores: Sequence[Sequence[tuple[float, float]]],
    questions: Sequence[str] = ("What is 3 + 4?", "What is 5 + 6?"),
    text: str = "",
) -> None:
    """Write a step as the recorder does: groups one after the other, advantages by TRL's formula, as float32."""
    flat = [pair for group in scores for pair in group]
    totals = [2 * right + form for right, form in flat]
    advantages = group_advantages(totals, len(scores[0]))
    table = pandas.DataFrame(
        {
            "step": step,
            "group": [number for number, group in enumerate(scores) for _ in group],
            "prompt": [
                json.dumps([{"role": "system", "content": "Answer."}, {"role": "user", "content": question}])
                for question, group in zip(questions, scores, strict=True) for _ in group
            ],
            "completion": [f"{text}step {step} completion {i}" for i in range(len(flat))],
            "right": [right for right, _ in flat],
            "form": [form for _, form in flat],
            "total": totals,
            "advantage": pandas.Series(advantages).astype("float32").astype("float64"),
        }
    )  # fmt: skip
    table.to_parquet(folder / "completions" / f"step_{step:06d}.parquet", index=False)


def add_rows(folder: Path, steps: Sequence[int]) -> None:
    more = {"kl": 0.01, "rewards/right/mean": 0.5, "rewards/form/mean": 1.0}
    append_rows(folder, [{"step": step, "reward": 0.1 * step, **more} for step in steps])


def add_alert(folder: Path, **values: Any) -> None:
    """Put an alert into the row of its step."""
    alert = {"step": 1, "rule": "no_spread", "severity": "warning", "message": "", "advice": ""} | values
    rows = gn.runs.Run(folder).rows
    row = next(row for row in rows if row["step"] == alert["step"])
    row["alerts"] = [{"subject": f"of step {alert['step']}"} | alert]
    (folder / "metrics.jsonl").unlink()
    append_rows(folder, rows)


SPREAD = [[(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (1.0, 1.0)], [(0.0, 1.0), (0.0, 0.5), (0.0, 0.25), (0.0, 0.0)]]
FLAT = [[(1.0, 1.0)] * 4, [(0.0, 1.0), (0.0, 0.5), (1.0, 0.25), (0.0, 0.0)]]


def make_run(folder: Path, status: str = "finished", **settings: Any) -> gn.runs.Run:
    run = write_run_folder(folder, info_of(WEIGHTS, status, **settings))
    (folder / "completions").mkdir()
    return run


@pytest.fixture
def run(tmp_path: Path) -> gn.runs.Run:
    """Steps 1, 2, 4 and 30 have completions; the prompts of 30 are those of 2."""
    made = make_run(tmp_path / "made")
    write_step(made.path, 1, FLAT, ["What is 1 + 1?", "What is 2 + 2?"])
    write_step(made.path, 2, SPREAD)
    write_step(made.path, 4, FLAT, ["What is 9 + 9?", "What is 8 + 8?"])
    write_step(made.path, 30, SPREAD, ["What is 5 + 6?", "What is 7 + 7?"])
    add_rows(made.path, range(1, 31))
    add_alert(made.path, step=4, message=HOSTILE[:60], advice="Raise it.")
    return made


def shown(page: str, css: str) -> list[str]:
    """The cells with a class, as text."""
    cells = re.findall(rf'<td class="[^"]*{css}[^"]*"[^>]*>(.*?)</td>', page, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]


def test_a_step_is_what_was_logged(run: gn.runs.Run) -> None:
    step = run.step(2)
    first, second = step.groups
    assert (first.question, second.question) == ("What is 3 + 4?", "What is 5 + 6?")
    assert first.messages[0] == {"role": "system", "content": "Answer."} and first.weights == WEIGHTS
    assert list(first.table["total"]) == [3, 2, 1, 0] and list(first.table["right"]) == [1, 1, 0, 0]
    expected = sorted(group_advantages([2, 1, 0, 3], 4), reverse=True)
    assert list(first.table["advantage"]) == pytest.approx(expected, abs=1e-6)
    assert run.step(4).without_spread == 1 and step.without_spread == 0
    assert "Step 2 of made" in repr(step) and "learned nothing" in run.step(4)._repr_html_()


def test_none_scores_are_shown_as_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_step(run.path, 1, [[(float("nan"), 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)], SPREAD[1]])
    assert '<td class="gn-number" data-reward="right">none</td>' in run.step(1)._repr_html_()


def test_only_the_files_needed_are_read(run: gn.runs.Run) -> None:
    for step in range(31, 60):
        (run.path / "completions" / f"step_{step:06d}.parquet").write_bytes(b"not parquet")
    (run.path / "completions" / "step_000099.partial").write_bytes(b"half")
    assert run.steps[-1] == 59
    shows = gn.RunViewer(run)
    assert "step_000059.parquet is damaged" in shows._errors.value
    shows.step = 30
    assert shows._errors.value == "" and "Step 30" in shows.logged.title


# The widget.


def test_it_opens_at_the_last_step_and_shows_the_numbers(run: gn.runs.Run) -> None:
    shows = gn.RunViewer(run.path)
    assert shows.step == 30 and shows._errors.value == "" and repr(shows) == "RunViewer of made (finished): step 30"
    groups = shows._step_view.value
    assert shown(groups, "gn-total")[:4] == ["3", "2", "1", "0"] and groups.count("<details open") == 1
    expected = sorted(group_advantages([2.0, 1.0, 0.0, 3.0], 4), reverse=True)
    assert shown(groups, "gn-advantage")[:4] == [f"{value:+.3f}" for value in expected]
    assert re.findall(r"step 30 completion (\d)", groups)[:4] == ["3", "0", "1", "2"] and "&times; 2" in groups
    assert "What is 5 + 6?" in groups and "What is 7 + 7?" in groups and "run.step(30)" in groups
    curves = shows._curves_view.value
    assert 'src="data:image/png;base64,' in curves and "The line marks step 30." in curves
    assert "The reward rose from" in curves and "warning" in curves and "Raise it." in curves


def test_controls_go_where_they_say(run: gn.runs.Run) -> None:
    shows = gn.RunViewer(run)
    shows._slider.value = 4
    assert shows.step == 4 and "learned nothing" in shows._step_view.value and "step 4." in shows._curves_view.value
    shows.step = 20  # between 4 and 30: the nearest with completions
    assert shows.step == 30 and "Step 30" in shows.logged.title
    shows._alert.value = 4
    assert shows.step == 4


def test_a_running_run_is_read_on(run: gn.runs.Run) -> None:
    shows = gn.RunViewer(run)
    write_step(run.path, 31, SPREAD)
    add_rows(run.path, [31])
    add_alert(run.path, step=31, rule="kl_drift", severity="critical", message="far")
    shows._refresh_button.click()
    assert shows.step == 31 and [step for _, step in shows._alert.options] == [None, 4, 31]
    shows.step = 2
    write_step(run.path, 32, SPREAD)
    shows.refresh()
    assert shows.step == 2 and shows._slider.options[-1] == ("32", 32), "who looks at an early step stays there"


def test_a_run_without_completions_has_its_curves(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "empty", status="running")
    shows = gn.RunViewer(empty)
    assert shows.step is None and "No step has been logged" in shows._curves_view.value
    add_rows(empty.path, range(1, 5))
    shows.refresh()
    assert "The reward went" in shows._curves_view.value and "No completions" in shows._step_view.value
    with pytest.raises(ValueError, match="no completions yet"):
        shows.step = 1
    assert "No completions" in shows.snapshot().read_text("utf-8")
    write_step(empty.path, 4, SPREAD)
    shows.refresh()
    assert shows.step == 4 and "step 4 completion" in shows._step_view.value


def test_everything_is_escaped(tmp_path: Path) -> None:
    bad = make_run(tmp_path / "bad")
    hostile = HOSTILE.replace("\ud800", "")  # parquet holds no lone surrogate
    write_step(bad.path, 1, SPREAD, [hostile, hostile], text=hostile)
    add_rows(bad.path, [1, 2])
    append_rows(bad.path, [{"step": 3, "reward": 1.0, f"rewards/{hostile}/mean": 1.0}])
    add_alert(bad.path, rule=hostile, message=hostile, advice=hostile)
    shows = gn.RunViewer(bad)
    assert shows._errors.value == ""
    views = [view.value for view in vars(shows).values() if type(view).__name__ == "HTML"]
    pages = [*views, shows.snapshot().read_text("utf-8"), bad.step(1)._repr_html_()]
    assert sum("alert(" in page for page in pages) >= 4, "the hostile text has to be there to be escaped"
    for page in pages:
        assert "<script" not in page and "\x00" not in page
        assert all('src="data:image/png;base64,' in image for image in re.findall("<img[^>]*>", page))
        for tag in re.findall(r"<[^>]*>", page):
            assert "onerror" not in re.sub(r'"[^"]*"', "", tag)


def test_the_snapshot_needs_no_script(run: gn.runs.Run) -> None:
    shows = gn.RunViewer(run)
    path = shows.snapshot()
    page = path.read_text("utf-8")
    assert path == run.path / "figures" / "viewer.html" and "<script" not in page and "http" not in page
    assert page.count("<img") == 1 and page.count("<details") >= 2 and "step 30 completion 3" in page
    shows.step = 2
    assert "step 2 completion 3" in shows._repr_mimebundle_()["text/html"]
