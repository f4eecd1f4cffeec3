"""Rewards for the right answer. Only the answer slot counts; it must be the last word, and hold one answer.

Everything a model can do to be paid without committing itself ends here: two slots, text after the slot that takes the answer
back, several answers in one slot, and the question copied into it.
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
from grpo_nb.tasks.answers import folded, is_same_answer, is_same_json, read_json, read_letter
from grpo_nb.tasks.cleaning import ACCEPTED
from grpo_nb.tasks.numbers import plain, read_number

_LONGEST = 20_000  # characters of a slot; what is longer is no answer, and not worth the time
_OPTION = re.compile(r"^[ \t]*\(?([A-Z])[).:][ \t]+(\S.*)$", re.MULTILINE)
_LEFT_TO_COMPUTE = re.compile(r"[/^*%\\(+]|\w-|\d[eE]|\d\s\d")


@dataclass(frozen=True, kw_only=True)
class SlotReward(Reward):
    """1.0 if the answer slot holds a right answer and nothing else, else 0.0; None where the data has no gold answer.

    A reward of one's own for the slot defines `is_same`.
    """

    weight: float = 2.0
    column: str = "answer"
    """The data column with the gold answer. A list in it holds several, any of which is right."""
    looks_at: ClassVar[str] = "slot"

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        golds, given = self.golds(row), self.format.extract_last(text)
        is_answer = given is not None and len(given) <= _LONGEST
        return (
            float(is_answer and any(self.is_same(given, gold, row) for gold in golds))
            if golds
            else None
        )

    def golds(self, row: dict[str, Any]) -> list[Any]:
        """Return the gold answers of a row; none where the cell is empty (None, NaN, "").

        Where the source gave several for `answer`, `load_task` keeps all of them in the column `accepted_answers`.
        """
        golds = gold_answers(self.column_of(row, self.column))
        if self.column == "answer" and golds:
            golds += [gold for gold in gold_answers(row.get(ACCEPTED)) if gold not in golds]
        return golds

    def is_same(self, given: str, gold: Any, row: dict[str, Any]) -> bool:
        """Whether the given answer is this gold answer."""
        raise NotImplementedError


def gold_answers(value: Any) -> list[str]:
    """Return the gold answers in a cell: one, several in a list, or none where it is empty (None, NaN, "").

    >>> gold_answers(["1/2", 0.5]), gold_answers(None)
    (['1/2', '0.5'], [])
    """
    value = _without_numpy(value)
    values = value if isinstance(value, (list, tuple)) else [value]
    texts = [str(one).strip() for one in values if not _is_empty(one)]
    return [text for text in texts if text]


def _without_numpy(value: Any) -> Any:
    """Return an array or number of numpy, as a cell of pandas may hold, as a list or number."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_empty(value: Any) -> bool:
    """Say whether a value is None or what pandas has for an empty cell: NaN and NaT are not themselves, NA is neither."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # "boolean value of NA is ambiguous"
        return True


@dataclass(frozen=True, kw_only=True)
class correctness(SlotReward):
    r"""1.0 if the answer slot holds the gold answer and nothing else, else 0.0; None where there is no gold answer.

    Numbers are compared as numbers: `7`, `7.0`, `14/2`, `x = 7`, `$7$`, `7 apples` are equal. Two units must be the same, in
    any spelling: `5 min` is `5 minutes`. A gold answer of 50% is also 50 and 0.5, one of 0.5 is also 50%, and one of 42 is
    also 42%. A JSON object or array is compared by its values, an option by its letter, everything else as text
    without regard to case, wrappers and a closing mark. Not paid: a hedge such as `41 or 42`; arithmetic left undone
    (`3 + 4`); a quotient copied from the question; a second slot; an answer that is taken back after the slot.

    Args:
        weight: Of the total reward; the largest, so that being right pays more than looking right.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold answer. A list in it holds several.
        name: Under which TRL logs it.
        tolerance: Largest difference of numbers that still counts as equal. A wide one pays for guessing.

    >>> correctness()(completions=["<answer>7.0</answer>", "<answer>7 or 8</answer>"], answer=["7", "7"])
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
        is_number = read_number(gold) is not None
        return is_same_answer(given, gold, self.tolerance) and not (
            is_number and is_copied(given, gold, row)
        )


