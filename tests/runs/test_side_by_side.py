"""Runs side by side: listed, compared, and one that is damaged does not hide the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import grpo_nb as gn


@pytest.fixture
def three(tiny_run: gn.runs.Run, tmp_path: Path) -> Path:
    """A folder of two runs that differ in beta and seed, and one whose record is cut."""
    root = tmp_path / "runs"
    for number, (name, changes) in enumerate({"plain": {}, "other": {"beta": 0.5, "seed": 7}, "cut": {}}.items()):
        shutil.copytree(tiny_run.path, root / name)
        file = root / name / "run.json"
        info = json.loads(file.read_text())
        info["settings"] |= changes
        info["started"] = f"2026-11-22T10:0{number}:00+0000"
        file.write_text(json.dumps(info) if name != "cut" else json.dumps(info)[:200])
    return root


def test_the_list_says_how_each_run_stands_and_what_differs(three: Path, tiny_run: gn.runs.Run) -> None:
    listed = gn.runs.list(three)
    assert [run.name for run in listed] == ["plain", "other"] and len(listed) == 2 and listed[1].name == "other"
    plain, other = listed.table.to_dict("records")
    assert plain["status"] == "finished" and plain["steps"] == "14 of 14"
    assert plain["reward"] == pytest.approx(tiny_run.metrics["reward"].tail(10).mean())
    assert "beta=0.5" in other["what differs"] and "seed=7" in other["what differs"]
    assert "lora_rank" not in other["what differs"], "what is the same is not said"
    assert "cut cannot be read" in repr(listed) and "<table>" in listed._repr_html_()
    assert "0 runs" in repr(gn.runs.list(three / "nowhere"))


def test_two_runs_in_one_figure_and_what_differs(three: Path) -> None:
    compared = gn.runs.compare(three / "plain", gn.open_run(three / "other"))
    assert set(compared.differences) == {"beta", "seed"} and compared.differences["seed"]["other"] == 7
    figure = compared.plot()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["plain", "other"]
    lines = [line for line in figure.axes[0].lines if line.get_label() in ("plain", "other")]
    assert len(lines) == 2 and len({line.get_color() for line in lines}) == 2
    assert "<svg" in compared._repr_html_() and "beta" in repr(compared)
    same = gn.runs.compare(three / "plain", shutil.copytree(three / "plain", three / "again"))
    assert "what differs is luck" in repr(same)


def test_a_run_is_found_by_its_name_and_a_folder_names_those_in_it(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(three.parent)
    assert gn.open_run("plain").path == Path("runs/plain")
    with pytest.raises(FileNotFoundError, match="Runs in 'runs': cut, other, plain"):
        gn.open_run("runs")
    with pytest.raises(ValueError, match="two or more different runs"):
        gn.runs.compare("plain")
