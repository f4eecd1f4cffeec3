"""What the gold answers are: numbers, labels, expressions or text. The system prompt, the rewards and the floor go by it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["numbers", "labels", "expressions", "text"]
# With a currency before it or a unit, a percent sign say, behind it; as a fraction; with grouped digits.
_NUMBER = re.compile(r"[-+\u2212]?\s*[$€£]?\s*(\d[\d,' \u202f]*)?\.?\d+(e[-+]?\d+)?(\s*/\s*\d+)?\s*%?", re.IGNORECASE)
_FORMULA = re.compile(r"\\[a-zA-Z]+|[\^=_{}]|\d\s*[a-z]\b|\b[a-z]\s*[-+*/]|[-+*/]\s*[a-z]\b|^[(\[].*,.*[)\]]$")
_MOST_LABELS, _LONGEST_LABEL = 24, 40
# Rare forms are no reason to call a column something else, if nearly all answers are of one kind.
_NEARLY_ALL = 0.95
_AFTER_HASHES = re.compile(r"(?s)(.*?)\n?\s*####\s*([^\n]+?)\s*")


@dataclass(frozen=True)
class Answers:
    """The kind of a task's gold answers and, of labels, how often each occurs, the most frequent first."""

    kind: Kind
    labels: tuple[tuple[str, float], ...] = ()
    """(label, share of the rows)."""

    @property
    def hint(self) -> str:
        """What the system prompt puts in the place of the answer."""
        if self.kind == "labels":
            return "one of: " + ", ".join(sorted(label for label, _ in self.labels))
        return {"numbers": "number", "expressions": "expression", "text": "answer"}[self.kind]

    @property
    def floor(self) -> tuple[str, float] | None:
        """The most frequent label, and the share of rows it alone would be right on; None for other kinds."""
        return self.labels[0] if self.labels else None

    @property
    def sentence(self) -> str:
        """The kind in words."""
        if self.kind == "labels":
            return f"{len(self.labels)} labels: " + ", ".join(f"{label} ({share:.0%})" for label, share in self.labels)
        return self.kind


def answers_of(golds: Sequence[str]) -> Answers:
    """Tell what kind of answers these are.

    Labels are few, short and come again and again; numbers that do (a rating from 1 to 5) stay numbers.

    >>> answers_of(["positive", "negative"] * 4).hint, answers_of(["1,250", "-3.5", "7"]).kind
    ('one of: negative, positive', 'numbers')
    >>> answers_of([r"\\frac{1}{2}", "x^2", "2x"]).kind, answers_of(["Paris", "the river Seine"]).kind
    ('expressions', 'text')
    """
    if _share(golds, _NUMBER) >= _NEARLY_ALL:
        return Answers("numbers")
    counts = Counter(golds)
    if (
        2 <= len(counts) <= _MOST_LABELS
        and len(golds) >= 3 * len(counts)
        and max(map(len, counts)) <= _LONGEST_LABEL
        and not any("\n" in label for label in counts)
    ):
        return Answers("labels", tuple((label, count / len(golds)) for label, count in counts.most_common()))
    if sum(bool(_NUMBER.fullmatch(gold) or _FORMULA.search(gold)) for gold in golds) >= _NEARLY_ALL * len(golds):
        return Answers("expressions")
    return Answers("text")


def _share(golds: Sequence[str], pattern: re.Pattern[str]) -> float:
    return sum(bool(pattern.fullmatch(gold)) for gold in golds) / len(golds)


def after_hashes(golds: Sequence[str]) -> list[tuple[str, str]] | None:
    """(solution, answer) of each text in the form of GSM8K, reasoning and then `#### 42`; None if not all are.

    >>> after_hashes(["3 + 4 = 7\\n#### 7", "2 + 2 = 4\\n#### 4"])
    [('3 + 4 = 7', '7'), ('2 + 2 = 4', '4')]
    """
    found = [_AFTER_HASHES.fullmatch(gold) for gold in golds]
    return [(match[1].strip(), match[2]) for match in found if match] if all(found) else None
