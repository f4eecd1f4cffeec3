"""Compare an answer with the text of its question.

An answer may equal the gold answer and still be wrong: it copies arithmetic from the question, has
another unit than the question asks for, or the letter of one option with the text of another.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from grpo_nb.rewards.base import Completion
from grpo_nb.tasks.answers import normalize_answer, read_letter
from grpo_nb.tasks.markup import normalize_markup, strip_markup
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.units import UNIT_WORD, measurement_unit

# Signs that something is left to compute or to convert: 84/2, 2^3, 3*4, 50%, 3+1, 2(3), 3-1, 2e5,
# 1 2, or a command of LaTeX
_ARITHMETIC_SIGN = re.compile(r"[/^*%\\(+]|\w-|\d[eE]|\d\s\d")
_NOT_DIGIT_OR_POINT = re.compile(r"[^0-9.]")
# Any place that is not inside a word. Unlike \b, also between two signs, as in )(.
_WORD_EDGE = r"(?:(?<!\w)|(?!\w))"
# A copied number is no part of another number: 3/4 is not copied from 13/4 or 2 3/4 ...
_NO_NUMBER_BEFORE = r"(?<!\d)(?<!\d[. ])"
# ... nor from 3/40 or 3/4.5.
_NO_NUMBER_AFTER = r"(?!\.?\d)"
_UNIT = rf"(?:{UNIT_WORD})(?:/(?:{UNIT_WORD}))?"
# The unit that a question asks for: "How many metres ...?", "... in km/h?", "Convert it to grams."
# A short word after `to` is none: "from B to A".
_ASKED_UNIT = re.compile(rf"\b(?:how many|in|to(?= [a-z]{{3}})) ({_UNIT})", re.IGNORECASE)
# A unit behind a number, a sign, or a whole word. In "in Tom's shop", the `in` and the `s` are no
# units.
_NAMED_UNIT = re.compile(rf"(?<=\d)\s?{_UNIT}|[$\u20ac\u00a3\u00a5\u20b9%\u00b0]|[A-Za-z]{{3,}}")
# Not the system prompt: it may show how an answer is written, such as 1/2.
_ROLES_OF_QUESTION = ("user", "tool")


def is_copied_from_question(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Return True if an answer is copied from the question with its arithmetic left undone.

    `84/2` is equal to 42, but after "What is 84 / 2?" it only repeats the question. The gold answer
    itself is never a copy, with or without a name and a full stop, because the question may name
    it: "Which is larger, 3/4 or 2/3?".

    >>> is_copied_from_question("84/2", "42", {"prompts": "What is 84 / 2?"})
    True
    >>> is_copied_from_question("42", "42.0", {"prompts": "Is it 41 or 42?"})
    False
    """
    if "prompts" not in row:
        return False
    is_number = read_number(gold) is not None
    given = _normalize_for_search(strip_markup(given))
    gold = _normalize_for_search(strip_markup(gold))
    # With or without a name: y=3/4 and 3/4. The sign in front keeps 13/4 apart from 3/4.
    is_gold_text = f"={given}".endswith(f"={gold}") or f"={gold}".endswith(f"={given}")
    if is_gold_text or not _ARITHMETIC_SIGN.search(given):
        return False
    has_same_digits = _NOT_DIGIT_OR_POINT.sub("", given) == _NOT_DIGIT_OR_POINT.sub("", gold)
    if is_number and has_same_digits:
        # The same number with another unit, such as 50% for 50, leaves nothing to compute.
        return False
    pattern = _NO_NUMBER_BEFORE + re.escape(given) + _NO_NUMBER_AFTER
    if not is_number:
        # A copied expression is no part of another one: x+1 is not copied from ax+1 or x+10, nor
        # 1+x from 1+x^2.
        pattern = rf"{_WORD_EDGE}{pattern}{_WORD_EDGE}(?!\^)"
    question = _normalize_for_search(_text_of_prompt(row["prompts"]))
    return re.search(pattern, question) is not None


