"""What a baseline shows: totals, spread and lengths of sampled groups, the verdict in words, and how it displays itself.

The groups are the sampling units of every interval: completions of one prompt are too alike to count as independent.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb import baseline_view
from grpo_nb.baseline_advice import ENOUGH, Advice, advise
from grpo_nb.baseline_numbers import (
    GROUP_SAID,
    LEVEL,
    NO_SPREAD,
    Estimate,
    GroupKind,
    deviation_of,
    estimate,
    in_groups,
    kind_of,
    mean_of,
)
from grpo_nb.config import Settings
from grpo_nb.formats import AnswerFormat
from grpo_nb.scoring import Scores

if TYPE_CHECKING:
    import pandas

Verdict = Literal["signal", "weak signal", "no signal"]


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


@dataclass(frozen=True, kw_only=True)
class Group:
    """The completions of one prompt: where they lie in the sample, and whether GRPO could learn from them."""

    question: str
    answer: str
    totals: tuple[float, ...]
    kind: GroupKind
    """`all right` and `all wrong` are equal totals at that of a right answer in the format, or of an empty completion."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Groups sampled from a model before training, their scores, and what they show. Made by `baseline`."""

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
    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Lowest and highest possible score of the rewards that declare them; no interval reaches beyond."""
    seed: int = 0

    def __post_init__(self) -> None:
        count = len(self.questions) * self.num_generations
        sizes = {len(self.scores), len(self.tokens), len(self.is_cut), count}
        if (
            len(sizes) > 1
            or {len(self.answers), len(self.right), len(self.empty)} != {len(self.questions)}
            or not count
        ):
            raise ValueError(
                f"{len(self.questions)} groups of {self.num_generations} need {count} scores, lengths and marks, and one "
                f"answer and reference each; there are {len(self.scores)}, {len(self.tokens)} and {len(self.is_cut)}."
            )

    # What was measured.

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """Each group with its totals, and whether they differ."""
        totals, right, empty = (
            in_groups(self.scores.totals, self.num_generations),
            self.right.totals,
            self.empty.totals,
        )
        return tuple(
            Group(
                question=self.questions[i],
                answer=self.answers[i],
                totals=tuple(totals[i]),
                kind=kind_of(totals[i], right[i], empty[i]),
            )
            for i in range(len(totals))
        )

    @functools.cached_property
    def counts(self) -> dict[GroupKind, int]:
        """How many groups there are of each kind; they add up to the number of groups."""
        kinds: tuple[GroupKind, ...] = ("differs", "all right", "all wrong", "all equal", "no score")
        return {kind: sum(group.kind == kind for group in self.groups) for kind in kinds}

    @functools.cached_property
    def useful_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share of groups that differ."""
        from scipy.stats import binomtest

        found = binomtest(self.counts["differs"], len(self.groups)).proportion_ci(LEVEL, method="wilson")
        return float(found.low), float(found.high)

    @functools.cached_property
    def total(self) -> Estimate:
        """Mean weighted total."""
        bounds = None
        if set(self.scores.weights) <= set(self.ranges):
            ends = [sorted(w * end for end in self.ranges[name]) for name, w in self.scores.weights.items()]
            bounds = (sum(low for low, _ in ends), sum(high for _, high in ends))
        return estimate(in_groups(self.scores.totals, self.num_generations), bounds)

    @functools.cached_property
    def rewards(self) -> tuple[RewardSpread, ...]:
        """Each reward's mean, range and spread within groups."""
        return tuple(self._spread_of(name) for name in self.scores.values)

    def _spread_of(self, name: str) -> RewardSpread:
        values = self.scores.values[name]
        groups = in_groups(values, self.num_generations)
        known = [value for value in values if not math.isnan(value)]
        deviations = [deviation_of(group) for group in groups]
        return RewardSpread(
            name=name,
            weight=self.scores.weights[name],
            estimate=estimate(groups, self.ranges.get(name)),
            lowest=min(known, default=math.nan),
            highest=max(known, default=math.nan),
            spread=mean_of(deviations),
            groups_that_differ=sum(deviation > NO_SPREAD for deviation in deviations),
            right=mean_of(self.right.values[name]),
            empty=mean_of(self.empty.values[name]),
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
    def tagged(self) -> tuple[bool, ...]:
        """For each completion, whether any mark of the format stands in it."""
        return tuple(any(tag in text for tag in self.format.tags) for text in self.scores.completions)

    @functools.cached_property
    def lengths(self) -> dict[str, float]:
        """Quantiles of the length in tokens; a completion that was cut counts with the limit."""
        import numpy

        names = {"shortest": 0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "longest": 1}
        return {name: float(numpy.quantile(self.tokens, at)) for name, at in names.items()}

    def useful_share_of(self, size: int) -> float:
        """Return the share of groups that would have differed had each been a random `size` of its completions. Exact."""
        shares = []
        for group in in_groups(self.scores.totals, self.num_generations):
            levels: dict[float, int] = {}
            for value in group:
                key = round(value / NO_SPREAD) if not math.isnan(value) else math.nan
                levels[key] = levels.get(key, 0) + 1
            alike = sum(math.comb(count, size) for count in levels.values())
            shares.append(1 - alike / math.comb(len(group), size))
        return sum(shares) / len(shares)

    # What it means.

    @property
    def verdict(self) -> Verdict:
        """`no signal`: no group differs. `signal`: at least one group in four does at the interval's lower end. Else weak."""
        if self.counts["differs"] == 0:
            return "no signal"
        return "signal" if self.useful_interval[0] >= ENOUGH else "weak signal"

    @property
    def sentence(self) -> str:
        """The verdict in words; it speaks of what was sampled and of what the interval allows, no more."""
        counts, count = self.counts, len(self.groups)
        low, high = self.useful_interval
        rest = ", ".join(f"{n} {GROUP_SAID[kind]}" for kind, n in counts.items() if n and kind != "differs")
        number = f"{counts['differs']} of {count}" if counts["differs"] else f"none of {count}"
        text = (
            f"{self.verdict}: in {number} groups of {self.num_generations} the totals differ "
            f"(95 % interval {low:.0%} to {high:.0%} of groups){f'; {rest}' if rest else ''}. "
        )
        if self.verdict == "no signal":
            return text + "On these prompts GRPO would have nothing to learn from."
        silent = [r.name for r in self.rewards if r.weight and not r.groups_that_differ]
        if silent:
            text += f"No group differs in {' or '.join(silent)}: the differences come from the other rewards. "
        elif len(self.rewards) > 1:
            text += "By reward: " + ", ".join(f"{r.name} in {r.groups_that_differ}" for r in self.rewards) + ". "
        return text + (
            "There is something to learn from; what comes of it, training shows."
            if self.verdict == "signal"
            else "Some groups teach something, but the sample does not show that one in four does."
        )

    @functools.cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to change, with the numbers behind it and the line to write; the most important first."""
        return advise(self)

    # How it shows itself.

    def __repr__(self) -> str:
        return baseline_view.plain_text(self)

    def _repr_html_(self) -> str:
        return baseline_view.html_page(self)

    @property
    def table(self) -> pandas.DataFrame:
        """One row per completion: group, question, answer, completion, each reward, total, advantage, tokens, cut."""
        import pandas

        of_group = [i for i in range(len(self.groups)) for _ in range(self.num_generations)]
        before = [("group", of_group), ("question", [self.questions[i] for i in of_group])]
        before += [("answer", [self.answers[i] for i in of_group])]
        after = [
            ("advantage", self.scores.advantages(self.num_generations)),
            ("tokens", list(self.tokens)),
            ("is_cut", list(self.is_cut)),
        ]
        parts = [pandas.DataFrame(dict(columns)) for columns in (before, after)]
        return pandas.concat([parts[0], self.scores.table, parts[1]], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """The numbers and words, fit for JSON; what is not known is None."""
        return _plain(
            {
                "verdict": self.verdict,
                "sentence": self.sentence,
                "groups": len(self.groups),
                "num_generations": self.num_generations,
                "group_counts": self.counts,
                "differs_interval": list(self.useful_interval),
                "total": dataclasses.asdict(self.total),
                "rewards": [dataclasses.asdict(reward) for reward in self.rewards],
                "cut_share": self.cut_share,
                "slot_share": self.slot_share,
                "lengths": self.lengths,
                "advice": [dataclasses.asdict(advice) for advice in self.advice],
                "max_completion_length": self.settings.max_completion_length,
                "temperature": self.settings.temperature,
                "seed": self.seed,
            }
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
