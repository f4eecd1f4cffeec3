r"""The last answer in a completion, whatever the format.

A model that knows the answer and misses the format is not the same as a model that does not know
the answer. To tell the two apart, evaluation compares the last answer in the text. The kind of the
gold answer decides what counts as an answer:

| gold answer | last answer |
| --- | --- |
| number | the last number written with digits, with its unit of measurement |
| label | the label, such as "spam" or the letter of an option, that is named last |
| JSON | the text from the first opening bracket to the last closing one |
| expression | the last `\boxed{}`, `$...$`, `\(...\)` or `\[...\]`, else the end of the last line |
| text | the last words, as many as the gold answer has |

The tags of the format are not searched. Neither is a question that the completion repeats word for
word, because a number of the question is not an answer to it.
"""

import re
from collections.abc import Sequence

from grpo_nb.tasks.answers import normalize_answer, summarize_answers
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.markup import BALANCED_TEXT, normalize_markup
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.units import measurement_unit

_SEARCHED_CHARACTERS = 10_000  # at the end of a completion
# A repeated question is removed only if it has at least this many words: a shorter one may be its
# own answer.
_MIN_QUESTION_WORDS = 3

# A number may begin and end at these places, in the spelling of `normalize_markup`. `read_number`
# decides what is a number.
_NUMBER_START = re.compile(
    r"""
    (?<![\w^])  # not inside a word or exponent; 12-5 is no -5
    (?<!\w\.)(?<!\d[,:])  # not inside 1.5, 1,250 or 12:30
    (?<![\^_]\{)(?<!\^-)(?<!\^\{-)  # no exponent or index: cm^{2}, x_{2}, s^-2, s^{-2}
    (?=
        (?:(?<![)\]}%])-)?  # after a bracket, a minus subtracts
        [$\u20ac\u00a3\u00a5\u20b9]?
        (?:(?:(?<!\.)\.)?\d|\\frac\W*\d)  # .5, but an ellipsis is no decimal point: so...42
    )
    """,
    re.VERBOSE,
)
# Not inside 1.5, 1,250, 12:30, 10^3, km \cdot h or 2\pi.
_NUMBER_END = re.compile(r"(?<=[\w%}])(?!\w|[.,:]\d|\^\{?[-\d]| ?\\(?:cdot|pi))")
# At most so many starts and ends are tried. The number -1 000 000 has four starts: -, 1, 000, 000.
_MAX_TRIED_PLACES = 12
# Signs that look like a unit: the dollars of the formula $5$, and the inches of "5 in total". In
# "$5 or $6" and "$5-$6", a space or a digit shows that there is no formula between the dollars.
_FALSE_UNITS = re.compile(r"\${1,2}([^$]*[^$\s])\${1,2}(?!\d)| in(?= [a-z])")

# A label is no part of a word or of a decimal, such as the 4 and the 5 of 4.5.
_BEFORE_LABEL = r"(?<!\w)(?<!\d\.(?=\d))"
_AFTER_LABEL = r"(?!\w|\.\d)"
# The labels A, a, I and i are also words. They are found in "the answer is A" and "A is right", but
# not in "A dog", "a city" and "I think".
_BEFORE_LETTER = r"(?<=[a-z] )(?=A)"  # an article within a sentence would be a small a
_AFTER_LETTER = r"(?! (?!(?:is|was|because|since)\b)[a-z])"  # no other word in small letters

