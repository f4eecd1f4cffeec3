"""Logs as people have them: numbers as text, tables, and printed lines."""

from pathlib import Path

import pandas
import pytest

from grpo_nb.config.presets import preset
from grpo_nb.health.logs import read_log, read_printed_log
from grpo_nb.health.monitor import check_health
from tests.support.health_logs import NAN, Rows, cut, healthy_log, severest

FOUND = cut(0.6)


def as_text(rows: Rows) -> Rows:
    return [{key: f"{value:.4g}" for key, value in row.items()} for row in rows]


def printed(rows: Rows) -> str:
    """Return the lines that transformers prints, among progress bars and other output."""
    lines = ["Unsloth: training starts {not a row}"]
    for row in as_text(rows):
        lines.append(f"  4%|▍  | {row['step']}/60 [00:12<04:20]{row}")
        lines.append("{'answer': '42'} is a completion, and {} too")
    return "\n".join([*lines, "{'train_runtime': '81.2', 'train_loss': '0.001', 'epoch': '1'}"])


def standing(log: object) -> list[tuple[str, str, int]]:
    return [(alert.rule, alert.kind, alert.step) for alert in check_health(log).alerts]


def test_check_health_numbers_as_text_are_numbers() -> None:
    assert standing(as_text(FOUND)) == standing(FOUND) != []


def test_check_health_data_frame_is_a_log() -> None:
    assert standing(pandas.DataFrame(FOUND)) == standing(FOUND)
    assert standing(pandas.DataFrame(FOUND).set_index("step")) == standing(FOUND)
    assert standing(pandas.DataFrame(as_text(FOUND))) == standing(FOUND)


def test_check_health_empty_cells_of_a_table_are_no_nan() -> None:
    rows = [*healthy_log(30), {"step": 30, "eval_loss": 0.1, "eval_reward": 0.5}]
    assert check_health(pandas.DataFrame(rows)).ok
    assert not check_health(pandas.DataFrame([{**row, "loss": NAN} for row in rows[:30]])).ok


def test_check_health_printed_log_is_a_log() -> None:
    assert standing(printed(FOUND)) == standing(FOUND)


def test_check_health_printed_log_in_a_file_is_a_log(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(printed(FOUND))
    assert standing(tmp_path / "train.log") == standing(FOUND)


def test_check_health_printed_nan_is_found() -> None:
    lines = "\n".join(str({**row, "loss": NAN}) for row in FOUND)
    assert severest(check_health(lines), "not_finite") == "critical"


def test_read_printed_log_keeps_rows_only() -> None:
    assert read_printed_log("{'x': 1} {'loss': '0.1'} {'loss': f()} {broken") == [{"loss": "0.1"}]


def test_read_printed_log_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="has no line like"):
        check_health("some text\nwithout a log")


@pytest.mark.parametrize("log", [[], pandas.DataFrame()], ids=["list", "table"])
def test_log_without_any_row_is_refused(log: object) -> None:
    with pytest.raises(ValueError, match="the log has no rows"):
        check_health(log)


def test_printed_log_of_one_long_line_is_a_log() -> None:
    row = FOUND[0] | {f"rewards/{number}/mean": 0.5 for number in range(20)}
    assert check_health(str(row)).rows == 1


@pytest.mark.parametrize("number", ["np.float64(0.5)", "tensor(0.5)", "tensor(0.5, device='cpu')"])
def test_printed_number_of_numpy_or_torch_is_read(number: str) -> None:
    (row,) = read_printed_log(f"{{'loss': {number}, 'reward': 1.0}}")
    assert row["loss"] == 0.5


@pytest.mark.parametrize("log", [["reward"], [1, 2], [None]])
def test_read_log_other_rows_are_refused(log: list) -> None:
    with pytest.raises(TypeError, match=r"Pass trainer\.state\.log_history"):
        read_log(log)


@pytest.mark.parametrize("log", [None, 7, preset("cpu")], ids=["None", "number", "Settings"])
def test_log_without_rows_says_what_to_pass(log: object) -> None:
    with pytest.raises(TypeError, match=rf"the log is a {type(log).__name__}, which has no rows"):
        check_health(log)
