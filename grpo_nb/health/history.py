"""The history of a run, as far as the rules look back."""

from __future__ import annotations

import math
import numbers
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.statistics import mann_whitney_z

CLEAR_Z = 3.0
"""z-score of a shift that causes an alert. The rules test after every step, so a z-score of 2
would be reached by accident in most runs."""

LIKELY_Z = 2.3
"""z-score of a rise that makes alerts milder. It is lower than `CLEAR_Z`, because a run that
probably learns should be left alone."""

LONG_WINDOW = 50
"""Steps that a rule looks back at most."""

RECENT_STEPS = 20
"""Steps that count as "now", and first steps that count as "the start"."""

SHORT_WINDOW = 10
"""Steps of the shortest mean. All rules but the early ones are silent before this step."""

MIN_ROWS_OF_ALERT = 5
"""Rows that every mean needs, even if a row stands for many steps. Five rows are also the fewest
whose order can show that a reward rises (`kendall_z`), which makes an alert milder."""

MIN_ROWS_OF_TEST = 8
"""Rows on either side of a rank test. With 8 against 8 rows the z-score can reach 3.4, which is
just above `CLEAR_Z`."""

MIN_ROWS_OF_CRITICAL = 2 * MIN_ROWS_OF_TEST
"""Rows from which a full rank test would see a rise. With fewer rows `limit_severity` turns a
critical finding into a warning. A NaN loss needs no such test: it stops a run from row 1 on."""

LARGEST_NUMBER = 1e30
"""Absolute value above which a number counts as infinite. No metric of a working run comes near
it, and bfloat16 and float32 overflow soon after, at 3e38."""

ZERO_STD = 1e-6
"""Reward standard deviation up to which all rewards count as equal."""

ZERO_UPDATE = 1e-12
"""Gradient norm or learning rate up to which no weight moves."""

FULL_LENGTH_SHARE = 0.95
"""Share of the length limit from which the mean completion counts as truncated."""

SILENT_SHARE = "silent_share"
"""Share of groups with zero reward variance: as logged, or 0 or 1 from the standard deviation."""


