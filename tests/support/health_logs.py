"""The ten real logs of tests/data/logs as rows, and made-up logs in which everything is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

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