def has_another_unit(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Return True if an answer has a unit of measurement that does not fit the question.

    A gold answer without a unit says nothing about it. So the unit of the answer must be the one
    that the question asks for, or one of those that it names. If it names none, any unit fits.

    >>> row = {"prompts": "A car drives 120 km in 2 hours. What is its speed in km/h?"}
    >>> has_another_unit("60 km/h", "60", row), has_another_unit("60 m/s", "60", row)
    (False, True)
    """
    number = read_number(given)
    gold_number = read_number(gold)
    if "prompts" not in row or number is None or gold_number is None or gold_number.unit:
        return False
    # 50% is the number 0.5 in another spelling.
    if number.unit == "%" and number.value == gold_number.value:
        return False
    used = _units_in([number.unit])
    if not used:
        return False
    question = re.sub("per ?cent(age)?", "%", _text_of_prompt(row["prompts"]))
    asked = _units_in(_ASKED_UNIT.findall(question))
    if asked:
        # More than the asked unit is fine: "How many dollars ...?", $15 per hour.
        return not asked <= used
    named = _units_in(_NAMED_UNIT.findall(question))
    return bool(named) and not used <= named


def _units_in(texts: Iterable[str]) -> set[str]:
    """Return the names of the units of measurement in texts, such as hour and meter for m/h."""
    words = re.findall(UNIT_WORD, " ".join(texts))
    # A name may have two units: mph is mile/hour.
    names = re.findall(UNIT_WORD, " ".join(map(measurement_unit, words)))
    return set(names)


def has_text_of_option(given: str, gold: str, row: Mapping[str, Any]) -> bool | None:
    """Judge an answer of the gold letter and a text, such as `B) x = 1`.

    Returns:
        * True if the question has this text after the letter and its mark, which is one of `)`,
          `]`, `.`, `:` and `-`.
        * False if it has not, or if the text goes on to another option: `B) Rome C) Berlin`.
        * None if the question is not known, if the letter is not the gold letter, or if no text
          follows it. Then the caller compares as usual.

    If only the letter counted, `B) x = 1` would be right although `x = 1` is the text of option A.
    And the text of the gold option may have an "or", as in `B) x = 2 or x = 3`, which elsewhere
    makes an answer wrong.

    >>> row = {"prompts": "Which? A) x = 1, B) x = 2 or x = 3"}
    >>> has_text_of_option("B) x = 2 or x = 3", "B", row)
    True
    >>> has_text_of_option("B) x = 1", "B", row), has_text_of_option("B", "B", row)
    (False, None)
    """
    if "prompts" not in row:
        return None
    letter, text_after = read_letter(given)
    if not text_after or read_letter(gold) != (letter, ""):
        return None
    # `read_letter` also removes ** from the answer.
    question = _normalize_for_search(_text_of_prompt(row["prompts"]).replace("**", ""))
    # The letter must have a mark: alone it may be the article in "not a dog". A dash is the mark
    # only if no clearer mark of the letter follows: "If b - 3 = 2, what is b? A) 3 B) 5".
    letter_pattern = rf"(?<!\w){letter.casefold()}"
    clear_mark = r"[)\].:]"
    mark = rf"{clear_mark}|-(?!.*{letter_pattern}{clear_mark})"
    option_text = re.escape(_normalize_for_search(normalize_answer(text_after)))
    match = re.search(
        rf"{letter_pattern}(?P<mark>{mark})"
        rf"\W{{0,5}}{option_text}"  # more signs may follow the mark: B). "Rome"
        rf"(?:\.0+)?{_WORD_EDGE}"  # 5 is also the option 5.0
        # The text must not be the beginning of a formula: 1 is not the option 1/2, 1.5 or 1 + x.
        # But another option may follow at once: `a-1-b-2`.
        r"(?![., ]?\d|[-+*/^=](?!\w(?P=mark)))",
        question,
    )
    if match is None:
        return False
    # All options have the same mark: after `B)`, `E.` starts no option. Nor does the (x) of
    # `B) f(x) = 1`, because it follows a letter.
    other_option = rf"(?:^|[\s,;])[(\[]?[A-Za-z]\s*{re.escape(match['mark'])}"
    return re.search(other_option, text_after) is None


def _text_of_prompt(prompt: Completion) -> str:
    """Return the text of a prompt, without the messages of the system and the model."""
    if isinstance(prompt, str):
        return prompt
    turns = [turn for turn in prompt or () if turn.get("role") in _ROLES_OF_QUESTION]
    return "\n".join(str(turn.get("content") or "") for turn in turns)


# Cached, because the completions of a group have the same question.
@lru_cache(maxsize=512)
def _normalize_for_search(text: str) -> str:
    """Return a text in lower case and one spelling, without spaces around operators."""
    # Not `strip_markup`, which leaves a question of more than 2,000 characters as it is.
    text = normalize_markup(text)
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$|\\cdot(?![a-z])", "", text)
    text = re.sub(r"\\[dt]?frac{(\w+)}{(\w+)}(?!\w)", r"\1/\2", text)
    return re.sub(r"\s*([-+*/^=%(){}])\s*", r"\1", " ".join(text.split())).casefold()
