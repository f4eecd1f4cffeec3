"""What a reward makes of the probes: its role on the controls, and the findings that follow.

Every judgement is relative to the reward's own controls. "Paid" means more than half way from the best wrong answer to the
right one in the same words and format, so that length shaping and partial credit do not look like holes, and a reward that
does not look at the answer at all is not blamed for paying a wrong one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grpo_nb.checks.contract import Outcome
from grpo_nb.checks.probes import ADDED, BARE, CHANGED, LAYOUTS, MORE, Probe

TELLS = "tells right from wrong"
FORM = "pays for form, whatever the answer"
OTHER = "follows neither right answers nor the format, in what was tried"
LOOKS = "pays for how an answer looks (its form, kind or unit), right or wrong"
BY_DEGREES = "tells right from wrong by degrees: near answers earn a part"
WHOLE = "reads the whole completion in place of the answer slot"
UNSCORED = "scores none of the rows that were tried in every form"

_CONTROLS = {"prose", "right", "wrong", "elsewhere right", "elsewhere wrong"}


@dataclass
class Results:
    """What one reward gave for every probe."""

    outcomes: dict[Probe, Outcome] = field(default_factory=dict)

    @property
    def scored(self) -> list[tuple[Probe, float]]:
        """The probes for which it gave a score; NaN where that is None."""
        return [(probe, outcome.scores[0]) for probe, outcome in self.outcomes.items() if outcome.scores]

    def scores(self, kind: str, row: int, layout: str = "") -> list[tuple[Probe, float]]:
        """The scored probes of a kind on a row, in one layout."""
        wanted = (kind, row, layout)
        return [(probe, score) for probe, score in self.scored if (probe.kind, probe.row, probe.layout) == wanted]

    def rows_scored(self) -> dict[int, bool]:
        """By row, also those tried with the right and a wrong answer alone, whether the right answer was given a score."""
        scored: dict[int, bool] = {}
        for probe, score in self.scored:
            if probe.kind in ("right", MORE[0]):
                scored[probe.row] = scored.get(probe.row, False) or not math.isnan(score)
        return scored

    def example(self, kind: str, row: int, layout: str = "") -> list[str]:
        """The best paid completion of a kind on a row, of equals the first, if there is one."""
        scored = [pair for pair in self.scores(kind, row, layout) if not math.isnan(pair[1])]
        return [probe.text for probe, _ in sorted(scored, key=lambda pair: -pair[1])][:1]

    def best(self, kind: str, row: int, layout: str = "", detail: str = "") -> float:
        """The highest score of a kind on a row, or only of those with a detail; NaN if there is none."""
        scores = [score for probe, score in self.scores(kind, row, layout) if detail in ("", probe.detail)]
        return max((score for score in scores if not math.isnan(score)), default=math.nan)

    def finite(self, *, is_short: bool = False) -> list[float]:
        """All scores that are numbers; or only over texts of a length that a trainer samples."""
        return [score for probe, score in self.scored if math.isfinite(score) and not (is_short and probe.is_long)]

    def spread(self) -> float:
        """Highest minus lowest score, over texts of a length that a trainer samples."""
        known = self.finite(is_short=True)
        return max(known, default=0.0) - min(known, default=0.0)

    @property
    def seconds(self) -> list[tuple[float, Probe]]:
        """The time of each completion that was scored and has a length that a trainer samples."""
        return [(o.seconds, probe) for probe, o in self.outcomes.items() if o.scores and not probe.is_long]

    @property
    def epsilon(self) -> float:
        """Scores that are nearer than this are the same."""
        return 1e-3 * max(1e-3, self.spread())


@dataclass(frozen=True)
class Role:
    """What a reward was seen to do on the controls."""

    kind: str
    layout: str = ""
    """The layout of a completion in which it does so best."""
    pairs: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """By row: the score of the right answer, and of the best wrong one (`TELLS`, where they differ) or of prose (`FORM`)."""
    said: str = ""
    """What more the probes showed, in words that are said in place of the kind: `LOOKS`, `BY_DEGREES` or `WHOLE`."""

    @property
    def gap(self) -> float:
        """For `TELLS`: the mean of right minus best wrong."""
        return sum(right - wrong for right, wrong in self.pairs.values()) / len(self.pairs)


def find_role(results: Results, rows: Sequence[int]) -> Role:
    """Say what a reward does on the controls: whether right beats every wrong answer in the same words.

    Rows that it has no opinion on, such as those with a gold answer in a unit that it does not know, say nothing of it.
    """
    epsilon, best = results.epsilon, Role(OTHER)
    rows = [row for row in rows if any(probe.row == row and not math.isnan(score) for probe, score in results.scored)]
    if not rows:
        return Role(UNSCORED)
    for layout in LAYOUTS:
        pairs = {}
        for row in rows:
            right, wrong = results.best("right", row, layout), results.best("wrong", row, layout)
            wrong = min(results.finite(), default=0.0) if math.isnan(wrong) else wrong
            if right - wrong > epsilon:
                pairs[row] = (right, wrong)
        if len(pairs) * 2 >= len(rows) and len(pairs) > len(best.pairs):
            best = Role(TELLS, layout, pairs)
    if best.kind == TELLS:
        return best
    for layout in list(LAYOUTS)[:3]:
        pairs = {row: (results.best("right", row, layout), results.best("prose", row)) for row in rows}
        if all(right - prose > epsilon for right, prose in pairs.values()):
            score = sum(right for right, _ in pairs.values())
            if best.kind != FORM or score > sum(right for right, _ in best.pairs.values()) + epsilon:
                best = Role(FORM, layout, pairs)
    return best


def seen_closer(role: Role, results: Results) -> Role:
    """Say more of a role once all probes were tried: a part of the rewards that seem to know the answer know how one looks.

    Those take an answer of the same form that says something else for right; others pay by degrees. What knows a bare answer
    and hardly the same one in the format reads all that stands around it.
    """
    rows = {probe.row for probe in results.outcomes if probe.detail == BARE}
    bare, shown = (sum(gains) for gains in zip(*(map(gain, bare_and_shown(results, row)) for row in rows), strict=True))
    around = [s for p, s in results.scored if p.kind in _CONTROLS and math.isfinite(s)] or [0.0]
    if bare > 0.2 * len(rows) * (max(around) - min(around)) and shown < 2 / 3 * bare:
        return Role(OTHER, said=WHOLE)

    def shares(kind: str) -> list[float]:
        tried = [pair for row in role.pairs for pair in results.scores(kind, row, role.layout)]
        return [share_of(role, probe, score) for probe, score in tried]

    if role.kind == TELLS:
        alike = shares("look-alike")
        plain = {row: (right, results.best("prose", row)) for row, (right, _) in role.pairs.items()}
        if alike and min(alike) > 0.9 and all(right - prose > results.epsilon for right, prose in plain.values()):
            return Role(FORM, role.layout, plain, LOOKS)
        return replace(role, said=BY_DEGREES if any(_falls(results, role, row) for row in role.pairs) else "")
    in_words = shares("no answer") if role.kind == FORM else []
    return replace(role, said=LOOKS if in_words and max(in_words) < 0.1 else "")


def bare_and_shown(results: Results, row: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the right and the best of some wrong answers of a row get alone, and in the layout in which they differ most."""
    bare = tuple(results.best(f"elsewhere {kind}", row, detail=BARE) for kind in ("right", "wrong"))
    wrong = {probe.text for probe, _ in results.scores("elsewhere wrong", row) if probe.detail == BARE}
    shown = []
    for layout in list(LAYOUTS)[:3]:
        others = [s for p, s in results.scores("wrong", row, layout) if p.detail in wrong and not math.isnan(s)]
        shown.append((results.best("right", row, layout), max(others, default=math.nan)))
    return bare, max(shown, key=gain)