@dataclass(frozen=True, kw_only=True)
class exact_text(SlotReward):
    """1.0 if the answer slot is the gold text, letter for letter but for runs of white space; else 0.0.

    For names and code words, where `7.0` must not pass for `7`. Exact match as in SQuAD (arXiv:1606.05250), without its removal
    of articles.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold answer. A list in it holds several.
        name: Under which TRL logs it.
        is_case_sensitive: Whether `paris` is another answer than `Paris`. If not, `**Paris**` and `"Paris".` are the same, too.

    >>> exact_text()(completions=["<answer>Paris</answer>", "<answer>paris</answer>"], answer=["Paris", "Paris"])
    [1.0, 0.0]
    """

    is_case_sensitive: bool = True

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        if not self.is_case_sensitive:
            return folded(given) == folded(gold)
        return unicodedata.normalize("NFC", " ".join(given.split())) == unicodedata.normalize(
            "NFC", " ".join(gold.split())
        )


@dataclass(frozen=True, kw_only=True)
class multiple_choice(SlotReward):
    """1.0 if the answer slot holds the letter of the gold option, in any usual form, else 0.0.

    `B`, `(b)`, `B.`, `Option B`, `B) its text` and the text alone are one answer; `A or B` and `B) the text of A` are none.
    The texts are those of lines such as `B) text` in the question, as `load_task` writes them. Chance pays 1 / the number of
    options.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold letter, or the gold option's text.
        name: Under which TRL logs it.

    >>> multiple_choice()(completions=["<answer>(B)</answer>", "<answer>A or B</answer>"], answer=["B", "B"])
    [1.0, 0.0]
    """

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        found = (
            _OPTION.findall(completion_text(row["prompts"])[:_LONGEST]) if "prompts" in row else []
        )
        options = {
            letter: text
            for place, (letter, text) in enumerate(found)
            if ord(letter) == ord("A") + place
        }
        wanted = _letter_of(gold, options)
        return (
            is_same_answer(given, gold) if wanted is None else _letter_of(given, options) == wanted
        )


def _letter_of(text: str, options: Mapping[str, str]) -> str | None:
    letter, behind = read_letter(text)
    if letter and (not options or letter in options):
        is_its_text = (
            folded(behind) == folded(options[letter]) if options else is_same_answer(text, letter)
        )
        return letter if is_its_text or not behind else None
    of_this_text = [letter for letter, option in options.items() if folded(option) == folded(text)]
    return of_this_text[0] if len(of_this_text) == 1 else None


@dataclass(frozen=True, kw_only=True)
class json_answer(SlotReward):
    """1.0 if the answer slot holds exactly one JSON value that equals the gold value and fits the schema, else 0.0.

    Values are compared as JSON: the order of keys does not matter, 1 is 1.0, true is not 1.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold value, as JSON text or as an object; None to ask for the schema only, which pays
            for any value that fits.
        name: Under which TRL logs it.
        schema: A JSON schema. A reference in it that leads nowhere fits nothing, and none is fetched; a `pattern` that takes
            for ever takes the training with it.
        partial: Pay the share of an object's fields that are right: of all keys that it or the gold object has.

    Raises:
        ValueError: Neither column nor schema.
        jsonschema.SchemaError: The schema is none.

    >>> json_answer()(completions=['<answer>{"b": 1.0}</answer>', "<answer>{'b': 1}</answer>"], answer=['{"b": 1}'] * 2)
    [1.0, 0.0]
    >>> json_answer(partial=True)(completions=['<answer>{"a": 1, "b": 3}</answer>'], answer=['{"a": 1, "b": 2}'])
    [0.5]
    """

    column: str | None = "answer"
    schema: Mapping[str, Any] | str | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column is None and self.schema is None:
            raise ValueError("json_answer needs a column with the gold value, a schema, or both.")
        if isinstance(self.schema, Mapping):
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
        value, is_json = read_json(text)  # NaN and infinity, at any depth, are no JSON
        return [value] if is_json else []

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        score, golds = super().score_text(text, row), self.golds(row)
        value, gold = (
            read_json(self.format.extract_last(text) or "")[0],
            golds[0] if golds else None,
        )
        is_part = (
            self.partial and score == 0.0 and isinstance(gold, Mapping) and isinstance(value, dict)
        )
        if not is_part or not self._fits(value):
            return score
        return sum(key in value and is_same_json(value[key], gold[key]) for key in gold) / len(
            {*gold, *value}
        )

    def is_same(self, given: str, gold: Any, row: dict[str, Any]) -> bool:
        value, is_json = read_json(given)
        return is_json and (self.column is None or is_same_json(value, gold)) and self._fits(value)

    def _fits(self, value: Any) -> bool:
        from referencing.exceptions import (
            Unresolvable,  # not at the top: the lab runs where it is not installed
        )

        try:
            return self.schema is None or _validator(self.schema).is_valid(value)
        except (RecursionError, Unresolvable):
            return False


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    from jsonschema import validators  # not at the top: the lab runs where it is not installed
    from referencing import Registry

    loaded = json.loads(schema)
    kind = validators.validator_for(loaded)
    kind.check_schema(loaded)
    return kind(loaded, registry=Registry())  # which fetches nothing


