"""Find the faults of each reward, and of the weighted total of all.

`find_faults` reports the probes that one reward does not score as expected. Scores are compared
with right and wrong answers of the same row. A probe's *share* is 0 if it scores like the best
wrong answer, and 1 if it scores like the right answer. `check_total` reports a total, which is all
that GRPO learns from, that does not follow right answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.checks.probes import DO_NOT_KNOW, SLOT_ONLY, THINK_FIRST, Layout, Probe
from grpo_nb.checks.report import WHOLE_SET, Finding, make_finding
from grpo_nb.checks.roles import (
    ANSWER,
    FORMAT,
    OTHER,
    Role,
    best_scores,
    is_answer_dependent,
    is_length_dependent,
    is_phrase_dependent,
    tolerance_of,
)
from grpo_nb.checks.rows import CheckRows
from grpo_nb.core.words import in_line

if TYPE_CHECKING:
    import pandas

REWARDED_SHARE = 0.5
"""A probe counts as rewarded above this share.

Half way, so that shaping and partial credit do not look like loopholes.
"""

REWARDED_SHARE_OF_NEAR_MISS = 0.9
"""A near miss may earn partial credit, but not nearly the whole score."""

PART_CREDIT_MARGIN = 0.1
"""Share that naming the answer outside the slot may earn above an empty or almost right answer."""

NOT_NAMING_ANSWER = [
    "missing answer is rewarded",
    "length is rewarded",
    "near miss",
    "a phrase is rewarded",
]
"""Kinds of probes that do not name the gold answer, so their share is not earned by naming it."""

STILL_RISING = 0.2
"""A score rises without end if its last step is more than this part of its whole rise.

