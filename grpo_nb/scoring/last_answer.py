r"""The last candidate for an answer in a completion, whatever the format.

A model that knows the answer and misses the format is not the same as a model that does not know
the answer. To tell the two apart, evaluation looks for one candidate anywhere in the text. The kind
of the gold answer decides what is searched for:

| gold answer | candidate |
| --- | --- |
| number | the last number written with digits, with its unit where the gold answer has one |
| label or option | the label, letter or option text that is named last |
| JSON | the JSON object or array that ends last |
| expression | the last `\boxed{}` or formula between dollar signs, else the end of the last line |
| text | the last words, as many as the gold answer has |

Only the last candidate counts. The marks of the format are not searched. Neither is a question that
the completion repeats word for word, because a number of the question is not an answer to it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from grpo_nb.rewards.answers import options_in
from grpo_nb.rewards.base import completion_text
from grpo_nb.tasks.answers import answers_of, folded
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.markup import INSIDE
from grpo_nb.tasks.number_reading import read_number

CandidateKind = Literal["number", "label", "json", "expression", "text"]
CANDIDATE_IN_WORDS: Mapping[CandidateKind, str] = {
    "number": "the last number",
    "label": "the label named last",
    "json": "the last JSON value",
    "expression": "the last formula",
    "text": "the last words, as many as the gold answer has",
}
_LONGEST_TEXT = 20_000
"""Characters at the end of a completion that are searched."""
_LONGEST_FORMULA_TEXT = 2_000
"""Characters at the end that are searched for a formula, which takes longer."""
_FEWEST_QUESTION_WORDS = 3
"""Words. A shorter question, such as one word to classify, may be the answer itself."""
_LONGEST_QUESTION = 5_000
"""Characters. A longer question is hardly ever repeated, and searching for it takes time."""

_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"  # 1,250.50
# A number inside a sentence, where spaces and commas mostly end a number. `read_number` reads the
# match afterwards.
_NUMBER_IN_TEXT = re.compile(
    rf"""
    (?:(?<![\w)\]}}%.])[-\u2212])?  # a minus after a letter, digit or bracket subtracts: 12-5
    [$\u20ac\u00a3\u00a5\u20b9]?
    (?:
        \\[dtc]?frac\s*\{{\s*-?[\d.]+\s*\}}\s*\{{\s*-?[\d.]+\s*\}}
        |(?<![\w.])(?:\d+[ ](?=\d+/\d))?  # the 1 of 1 3/4
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
_UNIT_AFTER = re.compile(r"\s+([A-Za-z\u00b5\u00b0\u03a9][A-Za-z/\u00b0]*)")
_FORMULA = re.compile(
    rf"\\boxed\s*\{{({INSIDE})\}}|\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
_LEAD_IN = re.compile(r"(?is).*(?:\bis|:)\s+")
_CLOSING = " \t\r\n.!*_`\"'"


def last_candidate(
    text: str,
    gold: str,
    *,
    row: Mapping[str, Any],
    format: AnswerFormat,
    labels: Sequence[str] = (),
) -> list[str]:
    """Return one or two readings of the last candidate for an answer in a text.

    `x = 2` gives `x = 2` and `2`. The list is empty if there is no candidate.

    Args:
        text: The completion.
        gold: The gold answer.
        row: The data row, with `question` and the options in it.
        format: The answer format, whose marks are left out.
        labels: The labels of the task, if it has any.

    >>> xml_format = AnswerFormat(name="xml", answer_open="<answer>", answer_close="</answer>")
    >>> row = {"question": "What is 8 + 4?"}
    >>> last_candidate("What is 8 + 4? It is 12.", "12", row=row, format=xml_format)
    ['12']
    >>> last_candidate("What is 8 + 4?", "4", row=row, format=xml_format)
    []
    """
    kind = candidate_kind(gold, row, labels)
    text = _without_marks(text[-_LONGEST_TEXT:], format)
    text = _without_question(text, str(row.get("question", "")))
    match kind:
        case "number":
            return _last_number(text, gold)
        case "label":
            return _last_label(text, [*labels, *_option_names(row)])
        case "json":
            return _last_json(text)
        case "expression":
            return _last_formula(text)
    return _last_words(text, count=len(gold.split()))


def candidate_kind(gold: str, row: Mapping[str, Any], labels: Sequence[str] = ()) -> CandidateKind:
    """Return the kind of candidate that is compared with a gold answer.

    >>> candidate_kind("1,250", {})
    'number'
    >>> candidate_kind("spam", {}, ["spam", "ham"])
    'label'
    >>> candidate_kind("Paris", {})
    'text'
    """
    # Labels first: the label "1" is a number too, but only labels count as candidates for it.
    names = {folded(name) for name in (*labels, *_option_names(row))}
    if folded(gold) in names:
        return "label"
    return answers_of([gold]).kind  # never "choice": one answer does not recur


def recurring_labels(golds: Sequence[str]) -> list[str]:
    """Return the labels among gold answers: few short texts that recur.

    >>> recurring_labels(["spam", "ham"] * 4), recurring_labels(["Paris", "Rome"])
    (['ham', 'spam'], [])
    """
    answers = answers_of(golds)
    return sorted(label for label, _ in answers.labels) if answers.kind == "choice" else []


def _without_marks(text: str, format: AnswerFormat) -> str:
    # `reasoning_open` is no tag if the template opens it, but a model may write it again.
    for mark in (format.reasoning_open, *format.tags):
        # The braces of a box belong to its formula.
        if mark.strip() and mark[-1] not in "{}":
            text = text.replace(mark, "\n")
    return text


def _without_question(text: str, question: str) -> str:
    words = question.rstrip("?.!: \n").split()
    if len(words) < _FEWEST_QUESTION_WORDS or len(question) > _LONGEST_QUESTION:
        return text
    repeated = r"\s+".join(map(re.escape, words))
    # "What is 3 + 4" is not repeated in "What is 3 + 45" or "What is 3 + 4.5".
    return re.sub(rf"(?<!\w){repeated}(?!\w|[.,]\d)", " ", text, flags=re.IGNORECASE)


def _last_number(text: str, gold: str) -> list[str]:
    # The last number, because worked steps come before the result.
    numbers = list(_NUMBER_IN_TEXT.finditer(text))
    if not numbers:
        return []
    number = numbers[-1][0].replace("\u2212", "-")
    unit = _UNIT_AFTER.match(text, numbers[-1].end())
    if unit is not None and read_number(gold).unit:
        with_unit = f"{number} {unit[1]}"
        if read_number(with_unit) is not None:
            return [with_unit]
    return [number]


def _last_label(text: str, labels: Sequence[str]) -> list[str]:
    # The longest first: "spam mail" takes precedence over "spam".
    ordered = sorted(set(labels), key=len, reverse=True)
    return re.findall("|".join(map(_label_pattern, ordered)), text)[-1:]


def _label_pattern(label: str) -> str:
    words = r"\s+".join(map(re.escape, label.split()))
    if len(label) > 1:
        return rf"(?<!\w)(?i:{words})(?!\w)"
    pattern = rf"(?<!\w){words}(?![\w'])"
    if label != "A":
        return pattern
    # A is a word too: "A dog". After another word it is a label, because an article inside a
    # sentence is not written as A. So it is before "is" and "was".
    return rf"{pattern}(?:(?<=[a-z] A)|(?!\s+(?!is\b|was\b)[a-z]))"


def _option_names(row: Mapping[str, Any]) -> list[str]:
    """Return the letters and texts of the options in the question, such as `B) text`."""
    question = row.get("prompt", row.get("question", ""))
    options = options_in(completion_text(question))
    return [*options, *options.values()]


def _last_json(text: str) -> list[str]:
    text = text[: max(text.rfind("}"), text.rfind("]")) + 1]
    # From the left, so that the whole object is found before an object inside it.
    for bracket in re.finditer(r"[{\[]", text):
        candidate = text[bracket.start() :]
        try:
            json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return [candidate]
    return []


def _last_formula(text: str) -> list[str]:
    text = text[-_LONGEST_FORMULA_TEXT:]
    formulas = list(_FORMULA.finditer(text))
    if formulas:
        formula = formulas[-1][formulas[-1].lastindex].strip()
    else:
        _, _, last_line = text.strip().rpartition("\n")
        formula = _LEAD_IN.sub("", last_line).strip(_CLOSING)
    # Of a chain of equations, `y = 2x = 4`, the last side is the result.
    after_equals = formula.rpartition("=")[2].strip()
    return list(dict.fromkeys([formula, after_equals]))


def _last_words(text: str, count: int) -> list[str]:
    # With and without the closing mark, because `exact_text` compares every character.
    tail = " ".join(text.split()[-count:])
    return list(dict.fromkeys([tail, tail.strip(_CLOSING)]))
