"""Rewards that compare the answer slot of a completion with the gold answer.

A `SlotReward` reads the slot and nothing else. The slot must come last and hold exactly one answer.
So a model gains nothing from two slots, from text after the slot that takes the answer back, from
several answers in one slot, or from a copy of the question in it.
"""

import json
import re
import string
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.words import require_number
from grpo_nb.rewards.base import Completion, Reward
from grpo_nb.tasks.answers import ACCEPTED, folded, is_same_answer, read_letter
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.markup import in_one_spelling, strip_markup
from grpo_nb.tasks.number_reading import read_number

_LONGEST_SLOT = 20_000
"""Characters. A longer text is not an answer, and comparing it would take time."""
# 84/2, 2^3, 3*4, 50%, 3-1, 2e5, 1 2
_UNEVALUATED = re.compile(r"[/^*%\\(+]|\w-|\d[eE]|\d\s\d")
_NOT_IN_NUMBERS = re.compile(r"[^0-9.]")
# A), (a), B., [C], **D:** and \textbf{(E) }
_OPTION_MARK = re.compile(r"(?<!\w)([A-Za-z])[)\].:][\s}*]*")
_OPTIONS_IN_LIST = re.compile(r"\[([^\[\]]+)\]")
# Fails between two characters of one word.
_EDGE = r"(?!(?<=\w)(?=\w))"
# A system prompt may show how an answer is written, such as 1/2, and a model may write that.
_ASKING_ROLES = ("user", "tool")


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

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        golds = self.golds(row)
        if not golds:
            return None
        # Text after the slot could take the answer back, so the slot must come last.
        given = self.format.extract_last(text)
        if given is None or len(given) > _LONGEST_SLOT:
            return 0.0
        score: float | None = 0.0
        for gold in golds:
            try:
                if self.is_same(given, gold, row):
                    return 1.0
            except Undecided:
                # The comparison could have made it 1.0.
                score = None
        return score

    def golds(self, row: dict[str, Any]) -> list[str]:
        """Return the gold answers of a row; none if the cell is empty (None, NaN, "")."""
        return golds_of_row(row, self.column, self.value_in(row, self.column))

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        """Return True if the given answer is this gold answer.

        Raises:
            Undecided: The comparison was not finished.
        """
        raise NotImplementedError


def golds_of_row(row: Mapping[str, Any], column: str, cell: Any) -> list[str]:
    """Return the gold answers in a cell of a row, each once; none if the cell is empty.

    Rows with several right answers keep the others in `accepted_answers`. These count too, but
    only for the column `answer`.
    """
    golds = golds_in_cell(cell)
    if column == "answer" and golds:
        golds += golds_in_cell(row.get(ACCEPTED))
    return list(dict.fromkeys(golds))


def golds_in_cell(cell: Any) -> list[str]:
    """Return the gold answers in a cell: one, several from a list, or none if it is empty.

    A cell is empty if it holds None, NaN or "". A dict, or a list in the list, is a JSON answer.

    >>> golds_in_cell(["1/2", 0.5, ["a"]]), golds_in_cell(None)
    (['1/2', '0.5', '["a"]'], [])
    """
    # Imported here, because importing the package must not load it.
    import pandas

    cell = _without_numpy(cell)
    answers = cell if isinstance(cell, (list, tuple)) else [cell]
    texts = []
    for answer in map(_without_numpy, answers):
        if isinstance(answer, (dict, list, tuple)):
            texts.append(json.dumps(answer, default=_for_json))
        elif not pandas.isna(answer):
            texts.append(str(answer).strip())
    return [text for text in texts if text]


