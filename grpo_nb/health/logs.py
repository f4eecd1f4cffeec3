"""Read the log of a run from where it is: a file, a table, or printed text."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.runs.checkpoints import checkpoint_folders
from grpo_nb.runs.rows import read_rows, reading

TRAINER_STATE = "trainer_state.json"

LOG_KEYS = frozenset({"reward", "loss", "epoch", "step", "eval_reward", "eval_loss"})
"""A dict in a printed log is a row if it has one of these keys. Printed completions may contain
other dicts."""

_DICT = re.compile(r"\{[^{}]*\}")
_NOT_A_NUMBER = re.compile(r"(?<=[:\s])(-?(?:nan|inf|NaN|Infinity))(?=\s*[,}])")
_WRAPPED_NUMBER = re.compile(r"(?:np\.\w+|tensor)\(([^(),]+)[^()]*\)")
"""A number as NumPy and PyTorch print it, such as `np.float64(0.5)`."""

_WHAT_TO_PASS = (
    "Pass trainer.state.log_history, a DataFrame, the printed log as text, or the path of a log."
)


def read_log(log: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a log.

    Args:
        log: Rows as mappings, a pandas DataFrame with one row for each step, a path, or the text
            that transformers prints while it trains.

    Raises:
        FileNotFoundError: There is no log at the path.
        ValueError: The log has no rows, or is damaged.
        TypeError: The log is something else.
    """
    if is_printed_log(log):
        return read_printed_log(log)
    if isinstance(log, (str, Path)):
        rows = _read_file(Path(log).expanduser())
    elif hasattr(log, "to_dict") and hasattr(log, "columns"):
        rows = _read_table(log)
    elif isinstance(log, Iterable):
        rows = [log] if isinstance(log, Mapping) else list(log)
    else:
        raise TypeError(f"the log is a {type(log).__name__}, which has no rows. {_WHAT_TO_PASS}")
    if not rows:
        raise ValueError(f"the log has no rows, so there is nothing to check. {_WHAT_TO_PASS}")
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"a row of the log is a {type(row).__name__}, but the metrics of a step are a "
                f"mapping from names to numbers. {_WHAT_TO_PASS}"
            )
    return rows


def is_printed_log(log: Any) -> bool:
    """Return True for the text of a log, False for a path or anything else."""
    return isinstance(log, str) and ("{" in log or "\n" in log)


def read_printed_log(text: str) -> list[dict[str, Any]]:
    """Return the dict lines of a printed log, and skip progress bars and other lines.

    >>> read_printed_log("  1%|  | 1/90 {'loss': '0.1', 'reward': '0.25', 'kl': nan}")
    [{'loss': '0.1', 'reward': '0.25', 'kl': 'nan'}]
    """
    rows = []
    for match in _DICT.finditer(text):
        line = _WRAPPED_NUMBER.sub(r"\1", match.group())
        line = _NOT_A_NUMBER.sub(r"'\1'", line)
        line = re.sub(r"\bnull\b", "None", line)
        try:
            row = ast.literal_eval(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(row, dict) and LOG_KEYS.intersection(row):
            rows.append(row)
    if not rows:
        raise ValueError(
            f"the text {text[:60]!r} has no line like {{'loss': 0.1, 'reward': 0.5, ...}}, so "
            "there is nothing to check. Pass the lines that transformers prints, or the path of a "
            "log."
        )
    return rows


def _read_table(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame, without its empty cells."""
    is_step_index = getattr(table.index, "name", None) == "step" and "step" not in table.columns
    records = (table.reset_index() if is_step_index else table).to_dict("records")
    rows = []
    for record in records:
        row = {name: value for name, value in record.items() if not _is_nan(value)}
        # A DataFrame has NaN where a row has no value. But each row with a reward has a loss and a
        # gradient norm, so their NaN was logged.
        for name in ("loss", "grad_norm"):
            if "reward" in row and _is_nan(record.get(name)):
                row[name] = record[name]
        rows.append(row)
    return rows


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _read_file(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows of a file, or of a folder: its own log, or that of its newest checkpoint."""
    files = [path, path / "metrics.jsonl", path / TRAINER_STATE]
    for _, checkpoint in reversed(checkpoint_folders(path)):
        files.append(checkpoint / TRAINER_STATE)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"there is no log at {str(path)!r}: neither metrics.jsonl nor {TRAINER_STATE}."
        )
    if file.suffix == ".jsonl":
        return read_rows(file)
    if file.suffix != ".json":
        return read_printed_log(file.read_text("utf-8", errors="replace"))
    with reading(file):
        return json.loads(file.read_text("utf-8"))["log_history"]
