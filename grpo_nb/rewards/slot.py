"""What all rewards for the answer share: the slot must be the completion's last word, and hold one answer.

Everything a model can do to be paid without committing itself ends here: two slots, text after the slot that takes the answer
back, several answers in one slot, and the question copied into it.
"""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.base import Reward, completion_text


@dataclass(frozen=True, repr=False)
class SlotReward(Reward):
    """1.0 if the answer slot holds a right answer and nothing else, else 0.0; None where the data has no gold answer."""

    column: str = "answer"
    is_last: bool = True
    needs_all: bool = False

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        golds = self.golds(row)
        if not golds:
            return None
        given = self.given(text)
        return float(given is not None and self.is_right(given, golds, row))

    def golds(self, row: dict[str, Any]) -> list[str]:
        """The gold answers of a row; none where the column is empty."""
        return gold_answers(self.column_of(row, self.column))

    def given(self, text: str) -> str | None:
        """What the completion gives as its answer, if it gives one."""
        return self.format.extract_last(text) if self.is_last else self.format.extract(text)

    def is_right(self, given: str, golds: list[str], row: dict[str, Any]) -> bool:
        """Whether any gold answer is given, or, with `needs_all`, all of them and no other."""
        if not self.needs_all:
            return any(self.is_same(given, gold, row) for gold in golds)
        open_golds = list(golds)
        pieces = split_answers(given, len(golds))
        for piece in pieces:
            found = next((gold for gold in open_golds if self.is_same(piece, gold, row)), None)
            if found is None:
                return False
            open_golds.remove(found)
        return not open_golds

    @abc.abstractmethod
    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        """Whether one given answer is one gold answer."""


def gold_answers(value: Any) -> list[str]:
    """Return the gold answers in a cell: one, several in a list, or none where it is empty (None, NaN, "").

    >>> gold_answers(["1/2", 0.5]), gold_answers(None)
    (['1/2', '0.5'], [])
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    is_there = lambda v: v is not None and not (isinstance(v, float) and math.isnan(v)) and str(v).strip()  # noqa: E731
    return [str(v).strip() for v in values if is_there(v)]


def split_answers(text: str, count: int) -> list[str]:
    r"""Split a list of answers, such as `{1, 2}`, `x = 1 or x = 2` or `1; 2`, into its parts.

    A comma without a space is tried last, because of `1,234`.

    >>> split_answers(r"\{1,000, 2\}", 2)
    ['1,000', '2']
    """
    text = text.strip().removeprefix("$").removesuffix("$").strip()
    for start, end in (("\\left\\{", "\\right\\}"), ("\\{", "\\}"), ("{", "}"), ("[", "]")):
        if text.startswith(start) and text.endswith(end):
            text = text[len(start) : -len(end)].strip()
            break
    parts = [text]
    for separator in (r";|,\s*(?:and|or)\s|\s(?:and|or)\s|,\s", ","):
        parts = [part.strip() for part in re.split(separator, text)]
        if len(parts) >= count:
            break
    return parts


def is_copied(given: str, row: Mapping[str, Any]) -> bool:
    """Whether an answer with something left to compute stands word for word in the question.

    `84/2` is a form of 42, but as the answer to "What is 84 / 2?" it is the question. A number without any sign in it may
    stand in both.

    >>> is_copied("84/2", {"prompts": "What is 84 / 2?"}), is_copied("42", {"prompts": "Is it 41 or 42?"})
    (True, False)
    """
    if not re.search(r"[/^*%\\(+]|\w\s*-|\d[eE]|\d\s+\d", given) or "prompts" not in row:
        return False
    return _bare(given) in _bare(completion_text(row["prompts"]))


def _bare(text: str) -> str:
    return re.sub(r"\\(?:left|right|[,!;: ])|[\s$]", "", text).replace("\\dfrac", "\\frac").casefold()
