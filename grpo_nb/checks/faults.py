"""Find the faults of each reward, and of the weighted total of all.

Scores are compared with right and wrong answers of the same row. The *relative score* of a probe is
0 if it scores like the best wrong answer, and 1 if it scores like the right answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.checks.probes import REPETITIONS, RIGHT_ANSWER_REFUSED, THINK_FIRST, Layout, Probe
from grpo_nb.checks.report import KINDS, WHOLE_SET, Finding, make_finding
from grpo_nb.checks.roles import (
    FOLLOWS_ANSWER,
    FOLLOWS_FORMAT,
    FOLLOWS_NEITHER,
    Role,
    best_scores,
    in_layout_or_prose,
    is_answer_dependent,
    is_length_dependent,
    tolerance_of,
)
from grpo_nb.core.words import short_repr

if TYPE_CHECKING:
    import pandas

REWARDED_ABOVE = 0.45
"""A probe counts as rewarded above this relative score.

Half of the score is enough for a loophole. Smaller scores may be shaping.
"""

NEAR_MISS_REWARDED_ABOVE = 0.9
"""The same limit for a near miss. It is higher, because partial credit may be intended."""

DECIMALS = 6
"""Scores of a constant reward may differ after this many decimals, because sums are rounded."""


@dataclass(frozen=True, eq=False)
class TriedReward:
    """A reward with the scores of all its probes."""

    name: str
    role: Role
    scored_probes: pandas.DataFrame
    """A table of `ProbeRunner.table`, with the column `relative_score`.

    The column is NaN on rows on which the right answer scores no higher than its reference, because
    nothing can be compared there.
    """
    has_gold_parameter: bool
    """True if the gold column is a parameter of the reward, or right is defined by a function."""

    @property
    def in_layout(self) -> pandas.DataFrame:
        """The probes in the layout that the reward reads."""
        return self.scored_probes[self.scored_probes["layout"] == self.role.layout.name]

    def of_category(self, category: str) -> pandas.DataFrame:
        """Return the probes of a category in the layout that the reward reads."""
        return self.in_layout[self.in_layout["category"] == category]


def with_relative_scores(scored_probes: pandas.DataFrame, role: Role) -> pandas.DataFrame:
    """Return the probes with the column `relative_score`."""
    # Compare within a row, because a right answer may score higher on one row than on another.
    reference = scored_probes["row_index"].map(role.margins["reference"])
    gain = scored_probes["row_index"].map(role.margins["gain"])
    # A missing score adds 0 to TRL's sum, but never counts as better than the reference.
    score = scored_probes["score"].fillna(reference.clip(upper=0.0))
    return scored_probes.assign(relative_score=(score - reference) / gain)


def find_constant(reward: TriedReward) -> Iterable[Finding]:
    """Report a reward that gives all completions of a row the same score."""
    # Prose is included, because a format reward tells it from the layout, though it scores all
    # answers in the layout alike.
    tried = in_layout_or_prose(reward.scored_probes, reward.role.layout)
    rounded = tried["score"].round(DECIMALS)
    # Scores are compared within a row, because GRPO compares the completions of one prompt.
    score_counts = rounded.groupby(tried["row_index"]).nunique(dropna=False)
    if score_counts.max() == 1:
        observation = "right, wrong and nonsensical completions of a row all score the same"
        yield make_finding("constant", reward.name, observation)


def find_lost_rows(reward: TriedReward) -> Iterable[Finding]:
    """Report rows on which a wrong answer scores as high as the gold answer."""
    if reward.role.name != FOLLOWS_ANSWER:
        return
    compared = best_scores(reward.scored_probes, reward.role.layout)
    lost_rows = compared.index.difference(reward.role.margins.index)
    rights = reward.of_category("right")
    lost = rights[rights["row_index"].isin(lost_rows)]
    if len(lost):
        golds = short_repr(list(lost["variant"].unique()))
        observation = (
            f"on {len(lost)} of {len(rights)} rows the gold answer scores no higher than a wrong "
            f"one: {golds}"
        )
        yield make_finding(
            "right answer refused on some rows", reward.name, observation, lost["text"]
        )


def find_other_layout(reward: TriedReward, prompt_layout: Layout) -> Iterable[Finding]:
    """Report a reward that does not read the prompt's own layout."""
    layout = reward.role.layout
    # If the prompt asks for no reasoning tags, a reward that reads the text after </think> fits it.
    fits_prompt = layout.is_own and layout.name in (prompt_layout.name, THINK_FIRST)
    if not fits_prompt and reward.role.name != FOLLOWS_NEITHER:
        observation = (
            f"right answers are rewarded if written like this: {layout.name}; not if written like "
            f"this: {prompt_layout.name}"
        )
        rewarded = reward.of_category("right").dropna(subset="relative_score")
        yield make_finding("another format", reward.name, observation, rewarded["text"])


