"""The five kinds of answers: number, choice, text, expression and json.

The gold answers decide the kind, unless the user sets it with `kind=`. A task shows its kind.
The prompt, the default rewards and the majority-class baseline depend on the kind.
`is_right_answer` ignores the kind: the gold answer alone decides how it is compared.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from grpo_nb.tasks.markup import strip_markup
from grpo_nb.tasks.number_reading import is_right_number, read_number

ACCEPTED_COLUMN = "accepted_answers"
"""Column with a list of right answers, if a row has several. `answer` holds one of them."""

AnswerKind = Literal["number", "choice", "text", "expression", "json"]
# Largest share of answers that are not of the kind, such as "n/a" among numbers.
_MAX_SHARE_OF_EXCEPTIONS = 0.1
# Answers are choices if they are few and repeat three times on average.
_MAX_LABELS = 24
_MIN_ROWS_PER_LABEL = 3
_LONGEST_JSON = 20_000  # characters; a longer text of a model is not parsed
_FORMULA = re.compile(
    r"\\[a-zA-Z]+|[\^={}]"  # \frac, x^2, y = 2
    r"|\d\s*[a-z]\b|\b[a-z]\s*[-+*/]|[-+*/]\s*[a-z]\b"  # 2x, x + 1, 1 - x
    r"|^[(\[].*,.*[)\]]$|^[-+\d.]+(\s*,\s*[-+\d.]+)+$"  # (1, 2), 1, 2, 3
)
_OPTION_LETTER = re.compile(
    r"""(?s)  # a dot is any character, even a line break
    (?:(?i:option|choice)\s+)?[\[(]?(?P<letter>[A-Z])
    (?:
        [\])]?[.):]?  # B, (B), B.
        |(?:
            [\])]?[.):]  # B) Paris
            |[\])]  # [B] Paris
            |\s+[-\u2014]  # B - Paris
        )\s+(?P<after>\S.*)
        |\s+\((?P<in_brackets>.*)\)  # B (Paris)
    )
    """,
    re.VERBOSE,
)
# In "B) A is also right", A is the letter of an option, because of the word after it.
_WORDS_AFTER_LETTER_A = "is|was|are|as|seems|looks|also|too|works|fits|can|could|may|might|would"
# In "B) a dog", it is an article, as before any other word of two letters or more. (?! excludes
# those words.
_WORD_AFTER_ARTICLE = rf"(?!(?:{_WORDS_AFTER_LETTER_A})\b)\w{{2}}"
# Searched in the text after the letter. A match means that the letter is no clear choice: "B or C",
# "B, C", "B is wrong". The price is that "B) Romeo and Juliet" is refused too.
_HEDGE = re.compile(
    rf"""(?i)
    \b(?:or|nor|and|not|but|if|wrong|maybe|either|instead|rather)\b
    |  # or a second letter:
    \b
    (?<!\w')  # not the s of "Newton's"
    (?<!\d[ ])  # not the unit in "B) 3 m"
    (?!a\s+{_WORD_AFTER_ARTICLE})  # not the article in "B) a dog"
    (?!.\s*=)  # not the variable in "B) x = 4"
    [a-z]\b
    """,
    re.VERBOSE,
)
# Full stops and exclamation marks at the end, after two letters or a closing mark such as **.
# After one letter they stay: n! is not n.
_END_OF_SENTENCE = re.compile(r"""(?:(?<=[^\W\d_]{2})|(?<=[*"'_`]))[.!]+$""")


@dataclass(frozen=True)
class AnswerSummary:
    """The kind of a task's gold answers, and its labels with their shares."""

    kind: AnswerKind
    labels: tuple[tuple[str, float], ...] = ()
    """(answer, share of the rows), the most frequent first.

    Empty unless the answers are choices, or numbers that repeat, such as ratings.
    """
    exceptions: tuple[str, ...] = ()
    """Gold answers that are not of the kind, such as `n/a` among numbers."""

    @property
    def hint(self) -> str:
        """Text in place of the answer in the system prompt."""
        if self.kind == "choice":
            return f"one of: {', '.join(sorted(dict(self.labels)))}"
        return {"json": "JSON", "text": "answer"}.get(self.kind, self.kind)

    @property
    def majority(self) -> tuple[str, float] | None:
        """Majority-class baseline: the most frequent answer with its share of the rows, or None."""
        return self.labels[0] if self.labels else None

    @property
    def in_words(self) -> str:
        """The kind, and the labels of choices with their shares."""
        if self.kind == "choice":
            labels = ", ".join(f"{label} ({share:.0%})" for label, share in self.labels)
            return f"choice: {labels}"
        return self.kind


# Which kind?


def summarize_answers(golds: Sequence[str], kind: AnswerKind | None = None) -> AnswerSummary:
    """Find the kind of these answers, or use the given one.

    Args:
        golds: One answer for each row.
        kind: The kind, if the user set it.

    >>> summarize_answers(["1,250", "-3.5", "7"]).kind, summarize_answers(["Paris", "Rome"]).kind
    ('number', 'text')
    >>> summarize_answers(["yes", "no"] * 4).hint
    'one of: no, yes'
    """
    # Answers that differ only in capitals are one label, in its first spelling.
    first_spelling = {gold.casefold(): gold for gold in reversed(golds)}
    counts = Counter(first_spelling[gold.casefold()] for gold in golds)
    are_labels = 2 <= len(counts) <= _MAX_LABELS and len(golds) >= _MIN_ROWS_PER_LABEL * len(counts)
    if kind is None:
        kind = _likely_kind(golds)
        if are_labels and kind in ("expression", "text"):
            kind = "choice"
    labels = []
    if kind == "choice" or (are_labels and kind == "number"):
        # Equally frequent labels stay in the order of their first rows.
        labels = [(label, count / len(golds)) for label, count in counts.most_common()]
    exceptions = tuple(gold for gold in golds if not _is_of_kind(gold, kind))
    return AnswerSummary(kind, tuple(labels), exceptions)


def _likely_kind(golds: Sequence[str]) -> AnswerKind:
    """Return the first kind that nine in ten rows have."""
    # Numbers come first, because each number is also an expression.
    for kind in ("number", "json", "expression"):
        exception_count = sum(not _is_of_kind(gold, kind) for gold in golds)
        if golds and exception_count <= _MAX_SHARE_OF_EXCEPTIONS * len(golds):
            return kind
    return "text"


def _is_of_kind(gold: str, kind: AnswerKind) -> bool:
    """Return True if an answer is of the kind. Every answer can be a text or a choice."""
    if kind == "json":
        return _json_container(gold) is not None
    if kind in ("text", "choice") or read_number(gold) is not None:
        return True
    return kind == "expression" and _FORMULA.search(gold) is not None


def _json_container(gold: str) -> Any:
    """Return the value of a gold answer that is a JSON object or list; None for any other."""
    value = read_json(gold)
    return value if isinstance(value, (dict, list)) else None


# Is an answer right?


def is_right_answer(given: str, gold: str, tolerance: float = 0.0) -> bool:
    r"""Return True if an answer is the same number, JSON value, letter or text as the gold answer.

    The gold answer decides how both are compared, so their order matters: `B) Paris` is right for
    `B`, but `B` is wrong for `B) Paris`. A number may follow one `variable =`: `x = 42` is 42, but
    `41 = 42` is not.

    >>> is_right_answer(r"\frac{1}{2}", "0.5"), is_right_answer("41 = 42", "42")
    (True, False)
    >>> is_right_answer('"paris."', "Paris"), is_right_answer('{"a": 1.0}', '{"a": 1}')
    (True, True)
    >>> is_right_answer('{"city": "PARIS"}', '{"city": "Paris"}')
    False
    >>> is_right_answer("**B.** No", "B"), is_right_answer("A or B", "B")
    (True, False)
    """
    gold_number = read_number(gold)
    if gold_number is not None:
        given_number = read_number(given)
        return given_number is not None and is_right_number(given_number, gold_number, tolerance)
    gold_value = _json_container(gold)
    if gold_value is not None:
        # Compared as JSON texts, because True == 1 in Python. An answer that is not JSON becomes
        # "null", which equals no object or list.
        gold_text = json.dumps(gold_value, sort_keys=True)
        return json.dumps(read_json(given), sort_keys=True) == gold_text
    if normalize_answer(given) == normalize_answer(gold):
        return True
    letter, text_after = read_letter(given)
    if not letter or _HEDGE.search(text_after):
        return False
    return read_letter(gold) == (letter, "")


def normalize_answer(text: str) -> str:
    """Return a text without capitals, markup, closing marks and extra white space, to compare it.

    >>> normalize_answer('**"Spam"**!'), normalize_answer("Positive."), normalize_answer("C#")
    ('spam', 'positive', 'c#')
    """
    text = _END_OF_SENTENCE.sub("", text.strip())
    return " ".join(strip_markup(text).casefold().split())


# Cached, because a gold answer is read again for each completion.
@lru_cache(maxsize=4_096)
def read_letter(text: str) -> tuple[str, str]:
    r"""Return the letter of an option and the text after it; two empty texts for other texts.

    >>> read_letter("Answer: C"), read_letter("**B.** No"), read_letter("[B]")
    (('C', ''), ('B', 'No'), ('B', ''))
    >>> read_letter("B (Paris)"), read_letter("A dog")
    (('B', 'Paris'), ('', ''))
    """
    text = strip_markup(text).replace("**", "")
    # A letter alone may be small.
    if re.fullmatch(r"\W*\w\W*", text):
        text = text.upper()
    match = _OPTION_LETTER.fullmatch(text)
    if match is None:
        return "", ""
    text_after = match["after"] or match["in_brackets"] or ""
    return match["letter"], strip_markup(text_after)


def read_json(text: str) -> Any:
    """Return the value of a JSON text; None for any other text.

    The text may have a Markdown fence around it and a full stop after it. A key that comes twice is
    refused. A float that is whole becomes an int, so that 1.0 equals 1.

    >>> read_json('{"a": 1.0}.'), read_json('{"a": 1, "a": 2}'), read_json("NaN")
    ({'a': 1}, None, None)
    """
    text = text.strip().removesuffix(".").rstrip()
    if len(text) > _LONGEST_JSON:
        return None
    fenced = re.fullmatch(r"```(?i:json)?\s*\n(.*)\n\s*```", text, re.DOTALL)
    try:
        value = json.loads(
            fenced[1] if fenced else text,
            object_pairs_hook=_unique_keys,
            parse_float=_int_if_whole,
        )
        # json.loads reads NaN, and 1e999 as infinity; neither is JSON.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key comes twice")
    return value


def _int_if_whole(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number
