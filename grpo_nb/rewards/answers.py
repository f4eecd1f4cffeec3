"""Rewards for the right answer.

They read the answer slot of a completion and nothing else. The slot must come last and hold exactly
one answer. So a model gains nothing from two slots, from text after the slot that takes the answer
back, from several answers in one slot, or from a copy of the question in it.
"""

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, ClassVar

from grpo_nb.rewards.base import Reward, completion_text
from grpo_nb.tasks.answers import (
    ACCEPTED,
    folded,
    is_same_answer,
    is_same_json,
    read_json,
    read_letter,
)
from grpo_nb.tasks.number_reading import read_number, strip_markup

_LONGEST_SLOT = 20_000
"""Characters. A longer text is not an answer, and comparing it would take time."""
_SECONDS_PER_SEARCH = 0.1
"""Time for one pattern on one answer: a pattern can backtrack for hours on a hostile text."""
_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-Z])[).:][ \t]+(\S.*)$", re.MULTILINE)
_LEFT_TO_COMPUTE = re.compile(r"[/^*%\\(+]|\w-|\d[eE]|\d\s\d")


@dataclass(frozen=True, kw_only=True)
class SlotReward(Reward):
    """1.0 if the answer slot holds a right answer and nothing else, else 0.0.

    None if the row has no gold answer.

    To write a reward for the slot, subclass this and define `is_same`.
    """

    weight: float = 2.0
    column: str = "answer"
    """Data column with the gold answer. If it holds a list, any answer in the list is right."""
    looks_at: ClassVar[str] = "slot"

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        golds = self.golds(row)
        if not golds:
            return None
        given = self.format.extract_last(text)
        if given is None or len(given) > _LONGEST_SLOT:
            return 0.0
        return float(any(self.is_same(given, gold, row) for gold in golds))

    def golds(self, row: dict[str, Any]) -> list[Any]:
        """Return the gold answers of a row; none if the cell is empty (None, NaN, "").

        If the data had several for `answer`, `load_task` keeps them in the column
        `accepted_answers`.
        """
        golds = gold_answers(self.column_of(row, self.column))
        if self.column == "answer" and golds:
            golds += [gold for gold in gold_answers(row.get(ACCEPTED)) if gold not in golds]
        return golds

    def is_same(self, given: str, gold: Any, row: dict[str, Any]) -> bool:
        """Return True if the given answer is this gold answer."""
        raise NotImplementedError


def gold_answers(value: Any) -> list[str]:
    """Return the gold answers in a cell: one, several from a list, or none if it is empty.

    Empty are None, NaN and "".

    >>> gold_answers(["1/2", 0.5]), gold_answers(None)
    (['1/2', '0.5'], [])
    """
    value = _without_numpy(value)
    values = value if isinstance(value, (list, tuple)) else [value]
    texts = [str(one).strip() for one in values if not _is_empty(one)]
    return [text for text in texts if text]


def _without_numpy(value: Any) -> Any:
    """Return an array or number of numpy, which a cell of pandas may hold, as a list or number."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_empty(value: Any) -> bool:
    """Return True for None and for the empty cells of pandas: NaN, NaT and NA."""
    try:
        # NaN and NaT are not equal to themselves.
        return value is None or bool(value != value)
    except TypeError:
        # pandas raises "boolean value of NA is ambiguous".
        return True


@dataclass(frozen=True, kw_only=True)
class correctness(SlotReward):
    r"""1.0 if the answer slot holds the gold answer, else 0.0; None without a gold answer.

    * Numbers are compared as numbers: `7`, `7.0`, `14/2`, `x = 7`, `$7$` and `7 apples` are equal.
    * Units must match, in any spelling: `5 min` is `5 minutes`. A unit on one side only is
      accepted.
    * A percent sign may be left out: gold 50% accepts 50 and 0.5, gold 0.5 accepts 50%, and gold 42
      accepts 42%.
    * JSON objects and arrays are compared by their values, and options by their letter.
    * Everything else is compared as text, without regard to case, wrappers and a closing mark.

    These score 0.0: a hedge such as `41 or 42`; arithmetic that is left undone (`3 + 4`); a
    quotient copied from the question; a second slot; an answer that is taken back after the slot.

    Args:
        weight: Part in the total reward; the largest, so that being right scores more than the
            format.
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
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(
                f"tolerance = {self.tolerance!r} must be zero or a positive finite number."
            )

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        if given == gold:
            return True
        if not is_same_answer(given, gold, self.tolerance):
            return False
        is_number = read_number(gold) is not None
        return not (is_number and is_copied(given, gold, row))