_FORMULA = re.compile(
    rf"\\boxed\s*\{{({BALANCED_TEXT})\}}|\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
# The words before an answer at the end of a line, such as "So the result is".
_LEAD_IN = re.compile(r"(?i)^.*(?:\b(?:is|so|thus|hence)|:)\s+")
# White space and marks that may be around an answer and not belong to it.
_MARKS_AROUND = " \t\r\n.!*_`\"'"


def readings_of_last_answer(
    text: str,
    gold: str,
    *,
    question: str,
    format: AnswerFormat,
    labels: Sequence[str] = (),
) -> list[str]:
    """Return the readings of the last answer: the texts that it may stand for.

    The list is empty without an answer. A number, a label or JSON has one reading. Words and
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
    >>> readings_of_last_answer("What is 8 + 4? It is 12.", "12", **arguments)
    ['12']
    >>> readings_of_last_answer("What is 8 + 4?", "4", **arguments)
    []
    """
    text = _without_tags(text[-_SEARCHED_CHARACTERS:], format)
    text = _without_question(text, question)
    # If the gold answer is a label, only labels are answers. A label may look like a number, as in
    # a task with the labels "1", "2" and "none".
    if normalize_answer(gold) in map(normalize_answer, labels):
        return _last_label(text, labels)
    match summarize_answers([gold]).kind:
        case "number":
            return _last_number(text)
        case "json":
            return _from_first_to_last_bracket(text)
        case "expression":
            answers = _last_formula(text)
        case _:
            answers = [" ".join(text.split()[-len(gold.split()) :])]
    readings = answers + [answer.strip(_MARKS_AROUND) for answer in answers]
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
    if len(words) < _MIN_QUESTION_WORDS:
        return text
    repeated = r"\s+".join(map(re.escape, words))
    # "What is 3 + 4" is not repeated in "What is 3 + 45" or "What is 3 + 4.5".
    return re.sub(rf"(?<!\w){repeated}(?!\w|[.,]\d)", " ", text, flags=re.IGNORECASE)


def _last_number(text: str) -> list[str]:
    """Return the longest text around the last digits that is a number with its unit.

    The list is empty if there are no digits, or if the last ones are not a number: 2x, 12:05.
    """
    # A number does not go on in the next line.
    line = _FALSE_UNITS.sub(r"\1", normalize_markup(" ; ".join(text.splitlines())))
    starts = [match.start() for match in _NUMBER_START.finditer(line)]
    if not starts:
        return []
    ends = [match.end() for match in _NUMBER_END.finditer(line, starts[-1])]
    for start in starts[-_MAX_TRIED_PLACES:]:
        for end in reversed(ends[:_MAX_TRIED_PLACES]):
            if _is_number_or_measurement(line[start:end]):
                return [line[start:end]]
    return []


def _is_number_or_measurement(text: str) -> bool:
    """Return True for a number without a unit, or with a unit of measurement."""
    number = read_number(text)
    # The text may end within \text{km/h}.
    if number is None or text.count("{") != text.count("}"):
        return False
    # Any other word may be no unit at all: "12 left".
    first_unit = re.split("[/^]", number.unit)[0]  # of km/h or cm^2
    return not number.unit or bool(measurement_unit(first_unit))


def _last_label(text: str, labels: Sequence[str]) -> list[str]:
    # The longest first: "spam mail" takes precedence over "spam".
    ordered = sorted(labels, key=len, reverse=True)
    return re.findall("|".join(map(_label_pattern, ordered)), text)[-1:]


def _label_pattern(label: str) -> str:
    words = r"\s+".join(map(re.escape, label.split()))
    if len(label) > 1:
        return f"{_BEFORE_LABEL}(?i:{words}){_AFTER_LABEL}"
    # "(b)", "b)" at the start of a line and a last line "b" are the label B too. In f(b), b is a
    # variable.
    in_brackets = rf"(?<!\w\()(?<![\w .])(?i:{words})(?=\)|\W*$)"
    after_option = rf"(?<=(?i:option|choice) )(?i:{words})(?!\w)"
    # The label b may also be written B, but the label B is no b, which may be a variable.
    letter = f"(?i:{words})" if label.islower() else words
    as_written = rf"{_BEFORE_LABEL}{letter}(?!['\u2019]){_AFTER_LABEL}"  # not the I of I'm
    if label in "AaIi":
        as_written = f"{_BEFORE_LETTER}{as_written}|{as_written}{_AFTER_LETTER}"
    return f"{in_brackets}|{after_option}|{as_written}"


def _from_first_to_last_bracket(text: str) -> list[str]:
    # Up to the last closing bracket, because the value may contain brackets. The match begins at
    # the start of the text: a search would take quadratic time on many opening brackets.
    match = re.match(r"[^{\[]*([{\[].*[}\]])", text, re.DOTALL)
    return [match[1]] if match else []


def _last_formula(text: str) -> list[str]:
    """Return the last formula of a text, and the last side of it if it is an equation."""
    last_line = text.strip().rpartition("\n")[2]
    formula = _LEAD_IN.sub("", last_line)
    formulas = _FORMULA.findall(text)
    if formulas:
        # Each pair of delimiters has a group of its own, and the other groups are empty.
        formula = "".join(formulas[-1])
    # The last side of a chain of equations, `y = 2x = 4`, is the result. `x <= 4` has no such side.
    return [formula, re.split(r"(?<![<>!])=", formula)[-1]]
