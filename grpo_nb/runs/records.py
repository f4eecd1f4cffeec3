"""What a run's folder says of what came after its training: the held-out comparison and the exports.

Read without the rooms that made them, and small: every answer of a comparison is in `gn.evaluation.open_comparison(run.path)`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core import Part, Shown, Table
from grpo_nb.tasks import Contamination


@dataclass(frozen=True, kw_only=True)
class RecordedScore:
    """How a model did on the held-out questions. Shares are from 0 to 1."""

    label: str
    accuracy: float
    interval: tuple[float, float]
    """95 %."""
    format_share: float
    mean_length: float
    """Tokens."""
    cut_share: float


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordedComparison(Shown):
    """The last held-out comparison of a run, as its `comparison/comparison.json` has it."""

    before: RecordedScore
    after: RecordedScore
    difference: float
    interval: tuple[float, float]
    p_value: float
    verdict: str
    """`better`, `worse` or `no difference shown`."""
    sentence: str
    other_set: str = ""
    """The questions, where they were not the run's own."""
    contamination: Contamination | None = None

    @classmethod
    def read(cls, folder: Path) -> RecordedComparison | None:
        """Read the comparison of a run's folder; None if there was none."""
        file = folder / "comparison" / "comparison.json"
        if not file.is_file():
            return None
        values = json.loads(file.read_text("utf-8"))
        found = values.get("contamination")
        scores = {side: _made(RecordedScore, values[side]) for side in ("before", "after")}
        return _made(cls, {**values, **scores, "contamination": Contamination(**found) if found else None})

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Each measure with both values, as tables show them."""

        def said(score: RecordedScore) -> tuple[str, ...]:
            accuracy = f"{score.accuracy:.1%} ({score.interval[0]:.1%} to {score.interval[1]:.1%})"
            return accuracy, f"{score.format_share:.1%}", f"{score.mean_length:.1f}", f"{score.cut_share:.1%}"

        names = ("accuracy (95 % interval)", "in the format", "mean length, tokens", "cut at the limit")
        return list(zip(names, said(self.before), said(self.after), strict=True))

    def _parts(self) -> Iterator[Part]:
        yield Table(self.rows, ("", self.before.label, self.after.label), right=(1, 2))
        yield self.sentence


@dataclass(frozen=True, kw_only=True)
class RecordedExport:
    """A verified export of a run, as its `exports.json` has it."""

    path: str
    kind: str
    """`adapter`, `merged` or `gguf`; more words may follow, as in `merged bfloat16`."""
    sentence: str
    """The verification in words."""

    @classmethod
    def read(cls, folder: Path) -> list[RecordedExport]:
        """Read the exports of a run's folder, oldest first."""
        file = folder / "exports.json"
        return [_made(cls, entry) for entry in json.loads(file.read_text())] if file.is_file() else []


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    known = {f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values}
    return kind(**{name: tuple(value) if name == "interval" else value for name, value in known.items()})