@dataclass(frozen=True, kw_only=True)
class exact_text(SlotReward):
    """1.0 if the answer slot is the gold text, letter for letter, else 0.0.

    Only runs of white space may differ. Use it for names and code words, for which `7.0` must not
    be equal to `7`. Source: exact match as in SQuAD (arXiv:1606.05250), without its removal of
    articles.

    Args:
        weight: Part in the total reward.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold answer. A list in it holds several.
        name: Name in TRL's logs.
        is_case_sensitive: True if `paris` is not `Paris`. If False, `**Paris**` and `"Paris".` are
            accepted too.

    >>> completions = ["<answer>Paris</answer>", "<answer>paris</answer>"]
    >>> exact_text()(completions=completions, answer=["Paris", "Paris"])
    [1.0, 0.0]
    """

    is_case_sensitive: bool = True

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        if self.is_case_sensitive:
            return _in_one_spelling(given) == _in_one_spelling(gold)
        return folded(given) == folded(gold)


def _in_one_spelling(text: str) -> str:
    """Return a text with single spaces, and with each accented letter as one character."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


@dataclass(frozen=True, kw_only=True)
class multiple_choice(SlotReward):
    """1.0 if the answer slot holds the letter or the text of the gold option, else 0.0.

    For B these are all right: `B`, `(b)`, `B.`, `Option B`, `B) its text` and the text alone. `A or
    B` and `B) the text of A` are wrong. The texts of the options are read from lines such as `B)
    text` in the question, as `load_task` writes them. A guess scores 1 / the number of options on
    average.

    Args:
        weight: Part in the total reward.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold letter, or with the text of the gold option.
        name: Name in TRL's logs.

    >>> completions = ["<answer>(B)</answer>", "<answer>A or B</answer>"]
    >>> multiple_choice()(completions=completions, answer=["B", "B"])
    [1.0, 0.0]
    """

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        options = _options_in(completion_text(row["prompts"])) if "prompts" in row else {}
        gold_letter = _letter_of(gold, options)
        if gold_letter is None:
            return is_same_answer(given, gold)
        return _letter_of(given, options) == gold_letter


def _options_in(question: str) -> dict[str, str]:
    """Return the text of each option in a question by its letter."""
    options = {}
    for place, (letter, text) in enumerate(_OPTION_LINE.findall(question[:_LONGEST_SLOT])):
        if ord(letter) == ord("A") + place:
            options[letter] = text
    return options


def _letter_of(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that a text names; None if it names none or several."""
    letter, text_after = read_letter(text)
    if letter and (not options or letter in options):
        if not text_after:
            return letter
        if options and folded(text_after) == folded(options[letter]):
            return letter
        return letter if not options and is_same_answer(text, letter) else None
    letters = [letter for letter, option in options.items() if folded(option) == folded(text)]
    return letters[0] if len(letters) == 1 else None


@dataclass(frozen=True, kw_only=True)
class json_answer(SlotReward):
    """1.0 if the answer slot holds the gold JSON value, and the value fits the schema; else 0.0.

    Values are compared as JSON: the order of keys does not matter, 1 is 1.0, and true is not 1.

    Args:
        weight: Part in the total reward.
        format: Where the answer is written; `xml()` if not given.
        column: The data column with the gold value, as JSON text or as an object. With None any
            value that fits the schema is right.
        name: Name in TRL's logs.
        schema: A JSON schema. References are not fetched; no value fits a reference that cannot be
            resolved. A `pattern` that backtracks for ever stops the training.

    Raises:
        ValueError: Neither a column nor a schema is given.
        jsonschema.SchemaError: The schema is not a valid JSON schema.

    >>> completions = ['<answer>{"b": 1.0}</answer>', "<answer>{'b': 1}</answer>"]
    >>> json_answer()(completions=completions, answer=['{"b": 1}', '{"b": 1}'])
    [1.0, 0.0]
    """

    column: str | None = "answer"
    schema: Mapping[str, Any] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column is None and self.schema is None:
            raise ValueError("json_answer needs a column with the gold value, a schema, or both.")
        if isinstance(self.schema, Mapping):
            # As text, so that the reward can be compared, hashed and recorded.
            object.__setattr__(self, "schema", json.dumps(self.schema, sort_keys=True))
        if self.schema is not None:
            _validator(self.schema)

    def golds(self, row: dict[str, Any]) -> list[Any]:
        if self.column is None:
            return [None]
        gold = _without_numpy(self.column_of(row, self.column))
        if _is_empty(gold):
            return []
        text = gold if isinstance(gold, str) else json.dumps(gold, default=str)
        # A value with NaN or infinity in it is not JSON.
        value, is_json = read_json(text)
        return [value] if is_json else []

    def is_same(self, given: str, gold: Any, row: dict[str, Any]) -> bool:
        value, is_json = read_json(given)
        if not is_json:
            return False
        return (self.column is None or is_same_json(value, gold)) and self._fits(value)

    def _fits(self, value: Any) -> bool:
        if self.schema is None:
            return True
        # Imported here, because the lab also runs where jsonschema is not installed.
        from referencing.exceptions import Unresolvable

        try:
            return _validator(self.schema).is_valid(value)
        except (RecursionError, Unresolvable):
            return False


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import validators
    from referencing import Registry

    loaded = json.loads(schema)
    kind = validators.validator_for(loaded)
    kind.check_schema(loaded)
    # An empty registry fetches no reference from the network.
    return kind(loaded, registry=Registry())