def read_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers of a row, NaN and infinity included.

    transformers prints numbers as text, so text that is a number counts as one. `rewards/NAME/mean`
    becomes `rewards/NAME`.
    """
    metrics = {}
    for name, value in row.items():
        if not isinstance(name, str) or not isinstance(value, (numbers.Real, str)):
            continue
        if name.startswith("rewards/"):
            name = name.removesuffix("/mean")
        try:
            metrics[name] = float(value)
        except (ValueError, OverflowError):
            continue
    return metrics


def eval_column(metrics: Mapping[str, float]) -> str:
    """Return the name of the data set's total reward in an evaluation row.

    TRL logs `eval_reward` once for each data set of a dict of data sets, and only
    `eval_NAME_runtime` shows which one it is.

    >>> eval_column({"eval_math_runtime": 3.0, "eval_reward": 0.5})
    'eval_math_reward'
    """
    for name in metrics:
        if re.fullmatch("eval_.+_runtime", name):
            return name.removesuffix("runtime") + "reward"
    return "eval_reward"


@dataclass
class RunHistory:
    """The first and the last rows of a run, and a few counts of the whole run.

    Metrics have the names of today's TRL: `reward` is the mean total reward, `rewards/NAME` the
    mean score of one reward, `rewards/NAME/std` its standard deviation. A reward row is a row with
    a usable total reward. It stands for several steps if `logging_steps` is above 1, so windows are
    counted in steps. A row costs the same time and memory however long the run is.

    >>> history = RunHistory()
    >>> for step in range(1, 31):
    ...     history.add({"step": step, "reward": 0.1 * step})
    >>> round(history.mean("reward", steps=10), 2)
    2.55
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward, by name, where known."""
    settings: Settings | None = None
    """Settings of the run, if known."""
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Lowest and highest score that each reward can give, by name, where known."""

    step: int = 0
    """Step number of the last row."""
    max_steps: float = math.inf
    """Step at which the run ends, infinity if it is not known."""
    has_step_numbers: bool = True
    """False if a row with a reward had no step number, as in a printed log. Rows then count as
    steps."""
    reward_rows: int = 0
    """Number of reward rows so far."""
    first_reward_step: int = 0
    """Step of the first reward row, 0 before it."""
    last_reward_step: int = 0
    """Step of the last reward row, 0 before the first one."""
    steps_between: int = 0
    """Number of steps between the reward rows. A step that a resumed run logs again is no gap."""
    gaps: int = 0
    """Number of pairs of consecutive reward rows with a higher step in the second row."""
    longest_gap: int = 0
    """Largest number of steps between two consecutive reward rows."""

    first_rows: list[dict[str, float]] = field(default_factory=list)
    """Metrics of the first `LONG_WINDOW` reward rows."""
    last_rows: list[dict[str, float]] = field(default_factory=list)
    """Metrics of the last `LONG_WINDOW` reward rows."""
    lowest: dict[str, float] = field(default_factory=dict)
    """Lowest value of each metric in all reward rows."""
    highest: dict[str, float] = field(default_factory=dict)
    """Highest value of each metric in all reward rows."""

    unusable: dict[str, float] = field(default_factory=dict)
    """Metrics of the last row that are NaN or infinite."""
    unusable_counts: Counter[str] = field(default_factory=Counter)
    """Number of rows in which each metric was NaN or infinite."""
    is_reward_missing: bool = False
    """True if the last row is a training row without a total reward."""
    holdout_scores: list[float] = field(default_factory=list)
    """All held-out accuracies so far."""
    eval_rewards: dict[str, list[float]] = field(default_factory=dict)
    """All mean total rewards of TRL's own evaluations so far, by data set."""

    best_block: list[float] = field(default_factory=list)
    """Rewards of the best `RECENT_STEPS` steps, empty before they are complete."""
    best_row: int = 0
    """Number of the reward row at which the best block ended."""
    blocks: int = 0
    """Number of blocks so far, from which the best one was chosen."""
    gain_block: list[float] = field(default_factory=list)
    """Rewards of the block that last brought a gain. The first block counts as a gain, and so does
    each later block whose rewards are clearly higher than those of the gain block so far."""
    gain_length: float = 0.0
    """Median length of the completions of the gain block, 0 if it is not known."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one logged row."""
        numbers_of_row = read_numbers(row)
        metrics = {}
        self.unusable = {}
        for name, number in numbers_of_row.items():
            if abs(number) <= LARGEST_NUMBER:
                metrics[name] = number
            elif not name.endswith(("/std", "reward_std")):
                # The standard deviation of a single completion is NaN by definition.
                self.unusable[name] = number
        self.unusable_counts.update(self.unusable.keys())
        if "grad_norm" in metrics:
            # float16 skips single steps all through a run. Only skipped steps in a row are a fault.
            del self.unusable_counts["grad_norm"]

        if "step" in metrics:
            self.step = int(metrics["step"])
        elif "reward" in numbers_of_row:
            self.step += 1
            self.has_step_numbers = False
        self.max_steps = metrics.get("max_steps", self.max_steps)
        if "holdout/accuracy" in metrics:
            self.holdout_scores.append(metrics["holdout/accuracy"])
        if "eval_reward" in metrics:
            scores = self.eval_rewards.setdefault(eval_column(metrics), [])
            scores.append(metrics["eval_reward"])
        # An evaluation and the summary at the end have no reward. TRL writes None for a reward
        # that is NaN or None for every completion.
        is_training = not any(str(name).startswith(("eval_", "train_")) for name in row)
        self.is_reward_missing = is_training and "reward" not in numbers_of_row
        if "reward" in metrics:
            self._add_reward_row(metrics)

    def _add_reward_row(self, metrics: dict[str, float]) -> None:
        if self.reward_rows == 0:
            self.first_reward_step = self.step
        elif self.step > self.last_reward_step:
            gap = self.step - self.last_reward_step
            self.steps_between += gap
            self.gaps += 1
            self.longest_gap = max(self.longest_gap, gap)
        self.last_reward_step = self.step
        self.reward_rows += 1
        self._complete(metrics)

        if len(self.first_rows) < LONG_WINDOW:
            self.first_rows.append(metrics)
        self.last_rows.append(metrics)
        del self.last_rows[:-LONG_WINDOW]
        for name, value in metrics.items():
            self.lowest[name] = min(value, self.lowest.get(name, value))
            self.highest[name] = max(value, self.highest.get(name, value))
        if self.reward_rows % self.rows_in(RECENT_STEPS, MIN_ROWS_OF_TEST) == 0:
            self._add_block()

    def _add_block(self) -> None:
        block = self.last_values("reward", RECENT_STEPS, MIN_ROWS_OF_TEST)
        self.blocks += 1
        if not self.best_block or fmean(block) > fmean(self.best_block):
            self.best_block = block
            self.best_row = self.reward_rows
        if not self.gain_block or mann_whitney_z(self.gain_block, block) >= LIKELY_Z:
            lengths = self.last_values("completions/mean_length", RECENT_STEPS, MIN_ROWS_OF_TEST)
            self.gain_block = block
            self.gain_length = median(lengths) if lengths else 0.0

    def _complete(self, metrics: dict[str, float]) -> None:
        """Add metrics that follow from others, and remove those that were not measured."""
        if "frac_reward_zero_std" in metrics:
            metrics[SILENT_SHARE] = metrics["frac_reward_zero_std"]
        elif "reward_std" in metrics:
            # If the deviation is zero, of a group or of the batch, no group has reward variance.
            metrics[SILENT_SHARE] = float(abs(metrics["reward_std"]) <= ZERO_STD)
        if metrics.get(SILENT_SHARE) == 1:
            # Without reward variance every advantage is 0, so a gradient of 0 is right.
            metrics.pop("grad_norm", None)
        if "learning_rate" in metrics:
            metrics["learning_rate/zero"] = float(metrics["learning_rate"] <= ZERO_UPDATE)

        # With beta = 0 Unsloth logs a KL of 0 in every row. Before the first update the true KL is
        # 0, too, so a 0 is taken as a measurement only after another value.
        is_kl_off = self.settings is not None and self.settings.beta == 0
        is_kl_unknown = metrics.get("kl") == 0 and "kl" not in self.highest
        if is_kl_off or is_kl_unknown:
            metrics.pop("kl", None)

        limit = math.inf
        if self.settings is not None:
            limit = self.settings.max_completion_length
        elif metrics.get("completions/max_length") == self.highest.get("completions/max_length"):
            # The longest completion of two rows has the same length: that is the limit.
            limit = metrics.get("completions/max_length", math.inf)
        length = metrics.get("completions/mean_length", 0.0)
        is_truncated = length >= FULL_LENGTH_SHARE * limit
        metrics.setdefault("completions/clipped_ratio", float(is_truncated))

    @property
    def steps_per_row(self) -> float:
        """Mean number of steps that a reward row stands for."""
        return self.steps_between / self.gaps if self.gaps else 1.0

    @property
    def steps(self) -> int:
        """Number of steps that all reward rows stand for."""
        return math.ceil(self.steps_between + self.steps_per_row)

    @property
    def is_one_step_per_row(self) -> bool:
        """True if all metrics of a row are known to be those of the same step."""
        return self.has_step_numbers and self.steps_per_row == 1

    @property
    def rewards(self) -> list[str]:
        """Names of all rewards that were logged so far."""
        names = []
        for metric in self.highest:
            if metric.startswith("rewards/") and not metric.endswith("/std"):
                names.append(metric.removeprefix("rewards/"))
        return names

    def rows_in(self, steps: int, min_rows: int = MIN_ROWS_OF_ALERT) -> int:
        """Return how many rows stand for this many steps, but at least `min_rows`."""
        return max(min_rows, math.ceil(steps / self.steps_per_row))

    def steps_in_window(self, steps: int) -> int:
        """Return how many steps the rows of a window stand for: more than `steps` in few rows."""
        rows = min(self.reward_rows, self.rows_in(steps))
        return min(self.steps, round(rows * self.steps_per_row))

    def last_values(
        self, metric: str, steps: int = RECENT_STEPS, min_rows: int = MIN_ROWS_OF_ALERT
    ) -> list[float]:
        """Return the values of a metric in the last steps. Rows without the metric are skipped."""
        rows = self.last_rows[-self.rows_in(steps, min_rows) :]
        return [row[metric] for row in rows if metric in row]

    def first_values(
        self, metric: str, steps: int = RECENT_STEPS, min_rows: int = MIN_ROWS_OF_ALERT
    ) -> list[float]:
        """Return the values of a metric in the first steps.

        At most the first half of all rows is used, so that "the start" and "now" do not overlap.
        """
        rows = self.first_rows[: min(self.reward_rows // 2, self.rows_in(steps, min_rows))]
        return [row[metric] for row in rows if metric in row]

    def mean(self, metric: str, steps: int = RECENT_STEPS) -> float:
        """Return the mean of a metric over the last steps, NaN if too few rows have the metric.

        A comparison with NaN is False, so a threshold is never reached by a missing metric.
        """
        values = self.last_values(metric, steps)
        min_rows = self.rows_in(min(steps, SHORT_WINDOW))
        return fmean(values) if len(values) >= min_rows else math.nan
