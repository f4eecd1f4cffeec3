"""The ten real logs of tests/data/logs, and made-up logs in which everything is known."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.core.statistics import share_interval
from grpo_nb.health.monitor import HealthMonitor, HealthReport
from grpo_nb.runs.alert import Alert
from tests.support.run_folders import info_of, write_run_folder

FOLDER = Path(__file__).parent.parent / "data" / "logs"
Rows = list[dict[str, Any]]


def real_logs() -> dict[str, Rows]:
    """Rows of each real log, by the name of its file."""
    logs = {}
    for file in sorted(FOLDER.glob("*.json")):
        columns = json.loads(file.read_text())["columns"]
        logs[file.stem] = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
    return logs


def with_zero_std(rows: Rows) -> Rows:
    """Add the share of groups with zero reward variance, which today's TRL logs."""
    return [{**row, "frac_reward_zero_std": float(row["reward_std"] == 0)} for row in rows]


def with_intervals(rows: Rows, questions: int) -> Rows:
    """Return the rows with the interval of each held-out accuracy, as the kit logs it."""
    new_rows = []
    for row in rows:
        interval = {}
        if "holdout/accuracy" in row:
            low, high = share_interval([row["holdout/accuracy"]] * questions)
            interval = {"holdout/accuracy_low": low, "holdout/accuracy_high": high}
        new_rows.append(row | interval)
    return new_rows


def healthy_log(
    steps: int = 200,
    seed: int | str = 0,
    *,
    groups: int = 4,
    size: int = 8,
    speed: float = 1.0,
    right: Callable[[float], float] = lambda progress: 0.15 + 0.6 * progress,
    form: Callable[[float], float] = lambda progress: 0.3 + 0.65 * min(1.0, 3 * progress),
) -> Rows:
    """Return the log of a run that learns: pass rates rise, the format before the answers.

    `right` and `form` are those rates at a progress from 0 to 1; other courses make other runs.

    Rewards are those of `groups` x `size` simulated completions, weights 2 for `right` and 1 for
    `form`; KL, length, gradient and time have the noise of real logs.
    """
    choose = random.Random(seed)
    rows = []
    for i in range(steps):
        progress = min(1.0, speed * i / steps)
        form_rate = form(progress)
        right_rate = right(progress)
        totals = []
        forms = []
        rights = []
        for _ in range(groups):
            hardness = choose.uniform(-0.15, 0.15)
            for _ in range(size):
                forms.append(float(choose.random() < form_rate))
                rights.append(float(choose.random() < right_rate + hardness))
            totals.append([f + 2 * r for f, r in zip(forms[-size:], rights[-size:], strict=True)])
        everything = [total for group in totals for total in group]
        rows.append(
            {
                "step": i + 1,
                "reward": fmean(everything),
                "reward_std": stdev(everything),
                "frac_reward_zero_std": fmean([float(len(set(group)) == 1) for group in totals]),
                "rewards/form/mean": fmean(forms),
                "rewards/form/std": stdev(forms),
                "rewards/right/mean": fmean(rights),
                "rewards/right/std": stdev(rights),
                "kl": 0.12 * progress * choose.lognormvariate(0, 0.3),
                "grad_norm": choose.lognormvariate(-1, 0.4),
                "completions/mean_length": 120 + 20 * progress + choose.gauss(0, 8),
                "completions/clipped_ratio": choose.choice([0, 0, 0.03]),
                "step_time": choose.lognormvariate(2, 0.1),
                "loss": choose.gauss(0, 0.01),
                "entropy": 1.2 - 0.5 * progress,
            }
        )
    return rows


WEIGHTS = {"right": 2.0, "form": 1.0}
RANGES = {"right": (0.0, 1.0), "form": (0.0, 1.0)}
NAN = math.nan
INFINITE = math.inf


@functools.cache
def _healthy_log(steps: int, seed: int, speed: float) -> Rows:
    """The log that many tests change; they must not change its rows in place."""
    return healthy_log(steps, seed, speed=speed)


def changed(
    steps: int = 120, seed: int = 1, speed: float = 1.0, **columns: Callable[[int, dict], object]
) -> Rows:
    """Return a healthy log with some columns computed from the row's number and the row.

    In a keyword `__` stands for a slash. None removes the column.
    """
    rows = []
    for i, row in enumerate(_healthy_log(steps, seed, speed)):
        new = row | {name.replace("__", "/"): value(i, row) for name, value in columns.items()}
        rows.append({key: value for key, value in new.items() if value is not None})
    return rows


def flat(steps: int = 120, **columns: Callable[[int, dict], object]) -> Rows:
    """A log in which no reward rises."""
    return changed(steps, 3, 0.0, **columns)


def cut(share: float) -> Rows:
    """A log in which no reward rises and so many completions are cut."""
    return flat(60, completions__clipped_ratio=lambda i, r: share)


def unpaid(steps: int = 40) -> Rows:
    """A log in which nobody ever earns anything."""
    nothing = {
        f"rewards__{name}__{kind}": lambda i, r: 0.0 for name in WEIGHTS for kind in ("mean", "std")
    }
    zero = {
        "reward": lambda i, r: 0.0,
        "reward_std": lambda i, r: 0.0,
        "frac_reward_zero_std": lambda i, r: 1.0,
    }
    return flat(steps, **nothing, **zero)


def severest(report: HealthReport, rule: str) -> str | None:
    """Return the severity of the worst alert of a rule, withdrawn ones among them."""
    order = ["info", "warning", "critical"]
    return max((a.severity for a in report.alerts if a.rule == rule), key=order.index, default=None)


def critical_rows(rows: Rows) -> list[int]:
    """Return the places of the rows at which `stop_on_alert="critical"` stops a run."""
    monitor = HealthMonitor()
    places = []
    for place, row in enumerate(rows):
        monitor.update(row)
        if monitor.is_critical:
            places.append(place)
    return places


def of(report: HealthReport, rule: str) -> list[Alert]:
    """Return the alerts of one rule, withdrawn ones among them: `alert.state` tells them apart."""
    return [alert for alert in report.alerts if alert.rule == rule]


def make_run(folder: Path, rows: Rows, **changes: object) -> gn.runs.Run:
    return write_run_folder(folder, info_of(WEIGHTS, **changes), rows)


def seeds(count: int, light: int = 1) -> list[Any]:
    """Return the seeds of a test. All but the first `light` ones are left to the slow tests."""
    return [
        pytest.param(seed, marks=() if seed < light else pytest.mark.slow) for seed in range(count)
    ]
