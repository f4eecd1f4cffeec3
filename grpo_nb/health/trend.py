"""The rewards of a run: whether they rise or have fallen, and where they lie in their range."""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

from grpo_nb.core.statistics import mann_whitney_z, rise_z
from grpo_nb.health.history import (
    CLEAR_Z,
    LIKELY_Z,
    LONG_WINDOW,
    MIN_ROWS_FOR_CRITICAL,
    WINDOW,
    RunHistory,
)

KEPT_SHARE_FOR_WARNING = 0.5
"""The reward has fallen if at most this share of its gain is left: at least half is lost."""

MAX_STD_IN_0_1 = 0.6
"""Highest standard deviation that still fits scores between 0 and 1. Such scores have at most 0.5
in a large sample, and 0.58 in a sample of three or four."""


class RewardTrend(NamedTuple):
    """Trend of the total reward after a row."""

    is_rising: bool
    """True if the total reward rises within the last 50 steps. Then most alerts are milder or left
    out: a run that learns should not be changed because of them."""
    is_above_start: bool
    """True if the total reward is higher in the last 50 steps than in the first 50."""
    has_fallen: bool
    """True if the total fell below its start, or lost at least half of its gain."""


def measure_trend(history: RunHistory) -> RewardTrend:
    """Measure the trend of the total reward after the last row."""
    return RewardTrend(
        is_rising=recent_rise_z(history) >= LIKELY_Z,
        is_above_start=z_since_start(history, "reward", LONG_WINDOW) >= LIKELY_Z,
        has_fallen=has_fallen(history, KEPT_SHARE_FOR_WARNING, CLEAR_Z),
    )


def z_since_start(history: RunHistory, metric: str, steps: int = WINDOW) -> float:
    """Return the z-score of the last steps of a metric against its first steps."""
    first = history.first_values(metric, steps)
    # Rows are counted, not values, because a row may lack the metric.
    rows = history.last_rows[-history.compared_row_count(steps) :]
    last = [row[metric] for row in rows if metric in row]
    return mann_whitney_z(first, last)


def recent_rise_z(history: RunHistory) -> float:
    """Return the z-score of the total reward in the last 50 steps, second half against first half.

    With few rows, return the z-score of Kendall's test of order instead.
    """
    values = history.last_values("reward", LONG_WINDOW, MIN_ROWS_FOR_CRITICAL)
    if len(values) < MIN_ROWS_FOR_CRITICAL:
        return rise_z(values)
    middle = len(values) // 2
    return mann_whitney_z(values[:middle], values[middle:])


def has_fallen(history: RunHistory, kept_share: float, min_z: float) -> bool:
    """Return True if the total is below its start, or kept at most `kept_share` of its gain."""
    # 1. The reward is below its start.
    if z_since_start(history, "reward") <= -min_z:
        return True
    # 2. The reward never clearly rose, or has not clearly fallen since: no gain is lost.
    best = history.best_rewards
    first = history.first_values("reward")
    last = history.last_values("reward")
    has_risen = mann_whitney_z(first, best) >= min_z
    if not has_risen or mann_whitney_z(best, last) > -min_z:
        return False
    # 3. The reward rose and fell: is at most `kept_share` of its gain left?
    start = fmean(first)
    gain = fmean(best) - start
    return fmean(last) - start <= kept_share * gain


def main_reward(history: RunHistory) -> str | None:
    """Return the reward with the largest weight, None if several rewards share it."""
    weights = {name: history.weights.get(name, 1.0) for name in history.rewards}
    largest_weight = max(weights.values(), default=0.0)
    heaviest = [name for name, weight in weights.items() if weight == largest_weight]
    return heaviest[0] if len(heaviest) == 1 else None


def reward_position(history: RunHistory, reward: str) -> float:
    """Return where a reward's mean lies in its range, from 0 (lowest) to 1 (highest).

    - The range was given: the position in it.
    - No range was given, but the logged means and standard deviations fit 0 to 1: the mean itself.
    - Neither: 0 for a mean of 0 or less, and NaN for any other mean.
    """
    metric = f"rewards/{reward}"
    level = history.mean(metric, LONG_WINDOW)
    if reward in history.ranges:
        low, high = history.ranges[reward]
    else:
        low = 0.0
        high = 1.0 if _seems_to_end_at_1(history, metric) else low
    # Equal ends mark an unknown range.
    if low == high:
        return 0.0 if level <= 0 else math.nan
    return (level - low) / (high - low)


def _seems_to_end_at_1(history: RunHistory, metric: str) -> bool:
    """Return True if the logged means and standard deviations are those of scores from 0 to 1."""
    # The mean alone is not enough: 2 points for half of the answers give a mean of 1, but also a
    # standard deviation of 1.
    highest_std = history.highest.get(f"{metric}/std", 0.0)
    fits = 0 <= history.lowest[metric] < history.highest[metric] <= 1
    return fits and highest_std <= MAX_STD_IN_0_1


def main_position(history: RunHistory) -> float:
    """Return the position of the main reward, or the mean position if no reward is the main one."""
    main = main_reward(history)
    rewards = history.rewards if main is None else [main]
    positions = [reward_position(history, reward) for reward in rewards]
    return fmean(positions) if positions else math.nan
