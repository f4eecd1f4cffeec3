"""Rows of a run, one for each logged step: made from the trainer's logs, and read from a file.

The module also has the measures of held-out answers, and the error that names a damaged file.
"""

from __future__ import annotations

import contextlib
import json
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_nb.core.words import short_repr

if TYPE_CHECKING:
    import pandas

Row = Mapping[str, Any]
#: Share of correct answers to the held-out questions.
ACCURACY = "holdout/accuracy"
#: Mean number of tokens per completion. TRL logs this key at each step that sampled completions,
#: whatever their scores were. If a row lacks this key, its step reused earlier completions.
MEAN_LENGTH = "completions/mean_length"


class HoldoutMeasure(NamedTuple):
    """A measure of held-out answers.

    Attributes:
        name: Name in `Evaluation.share_of` and in comparison.json.
        label: Name that users see.
        column: Column of `Evaluation.rows` with the grade of each answer.
    """

    name: str
    label: str
    column: str

    @property
    def key(self) -> str:
        """Key of the share in a row of a run."""
        return f"holdout/{self.name}"

    @property
    def interval_keys(self) -> list[str]:
        """Keys of the lower and upper end of the 95 % interval in a row of a run."""
        return [f"{self.key}_low", f"{self.key}_high"]


#: The measures of held-out answers, in the order in which they are shown. The format can improve
#: without the answers, so every text shows all measures.
HOLDOUT_MEASURES = (
    HoldoutMeasure("accuracy", label="correct", column="is_correct"),
    HoldoutMeasure("in_format", label="in the format", column="is_formatted"),
    HoldoutMeasure("anywhere", label="correct anywhere", column="is_correct_anywhere"),
)


def in_percent(share: float | None, interval: Sequence[float] | None) -> str:
    """Return a share in percent for tables, with its interval if there is one."""
    if share is None:
        return "not measured"
    if interval is None:
        return f"{share:.1%}"
    low, high = interval
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


#: Errors that a damaged file can cause when its content is parsed and checked. Lookup and attribute
#: errors are among them, because valid JSON can have any shape.
CONTENT_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@contextlib.contextmanager
def reporting_damage_in(file: Path, where: str = "") -> Iterator[None]:
    """Raise any error about the content of a file as a `ValueError` that names the file.

    The errors of JSON and pyarrow do not name the file. Keep the block small, because a bug of ours
    in it would be reported as a damaged file too.

    Args:
        file: The file that is read in the block.
        where: The place in the file, for the message.
    """
    try:
        yield
    except (*CONTENT_ERRORS, OSError) as error:
        # For a damaged file, pyarrow raises an OSError without a number. A failing drive gives one.
        is_drive_error = isinstance(error, OSError) and error.errno is not None
        if is_drive_error:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"{file}{where} is damaged, or was written by another version of grpo_nb "
            f"({reason}): put a copy of it back, or delete what is damaged."
        ) from error


def read_json_lines(file: Path, *, is_appended: bool = False) -> list[dict[str, Any]]:
    """Read a file of JSON lines, one mapping in each. A missing file has no rows.

    Args:
        file: The file.
        is_appended: True if the file is written line by line. A crash can truncate its last line,
            which is then left out.

    Raises:
        ValueError: A line cannot be read; the message names file and line.
    """
    if not file.is_file():
        return []
    # A power cut can leave zero bytes at the end of a file.
    content = file.read_bytes().rstrip(b"\0")
    lines = content.splitlines()
    # A truncated line has no line break.
    if is_appended and not content.endswith(b"\n"):
        lines = lines[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        with reporting_damage_in(file, f", line {number},"):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"{short_repr(row)} is not a JSON object")
            rows.append(row)
    return rows


def row_from_logs(
    logs: Mapping[str, Any], step: int, max_steps: int, beta: float
) -> dict[str, Any]:
    """Return the measured numbers of an entry of the trainer's log as a row."""
    # Rewards may log numbers of numpy, which `float` makes plain.
    measured = {key: float(value) for key, value in logs.items() if isinstance(value, numbers.Real)}
    # With beta = 0 Unsloth logs a KL of exact zeros, which was never computed.
    if beta == 0:
        measured.pop("kl", None)
    # `alerts` is kept for the health rules, but a reward may have logged a number of that name
    # (TRL's `log_metric`). `step` and `max_steps` are overwritten below.
    measured.pop("alerts", None)
    return measured | {"step": step, "max_steps": max_steps}


def measure_duplicates(texts: pandas.Series, groups: pandas.Series) -> dict[str, float]:
    """Return the entry `completions/duplicates` of a row: the share of repeated completions.

    For a group of `n` completions with `d` different texts, the share is `(n - d) / (n - 1)`: 0 if
    all differ, 1 if all are equal. The metric is the mean over the groups. It is missing if every
    group has a single completion. Texts that differ only in whitespace count as equal.

    Args:
        texts: The completions of one step.
        groups: Number of the group of each completion.

    >>> from pandas import Series
    >>> measure_duplicates(Series(["a", "a ", "b", "c"]), Series([0, 0, 1, 1]))
    {'completions/duplicates': 0.5}
    """
    # Models that repeat themselves still vary their line breaks.
    one_line = texts.str.split().str.join(" ")
    by_group = one_line.groupby(groups)
    sizes = by_group.size()
    # A group of one completion has no share: 0 / 0.
    shares = ((sizes - by_group.nunique()) / (sizes - 1)).dropna()
    return {"completions/duplicates": fmean(shares)} if len(shares) else {}


def metric_values(rows: Iterable[Row], key: str) -> pandas.Series:
    """Return the measured values of a metric by step, with infinite values but without NaN."""
    import pandas

    values = {row["step"]: row.get(key) for row in rows}
    measured = {step: value for step, value in values.items() if isinstance(value, (int, float))}
    return pandas.Series(measured, dtype=float).dropna()


def finite_values(rows: Iterable[Row], key: str) -> pandas.Series:
    """Return the finite values of a metric by step."""
    values = metric_values(rows, key)
    return values[values.abs() < math.inf]