def gain(pair: tuple[float, float]) -> float:
    """What being right adds; nothing where it has no score."""
    return 0.0 if math.isnan(pair[0] - pair[1]) else pair[0] - pair[1]


def _falls(results: Results, role: Role, row: int) -> bool:
    """Whether the score on a row falls in steps as more of the right answer is changed, and as more stands beside it."""
    right = role.pairs[row][0]
    changed, added = ([right, *(s for _, s in results.scores(kind, row, role.layout))] for kind in (CHANGED, ADDED))
    is_falling = all(b <= a + results.epsilon for series in (changed, added) for a, b in itertools.pairwise(series))
    steps = {round(score, 3) for score in changed if min(changed) + results.epsilon < score < right - results.epsilon}
    return is_falling and len(steps) >= 2 and added[-1] < right - results.epsilon


def share_of(role: Role, probe: Probe, score: float) -> float:
    """Which part of what being right adds a completion earns: 0.0 as the best wrong control of its row, 1.0 as the right."""
    right, wrong = role.pairs[probe.row]
    return (score - wrong) / (right - wrong)


def is_paid(role: Role, probe: Probe, score: float) -> bool:
    """Say whether a reward takes this completion for right, or for well formed."""
    # Near answers may earn part of the score, where closeness means something; but not as good as all of it.
    least = 0.9 if probe.family == "near miss" else 0.5
    return probe.row in role.pairs and share_of(role, probe, score) > least
