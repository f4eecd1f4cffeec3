"""The answers of two models to the same questions, side by side: which changed, in what order, and which hold a text.

Everything that a model, a user or a data set wrote is escaped where it is shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from grpo_nb.core.pages import render, style
from grpo_nb.core.text import shorten
from grpo_nb.settings.arguments import check_choice

# A notebook that holds thousands of answers opens slowly; the parquet file has them all.
_SHOWN, _LONGEST = 200, 6000

Row = Mapping[str, Any]
Only = Literal["changed", "gained", "lost", "same"]


class Transcript(NamedTuple):
    """One question with the answer of both models.

    Each is the row of its first sample, with all of them under `samples`, and the number of right ones under `right`.
    """

    before: Row
    after: Row

    @property
    def change(self) -> Literal["gained", "lost", "same"]:
        """What became of the question: more right answers than before, fewer, or as many."""
        more = self.after["right"] - self.before["right"]
        return "gained" if more > 0 else "lost" if more < 0 else "same"

    @property
    def has_other_text(self) -> bool:
        """Whether any completion differs."""
        return [r["completion"] for r in self.before["samples"]] != [r["completion"] for r in self.after["samples"]]

    @property
    def badge(self) -> tuple[str, str]:
        """What became of the question, as a CSS class and in words."""
        before, count = self.before["right"], len(self.before["samples"])
        kind = {"gained": "gn-pass", "lost": "gn-fail", "same": "gn-soft"}[self.change]
        if count > 1:
            return kind, f"{before} → {self.after['right']} of {count}"
        same = "still right" if before else "still wrong"
        return kind, {"gained": "now right", "lost": "now wrong", "same": same}[self.change]

    def holds(self, text: str) -> bool:
        """Whether the text is in question, gold answer or a completion, whatever the case."""
        parts = [self.before["question"], self.before["answer"]]
        parts += [row["completion"] for side in self for row in side["samples"]]
        return any(text.casefold() in str(part).casefold() for part in parts)


@dataclass(frozen=True)
class Transcripts(Sequence[Transcript]):
    """Transcripts that show themselves, as a list or as a page with a field to search in."""

    items: tuple[Transcript, ...]
    labels: tuple[str, str]
    matching: int
    """How many there were to choose from."""
    first: int = 0
    """How many of those stand before the first of these."""

    def __getitem__(self, index: Any) -> Any:
        found = self.items[index]
        if not isinstance(index, slice):
            return found
        return dataclasses.replace(self, items=found, first=self.first + index.indices(len(self))[0])

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        parts = []
        for item in self:
            sides = (
                f"  {label}, {verdict_of(row)}: {row['completion']!r}"
                for label, side in zip(self.labels, item, strict=True)
                for row in side["samples"]
            )
            parts.append("\n".join([f"{item.before['question']!r} (gold {item.before['answer']!r})", *sides]))
        return "\n".join([*parts, f"{len(self)} of {self.matching} questions"])

    def _repr_html_(self) -> str:
        return self.page()

    def page(self, limit: int = _SHOWN, template: str = "transcripts") -> str:
        """Return transcripts with a field that searches in them."""
        shown = self.items[:limit]
        after = self.first + len(shown)
        return rendered(template, items=shown, labels=self.labels, left=self.matching - after, after=after, more=_SHOWN)


def verdict_of(row: Row) -> str:
    """Return what a completion is, in words."""
    return "right" if row["is_correct"] else "wrong" if row["given"] is not None else "no answer"


def sorted_pairs(
    before: Sequence[Sequence[Row]],
    after: Sequence[Sequence[Row]],
    *,
    search: str | None = None,
    only: Only | None = None,
) -> list[Transcript]:
    """Return the transcripts: changed verdicts first, then changed texts, otherwise in the order of the questions."""
    check_choice("only", only, (None, *get_args(Only)))
    pairs = [Transcript(_side(a), _side(b)) for a, b in zip(before, after, strict=True)]
    if only is not None:
        pairs = [p for p in pairs if p.change == only or (only == "changed" and p.change != "same")]
    if search is not None:
        pairs = [p for p in pairs if p.holds(search)]
    return sorted(pairs, key=lambda pair: (pair.change == "same", not pair.has_other_text))


def _side(rows: Sequence[Row]) -> dict[str, Any]:
    return {**rows[0], "samples": list(rows), "right": sum(row["is_correct"] for row in rows)}


def rendered(template: str, **values: Any) -> str:
    """Return a template of this room with all that it needs, so that it can stand by itself."""
    return render(
        f"evaluation/templates/{template}.jinja",
        style=style("evaluation/evaluation.css"),
        shorten=lambda text: shorten(str(text), _LONGEST),
        verdict_of=verdict_of,
        **values,
    )
