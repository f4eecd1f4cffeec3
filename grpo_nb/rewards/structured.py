"""Rewards for multiple choice, for a JSON value and for a text that fits a pattern."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, ClassVar

from grpo_nb.rewards.answers import folded
from grpo_nb.rewards.base import completion_text
from grpo_nb.rewards.slot import Question, SlotReward, TimedReward, Verdicts, gold_answers, seconds
from grpo_nb.tasks.notation import is_same_json, plain, read_json

_LONGEST = 20_000  # characters of a slot; what is longer is no answer, and not worth the time


@dataclass(frozen=True, kw_only=True, repr=False)
class multiple_choice(SlotReward):
    """1.0 if the answer slot holds the label of the gold option, in any usual form, else 0.0.

    `B`, `b`, `(B)`, `B.`, `B) its text` and the text alone are one answer; `A or B` and `B) the text of A` are none. Texts
    are known from the data column with the options (a list of texts, `{"A": text}`, or ARC's `{"label": [], "text": []}`), else
    from lines such as `B) text` in the question; where neither is there, a label must stand alone.
    Chance pays 1 / the number of options: look at the score minus that.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold label or the gold option's text; None in a row where it is neither.
        name: Under which TRL logs it.
        is_last: Nothing but white space and closing marks may follow the slot.
        options_column: The data column with the options, if there is one.
        labels: One character for each option, in order.

    >>> reward = multiple_choice()
    >>> reward(completions=["<answer>(B)</answer>", "<answer>A or B</answer>"], answer=["B", "B"])
    [1.0, 0.0]
    """

    options_column: str = "options"
    labels: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    source: ClassVar[str] = "the kit's own; the answers of MMLU (arXiv:2009.03300) and ARC (arXiv:1803.05457)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(labels=self.labels.upper())

    def golds(self, row: dict[str, Any]) -> list[str]:
        options = _options(row, self.options_column, self.labels)
        golds = (self._label(gold, options) for gold in gold_answers(self.column_of(row, self.column)))
        return [gold for gold in golds if gold is not None]

    def is_same(self, given: str, gold: str, row: dict[str, Any], verdicts: Verdicts) -> bool:
        return len(given) <= _LONGEST and self._label(given, _options(row, self.options_column, self.labels)) == gold

    def _label(self, text: str, options: dict[str, str]) -> str | None:
        """The one label that a text stands for: itself, with its option's text, or that text alone."""
        text = plain(text)
        known = set(options) or set(self.labels)
        match = re.fullmatch(r"\(?\s*([^\W_])\s*(?:\)|\.|:|\)\.)?(?:(?<=[).:])\s*(\S.*))?", text, re.DOTALL)
        if match and match[1].upper() in known:
            label = match[1].upper()
            if match[2] is None or folded(plain(match[2])) == folded(plain(options.get(label, ""))):
                return label
            return None
        found = [label for label, option in options.items() if folded(plain(option)) == folded(text)]
        return found[0] if len(found) == 1 else None


def _options(row: Mapping[str, Any], column: str, labels: str) -> dict[str, str]:
    """Label to text: from the column (texts, or label and text as in ARC), else from lines `B) text` in the question."""
    options = row.get(column)
    if isinstance(options, Mapping):
        if isinstance(options.get("text"), (list, tuple)) and isinstance(options.get("label"), (list, tuple)):
            return {str(k).upper(): str(v) for k, v in zip(options["label"], options["text"], strict=False)}
        return {str(k).upper(): str(v) for k, v in options.items()}
    if isinstance(options, (list, tuple)):
        return {label: str(option) for label, option in zip(labels, options, strict=False)}
    question = completion_text(row["prompts"]) if "prompts" in row else ""
    found = re.findall(r"^[ \t]*\(?([A-Z])[).:][ \t]+(\S.*)$", question[:_LONGEST], re.MULTILINE)
    return dict(found) if len(found) > 1 and [label for label, _ in found] == list(labels[: len(found)]) else {}


@dataclass(frozen=True, kw_only=True, repr=False)
class json_answer(SlotReward):
    """1.0 if the answer slot holds exactly one JSON value that equals the gold value and fits the schema, else 0.0.

    Values are compared as JSON: the order of keys does not matter, 1 is 1.0, true is not 1.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the gold value, as JSON text or as an object; None to ask for the schema only, which pays
            for any value that fits.
        name: Under which TRL logs it.
        is_last: Nothing but white space and closing marks may follow the slot.
        schema: A JSON schema.

    Raises:
        ValueError: Neither column nor schema, or a schema that is none.

    >>> json_answer()(completions=['<answer>{"b": 1.0}</answer>', "<answer>{'b': 1}</answer>"], answer=['{"b": 1}'] * 2)
    [1.0, 0.0]
    """

    column: str | None = "answer"
    schema: Mapping[str, Any] | str | None = None
    source: ClassVar[str] = "the kit's own; JSON Schema as the package jsonschema reads it"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column is None and self.schema is None:
            raise ValueError("json_answer needs a column with the gold value, a schema, or both.")
        self._set(schema=check_schema(self.schema))

    def golds(self, row: dict[str, Any]) -> list[Any]:
        if self.column is None:
            return [None]
        gold = self.column_of(row, self.column)
        if gold is None or gold == "":
            return []
        gold, is_json = read_json(gold) if isinstance(gold, str) else (gold, True)
        return [gold] if is_json else []

    def is_same(self, given: str, gold: Any, row: dict[str, Any], verdicts: Verdicts) -> bool:
        value, is_json = read_json(given)
        is_right = is_json and (self.column is None or is_same_json(value, gold))
        return is_right and (self.schema is None or fits_schema(value, self.schema))


def fits_schema(value: Any, schema: str) -> bool:
    """Whether a JSON value fits a JSON schema (as text). Patterns in it are stopped after a second; nothing is fetched."""
    try:
        return _validator(schema).is_valid(value)
    except (TimeoutError, RecursionError):
        return False


def check_schema(schema: Mapping[str, Any] | str | None) -> str | None:
    """Return a JSON schema as text, after looking whether it is one; None for none.

    Raises:
        ValueError: It is not.
    """
    if schema is None:
        return None
    text = schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True)
    _validator(text)
    return text


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    import regex
    from jsonschema import validators
    from jsonschema.exceptions import SchemaError, ValidationError
    from referencing import Registry

    def pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Any:
        # jsonschema's own search with `re` can hold the interpreter, all threads of it, for ever.
        if isinstance(instance, str) and not regex.search(pattern, instance, timeout=1.0):
            yield ValidationError(f"does not match {pattern!r}")

    loaded = json.loads(schema)
    kind = validators.validator_for(loaded)
    try:
        kind.check_schema(loaded)
    except SchemaError as error:
        raise ValueError(f"schema is no JSON schema: {error.message}") from error
    return validators.extend(kind, {"pattern": pattern})(loaded, registry=Registry())


