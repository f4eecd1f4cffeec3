"""The rows of a run, one for each logged step: tidied, and read back from its folder."""

import contextlib
import json
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.core.files import shown_path
from grpo_nb.core.words import in_line

Row = Mapping[str, Any]
ACCURACY = "holdout/accuracy"
# What the kit writes has five levels at most; Python's own functions fail at about a thousand.
_MOST_LEVELS = 50
_MOST_DIGITS = 300


@contextlib.contextmanager
def reading(
    file: Path, where: str = "", cure: str = "put a copy of it back, or move it away"
) -> Iterator[None]:
    """Name the file in whatever is wrong with its content, as a `ValueError`: JSON's and arrow's own errors name none."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        OSError,
    ) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # not pyarrow's, of a damaged file
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        place = f"{shown_path(file)}{where}"
        raise ValueError(
            f"{place} is damaged, or of another version of the kit ({said}): {cure}."
        ) from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, and refuse what no file of a run holds and Python's own functions fail on later.

    Raises:
        ValueError: It is no JSON, nested deeper than 50 levels, or holds a whole number that no float can hold.

    >>> parse_json('{"step": 1}')
    {'step': 1}
    """
    try:
        value = json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MOST_LEVELS} levels") from None
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [held for outer in level for held in _held_by(outer)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {_MOST_LEVELS} levels")


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _whole_number(digits: str) -> int:
    # The largest float has 309 digits.
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a value of a JSON file is a whole number that arrays can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, a mapping each; no file means none. A last row that a crash cut short is left out.

    Raises:
        ValueError: Another line cannot be read; names file and line.
    """
    lines = file.read_bytes().rstrip(b"\0 \r\n").split(b"\n") if file.is_file() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        with reading(file, f", line {number},", "delete that line"):
            try:
                if line.strip():
                    rows.append(_object(parse_json(line)))
            except json.JSONDecodeError:
                if file.name != "metrics.jsonl" or number < len(
                    lines
                ):  # the others are written whole
                    raise
    return rows


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{in_line(value)} is no object")
    return value


def tidy_row(logs: Mapping[str, Any], step: int, max_steps: int, beta: float) -> dict[str, Any]:
    """Turn one of the trainer's log entries into a row: numbers only, and nothing that was not measured."""
    # As plain numbers: what a reward logs may be numpy's.
    measured = {key: float(value) for key, value in logs.items() if isinstance(value, numbers.Real)}
    if beta == 0:  # then Unsloth logs a KL of exact zeros, which was never computed
        measured.pop("kl", None)
    return {"step": step, "max_steps": max_steps, **measured}


def series(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a metric, one per row; NaN where it was not measured, or is no number."""
    return [float(row[key]) if isinstance(row.get(key), (int, float)) else math.nan for row in rows]


def mean(values: Sequence[float]) -> float:
    """Mean of what was measured; NaN if nothing was."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the row with the best held-out score, the earliest of equals; None where none was taken.

    >>> best_row([{"step": 1, ACCURACY: 0.5}, {"step": 5, ACCURACY: 0.75}, {"step": 9, ACCURACY: 0.75}])["step"]
    5
    """
    return max(
        (row for row in rows if ACCURACY in row), key=lambda row: row[ACCURACY], default=None
    )
