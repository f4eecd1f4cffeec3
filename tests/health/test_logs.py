"""Logs as people have them: numbers as text, rows without any metric, and the recipes of the
guide.
"""

import json
import re
from pathlib import Path

import pandas
import pytest

from grpo_nb.health.monitor import check_health
from tests.support.health_logs import Rows, cut

FOUND = cut(0.6)
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "health.md"


def as_text(rows: Rows) -> Rows:
    return [{key: f"{value:.4g}" for key, value in row.items()} for row in rows]


def standing(log: object) -> list[tuple[str, str, int]]:
    return [(alert.rule, alert.state, alert.step) for alert in check_health(log).alerts]


def test_check_health_numbers_as_text_are_numbers() -> None:
    assert standing(FOUND) != []
    assert standing(as_text(FOUND)) == standing(FOUND)


def test_log_without_any_row_is_refused() -> None:
    with pytest.raises(ValueError, match="the log has no rows"):
        check_health([])


@pytest.mark.parametrize("log", [["reward"], [1, 2], [None], pandas.DataFrame(FOUND)])
def test_check_health_other_rows_are_refused(log: object) -> None:
    with pytest.raises(TypeError, match=r"Pass trainer\.state\.log_history"):
        check_health(log)


@pytest.fixture
def recipes() -> list[str]:
    """The recipes of the guide that make rows: printed text, a checkpoint, a DataFrame."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return [block for block in blocks if "rows = " in block]


def test_recipe_reads_the_lines_that_transformers_prints(
    recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["Unsloth: training starts {not a row}"]
    for row in as_text(FOUND):
        lines.append(f"  4%|▍  | {row['step']}/60 [00:12<04:20]{row | {'kl': float('nan')}}")
    (tmp_path / "train.log").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Rows] = {}
    exec(recipes[0], names)
    assert len(names["rows"]) == len(FOUND)
    assert ("truncation", "warning", 10) in standing(names["rows"])
    assert ("not_finite", "critical", 1) in standing(names["rows"])


def test_recipe_reads_the_state_of_a_checkpoint(
    recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "outputs" / "checkpoint-200"
    folder.mkdir(parents=True)
    state = {"log_history": [*FOUND, {"train_runtime": 3.0, "step": 60}]}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Rows] = {}
    exec(recipes[1], names)
    assert standing(names["rows"]) == standing(FOUND)


def test_recipe_reads_a_data_frame(recipes: list[str]) -> None:
    names = {"table": pandas.DataFrame([*FOUND, {"step": 60, "eval_loss": 0.1}])}
    exec(recipes[2], names)
    assert standing(names["rows"]) == standing(FOUND)