With repetitions 1, 4, 16 and 64, a score with a maximum gains less than that in the last step.
"""


@dataclass(frozen=True, eq=False)
class TriedReward:
    """A reward with the scores of all its probes."""

    name: str
    role: Role
    probes: pandas.DataFrame
    """A table of `ProbeRunner.table`, with two more columns.

    `share`: NaN where the right answer scores no higher than its baseline, so that nothing can be
    compared. `is_rewarded`: whether the probe scores like a right, or a well-formed, completion.
    """
    columns: tuple[str, ...] = ()
    """Data columns that the reward reads, besides the question."""

    def of_kind(self, kind: str) -> pandas.DataFrame:
        """Return the probes of a kind in the layout that the reward reads."""
        is_read = self.probes["layout"] == self.role.layout.name
        return self.probes[is_read & (self.probes["kind"] == kind)]

    def finding(self, kind: str, what: str, probes: pandas.DataFrame) -> Finding:
        """Return a finding about this reward, with the shortest of the probes as example."""
        return make_finding(kind, self.name, what, list(probes["text"]))


def with_shares(probes: pandas.DataFrame, role: Role) -> pandas.DataFrame:
    """Return the probes with the columns `share` and `is_rewarded`."""
    baseline = probes["row"].map(role.margins["baseline"])
    gain = probes["row"].map(role.margins["gain"])
    share = (probes["score"] - baseline) / gain
    is_near_miss = probes["kind"] == "near miss"
    limit = is_near_miss.map({True: REWARDED_SHARE_OF_NEAR_MISS, False: REWARDED_SHARE})
    return probes.assign(share=share, is_rewarded=share > limit)


def find_faults(reward: TriedReward, layouts: Sequence[Layout]) -> list[Finding]:
    """Return one finding for each kind of fault, with the shortest completion that shows it."""
    return [
        *_find_constant(reward),
        *_find_lost_rows(reward),
        *_find_other_layout(reward, layouts),
        *_find_unexpected_scores(reward),
        *_find_part_credit(reward),
        *_find_endless_growth(reward),
    ]


def _find_constant(reward: TriedReward) -> Iterable[Finding]:
    """Report a reward that gives all completions of a row the same score."""
    probes = reward.probes[reward.probes["layout"].isin(["", reward.role.layout.name])]
    if probes.groupby("row")["score"].nunique(dropna=False).max() == 1:
        known = reward.probes["score"].dropna()
        score = f"{known.iloc[0]:g}" if len(known) else "None"
        what = f"right, wrong and nonsensical completions of a row all score the same ({score})"
        yield reward.finding("constant", what, probes[:0])


def _find_lost_rows(reward: TriedReward) -> Iterable[Finding]:
    """Report rows on which a wrong answer scores as high as the gold answer."""
    rights = reward.of_kind("right")
    scored = rights.dropna(subset="score")
    lost = scored[scored["share"].isna()]
    if len(lost) and reward.role.name == ANSWER:
        golds = in_line(list(lost["variant"].unique()))
        what = (
            f"on {len(lost)} of {len(rights)} rows the gold answer scores no higher than a wrong "
            f"one: {golds}"
        )
        yield reward.finding("not on every row", what, lost)


def _find_other_layout(reward: TriedReward, layouts: Sequence[Layout]) -> Iterable[Finding]:
    """Report a reward that refuses right answers written as the prompt shows it."""
    rights = reward.probes[reward.probes["kind"] == "right"].dropna(subset="score")
    rewarded = rights[rights["is_rewarded"]]
    shown = layouts[0]
    read = reward.role.layout.name
    # If the prompt asks for no reasoning tags, a reward that reads the text after </think> fits it.
    may_think_first = read == THINK_FIRST and not shown.has_reasoning
    is_refused = shown.name in {*rights["layout"]} - {*rewarded["layout"]}
    if is_refused and not may_think_first and reward.role.name != OTHER:
        what = (
            f"right answers are rewarded if written like this: {read}; not if written like this: "
            f"{shown.name}"
        )
        yield reward.finding("another format", what, rewarded[rewarded["layout"] == read])


def _find_unexpected_scores(reward: TriedReward) -> Iterable[Finding]:
    """Report each kind of probe that is rewarded and should not be, or the other way round."""
    for kind, probes in _comparable_probes(reward).groupby("kind", sort=False):
        is_right = probes["expected"].iloc[0] == "reward"
        unexpected = probes[probes["is_rewarded"] != is_right]
        if len(unexpected):
            seen = "rewarded like a right answer"
            if is_right:
                seen = "refused, though right and in the format"
            what = f"{seen}: {_variants(unexpected)} ({len(unexpected)} of {len(probes)} tries)"
            yield reward.finding(kind, what, unexpected)


def _find_part_credit(reward: TriedReward) -> Iterable[Finding]:
    """Report a share for naming the answer that empty, long and near answers do not earn."""
    probes = _comparable_probes(reward)
    refused = probes[(probes["expected"] == "refuse") & ~probes["is_rewarded"]]
    names_answer = ~refused["kind"].isin(NOT_NAMING_ANSWER)
    largest_allowed = max(0.0, refused[~names_answer]["share"].max()) + PART_CREDIT_MARGIN
    parts = refused[names_answer & (refused["share"] > largest_allowed)]
    is_length_rewarded = reward.of_kind("length is rewarded")["is_rewarded"].any()
    if len(parts) and not is_length_rewarded:
        largest = parts["share"].max()
        what = f"up to {largest:.0%} of what a right answer adds, for: {_variants(parts)}"
        yield reward.finding("part credit", what, parts)


def _find_endless_growth(reward: TriedReward) -> Iterable[Finding]:
    """Report a score that rises with every repetition, above that of the plain right answer."""
    import pandas

    rights = reward.of_kind("right").set_index("row")["score"]
    tolerance = tolerance_of(reward.probes)
    growing = []
    examples = []
    for variant, probes in reward.of_kind("repetition is rewarded").groupby("variant", sort=False):
        scores = probes["score"]
        first, last = scores.iloc[[0, -1]]
        is_above_plain = last > rights.get(probes["row"].iloc[0], math.nan) + tolerance
        if is_above_plain and _rises_without_end(scores, tolerance):
            growing.append(f"{variant}: {first:.3g} to {last:.3g}")
            examples.append(probes[:1])
    if growing:
        what = f"repeating the same text raises the score without end ({', '.join(growing)})"
        yield reward.finding("repetition is rewarded", what, pandas.concat(examples))


def _rises_without_end(scores: pandas.Series, tolerance: float) -> bool:
    """Return whether scores rise at each step and have not flattened at the last one."""
    rises = scores.diff().iloc[1:]
    is_steady = rises.min() > tolerance  # false if a slow reward was tried with one length only
    return is_steady and rises.iloc[-1] > STILL_RISING * rises.sum()


def _comparable_probes(reward: TriedReward) -> pandas.DataFrame:
    """Return the probes with an expectation, in the layout read, on rows with a margin."""
    expectations = ["reward", "refuse"]
    if reward.role.name != ANSWER:
        # A format reward may reward a cheat in perfect format: the answer is not its business.
        expectations.remove("refuse")
        # The harmless changes also change the length, so they show nothing about the format.
        if is_length_dependent(reward.probes):
            expectations.remove("reward")
    is_read = reward.probes["layout"] == reward.role.layout.name
    is_expected = reward.probes["expected"].isin(expectations)
    return reward.probes[is_read & is_expected].dropna(subset="share")


def _variants(probes: pandas.DataFrame) -> str:
    """Return how the probes differ from a plain right answer."""
    return ", ".join(probes["variant"].unique())


# ---- The weighted total ----

Weights = Mapping[str, float]
"""Weight of each reward, by name."""


def check_total(rewards: Sequence[TriedReward], weights: Weights, rows: CheckRows) -> list[Finding]:
    """Report a total that does not follow right answers, or follows the format more."""
    answer_rewards = [
        reward
        for reward in rewards
        if reward.role.name == ANSWER and reward.role.layout.is_own and weights[reward.name] != 0
    ]
    if not answer_rewards:
        return [_explain_total(rewards, rows)]
    layout = answer_rewards[0].role.layout.name
    margin_rows = sorted(set().union(*(reward.role.margins.index for reward in answer_rewards)))
    best = best_scores(_total_scores(rewards, weights)).loc[layout].reindex(margin_rows)
    # TRL adds up missing scores as 0.
    is_right_best = best["right"] > best["wrong"].fillna(0.0)
    if is_right_best.mean() <= 0.5:
        return [_explain_total(rewards, rows)]
    others = [reward for reward in rewards if reward not in answer_rewards]
    return _find_heavy_format(answer_rewards, others, weights, margin_rows)


def _total_scores(rewards: Sequence[TriedReward], weights: Weights) -> pandas.DataFrame:
    """Return the probes that all rewards were tried with, and the total as their `score`.

    A NaN score is left out of the sum, as in TRL.
    """
    import pandas

    parts = []
    for reward in rewards:
        scores = reward.probes.set_index(list(Probe._fields))["score"]
        parts.append(weights[reward.name] * scores)
    table = pandas.concat(parts, axis=1, join="inner")
    return table.sum(axis=1, min_count=1).rename("score").reset_index()


def _explain_total(rewards: Sequence[TriedReward], rows: CheckRows) -> Finding:
    """Return the finding about a total that does not follow right answers.

    It is not critical if no reward depends on the answer, and the total may be meant so:

    - The rewards read other columns of the row, which may define right answers.
    - The only reward follows the format, length or wording, or reads no column at all.
    """
    is_lone = len(rewards) == 1
    columns = {
        column for reward in rewards if reward.role.name == OTHER for column in reward.columns
    }
    other_columns = sorted(columns - {"answer", rows.gold_column})
    reads_others = bool(other_columns) and not rows.is_answer_function
    if not any(is_answer_dependent(reward.probes) for reward in rewards):
        if is_lone and not reads_others and _is_for_form(rewards[0]):
            what = "the only reward follows the format, length or wording, whatever the answer"
            return make_finding("no reward for answers", WHOLE_SET, what)
        if reads_others or (is_lone and not columns):
            read = ", ".join(other_columns) or "no column"
            what = f"no gold answer scores higher than a wrong one, and the rewards read {read}"
            return make_finding("right answer unknown", WHOLE_SET, what)
    suspects = [reward.name for reward in rewards if reward.role.name != ANSWER]
    look_at = ", ".join(suspects) or "the weights and their signs"
    what = (
        "the gold answer has no higher total than a wrong answer in the same words and format; "
        f"look first at {look_at}"
    )
    return make_finding("nothing tells right from wrong", WHOLE_SET, what)


def _is_for_form(reward: TriedReward) -> bool:
    """Return whether a reward follows the format, the length or the wording.

    A reward for the format alone scores "I do not know" in the slot like any other answer.
    """
    if reward.role.name != FORMAT:
        return is_length_dependent(reward.probes) or is_phrase_dependent(reward.probes)
    missing_answers = reward.of_kind("missing answer is rewarded")
    unanswered = missing_answers[missing_answers["variant"] == DO_NOT_KNOW]
    is_answer_needed = unanswered["is_rewarded"].mean() < 0.5  # false if none was tried
    return not reward.role.layout.has_slot or not is_answer_needed


def _find_heavy_format(
    answer_rewards: Sequence[TriedReward],
    others: Sequence[TriedReward],
    weights: Weights,
    rows: Sequence[int],
) -> list[Finding]:
    """Report a total to which perfect format adds as much as the right answer.

    Rewards for answers add to the format what a wrong answer in perfect format scores above prose.
    The others add what perfect format scores above the right answer in its slot alone.
    """
    layout = answer_rewards[0].role.layout.name
    answers = best_scores(_total_scores(answer_rewards, weights)).loc[layout].reindex(rows)
    answers = answers.fillna(0.0)
    answer_gain = (answers["right"] - answers["wrong"]).mean()
    format_gain = max(0.0, (answers["wrong"] - answers["prose"]).mean())
    if others:
        right = best_scores(_total_scores(others, weights))["right"].unstack("layout")
        right = right.reindex(columns=[layout, SLOT_ONLY])
        # Zero in place of NaN if the slot alone is no layout of its own.
        format_gain += max(0.0, (right[layout] - right[SLOT_ONLY]).mean())

    # One reward may add the same for both, because a right answer in its format earns both.
    if format_gain > answer_gain or (others and format_gain == answer_gain):
        what = f"perfect format adds {format_gain:.3g}, the right answer {answer_gain:.3g}"
        return [make_finding("format outweighs the answer", WHOLE_SET, what)]
    return []
