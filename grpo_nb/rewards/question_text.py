"""Compare an answer with the text of its question.

An answer may equal the gold answer and still be wrong: it may copy arithmetic from the question,
have another unit than asked, or join the letter of one option to the text of another.
"""

import re
from functools import lru_cache

from grpo_nb.rewards.question_units import has_another_unit
from grpo_nb.tasks.answers import normalize_answer, read_letter
from grpo_nb.tasks.markup import BALANCED_TEXT, normalize_markup, strip_markup
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.read_rows import Row

_ARITHMETIC_SIGN = re.compile(r"[/^*%\\+]|\w-|\de|\d\s\d")
"""Signs that something is left to compute or to convert: 84/2, 2^3, 3*4, 50%, 3+1, 3-1, 2e5, 1 2.

A command of LaTeX is such a sign too. The text is normalized: `_searchable`.
"""
_NAME_BEFORE_VALUE = re.compile(r"^\\?[a-z]\w*=")
r"""A name before a value: `x=`, `\theta=`, or `fx=` (`f(x)=` without its brackets)."""
_AROUND_NUMBER = re.compile(r"^[^\d.]+(?=[\d.])|(?<=\d)[^\d%]+(?:\^-?\d)?$")
"""The text around a number: the `$` of `$84/2`, and the unit of `84/2 apples` and `84/2 m^2`."""
# Any place that is not inside a word. Unlike \b, also between two signs, as in +-.
_WORD_EDGE = r"(?:(?<!\w)|(?!\w))"
# A copy is not part of a longer number: 3/4 is not copied from 13/4 or 2 3/4 ...
_NO_NUMBER_BEFORE = r"(?<!\d)(?<!\d[. ])"
# ... nor from 3/40 or 3/4.5. And 1+x is not copied from 1+x^2.
_NO_NUMBER_AFTER = r"(?!\.?\d|\^)"
# A fast test before an answer is normalized. Most answers have none of these, and so no arithmetic.
_MAY_BE_ARITHMETIC = re.compile(r"[-/^*%\\+]|\d[e\s]|[^\x00-\x7f]")
# Most answers are a number without a unit, which leaves nothing to compute or to convert.
_PLAIN_NUMBER = re.compile(r"[-+]?[\d.,]+")
# Not the system prompt: it may show how an answer is written, such as 1/2.
_ROLES_OF_QUESTION = ("user", "tool")


def fits_question(given: str, gold: str, row: Row) -> bool:
    """Return False if an answer is copied from the question or has another unit than asked.

    Call it only with an answer that equals the gold answer. Without a question in the row, every
    answer fits.
    """
    question = _question_in(row)
    if not question or _PLAIN_NUMBER.fullmatch(given):
        return True
    if has_another_unit(given, gold, question):
        return False
    return not is_copied_from_question(given, gold, question)


def is_copied_from_question(given: str, gold: str, question: str) -> bool:
    """Return True if an answer is copied from the question with its arithmetic left undone.

    `84/2` is equal to 42, but after "What is 84 / 2?" it only repeats the question, also as
    `x = 84/2 apples`. The gold answer itself is never a copy, because the question may name it:
    "Which is larger, 3/4 or 2/3?".

    >>> is_copied_from_question("84/2", "42", "What is 84 / 2?")
    True
    >>> is_copied_from_question("42", "42.0", "Is it 41 or 42?")
    False
    """
    if not _MAY_BE_ARITHMETIC.search(given):
        return False
    given = _bare_value(given)
    # Quotation marks belong to JSON or a quoted text, which have no arithmetic.
    if '"' in given or not _ARITHMETIC_SIGN.search(given):
        return False
    # The same number with another unit, such as 50% for 50, leaves nothing to compute.
    if re.sub("[ %]", "", given) == re.sub("[ %]", "", _bare_value(gold)):
        return False
    question = _searchable(question)
    # Python compiles a pattern slowly, so the question is searched without one first.
    if given not in question:
        return False
    # x+1 is not copied from ax+1. But 84/2 is copied from 84/2kg.
    edge = _WORD_EDGE if re.search("[a-z]", given) else ""
    copy = rf"{edge}{_NO_NUMBER_BEFORE}{re.escape(given)}{_NO_NUMBER_AFTER}{edge}"
    return re.search(copy, question) is not None


# Cached, because a gold answer is read again for each completion.
@lru_cache(maxsize=4_096)
def _bare_value(answer: str) -> str:
    """Return an answer without brackets, name and unit, as it may occur in the question.

    >>> _bare_value("x = 84/2 apples"), _bare_value("y = (x^2 - 1)/(x - 1)")
    ('84/2', 'x^2-1/x-1')
    """
    text = _NAME_BEFORE_VALUE.sub("", _searchable(strip_markup(answer)))
    return text if read_number(answer) is None else _AROUND_NUMBER.sub("", text)


