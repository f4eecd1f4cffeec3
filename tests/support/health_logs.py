"""The ten real logs of tests/data/logs as rows, made-up logs in which everything is known, and what reports say of them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import grpo_nb as gn
from grpo_nb.health.monitor import HealthReport
from grpo_nb.runs.alert import Alert
from tests.support.run_folders import info_of, write_run_folder

FOLDER = Path(__file__).parent.parent / "data" / "logs"
Rows = list[dict[str, Any]]


def real_logs() -> dict[str, Rows]:
    """Rows of each real log, by the name of its file."""
    logs = {}
    for file in sorted(FOLDER.glob("*.json")):
        columns = json.loads(file.read_text())["columns"]
        logs[file.stem] = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return logs


def with_zero_std(rows: Rows) -> Rows:
    """The rows with the share that today's TRL logs: all groups of a step, where its rewards have no spread at all."""
    return [{**row, "frac_reward_zero_std": float(row["reward_std"] == 0)} for row in rows]


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
    """A run that learns: completions are sampled from pass rates that rise, form before correctness, as runs do.

    `right` and `form` are those rates at a progress from 0 to 1; other courses make other runs.

    Rewards are those of `groups` x `size` simulated completions, weights 2 for `right` and 1 for `form`; KL, length, gradient
    and time have the noise of real logs.
    """
    choose = random.Random(seed)
    rows = []
    for i in range(steps):
        progress = min(1.0, speed * i / steps)
        form_rate, right_rate = form(progress), right(progress)
        totals: list[list[float]] = []
        forms: list[float] = []
        rights: list[float] = []
        for _ in range(groups):
            hardness = choose.uniform(-0.15, 0.15)
            for _ in range(size):
                forms.append(float(choose.random() < form_rate))
                rights.append(float(choose.random() < right_rate + hardness))
            totals.append([f + 2 * r for f, r in zip(forms[-size:], rights[-size:], strict=True)])
        everything = [total for group in totals for total in group]
        rows.append(
            {
                "step": i + 1, "reward": fmean(everything), "reward_std": stdev(everything),
                "frac_reward_zero_std": fmean([float(len(set(group)) == 1) for group in totals]),
                "rewards/form/mean": fmean(forms), "rewards/form/std": stdev(forms),
                "rewards/right/mean": fmean(rights), "rewards/right/std": stdev(rights),
                "kl": 0.12 * progress * choose.lognormvariate(0, 0.3), "grad_norm": choose.lognormvariate(-1, 0.4),
                "completions/mean_length": 120 + 20 * progress + choose.gauss(0, 8),
                "completions/clipped_ratio": choose.choice([0, 0, 0.03]),
                "step_time": choose.lognormvariate(2, 0.1), "loss": choose.gauss(0, 0.01), "entropy": 1.2 - 0.5 * progress,
            }
        )  # fmt: skip
    return rows


def with_old_names(rows: Rows) -> Rows:
    """The same log as the generation of TRL before wrote it, without spreads."""
    old = []
    for row in rows:
        kept = {key.removesuffix("/mean"): value for key, value in row.items() if not key.endswith("/std")}
        if "completions/mean_length" in kept:
            kept["completion_length"] = kept.pop("completions/mean_length")
        old.append(kept)
    return old


WEIGHTS = {"right": 2.0, "form": 1.0}
RANGES = {"right": (0.0, 1.0), "form": (0.0, 1.0)}
NAN, INFINITE = math.nan, math.inf


def changed(steps: int = 120, seed: int = 1, **columns: Callable[[int, dict], object]) -> Rows:
    """A healthy log with some columns computed from the row's number and the row; `__` stands for a slash. None removes."""
    rows = healthy_log(steps, seed)
    for i, row in enumerate(rows):
        for name, value in columns.items():
            key = name.replace("__", "/")
            new = value(i, row)
            if new is None:
                row.pop(key, None)
            else:
                row[key] = new
    return rows


def flat(steps: int = 120, seed: int = 3, **columns: Callable[[int, dict], object]) -> Rows:
    """A log in which no reward rises."""
    rows = healthy_log(steps, seed, speed=0.0)
    return [{**row, **{k.replace("__", "/"): v(i, row) for k, v in columns.items()}} for i, row in enumerate(rows)]


def jitter(i: int) -> float:
    return 1 + 0.1 * math.sin(7 * i)