@dataclass(frozen=True, repr=False)
class regex_answer(TimedReward):
    r"""1.0 if the whole answer slot matches the pattern, else 0.0.

    The search is stopped after `seconds`, in any thread, and counts as no match; one slot that makes a pattern backtrack for
    ever costs no more, and the same slot again nothing. A pattern that matches much (`.*7.*`) pays for listing everything.

    Args:
        pattern: One pattern for all rows; None to take each row's own from `column`.
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the patterns.
        name: Under which TRL logs it.
        is_last: Nothing but white space and closing marks may follow the slot.
        seconds: Of processor time, for one search.
        batch_seconds: On the clock, for all searches of one call together; the one that is running may end. What is left
            then scores 0.0, with a warning. The same limit as that of `maths`.

    Raises:
        ValueError: A pattern that cannot be read.

    >>> regex_answer(r"\d{4}-\d{2}")(completions=["<answer>2026-11</answer>", "<answer>x 2026-11</answer>"])
    [1.0, 0.0]
    """

    pattern: str | None = None
    _: KW_ONLY
    seconds: float = seconds(0.1)
    source: ClassVar[str] = "the kit's own; patterns as the package regex reads them"
    advice: ClassVar[str] = (
        "A pattern with nested repeats, such as (a+)+, takes for ever on some answers: write it without."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pattern:
            _compiled(self.pattern)

    def golds(self, row: dict[str, Any]) -> list[str]:
        return [self.pattern] if self.pattern else super().golds(row)

    def questions(self, given: str, gold: str) -> list[Question]:
        return [(gold, given)] if len(given) <= _LONGEST else []

    def judge(self, asked: list[Question]) -> Verdicts:
        end, found = time.monotonic() + self.batch_seconds, {}
        for pattern, given in asked:
            if time.monotonic() >= end:
                break
            found[pattern, given] = _matches(pattern, given, self.seconds)
        return found

    def is_same(self, given: str, gold: str, row: dict[str, Any], verdicts: Verdicts) -> bool:
        return verdicts.get((gold, given), False)


@lru_cache(maxsize=1024)  # a policy that found a slow answer repeats it
def _matches(pattern: str, given: str, seconds: float) -> bool:
    try:
        # Releases the interpreter while it searches, so that other threads go on.
        return _compiled(pattern).fullmatch(given, timeout=seconds, concurrent=True) is not None
    except TimeoutError:
        return False


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    import regex

    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"the pattern {pattern!r} cannot be read: {error}.") from error
