"""Every file of a run cut, emptied, overwritten or of another version: the error names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.health.monitor import check_health
from grpo_nb.runs import run as run_file
from tests.runs.test_viewer import SPREAD, WEIGHTS, add_alert, add_rows, write_step
from tests.support.run_folders import info_of, write_run_folder
from tests.support.written_run import compare_by_hand

# File -> what reads it, and whether a part of its lines can be lost without a word: the last one, as a crash leaves it.
READERS: dict[str, Callable[[gn.runs.Run], Any]] = {
    "run.json": lambda run: (run.info, run.settings, run.weights, run.ranges, run.started),
    "metrics.jsonl": lambda run: (run.rows, run.alerts),
    "holdout.jsonl": lambda run: run.holdout,
    "train_questions.txt": lambda run: run.trained_questions,
    "comparison/comparison.json": lambda run: run.comparison,
    "exports.json": lambda run: run.exports,
    "completions/step_000002.parquet": lambda run: run.step(2),
}


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def line_cut(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join([lines[0], lines[1][: len(lines[1]) // 2], *lines[2:]]) if len(lines) > 2 else cut(data)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": cut,
    "a line cut": line_cut,
    "emptied": lambda data: b"",
    "zeroed": lambda data: data[:40] + b"\0" * 200 + data[240:],
    "no text": lambda data: b"\xff\xfe\x00garbage" + data[20:],
    "another version": lambda data: b'{"version": 2}\n' * 3,
    "a list": lambda data: b'["x"]\n' * 3,
    "a number": lambda data: b"7\n" * 3,
}
# What is no damage, or cannot be seen: no row yet; a last one that a crash cut short.
HARMLESS = {("emptied", "metrics.jsonl"), ("cut", "metrics.jsonl")}


@pytest.fixture
def run(tmp_path: Path) -> gn.runs.Run:
    """A run with a file of each kind."""
    info = info_of(WEIGHTS) | {"started": "2026-11-22T10:00:00+0000", "task": {"holdout": 3}}
    made = write_run_folder(tmp_path / "made", info)
    (made.path / "completions").mkdir()
    for step in (1, 2):
        write_step(made.path, step, SPREAD)
    add_rows(made.path, range(1, 13))
    for step in range(3, 9):
        add_alert(made.path, step=step)
    (made.path / "holdout.jsonl").write_text('{"prompt": "a", "question": "b", "answer": "c"}\n' * 3)
    run_file.write_trained_questions(made, ["1 + 1", "2 + 2", "3 + 3"])
    compare_by_hand(made)
    made.record_export("exports/a", "merged", "verified")
    return made


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named(run: gn.runs.Run, name: str, damage: str) -> None:
    file = run.path / name
    before = file.read_bytes()
    file.write_bytes(DAMAGES[damage](before))
    if (damage, name) in HARMLESS:
        READERS[name](run)
    else:
        with pytest.raises(ValueError, match=f"{file.name}.* is damaged") as caught:
            READERS[name](run)
        assert "\n" not in str(caught.value) and (
            ".jsonl" not in name or ", line " in str(caught.value) or damage == "emptied"
        )
        if name in ("run.json", "metrics.jsonl", "comparison/comparison.json", "exports.json"):
            assert file.name in repr(run)
    for shown in (repr(run), run._repr_html_(), repr(gn.runs.list(run.path.parent))):
        assert "Traceback" not in shown
    viewer = gn.RunViewer(run)
    assert repr(viewer) and viewer._repr_mimebundle_()


def test_blank_lines_and_a_last_line_cut_short_are_no_damage(run: gn.runs.Run) -> None:
    file = run.path / "metrics.jsonl"
    file.write_text(file.read_text().replace("\n", "\n\n") + '{"step": 13, "rew')
    assert len(run.rows) == 12
    file.write_bytes(file.read_bytes() + b"\0\0\0")
    assert len(run.rows) == 12


@pytest.mark.parametrize("line", ['{"reward": 1.0}', '{"step": "three"}', '{"step": null}', "null", "[1, 2]"])
def test_a_row_without_a_step_is_damage_and_a_metric_that_is_text_is_not_measured(run: gn.runs.Run, line: str) -> None:
    file = run.path / "metrics.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 3, is damaged.*delete that line"):
        _ = run.rows
    file.write_text("\n".join([*lines[:2], '{"step": 3, "reward": "high", "kl": [1]}', *lines[3:]]) + "\n")
    assert len(run.rows) == 12 and "The reward rose" in repr(run) and run.plot().axes and check_health(run)


def test_completions_name_the_columns_they_lack(run: gn.runs.Run) -> None:
    import pandas

    file = run.path / "completions" / "step_000002.parquet"
    table = pandas.read_parquet(file)
    for column in ("group", "prompt", "completion", "total", "advantage"):
        table.drop(columns=column).to_parquet(file)
        if column == "total":  # it follows from scores and weights
            assert run.step(2).groups
            continue
        with pytest.raises(ValueError, match=f"step_000002.parquet is damaged.*{column}"):
            run.step(2)
    assert check_health(run), "rules that need no texts speak all the same"


@pytest.mark.parametrize("info", [{}, {"status": "running"}, {"status": "running", "settings": {"beta": 1}}, []])
def test_a_record_of_another_version_is_called_damaged(run: gn.runs.Run, info: Any) -> None:
    (run.path / "run.json").write_text(json.dumps(info))
    assert run.status == "damaged" and "damaged: run.json cannot be read" in repr(run)


def test_a_writer_that_renames_while_the_folder_is_listed(run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    info = {**run.info, "status": "running", "host": "elsewhere", "pid": 2**22 + 1}
    (run.path / "run.json").write_text(json.dumps(info))
    listed = Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, name: [*listed(folder, name), folder / ".run.json.partial-gone"])
    assert run.status == "unknown" and "0 minutes ago" in repr(run)


def test_runs_are_in_the_order_of_their_time_and_not_of_its_text(run: gn.runs.Run, tmp_path: Path) -> None:
    from grpo_nb.training.resume import _newest_run

    # 10:00 in Greenwich is later than 10:30 in Berlin.
    write_run_folder(tmp_path / "before", info_of(WEIGHTS) | {"started": "2026-11-22T10:30:00+0100"})
    assert [one.name for one in gn.runs.list(tmp_path)] == ["before", "made"]
    assert _newest_run(tmp_path, None).name == "made"


@pytest.mark.parametrize("path", ["/dev/null", "no/such/run", "x" * 400, "a\0b"])
def test_a_path_without_a_run_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="is no run") as caught:
        gn.open_run(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
