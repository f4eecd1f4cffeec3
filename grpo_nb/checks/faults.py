"""Find the faults of one reward: report the probes that it does not score as expected.

Scores are compared with right and wrong answers of the same row. A probe's *share* is 0 if it
scores like the best wrong answer, and 1 if it scores like the right answer.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas

from grpo_nb.checks.layouts import THINK_FIRST, Layout
from grpo_nb.checks.report import Finding, make_finding
from grpo_nb.checks.roles import (
    ANSWER,
    OTHER,
    Role,
    is_length_dependent,
    tolerance_of,
)

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
        *_find_missing_scores(reward),
        *_find_infinite_scores(reward),
        *_find_constant(reward),
        *_find_lost_rows(reward),
        *_find_other_layout(reward, layouts),
        *_find_unexpected_scores(reward),
        *_find_part_credit(reward),
        *_find_endless_growth(reward),
    ]


def _find_missing_scores(reward: TriedReward) -> Iterable[Finding]:
    """Report right answers without a score. Rows on which no completion has one are left out."""
    rights = reward.of_kind("right")
    scored_rows = reward.probes.dropna(subset="returned")["row"].unique()
    if len(scored_rows):
        rights = rights[rights["row"].isin(scored_rows)]
    missing = rights[rights["returned"].isna()]
    if 2 * len(missing) > len(rights):
        what = f"None or NaN for the right answer on {len(missing)} of {len(rights)} rows"
        yield reward.finding("no score", what, missing)


def _find_infinite_scores(reward: TriedReward) -> Iterable[Finding]:
    """Report completions with an infinite score."""
    is_infinite = reward.probes["returned"].notna() & reward.probes["score"].isna()
    infinite = reward.probes[is_infinite]
    if len(infinite):
        example = infinite["returned"].iloc[0]
        what = f"{example} for {len(infinite)} of {len(reward.probes)} completions"
        yield reward.finding("infinite score", what, infinite)


def _find_constant(reward: TriedReward) -> Iterable[Finding]:
    """Report a reward that gives all completions of a row the same score."""
    probes = reward.probes[reward.probes["layout"].isin(["", reward.role.layout.name])]
    is_constant = probes.groupby("row")["returned"].nunique(dropna=False).max() == 1
    finite = reward.probes["score"].dropna()
    if is_constant and len(finite):
        score = finite.iloc[0]
        what = f"right, wrong and nonsensical completions of a row all score the same ({score:g})"
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
        is_right = probes["expected"].iloc[0] == "pay"
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
    rights = reward.of_kind("right").set_index("row")["score"]
    tolerance = tolerance_of(reward.probes)
    growing = []
    examples = []
    for variant, probes in reward.of_kind("repetition is rewarded").groupby("variant", sort=False):
        scores = list(probes["returned"])
        plain = rights[probes["row"].iloc[0]]
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
    expectations = ["pay", "refuse"]
    if reward.role.name != ANSWER:
        # A format reward may reward a cheat in perfect format: the answer is not its business.
        expectations.remove("refuse")
        # The harmless changes also change the length, so they show nothing about the format.
        if is_length_dependent(reward.probes):
            expectations.remove("pay")
    is_read = reward.probes["layout"] == reward.role.layout.name
    is_expected = reward.probes["expected"].isin(expectations)
    return reward.probes[is_read & is_expected].dropna(subset="share")


def _variants(probes: pandas.DataFrame) -> str:
    """Return how the probes differ from a plain right answer."""
    return ", ".join(probes["variant"].unique())
