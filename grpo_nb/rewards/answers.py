"""Rewards for the right answer. Only the answer slot counts, and it must hold one answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.rewards.base import Reward

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")


def parse_number(text: str) -> Fraction | None:
    """Return the number that the whole text is, exactly, or None if it is anything else.

    Takes signs, thousands separators, decimals, a currency sign before and a full stop after. Longer than 64
    characters is nobody's number.

    >>> parse_number("$1,250.50") == Fraction("1250.5")
    True
    >>> parse_number("41 or 42") is None
    True
    """
    text = text.strip()
    if len(text) > 64:
        return None
    text = text.removeprefix("$").removesuffix(".").replace("\u2212", "-").strip()
    # isascii: \d and Fraction take digits of every script, which no gold answer here is written in.
    if not text.isascii() or not any(c.isdigit() for c in text) or not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def is_same_answer(given: str, gold: str) -> bool:
    """Compare as numbers if the gold answer is one, else as text without regard to case and white space."""
    number = parse_number(gold)
    if number is not None:
        return parse_number(given) == number
    return " ".join(given.casefold().split()) == " ".join(gold.casefold().split())


@dataclass(frozen=True, repr=False)
class _Correctness(Reward):
    column: str = "answer"

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        if self.column not in row:
            raise ValueError(
                f"the reward {self.__name__!r} needs the data column {self.column!r}, but the data has "
                f"{sorted(row) or 'no columns'}; write correctness(column=...) or rename the column."
            )
        given = self.format.extract(text)
        return float(given is not None and is_same_answer(given, str(row[self.column])))


def correctness(
    *, weight: float = 2.0, format: AnswerFormat | None = None, column: str = "answer", name: str = "correctness"
) -> Reward:
    r"""1.0 if the answer slot holds the gold answer and nothing else, else 0.0.

    Numbers are compared as numbers (`7`, `7.0` and `+7` are equal), everything else as text. A hedge such as `41 or 42`
    is not an answer.

    Args:
        weight: Of the total reward; the largest, so that being right pays more than looking right.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold answer.

    >>> correctness()(completions=["<answer>7.0</answer>", "<answer>7 or 8</answer>"], answer=["7", "7"])
    [1.0, 0.0]
    """
    return _Correctness(weight=weight, format=format or xml(), column=column, name=name)
