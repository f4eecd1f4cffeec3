"""Find the faults of each reward, and of the weighted total of all.

`find_faults` reports the probes that one reward does not score as expected. Scores are compared
with right and wrong answers of the same row. A probe's *share* is 0 if it scores like the best
wrong answer, and 1 if it scores like the right answer. `check_total` reports a total, which is all
that GRPO learns from, that does not follow right answers.
"""

from __future__ import annotations

import itertools
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

MAX_GOLDS_NAMED = 5

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
        golds = [repr(gold) for gold in lost["variant"].unique()]
        named = ", ".join(golds[:MAX_GOLDS_NAMED])
        more = ", ..." if len(golds) > MAX_GOLDS_NAMED else ""
        what = (
            f"on {len(lost)} of {len(rights)} rows the gold answer scores no higher than a wrong "
            f"one: {named}{more}"
        )
        yield reward.finding("not on every row", what, lost)


def _find_other_layout(reward: TriedReward, layouts: Sequence[Layout]) -> Iterable[Finding]:
    """Report a reward that refuses right answers written as the prompt shows it."""
    rights = reward.probes[reward.probes["kind"] == "right"].dropna(subset="score")
    is_rewarded = rights.groupby("layout")["is_rewarded"].any()
    own = [layout.name for layout in layouts if layout.is_own and layout.name in is_rewarded]
    refused = [name for name in own if not is_rewarded[name]]
    as_the_prompt_shows = layouts[0]
    read = reward.role.layout.name
    # If the prompt asks for no reasoning tags, a reward that reads the text after </think> fits it.
    may_think_first = read == THINK_FIRST and not as_the_prompt_shows.has_reasoning
    is_refused = as_the_prompt_shows.name in refused and not may_think_first
    if is_refused and reward.role.name != OTHER:
        what = (
            f"right answers are rewarded if written like this: {read}; not if written like this: "
            f"{', '.join(refused)}"
        )
        in_read = (rights["layout"] == read) & rights["is_rewarded"]
        yield reward.finding("another format", what, rights[in_read])


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
        scores = list(probes["score"])
        plain = rights.get(probes["row"].iloc[0], math.nan)
        if scores[-1] > plain + tolerance and _rises_without_end(scores, tolerance):
            growing.append(f"{variant}: {scores[0]:.3g} to {scores[-1]:.3g}")
            examples.append(probes[:1])
    if growing:
        what = f"repeating the same text raises the score without end ({', '.join(growing)})"
        yield reward.finding("repetition is rewarded", what, pandas.concat(examples))


def _rises_without_end(scores: Sequence[float], tolerance: float) -> bool:
    """Return whether scores rise at each step and have not flattened at the last one."""
    rises = [after - before for before, after in itertools.pairwise(scores)]
    is_steady = bool(rises) and min(rises) > tolerance
    return is_steady and rises[-1] > STILL_RISING * sum(rises)


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
    margin_rows = set().union(*(reward.role.margins.index for reward in answer_rewards))
    best = best_scores(_total_scores(rewards, weights)).loc[layout].reindex(sorted(margin_rows))
    # TRL adds up missing scores as 0.
    is_right_best = best["right"] > best["wrong"].fillna(0.0)
    if is_right_best.mean() <= 0.5:
        return [_explain_total(rewards, rows)]
    return _find_heavy_format(rewards, answer_rewards, weights, row=is_right_best.idxmax())


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
    name = rewards[0].name if is_lone else WHOLE_SET
    columns = {
        column for reward in rewards if reward.role.name == OTHER for column in reward.columns
    }
    other_columns = sorted(columns - {"answer", rows.gold_column})
    if not any(is_answer_dependent(reward.probes) for reward in rewards):
        reads_others = bool(other_columns) and not rows.is_answer_function
        if is_lone and not reads_others and _is_for_form(rewards[0]):
            what = "the only reward follows the format, length or wording, whatever the answer"
            return make_finding("no reward for answers", WHOLE_SET, what)
        if reads_others or (is_lone and not columns):
            read = ", ".join(other_columns) or "no column"
            what = f"no gold answer scores higher than a wrong one, and the reward reads {read}"
            return make_finding("right answer unknown", name, what)
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
    rewards: Sequence[TriedReward],
    answer_rewards: Sequence[TriedReward],
    weights: Weights,
    *,
    row: int,
) -> list[Finding]:
    """Report a total to which perfect format adds as much as the right answer.

    The format is compared on one row, the answer on all rows on average.
    """
    layout = answer_rewards[0].role.layout.name
    format_gain = 0.0
    answer_gain = 0.0
    for reward in rewards:
        weight = weights[reward.name]
        scores = reward.probes[reward.probes["row"] == row]
        best = scores.groupby(["kind", "layout"])["score"].agg(["min", "max"])
        if reward in answer_rewards:
            # The worst wrong answer in perfect format, compared with prose. The best one may earn
            # partial credit, which is not for the format.
            gain = best["min"].get(("wrong", layout), math.nan) - best["max"].get(
                ("prose", ""), math.nan
            )
            answer_gain += weight * reward.role.margins["gain"].mean()
        else:
            slot_alone = best["max"].get(("right", SLOT_ONLY), math.nan)
            gain = best["max"].get(("right", layout), math.nan) - slot_alone
        if weight * gain > 0:  # neither negative nor NaN
            format_gain += weight * gain

    # One reward may add the same for both, because a right answer in its format earns both.
    is_equal_in_set = format_gain == answer_gain and len(answer_rewards) < len(rewards)
    if format_gain > answer_gain or is_equal_in_set:
        what = f"perfect format adds {format_gain:.3g}, the right answer {answer_gain:.3g}"
        return [make_finding("format outweighs the answer", WHOLE_SET, what)]
    return []
