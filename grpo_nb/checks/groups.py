"""The mean of groups of scores with its interval: the groups are the sampling units.

Completions of one prompt are too alike to count as independent.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.statistics import t_interval

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


def estimate(
    groups: Sequence[Sequence[float]], bounds: tuple[float, float] | None = None
) -> Estimate:
    """Return the mean over groups and its 95 % t interval, within `bounds`; scores that are NaN are left out.

    Without bounds these are those of `likely_range`.

    Student's t over the group means, because with eight groups a percentile bootstrap covers the truth less often than it says.

    >>> estimate([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).mean
    0.5
    """
    import numpy
    import pandas

    # One by one: the groups need not have the same size.
    means = pandas.Series(
        [pandas.Series(group, dtype=float).mean() for group in groups], dtype=float
    ).dropna()
    mean = float(means.mean())
    # An infinite score has a mean and no interval; groups all alike say nothing of how much others would differ.
    if len(means) < 2 or not numpy.isfinite(means).all() or numpy.ptp(means) <= NO_SPREAD:
        return Estimate(mean, None)
    low, high = numpy.clip(t_interval(means), *(bounds or likely_range(itertools.chain(*groups))))
    return Estimate(mean, (float(low), float(high)))


def likely_range(scores: Iterable[float]) -> tuple[float, float]:
    """From 0, where no score is less and one is 0, and to 1 likewise: most rewards pay 0 to 1 and do not say so."""
    known = [score for score in scores if not math.isnan(score)]
    return 0.0 if min(known, default=1) == 0 else -math.inf, 1.0 if max(
        known, default=0
    ) == 1 else math.inf


def in_groups(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]
