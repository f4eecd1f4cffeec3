"""What a reward makes of the probes. Everything is measured against its own controls on the same row: "paid" is more than half
way from the best wrong answer to the right one, so that shaping and partial credit do not look like holes.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_nb.checks.findings import WHOLE_SET, Finding, found
from grpo_nb.checks.layouts import SLOT_ONLY, Layout
from grpo_nb.checks.probes import Probe

ANSWER = "tells right from wrong"
FORM = "pays for form, whatever the answer"
OTHER = "follows neither right answers nor the format, in what was tried"
_MAY_EARN = {"paid for nothing", "length pays", "near miss", "phrase pays"}
"""Being short of an answer, long or close may earn a part; what only names the answer must not earn more."""
Pairs = Mapping[int, tuple[float, float]]
"""By row: what the right answer gets, and what it is held against."""


@dataclass
class Seen:
    """What one reward gave for every probe, and what it does on the controls."""

    name: str
    layout: Layout
    """The one that it reads, or the first of the task; everything else is tried in it."""
    scores: dict[Probe, float] = field(default_factory=dict)
    """NaN where it gave None, or failed."""
    role: str = OTHER
    pairs: Pairs = field(default_factory=dict)
    """Held against the best wrong answer (`ANSWER`) or prose (`FORM`)."""
    is_judged: bool = True

    def best(self, kind: str, row: int, layout: str = "") -> float:
        """The highest score of a kind on a row, in a layout where one is named; NaN if there is none."""
        of_row = [(p, score) for p, score in self.scores.items() if (p.kind, p.row) == (kind, row) and score == score]
        return max((score for p, score in of_row if layout in ("", p.layout)), default=math.nan)

    @property
    def finite(self) -> list[float]:
        """All scores that are numbers."""
        return [score for score in self.scores.values() if math.isfinite(score)]

    @property
    def least(self) -> float:
        """Scores that are nearer than this are the same."""
        return 1e-3 * max(1e-3, max(self.finite, default=0.0) - min(self.finite, default=0.0))

    def share(self, probe: Probe) -> float:
        """Which part of what being right adds a probe earns; NaN where its row says nothing."""
        right, against = self.pairs.get(probe.row, (math.nan, math.nan))
        return (self.scores[probe] - against) / (right - against) if right > against else math.nan

    def is_paid(self, probe: Probe) -> bool:
        """Whether the reward takes a completion for right, or for well formed."""
        return self.share(probe) > (0.9 if probe.kind == "near miss" else 0.5)


def take_role(seen: Seen, layouts: Sequence[Layout]) -> None:
    """Set role and layout: where is a right answer paid more than every wrong one, for most gold answers that are scored?

    One of the task's own layouts is taken where that adds at least two thirds of what it adds in any other.
    """
    told, formed, lowest = {}, {}, min(seen.finite, default=0.0)
    for layout in layouts:
        of_layout = {p: s for p, s in seen.scores.items() if (p.kind, p.layout) == ("right", layout.name) and s == s}
        rights, golds = {p.row: s for p, s in of_layout.items()}, {p.row: p.how for p in of_layout}
        wrong = {row: seen.best("wrong", row, layout.name) for row in rights}
        pairs = {row: (right, lowest if math.isnan(wrong[row]) else wrong[row]) for row, right in rights.items()}
        telling = {row: (right, against) for row, (right, against) in pairs.items() if right - against > seen.least}
        # By gold answer, not by row: one that always pays the most frequent label tells nothing.
        if 2 * len({golds[row] for row in telling}) > len({*golds.values()}):
            told[layout] = telling
        pairs = {row: (right, seen.best("prose", row)) for row, right in rights.items()}
        if pairs and all(right - prose > seen.least for right, prose in pairs.values()):
            formed[layout] = pairs
    own, anywhere = _first({k: v for k, v in told.items() if k.is_own}, 0.9), _first(told, 1.0)
    if anywhere is not None:
        is_own = own is not None and 3 * _gain(told[own]) >= 2 * _gain(told[anywhere])
        seen.role, seen.layout = ANSWER, own if is_own else anywhere
        seen.pairs = told[seen.layout]
        return
    own = _first({k: v for k, v in formed.items() if k.is_own}, 0.9)
    if own is not None:
        seen.role, seen.layout, seen.pairs = FORM, own, formed[own]


def _gain(pairs: Pairs) -> float:
    return sum(right - against for right, against in pairs.values()) / len(pairs)


def _first(told: Mapping[Layout, Pairs], part: float) -> Layout | None:
    """The first layout in which being right adds at least this part of the most that it adds in any."""
    most = max(map(_gain, told.values()), default=0.0)
    return next((layout for layout, pairs in told.items() if _gain(pairs) >= part * most), None)


def judge(seen: Seen, layouts: Sequence[Layout]) -> Iterator[Finding]:
    """Find where what is paid is not what each probe expects: a finding for each kind, with its shortest text."""
    yield from _of_scores(seen)
    if seen.role != OTHER:
        yield from _of_layouts(seen, [layout for layout in layouts if layout.is_own])
    tried, wrongly = defaultdict(list), defaultdict(list)
    for probe in seen.scores:
        is_of_role = probe.expect == "pay" or (probe.expect == "refuse" and seen.role == ANSWER)
        if is_of_role and probe.layout == seen.layout.name and not math.isnan(seen.share(probe)):
            tried[probe.kind].append(probe)
            if seen.is_paid(probe) != (probe.expect == "pay"):
                wrongly[probe.kind].append(probe)
    for kind, probes in wrongly.items():
        what = _hows(probes) if probes[0].expect == "pay" else f"paid: {_hows(probes)}"
        yield found(kind, seen.name, f"{what} ({len(probes)} of {len(tried[kind])} tries)", [p.text for p in probes])
    yield from _of_parts(seen, [p for kind, probes in tried.items() for p in probes if p not in wrongly[kind]])
    yield from _of_growth(seen)


def _hows(probes: Iterable[Probe]) -> str:
    return ", ".join(dict.fromkeys(probe.how for probe in probes))


def _of_scores(seen: Seen) -> Iterator[Finding]:
    """Scores that are missing, infinite or all the same, and rows on which a wrong answer gets as much as the gold one."""
    rights = {p: score for p, score in seen.scores.items() if (p.kind, p.layout) == ("right", seen.layout.name)}
    unscored = [p.text for p, score in rights.items() if not math.isfinite(score)]
    if 2 * len(unscored) > len(rights):
        what = f"None, NaN or infinity for the right answer on {len(unscored)} of {len(rights)} rows"
        yield found("no score", seen.name, what, unscored)
    values = defaultdict(set)
    for probe, score in seen.scores.items():
        if probe.layout in ("", seen.layout.name):
            values[probe.row].add(str(score))
    if seen.finite and all(len(of_row) == 1 for of_row in values.values()):
        what = f"the same on a row, such as {seen.finite[0]:g}, for right, wrong and nonsense"
        yield found("constant", seen.name, what)
    lost = [p for p, score in rights.items() if p.row not in seen.pairs and not math.isnan(score)]
    if lost and seen.role == ANSWER:
        golds = ", ".join(dict.fromkeys(repr(p.how) for p in lost[:3]))
        what = f"on {len(lost)} of {len(rights)} rows a wrong answer gets as much as the gold one, such as {golds}"
        yield found("not on every row", seen.name, what, [p.text for p in lost])


def _of_layouts(seen: Seen, own: Sequence[Layout]) -> Iterator[Finding]:
    """The layout that is read where it is not the one of the prompt."""
    paid = [p for p in seen.scores if p.kind == "right" and p.row in seen.pairs and seen.is_paid(p)]
    refused = [layout.name for layout in own if layout.name not in {probe.layout for probe in paid}]
    if own[0].name in refused:
        what = f"it pays what is written like this: {seen.layout.name}; and not {' or '.join(refused)}"
        yield found("another format", seen.name, what, [p.text for p in paid if p.layout == seen.layout.name])


def _of_parts(seen: Seen, as_expected: Collection[Probe]) -> Iterator[Finding]:
    """What only names the answer and earns more of it than silence, length and near answers do."""
    refused = [probe for probe in as_expected if probe.expect == "refuse"]
    level = max((seen.share(p) for p in refused if p.kind in _MAY_EARN), default=0.0)
    parts = [p for p in refused if p.kind not in _MAY_EARN and seen.share(p) > max(level, 0.0) + 0.1]
    if parts:
        what = f"up to {max(map(seen.share, parts)):.0%} of what being right adds is paid"
        yield found("part credit", seen.name, f"{what}: {_hows(parts)}", [probe.text for probe in parts])


def _of_growth(seen: Seen) -> Iterator[Finding]:
    """Scores that rise with every repetition, and above that of the plain right completion."""
    series, grown = defaultdict(list), {}
    for probe in seen.scores:
        if probe.kind == "more pays":
            series[probe.how].append(probe)
    for what, probes in series.items():
        scores = [seen.scores[probe] for probe in probes]
        rises = [b - a for a, b in itertools.pairwise(scores)]
        is_more = scores[-1] > seen.best("right", probes[0].row, seen.layout.name) + seen.least
        if is_more and min(rises, default=0.0) > seen.least and rises[-1] > 0.2 * sum(rises):
            grown[f"{what}: {scores[0]:.3g} to {scores[-1]:.3g}"] = probes[0].text
    if grown:
        what = f"ever more of the same raises it without end ({', '.join(grown)})"
        yield found("more pays", seen.name, what, [*grown.values()])


def judge_set(every: Sequence[Seen], weights: Mapping[str, float], *, asks: bool) -> Iterator[Finding]:
    """What the weighted total pays: GRPO learns from nothing else.

    Args:
        every: Of all rewards what they gave.
        weights: Of all, by name.
        asks: Whether the set is meant for answers: several rewards, or one that reads the gold answer.
    """
    telling = [seen for seen in every if seen.role == ANSWER and weights[seen.name] and seen.layout.is_own]
    whole = Seen(WHOLE_SET, telling[0].layout if telling else every[0].layout)
    for probe in every[0].scores:
        if all(probe in seen.scores for seen in every):
            parts = [weights[seen.name] * seen.scores[probe] for seen in every if not math.isnan(seen.scores[probe])]
            whole.scores[probe] = sum(parts) if parts else math.nan
    rows = sorted({row for seen in telling for row in seen.pairs})
    name = whole.layout.name
    pairs = {row: (whole.best("right", row, name), whole.best("wrong", row, name)) for row in rows}
    whole.pairs = {row: (right, wrong) for row, (right, wrong) in pairs.items() if right > wrong}
    if 2 * len(whole.pairs) <= len(rows):
        causes = [seen.name for seen in every if seen not in telling] or ["the weights and their signs"]
        what = "the gold answer has no higher total than a wrong one in the same words and format; look first at "
        yield from [found("nothing tells right from wrong", WHOLE_SET, what + ", ".join(causes))] if asks else []
        return
    yield from _of_weights(whole, every, telling, weights)


def _of_weights(
    whole: Seen, every: Sequence[Seen], telling: Sequence[Seen], weights: Mapping[str, float]
) -> Iterator[Finding]:
    """Whether perfect form adds as much as being right: over the slot alone, and of a reward for answers over prose."""
    row, name = next(iter(whole.pairs)), whole.layout.name
    form, is_lone = 0.0, len(every) == len(telling)
    for seen in every:
        of_form = seen.best("right", row, name) - seen.best("right", row, SLOT_ONLY)
        of_answer = seen.best("wrong", row, name) - seen.best("prose", row)
        gain = weights[seen.name] * (of_answer if seen in telling else of_form)
        form += max(gain, 0.0) if gain == gain else 0.0
    answer = sum(abs(weights[seen.name]) * _gain(seen.pairs) for seen in telling)
    # Inside one reward for the answer a right one has both.
    if form > answer or (form == answer and not is_lone):
        what = f"perfect form adds {form:.3g}, the right answer {answer:.3g}"
        yield found("form outweighs being right", WHOLE_SET, what)