@dataclass(frozen=True)
class regex_answer(SlotReward):
    r"""1.0 if the whole answer slot matches the pattern, else 0.0.

    A search is stopped after a tenth of a second, in any thread, and counts as no match. A pattern that matches much (`.*7.*`)
    pays for listing everything.

    Args:
        pattern: One pattern for all rows, as the package regex reads it; None to take each row's own from `column`.
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the patterns.
        name: Under which TRL logs it.

    Raises:
        regex.error: A pattern that cannot be read.

    >>> regex_answer(r"\d{4}-\d{2}")(completions=["<answer>2026-11</answer>", "<answer>x 2026-11</answer>"])
    [1.0, 0.0]
    """

    pattern: str | None = None
    _: KW_ONLY

    def __post_init__(self) -> None:
        super().__post_init__()
        _matches(self.pattern or "", "")  # which reads it

    def golds(self, row: dict[str, Any]) -> list[str]:
        return super().golds(row) if self.pattern is None else [self.pattern]

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        return _matches(gold, given)


@lru_cache(maxsize=1024)  # a policy that found a slow answer repeats it
def _matches(pattern: str, given: str) -> bool:
    import regex

    try:
        # Releases the interpreter while it searches, so that other threads go on.
        return regex.fullmatch(pattern, given, timeout=0.1, concurrent=True) is not None
    except TimeoutError:
        return False


def is_copied(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Whether an answer with something left to compute stands word for word in the question, and is not the gold answer.

    `84/2` is a form of 42, but as the answer to "What is 84 / 2?" it is the question. What the gold answer is may stand in
    both, in any writing: `3/4.` of "Which is larger, 3/4 or 2/3?", and `50%` where it is 50.

    >>> is_copied("84/2", "42", {"prompts": "What is 84 / 2?"}), is_copied("42", "42.0", {"prompts": "Is it 41 or 42?"})
    (True, False)
    """
    given, gold = _bare(plain(given)), _bare(plain(gold))
    if given == gold or "prompts" not in row or not _LEFT_TO_COMPUTE.search(given):
        return False
    literals = [re.match(r"-?[0-9.,]+", text) for text in (given, gold)]
    if all(literals) and literals[0][0] == literals[1][0] and read_number(gold) is not None:
        return False
    asked = completion_text(row["prompts"])
    # Not as a part of another number: 3/4 does not stand in 13/4, 2 3/4 or 3/40.
    found = rf"(?<!\d)(?<!\d[. ]){re.escape(given)}(?!\d|\.\d)"
    return any(re.search(found, _bare(text)) for text in (asked, plain(asked)))


def _bare(text: str) -> str:
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$|\\cdot(?![a-z])", "", text)
    text = re.sub(r"\\[dt]?frac{(\w+)}{(\w+)}(?!\w)", r"\1/\2", text)
    return re.sub(r"\s*([-+*/^=%(){}])\s*", r"\1", " ".join(text.split())).casefold()