def _without_numpy(value: Any) -> Any:
    """Return an array or number of numpy as a list or number of Python, and the rest as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _for_json(value: Any) -> Any:
    """Return a value inside a JSON answer as `json` can write it: a date, for example, as text."""
    plain = _without_numpy(value)
    return str(value) if plain is value else plain


@dataclass(frozen=True, kw_only=True)
class correctness(SlotReward):
    r"""1.0 if the answer slot holds the gold answer, else 0.0; None without a gold answer.

    * Numbers are compared as numbers: `7`, `7.0`, `14/2`, `x = 7`, `$7$` and `7 apples` are equal.
    * Units must match, in any spelling: `5 min` is `5 minutes`. A unit on one side only is
      accepted.
    * A percent sign may be left out: gold 50% accepts 50 and 0.5, gold 0.5 accepts 50%, and gold 42
      accepts 42%.
    * JSON objects and arrays are compared by their values.
    * An option is compared by its letter: for B, `b`, `(B)`, `Option B` and `B) its text` are
      right. `A or B` is wrong, and so is `B)` with a text that the question does not have after B.
    * Everything else is compared as text, without regard to case, wrappers such as `**`, and a `.`
      or `!` at the end.

    These score 0.0: several answers, such as `41 or 42`; arithmetic that is left undone
    (`3 + 4`); a quotient copied from the question; a second slot; an answer that is taken back
    after the slot.

    Args:
        weight: Weight in the total reward. Keep it above the format rewards together.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold answer. A list in it holds several.
        name: Name in TRL's logs.
        tolerance: Largest difference of two equal numbers. A wide tolerance rewards guessing.

    >>> completions = ["<answer>7.0</answer>", "<answer>7 or 8</answer>"]
    >>> correctness()(completions=completions, answer=["7", "7"])
    [1.0, 0.0]
    """

    tolerance: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("tolerance", self.tolerance, 0, is_whole=False)

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        if not is_same_answer(given, gold, self.tolerance):
            return False
        if is_contradictory_option(given, gold, row):
            return False
        # Only a number can be equal to arithmetic that was copied from the question.
        is_number = read_number(gold) is not None
        return not (is_number and is_copied_from_question(given, gold, row, self.format))


@dataclass(frozen=True, kw_only=True)
class exact_text(SlotReward):
    """1.0 if the answer slot is the gold text, letter for letter, else 0.0.

    Only runs of white space may differ, and the encoding of an accented letter. Use it for names
    and code words, for which `7.0` must not be equal to `7`. Source: exact match as in SQuAD
    (arXiv:1606.05250), without its removal of articles.

    Args:
        weight: Weight in the total reward.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold answer. A list in it holds several.
        name: Name in TRL's logs.
        is_case_sensitive: True if `paris` is not `Paris`. If False, texts are compared as in
            `correctness`: `**Paris**` and `"Paris".` are accepted too.

    >>> completions = ["<answer>Paris</answer>", "<answer>paris</answer>"]
    >>> exact_text()(completions=completions, answer=["Paris", "Paris"])
    [1.0, 0.0]
    """

    is_case_sensitive: bool = True

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        if self.is_case_sensitive:
            return _normalized(given) == _normalized(gold)
        return folded(given) == folded(gold)


def _normalized(text: str) -> str:
    """Return a text with single spaces, and with each accented letter as one character."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def is_contradictory_option(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Return True if an answer is a letter with a text that is not this option in the question.

    Otherwise the letter of one option with the text of another would be right for both. Always
    False if the gold answer is more than a letter.
    """
    letter, text_after = read_letter(given)
    if not text_after or "prompts" not in row or read_letter(gold) != (letter, ""):
        return False
    text_after = re.escape(_for_search(folded(text_after)))
    option = rf"(?<!\w){letter.casefold()}\W{{1,6}}{text_after}{_EDGE}"
    # `read_letter` takes ** out of the answer too.
    question = _text_of_prompt(row["prompts"]).replace("**", "")
    return re.search(option, _for_search(question)) is None


def options_in_question(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the letter and text of each option, also of a list without letters.

    >>> options_in_question({"prompts": "Which? A) 5, B) 6"})
    [('A', '5'), ('B', '6')]
    >>> options_in_question({"prompts": "Which city? ['Rome', 'Paris']"})
    [('A', 'Rome'), ('B', 'Paris')]
    """
    question = _text_of_prompt(row["prompts"])
    _, *marked = _OPTION_MARK.split(question)
    texts = marked[1::2]
    letters: Iterable[str] = marked[::2]
    lists = _OPTIONS_IN_LIST.findall(question)
    if len(texts) < 2 and lists:
        texts = lists[-1].split(", ")
        letters = string.ascii_uppercase
    # An option ends with its line, and before the punctuation between two options.
    lines = [text.partition("\n")[0].strip(" '\",;?(") for text in texts]
    return list(zip(letters, lines, strict=False))


