"""An answer has a kind: number, choice, text, expression or json. Prompt, reward and floor go by it, and nothing else does.

The kind is told from the gold answers, shown in the task, and set by `kind=`. Everything else is a reward of one's own.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_nb.tasks.numbers import Number, is_same_number, plain, read_number

Kind = Literal["number", "choice", "text", "expression", "json"]
_ONE_ODD_OF, _MOST_LABELS, _LONGEST_LABEL = 10, 24, 60
_LONGEST_JSON = 20_000  # characters
_FORMULA = re.compile(
    r"\\[a-zA-Z]+|[\^={}]|\d\s*[a-z]\b|\b[a-z]\s*[-+*/]|[-+*/]\s*[a-z]\b|^[(\[].*,.*[)\]]$|^[-+\d.]+(\s*,\s*[-+\d.]+)+$"
)
_LETTER = re.compile(
    r"(?:(?i:option|choice)\s+)?[\[(]?(?P<letter>[A-Z])(?:[\])]?[.):]?|[\])]?[.):]\s+(?P<text>\S.*)|[\])]\s+(?P<behind>\S.*)"
    r"|\s+[-\u2014]\s+(?P<apart>\S.*)|\s+\((?P<inside>.*)\))",
    re.DOTALL,
)
_GLUED_UNIT = re.compile(r"^(.*\d)([A-Za-z])$", re.DOTALL)
_HEDGE = re.compile(r"(?i)\b(?:or|nor|and|not|but|if|wrong|maybe|either|instead|rather|[a-z])\b")


@dataclass(frozen=True)
class Answers:
    """The kind of a task's gold answers; of those that come again and again, each with its share, the most frequent first."""

    kind: Kind
    labels: tuple[tuple[str, float], ...] = ()
    """(answer, share of the rows); every one of choices, the frequent ones of numbers that come again, such as ratings."""
    keys: tuple[str, ...] = ()
    """Of JSON objects, those that most have."""
    odd: tuple[str, ...] = ()
    """Answers that are not of this kind; told in the task, asked for and paid as written."""

    @property
    def hint(self) -> str:
        """What the system prompt puts in the place of the answer."""
        if self.kind == "choice":
            named = sorted(label for label, _ in self.labels)
            return "one of: " + ("; " if any("," in label for label in named) else ", ").join(named)
        if self.kind == "json":
            keys = ", ".join(json.dumps(key, ensure_ascii=False) for key in self.keys)
            return f"JSON with the keys {keys}" if keys else "JSON"
        return "answer" if self.kind == "text" else self.kind

    @property
    def floor(self) -> tuple[str, float] | None:
        """The most frequent answer and the share of rows that it alone would be right on; None where none comes again."""
        return self.labels[0] if self.labels else None

    @property
    def sentence(self) -> str:
        """The kind in words."""
        if self.kind == "choice":
            return "choice: " + ", ".join(f"{label} ({share:.0%})" for label, share in self.labels)
        return self.hint if self.kind == "json" else self.kind


def answers_of(golds: Sequence[str], kind: Kind | None = None) -> Answers:
    """Tell the kind of these answers, or take the one that is given.

    >>> answers_of(["1,250", "-3.5", "7"]).kind, answers_of(["yes", "no"] * 4).hint, answers_of(["Paris", "Rome"]).kind
    ('number', 'one of: no, yes', 'text')
    """
    first = {gold.casefold(): gold for gold in reversed(golds)}  # labels in other capitals are one
    counts = Counter(first[gold.casefold()] for gold in golds)
    comes_again = 2 <= len(counts) <= _MOST_LABELS and len(golds) >= 3 * len(counts)
    is_label = comes_again and all(len(label) <= _LONGEST_LABEL and "\n" not in label for label in counts)
    odd = {likely: tuple(gold for gold in golds if not is_such(gold)) for likely, is_such in _IS.items()}
    if kind is None:
        told = [likely for likely, others in odd.items() if _ONE_ODD_OF * len(others) <= len(golds)] if golds else []
        kind = "choice" if is_label and told[:1] in ([], ["expression"]) else (*told, "text")[0]
    # Equally frequent numbers, such as sums of which each comes three times, have no floor to speak of.
    has_shares = kind == "choice" or (kind == "number" and comes_again and len({*counts.values()}) > 1)
    shares = tuple((label, count / len(golds)) for label, count in counts.most_common() if has_shares)
    records = [value for value, _ in map(read_json, golds) if isinstance(value, dict)] if kind == "json" else []
    keys = Counter(key for record in records for key in record)
    usual = tuple(key for key, count in keys.items() if 2 * count > len(golds))
    return Answers(kind, shares, usual, odd.get(kind, ()))


