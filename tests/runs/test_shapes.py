"""Valid JSON of a wrong shape is named by each reader, and does not stop a list of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.runs.card import model_card
from tests.runs.test_figure import made_rows
from tests.support.run_folders import info_of, write_run_folder
from tests.support.written_run import COMPARISON, compare_by_hand


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a mapping without one of its entries."""
    return {key: value for key, value in values.items() if key != name}


DEEP = "[" * 900 + "]" * 900
RUNNING = {"status": "running", "host": "elsewhere"}
ALERT = {
    "rule": "kl_spike",
    "severity": "info",
    "step": 1,
    "message": "KL 3.",
    "advice": "Look at it.",
}
REWARD = {"name": "a", "weight": 1.0, "call": "", "source": "", "hash": ""}
# Changes of a whole run.json, and what the message says.
INFOS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown status": (
        {"status": "done"},
        "status Input should be 'running'.*input_value='done'",
    ),
    "a status that is a list": (
        {"status": []},
        r"status Input should be 'running'.*input_value=\[\]",
    ),
    "no time": (
        {"started": "yesterday"},
        "Invalid isoformat string: 'yesterday'",
    ),
    "a number as time": (
        {"started": 1.0},
        r"started Input should be an instance of str .*input_value=1\.0",
    ),
    "settings as a list": (
        {"settings": []},
        r"settings Input should be a valid dictionary .*input_value=\[\]",
    ),
    "no setting": ({"settings": {}}, "settings.max_steps Field required"),
    "an unknown setting": (
        {"settings": {"max_steps": 1, "nothing": 1}},
        "unknown setting 'nothing'",
    ),
    "a setting of another type": (
        {"settings": {"max_steps": 1, "learning_rate": "x"}},
        "learning_rate",
    ),
    "rewards as an object": (
        {"rewards": {}},
        r"rewards Input should be a valid list .*input_value=\{\}",
    ),
    "a reward as a text": (
        {"rewards": ["x"]},
        "rewards.0 Input should be a valid dictionary .*input_value='x'",
    ),
    "a reward without a name": ({"rewards": [{"weight": 1.0}]}, "rewards.0.name Field required"),
    "a text as weight": (
        {"rewards": [{"name": "a", "weight": "x", "call": "", "source": "", "hash": ""}]},
        "rewards.0.weight Input should be a valid number .*input_value='x'",
    ),
    "a number as range": (
        {"rewards": [REWARD | {"range": 1.0}]},
        r"rewards.0.range Input should be a valid tuple .*input_value=1\.0",
    ),
    "half a range": (
        {"rewards": [REWARD | {"range": [0.0]}]},
        "rewards.0.range.1 Field required",
    ),
    "a text in a range": (
        {"rewards": [REWARD | {"range": [0.0, "x"]}]},
        "rewards.0.range.1 Input should be a valid number .*input_value='x'",
    ),
    "an infinite weight": (
        {"rewards": [{"name": "a", "weight": float("inf"), "call": "", "source": "", "hash": ""}]},
        "rewards.0.weight Input should be a finite number .*input_value=inf",
    ),
    "a task as a text": (
        {"task": "x"},
        "task Input should be a valid dictionary .*input_value='x'",
    ),
    "a task without a format": ({"task": {"name": "x"}}, "task.format Field required"),
    "a format of another kind": (
        {"task": {**info_of({})["task"], "format": {"name": "x", "colour": "red"}}},
        "unexpected keyword argument 'colour'",
    ),
    "a machine as a list": ({"machine": []}, r"machine Input should be .*input_value=\[\]"),
    "a machine without a GPU": ({"machine": {"cores": 2}}, "machine.gpu Field required"),
    "a GPU without a name": ({"machine": {"gpu": {}}}, "machine.gpu.name Field required"),
    "a resumption as a number": (
        {"resumed": [5]},
        "resumed.0 Input should be a valid dictionary .*input_value=5",
    ),
    "a time that no other zone has": (
        {"started": "0001-01-01T00:00:00+23:59"},
        "date value out of range",
    ),
    "versions as a list": ({"versions": ["x"]}, "versions Input should be a valid dictionary"),
}
# Whole files, as text, and what the message says.
FILES: dict[str, tuple[str, str, str]] = {
    "run.json, empty": ("run.json", "{}", "status Field required"),
    "run.json, a list": ("run.json", "[]", "Input should be a valid dictionary"),
    "run.json, null": ("run.json", "null", "Input should be a valid dictionary"),
    "run.json, deeper than Python": ("run.json", "[" * 100_000, "RecursionError"),
    "metrics.jsonl, a list": (
        "metrics.jsonl",
        '[["step", 1]]\n',
        r"\[\['step', 1\]\] is not a JSON object",
    ),
    "metrics.jsonl, no step": ("metrics.jsonl", '{"reward": 1}\n', "0.step Field required"),
    "metrics.jsonl, a text as step": (
        "metrics.jsonl",
        '{"step": "x"}\n',
        "0.step Input should be a valid integer .*input_value='x'",
    ),
    "metrics.jsonl, a huge step": (
        "metrics.jsonl",
        f'{{"step": {10**30}}}\n',
        "0.step Input should be less than 9007199254740992 .*input_value=1000",
    ),
    "metrics.jsonl, alerts as a number": (
        "metrics.jsonl",
        '{"step": 1, "alerts": 5}\n',
        "'int' object is not iterable",
    ),
    "metrics.jsonl, an empty alert": (
        "metrics.jsonl",
        '{"step": 1, "alerts": [{}]}\n',
        "missing 5 required",
    ),
    "metrics.jsonl, an alert of unknown severity": (
        "metrics.jsonl",
        json.dumps({"step": 1, "alerts": [ALERT | {"severity": "fatal"}]}) + "\n",
        "severity = 'fatal' is unknown; choose from: critical, info, warning",
    ),
    "comparison.json, empty": (
        "comparison/comparison.json",
        "{}",
        "sentence Field required",
    ),
    "comparison.json, a list": (
        "comparison/comparison.json",
        "[]",
        "Input should be a valid dictionary",
    ),
    "comparison.json, no side": (
        "comparison/comparison.json",
        '{"sentence": "better"}',
        "verdict Field required",
    ),
    "comparison.json, an empty side": (
        "comparison/comparison.json",
        json.dumps(COMPARISON | {"before": {}}),
        "before.accuracy Field required",
    ),
    "comparison.json, a text as accuracy": (
        "comparison/comparison.json",
        json.dumps(COMPARISON | {"after": {"accuracy": "x"}}),
        "accuracy Input should be a valid number .*input_value='x'",
    ),
    "comparison.json, a side without a judge": (
        "comparison/comparison.json",
        json.dumps(COMPARISON | {"after": without(COMPARISON["after"], "is_graded_by_slot")}),
        "after.is_graded_by_slot Field required",
    ),
    "comparison.json, a side without a measure": (
        "comparison/comparison.json",
        json.dumps(COMPARISON | {"before": without(COMPARISON["before"], "anywhere")}),
        "before.anywhere Field required",
    ),
    "comparison.json, half an interval": (
        "comparison/comparison.json",
        json.dumps(COMPARISON | {"after": COMPARISON["after"] | {"in_format_interval": [0.1]}}),
        "after.in_format_interval.1 Field required",
    ),
}


