"""Runs side by side: listed, compared, and one that is damaged does not hide the others."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.runs.test_figure import made_rows
from tests.support.run_folders import info_of, write_run_folder
from tests.support.written_run import COMPARISON, compare_by_hand


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs that differ in beta and seed, and one whose run.json is truncated."""
    runs = tmp_path / "runs"
    settings = {"plain": {}, "other": {"beta": 0.5, "seed": 7}}
    # 10:00 in Greenwich is later than 10:30 in Berlin.
    started = {"plain": "2026-11-22T10:30:00+0100", "other": "2026-11-22T10:00:00+0000"}
    for name, changes in settings.items():
        write_run_folder(
            runs / name,
            info_of({"right": 2.0}, **changes) | {"started": started[name]},
            made_rows(14),
        )
    shutil.copytree(runs / "plain", runs / "cut")
    (runs / "cut" / "run.json").write_text('{"status": "fini')
    return runs


def line_of(shown: str, name: str) -> str:
    """Return the line of a run in a list."""
    (line,) = [line for line in shown.splitlines() if line.startswith(f"{name} ")]
    return line


def test_list_shows_status_and_differences(root: Path) -> None:
    listed = gn.runs.list(root)
    assert [run.name for run in listed] == ["plain", "other"]
    assert len(listed) == 2
    assert listed[1].name == "other"
    assert [run.name for run in listed[-1:]] == ["other"]
    shown = repr(listed)
    plain = line_of(shown, "plain")
    assert "finished" in plain
    assert "14 of " in plain
    mean_reward = sum(row["reward"] for row in made_rows(14)[-4:]) / 4
    assert f"{mean_reward:.2f}" in plain
    other = line_of(shown, "other")
    assert "beta=0.5" in other
    assert "seed=7" in other
    assert "lora_rank" not in other, "what is the same is not said"
    assert "cut cannot be read" in shown
    assert "<table>" in listed._repr_html_()
    title = f"Runs in {root / 'nowhere'}: no such folder"
    assert repr(gn.runs.list(root / "nowhere")).startswith(title)


def test_list_without_curves_loads_no_figure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpo_nb.runs.figure", None)
    assert "plain" in repr(gn.runs.list(root))


def test_list_says_that_a_reward_was_not_measured(root: Path) -> None:
    (root / "plain" / "metrics.jsonl").write_text("")
    assert "  not measured  " in line_of(repr(gn.runs.list(root)), "plain")


def test_side_by_side_shows_curves_and_differences(root: Path) -> None:
    compared = gn.runs.side_by_side(root / "plain", gn.open_run(root / "other"))
    figure = compared.plot()
    assert [text.get_text() for text in figure.axes[0].texts][1:] == ["plain", "other"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2
    assert "<img" in compared._repr_html_()
    assert "beta=0.5, seed=7" in repr(compared)


def test_open_run_refuses_paths_of_no_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    assert gn.open_run("runs/plain").path == Path("runs/plain")
    for path in ("runs", "plain", "/dev/null", "a\0b"):
        with pytest.raises(FileNotFoundError, match="is not a run") as caught:
            gn.open_run(path)
        said = str(caught.value)
        assert "gn.runs.list(folder) shows the runs in a folder" in said
        assert "\n" not in said
        assert len(said) < 700


def test_list_shows_each_held_out_measure(root: Path) -> None:
    """A learnt format is not a better answer, so every measure is shown."""
    run = gn.open_run(root / "plain")
    sides = {"before": 0.6, "after": 0.55}
    compare_by_hand(
        run, **{name: COMPARISON[name] | {"anywhere": share} for name, share in sides.items()}
    )
    shown = repr(gn.runs.list(root))
    measures = "25% to 75% correct, 50% to 100% in the format, 60% to 55% correct anywhere"
    assert measures in shown
    assert "not compared" in line_of(shown, "other")


def test_damaged_comparison_hides_no_other_run(root: Path) -> None:
    compare_by_hand(gn.open_run(root / "plain"), after=COMPARISON["after"] | {"in_format": "most"})
    listed = gn.runs.list(root)
    assert [run.name for run in listed] == ["other"]
    assert "after.in_format Input should be a valid number" in listed.unreadable["plain"]


@pytest.mark.parametrize("changed", [{"weight": 3.0}, {"hash": "5"}, {"state": "5"}])
def test_side_by_side_shows_a_changed_reward(root: Path, changed: dict) -> None:
    run = gn.open_run(root / "other")
    info = run.info
    info["rewards"][0] |= {"hash": "4", **changed}
    (run.path / "run.json").write_text(json.dumps(info))
    assert "reward right=x" in line_of(repr(gn.runs.side_by_side(root / "plain", run)), "other")


def test_list_of_runs_is_shown_after_a_run_was_deleted(root: Path) -> None:
    listed = gn.runs.list(root)
    shutil.rmtree(root / "plain")
    assert "14 of " in line_of(repr(listed), "plain")


@pytest.mark.parametrize("rewards", [[10**400], [1.7e308] * 12], ids=["integer", "sum"])
def test_list_with_a_number_out_of_range_shows_other_runs(root: Path, rewards: list) -> None:
    rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
    lines = [json.dumps(row) + "\n" for row in rows]
    (root / "plain" / "metrics.jsonl").write_text("".join(lines))
    shown = repr(gn.runs.list(root))
    assert line_of(shown, "other")
    assert "\nplain " in shown