# Rule, the severity it must reach, a log that deserves it.
DESERVED: dict[str, tuple[str, str, Rows]] = {
    "too hard": ("no_spread", "critical", flat(
        40, frac_reward_zero_std=lambda i, r: 1.0, reward=lambda i, r: 0.0, reward_std=lambda i, r: 0.0,
        rewards__right__mean=lambda i, r: 0.0, rewards__form__mean=lambda i, r: 0.0,
        rewards__right__std=lambda i, r: 0.0, rewards__form__std=lambda i, r: 0.0)),
    "too easy": ("no_spread", "warning", flat(
        60, frac_reward_zero_std=lambda i, r: float(i % 4 != 0), reward=lambda i, r: 3.0 if i % 4 else 1.5,
        rewards__right__mean=lambda i, r: 1.0 if i % 4 else 0.5, rewards__form__mean=lambda i, r: 1.0 if i % 4 else 0.5)),
    "reward NaN": ("not_finite", "critical", changed(reward=lambda i, r: NAN if i == 60 else r["reward"])),
    "KL infinite": ("not_finite", "critical", changed(kl=lambda i, r: INFINITE if i == 2 else r["kl"])),
    "gradient NaN once": ("not_finite", "warning", changed(grad_norm=lambda i, r: NAN if i == 30 else r["grad_norm"])),
    "gradient NaN often": ("not_finite", "critical", changed(grad_norm=lambda i, r: NAN if i > 30 else r["grad_norm"])),
    "some other metric": ("not_finite", "warning", changed(tools__calls=lambda i, r: INFINITE if i == 9 else 1.0)),
    "KL step with a fall": ("kl_step", "warning", flat(
        kl=lambda i, r: (0.05 if i < 60 else 0.4) * jitter(i), reward=lambda i, r: r["reward"] if i < 60 else -0.5)),
    "KL drift": ("kl_drift", "info", changed(kl=lambda i, r: 0.01 * i * jitter(i))),
    "most cut": ("truncation", "warning", flat(completions__clipped_ratio=lambda i, r: 0.6)),
    "stops rising": ("reward_flat", "info", healthy_log(300, 2, speed=4.0)),
    "falls below its start": ("reward_falling", "critical", flat(reward=lambda i, r: r["reward"] - 0.02 * i)),
    "loses what it gained": ("reward_falling", "critical", [
        {**r, "step": i + 1} for i, r in enumerate(healthy_log(100, 4) + healthy_log(100, 4)[::-1])]),
    "never paid": ("constant_reward", "warning", changed(
        rewards__rare__mean=lambda i, r: 0.0, rewards__rare__std=lambda i, r: 0.0)),
    "always paid": ("constant_reward", "info", changed(
        rewards__polite__mean=lambda i, r: 1.0, rewards__polite__std=lambda i, r: 0.0)),
    "a loud reward": ("dominating_reward", "warning", flat(
        rewards__loud__mean=lambda i, r: 9 * math.sin(i), rewards__loud__std=lambda i, r: 9.0)),
    "two that fight": ("fighting_rewards", "info", changed(rewards__short__mean=lambda i, r: 2 - r["rewards/right/mean"])),
    "form alone": ("form_only", "info", changed(
        100, rewards__right__mean=lambda i, r: 0.2 + 0.05 * math.sin(i * i), reward=lambda i, r: r["rewards/form/mean"] + 0.4)),
    "form instead": ("form_only", "warning", changed(
        100, rewards__right__mean=lambda i, r: 0.5 - 0.004 * i,
        reward=lambda i, r: 3 * r["rewards/form/mean"] + 1 - 0.008 * i)),
    "held-out flat": ("holdout_flat", "warning", [
        {**r, "holdout/accuracy": 0.4 + 0.005 * math.sin(i)} if i % 20 == 19 else r
        for i, r in enumerate(healthy_log(160, 6))]),
    "eval rows flat": ("holdout_flat", "warning", [
        row for i, r in enumerate(healthy_log(160, 6))
        for row in ([r, {"step": r["step"], "eval_reward": 1.0 - 0.001 * i, "eval_loss": 0.1}] if i % 20 == 19 else [r])]),
    "slower because longer": ("slow_steps", "info", changed(
        step_time=lambda i, r: 5 * jitter(i) * (1 + i / 40), completions__mean_length=lambda i, r: 100 * (1 + i / 40))),
}  # fmt: skip


def severest(report: HealthReport, rule: str) -> str | None:
    order = ["info", "warning", "critical"]
    return max((a.severity for a in report.told if a.rule == rule), key=order.index, default=None)


def told(report: HealthReport, rule: str) -> list[Alert]:
    """What was said by a rule while it was true."""
    return [alert for alert in report.told if alert.rule == rule and alert.is_open]


def make_run(folder: Path, rows: Rows, **changes: object) -> gn.runs.Run:
    return write_run_folder(folder, info_of(WEIGHTS, **changes), rows)
