"""The rewards of a run: whether they rise or have fallen, and where they lie in their range."""

from __future__ import annotations

import math
import re
from statistics import NormalDist, fmean
from typing import NamedTuple

from grpo_nb.core.statistics import kendall_z, mann_whitney_z
from grpo_nb.health.history import (
    CLEAR_Z,
    LIKELY_Z,
    LONG_WINDOW,
    MIN_ROWS_FOR_CRITICAL,
    MIN_ROWS_PER_SIDE,
    WINDOW,
    RunHistory,
)

LOSS_P_VALUE = 1e-4
"""Significance level for "nearly all of the gain is lost". It is divided by the number of blocks
(Bonferroni correction), because the best block is a maximum."""

MAIN_REWARD = re.compile(
    r"(^|[^a-z])(correct|accura|answer|succe|solve|exact|pass(ed)?([^a-z]|$))", re.IGNORECASE
)
"""Word starts in the names of main rewards, from published notebooks."""

MAX_STD_IN_0_1 = 0.6
"""Highest standard deviation of scores between 0 and 1. It is 0.5 for many scores, and a little
more in a small sample."""


class RewardTrend(NamedTuple):
    """Trend of the rewards after a row.

    "The start" is the first 20 steps and "now" the last 20, or the first and last 50.
    """

    is_rising: bool
    """True if the total or a reward with positive weight rises within the last 50 steps. Then most
    alerts are milder or left out: a run that learns should not be changed because of them."""
    is_above_start: bool
    """True if the total or a reward with positive weight is higher now than at the start."""
    has_lost_half: bool
    """True if the total fell below its start, or lost at least half of its gain."""
    has_lost_nearly_all: bool
    """True if the total fell below its start, or lost at least 90 % of its gain, beyond doubt."""

    @property
    def has_kept_gain(self) -> bool:
        """True if a reward is above its start and the total has not lost half of its gain."""
        return self.is_above_start and not self.has_lost_half


def measure_trend(history: RunHistory) -> RewardTrend:
    """Measure the trend of the rewards after the last row."""
    metrics = ["reward"]
    for reward in history.rewards:
        if history.weights.get(reward, 1.0) > 0:
            metrics.append(f"rewards/{reward}")

    is_rising = any(rise_in_window(history, metric) >= LIKELY_Z for metric in metrics)
    # With so few rows the window covers the whole run, so a rise in it is one since the start.
    is_above_start = is_rising and history.reward_rows < MIN_ROWS_FOR_CRITICAL
    for metric in metrics:
        rises = [rise_since_start(history, metric, steps) for steps in (LONG_WINDOW, WINDOW)]
        is_above_start = is_above_start or max(rises) >= LIKELY_Z
    strict_z = -NormalDist().inv_cdf(LOSS_P_VALUE / max(1, history.blocks))
    return RewardTrend(
        is_rising=is_rising,
        is_above_start=is_above_start,
        has_lost_half=_has_lost_gain(history, 0.5, CLEAR_Z),
        has_lost_nearly_all=_has_lost_gain(history, 0.1, strict_z),
    )


def rise_since_start(history: RunHistory, metric: str, steps: int = WINDOW) -> float:
    """Return the z-score of the last steps of a metric against its first steps."""
    first = history.first_values(metric, steps, MIN_ROWS_PER_SIDE)
    last = history.last_values(metric, steps, MIN_ROWS_PER_SIDE)
    half = max(1, history.reward_rows // 2)  # last[-0:] would be all rows
    return mann_whitney_z(first, last[-half:])


def rise_in_window(history: RunHistory, metric: str) -> float:
    """Return the z-score of the second half of the last 50 steps against the first half.

    With few rows it is that of Kendall's test of order.
    """
    values = history.last_values(metric, LONG_WINDOW, MIN_ROWS_FOR_CRITICAL)
    if len(values) < MIN_ROWS_FOR_CRITICAL:
        return kendall_z(values)
    middle = len(values) // 2
    return mann_whitney_z(values[:middle], values[middle:])


def _has_lost_gain(history: RunHistory, kept_share: float, min_z: float) -> bool:
    """Return True if the total is below its start, or kept at most `kept_share` of its gain."""
    if rise_since_start(history, "reward") <= -min_z:
        return True
    best = history.best_block
    first = history.first_values("reward", WINDOW, MIN_ROWS_PER_SIDE)
    last = history.last_values("reward", WINDOW, MIN_ROWS_PER_SIDE)
    has_risen = mann_whitney_z(first, best) >= min_z
    if not has_risen or mann_whitney_z(best, last) > -min_z:
        return False
    gain = fmean(best) - fmean(first)
    return fmean(last) <= fmean(first) + kept_share * gain


def main_reward(history: RunHistory) -> str | None:
    """Return the reward that the run is about, None if that is not clear.

    That is the reward with the largest weight, or else the only reward with a telling name.
    """
    by_weight = sorted((history.weights.get(name, 1.0), name) for name in history.rewards)
    if not by_weight:
        return None
    largest_weight, heaviest = by_weight[-1]
    if len(by_weight) == 1 or largest_weight > by_weight[-2][0]:
        return heaviest
    named = [name for name in history.rewards if MAIN_REWARD.search(name)]
    return named[0] if len(named) == 1 else None


def reward_range(history: RunHistory, reward: str) -> tuple[float, float] | None:
    """Return the lowest and the highest score of a reward, None if they are not known.

    If nobody gave the range, 0 to 1 is assumed if the means differ and lie in it, and the logged
    standard deviations fit it.
    """
    if reward in history.ranges:
        low, high = history.ranges[reward]
        return low, high
    metric = f"rewards/{reward}"
    highest_std = history.highest.get(f"{metric}/std", math.inf)
    fits = 0 <= history.lowest[metric] < history.highest[metric] <= 1
    return (0.0, 1.0) if fits and highest_std <= MAX_STD_IN_0_1 else None


def reward_position(history: RunHistory, reward: str | None) -> float:
    """Return where a mean lies in the range of a reward, from 0 (lowest) to 1 (highest).

    Without a range, 0 or less is the lowest, and any other level is NaN. None is the total reward.
    """
    level = history.mean(f"rewards/{reward}" if reward else "reward", LONG_WINDOW)
    scores = reward_range(history, reward) if reward else None
    if scores is None or scores[0] == scores[1]:
        return 0.0 if level <= 0 else math.nan
    return (level - scores[0]) / (scores[1] - scores[0])


def mean_position(history: RunHistory) -> float:
    """Return the mean of the positions of the rewards, or that of the total without any."""
    return fmean(reward_position(history, name) for name in history.rewards or [None])


def main_position(history: RunHistory) -> float:
    """Return the position of the main reward, or the mean position if no reward is the main one."""
    main = main_reward(history)
    return mean_position(history) if main is None else reward_position(history, main)
