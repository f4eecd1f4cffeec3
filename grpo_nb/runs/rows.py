"""Rows of a run, one for each logged step: made from the trainer's logs, and read as series."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import write_text
from grpo_nb.runs.reading import reporting_damage_in

if TYPE_CHECKING:
    import pandas

#: The metrics of a logged step, by name.
MetricRow = dict[str, Any]
#: Mean number of tokens per completion. TRL logs this key at each step that samples completions,
#: so a row without it belongs to a step that reused the completions of an earlier one.
MEAN_LENGTH_KEY = "completions/mean_length"


def row_from_logs(logs: Mapping[str, Any], step: int, max_steps: int, beta: float) -> MetricRow:
    """Return the measured numbers of an entry of the trainer's log as a row."""
    # Rewards may log numbers of numpy, which `float` makes plain.
    measured = {key: float(value) for key, value in logs.items() if isinstance(value, numbers.Real)}
    # With beta = 0 no KL is computed, and Unsloth logs zeros.
    if beta == 0:
        measured.pop("kl", None)
    # The health rules own the key `alerts`, but a reward may log a number of that name.
    measured.pop("alerts", None)
    # `max_steps` can differ between rows, because a resumed run may be longer.
    return measured | {"step": step, "max_steps": max_steps}


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one line of JSON per row, all or none. Values unknown to JSON are written as texts."""
    write_text(path, "".join(json.dumps(row, default=str) + "\n" for row in rows))


def metric_values(rows: Iterable[MetricRow], key: str) -> pandas.Series:
    """Return the measured values of a metric by step. Infinite values are kept, NaN is dropped.

    Raises:
        ValueError: A number is too large for a float.
    """
    import pandas

    measured = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    with reporting_damage_in(f"the metric {key!r} of a run"):
        return pandas.Series(measured, dtype=float).dropna()


def finite_values(rows: Iterable[MetricRow], key: str) -> pandas.Series:
    """Return the finite values of a metric by step."""
    values = metric_values(rows, key)
    return values[values.abs() < math.inf]
