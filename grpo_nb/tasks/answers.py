"""What the gold answers are: numbers, labels, expressions or text. The system prompt, the rewards and the floor go by it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["numbers", "labels", "expressions", "text"]
# With a currency before it or a unit, a percent sign say, behind it; as a fraction; with grouped digits.
_NUMBER = re.compile(
    r"[-+\u2212]?\s*[$€£]?\s*(\d{1,3}(\.\d{3})+(,\d+)?|(\d[\d,' \u202f]*)?\.?\d+(e[-+]?\d+)?)(\s*/\s*\d+)?\s*%?",
    re.IGNORECASE,
)
_FORMULA = re.compile(
    r"^\$.+\$$|\\[a-zA-Z]+|^[-+\d.]+(\s*,\s*[-+\d.]+)+$|[\^=_{}]|\d\s*[a-z]\b|\b[a-z]\s*[-+*/]|[-+*/]\s*[a-z]\b|^[(\[].*,.*[)\]]$"
)
_MOST_LABELS, _LONGEST_LABEL = 24, 60
# A few answers of another kind are told, and do not change what all are.
_NEARLY_ALL = 0.9
# 1,50 and 1.234,50, and 1.050.000; 1,500 and 1.050 may be either, and are taken as English.
_COMMA = re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})|[-+]?\d{1,3}(\.\d{3})+,\d+|[-+]?\d{1,3}(\.\d{3}){2,}")
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
    if not golds:
        return Answers("text")
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
    formulas = [bool(_FORMULA.search(gold)) for gold in golds if not _NUMBER.fullmatch(gold)]
    if sum(formulas) >= _NEARLY_ALL * len(formulas) and any("\n" not in gold for gold in golds):
        return Answers("expressions")
    return Answers("text")


def doubts_of(answers: Answers, golds: Sequence[str]) -> list[str]:
    """What in these answers may not be what it seems: words among numbers, numbers written with a decimal comma.

    >>> doubts_of(Answers("numbers"), ["1,50", "9,99", "3"])[0][:60]
    "2 answers, such as '1,50', may have a decimal comma: decimal"
    """
    if answers.kind != "numbers":
        return []
    others = list(dict.fromkeys(gold for gold in golds if not _NUMBER.fullmatch(gold)))
    commas = [gold for gold in golds if _COMMA.fullmatch(gold.strip())]
    found = []
    if others:
        count = sum(gold in others for gold in golds)
        found.append(
            f"{count} of {len(golds)} answers are no numbers ({', '.join(map(repr, others[:4]))}): as they are, they are asked "
            "for and paid as texts; leave those rows out if they mean that there is no answer"
        )
    padded = [gold for gold in golds if re.fullmatch(r"0\d+", gold.strip())]
    if padded:
        found.append(
            f"{len(padded)} answers, such as {padded[0]!r}, begin with zeros: as numbers they are the same without; where they "
            "are names, such as order numbers, reward them with gn.rewards.exact_text()"
        )
    if commas:
        found.append(
            f"{len(commas)} answers, such as {commas[0]!r}, may have a decimal comma: decimal=',' reads them so; now they are "
            "read as English writes numbers"
        )
    return found


def with_point(gold: str) -> str | None:
    """A number written with a decimal comma, as English writes it, with its unit if there is one; None for any other text.

    >>> with_point("1.234,50"), with_point("-3,5 %"), with_point("1.12.2024")
    ('1234.50', '-3.5 %', None)
    """
    if not re.fullmatch(r"[-+\u2212]?[$€£]?\s*(\d{1,3}([. '\u202f]\d{3})+|\d+)(,\d+)?\s*[^\s\d.,]{0,3}", gold):
        return None
    return re.sub(r"(?<=\d)[. '\u202f](?=\d{3})", "", gold).replace(",", ".")


def _share(golds: Sequence[str], pattern: re.Pattern[str]) -> float:
    return sum(bool(pattern.fullmatch(gold)) for gold in golds) / len(golds)


def after_hashes(golds: Sequence[str]) -> list[tuple[str, str]] | None:
    """(solution, answer) of each text in the form of GSM8K, reasoning and then `#### 42`; None if not all are.

    >>> after_hashes(["3 + 4 = 7\\n#### 7", "2 + 2 = 4\\n#### 4"])
    [('3 + 4 = 7', '7'), ('2 + 2 = 4', '4')]
    """
    found = [_AFTER_HASHES.fullmatch(gold) for gold in golds]
    return [(match[1].strip(), match[2]) for match in found if match] if all(found) else None
