"""Find the faults of one reward: report the probes that it does not score as expected.

Scores are compared with the controls of the same row. A probe's *share* is 0 if it scores like the
best wrong answer, and 1 if it scores like the right answer.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_nb.checks.classifying import (
    ANSWER,
    OTHER,
    Behaviour,
    Scores,
    best_score,
    finite_scores,
    follows_length,
    is_length_dependent,
    tolerance_of,
)
from grpo_nb.checks.findings import Finding, make_finding
from grpo_nb.checks.layouts import THINK_FIRST, Layout
from grpo_nb.checks.probes import Probe

REWARDED_SHARE = 0.5
"""A probe counts as rewarded above this share.

Half way, so that shaping and partial credit do not look like loopholes.
"""

REWARDED_SHARE_OF_NEAR_MISS = 0.9
"""A near miss may earn partial credit, but not nearly the whole score."""

PART_CREDIT_MARGIN = 0.1
"""Share that naming the answer outside the slot may earn above an empty or almost right answer."""

NOT_NAMING_ANSWER = (
    "missing answer is rewarded",
    "length is rewarded",
    "near miss",
    "a phrase is rewarded",
)
"""Kinds of probes that do not name the gold answer, so their share is not earned by naming it."""

MAX_GOLDS_NAMED = 5

STILL_RISING = 0.2
"""A score rises without end if its last step is more than this part of its whole rise.

