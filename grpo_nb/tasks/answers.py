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
_PERCENT_NAME = re.compile(r"(?i)per ?cent(?!ile)|(?<![a-z])pct(?![a-z])|%")
_SHORTEST_ALIKE = 5  # characters: shorter words, such as "lost" and "last", are labels of their own
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
    percent_rule: str = ""
    """How a percent sign is read beside these answers, where it matters: `0.5 is also 50%`."""

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
        if self.percent_rule:
            return f"{self.kind}; {self.percent_rule}"
        return self.hint if self.kind == "json" else self.kind


def answers_of(golds: Sequence[str | Sequence[str]], kind: Kind | None = None) -> Answers:
    """Tell the kind of these answers, or take the one that is given. Several right answers of a row are a list.

    >>> answers_of(["1,250", "-3.5", "7"]).kind, answers_of(["yes", "no"] * 4).hint, answers_of(["Paris", "Rome"]).kind
    ('number', 'one of: no, yes', 'text')
    """
    accepted = [[gold] if isinstance(gold, str) else list(gold) for gold in golds]
    written = [gold for row in accepted for gold in row]
    first = {
        gold.casefold(): gold for gold in reversed(written)
    }  # labels in other capitals are one
    counts = Counter(
        label for row in accepted for label in {first[gold.casefold()] for gold in row}
    )
    comes_again = 2 <= len(counts) <= _MOST_LABELS and len(golds) >= 3 * len(counts)
    is_label = comes_again and all(
        len(label) <= _LONGEST_LABEL and "\n" not in label for label in counts
    )
    # A row is odd if none of its answers is of the kind.
    odd = {
        likely: tuple(row[0] for row in accepted if not any(map(is_such, row)))
        for likely, is_such in _IS.items()
    }
    if kind is None:
        told = (
            [likely for likely, others in odd.items() if _ONE_ODD_OF * len(others) <= len(golds)]
            if golds
            else []
        )
        kind = "choice" if is_label and told[:1] in ([], ["expression"]) else (*told, "text")[0]
    # Equally frequent numbers, such as sums of which each comes three times, have no floor to speak of.
    has_shares = kind == "choice" or (
        kind == "number" and comes_again and len({*counts.values()}) > 1
    )
    in_order = sorted(counts, key=lambda label: (-counts[label], written.index(label)))
    shares = tuple((label, counts[label] / len(golds)) for label in in_order if has_shares)
    records = (
        [value for value, _ in map(read_json, written) if isinstance(value, dict)]
        if kind == "json"
        else []
    )
    keys = Counter(key for record in records for key in record)
    usual = tuple(key for key, count in keys.items() if 2 * count > len(golds))
    rule = _percent_rule(written) if kind == "number" else ""
    return Answers(kind, shares, usual, odd.get(kind, ()), rule)


def _percent_rule(golds: Sequence[str]) -> str:
    """Return how a percent sign beside these numbers is read, with one of them; empty where nothing is unclear."""
    numbers = {gold: read_number(gold) for gold in golds}
    signed = next(
        (gold for gold, number in numbers.items() if number is not None and number.unit == "%"),
        None,
    )
    small = next(
        (
            gold
            for gold, n in numbers.items()
            if n is not None and not n.unit and 0 < abs(n.value) < 1
        ),
        None,
    )
    rules = []
    if signed is not None:
        rules.append(f"in percent where a sign stands: {signed} may be written without it")
    if small is not None:
        percent = 100 * float(numbers[small].value)
        rules.append(f"{small} is also {percent:.10g}%, and not {small}%")
    return "; ".join(rules)


def as_percentages(golds: Sequence[str], column: str) -> tuple[list[str], str]:
    """Return the answers of a column of percentages, each with its sign, and a note; others as they are.

    A column holds percentages if most of its numbers have a percent sign, or if its name says so.

    >>> as_percentages(["12%", "0.5", "40%"], "answer")[0], as_percentages(["12", "0.5"], "answer")[0]
    (['12%', '0.5%', '40%'], ['12', '0.5'])
    """
    numbers = [read_number(gold) for gold in golds]
    has_sign = [number is not None and number.unit == "%" for number in numbers]
    is_bare = [number is not None and not number.unit and not number.name for number in numbers]
    is_named = _PERCENT_NAME.search(column) is not None
    if not any(is_bare) or not (is_named or sum(has_sign) > sum(is_bare)):
        return list(golds), ""
    signed = [f"{gold}%" if bare else gold for gold, bare in zip(golds, is_bare, strict=True)]
    example = next(i for i, bare in enumerate(is_bare) if bare)
    why = f"the column is called {column!r}" if is_named else "most others have a percent sign"
    note = f"{sum(is_bare)} of {len(golds)} answers are read as percentages, for {why}: {golds[example]} is {signed[example]}"
    return signed, note


def alike_labels(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of labels that may be two spellings of one: a letter more, less or another, a hyphen, white space.

    >>> alike_labels(["Return", "Returns", "Shipping", "Shiping", "typical", "atypical", "C", "C#"])
    [('Return', 'Returns'), ('Shipping', 'Shiping')]
    """
    plain_labels = [re.sub(r"[\s_.\-]+", "", label).casefold() for label in labels]
    pairs = []
    for i, one in enumerate(plain_labels):
        for k in range(i + 1, len(labels)):
            if _are_alike(one, plain_labels[k]):
                pairs.append((labels[i], labels[k]))
    return pairs


def _are_alike(one: str, other: str) -> bool:
    """Say whether two labels differ by one edit behind their first letter; digits tell labels apart on purpose."""
    short, long = sorted((one, other), key=len)
    if len(long) < _SHORTEST_ALIKE or short[:1] != long[:1] or len(long) - len(short) > 1:
        return False
    start = 0
    while start < len(short) and short[start] == long[start]:
        start += 1
    is_swap = len(short) == len(long) and short[start : start + 2] == long[start : start + 2][::-1]
    rests = {(short[start + 1 :], long[start + 1 :]), (short[start:], long[start + 1 :])}
    rests |= {(short[start + 2 :], long[start + 2 :])} if is_swap else set()
    changed = long[start : start + 1] + (
        short[start : start + 1] if len(short) == len(long) else ""
    )
    return not re.search(r"\d", changed) and any(a == b for a, b in rests)


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
    return (
        (found["letter"], plain(next(filter(None, found.groups()[1:]), ""))) if found else ("", "")
    )


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
