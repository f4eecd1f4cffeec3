"""What the gold answers are: numbers, labels, expressions or text. The system prompt, the rewards and the floor go by it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_nb.core import shorten

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
# Where no more than this share are of another kind, they are told, whatever all are then taken for.
_MOST_ODD: dict[Kind, float] = {"numbers": 0.5, "labels": 0.2, "expressions": 0.2}
_ODD: dict[Kind, str] = {
    "numbers": "are no numbers",
    "labels": "come once or twice, while all others are a few labels",
    "expressions": "are no expressions",
}
# What tables and people write where there is no value.
MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>", "nat")
# What is read as a number and may be meant otherwise. 1,50 and 1.234,50, and 1.050.000 may have a decimal comma; 1,500 and
# 1.050 may be either, and are taken as English.
_DOUBTFUL = (
    (
        re.compile(r"0\d+"),
        "begin with zeros: as numbers they are the same without; where they are names, such as order numbers, reward them with "
        "gn.rewards.exact_text()",
    ),
    (
        re.compile(r"(0?[1-9]|[12]\d|3[01])/(0?[1-9]|1[0-2])|(0?[1-9]|1[0-2])/(0?[1-9]|[12]\d|3[01])"),
        "are read as fractions, so that 0.5 is right for 1/2; where they are days and months, reward them with "
        "gn.rewards.exact_text()",
    ),
    (
        re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})|[-+]?\d{1,3}(\.\d{3})+,\d+|[-+]?\d{1,3}(\.\d{3}){2,}"),
        "may have a decimal comma: decimal=',' reads them so; now they are read as English writes numbers",
    ),
)
# 2.5 kg, 12,90 €, EUR 12,90. A percent sign, and a currency's sign before the number, are read without a word.
_WITH_UNIT = re.compile(
    r"[-+\u2212]?\d[\d.,' ]*(\s[^\W\d]\S{0,8}|[^\W\d]{2}\S{0,7}|\s?[$€£¥])|[A-Z]{3}\s?[-+\u2212]?\d[\d.,' ]*"
)
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
    # Prices and measures that come again and again are none: a label is not computed.
    if (
        _share(golds, _WITH_UNIT) < _NEARLY_ALL
        and 2 <= len(counts) <= _MOST_LABELS
        and len(golds) >= 3 * len(counts)
        and max(map(len, counts)) <= _LONGEST_LABEL
        and not any("\n" in label for label in counts)
    ):
        return Answers("labels", tuple((label, count / len(golds)) for label, count in counts.most_common()))
    formulas = [_is_formula(gold) for gold in golds if not _NUMBER.fullmatch(gold)]
    if sum(formulas) >= _NEARLY_ALL * len(formulas) and any("\n" not in gold for gold in golds):
        return Answers("expressions")
    return Answers("text")


def doubts_of(answers: Answers, golds: Sequence[str]) -> list[str]:
    """What in these answers may not be what it seems: those of another kind than most, numbers that may be meant otherwise.

    >>> doubts_of(Answers("numbers"), ["1,50", "9,99", "3"])[0][:60]
    "2 answers, such as '1,50', may have a decimal comma: decimal"
    """
    most, odd = _odd_ones(golds)
    said = []
    if odd:
        taken = "they are asked for and paid" if answers.kind == most else f"all are taken as {answers.kind}"
        shown = ", ".join(map(repr, list(dict.fromkeys(shorten(gold, 60) for gold in odd))[:4]))
        said.append(
            f"{len(odd)} of {len(golds)} answers {_ODD[most]} ({shown}): as they are, {taken}; mend those rows, or leave them "
            "out if they mean that there is no answer"
        )
    measured = [gold for gold in golds if _WITH_UNIT.fullmatch(gold)]
    if 2 * len(measured) > len(golds):
        unit = re.sub(r"^[^a-zA-Z\u00b5\u00b0%$€£¥]*|[-+\u2212\d.,' ]*$", "", measured[0])
        said.append(
            f"{len(measured)} answers are a number with a unit, such as {measured[0]!r}: reward them with "
            f"gn.rewards.number(units={{{unit!r}: 1}}), which reads the number with its unit and without"
        )
    for pattern, what in _DOUBTFUL if answers.kind == "numbers" else ():
        if found := [gold for gold in golds if pattern.fullmatch(gold.strip())]:
            said.append(f"{len(found)} answers, such as {found[0]!r}, {what}")
    return said


def _odd_ones(golds: Sequence[str]) -> tuple[Kind, list[str]]:
    """The kind that most answers are of, and the few that are not; of labels, those that never come again."""
    counts = Counter(golds)
    usual = {gold for gold, count in counts.items() if count > 2 and len(gold) <= _LONGEST_LABEL}
    is_of: dict[Kind, Callable[[str], bool]] = {
        "numbers": lambda gold: bool(_NUMBER.fullmatch(gold)),
        "labels": lambda gold: gold in usual or counts[gold] > 2,
        "expressions": _is_formula,
    }
    for kind, is_such in is_of.items():
        odd = [gold for gold in golds if not is_such(gold)]
        if len(odd) <= _MOST_ODD[kind] * len(golds) and (kind != "labels" or 2 <= len(usual) <= _MOST_LABELS):
            return kind, odd
    return "text", []


def _is_formula(gold: str) -> bool:
    return bool(_NUMBER.fullmatch(gold) or (_FORMULA.search(gold) and gold.casefold() not in MISSING))


def with_point(gold: str) -> str | None:
    """A number written with a decimal comma, as English writes it, with its unit if there is one; None for any other text.

    >>> with_point("1.234,50"), with_point("-3,5 %"), with_point("EUR 12,90"), with_point("1.12.2024")
    ('1234.50', '-3.5 %', 'EUR 12.90', None)
    """
    if not re.fullmatch(
        r"[-+\u2212]?([$€£¥]|[A-Z]{3})?\s*(\d{1,3}([. '\u202f]\d{3})+|\d+)(,\d+)?\s*[^\s\d.,]{0,8}", gold
    ):
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