def _is_json(gold: str) -> bool:
    return gold.lstrip()[:1] in ("{", "[", "`") and isinstance(read_json(gold)[0], (dict, list))


# In this order: a number is a formula, too.
_IS: dict[Kind, Callable[[str], bool]] = {
    "number": lambda gold: read_number(gold) is not None,
    "json": _is_json,
    "expression": lambda gold: read_number(gold) is not None or bool(_FORMULA.search(gold)),
}


def is_same_answer(given: str, gold: str, tolerance: float = 0.0) -> bool:
    r"""Compare as the gold answer is: a number, a JSON object or array, a letter, else a text.

    One `variable =` before a number is part of the answer, not another one: `x = 42` is 42, `41 = 42` is not.

    >>> is_same_answer(r"\frac{1}{2}", "0.5"), is_same_answer("41 = 42", "42"), is_same_answer('"paris."', "Paris")
    (True, False, True)
    >>> is_same_answer("**B.** No", "B"), is_same_answer("A or B", "B"), is_same_answer('{"a": 1.0}', '{"a": 1}')
    (True, False, True)
    """
    wanted, number = read_number(gold), read_number(given)
    if wanted is None and number is not None:
        wanted = _with_unit_of(gold, number)
    if wanted is not None:
        if number is None:
            number = _with_unit_of(given, wanted)
        return number is not None and is_same_number(number, wanted, tolerance)
    if _is_json(gold) and is_same_json(read_json(given)[0], read_json(gold)[0]):
        return True
    if folded(given) == folded(gold):
        return True
    letter, text = read_letter(given)
    return letter != "" and (letter, "") == read_letter(gold) and not _HEDGE.search(text)


def _with_unit_of(text: str, other: Number) -> Number | None:
    """Read `2h` as 2 hours where the other side has this unit; alone it may be two times h."""
    number = read_number(_GLUED_UNIT.sub(r"\1 \2", plain(text)))
    return number if number is not None and other.unit and number.unit == other.unit else None


def folded(text: str) -> str:
    """A text as it is compared: in one case, without wrappers, closing marks and runs of white space.

    >>> folded('**"Spam"**!'), folded("Positive."), folded("C#")
    ('spam', 'positive', 'c#')
    """
    # The mark after a single letter may be one of mathematics: n! is not n.
    text = re.sub(r"""(?:(?<=[^\W\d_]{2})|(?<=[*"'_`]))[.!]+$""", "", text.strip())
    return " ".join(plain(text).casefold().split())


def read_letter(text: str) -> tuple[str, str]:
    r"""The letter of an option and the text behind it; two empty texts where it is anything else.

    >>> read_letter("Answer: C"), read_letter("**B.** No"), read_letter("[B]"), read_letter("B (Paris)"), read_letter("A dog")
    (('C', ''), ('B', 'No'), ('B', ''), ('B', 'Paris'), ('', ''))
    """
    text = plain(text).replace("**", "")
    text = text.upper() if re.fullmatch(r"\W*\w\W*", text) else text
    found = _LETTER.fullmatch(text)
    return (found["letter"], plain(next(filter(None, found.groups()[1:]), ""))) if found else ("", "")


def read_json(text: str) -> tuple[Any, bool]:
    """Return the one JSON value that a text is, and True; or None and False.

    A Markdown fence and a full stop may stand around it, as around any answer; a key twice may not.

    >>> read_json('{"a": 1}.'), read_json('{"a": 1, "a": 2}'), read_json("NaN")
    (({'a': 1}, True), (None, False), (None, False))
    """
    text = text.strip().removesuffix(".").rstrip()
    if len(text) > _LONGEST_JSON:
        return None, False
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", text, re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else text, object_pairs_hook=_without_doubles)
        json.dumps(value, allow_nan=False)  # NaN is none, and 1e999 is read as infinity
    except (ValueError, RecursionError):
        return None, False
    return value, True


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def is_same_json(a: Any, b: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, but True is not 1, and the order of keys does not matter."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same_json(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(is_same_json, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b