@pytest.fixture
def run(tmp_path: Path) -> gn.runs.Run:
    """A whole run beside which there is another one, which must always be listed."""
    write_run_folder(tmp_path / "runs" / "good", info_of({"right": 1.0}), made_rows(3))
    run = write_run_folder(tmp_path / "runs" / "sent", info_of({"right": 1.0}), made_rows(3))
    compare_by_hand(run)
    return run


def read_all(run: gn.runs.Run) -> None:
    """Use whatever reads a file of the run."""
    _ = (
        run.status_sentence,
        run.settings,
        run.started,
        run.weights,
        run.ranges,
        run.chat_template_kwargs,
        run.reference,
    )
    _ = run.alerts, run.sentence, run.comparison, run.steps
    run.plot()
    repr(run)
    model_card(run)


def assert_named(run: gn.runs.Run, file: str, said: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"{Path(file).name}.* is damaged, or was written by another version.*{said}",
    ):
        read_all(run)
    listed = gn.runs.list(run.path.parent)
    assert "good" in [one.name for one in listed]
    shown = repr(listed)
    assert "good" in shown
    assert "sent cannot be read: " in shown


def test_whole_run_is_read(run: gn.runs.Run) -> None:
    read_all(run)
    assert len(gn.runs.list(run.path.parent)) == 2


@pytest.mark.parametrize("case", INFOS)
def test_info_of_wrong_shape_is_named(run: gn.runs.Run, case: str) -> None:
    changes, said = INFOS[case]
    (run.path / "run.json").write_text(json.dumps(info_of({"right": 1.0}) | changes))
    assert_named(run, "run.json", said)


@pytest.mark.parametrize("name", [name for name in info_of({}) if name not in ("pid", "host")])
def test_info_without_a_field_is_named(run: gn.runs.Run, name: str) -> None:
    info = info_of({"right": 1.0})
    del info[name]
    (run.path / "run.json").write_text(json.dumps(info))
    assert_named(run, "run.json", f"{name} Field required")


@pytest.mark.parametrize("case", FILES)
def test_file_of_wrong_shape_is_named(run: gn.runs.Run, case: str) -> None:
    file, content, said = FILES[case]
    (run.path / file).write_text(content)
    assert_named(run, file, said)


def test_completions_of_another_name_are_no_step(run: gn.runs.Run) -> None:
    (run.path / "completions").mkdir()
    for name in (
        "step_x.parquet",
        "step_1.parquet",
        "step_000002 copy.parquet",
        "step_000007.parquet",
    ):
        (run.path / "completions" / name).write_bytes(b"")
    assert run.steps == [7]


def test_number_too_large_for_a_float_is_named(run: gn.runs.Run) -> None:
    (run.path / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 10**400}) + "\n")
    with pytest.raises(ValueError, match="the metric 'reward' of a run is damaged"):
        _ = run.sentence


def test_baseline_with_a_lone_surrogate_is_read(run: gn.runs.Run) -> None:
    baseline = {"answer": "\ud800", "share": 0.4, "is_beaten": True, "sentence": "\ud800 is best."}
    compare_by_hand(run, majority=baseline)
    assert run.comparison.majority.answer == "\ud800"
