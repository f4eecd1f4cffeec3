"""Rewards that compare the answer slot of a completion with the gold answer.

A `SlotReward` reads the slot and no other text of the completion. The slot must come last and hold
exactly one answer. So a model gains nothing from two slots, from text after the slot that takes the
answer back, or from several answers in one slot. With `correctness` and `maths`, copying the
question gains nothing either: `question_text` compares the slot with the prompt.
"""

import json
import unicodedata
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.words import require_number
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.question_text import fits_question, resolve_option
from grpo_nb.tasks.answers import ACCEPTED_COLUMN, is_right_answer, normalize_answer
from grpo_nb.tasks.read_rows import Row

_LONGEST_SLOT = 20_000
"""Longest slot that is compared, in characters. A longer one scores 0.0."""


class Undecided(Exception):
    """A comparison took too much time or memory, so nobody knows if the answer is right."""


@dataclass(frozen=True, kw_only=True)
class SlotReward(Reward):
    """1.0 if the answer slot holds a right answer and nothing else, else 0.0.

    None if the row has no gold answer, or the comparison could not be finished (`Undecided`).

    To write a reward for the slot, subclass this and define `is_same`.
    """

    weight: float = 2.0
    column: str = "answer"
    """Data column with the gold answer. If it holds a list, any answer in the list is right."""
    range = (0.0, 1.0)

    def score_text(self, text: str, row: Row) -> float | None:
        golds = self.golds(row)
        if not golds:
            return None
        # Text after the slot could take the answer back, so the slot must come last.
        given = self.format.extract_final(text)
        if given is None or len(given) > _LONGEST_SLOT:
            return 0.0
        score: float | None = 0.0
        for gold in golds:
            try:
                if self.is_same(given, gold, row):
                    return 1.0
            except Undecided:
                # The score is unknown, unless the answer equals another gold answer.
                score = None
        return score

    def golds(self, row: Row) -> list[str]:
        """Return the gold answers of a row; none if the cell is empty (None, NaN, "")."""
        self.require_column(row, self.column)
        return golds_of_row(row, self.column)

    def is_same(self, given: str, gold: str, row: Row) -> bool:
        """Return True if the answer in the slot is this gold answer. Other columns are in `row`.

        Raises:
            Undecided: The comparison was not finished.
        """
        raise NotImplementedError


def golds_of_row(row: Row, column: str) -> list[str]:
    """Return the gold answers in a column of a row, each once; none if the cell is empty.

    If the column is `answer`, the right answers in `accepted_answers` are added.
    """
    golds = golds_in_cell(row.get(column))
    if column == "answer" and golds and ACCEPTED_COLUMN in row:
        golds += golds_in_cell(row[ACCEPTED_COLUMN])
    return list(dict.fromkeys(golds))


def golds_in_cell(cell: Any) -> list[str]:
    """Return the gold answers in a cell: one, several from a list, or none if it is empty.

    A cell is empty if it holds None, NaN or "". A dict, or a list in the list, is a JSON answer.

    >>> golds_in_cell(["1/2", 0.5, ["a"]]), golds_in_cell(None)
    (['1/2', '0.5', '["a"]'], [])
    """
    # Imported here, because importing the package must not load pandas.
    from pandas import isna
    from pandas.api.types import is_list_like

    # Lists, tuples and numpy arrays are list-like, and so is a dict.
    is_list = is_list_like(cell) and not isinstance(cell, dict)
    texts = []
    for answer in cell if is_list else [cell]:
        if is_list_like(answer):
            texts.append(json.dumps(answer, default=_json_or_text, ensure_ascii=False))
        elif not isna(answer):
            texts.append(str(answer).strip())
    return [text for text in texts if text]


def _json_or_text(value: Any) -> Any:
    """Return a value that `json` can write: a value of numpy becomes one of Python, others text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@dataclass(frozen=True, kw_only=True)
class correctness(SlotReward):
    r"""1.0 if the answer slot holds the gold answer, else 0.0; None without a gold answer.

    * Numbers are compared as numbers: `7`, `7.0`, `14/2`, `x = 7`, `$7$` and `7 apples` are equal.
    * Units must match, in any spelling: for `5 min`, `5 minutes` and `5` are right. If the gold
      answer has no unit, the answer may have one that fits the question: for `5`, `5 min` is right
      after "How many minutes?".
    * Percent signs are optional: gold 50% accepts 50 and 0.5, gold 0.5 accepts 50%, and gold 42
      accepts 42%.
    * JSON objects and arrays are compared by their values.
    * An option is compared by its letter: for B, `b`, `(B)`, `Option B` and `B) its text` are
      right. `A or B` is wrong, and so is `B)` with any text but that of option B.
    * Everything else is compared as text, without regard to case, wrappers such as `**`, and a `.`
      or `!` at the end.

    These completions score 0.0:

    * several answers in the slot, such as `41 or 42`, or a second slot
    * arithmetic that is left undone, such as `3 + 4`
    * a quotient copied from the question, `84/2`, also as `x = 84/2 apples`; other quotients are
      numbers
    * text after the slot, because it could take the answer back

    Args:
        weight: Weight in the total reward. Keep it above the sum of the format rewards' weights.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold answer. A list holds several right answers.
        name: Name in TRL's logs.
        tolerance: Largest difference that is accepted. A wide tolerance rewards guessing.

    >>> completions = ["<answer>7.0</answer>", "<answer>7 or 8</answer>"]
    >>> correctness()(completions=completions, answer=["7", "7"])
    [1.0, 0.0]
    """

    tolerance: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("tolerance", self.tolerance, 0)

    def is_same(self, given: str, gold: str, row: Row) -> bool:
        given = resolve_option(given, gold, row)
        is_right = is_right_answer(given, gold, self.tolerance)
        return is_right and fits_question(given, gold, row)


@dataclass(frozen=True, kw_only=True)
class exact_text(SlotReward):
    """1.0 if the slot holds exactly the gold text, else 0.0.

    By default, only the white space between words and the encoding of an accented letter may
    differ. Use it for names and code words, where `7.0` must not equal `7`. Labels need
    `is_literal=False`, which ignores capitals and wrappers. Unlike the exact match of SQuAD
    (arXiv:1606.05250), it counts capitals, punctuation and articles.

    Args:
        weight: Weight in the total reward.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold answer. A list holds several right answers.
        name: Name in TRL's logs.
        is_literal: If True, the texts must be the same: `paris` is wrong for `Paris`. If False,
            they are compared as in `correctness`: `paris`, `**Paris**` and `"Paris".` are right.

    >>> completions = ["<answer>Paris</answer>", "<answer>paris</answer>"]
    >>> exact_text()(completions=completions, answer=["Paris", "Paris"])
    [1.0, 0.0]
    """

    is_literal: bool = True

    def is_same(self, given: str, gold: str, row: Row) -> bool:
        if self.is_literal:
            return _single_spaced(given) == _single_spaced(gold)
        return normalize_answer(given) == normalize_answer(gold)


def _single_spaced(text: str) -> str:
    """Return a text with single spaces, and with each accented letter as one character."""
    return unicodedata.normalize("NFC", " ".join(text.split()))
