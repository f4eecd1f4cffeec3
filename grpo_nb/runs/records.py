"""What a run's folder says of what came after its training: the held-out comparison and the exports.

Read without the rooms that made them, and small: every answer of a comparison is in `gn.evaluation.open_comparison(run.path)`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from grpo_nb.core.tables import Part, Shown, Table
from grpo_nb.runs.rows import reading
from grpo_nb.tasks.contamination import Contamination


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordedComparison(Shown):
    """The last held-out comparison of a run, as its `comparison/comparison.json` has it."""

    before: SimpleNamespace
    """The fields of an `Evaluation` but its rows; shares are from 0 to 1, intervals 95 %, lengths in tokens."""
    after: SimpleNamespace
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
        with reading(file):
            saved = json.loads(file.read_text("utf-8"))
            values = {f.name: saved[f.name] for f in dataclasses.fields(cls) if f.name in saved}
            values |= {side: SimpleNamespace(**saved[side]) for side in ("before", "after")}
            found = saved.get("contamination")
            values |= {"interval": tuple(saved["interval"]), "contamination": found and Contamination(**found)}
            return cls(**values)

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Each measure with both values, as tables show them."""

        def said(score: SimpleNamespace) -> tuple[str, ...]:
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
        with reading(file):
            return [cls(**entry) for entry in json.loads(file.read_text("utf-8"))] if file.is_file() else []
