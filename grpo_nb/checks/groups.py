"""Measure in how many groups of sampled completions the totals differ, and why not in others.

A group is the completions of one prompt. Its completions are too alike to count as independent, so
groups, not completions, are the units of every interval.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from grpo_nb.config.settings import Settings
from grpo_nb.core.statistics import share_interval, t_interval
from grpo_nb.scoring.correct_answers import FunctionGrader, Grader, are_correct
from grpo_nb.scoring.scores import Scores
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    import pandas

NO_SPREAD = 1e-6
"""Scores closer than this are equal.

TRL divides by the standard deviation plus 1e-4, so nothing is left of a smaller difference.
"""

GroupKind = Literal["differs", "all right", "all wrong", "all equal"]
"""`differs`: the totals of the group differ, so it has a learning signal.

`all right`: every total equals that of a right answer. `all wrong`: that of an empty completion.
`all equal`: all totals are equal, and neither of these.
"""


@dataclass(frozen=True)
class Estimate:
    """A mean over groups with its 95 % interval."""

    mean: float
    interval: tuple[float, float] | None
    """None with fewer than two groups, or if all groups have the same mean."""

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f})"


def estimate(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean over groups and its 95 % t interval. NaN scores are left out.

    With eight groups, a percentile bootstrap contains the true mean less often than it promises, so
    Student's t over the group means is used.

    Args:
        groups: Scores of each group. The groups may have different sizes.

    >>> estimate([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).mean
    0.5
    """
    import numpy
    import pandas

    group_means = [pandas.Series(group, dtype=float).mean() for group in groups]
    means = pandas.Series(group_means, dtype=float).dropna()
    mean = float(means.mean())
    # An infinite score has no interval, and equal groups do not show how much others would differ.
    if len(means) < 2 or not numpy.isfinite(means).all() or numpy.ptp(means) <= NO_SPREAD:
        return Estimate(mean, None)
    low, high = numpy.clip(t_interval(means), *likely_range(itertools.chain(*groups)))
    return Estimate(mean, (float(low), float(high)))


def likely_range(scores: Iterable[float]) -> tuple[float, float]:
    """Return the bounds to which an interval is clipped: 0 and 1 if these are the extreme scores.

    Other bounds are infinite. Most rewards give scores from 0 to 1 and do not declare it.
    """
    known = [score for score in scores if not math.isnan(score)]
    low = 0.0 if min(known, default=1) == 0 else -math.inf
    high = 1.0 if max(known, default=0) == 1 else math.inf
    return low, high


