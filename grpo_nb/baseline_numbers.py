"""The numbers of a baseline: means over groups with their interval, spread in a group, and what kind a group is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

GroupKind = Literal["differs", "all right", "all wrong", "all equal", "no score"]
GROUP_SAID: dict[GroupKind, str] = {
    "differs": "with different totals",
    "all right": "all right",
    "all wrong": "all wrong",
    "all equal": "all equal, in between",
    "no score": "without a score",
}

LEVEL = 0.95
NO_SPREAD = 1e-6
"""Totals nearer than this are equal: beside TRL's 1e-4 under the advantage nothing is left, and float32 rounds away less."""


@dataclass(frozen=True)
class Estimate:
    """A mean over groups with its 95 % interval; None where the sample cannot say, with one group or all groups alike."""

    mean: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f})"


def estimate(groups: Sequence[Sequence[float]], bounds: tuple[float, float] | None = None) -> Estimate:
    """Return the mean over groups and its 95 % t interval, within `bounds`; scores that are NaN are left out.

    Student's t over the group means, because with eight groups a percentile bootstrap covers the truth less often than it says.

    >>> estimate([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).mean
    0.5
    """
    from scipy import stats

    means = [mean for mean in map(mean_of, groups) if not math.isnan(mean)]
    # An infinite score has a mean and no interval; groups all alike say nothing of how much others would differ.
    if len(means) < 2 or not all(map(math.isfinite, means)) or max(means) - min(means) <= NO_SPREAD:
        return Estimate(mean_of(means), None)
    low, high = stats.t.interval(LEVEL, len(means) - 1, mean_of(means), stats.sem(means))
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(mean_of(means), (float(low), float(high)))


def in_groups(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def mean_of(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def deviation_of(values: Sequence[float]) -> float:
    """Standard deviation with Bessel's correction, as TRL takes it; 0 where fewer than two scores are known."""
    known = [value for value in values if not math.isnan(value)]
    if len(known) < 2 or max(known) == min(known):
        return 0.0
    mean = sum(known) / len(known)
    return math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))


def kind_of(totals: Sequence[float], right: float, empty: float) -> GroupKind:
    known = [total for total in totals if not math.isnan(total)]
    if not known:
        return "no score"
    if len(known) > 1 and max(known) - min(known) > NO_SPREAD:
        return "differs"
    # Rewards that pay a right answer no more than nothing, such as those that run code, cannot say what right is.
    if not right > empty + NO_SPREAD:
        return "all equal"
    if known[0] >= right - NO_SPREAD:
        return "all right"
    return "all wrong" if known[0] <= empty + NO_SPREAD else "all equal"