With repetitions 1, 4, 16 and 64, a score with a maximum gains less than that in the last step.
"""


@dataclass(frozen=True, eq=False)
class TriedReward:
    """A reward after all probes were tried: all that is known about it."""

    name: str
    scores: Scores
    behaviour: Behaviour
    columns: tuple[str, ...] = ()
    """Data columns that the reward reads, besides the question."""
    ranks_group: bool = False
    """True if the reward is marked with `gn.rewards.relative`."""

    @property
    def layout(self) -> Layout:
        """Layout that the reward reads."""
        return self.behaviour.layout

    @property
    def right_answers(self) -> list[Probe]:
        """Right answers of all rows, in the layout that the reward reads."""
        return [probe for probe in self.of_kind("right") if probe.layout == self.layout.name]

    def of_kind(self, kind: str) -> list[Probe]:
        """Return the probes of a kind that were tried."""
        return [probe for probe in self.scores if probe.kind == kind]

    def share(self, probe: Probe) -> float:
        """Return the share of a right answer's gain that a probe earns.

        0 is the score of the best wrong answer, 1 that of the right answer. NaN means that the two
        score the same on this row, so that nothing can be compared.
        """
        margin = self.behaviour.margins.get(probe.row)
        if margin is None:
            return math.nan
        return (self.scores[probe] - margin.baseline) / margin.gain

    def is_rewarded(self, probe: Probe) -> bool:
        """Return whether a probe scores like a right, or a well-formed, completion."""
        if probe.kind == "near miss":
            return self.share(probe) > REWARDED_SHARE_OF_NEAR_MISS
        return self.share(probe) > REWARDED_SHARE

    def is_as_expected(self, probe: Probe) -> bool:
        """Return whether a probe is rewarded if it should be, and not if it should not."""
        return self.is_rewarded(probe) == (probe.expected == "pay")

    def finding(self, kind: str, what: str, probes: Iterable[Probe] = ()) -> Finding:
        """Return a finding about this reward, with the shortest of the probes as example."""
        return make_finding(kind, self.name, what, [probe.text for probe in probes])


def find_faults(reward: TriedReward, layouts: Sequence[Layout]) -> list[Finding]:
    """Return one finding for each kind of fault, with the shortest completion that shows it."""
    findings = [
        *_find_missing_scores(reward),
        _find_infinite_scores(reward),
        _find_constant(reward),
        _find_lost_rows(reward),
        _find_other_layout(reward, layouts),
        *_find_unexpected_scores(reward),
        _find_part_credit(reward),
        _find_endless_growth(reward),
    ]
    return [finding for finding in findings if finding is not None]


def _find_missing_scores(reward: TriedReward) -> Iterable[Finding]:
    """Report right answers without a score, and rows on which no completion has one."""
    is_missing = {probe: math.isnan(score) for probe, score in reward.scores.items()}
    scored_rows = {probe.row for probe, missing in is_missing.items() if not missing}
    rights = reward.right_answers
    on_scored_rows = [probe for probe in rights if probe.row in scored_rows or not scored_rows]
    missing = [probe for probe in on_scored_rows if is_missing[probe]]
    if 2 * len(missing) > len(on_scored_rows):
        what = f"None or NaN for the right answer on {len(missing)} of {len(on_scored_rows)} rows"
        yield reward.finding("no score", what, missing)
    skipped = [probe for probe in rights if probe.row not in scored_rows]
    if scored_rows and skipped:
        what = (
            f"None for every completion on {len(skipped)} of {len(rights)} rows, with gold answers "
            f"{_quoted(skipped)}"
        )
        yield reward.finding("skips rows", what)


def _find_infinite_scores(reward: TriedReward) -> Finding | None:
    """Report completions with an infinite score."""
    infinite = [probe for probe, score in reward.scores.items() if math.isinf(score)]
    if not infinite:
        return None
    what = f"{reward.scores[infinite[0]]} for {len(infinite)} of {len(reward.scores)} completions"
    return reward.finding("infinite score", what, infinite)


def _find_constant(reward: TriedReward) -> Finding | None:
    """Report a reward that gives all completions of a row the same score."""
    scores_by_row = defaultdict(set)
    for probe, score in reward.scores.items():
        if probe.layout in ("", reward.layout.name):
            scores_by_row[probe.row].add(str(score))  # as text, because NaN is not equal to NaN
    finite = finite_scores(reward.scores)
    is_constant = all(len(row_scores) == 1 for row_scores in scores_by_row.values())
    if not finite or not is_constant:
        return None
    what = f"right, wrong and nonsensical completions of a row all score the same ({finite[0]:g})"
    return reward.finding("constant", what)


def _find_lost_rows(reward: TriedReward) -> Finding | None:
    """Report rows on which a wrong answer scores as high as the gold answer."""
    rights = reward.right_answers
    lost = []
    for probe in rights:
        has_score = math.isfinite(reward.scores[probe])
        if has_score and probe.row not in reward.behaviour.margins:
            lost.append(probe)
    if not lost or reward.behaviour.role != ANSWER:
        return None
    what = (
        f"on {len(lost)} of {len(rights)} rows the gold answer scores no higher than a wrong one: "
        f"{_quoted(lost)}"
    )
    return reward.finding("not on every row", what, lost)


def _find_other_layout(reward: TriedReward, layouts: Sequence[Layout]) -> Finding | None:
    """Report a reward that refuses right answers written as the prompt shows it."""
    rights = reward.of_kind("right")
    rewarded = [probe for probe in rights if reward.is_rewarded(probe)]
    rewarded_layouts = {probe.layout for probe in rewarded}
    scored_layouts = {probe.layout for probe in rights if math.isfinite(reward.scores[probe])}
    refused = []
    for layout in layouts:
        if layout.is_own and layout.name in scored_layouts - rewarded_layouts:
            refused.append(layout.name)
    as_the_prompt_shows = layouts[0]
    # If the prompt asks for no reasoning tags, a reward that reads the text after </think> fits it.
    may_think_first = reward.layout.name == THINK_FIRST and not as_the_prompt_shows.has_reasoning
    is_refused = as_the_prompt_shows.name in refused and not may_think_first
    if not is_refused or reward.behaviour.role == OTHER:
        return None
    what = (
        f"right answers are rewarded if written like this: {reward.layout.name}; not if written "
        f"like this: {', '.join(refused)}"
    )
    as_read = [probe for probe in rewarded if probe.layout == reward.layout.name]
    return reward.finding("another format", what, as_read)


def _find_unexpected_scores(reward: TriedReward) -> list[Finding]:
    """Report each kind of probe that is rewarded and should not be, or the other way round."""
    findings = []
    for kind, probes in _comparable_probes(reward).items():
        unexpected = [probe for probe in probes if not reward.is_as_expected(probe)]
        if unexpected:
            seen = "rewarded like a right answer"
            if probes[0].expected == "pay":
                seen = "refused, though right and in the format"
            what = f"{seen}: {_variants(unexpected)} ({len(unexpected)} of {len(probes)} tries)"
            findings.append(reward.finding(kind, what, unexpected))
    return findings


def _find_part_credit(reward: TriedReward) -> Finding | None:
    """Report a share for naming the answer that empty, long and near answers do not earn."""
    naming = []
    share_without_naming = 0.0
    for kind, probes in _comparable_probes(reward).items():
        for probe in probes:
            if probe.expected != "refuse" or not reward.is_as_expected(probe):
                continue
            if kind in NOT_NAMING_ANSWER:
                share_without_naming = max(share_without_naming, reward.share(probe))
            else:
                naming.append(probe)
    largest_allowed = share_without_naming + PART_CREDIT_MARGIN
    parts = [probe for probe in naming if reward.share(probe) > largest_allowed]
    length_probes = reward.of_kind("length is rewarded")
    if not parts or any(map(reward.is_rewarded, length_probes)):
        return None
    largest = max(reward.share(probe) for probe in parts)
    what = f"up to {largest:.0%} of what a right answer adds, for: {_variants(parts)}"
    return reward.finding("part credit", what, parts)


def _find_endless_growth(reward: TriedReward) -> Finding | None:
    """Report a score that rises with every repetition, above that of the plain right answer."""
    if reward.ranks_group and follows_length(reward.scores):
        rights = sorted(reward.of_kind("right"), key=lambda probe: len(probe.text))
        longest = rights[-1]
        if reward.scores[longest] > reward.scores[rights[0]]:
            what = "the longest completion of a group always ranks first"
            return reward.finding("repetition is rewarded", what, [longest])
    probes_by_text = defaultdict(list)
    for probe in reward.of_kind("repetition is rewarded"):
        probes_by_text[probe.variant].append(probe)
    growing = []
    examples = []
    for text, probes in probes_by_text.items():
        scores = [reward.scores[probe] for probe in probes]
        plain = best_score(reward.scores, "right", probes[0].row, reward.layout.name)
        if _rises_without_end([plain, *scores], tolerance_of(reward.scores)):
            growing.append(f"{text}: {scores[0]:.3g} to {scores[-1]:.3g}")
            examples.append(probes[0])
    if not growing:
        return None
    what = f"repeating the same text raises the score without end ({', '.join(growing)})"
    return reward.finding("repetition is rewarded", what, examples)


def _rises_without_end(scores: Sequence[float], tolerance: float) -> bool:
    """Return whether scores rise at each step and have not flattened at the last one.

    The first score is that of the text without repetitions. The second may be lower.
    """
    plain, *repeated = scores
    rises = [after - before for before, after in itertools.pairwise(repeated)]
    is_above_plain = repeated[-1] > plain + tolerance
    is_steady = bool(rises) and min(rises) > tolerance
    return is_above_plain and is_steady and rises[-1] > STILL_RISING * sum(rises)


def _comparable_probes(reward: TriedReward) -> dict[str, list[Probe]]:
    """Group by kind the probes with an expectation, in the layout read, on rows with a margin."""
    expectations = {"pay", "refuse"}
    if reward.behaviour.role != ANSWER:
        # A format reward may reward a cheat in perfect format: the answer is not its business.
        expectations.remove("refuse")
        # The harmless changes also change the length, so they show nothing about the format.
        if is_length_dependent(reward.scores):
            expectations.remove("pay")
    probes_by_kind = defaultdict(list)
    for probe in reward.scores:
        is_read = probe.layout == reward.layout.name and probe.expected in expectations
        if is_read and not math.isnan(reward.share(probe)):
            probes_by_kind[probe.kind].append(probe)
    return probes_by_kind


def _quoted(rights: Iterable[Probe]) -> str:
    """Return the first gold answers of some rows, in quotes."""
    golds = list(dict.fromkeys(repr(right.variant) for right in rights))
    more = ", ..." if len(golds) > MAX_GOLDS_NAMED else ""
    return ", ".join(golds[:MAX_GOLDS_NAMED]) + more


def _variants(probes: Iterable[Probe]) -> str:
    """Return how the probes differ from a plain right answer."""
    return ", ".join(dict.fromkeys(probe.variant for probe in probes))