@dataclass(frozen=True)
class regex_answer(SlotReward):
    r"""1.0 if the whole answer slot matches the pattern, else 0.0.

    A search that takes more than 0.1 s is stopped and scores 0.0. A loose pattern such as `.*7.*`
    rewards a list of everything.

    Args:
        pattern: A pattern of the package `regex`.
        weight: Part in the total reward.
        format: Where the answer is written; `xml()` if not given.
        name: Name in TRL's logs.

    Raises:
        regex.error: The pattern cannot be read.

    >>> completions = ["<answer>2026-11</answer>", "<answer>x 2026-11</answer>"]
    >>> regex_answer(r"\d{4}-\d{2}")(completions=completions)
    [1.0, 0.0]
    """

    pattern: str
    _: KW_ONLY

    def __post_init__(self) -> None:
        super().__post_init__()
        # Compiles the pattern, so that a mistake in it is reported now.
        _matches(self.pattern, "")

    def golds(self, row: dict[str, Any]) -> list[str]:
        return [self.pattern]

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        return _matches(gold, given)


# Cached, because a model that has found a slow answer repeats it.
@lru_cache(maxsize=1024)
def _matches(pattern: str, given: str) -> bool:
    import regex

    try:
        # `concurrent` releases the interpreter, so that other threads run during the search.
        match = regex.fullmatch(pattern, given, timeout=_SECONDS_PER_SEARCH, concurrent=True)
    except TimeoutError:
        return False
    return match is not None


def is_copied(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Return True if an answer is copied from the question with its arithmetic left undone.

    `84/2` is equal to 42, but after "What is 84 / 2?" it only repeats the question. The gold answer
    itself may be in the question, in any spelling: `3/4.` after "Which is larger, 3/4 or 2/3?".

    >>> is_copied("84/2", "42", {"prompts": "What is 84 / 2?"})
    True
    >>> is_copied("42", "42.0", {"prompts": "Is it 41 or 42?"})
    False
    """
    given = _bare(strip_markup(given))
    gold = _bare(strip_markup(gold))
    if given == gold or "prompts" not in row or not _LEFT_TO_COMPUTE.search(given):
        return False
    digits = _digits_at_start(given)
    if digits and digits == _digits_at_start(gold) and read_number(gold) is not None:
        # The same number with another unit, such as 50% for 50, leaves nothing to compute.
        return False
    # Not as a part of another number: 3/4 is not a part of 13/4, 2 3/4 or 3/40.
    pattern = rf"(?<!\d)(?<!\d[. ]){re.escape(given)}(?!\d|\.\d)"
    question = completion_text(row["prompts"])
    return any(re.search(pattern, _bare(text)) for text in (question, strip_markup(question)))


def _digits_at_start(text: str) -> str:
    match = re.match(r"-?[0-9.,]+", text)
    return match[0] if match else ""


def _bare(text: str) -> str:
    """Return a text without spaces around operators, LaTeX spacing and upper case."""
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$|\\cdot(?![a-z])", "", text)
    text = re.sub(r"\\[dt]?frac{(\w+)}{(\w+)}(?!\w)", r"\1/\2", text)
    return re.sub(r"\s*([-+*/^=%(){}])\s*", r"\1", " ".join(text.split())).casefold()
