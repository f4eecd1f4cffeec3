r"""The last candidate for an answer in a completion, whatever the format.

A model that knows the answer and misses the format is not the same as a model that does not know
the answer. To tell the two apart, evaluation looks for one candidate anywhere in the text. The kind
of the gold answer decides what is searched for:

| gold answer | candidate |
| --- | --- |
| number | the last number written with digits, with its unit where the gold answer has one |
| label | the label, such as "spam" or the letter of an option, that is named last |
| JSON | the text from the first opening bracket to the last closing one |
| expression | the last `\boxed{}`, `$...$`, `\(...\)` or `\[...\]`, else the end of the last line |
| text | the last words, as many as the gold answer has |

Only the last candidate counts. The tags of the format are not searched. Neither is a question that
the completion repeats word for word, because a number of the question is not an answer to it.
"""

import re
from collections.abc import Sequence

from grpo_nb.tasks.answers import normalize_answer, summarize_answers
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.markup import BALANCED_TEXT, normalize_markup
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.units import measurement_unit

_SEARCHED_CHARACTERS = 20_000
"""Number of characters at the end of a completion that are searched."""
_SEARCHED_FORMULA_CHARACTERS = 2_000
"""Number of characters that are searched for a formula, which takes longer."""
_FEWEST_QUESTION_WORDS = 3
"""Fewest words of a repeated question that is removed before the search. A shorter question stays,
because the question may be a single word that is also its answer."""

