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
from typing import Literal

from grpo_nb.tasks.answers import folded, summarize_answers
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.markup import BALANCED_TEXT
from grpo_nb.tasks.number_reading import measurement_unit, read_number

CandidateKind = Literal["number", "label", "json", "expression", "text"]
_LONGEST_TEXT = 20_000
"""Characters at the end of a completion that are searched."""
_LONGEST_FORMULA_TEXT = 2_000
"""Characters at the end that are searched for a formula, which takes longer."""
_FEWEST_QUESTION_WORDS = 3
"""Fewest words of a repeated question that is removed before the search. A shorter question stays,
because a single word to classify may be the answer itself."""
_LONGEST_QUESTION = 5_000
"""Most characters of a repeated question that is removed. A longer question stays, because it is
hardly ever repeated, and looking for it takes time."""

_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"  # 1,250.50
# A number inside a sentence, where spaces and commas mostly end a number. `read_number` reads the
# match afterwards.
_NUMBER_IN_TEXT = re.compile(
    rf"""
    (?:(?<![\w)\]}}%.])[-\u2212])?  # a minus after a letter, digit or bracket subtracts: 12-5
    [$\u20ac\u00a3\u00a5\u20b9]?
    (?:
        \\[dtc]?frac\s*\{{\s*-?[\d.]+\s*\}}\s*\{{\s*-?[\d.]+\s*\}}
        |(?<![\w.^])(?<!\^\{{)  # no exponent, such as the 2 of cm^2
        (?:\d+[ ](?=\d+/\d))?  # the 1 of 1 3/4
        {_DECIMAL}(?:\s?/\s?{_DECIMAL})?
        (?:  # the power of ten in 1e3 and 1 x 10^3
            [eE][-+]?\d{{1,3}}(?!\w)
            |\s?(?:\\times|\u00d7|x|\*)\s?10\s?\^\s?\{{?-?\d{{1,3}}\}}?
        )?
    )
    (?:\s?\\?%)?
    [A-Za-z]*  # 42abc is one word, and not the number 42
    """,
    re.VERBOSE,
)
# Such as apples, km/h, cm^2 and km per hour.
_WORD_AFTER_NUMBER = re.compile(
    r"\s+([A-Za-z\u00b5\u00b0\u03a9][A-Za-z/\u00b0]*(?:[\u00b2\u00b3]|\^\{?-?\d\}?)?"
    r"(?:\s+per\s+[A-Za-z]+)?)"
)
# A plural in small letters, such as apples, but not a word that only ends in s, such as this.
_COUNTED_THING = re.compile(
    r"(?!(?:always|across|means|equals|plus|this|thus|less|was|has)$)[a-z]+s"
)
_FORMULA = re.compile(
    rf"\\boxed\s*\{{({BALANCED_TEXT})\}}|\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
# The words before an answer at the end of a line, such as "So the result is".
_LEAD_IN = re.compile(r"(?is).*(?:\b(?:is|so|thus|hence)|:)\s+")
_CLOSING = " \t\r\n.!*_`\"'"


def last_candidate_readings(
    text: str,
    gold: str,
    *,
    question: str,
    format: AnswerFormat,
    labels: Sequence[str] = (),
) -> list[str]:
    """Return the readings of the last candidate for an answer in a text.

    Words have two readings, with and without the marks around them, because `exact_text` compares
    every character. An equation has two readings too: the whole equation, and its last side.
    Without a candidate, the list is empty or has empty texts.

    Args:
        text: The completion.
        gold: The gold answer.
        question: The question. Its repetitions in the completion are not searched.
        format: The answer format, whose tags are left out.
        labels: The labels of the task, if it has any.

    >>> from grpo_nb.tasks.formats import xml
    >>> question = "What is 8 + 4?"
    >>> last_candidate_readings("What is 8 + 4? It is 12.", "12", question=question, format=xml())
    ['12']
    >>> last_candidate_readings("What is 8 + 4?", "4", question=question, format=xml())
    []
    """
    text = _without_tags(text[-_LONGEST_TEXT:], format)
    text = _without_question(text, question)
    match candidate_kind(gold, labels):
        case "number":
            return _last_number(text, gold)
        case "label":
            return _last_label(text, labels)
        case "json":
            return _last_json(text)
        case "expression":
            return _last_formula(text)
    tail = " ".join(text.split()[-len(gold.split()) :])
    return [tail, tail.strip(_CLOSING)]


def candidate_kind(gold: str, labels: Sequence[str] = ()) -> CandidateKind:
    """Return the kind of candidate that is compared with a gold answer.

    >>> candidate_kind("1,250"), candidate_kind("spam", ["spam", "ham"]), candidate_kind("Paris")
    ('number', 'label', 'text')
    """
    # Labels first: the label "1" is a number too, but only labels count as candidates for it.
    if folded(gold) in map(folded, labels):
        return "label"
    return summarize_answers([gold]).kind  # never "choice": one answer does not recur


def recurring_labels(golds: Sequence[str]) -> list[str]:
    """Return the labels among gold answers: few short texts that recur.

    >>> recurring_labels(["spam", "ham"] * 4), recurring_labels(["Paris", "Rome"])
    (['ham', 'spam'], [])
    """
    answers = summarize_answers(golds)
    return sorted(label for label, _ in answers.labels) if answers.kind == "choice" else []


def _without_tags(text: str, format: AnswerFormat) -> str:
    # `tags` has no `reasoning_open` if the template opens it, but a model may write it again.
    for tag in (format.reasoning_open, *format.tags):
        # The braces of a box belong to its formula.
        if tag.strip() and tag[-1] not in "{}":
            text = text.replace(tag, "\n")
    return text


def _without_question(text: str, question: str) -> str:
    words = question.rstrip("?.!: \n").split()
    if len(words) < _FEWEST_QUESTION_WORDS or len(question) > _LONGEST_QUESTION:
        return text
    repeated = r"\s+".join(map(re.escape, words))
    # "What is 3 + 4" is not repeated in "What is 3 + 45" or "What is 3 + 4.5".
    return re.sub(rf"(?<!\w){repeated}(?!\w|[.,]\d)", " ", text, flags=re.IGNORECASE)


def _last_number(text: str, gold: str) -> list[str]:
    """Return the last number of a text, with the word after it if that word belongs to it."""
    numbers = list(_NUMBER_IN_TEXT.finditer(text))
    if not numbers:
        return []
    # Worked steps come before the result.
    match = numbers[-1]
    number = match[0].replace("\u2212", "-")
    word_after = _WORD_AFTER_NUMBER.match(text, match.end())
    if word_after and _belongs_to_number(word_after[1], number, gold):
        number = f"{number} {word_after[1]}"
    return [number]


def _belongs_to_number(word: str, number: str, gold: str) -> bool:
    """Return True if the word after a number changes its value, or is a unit to compare."""
    parsed = read_number(number)
    parsed_with_word = read_number(f"{number} {word}")
    if parsed is None or parsed_with_word is None:
        return False
    if parsed_with_word.value != parsed.value:
        # 2.5 million
        return True
    unit = parsed_with_word.unit
    gold_unit = read_number(gold).unit
    if not gold_unit or parsed.unit:
        # No unit is compared, or the number has one already: the $ of "$18 every day".
        return False
    if word == "in":
        # "5 in total" is five inches only if the gold answer is in inches.
        return unit == gold_unit
    first_unit = re.split(r"[/^]", unit)[0]  # of km/h or cm^2
    if measurement_unit(first_unit):
        return True
    # The name of another counted thing is compared, because 5 pears are not 5 apples. It is ignored
    # if the gold unit begins with it, as apples/day does with apples. A word without the s of a
    # plural is ignored, because it may not name a thing: "12 left".
    is_thing = _COUNTED_THING.fullmatch(word.partition(" ")[0]) is not None
    return is_thing and not gold_unit.startswith(unit)


def _last_label(text: str, labels: Sequence[str]) -> list[str]:
    # The longest first: "spam mail" takes precedence over "spam".
    ordered = sorted(labels, key=len, reverse=True)
    return re.findall("|".join(map(_label_pattern, ordered)), text)[-1:]


# Labels that are also ordinary words, and what must follow them.
_AFTER_WORD_LABEL = {
    # A may be the article at the start of a sentence, as in "A dog". It is a label after a small
    # word, as in "option A", before "is" or "was", and where no small word follows.
    "A": r"(?:(?<=[a-z] A)|(?!\s+(?!is\b|was\b)[a-z]))",
    # The article and the pronoun come before another word, as in "a city" and "I think". But
    # "option a" names a label.
    **{
        label: rf"(?:(?<=ption {label})|(?<=hoice {label})|(?! (?!is\b|because\b|since\b)[A-Za-z]))"
        for label in "aIi"
    },
}


def _label_pattern(label: str) -> str:
    words = r"\s+".join(map(re.escape, label.split()))
    if len(label) > 1:
        return rf"(?<!\w)(?i:{words})(?!\w)"
    return rf"(?<!\w){words}(?![\w'\u2019]){_AFTER_WORD_LABEL.get(label, '')}"


def _last_json(text: str) -> list[str]:
    # Up to the last closing bracket, because the value may contain brackets. A single pattern for
    # both ends would take quadratic time on many opening brackets.
    opening = re.search(r"[{\[]", text)
    end = max(text.rfind("}"), text.rfind("]")) + 1
    if opening is None or end <= opening.start():
        return []
    return [text[opening.start() : end]]


def _last_formula(text: str) -> list[str]:
    text = text[-_LONGEST_FORMULA_TEXT:].strip()
    formulas = list(_FORMULA.finditer(text))
    if formulas:
        formula = formulas[-1][formulas[-1].lastindex].strip()
    else:
        formula = _LEAD_IN.sub("", text.rpartition("\n")[2]).strip(_CLOSING)
    # The last side of a chain of equations, `y = 2x = 4`, is the result. `x <= 4` has no such side.
    return [formula, re.split(r"(?<![<>!])=", formula)[-1]]