def find_unexpected_scores(reward: TriedReward) -> Iterable[Finding]:
    """Report each kind of probe that is rewarded but should not be, or the reverse."""
    # Without a relative score, a score has nothing to be compared with.
    comparable = reward.in_layout.dropna(subset="relative_score")
    # The category of a probe names the kind of the finding about it.
    for category, of_category in comparable.groupby("category", sort=False):
        must_score = category == RIGHT_ANSWER_REFUSED
        # A format reward may reward any answer in perfect format.
        is_graded = must_score or reward.role.name == FOLLOWS_ANSWER
        if category not in KINDS or not is_graded:
            continue
        threshold = NEAR_MISS_REWARDED_ABOVE if category == "near miss" else REWARDED_ABOVE
        is_rewarded = of_category["relative_score"] > threshold
        unexpected = of_category[is_rewarded != must_score]
        if len(unexpected):
            problem = "score like a right answer"
            if must_score:
                problem = "score too low, though right and in the format"
            observation = (
                f"{len(unexpected)} of {len(of_category)} such completions {problem}: "
                f"{', '.join(unexpected['variant'].unique())}"
            )
            yield make_finding(category, reward.name, observation, unexpected["text"])


def find_endless_growth(reward: TriedReward) -> Iterable[Finding]:
    """Report a score that rises with every repetition, above that of plain right answers."""
    tolerance = tolerance_of(reward.scored_probes)
    # A bonus does no harm as long as no long text scores above a short right answer.
    best_plain = reward.of_category("right")["score"].max()
    examples = {}
    for variant, of_variant in reward.of_category("growth").groupby("variant", sort=False):
        scores = of_variant["score"]
        # If some lengths have no score, the score may still reach a maximum there.
        is_complete = scores.count() == len(REPETITIONS)
        if (
            is_complete
            and scores.diff().min() > tolerance
            and scores.max() > best_plain + tolerance
        ):
            examples[variant] = of_variant["text"].iloc[0]
    if examples:
        observation = (
            f"repeating the same text still raises the score at {REPETITIONS[-1]} repetitions: "
            f"{', '.join(examples)}"
        )
        yield make_finding("repetition is rewarded", reward.name, observation, examples.values())


# ---- The weighted total ----


def find_faults_of_total(
    rewards: Sequence[TriedReward], weights: Mapping[str, float]
) -> list[Finding] | None:
    """Report a total in which the format outweighs the answer, or the answer adds nothing.

    For example, prose has a total of 0, a wrong answer in perfect format 1.5, and a right one 2.
    The format adds 1.5 and the answer 0.5, so the format outweighs the answer.

    Args:
        rewards: The rewards with their scores.
        weights: Weight of each reward, by name.

    Returns:
        The findings, or None if no total is known.
    """
    # The total is compared in the layout that the first reward for answers reads.
    layouts = [reward.role.layout for reward in rewards if reward.role.name == FOLLOWS_ANSWER]
    if not layouts:
        return _find_total_without_answers(rewards)
    totals = best_scores(_total_scores(rewards, weights), layouts[0])
    if totals.empty:
        return None  # A slow reward was not tried in this layout.
    answer_gains = totals["right"] - totals["wrong"]
    # Rows on which the answer changes nothing have a finding of their own (`find_lost_rows`).
    answer_gain = answer_gains[answer_gains != 0].mean()
    # It is NaN if the answer changes nothing on any row.
    if not answer_gain > 0:
        return _find_total_without_answers(rewards)
    format_gain = (totals["wrong"] - totals["prose"]).mean()
    if format_gain > answer_gain:
        observation = f"perfect format adds {format_gain:.3g}, the right answer {answer_gain:.3g}"
        return [make_finding("format outweighs the answer", WHOLE_SET, observation)]
    return []


def _total_scores(rewards: Sequence[TriedReward], weights: Mapping[str, float]) -> pandas.DataFrame:
    """Return the probes that all rewards were tried with, and the total as their `score`.

    A NaN score is left out of the sum, as in TRL.
    """
    import pandas

    weighted_scores = [
        weights[reward.name] * reward.scored_probes.set_index(list(Probe._fields))["score"]
        for reward in rewards
    ]
    # Each reward was tried in the layout that it reads, so only some probes are common to all.
    table = pandas.concat(weighted_scores, axis=1, join="inner")
    totals = table.sum(axis=1, min_count=1)
    return totals.rename("score").reset_index()


def _find_total_without_answers(rewards: Sequence[TriedReward]) -> list[Finding]:
    """Report a total that does not follow right answers.

    A lone reward for format, length or wording has no finding, because it is probably part of a
    larger set.
    """
    first = rewards[0]
    is_part_of_set = len(rewards) == 1 and not is_answer_dependent(first.scored_probes)
    # A reward for format or length may have a parameter `answer` that it does not use, so
    # `has_gold_parameter` does not count for it.
    is_for_format = first.role.name == FOLLOWS_FORMAT or is_length_dependent(first.scored_probes)
    if is_part_of_set and (is_for_format or not first.has_gold_parameter):
        return []
    observation = (
        "the gold answer has no higher total than a wrong answer in the same words and format"
    )
    return [make_finding("nothing tells right from wrong", WHOLE_SET, observation)]
