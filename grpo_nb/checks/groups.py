"""Groups sampled before training, measured: totals, spread, lengths, each mean's interval, and whether they give a signal.

The groups are the sampling units of every interval: completions of one prompt are too alike to count as independent.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.judging import right_by
from grpo_nb.rewards.scores import Scores
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.formats import AnswerFormat

Verdict = Literal["signal", "weak signal", "form only", "no signal"]
GroupKind = Literal["differs", "all right", "all wrong", "all equal", "no score"]
GROUP_SAID: dict[GroupKind, str] = {
    "differs": "with different totals",
    "all right": "all right",
    "all wrong": "all wrong",
    "all equal": "all equal, in between",
    "no score": "without a score",
}

LEVEL = 0.95
ENOUGH = 0.25
"""Share of groups that must differ, at the interval's lower end, for "signal": at most four sampled for one that teaches."""
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

    Without bounds these are those of `likely_range`.

    Student's t over the group means, because with eight groups a percentile bootstrap covers the truth less often than it says.

    >>> estimate([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).mean
    0.5
    """
    import numpy
    import pandas
    from scipy import stats

    # One by one: the groups need not have the same size.
    means = pandas.Series([pandas.Series(group, dtype=float).mean() for group in groups], dtype=float).dropna()
    mean = float(means.mean())
    # An infinite score has a mean and no interval; groups all alike say nothing of how much others would differ.
    if len(means) < 2 or not numpy.isfinite(means).all() or numpy.ptp(means) <= NO_SPREAD:
        return Estimate(mean, None)
    interval = stats.t.interval(LEVEL, len(means) - 1, mean, stats.sem(means))
    low, high = numpy.clip(interval, *(bounds or likely_range(itertools.chain(*groups))))
    return Estimate(mean, (float(low), float(high)))


def likely_range(scores: Iterable[float]) -> tuple[float, float]:
    """From 0, where no score is less and one is 0, and to 1 likewise: most rewards pay 0 to 1 and do not say so."""
    known = [score for score in scores if not math.isnan(score)]
    return 0.0 if min(known, default=1) == 0 else -math.inf, 1.0 if max(known, default=0) == 1 else math.inf


def in_groups(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


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


@dataclass(frozen=True, kw_only=True)
class RewardSpread:
    """What one reward said of the sample."""

    name: str
    weight: float
    estimate: Estimate
    lowest: float
    highest: float
    """Over all completions; NaN where the reward gave None to all."""
    spread: float
    """Mean over the groups of the standard deviation within a group, unweighted."""
    groups_that_differ: int
    right: float
    empty: float
    """What it gives to a right answer in the format and to an empty completion, mean over the prompts; NaN for None."""

    @property
    def is_constant(self) -> bool:
        """The same score for every completion of the sample."""
        return self.highest - self.lowest <= NO_SPREAD


@dataclass(frozen=True)
class Group:
    """The completions of one prompt: where they lie in the sample, and whether GRPO could learn from them."""

    question: str
    answer: str
    totals: tuple[float, ...]
    kind: GroupKind
    """`all right` and `all wrong` are equal totals at that of a right answer in the format, or of an empty completion."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Groups sampled from a model before training, with their scores."""

    scores: Scores
    """Of all completions, the completions of a group next to each other."""
    num_generations: int
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    """Question and gold answer of each group."""
    tokens: tuple[int, ...]
    is_cut: tuple[bool, ...]
    """Length of each completion, and whether it ended at the limit without an end token."""
    right: Scores
    empty: Scores
    """For each group, what a right answer in the format gets, and an empty completion."""
    format: AnswerFormat
    settings: Settings
    task_name: str = "task"
    has_example: bool = False
    """The prompts hold an assistant turn that shows the format."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Lowest and highest possible score of the rewards that declare them; no interval reaches beyond."""
    seed: int = 0
    greedy: tuple[str, ...] = ()
    """The likeliest completion of each prompt, which is what held-out comparisons look at."""
    available: int = 0
    """How many training questions there are to draw from; 0 where that is not known."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """The data row of each group, where the judge needs more than the gold answer."""
    judge: Reward | None = None
    """The reward whose opinion says what is right; None where it is the gold answer as `correctness` reads it."""
    floor: tuple[str, float] | None = None
    """Of labels: the most frequent one of the task, and its share."""

    def __post_init__(self) -> None:
        groups = len(self.questions)
        count = groups * self.num_generations
        by_completion, by_group = (self.scores, self.tokens, self.is_cut), (self.answers, self.right, self.empty)
        if not count or {*map(len, by_completion)} != {count} or {*map(len, by_group)} != {groups}:
            raise ValueError(
                f"{groups} groups of {self.num_generations} need {count} scores, lengths and marks, and one "
                f"answer and reference each; there are {len(self.scores)}, {len(self.tokens)} and {len(self.is_cut)}."
            )

    # What was measured.

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """Each group with its totals, and whether they differ."""
        totals = in_groups(self.scores.totals, self.num_generations)
        kinds = map(kind_of, totals, self.right.totals, self.empty.totals)
        return tuple(map(Group, self.questions, self.answers, map(tuple, totals), kinds))

    @functools.cached_property
    def counts(self) -> dict[GroupKind, int]:
        """How many groups there are of each kind; they add up to the number of groups."""
        return {kind: sum(group.kind == kind for group in self.groups) for kind in GROUP_SAID}

    @functools.cached_property
    def useful_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share of groups that differ."""
        from scipy.stats import binomtest

        found = binomtest(self.counts["differs"], len(self.groups)).proportion_ci(LEVEL, method="wilson")
        return float(found.low), float(found.high)

    @functools.cached_property
    def total(self) -> Estimate:
        """Mean weighted total."""
        values, weights = self.scores.values, self.scores.weights.items()
        ranges = {name: self.ranges.get(name) or likely_range(values[name]) for name, weight in weights if weight}
        ends = [sorted(weight * end for end in ranges[name]) for name, weight in weights if weight]
        bounds = (sum(low for low, _ in ends), sum(high for _, high in ends))
        return estimate(in_groups(self.scores.totals, self.num_generations), bounds)

    @functools.cached_property
    def rewards(self) -> tuple[RewardSpread, ...]:
        """Each reward's mean, range and spread within groups."""
        return tuple(self._spread_of(name) for name in self.scores.values)

    def _spread_of(self, name: str) -> RewardSpread:
        import pandas

        values = pandas.Series(self.scores.values[name])
        # With Bessel's correction, as TRL takes it; 0 where fewer than two scores of a group are known.
        deviations = values.groupby(values.index // self.num_generations).std().fillna(0.0)
        return RewardSpread(
            name=name,
            weight=self.scores.weights[name],
            estimate=estimate(in_groups(self.scores.values[name], self.num_generations), self.ranges.get(name)),
            lowest=values.min(),
            highest=values.max(),
            spread=deviations.mean(),
            groups_that_differ=int((deviations > NO_SPREAD).sum()),
            right=pandas.Series(self.right.values[name]).mean(),
            empty=pandas.Series(self.empty.values[name]).mean(),
        )

    @property
    def cut_share(self) -> float:
        """Share of completions that reached the length limit without an end."""
        return sum(self.is_cut) / len(self.is_cut)

    @functools.cached_property
    def slot_share(self) -> float:
        """Share of completions with one answer slot that can be read: without it no reward for answers pays."""
        return sum(self.format.extract(text) is not None for text in self.scores.completions) / len(self.scores)

    @functools.cached_property
    def right_shares(self) -> tuple[float, float]:
        """Share of right answers among the sampled completions, and among the likeliest one of each prompt (NaN: not asked)."""
        shares = []
        for texts in (self.scores.completions, self.greedy):
            rows = self.rows or [{"answer": gold} for gold in self.answers]
            repeated = [row for row in rows for _ in range(len(texts) // len(rows))]
            right = right_by(self.judge, texts, repeated, self.format)
            shares.append(sum(right) / len(right) if right else math.nan)
        return shares[0], shares[1]

    @functools.cached_property
    def tagged(self) -> tuple[bool, ...]:
        """For each completion, whether any mark of the format stands in it."""
        return tuple(any(tag in text for tag in self.format.tags) for text in self.scores.completions)

    @functools.cached_property
    def lengths(self) -> dict[str, float]:
        """Quantiles of the length in tokens; a completion that was cut counts with the limit."""
        import numpy

        names = ("shortest", "10 %", "median", "90 %", "longest")
        return dict(zip(names, map(float, numpy.quantile(self.tokens, (0, 0.1, 0.5, 0.9, 1))), strict=True))

    def useful_share_of(self, size: int) -> float:
        """Return the share of groups that would have differed had each been a random `size` of its completions. Exact."""
        shares = []
        for group in in_groups(self.scores.totals, self.num_generations):
            levels = collections.Counter(math.nan if math.isnan(value) else round(value / NO_SPREAD) for value in group)
            alike = sum(math.comb(count, size) for count in levels.values())
            shares.append(1 - alike / math.comb(len(group), size))
        return sum(shares) / len(shares)

    @functools.cached_property
    def unearned(self) -> tuple[str, ...]:
        """The rewards with a weight that gave the same to the whole sample, and give more to a right answer."""
        return tuple(r.name for r in self.rewards if r.weight and r.is_constant and r.right > r.highest + NO_SPREAD)

    @property
    def verdict(self) -> Verdict:
        """`no signal`: no group differs. `signal`: at least one group in four does at the interval's lower end. Else weak.

        `form only`: it would be a signal, but no answer is right and the rewards for answers gave the same to all.
        """
        if self.counts["differs"] == 0:
            return "no signal"
        if self.useful_interval[0] < ENOUGH:
            return "weak signal"
        return "form only" if self.unearned and self.right_shares[0] == 0 else "signal"
