"""The rows of a run, one for each logged step: read from its folder and tidied."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from grpo_nb.core.files import shown_path

T = TypeVar("T")

Row = Mapping[str, float]
_MISREAD = (ValueError, TypeError, KeyError, AttributeError, IndexError, OSError)


@contextlib.contextmanager
def reading(file: Path, line: int | None = None) -> Iterator[None]:
    """Make of whatever goes wrong with the content of a file of a run a `ValueError` that names the file and the line."""
    try:
        yield
    except _MISREAD as error:
        if isinstance(error, OSError) and error.errno is not None:  # not pyarrow's, of a damaged file
            raise
        where = f"{shown_path(file)}{f', line {line},' if line else ''}"
        what = " ".join(str(error).split())[:200]
        said = f"it has no {what}" if isinstance(error, KeyError) else f"{type(error).__name__}: {what}"
        cure = "delete that line" if line else "put a copy of it back, or move it away"
        raise ValueError(f"{where} is damaged, or of another version of the kit ({said}): {cure}.") from error


def read_lines(file: Path, make: Callable[[Any], T], *, is_appended: bool = False) -> list[T]:
    """Read a file of JSON lines; no file means none.

    Args:
        file: Of a run.
        make: Makes of a line's value what it stands for, and raises where it cannot.
        is_appended: Its last line may be cut short, as a crash in mid-write leaves it, and is left out then.

    Raises:
        ValueError: A line cannot be read; names file and line.
    """
    made: list[T] = []
    lines = file.read_bytes().rstrip(b"\0 \r\n").split(b"\n") if file.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            with reading(file, number):
                made += [make(json.loads(line))] if line.strip() else []
        except ValueError as error:
            is_cut = number == len(lines) and isinstance(error.__cause__, json.JSONDecodeError)
            if not (is_appended and is_cut):
                raise
    return made


def read_rows(file: Path, needed: str | None = None, kind: Any = object) -> list[dict[str, Any]]:
    """Read rows, as `read_lines` does; each has to have what is `needed`, of some `kind`."""

    def row(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"it holds a {type(value).__name__}, not a row")
        if needed and not isinstance(value[needed], kind):
            raise TypeError(f"{needed!r} is {value[needed]!r:.60}")
        return value

    return read_lines(file, row, is_appended=file.name == "metrics.jsonl")


def tidy_row(logs: Mapping[str, Any], step: int, max_steps: int, beta: float) -> dict[str, float]:
    """Turn one of the trainer's log entries into a row: numbers only, and nothing that was not measured."""
    numbers = {key: value for key, value in logs.items() if isinstance(value, (int, float))}
    if beta == 0:  # then Unsloth logs a KL of exact zeros, which was never computed
        numbers.pop("kl", None)
    return {"step": step, "max_steps": max_steps, **numbers}


def series(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a metric, one per row; NaN where it was not measured, or is no number."""
    return [float(row[key]) if isinstance(row.get(key), (int, float)) else math.nan for row in rows]


def mean(values: Sequence[float]) -> float:
    """Mean of what was measured; NaN if nothing was."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan
