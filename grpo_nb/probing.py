"""What a reward makes of the probes: its role on the controls, and the findings that follow.

Every judgement is relative to the reward's own controls. "Paid" means more than half way from the best wrong answer to the
right one in the same words and format, so that length shaping and partial credit do not look like holes, and a reward that
does not look at the answer at all is not blamed for paying a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from grpo_nb.contract import Outcome
from grpo_nb.probes import Probe
from grpo_nb.reward_calls import excerpt

TELLS = "tells right from wrong"
FORM = "pays for form, whatever the answer"
OTHER = "depends neither on the answer nor on the format"
LAYOUTS = ("", ", newline", ", one line", ", slot only")


@dataclass
class Results:
    """What one reward gave for every probe."""

    outcomes: list[tuple[Probe, Outcome]] = field(default_factory=list)

    def scores(self, kind: str, row: int) -> list[tuple[Probe, float]]:
        """The scored probes of a kind on a row."""
        return [(p, o.scores[0]) for p, o in self.outcomes if p.kind == kind and p.row == row and o.scores]

    def best(self, kind: str, row: int) -> float:
        """The highest score of a kind on a row; NaN if there is none."""
        known = [score for _, score in self.scores(kind, row) if not math.isnan(score)]
        return max(known, default=math.nan)

    @property
    def finite(self) -> list[float]:
        """All scores that are numbers."""
        return [o.scores[0] for _, o in self.outcomes if o.scores and math.isfinite(o.scores[0])]

    def spread(self, *, is_realistic: bool = True) -> float:
        """Highest minus lowest score, over texts of a length that a trainer samples."""
        known = [
            o.scores[0]
            for p, o in self.outcomes
            if o.scores and math.isfinite(o.scores[0]) and not (is_realistic and p.is_long)
        ]
        return max(known, default=0.0) - min(known, default=0.0)


@dataclass(frozen=True)
class Role:
    """What a reward was seen to do on the controls."""

    kind: str
    layout: str = ""
    """The layout of a completion in which it does so best."""
    rows: tuple[int, ...] = ()
    """For `TELLS`: the rows on which it does."""
    thresholds: dict[int, float] = field(default_factory=dict)
    """For `TELLS`, per row: half way between the best wrong answer and the right one."""
    tops: dict[int, float] = field(default_factory=dict)
    """For `TELLS`, per row: the score of the right answer."""
    gap: float = 0.0
    """For `TELLS`: the mean of right minus best wrong."""

    @property
    def sentence(self) -> str:
        """The role in words."""
        return self.kind


def find_role(results: Results, rows: Sequence[int]) -> Role:
    """Say what a reward does on the controls: whether right beats every wrong answer in the same words."""
    epsilon = 1e-3 * max(1e-3, results.spread())
    best = Role(OTHER)
    for layout in LAYOUTS:
        telling, thresholds, tops, gaps = [], {}, {}, []
        for row in rows:
            right, wrong = results.best(f"right{layout}", row), results.best(f"wrong{layout}", row)
            if math.isnan(right):
                continue
            wrong = min(results.finite, default=0.0) if math.isnan(wrong) else wrong
            if right - wrong > epsilon:
                telling.append(row)
                thresholds[row], tops[row] = (right + wrong) / 2, right
                gaps.append(right - wrong)
        if len(telling) * 2 >= len(rows) and len(telling) > len(best.rows):
            best = Role(TELLS, layout, tuple(telling), thresholds, tops, sum(gaps) / len(gaps))
    if best.kind == TELLS:
        return best
    for layout in LAYOUTS[:3]:
        if all(results.best(f"right{layout}", row) - results.best("prose", row) > epsilon for row in rows):
            score = sum(results.best(f"right{layout}", row) for row in rows)
            if best.kind != FORM or score > sum(results.best(f"right{best.layout}", row) for row in rows) + epsilon:
                best = Role(FORM, layout)
    return best


def is_paid(role: Role, probe: Probe, score: float) -> bool:
    """Say whether a telling reward takes this completion for right."""
    if probe.row not in role.thresholds:
        return False
    if probe.kind == "off by one":
        # Near answers may earn part of the score, where closeness means something; but not as good as all of it.
        return score > role.tops[probe.row] - 0.1 * 2 * (role.tops[probe.row] - role.thresholds[probe.row])
    return score > role.thresholds[probe.row]


def shortest(probes: Iterable[Probe]) -> str:
    """The shortest completion, shown as a literal."""
    return excerpt(min((probe.text for probe in probes), key=len))
