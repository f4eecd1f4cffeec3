r"""The last candidate for an answer in a completion, whatever the format.

A model that knows the answer and misses the format is not the same as a model that does not know
the answer. To tell the two apart, evaluation looks for one candidate anywhere in the text. The kind
of the gold answer decides what is searched for:

| gold answer | candidate |
| --- | --- |
| number | the last number written with digits, with its unit where the gold answer has one |
| label or option | the label, letter or option text that is named last |
| JSON | the last JSON object or array |
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
IN_WORDS: Mapping[CandidateKind, str] = {
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
_MOST_BROKEN_JSON = 200
"""Most brackets that do not start a JSON value; a text with more has no JSON answer."""
_FEWEST_QUESTION_WORDS = 3
"""Words. A shorter question, such as one word to classify, may be the answer itself."""
_LONGEST_QUESTION = 5_000
"""Characters. A longer question is hardly ever repeated, and searching for it takes time."""
_HINT = "one of: "
"""First words of `Answers.hint` for labels."""

_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    # A minus after a letter, digit or closing bracket subtracts: 12-5 ends in 5.
    r"(?:(?<![\w)\]}%.])[-\u2212])?"
    r"[$\u20ac\u00a3\u00a5\u20b9]?"
    r"(?:"
    r"\\[dtc]?frac\s*\{\s*-?[\d.]+\s*\}\s*\{\s*-?[\d.]+\s*\}"
    rf"|(?<![\w.])(?:\d+ (?=\d+/\d))?{_DIGITS}(?:\s?/\s?{_DIGITS})?"
    r"(?:[eE][-+]?\d{1,3}(?!\w)|\s?(?:\\times|\u00d7|x|\*)\s?10\s?\^\s?\{?-?\d{1,3}\}?)?"
    r")"
    r"(?:\s?\\?%)?"
    # 42abc is one word, and not the number 42.
    r"[A-Za-z]*"
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
    kind = kind_of(gold, row, labels)
    text = _without_marks(text[-_LONGEST_TEXT:], format)
    text = _without_question(text, str(row.get("question", "")))
    if kind == "number":
        return _last_number(text, gold)
    if kind == "label":
        return _last_label(text, [*labels, *_option_names(row)] or [gold])
    if kind == "json":
        return _last_json(text)
    if kind == "expression":
        return _last_formula(text)
    return _last_words(text, count=len(gold.split()))


def kind_of(gold: str, row: Mapping[str, Any], labels: Sequence[str] = ()) -> CandidateKind:
    """Return the kind of candidate that is compared with a gold answer.

    >>> kind_of("1,250", {}), kind_of("spam", {}, ["spam", "ham"]), kind_of("Paris", {})
    ('number', 'label', 'text')
    """
    names = {folded(name) for name in (*labels, *_option_names(row))}
    if folded(gold) in names:
        return "label"
    kind = answers_of([gold]).kind
    return "label" if kind == "choice" else kind


def labels_of(golds: Sequence[str], format: AnswerFormat) -> list[str]:
    """Return the labels of a task: those in its format's hint, and gold answers that recur.

    >>> labels_of(["spam", "ham"] * 4, AnswerFormat(name="bare"))
    ['ham', 'spam']
    """
    answers = answers_of(golds)
    repeated = {label for label, _ in answers.labels} if answers.kind == "choice" else set()
    named: set[str] = set()
    if format.answer_hint.startswith(_HINT):
        listed = format.answer_hint.removeprefix(_HINT)
        separator = "; " if "; " in listed else ", "
        named = set(listed.split(separator))
    return sorted(repeated | named)


def _without_marks(text: str, format: AnswerFormat) -> str:
    # The closing brace of a box belongs to its formula.
    marks = [format.reasoning_open, format.reasoning_close]
    if format.answer_close != "}":
        marks += [format.answer_open, format.answer_close]
    for mark in marks:
        if mark.strip():
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
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    if last is None:
        return []
    number = last[0].replace("\u2212", "-")
    wanted = read_number(gold)
    unit = _UNIT_AFTER.match(text, last.end())
    if wanted is not None and wanted.unit and unit is not None:
        with_unit = f"{number} {unit[1]}"
        if read_number(with_unit) is not None:
            return [with_unit]
    return [number]


def _last_label(text: str, labels: Sequence[str]) -> list[str]:
    # The longest first: "not spam" takes precedence over "spam".
    ordered = sorted(set(labels), key=len, reverse=True)
    last = ""
    for match in re.finditer("|".join(map(_label_pattern, ordered)), text):
        last = match[0]
    return [last] if last else []


def _label_pattern(label: str) -> str:
    words = r"\s+".join(map(re.escape, label.split()))
    if len(label) > 1:
        return rf"(?<!\w)(?i:{words})(?!\w)"
    pattern = rf"(?<!\w){words}(?![\w'])"
    if label not in ("A", "I"):
        return pattern
    # Both are words too: "A dog", "I think". After "is" the letter is a label in any case, and A
    # also after other words, because an article inside a sentence is not written as A.
    word_before = "[a-z]" if label == "A" else "is"
    return rf"{pattern}(?:(?<={word_before} {label})|(?!\s+(?!is\b|was\b)[a-z]))"


def _option_names(row: Mapping[str, Any]) -> list[str]:
    """Return the letters and texts of the options in the question, such as `B) text`."""
    question = row.get("prompt", row.get("question", ""))
    options = options_in(completion_text(question))
    return [*options, *options.values()]


def _last_json(text: str) -> list[str]:
    decoder = json.JSONDecoder()
    last = ""
    end = 0
    broken = 0
    for bracket in re.finditer(r"[{\[]", text):
        start = bracket.start()
        if start < end:
            # Inside the value that was read last.
            continue
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            broken += 1
            if broken > _MOST_BROKEN_JSON:
                return []
        else:
            last = text[start:end]
    return [last] if last else []


def _last_formula(text: str) -> list[str]:
    text = text[-_LONGEST_FORMULA_TEXT:]
    last = None
    for match in _FORMULA.finditer(text):
        last = match
    if last is not None:
        formula = next(group for group in last.groups() if group is not None).strip()
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return []
        lead_in = _LEAD_IN.match(lines[-1])
        begins = lead_in.end() if lead_in is not None else 0
        formula = lines[-1][begins:].strip(_CLOSING)
    after_equals = formula.rpartition("=")[2].strip()
    return list(dict.fromkeys([formula, after_equals]))


def _last_words(text: str, count: int) -> list[str]:
    words = text.split()[-count:] if count else []
    if not words:
        return []
    tail = " ".join(words)
    return list(dict.fromkeys([tail, tail.strip(_CLOSING)]))
