"""Rewards for the right answer as text or as a number. Only the answer slot counts, and it must hold one answer."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from grpo_nb.rewards.base import checked
from grpo_nb.rewards.slot import SlotReward, Verdicts, is_copied
from grpo_nb.tasks.notation import (
    Units,
    bare,
    is_same_json,
    plain,
    read_container,
    read_number,
    unit_of,
)

_QUOTES = str.maketrans("\u201c\u201d\u201e\u2018\u2019", '"""\'\'')
_END_MARK = re.compile(r"(?<=[^\W\d_]{2})[.!?]$")
_POUNDS = re.compile(r"(?i)\bpounds?\W*$")


def is_same_answer(given: str, gold: str, tolerance: float = 0.0) -> bool:
    r"""Compare as numbers if the gold answer is one, else as text without regard to case, white space and wrappers.

    One `variable =` before a number is part of the answer, not another one: `x = 42` is 42, `41 = 42` is not. A number with a
    unit is the same number with the same unit, and `2 h 20 min` is `140 min`. A JSON object or array is the same JSON value. Of
    a sentence the mark at its end may be another one.

    >>> is_same_answer(r"\frac{1}{2}", "0.5"), is_same_answer("x = 42", "42"), is_same_answer("41 = 42", "42")
    (True, True, False)
    >>> is_same_answer("5/2 kg", "2.5 kg"), is_same_answer("2.5", "2.5 kg"), is_same_answer("2.5 m", "2.5 kg")
    (True, False, False)
    """
    if read_number(gold) is not None:
        return is_same_number(given, gold, tolerance=tolerance)
    if (unit := unit_of(gold)) and unit == unit_of(given):
        return is_same_number(given, gold, units=(((unit, Fraction(1)),),), tolerance=tolerance)
    is_sentence = _END_MARK.search(gold.strip()) is not None
    texts = [folded(plain(text)).translate(_QUOTES) for text in (given, gold)]
    given_text, gold_text = (_END_MARK.sub("", text) if is_sentence else text for text in texts)
    is_text, wanted = given_text == gold_text, read_container(gold)
    if wanted is None:
        return is_text
    # What has no text in it, [1, 2], may be an interval, written otherwise: [1;2].
    is_interval = bare(plain(given)).replace(";", ",") == bare(plain(gold))
    return is_same_json(read_container(given), wanted) or ((is_text or is_interval) and '"' not in gold)


def is_same_number(given: str, gold: str, *, units: Units = (), tolerance: float = 0.0) -> bool:
    """Whether both are numbers, of the same variable and currency if both name one, and equal: exactly, or within a tolerance.

    >>> is_same_number("1e3", "1,000"), is_same_number("3.14", "3.14159", tolerance=0.01)
    (True, True)
    """
    right = read_number(gold, units)
    if right is not None and right.sign == "\u00a3":
        given = _POUNDS.sub("\u00a3", given)  # which are a weight where the gold answer is no price
    left = read_number(given, units)
    if left is None or right is None or not left.is_alike(right):
        return False
    if left.value == right.value:
        return True
    return tolerance > 0 and abs(left.value - right.value) <= Fraction(tolerance)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def folded(text: str) -> str:
    """The text in one case, with single spaces and composed letters."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


@dataclass(frozen=True, kw_only=True, repr=False)
class correctness(SlotReward):
    r"""1.0 if the answer slot holds the gold answer and nothing else, else 0.0; None where there is no gold answer.

    Numbers are compared as numbers (`7`, `7.0`, `+7`, `14/2`, `x = 7`, `$7$` are equal), with the unit where the gold answer
    has one, a JSON object or array as `json_answer` does, everything else as text without regard to case. Not paid: a hedge
    such as `41 or 42`; arithmetic left undone (`3 + 4`); a quotient copied from the question; a second slot; an answer that
    is taken back after the slot.

    Args:
        weight: Of the total reward; the largest, so that being right pays more than looking right.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold answer. A list in it holds several.
        name: Under which TRL logs it.
        is_last: Nothing but white space and closing marks may follow the slot. Without this, `42` in the slot and
            "no, 41" after it is paid.
        tolerance: Largest difference of numbers that still counts as equal. A wide one pays for guessing.

    >>> correctness()(completions=["<answer>7.0</answer>", "<answer>7 or 8</answer>"], answer=["7", "7"])
    [1.0, 0.0]
    """

    tolerance: float = checked("zero or a positive finite number", lambda value: 0 <= value < math.inf, 0.0)
    source: ClassVar[str] = "the kit's own; the numbers of TRL's accuracy_reward, without its holes"

    def is_same(self, given: str, gold: str, row: dict[str, Any], verdicts: Verdicts) -> bool:
        if given == gold:
            return True
        is_number = read_number(gold) is not None or unit_of(gold)
        return is_same_answer(given, gold, self.tolerance) and not (is_number and is_copied(given, gold, row))


@dataclass(frozen=True, kw_only=True, repr=False)
class exact_text(SlotReward):
    """1.0 if the answer slot is the gold text, letter for letter but for runs of white space; else 0.0.

    For names, labels, code words: where `7.0` must not pass for `7`. Several gold texts in a list: any of them.

    Args:
        is_case_sensitive: Whether `paris` is another answer than `Paris`.

    >>> exact_text()(completions=["<answer>Paris</answer>", "<answer>paris</answer>"], answer=["Paris", "Paris"])
    [1.0, 0.0]
    """

    is_case_sensitive: bool = True
    source: ClassVar[str] = "exact match, as in SQuAD (arXiv:1606.05250), without its removal of articles"

    def is_same(self, given: str, gold: str, row: dict[str, Any], verdicts: Verdicts) -> bool:
        form = _composed if self.is_case_sensitive else folded
        return form(given) == form(gold)