# The patterns of a number and its unit are searched in the spelling of `normalize_markup`.
_FRACTION = re.compile(r"\\frac ?\{ ?(-?[\d.]+) ?\} ?\{ ?(-?[\d.]+) ?\}(?!\.?\d)")
_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|[1-9]\d{0,2}(?:[ ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
"""A number such as 1,250.50 and 1 000 000."""
_UNIT = r"(?:\^\{\\circ\}[CFK]?|[A-Za-z\u03bc\u03a9][A-Za-z/]*(?:\^\{?-?\d\}?)?)"
"""A word such as apples, km/h, cm^2 and the sign of degrees."""
_NUMBER_IN_TEXT = re.compile(
    rf"""
    (?:(?<![\w)\]}}%.])-)?  # a minus after a letter, digit or bracket subtracts: 12-5
    [$\u20ac\u00a3\u00a5\u20b9]?
    (?:(?<![\w.^])|(?<=\.\.)(?=\d))  # not the 5 of 2.5, but the 42 of "so...42"
    (?<![\^_]\{{)(?<!\^-)(?<!\^\{{-)  # no exponent or index: cm^{{2}}, x_{{2}}, s^-2, s^{{-2}}
    (?:\d+[ ](?=\d+/\d))?  # the 1 of 1 3/4
    {_DECIMAL}(?:[ ]?/[ ]?-?{_DECIMAL})?
    (?:  # the power of ten in 1e3 and 1 x 10^3
        [eE][-+]?\d{{1,3}}(?!\w)
        |[ ]?(?:\\times|\\cdot|[x*])[ ]*10[ ]?\^[ ]?\{{?-?\d{{1,3}}\}}?
    )?
    (?:[ ]?%)?
    (?:[ ](?i:hundred|thousand|million|billion|trillion|dozen)s?\b)?
    {_UNIT}?  # 60km/h; also 42abc, which is not the number 42
    """,
    re.VERBOSE,
)
"""A number inside a sentence. `read_number` reads the match afterwards."""
_WORD_AFTER_NUMBER = re.compile(rf" (?!in\b)({_UNIT}(?: per [A-Za-z]+)?)")
"""A unit after a space. The word "in" is hardly ever a unit: "5 in total" is not five inches."""
# A label may be a letter that is also an ordinary word: A, a, I or i. The next two patterns find it
# in "option a", "the answer is A" and "A is right", but not in "A dog", "a city" and "I think".
_BEFORE_LETTER = r"(?:(?<=(?i:option|choice) )|(?<=[a-z] )(?=A))"
"""Text before such a label: "option", "choice" or, before a capital A, a word in lower case. The
article would be a small a there."""
_AFTER_LETTER = r"(?! (?!(?:is|was|because|since)\b)[a-z])"
"""Text after such a label: no word in lower case, except one as in "A is right"."""
_FORMULA = re.compile(
    rf"\\boxed\s*\{{({BALANCED_TEXT})\}}|\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
_LEAD_IN = re.compile(r"(?is).*(?:\b(?:is|so|thus|hence)|:)\s+")
"""The words before an answer at the end of a line, such as "So the result is"."""
_MARKS_AROUND = " \t\r\n.!*_`\"'"
"""White space and marks that may stand around an answer and not belong to it."""


def readings_of_last_candidate(
    text: str,
    gold: str,
    *,
    question: str,
    format: AnswerFormat,
    labels: Sequence[str] = (),
) -> list[str]:
    """Return the readings of the last candidate, the texts that it may stand for.

    The list is empty without a candidate. A number, a label or JSON has one reading. Words and
    formulas have one with and one without the marks around them, because a full stop may end the
    sentence or belong to "U.S.A.", and `!` may be a factorial. An equation is read as a whole and
    as its last side.

    Args:
        text: The completion.
        gold: The gold answer.
        question: The question. Its repetitions in the completion are not searched.
        format: The answer format, whose tags are left out.
        labels: The labels of the task, if it has any (`Grader.labels`).

    >>> from grpo_nb.tasks.formats import xml
    >>> arguments = {"question": "What is 8 + 4?", "format": xml()}
    >>> readings_of_last_candidate("What is 8 + 4? It is 12.", "12", **arguments)
    ['12']
    >>> readings_of_last_candidate("What is 8 + 4?", "4", **arguments)
    []
    """
    text = _without_tags(text[-_SEARCHED_CHARACTERS:], format)
    text = _without_question(text, question)
    # If the gold answer is a label, only labels are candidates. It may look like a number, as in a
    # task with the labels "1", "2" and "none".
    if normalize_answer(gold) in map(normalize_answer, labels):
        return _last_label(text, labels)
    match summarize_answers([gold]).kind:
        case "number":
            return _last_number(text, gold)
        case "json":
            return _last_json(text)
        case "expression":
            candidates = _last_formula(text)
        case _:
            candidates = [" ".join(text.split()[-len(gold.split()) :])]
    readings = candidates + [candidate.strip(_MARKS_AROUND) for candidate in candidates]
    # Most readings are equal, and each is compared, which may be slow.
    return [reading for reading in dict.fromkeys(readings) if reading]


def _without_tags(text: str, format: AnswerFormat) -> str:
    # `tags` has no `reasoning_open` if the template opens it, but a model may write it again.
    for tag in (format.reasoning_open, *format.tags):
        # The braces of a box belong to its formula.
        if tag.strip() and tag[-1] not in "{}":
            text = text.replace(tag, "\n")
    return text


def _without_question(text: str, question: str) -> str:
    words = question.rstrip("?.!: \n").split()
    if len(words) < _FEWEST_QUESTION_WORDS:
        return text
    repeated = r"\s+".join(map(re.escape, words))
    # "What is 3 + 4" is not repeated in "What is 3 + 45" or "What is 3 + 4.5".
    return re.sub(rf"(?<!\w){repeated}(?!\w|[.,]\d)", " ", text, flags=re.IGNORECASE)


def _last_number(text: str, gold: str) -> list[str]:
    """Return the last number of a text, with the word after it if that word belongs to it."""
    # Worked steps come before the result. A number does not go on in the next line.
    for line in reversed(text.splitlines()):
        # Also 1/2 as one sign. Most lines have no number, and the patterns are slow.
        if not any(map(str.isnumeric, line)):
            continue
        # The space is that of the mixed number 2 1/2.
        line = re.sub(r"(?<=\d)(?=\\frac)", " ", normalize_markup(line))
        line = _FRACTION.sub(r"\1/\2", line)
        numbers = list(_NUMBER_IN_TEXT.finditer(line))
        if numbers:
            number = numbers[-1][0]
            word_after = _WORD_AFTER_NUMBER.match(line, numbers[-1].end())
            if word_after and _is_unit_compared(number, number + word_after[0], gold):
                return [number + word_after[0]]
            return [number]
    return []


def _is_unit_compared(number: str, with_word: str, gold: str) -> bool:
    """Return True if the word after a number is a unit to compare with that of the gold answer."""
    parsed = read_number(with_word)
    # A number may have a unit already: the $ of "$18 every day".
    if parsed is None or read_number(number).unit or not read_number(gold).unit:
        return False
    # Only units of measurement are compared. Any other word may be no unit at all: "12 left".
    first_unit = re.split(r"[/^]", parsed.unit)[0]  # of km/h or cm^2
    return bool(measurement_unit(first_unit))


def _last_label(text: str, labels: Sequence[str]) -> list[str]:
    # The longest first: "spam mail" takes precedence over "spam".
    ordered = sorted(labels, key=len, reverse=True)
    return re.findall("|".join(map(_label_pattern, ordered)), text)[-1:]


def _label_pattern(label: str) -> str:
    words = r"\s+".join(map(re.escape, label.split()))
    if len(label) > 1:
        return rf"(?<!\w)(?i:{words})(?!\w)"
    # In brackets, (b) is the label B. In f(b) it is a variable.
    in_brackets = rf"(?<=[\s*]\()(?i:{words})(?=\))"
    one_character = rf"(?<!\w){words}(?![\w'\u2019])"
    if label in "AaIi":
        return f"{in_brackets}|{_BEFORE_LETTER}{one_character}|{one_character}{_AFTER_LETTER}"
    return f"{in_brackets}|{one_character}"


def _last_json(text: str) -> list[str]:
    # Up to the last closing bracket, because the value may contain brackets. The match begins at
    # the start of the text: a search would take quadratic time on many opening brackets.
    match = re.match(r"[^{\[]*([{\[].*[}\]])", text, re.DOTALL)
    return [match[1]] if match else []


def _last_formula(text: str) -> list[str]:
    """Return the last formula of a text, and the last side of it if it is an equation."""
    text = text[-_SEARCHED_FORMULA_CHARACTERS:].strip()
    last_line = text.rpartition("\n")[2]
    formula = _LEAD_IN.sub("", last_line)
    formulas = _FORMULA.findall(text)
    if formulas:
        # Each pair of delimiters has a group of its own, and the other groups are empty.
        formula = "".join(formulas[-1])
    # The last side of a chain of equations, `y = 2x = 4`, is the result. `x <= 4` has no such side.
    return [formula, re.split(r"(?<![<>!])=", formula)[-1]]
