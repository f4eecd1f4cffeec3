"""The rows of a run, one for each logged step: read from its folder, tidied, and what they say in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, float]
_FIRST, _LAST = 3, 10


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl. A last line cut short, as a crash in mid-write leaves it, is left out."""
    if not file.is_file():
        return []
    lines = file.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise
    return rows


def tidy_row(logs: Mapping[str, Any], step: int, max_steps: int, beta: float) -> dict[str, float]:
    """Turn one of the trainer's log entries into a row: numbers only, and nothing that was not measured."""
    numbers = {key: value for key, value in logs.items() if isinstance(value, (int, float))}
    if beta == 0:  # then Unsloth logs a KL of exact zeros, which was never computed
        numbers.pop("kl", None)
    return {"step": step, "max_steps": max_steps, **numbers}


def series(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a metric, one per row; NaN where it was not measured."""
    return [float(row.get(key, math.nan)) for row in rows]


def mean(values: Sequence[float]) -> float:
    """Mean of what was measured; NaN if nothing was."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def describe(rows: Sequence[Row]) -> str:
    """One sentence about a run so far: reward then and now, KL, and what is cut at the length limit."""
    rows = [row for row in rows if "reward" in row]
    if not rows:
        return "No step has been logged yet."
    rewards = series(rows, "reward")
    # One window for all that is said, and none that reaches over both ends of a short run.
    first, last = (_FIRST, _LAST) if len(rows) >= _FIRST + _LAST else (max(1, len(rows) // 3),) * 2
    if len(rows) == 1:
        text = f"Step {rows[0]['step']:.0f}: reward {rewards[0]:.2f}"
    else:
        before, now = mean(rewards[:first]), mean(rewards[-last:])
        verb = "rose" if now > before else "fell" if now < before else "stayed"
        text = f"Reward {verb} from {before:.2f} (first {first} step{'s' * (first > 1)}) to {now:.2f} (last {last})"
    kl = mean(series(rows[-last:], "kl"))
    text += f"; KL to the starting model {kl:.3f}" if not math.isnan(kl) else "; KL not measured"
    clipped = mean(series(rows[-last:], "completions/clipped_ratio"))
    if not math.isnan(clipped):
        text += f"; {clipped:.0%} of completions cut at the length limit"
    return text + "."