def in_groups(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Split values into groups of `size`, in order."""
    return [values[start : start + size] for start in range(0, len(values), size)]


@dataclass(frozen=True, kw_only=True, repr=False)
class SampledGroups:
    """Groups of completions with their scores, and the numbers that follow from them."""

    scores: Scores
    """Scores of all completions, group after group."""
    num_generations: int
    rows: tuple[Mapping[str, Any], ...]
    """Data row of each group."""
    tokens: tuple[int, ...]
    """Length of each completion in tokens."""
    is_truncated: tuple[bool, ...]
    """True for each completion that reached the length limit without an end token."""
    right: Scores
    """For each group, the scores of a right answer in the format."""
    empty: Scores
    """For each group, the scores of an empty completion."""
    format: AnswerFormat
    settings: Settings
    judge: Grader
    """The reward that decides whether an answer is correct."""
    greedy: tuple[str, ...] = ()
    """Greedy completion of each prompt. Held-out comparisons judge greedy completions."""
    greedy_scores: tuple[float, ...] = ()
    """Scores of `greedy` by the judge if that is a function; NaN for None."""
    floor: tuple[str, float] | None = None
    """Most frequent answer of the task and its share, if the answers are labels."""

    @functools.cached_property
    def groups(self) -> tuple[GroupKind, ...]:
        """Kind of each group."""
        totals = in_groups(self.scores.totals, self.num_generations)
        return tuple(map(_kind_of_group, totals, self.right.totals, self.empty.totals))

    @functools.cached_property
    def counts(self) -> dict[GroupKind, int]:
        """Number of groups of each kind."""
        return {kind: self.groups.count(kind) for kind in get_args(GroupKind)}

    @functools.cached_property
    def useful_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share of groups whose totals differ."""
        return share_interval([float(kind == "differs") for kind in self.groups])

    @functools.cached_property
    def by_reward(self) -> pandas.DataFrame:
        """One row per reward, NaN for None.

        Columns: weight, mean with its 95 % interval over groups, lowest and highest score, mean
        spread within a group, number of groups that differ, and the mean scores of a right answer
        in the format and of an empty completion.
        """
        import pandas

        scores = pandas.DataFrame(self.scores.values, dtype=float)
        # With Bessel's correction, as in TRL; 0 if fewer than two scores of a group are known.
        deviations = scores.groupby(scores.index // self.num_generations).std().fillna(0.0)
        means = {}
        for name, values in self.scores.values.items():
            means[name] = estimate(in_groups(values, self.num_generations))
        columns = {
            "weight": pandas.Series(self.scores.weights, dtype=float),
            "mean": pandas.Series(means),
            "lowest": scores.min(),
            "highest": scores.max(),
            "spread": deviations.mean(),
            "groups": (deviations > NO_SPREAD).sum(),
            "right": pandas.DataFrame(self.right.values, dtype=float).mean(),
            "empty": pandas.DataFrame(self.empty.values, dtype=float).mean(),
        }
        return pandas.DataFrame(columns).loc[list(means)]

    @functools.cached_property
    def right_shares(self) -> tuple[float, float]:
        """Share of correct answers among the sampled and among the greedy completions.

        NaN for greedy completions that were not asked for.
        """
        sampled_scores = None
        greedy_scores = None
        if isinstance(self.judge, FunctionGrader):  # its scores are known, do not call it again
            sampled_scores = self.scores.values[self.judge.name]
            greedy_scores = self.greedy_scores
        sampled = self._right_share(self.scores.completions, sampled_scores)
        return sampled, self._right_share(self.greedy, greedy_scores)

    def _right_share(self, texts: Sequence[str], scores: Sequence[float] | None) -> float:
        per_row = len(texts) // len(self.rows)
        repeated = [row for row in self.rows for _ in range(per_row)]
        is_right = are_correct(self.judge, texts, repeated, self.format, scores=scores)
        return sum(is_right) / len(is_right) if is_right else math.nan

    @functools.cached_property
    def slot_share(self) -> float:
        """Share of completions with a readable answer. Rewards for answers read nothing else."""
        has_slot = [self.format.extract(text) is not None for text in self.scores.completions]
        return sum(has_slot) / len(has_slot)

    @property
    def has_example(self) -> bool:
        """True if the prompts contain an assistant turn that shows the format."""
        opening = self.format.answer_open.strip()
        turns = self.rows[0]["prompt"]
        return any(turn["role"] == "assistant" and opening in turn["content"] for turn in turns)

    @property
    def unearned_rewards(self) -> list[str]:
        """Names of rewards with the same score everywhere, which would score a right answer higher.

        Rewards without a weight do not count.
        """
        table = self.by_reward
        is_flat = ~(table["highest"] - table["lowest"] > NO_SPREAD)
        is_unearned = is_flat & (table["right"] > table["highest"] + NO_SPREAD)
        return list(table.index[is_unearned & (table["weight"] != 0)])


def _kind_of_group(totals: Sequence[float], right: float, empty: float) -> GroupKind:
    known = [total for total in totals if not math.isnan(total)]
    if len(known) > 1 and max(known) - min(known) > NO_SPREAD:
        return "differs"
    # Rewards that score a right answer like an empty one, such as those that run code, cannot tell
    # what is right.
    if not known or not right > empty + NO_SPREAD:
        return "all equal"
    if known[0] >= right - NO_SPREAD:
        return "all right"
    return "all wrong" if known[0] <= empty + NO_SPREAD else "all equal"