# Cached, because the completions of a group have the same question.
@lru_cache(maxsize=512)
def _searchable(text: str) -> str:
    # Brackets must not hide that `y = (x^2)/x` is a copy of x^2/x.
    return _normalize_for_search(re.sub(r"[()\[\]]", "", text))


def resolve_option(given: str, gold: str, row: Row) -> str:
    """Replace an answer such as `B) x = 1` by `B` if this is option B, and else by "".

    | answer                                           | returned               |
    | ------------------------------------------------ | ---------------------- |
    | letter and text of the gold option               | the letter             |
    | gold letter with any other text                  | "", compared as wrong  |
    | gold option and another one, `B) Rome C) Oslo`   | "", compared as wrong  |
    | another letter, a letter alone, or no letter     | the answer as it is    |
    | any answer without a question to search in       | the answer as it is    |

    In the question, the letter must have one of the marks `)`, `]`, `.`, `:` and `-`.

    If only the letter counted, `B) x = 1` would be right although `x = 1` is the text of option A.
    And the text of the gold option may have an "or", as in `B) x = 2 or x = 3`, which elsewhere
    makes an answer wrong.

    >>> row = {"prompts": "Which? A) x = 1, B) x = 2 or x = 3"}
    >>> resolve_option("B) x = 2 or x = 3", "B", row)
    'B'
    >>> resolve_option("B) x = 1", "B", row), resolve_option("B", "B", row)
    ('', 'B')
    """
    question = _question_in(row)
    letter, text_after = read_letter(given)
    if not question or not text_after or read_letter(gold) != (letter, ""):
        return given
    # `read_letter` also removes ** from the answer.
    question = _normalize_for_search(question.replace("**", ""))
    # The letter must have a mark: alone it may be the article in "not a dog". In "If b - 3 = 2, b
    # is? A) 3 B) 5", the dash is a minus. So it is a mark only if no `B)`, `B]`, `B.` or `B:` comes
    # after it.
    letter_pattern = rf"(?<!\w){letter.casefold()}"
    clear_mark = r"[)\].:]"
    mark = rf"{clear_mark}|-(?!.*{letter_pattern}{clear_mark})"
    option_text = re.escape(_normalize_for_search(normalize_answer(text_after)))
    match = re.search(
        rf"{letter_pattern}(?P<mark>{mark})"
        rf"\W{{0,5}}{option_text}"  # more signs may follow the mark: B). "Rome"
        rf"(?:\.0+)?{_WORD_EDGE}"  # 5 is also the option 5.0
        # The text must not be the beginning of another number or formula: 1 is not the option 1.5,
        # 1/2 or 1 + x. But the dash before the next option may follow: `a-1-b-2`.
        r"(?![., ]?\d)(?![-+*/^=](?!\w(?P=mark)))",
        question,
    )
    if match is None:
        return ""
    # The text may go on to another option, which has the same mark. A letter is an option only if
    # the letter before it is one too: the F of `B. John F. Kennedy` is not.
    mark = re.escape(match["mark"])
    for other in re.findall(rf"(?:^|[\s,;])[(\[]?([A-Za-z])\s*{mark}", text_after):
        letter_before = re.escape(chr(ord(other.casefold()) - 1))
        if re.search(rf"(?<!\w){letter_before}{mark}", question):
            return ""
    return letter


def _question_in(row: Row) -> str:
    """Return the prompt of a row without the messages of the system and the model; "" if none."""
    # A call outside a training may have the columns of the data only.
    prompt = row.get("prompts") or row.get("question") or ""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, float):
        return ""  # pandas writes an empty cell as NaN
    turns = [turn for turn in prompt if turn.get("role") in _ROLES_OF_QUESTION]
    return "\n".join(str(turn.get("content") or "") for turn in turns)


def _normalize_for_search(text: str) -> str:
    """Return a text in lower case and one spelling, without braces and spaces around operators."""
    # Not `strip_markup`, which leaves a question of more than 2,000 characters as it is.
    text = normalize_markup(text)
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$|\\cdot(?![a-z])", "", text)
    text = re.sub(rf"\\frac{{({BALANCED_TEXT})}}{{({BALANCED_TEXT})}}", r"\1/\2", text)
    text = re.sub(r"[{}]", "", text)
    return re.sub(r"\s*([-+*/^=%()])\s*", r"\1", " ".join(text.split())).casefold()
