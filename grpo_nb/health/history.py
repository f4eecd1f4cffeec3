"""The history of a run: what the rules know after a row.

It holds the first and the last rows, the range of each metric so far, the block of rows in which
the reward was highest, and the held-out scores. The lengths of all windows, and the limits for zero
and for a clear difference, are defined here.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING

from grpo_nb.core.statistics import Z_95, mann_whitney_z
from grpo_nb.runs.measures import ACCURACY_KEY
from grpo_nb.runs.rows import MEAN_LENGTH_KEY, MetricRow

if TYPE_CHECKING:
    import pandas

CLEAR_Z = 3.0
"""z-score of a shift that causes an alert. The rules test after every step, so a z-score of 2
would be reached by accident in most runs."""

LIKELY_Z = 2.3
"""z-score of a rise that makes alerts milder. It is lower than `CLEAR_Z`, because a run that
probably learns should be left alone."""

# Rules compare means over a window of steps. One row can stand for many steps (`logging_steps`), so
# each window also has a smallest number of rows.

SHORT_WINDOW = 10
"""Steps of the shortest mean. Before this step only `check_not_finite` reports."""

WINDOW = 20
"""Number of steps in each of the two windows that are compared: the first steps of the run, and the
last ones."""

LONG_WINDOW = 50
"""Number of steps in the longest window. This many rows are kept at each end of a run, which is
enough because a row stands for at least one step."""

MIN_ROWS = 5
"""Fewest rows of a mean. Five is also the fewest for which `rise_z` can reach `LIKELY_Z`."""

MIN_ROWS_OF_WINDOW = 8
"""Fewest rows of a window that is compared with another. Without ties, a rank test of eight rows
against eight reaches a z-score of 3.4 at most. Seven against seven reach 3.1, and two pairs out of
order put that below `CLEAR_Z`."""

MIN_ROWS_FOR_CRITICAL = 2 * MIN_ROWS_OF_WINDOW
"""Fewest rows for a critical alert. With fewer rows, a rank test of one half against the other
cannot rule out that the reward rises. `check_not_finite` needs no such test."""

LARGEST_NUMBER = 1e30
"""Absolute value above which a number counts as infinite. No metric of a working run comes near
it, and bfloat16 and float32 overflow soon after, at 3e38."""

NEARLY_ZERO = 1e-6
"""Difference up to which two scores, or all scores of a group, count as equal."""

ZERO_UPDATE = 1e-12
"""Gradient norm or learning rate up to which no weight moves."""

ZERO_VARIANCE_SHARE = "zero_variance_share"
"""Share of groups whose rewards are all equal: TRL's `frac_reward_zero_std`, or in older logs 0 or
1, computed from `reward_std`."""

HOLDOUT_TOTAL = "eval_reward"
"""Total reward of TRL's own evaluations: the held-out score of a log without an accuracy."""

ACCURACY_INTERVAL = {"holdout/accuracy_low", "holdout/accuracy_high"}
"""Ends of the 95 % interval of the held-out accuracy."""

ASSUMED_GROUP_SIZE = 2
"""Number of completions per prompt that is assumed for a log without settings. The smallest groups
agree by chance most often, so `zero_variance` is then most lenient."""

Metrics = dict[str, float]
"""Values by the name of a metric."""


def read_numbers(row: MetricRow) -> Metrics:
    """Return all numbers of a row by metric, NaN and infinity included.

    Text such as "0.5" is read as a number, because transformers prints numbers as text. The ending
    `/mean` of a name is removed.
    """
    metrics = {}
    for name, value in row.items():
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            metrics[name.removesuffix("/mean")] = float(value)
    return metrics


def duplicates_entry(texts: pandas.Series, groups: pandas.Series) -> dict[str, float]:
    """Return the entry `completions/duplicates` of a row: the share of repeated completions.

    For a group of `n` completions with `d` different texts, the share is `(n - d) / (n - 1)`: 0 if
    all differ, 1 if all are equal. The metric is the mean over the groups. It is missing if every
    group has a single completion. Texts that differ only in whitespace count as equal.

    Args:
        texts: The completions of one step.
        groups: Number of the group of each completion.

    >>> from pandas import Series
    >>> duplicates_entry(Series(["a", "a ", "b", "c"]), Series([0, 0, 1, 1]))
    {'completions/duplicates': 0.5}
    """
    # Models that repeat themselves still vary their line breaks.
    one_line = texts.str.split().str.join(" ")
    by_group = one_line.groupby(groups)
    sizes = by_group.size()
    # A group of one completion has no share: 0 / 0.
    shares = ((sizes - by_group.nunique()) / (sizes - 1)).dropna()
    return {"completions/duplicates": fmean(shares)} if len(shares) else {}