def option_starts_with(option: str, text: str) -> bool:
    """Return True if an option begins with a text, such as "Rome" for "Rome (Italy)".

    The 5 of `5.5` or `5 + x` is no beginning: it is a part of a number or expression.
    """
    start = re.escape(_for_search(folded(text)))
    return re.match(rf"{start}{_EDGE}(?![.,]?\d|[-+*/^=])", _for_search(option)) is not None


def is_copied_from_question(
    given: str, gold: str, row: Mapping[str, Any], format: AnswerFormat
) -> bool:
    """Return True if an answer is copied from the question with its arithmetic left undone.

    `84/2` is equal to 42, but after "What is 84 / 2?" it only repeats the question. False for the
    gold answer itself, which a question may name: `3/4.` after "Which is larger, 3/4 or 2/3?".

    >>> from grpo_nb.tasks.formats import xml
    >>> is_copied_from_question("84/2", "42", {"prompts": "What is 84 / 2?"}, xml())
    True
    >>> is_copied_from_question("42", "42.0", {"prompts": "Is it 41 or 42?"}, xml())
    False
    """
    is_number = read_number(gold) is not None
    given = _for_search(strip_markup(given))
    gold = _for_search(strip_markup(gold))
    if given == gold or "prompts" not in row or not _UNEVALUATED.search(given):
        return False
    has_same_digits = _NOT_IN_NUMBERS.sub("", given) == _NOT_IN_NUMBERS.sub("", gold)
    if is_number and has_same_digits:
        # The same number with another unit, such as 50% for 50, leaves nothing to compute.
        return False
    # The copy must not be a part of another number: 3/4 is not copied from 13/4, 2 3/4 or 3/40.
    pattern = rf"(?<!\d)(?<!\d[. ]){re.escape(given)}(?!\d|\.\d)"
    if not is_number:
        # Nor of another expression: x+1 is not copied from ax+1, and 1+x not from 1+x^2.
        pattern = rf"{_EDGE}{pattern}{_EDGE}(?!(?<=[a-z])\^)"
    asked = _text_of_prompt(_after_examples(row["prompts"], format), _ASKING_ROLES)
    return re.search(pattern, _for_search(asked)) is not None


def _after_examples(prompt: Completion, format: AnswerFormat) -> Completion:
    """Return the turns after the last answer of the assistant: the turns before it are examples.

    Other turns of the assistant, such as "Shall I compute it?", leave the question open.
    """
    if isinstance(prompt, str) or not prompt:
        return prompt
    start = 0
    # The last turn of all may be the beginning of the completion.
    for place, turn in enumerate(prompt[:-1], start=1):
        # A call of a tool is no answer either.
        if turn.get("role") != "assistant" or turn.get("tool_calls"):
            continue
        if format.extract(_text_of_prompt([turn])) is not None:
            start = place
    return prompt[start:]


def _text_of_prompt(prompt: Completion, roles: Collection[str] = ()) -> str:
    """Return the text of all messages of a prompt, or of those with one of these roles."""
    if isinstance(prompt, str):
        return prompt
    turns = [turn for turn in prompt or () if not roles or turn.get("role") in roles]
    return "\n".join(str(turn.get("content") or "") for turn in turns)


def _for_search(text: str) -> str:
    """Return a text in lower case and one spelling, without spaces around operators."""
    # Not `strip_markup`, which leaves a question of more than 2,000 characters as it is.
    text = in_one_spelling(" ".join(text.split()))
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$|\\cdot(?![a-z])", "", text)
    text = re.sub(r"\\[dt]?frac{(\w+)}{(\w+)}(?!\w)", r"\1/\2", text)
    return re.sub(r"\s*([-+*/^=%(){}])\s*", r"\1", " ".join(text.split())).casefold()
