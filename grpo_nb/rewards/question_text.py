"""Compare an answer with the text of its question.

An answer may equal the gold answer and still be wrong: it copies arithmetic from the question, or
it has the letter of one option with the text of another.
"""

import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_nb.rewards.base import Completion
from grpo_nb.tasks.answers import folded, read_letter
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.markup import in_one_spelling, strip_markup
from grpo_nb.tasks.number_reading import read_number

# 84/2, 2^3, 3*4, 50%, 3-1, 2e5, 1 2
_UNEVALUATED = re.compile(r"[/^*%\\(+]|\w-|\d[eE]|\d\s\d")
_NOT_IN_NUMBERS = re.compile(r"[^0-9.]")
# A), (a), B., [C], **D:** and \textbf{(E) }, but not the (x) of f(x), f'(x) or sin(x)
_OPTION_MARK = re.compile(r"(?<!\w)(?<![A-Za-z']\((?=[n-z]))([A-Za-z])[)\].:][\s}*]*")
_OPTIONS_IN_LIST = re.compile(r"\[([^\[\]]+)\]")
# Matches at every place except between two characters of a word.
_EDGE = r"(?!(?<=\w)(?=\w))"
# Not the system prompt: it may show how an answer is written, such as 1/2.
_ASKING_ROLES = ("user", "tool")


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
    return re.search(pattern, _for_search(_asked_text(row["prompts"], format))) is not None


def is_contradictory_option(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Return True if an answer is a letter with a text that is not this option in the question.

    Otherwise the letter of one option with the text of another would be right for both. Always
    False if the gold answer is more than a letter.
    """
    letter, text_after = read_letter(given)
    if not text_after or "prompts" not in row or read_letter(gold) != (letter, ""):
        return False
    searched = re.escape(_for_search(folded(text_after)))
    pattern = rf"(?<!\w){letter.casefold()}\W{{1,6}}{searched}{_EDGE}"
    # `read_letter` takes ** out of the answer too.
    question = _text_of_prompt(row["prompts"]).replace("**", "")
    if re.search(pattern, _for_search(question)):
        return False
    # The options of a list have no letters in the question.
    return not any(
        option_letter == letter and option_starts_with(option, text_after)
        for option_letter, option in options_in_question(row)
    )


def is_copied_option(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Return True if an answer is the gold letter with the whole text of its option.

    The text may have words that are no clear choice elsewhere, such as "B) x = 2 or x = 3".

    >>> row = {"prompts": "Which? A) x = 1, B) x = 2 or x = 3"}
    >>> is_copied_option("B) x = 2 or x = 3", "B", row), is_copied_option("B) x = 1", "B", row)
    (True, False)
    """
    letter, text_after = read_letter(given)
    if not text_after or "prompts" not in row or read_letter(gold) != (letter, ""):
        return False
    copied = _for_search(folded(text_after))
    return any(
        option_letter == letter and _for_search(folded(option)) == copied
        for option_letter, option in options_in_question(row)
    )


def options_in_question(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the letter and text of each option, also of a list without letters.

    >>> options_in_question({"prompts": "Which? A) 5, B) 6"})
    [('A', '5'), ('B', '6')]
    >>> options_in_question({"prompts": "Which city? ['Rome', 'Paris']"})
    [('A', 'Rome'), ('B', 'Paris')]
    """
    question = _text_of_prompt(row["prompts"])
    # The text before the first option, and then letter and text of each option in turn.
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


def _asked_text(prompt: Completion, format: AnswerFormat) -> str:
    """Return the turns of user and tools after the last answer of the assistant.

    The turns before that answer are examples. Other turns of the assistant, such as "Shall I
    compute it?" or a call of a tool, leave the question open.
    """
    if isinstance(prompt, str):
        return prompt
    asking_turns = []
    for place, turn in enumerate(prompt or (), start=1):
        role = turn.get("role")
        if role in _ASKING_ROLES:
            asking_turns.append(turn)
        # The last turn of all may be the beginning of the completion.
        may_be_answer = role == "assistant" and place < len(prompt) and not turn.get("tool_calls")
        if may_be_answer and format.extract(_text_of_prompt([turn])) is not None:
            asking_turns = []
    return _text_of_prompt(asking_turns)


def _text_of_prompt(prompt: Completion) -> str:
    """Return the text of all messages of a prompt."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(turn.get("content") or "") for turn in prompt or ())


def _for_search(text: str) -> str:
    """Return a text in lower case and one spelling, without spaces around operators."""
    # Not `strip_markup`, which leaves a question of more than 2,000 characters as it is.
    text = in_one_spelling(" ".join(text.split()))
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$|\\cdot(?![a-z])", "", text)
    text = re.sub(r"\\[dt]?frac{(\w+)}{(\w+)}(?!\w)", r"\1/\2", text)
    return re.sub(r"\s*([-+*/^=%(){}])\s*", r"\1", " ".join(text.split())).casefold()
