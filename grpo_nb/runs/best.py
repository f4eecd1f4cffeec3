"""The best held-out step of a run, and whether it can be told from the last: read off the rows that the training wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ACCURACY, LOW, HIGH, BEHIND = "holdout/accuracy", "holdout/low", "holdout/high", "holdout/behind_best"


@dataclass(frozen=True, kw_only=True, repr=False)
class BestStep:
    """The first of a run's held-out scores that none is above. Shares are 0 to 1."""

    step: int
    accuracy: float
    interval: tuple[float, float]
    """95 %, of this score alone: the best of several is partly the luckiest."""
    last_step: int
    last_accuracy: float
    is_last_behind: bool
    """Whether the paired comparison on the same questions shows that the last score is worse."""
    scores: int
    """How many there were to choose from."""

    @property
    def sentence(self) -> str:
        """In words, with what the choice is worth."""
        low, high = self.interval
        text = f"Best held-out score: {self.accuracy:.1%} ({low:.1%} to {high:.1%}) at step {self.step}"
        if self.step == self.last_step:
            return f"{text}, the last of {self.scores}." if self.scores > 1 else f"{text}, the only one."
        told = "and is worse" if self.is_last_behind else "and cannot be told from it"
        return (
            f"{text}, the best of {self.scores}; the last, at step {self.last_step}, had {self.last_accuracy:.1%}, {told} "
            "on the same questions, in pairs."
        )

    def __repr__(self) -> str:
        return self.sentence


def best_step(rows: Sequence[Mapping[str, Any]]) -> BestStep | None:
    """Return the best held-out step of a run's rows, the earliest of equals; None where none was scored.

    >>> best_step([{"step": 1, ACCURACY: 0.5}, {"step": 5, ACCURACY: 0.75}, {"step": 9, ACCURACY: 0.75}]).step
    5
    """
    scored = [row for row in rows if isinstance(row.get(ACCURACY), (int, float))]
    if not scored:
        return None
    best, last = max(scored, key=lambda row: row[ACCURACY]), scored[-1]
    return BestStep(
        step=int(best["step"]),
        accuracy=best[ACCURACY],
        interval=(best.get(LOW, 0.0), best.get(HIGH, 1.0)),
        last_step=int(last["step"]),
        last_accuracy=last[ACCURACY],
        is_last_behind=bool(last.get(BEHIND, 0.0)),
        scores=len(scored),
    )