@dataclass
class RunHistory:
    """The first and the last rows of a run, and a few counts of the whole run.

    Metrics have the names of today's TRL: `reward` is the mean total reward, `rewards/NAME` the
    mean score of one reward, `rewards/NAME/std` its standard deviation. A reward row is a row with
    a usable total reward. It stands for several steps if `logging_steps` is above 1, so windows are
    counted in steps. The cost of a row does not grow with the run. Only the held-out scores are
    kept without a limit, and there are few of them.

    >>> history = RunHistory()
    >>> for step in range(1, 31):
    ...     history.add({"step": step, "reward": 0.1 * step})
    >>> round(history.mean("reward", steps=10), 2)
    2.55
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward, by name, where known."""
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Lowest and highest score that each reward can give, by name, where known."""
    group_size: int = ASSUMED_GROUP_SIZE
    """Number of completions per prompt."""

    step: int = 0
    """Step number of the last row."""
    max_steps: float = math.inf
    """Step at which the run ends, infinity if it is not known."""
    reward_row_count: int = 0
    """Number of reward rows so far."""
    first_reward_step: int = 0
    """Step of the first reward row, 0 before it."""
    last_reward_step: int = 0
    """Step of the last reward row, 0 before the first one."""

    first_rows: list[Metrics] = field(default_factory=list)
    """Metrics of the first `LONG_WINDOW` reward rows."""
    last_rows: list[Metrics] = field(default_factory=list)
    """Metrics of the last `LONG_WINDOW` reward rows."""
    lowest: Metrics = field(default_factory=dict)
    """Lowest value of each metric in all reward rows."""
    highest: Metrics = field(default_factory=dict)
    """Highest value of each metric in all reward rows."""

    not_finite: Metrics = field(default_factory=dict)
    """NaN and infinite values of the last row, by metric."""
    not_finite_streaks: Counter[str] = field(default_factory=Counter)
    """Number of consecutive rows in which each metric was NaN or infinite."""
    is_reward_missing: bool = False
    """True if the last row is a training row without a total reward."""

    holdout_scores: list[float] = field(default_factory=list)
    """Held-out scores."""
    holdout_metric: str = ""
    """`ACCURACY_KEY` or `HOLDOUT_TOTAL`; empty before the first held-out score."""
    holdout_error: float = 0.0
    """Largest standard error of a held-out accuracy, 0 if it is not known."""

    best_rewards: list[float] = field(default_factory=list)
    """Rewards of the best block of `WINDOW` steps so far. A later block becomes the best if it is
    higher with a z-score of at least `LIKELY_Z`."""
    length_at_best: float = 0.0
    """Median length of completions in the same block, 0 if it is not known."""

    def add(self, row: MetricRow) -> None:
        """Add one logged row."""
        # 1. Separate NaN and infinite values from the others.
        numbers = read_numbers(row)
        metrics = {}
        self.not_finite = {}
        for name, number in numbers.items():
            if abs(number) <= LARGEST_NUMBER:
                metrics[name] = number
                self.not_finite_streaks.pop(name, None)
            # The standard deviation of a single completion is NaN by definition.
            elif not name.endswith(("/std", "reward_std")):
                self.not_finite[name] = number
        self.not_finite_streaks.update(self.not_finite.keys())

        # 2. Read the step.
        if "step" in metrics:
            self.step = int(metrics["step"])
        elif "reward" in numbers:
            # A printed log has no step numbers, so each of its reward rows counts as a step.
            self.step += 1
        self.max_steps = metrics.get("max_steps", self.max_steps)

        # 3. Add the held-out score and the reward.
        self._add_holdout(metrics)
        # Only training rows have a `loss`: evaluation rows have an `eval_loss`, and the summary has
        # a `train_loss`. TRL leaves out a reward that is NaN or None for every completion.
        self.is_reward_missing = "loss" in numbers and "reward" not in numbers
        if "reward" in metrics:
            self._add_reward_row(metrics)

    def _add_holdout(self, metrics: Metrics) -> None:
        if ACCURACY_KEY in metrics and self.holdout_metric != ACCURACY_KEY:
            # Totals of earlier rows are dropped, because they have another scale.
            self.holdout_metric = ACCURACY_KEY
            self.holdout_scores = []
        elif HOLDOUT_TOTAL in metrics and not self.holdout_metric:
            self.holdout_metric = HOLDOUT_TOTAL
        if self.holdout_metric in metrics:
            self.holdout_scores.append(metrics[self.holdout_metric])
        if metrics.keys() >= ACCURACY_INTERVAL:
            width = metrics["holdout/accuracy_high"] - metrics["holdout/accuracy_low"]
            self.holdout_error = max(self.holdout_error, width / (2 * Z_95))

    def _add_reward_row(self, metrics: Metrics) -> None:
        if self.reward_row_count == 0:
            self.first_reward_step = self.step
        self.last_reward_step = self.step
        self.reward_row_count += 1
        self._add_derived(metrics)

        if len(self.first_rows) < LONG_WINDOW:
            self.first_rows.append(metrics)
        self.last_rows.append(metrics)
        del self.last_rows[:-LONG_WINDOW]
        for name, value in metrics.items():
            self.lowest[name] = min(value, self.lowest.get(name, value))
            self.highest[name] = max(value, self.highest.get(name, value))
        if self.reward_row_count % self.row_count_in(WINDOW, MIN_ROWS_OF_WINDOW) == 0:
            self._update_best()

    def _update_best(self) -> None:
        block = self.last_values("reward")
        is_better = mann_whitney_z(self.best_rewards, block) >= LIKELY_Z
        if is_better or not self.best_rewards:
            lengths = self.last_values(MEAN_LENGTH_KEY)
            self.best_rewards = block
            self.length_at_best = median(lengths) if lengths else 0.0

    def _add_derived(self, metrics: Metrics) -> None:
        """Add metrics that follow from others, and drop a gradient norm without a signal."""
        if "frac_reward_zero_std" in metrics:
            metrics[ZERO_VARIANCE_SHARE] = metrics["frac_reward_zero_std"]
        elif "reward_std" in metrics:
            # Older logs have the deviation within groups or in the batch. If it is 0, no group has
            # reward variance.
            has_zero_variance = metrics["reward_std"] <= NEARLY_ZERO
            metrics[ZERO_VARIANCE_SHARE] = float(has_zero_variance)
        if metrics.get(ZERO_VARIANCE_SHARE) == 1:
            # Without reward variance every advantage is 0, so a gradient of 0 is not a fault.
            metrics.pop("grad_norm", None)
        if "learning_rate" in metrics:
            is_zero = metrics["learning_rate"] <= ZERO_UPDATE
            metrics["learning_rate/zero"] = float(is_zero)

    @property
    def steps_per_row(self) -> float:
        """Mean number of steps that a reward row stands for."""
        steps_between = self.last_reward_step - self.first_reward_step
        rows_between = max(1, self.reward_row_count - 1)
        return max(1.0, steps_between / rows_between)

    @property
    def logged_steps(self) -> int:
        """Number of steps that all reward rows stand for."""
        return math.ceil(self.reward_row_count * self.steps_per_row)

    @property
    def rewards(self) -> list[str]:
        """Names of all rewards that were logged so far."""
        names = []
        for metric in self.highest:
            if metric.startswith("rewards/") and not metric.endswith("/std"):
                names.append(metric.removeprefix("rewards/"))
        return names

    def row_count_in(self, steps: int, min_rows: int = MIN_ROWS) -> int:
        """Return how many rows stand for this many steps, but at least `min_rows`."""
        return max(min_rows, math.ceil(steps / self.steps_per_row))

    def last_values(
        self, metric: str, steps: int = WINDOW, min_rows: int = MIN_ROWS_OF_WINDOW
    ) -> list[float]:
        """Return the values of a metric in the last steps. Rows without the metric are skipped."""
        rows = self.last_rows[-self.row_count_in(steps, min_rows) :]
        return [row[metric] for row in rows if metric in row]

    def first_values(self, metric: str, steps: int = WINDOW) -> list[float]:
        """Return the values of a metric in the first steps, at most in the first half of rows."""
        rows = self.first_rows[: self.compared_row_count(steps)]
        return [row[metric] for row in rows if metric in row]

    def compared_row_count(self, steps: int) -> int:
        """Return how many first rows are compared with the same number of last rows.

        This is at most half of all rows, so that the two ends do not overlap.
        """
        return min(self.reward_row_count // 2, self.row_count_in(steps, MIN_ROWS_OF_WINDOW))

    def mean(self, metric: str, steps: int = WINDOW) -> float:
        """Return the mean of a metric over the last steps, NaN if too few rows have the metric.

        A comparison with NaN is False, so a threshold is never reached by a missing metric.
        """
        values = self.last_values(metric, steps, MIN_ROWS)
        if len(values) < self.row_count_in(SHORT_WINDOW):
            return math.nan
        return fmean(values)
