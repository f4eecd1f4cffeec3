"""The answers of two models to the same questions, side by side: which changed, in what order, and which hold a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args, overload

from grpo_nb.config import did_you_mean

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

    @overload
    def __getitem__(self, index: int) -> Transcript: ...
    @overload
    def __getitem__(self, index: slice) -> Transcripts: ...
    def __getitem__(self, index: int | slice) -> Transcript | Transcripts:
        if isinstance(index, slice):
            return Transcripts(self.items[index], self.labels, self.matching)
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Transcript]:
        return iter(self.items)

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
        from grpo_nb.evaluation_html import transcripts_page

        return transcripts_page(self)


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
    if only not in (None, *get_args(Only)):
        raise ValueError(
            f"only = {only!r} is none of {', '.join(get_args(Only))}{did_you_mean(str(only), get_args(Only))}."
        )
    pairs = [Transcript(_side(a), _side(b)) for a, b in zip(before, after, strict=True)]
    if only is not None:
        pairs = [p for p in pairs if p.change == only or (only == "changed" and p.change != "same")]
    if search is not None:
        pairs = [p for p in pairs if p.holds(search)]
    return sorted(pairs, key=lambda pair: (pair.change == "same", not pair.has_other_text))


def _side(rows: Sequence[Row]) -> dict[str, Any]:
    return {**rows[0], "samples": list(rows), "right": sum(row["is_correct"] for row in rows)}
