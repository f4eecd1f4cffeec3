"""What the gold answers are: numbers, JSON, labels, expressions or text. Prompt, rewards and floor go by it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from grpo_nb.core.text import shorten
from grpo_nb.tasks.notation import (
    CURRENCIES,
    is_known_unit,
    is_literal,
    parse_number,
    plain,
    read_container,
    read_measure,
    read_number,
    unit_name,
    unit_of,
)

Kind = Literal["numbers", "json", "labels", "expressions", "text"]
_FORMULA = re.compile(
    r"^\$.+\$$|\\[a-zA-Z]+|^[-+\d.]+(\s*,\s*[-+\d.]+)+$|[\^=_{}]|\d\s*[a-z]\b|\b[a-z]\s*[-+*/]|[-+*/]\s*[a-z]\b|^[(\[].*,.*[)\]]$"
)
MOST_LABELS, _LONGEST_LABEL = 24, 60
_MOST_UNITS, _LONGEST_UNIT, _LONGEST_NUMBER = 8, 12, 80
_FEWEST_RATINGS, _MOST_RATINGS = 60, 12
_POINT = re.compile(r"\d+\.\d+")
# A few answers of another kind are told, and do not change what all are.
_NEARLY_ALL = 0.9
# Where no more than this share are of another kind, they are told, whatever all are then taken for.
_MOST_ODD: dict[Kind, float] = {"numbers": 0.5, "json": 0.2, "labels": 0.2, "expressions": 0.2}
_ODD: dict[Kind, tuple[str, str]] = {
    "numbers": ("is no number", "are no numbers"),
    "json": ("is no JSON object or array", "are no JSON object or array"),
    "labels": (
        "comes once or twice, while all others are a few labels",
        "come once or twice, while all others are a few labels",
    ),
    "expressions": ("is no expression", "are no expressions"),
    "text": ("is written otherwise than all others", "are written otherwise than all others"),
}
# What tables and people write where there is no value.
MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>", "nat")
# Of labels, without the marks in them: what stands for no answer, what does where it is rare, and marks alone that do.
_NO_ANSWER = re.compile(
    r"n a|k a|nan|null|tbd|todo|leer|blank|no (answer|data)|keine (angabe|daten)|nicht angegeben"
    r"|not (given|specified|available|applicable)|unspecified"
)
_NO_ANSWER_IF_RARE = re.compile(
    r"na|none|empty|missing|undefined|unknown|unbekannt|inconnue?|desconocid[oa]|sconosciut[oa]|keine?|fehlt"
)
_NO_ANSWER_MARKS = re.compile(r"[-\u2013\u2014?.\u2026_*/\\()\[\]]+")
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{4,}")  # which no command of LaTeX is
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_])\s*[-_]+\s*(?=[^\W\d_])")
# What is read as a number and may be meant otherwise. 1,50 and 1.234,50, and 1.050.000 may have a decimal comma; 1,500 and
# 1.050 may be either, and are taken as English.
_DOUBTFUL = (
    (
        re.compile(r"0\d+"),
        "begin with zeros: as numbers they are the same without; where they are names, such as order numbers, reward them with "
        "gn.rewards.exact_text()",
    ),
    (
        re.compile(r"(0?[1-9]|[12]\d|3[01])/(0?[1-9]|1[0-2])|(0?[1-9]|1[0-2])/(0?[1-9]|[12]\d|3[01])"),
        "could be days and months, and are read as fractions, so that 0.5 is right for 1/2; where they are, reward them with "
        "gn.rewards.exact_text()",
    ),
    (
        re.compile(
            r"[-+]?\d+,(\d{1,2}|\d{4,})(\s?[^\d\s,]{1,6}\s?10\b.*|[eE][-+]?\d+)?|[-+]?\d{1,3}(\.\d{3})+,\d+|[-+]?\d{1,3}(\.\d{3}){2,}"
        ),
        "may have a decimal comma: decimal=',' reads them so; as they are, English reads them otherwise or not at all",
    ),
)
# A letter alone is a unit where it is one that people know: 5 m, 5 N, but 2x is a product, and 3 x another.
_PRODUCT = re.compile(r".*(\d[a-zA-Z]|\s[a-z])(?<!\s[dghlmst])")
_FRACTION = re.compile(r"/\s*\d|\\frac|[\u00bc-\u00be\u2150-\u215e]")
_LIST = re.compile(r"(?s)\[\s*(?P<mark>['\"])(?!.*'\s+').*(?P=mark)\s*\]")  # without a comma, numpy's
_AROUND_DIGITS = re.compile(r"^[^\d+-]*|\D*$")
_AFTER_HASHES = re.compile(r"(?s)(.*?)\n?\s*####\s*([^\n]+?)\s*")
_POWER = (
    r"(?:[eE][-+]?\d+|\s?(?:[\u00b7\u22c5\u00d7x*]|\\times|\\cdot)\s?10"
    r"(?:\^\{?[-+\u2212]?\d+\}?|[\u00b9\u00b2\u00b3\u2070-\u207b]+))"
)
# A date, a time or both, as `_shape` writes them.
_MOMENT = re.compile(
    r"(?=[Y#])(?P<date>Y([-/.])#\2#|#([-/]|\. ?)#\3[Y#]|#\. ?#\.|#/#|#/Y)?"
    r"(?:(?(date)(?:[T ]|, ))(?P<time>#:#(?P<second>:#)?(?: ?\?\.?[mM]\.?)?))?"
)
# By letter of what is counted: the least and the most, and what a date that is made up has of it.
_COUNTED = {
    "Y": (1000, 2999, 2025), "C": (1900, 2099, 2025), "y": (0, 99, 25), "m": (1, 12, 7), "d": (1, 31, 31),
    "H": (0, 24, 9), "M": (0, 59, 5), "S": (0, 59, 30),
}  # fmt: skip
_FEWEST_DAYS = 10  # different ones, of what may be fractions


@dataclass(frozen=True)
class Answers:
    """The kind of a task's gold answers and, of labels and units, how often each occurs, the most frequent first."""

    kind: Kind
    labels: tuple[tuple[str, float], ...] = ()
    """(label, share of the rows)."""
    units: tuple[tuple[str, float], ...] = ()
    """(unit, share of the rows) of numbers beside units, percent signs or currencies; an empty one for numbers alone."""
    keys: tuple[str, ...] | None = None
    """Of JSON objects, those that most have; None for arrays and for other kinds."""
    point: str = ""
    """A number with a point, to be asked for so where the data has a comma; from `point_of`."""
    form: str = ""
    """Of dates, times and codes such as `023954` one that is made up, as nearly all are written."""
    often: tuple[str, float] | None = None
    """Of few numbers that come again and again, such as ratings: the most frequent answer, its share."""

    @property
    def hint(self) -> str:
        """What the system prompt puts in the place of the answer."""
        if self.kind == "labels":
            named = sorted(label for label, _ in self.labels)
            listed = ("; " if any("," in label for label in named) else ", ").join(named)
            return f"one of: {listed}"
        if self.kind == "json":
            keys = ", ".join(json.dumps(key, ensure_ascii=False) for key in self.keys or ())
            return (
                f"a JSON {'array' if self.keys is None else 'object'}"
                + f" with the key{'s' * (len(self.keys or ()) > 1)} {keys}" * bool(keys)
            )
        number = f"number, decimals with a point as in {self.point}" if self.point else "number"
        if self.units:
            named = ", ".join(unit for unit, _ in self.units if unit)
            has_all = "" not in dict(self.units)
            return (
                f"{number}{', and' if self.point else ' with'} its unit ({named})"
                if has_all
                else f"{number}, with its unit ({named}) if it has one"
            )
        text = f"answer as in {self.form}" if self.form else "answer"
        return {"numbers": number, "expressions": "expression", "text": text}[self.kind]

    @property
    def floor(self) -> tuple[str, float] | None:
        """The most frequent answer of labels or ratings, and the share of rows it alone would be right on; else None."""
        return self.often or (self.labels[0] if self.labels else None)

    @property
    def sentence(self) -> str:
        """The kind in words."""
        if self.kind == "labels":
            shares = ", ".join(f"{label} ({share:.0%})" for label, share in self.labels)
            return f"{len(self.labels)} labels: {shares}"
        if self.units:
            return "numbers: " + ", ".join(
                f"in {unit} ({s:.0%})" if unit else f"alone ({s:.0%})" for unit, s in self.units
            )
        if self.form:
            return f"text, as in {self.form}"
        return self.hint.replace("a JSON", "JSON", 1) if self.kind == "json" else self.kind


def answers_of(golds: Sequence[str]) -> Answers:
    """Tell what kind of answers these are.

    Labels are few, short and come again and again; numbers that do (a rating from 1 to 5) stay numbers.

    >>> answers_of(["positive", "negative"] * 4).hint, answers_of(["1,250", "-3.5", "7"]).kind
    ('one of: negative, positive', 'numbers')
    >>> answers_of([r"\\frac{1}{2}", "x^2", "2x"]).kind, answers_of(["Paris", "the river Seine"]).kind
    ('expressions', 'text')
    """
    if not golds:
        return Answers("text")
    unit_by_gold = _unit_by_gold(golds)
    units = _units(golds, unit_by_gold)
    form = date_form(golds)[0] or _code_form(golds)
    # Prices and measures that come again and again are no labels: a label is not computed.
    if not form and units.total() >= _NEARLY_ALL * len(golds):
        is_measured = set(units) != {""}
        shares = tuple((unit, count / len(golds)) for unit, count in units.most_common()) if is_measured else ()
        return Answers("numbers", units=shares, often=_often(golds))
    if (read := _containers(golds)) and len(read) >= _NEARLY_ALL * len(golds):
        return Answers("json", keys=_usual_keys(read))
    counts = Counter(golds)
    if (
        2 <= len(counts) <= MOST_LABELS
        and len(golds) >= 3 * len(counts)
        and max(map(len, counts)) <= _LONGEST_LABEL
        and not any("\n" in label for label in counts)
    ):
        return Answers("labels", tuple((label, count / len(golds)) for label, count in counts.most_common()))
    if form:
        return Answers("text", form=form)
    formulas = [_is_formula(gold) for gold in golds if unit_by_gold[gold] is None]
    if sum(formulas) >= _NEARLY_ALL * len(formulas) and any("\n" not in gold for gold in golds):
        return Answers("expressions")
    return Answers("text")


def _containers(golds: Sequence[str]) -> list[dict[str, Any] | list[Any]]:
    return [value for gold in golds if (value := read_container(gold)) is not None]


def _usual_keys(read: Sequence[dict[str, Any] | list[Any]]) -> tuple[str, ...] | None:
    """The keys that more than half of JSON objects have; None where most values are arrays."""
    objects = [value for value in read if isinstance(value, dict)]
    counts = Counter(key for value in objects for key in value)
    most = tuple(key for key, count in counts.items() if 2 * count > len(objects))
    return most if 2 * len(objects) >= len(read) else None


def _often(golds: Sequence[str]) -> tuple[str, float] | None:
    """The most frequent of few numbers and its share, however they are written; None where there are many, or few rows."""
    values = [read_measure(gold) or gold for gold in golds]
    counts = Counter(values)
    if len(golds) < _FEWEST_RATINGS or sum(count for _, count in counts.most_common(_MOST_RATINGS)) < _NEARLY_ALL * len(
        golds
    ):
        return None
    value, count = counts.most_common(1)[0]
    return golds[values.index(value)], count / len(golds)


def point_of(golds: Sequence[str]) -> str:
    """A number with a point of the form that is most frequent among these, its digits made up; empty where none has one.

    >>> point_of(["0.75", "0.25", "12.5", "3"]), point_of(["3", "7"])
    ('0.12', '')
    """
    forms = Counter(re.sub(r"(?!^0\.)\d", "9", found[0]) for gold in golds if (found := _POINT.search(gold)))
    digits = itertools.cycle("123456789")
    return re.sub("9", lambda _: next(digits), forms.most_common(1)[0][0]) if forms else ""


def date_form(golds: Sequence[str]) -> tuple[str, set[str]]:
    """A date or time, made up, as nearly all of these are written, and those that are; empty where they are anything else.

    `3/4` is a day where others are `6/8` and `29/6`, and a fraction where no other can be made simpler.

    >>> date_form(["2.10.", "17.1."])[0], date_form(["3/24/2025 9:30 AM", "12/1/2025 11:00 AM"])[0], date_form(["2.1", "3"])[0]
    ('31.7.', '7/31/2025 9:05 AM', '')
    """
    shape = Counter(map(_shape, golds)).most_common(1)[0][0]
    if not shape or not (match := _MOMENT.fullmatch(shape)):
        return "", set()
    date = re.sub("[^Y#]", "", match["date"] or "")
    time = "HMS"[: 2 + bool(match["second"])] * bool(match["time"])
    orders = {"##": ("dm", "md"), "###": ("dmy", "mdy"), "##Y": ("dmY", "mdY"), "Y##": ("Ymd",), "#Y": ("mC",)}
    alike = {gold: re.findall("[0-9]+", gold) for gold in golds if _shape(gold) == shape}
    fitting = [
        (order + time, {gold for gold, digits in alike.items() if all(map(_is_counted, order + time, digits))})
        for order in orders.get(date, ("",))
    ]
    order, dated = max(fitting, key=lambda pair: len(pair[1]))
    rest = [gold for gold in golds if gold not in dated]
    if not dated or len(rest) > (1 - _NEARLY_ALL) * len(golds):
        return "", set()
    parts = [*zip(*(alike[gold] for gold in dated), strict=True)]
    if match["date"] == "#/#" and not time and not _are_days(*(map(int, part) for part in parts)):
        return "", set()
    # The 12th may be a month as well, where no day says which is which.
    is_open = len(fitting) > 1 and fitting[0][1] == fitting[1][1]
    made = (
        f"{12 if letter == 'd' and is_open else _COUNTED[letter][2]:0{min(map(len, part))}}"
        for letter, part in zip(order, parts, strict=True)
    )
    half = re.search("[AaPp](?=[.]?[mM])", min(dated))
    form = re.sub("[Y#]", lambda _: next(made), shape).replace("?", half[0] if half else "")
    return form + (f", or {rest[0]}" if len(rest) > 2 and len({*rest}) == 1 else ""), dated


def _code_form(golds: Sequence[str]) -> str:
    """A code, made up, where all are digits of one length and some begin with zeros, as `007` does; empty for numbers."""
    is_code = len({*map(len, golds)}) == 1 and all(gold.isascii() and gold.isdigit() for gold in golds)
    zeros = sum(gold.startswith("0") for gold in golds) if is_code and len(golds[0]) > 2 else 0
    return "".join(itertools.islice(itertools.cycle("0123456789"), len(golds[0]))) if 20 * zeros >= len(golds) else ""


def _shape(gold: str) -> str:
    """A short text with # for one or two digits, Y for four, and ? for what tells AM from PM; empty where it has none."""
    if len(gold) > _LONGEST_LABEL or not gold[:1].isdecimal():
        return ""
    signs = {1: "#", 2: "#", 4: "Y"}
    return re.sub("[AaPp](?=[.]?[mM])", "?", re.sub("[0-9]+", lambda match: signs.get(len(match[0]), "N"), gold))


def _is_counted(letter: str, digits: str) -> bool:
    least, most, _ = _COUNTED[letter]
    return least <= int(digits) <= most and (letter not in "yMS" or len(digits) == 2)


def _are_days(first: Iterable[int], second: Iterable[int]) -> bool:
    """Whether numbers around a slash are days and months: many, some past 12, some that fractions are not left as."""
    pairs = {*zip(first, second, strict=True)}
    if len(pairs) < _FEWEST_DAYS or max(map(max, pairs)) <= _COUNTED["m"][1]:
        return False
    is_large = 2 * sum(one > other for one, other in pairs) > len(pairs)
    is_odd = any(other in (1, 17, 19, 23, 29, 31) for _, other in pairs)
    return 5 * sum(math.gcd(*pair) > 1 for pair in pairs) >= len(pairs) and (is_large or is_odd)


def doubts_of(answers: Answers, golds: Sequence[str]) -> list[str]:
    """What in these answers may not be what it seems: those of another kind than most, numbers meant otherwise.

    >>> doubts_of(Answers("numbers"), ["1,50", "9,99", "3"])[0][:60]
    "2 answers, such as '1,50', may have a decimal comma: decimal"
    """
    unit_by_gold = _unit_by_gold(golds)
    most, odd = odd_ones(golds)
    said: list[str] = []
    counts = Counter(golds if most == "labels" or (most == "text" and answers.labels) else ())
    none = set(_no_answers(counts or Counter(golds if most == "text" else ()), bool(counts)))
    odd = [gold for gold in odd if gold not in none]
    is_rare = most == "labels"
    if named := _shown(odd, 12 if is_rare else 4):
        named = [f"{_of(odd, golds)} ({named}) {_ODD[most][len(odd) > 1]}"]
    if shown := _shown(missing := [gold for gold in golds if gold in none]):
        named = [*named, f"{_of(missing, golds)} ({shown}) may stand for no answer"]
    if named:
        taken = (
            "asked for and paid as written" if answers.kind == most or not odd else f"all are taken as {answers.kind}"
        )
        cure = "mend those rows, or leave them out with keep="
        said.append(f"{', and '.join(named)}: {taken}; {cure}")
    if lists := [gold for gold in golds if _LIST.fullmatch(gold) and answers.kind != "json"]:
        said.append(f"{len(lists)} answers are lists written as text, such as {shorten(lists[0], 60)!r}")
    units = [unit for unit in _units(golds, unit_by_gold) if unit]
    measured = [gold for gold in golds if unit_by_gold[gold]] if units else []
    if answers.units or 2 * len(measured) > len(golds):
        fractions = sum(bool(_FRACTION.search(gold)) for gold in golds if unit_by_gold[gold] is not None)
        also = f", and {fractions} fractions" if fractions else ""
        paid = "gn.rewards.correctness() pays"
        prices = [gold for gold in measured if _is_price(gold) and unit_by_gold[gold] != "\u00b0"]
        others = [gold for gold in measured if not _is_price(gold)]
        if prices:
            said.append(
                f"{len(prices)} answers are a price, such as {prices[0]!r}{also}: {paid} the number with its currency or "
                "alone, and not with another one"
            )
        if others:
            said.append(
                f"{len(others)} answers are a number with a unit, such as {others[0]!r}{also * (not prices)}: {paid} number "
                "and unit together"
            )
    formulas = [gold for gold in golds if unit_by_gold[gold] is None and _is_formula(gold) and not _WORD.search(gold)]
    if answers.kind == "text" and not answers.form and 5 * len(formulas) >= len(golds):
        said.append(
            f"{_of(formulas, golds)} are expressions, such as {formulas[0]!r}: gn.rewards.maths() pays them in any form, and "
            "numbers; gn.rewards.correctness(), which rewards_for(task) takes, numbers alone"
        )
    if re.match(r"\d+/\d\d?(,|$)", answers.form):
        said.append(
            f"answers such as {golds[0]!r} are taken as days and months; where they are fractions, gn.rewards.correctness() "
            'pays them in any form, and dataclasses.replace(gn.tasks.xml(), answer_hint="fraction") asks for them'
        )
    for pattern, what in _DOUBTFUL if answers.kind == "numbers" else ():
        if found := [gold for gold in golds if pattern.fullmatch(_AROUND_DIGITS.sub("", gold))]:
            said.append(f"{len(found)} answers, such as {found[0]!r}, {what}")
    return said


def _of(some: Sequence[str], golds: Sequence[str]) -> str:
    return f"{len(some)} of {len(golds)} answers"


def _shown(golds: Sequence[str], most: int = 4) -> str:
    return ", ".join(map(repr, list(dict.fromkeys(shorten(gold, 60) for gold in golds))[:most]))


def _no_answers(counts: Counter[str], are_labels: bool) -> list[str]:
    """What people write where there is no answer; rare labels, texts that come again, marks beside words may be just that."""
    plain_words = {label: " ".join(re.findall(r"[^\W_]+", label.casefold())) for label in counts}
    marks = [label for label, words in plain_words.items() if not words]
    are_none = all(map(_NO_ANSWER_MARKS.fullmatch, marks)) and 2 * sum(counts[mark] for mark in marks) < counts.total()
    least, most = (0, max(counts.values(), default=0)) if are_labels else (3, counts.total())
    return [
        label
        for label, words in plain_words.items()
        if (words == "" and are_none)
        or _NO_ANSWER.fullmatch(words)
        or (_NO_ANSWER_IF_RARE.fullmatch(words) and least <= counts[label] < most / 2)
    ]


def label_spelling(label: str) -> str:
    """A label without what changes nothing in it: as `spelling`, and with a space for any mark between its words.

    >>> label_spelling("IT - Support") == label_spelling("it_support"), label_spelling("grade 1-2")
    (True, 'grade 1-2')
    """
    return spelling(_BETWEEN_WORDS.sub(" ", label))


def spelling(gold: str) -> str:
    """An answer without what changes nothing in a word: capitals, a full stop, quotation marks and the like around it.

    >>> spelling('"Paris."') == spelling("paris"), spelling("C#") == spelling("C")
    (True, False)
    """
    return " ".join((plain(gold) or gold).casefold().split())


def odd_ones(golds: Sequence[str]) -> tuple[Kind, list[str]]:
    """Return the kind that most answers are of, and the few that are not; of labels, those that never come again."""
    form, dated = date_form(golds) if golds else ("", set())
    if form:
        return "text", [gold for gold in golds if gold not in dated]
    counts, unit_by_gold = Counter(golds), _unit_by_gold(golds)
    usual = {gold for gold, count in counts.items() if count > 2 and len(gold) <= _LONGEST_LABEL}
    is_of: dict[Kind, Callable[[str], bool]] = {
        "numbers": lambda gold: unit_by_gold[gold] is not None,
        "json": lambda gold: read_container(gold) is not None,
        "labels": lambda gold: gold in usual or counts[gold] > 2,
        "expressions": _is_formula,
    }
    for kind, is_such in is_of.items():
        odd = [gold for gold in golds if not is_such(gold)]
        if len(odd) <= _MOST_ODD[kind] * len(golds) and (kind != "labels" or 2 <= len(usual) <= MOST_LABELS):
            return kind, odd
    return "text", []


def _is_price(gold: str) -> bool:
    """Whether what stands beside a number leaves its value as it is when it is not said, as a currency does, and no percent."""
    text = with_point(gold) or gold
    number, measure = read_number(text), read_measure(text)
    return number is not None and measure is not None and number.value == measure.value


def _is_formula(gold: str) -> bool:
    if _unit(gold) is not None:
        return True
    return bool(_FORMULA.search(gold)) and gold.casefold() not in MISSING and not is_literal(gold)


def with_point(gold: str) -> str | None:
    """A number written with a decimal comma, as English writes it, with its unit if there is one; None for any other text.

    >>> with_point("1.234,50"), with_point("-3,5 %"), with_point("EUR 12,90"), with_point("1.234,- €"), with_point("1.12.2024")
    ('1234.50', '-3.5 %', 'EUR 12.90', '1234.- €', None)
    """
    # A fraction and whatever else is a number without a mark in it is the same number with either.
    if not re.search(r"[.,]", gold) and (parse_number(gold) is not None or unit_of(gold)):
        return gold
    if not re.fullmatch(
        rf"[-+\u2212]?([{CURRENCIES}]|[A-Z]{{3}})?\s*(\d{{1,3}}([. '\u202f]\d{{3}})+|\d+)(,(\d+|[-\u2013]))?"
        rf"{_POWER}?\s*[^\s\d.,]{{0,8}}",
        gold,
    ):
        return None
    return re.sub(r"(?<=\d)[. '\u202f](?=\d{3})", "", gold).replace(",", ".")


def _units(golds: Sequence[str], unit_by_gold: Mapping[str, str | None]) -> Counter[str]:
    """How many numbers there are in each unit, as it is first written; none of those that are too many for units."""
    units, written = Counter[str](), dict[str, str]()
    for gold in golds:
        if (unit := unit_by_gold[gold]) is not None:
            units[written.setdefault(unit, _written(gold, unit))] += 1
    is_many = len(units) > min(_MOST_UNITS, max(1, len(golds) // 2))
    return Counter({"": units[""]} if units[""] else {}) if is_many else units


def _unit_by_gold(golds: Sequence[str]) -> dict[str, str | None]:
    """By answer its unit, or None. The letter of 15C is one where others have it apart, or where all have this one."""
    units = {gold: _unit(gold) for gold in golds}
    apart = {unit for unit in units.values() if unit}
    unsure = [gold for gold, unit in units.items() if unit is None and re.match(r"\W*\d", gold)]
    behind = {gold: unit_of(with_point(gold) or gold) for gold in unsure}
    others = {unit for gold, unit in behind.items() if _PRODUCT.fullmatch(gold)} - apart
    known = apart | (others if len(others) == 1 and all(map(is_known_unit, others)) else set())
    return units | {gold: unit for gold, unit in behind.items() if unit in known}


@lru_cache(maxsize=100_000)
def _unit(gold: str) -> str | None:
    """The unit beside a number, empty where it stands alone; None for what is no number, also with a decimal comma."""
    if len(gold) > _LONGEST_NUMBER:
        return None
    for text in {gold: 0, with_point(gold): 0}:
        if text is not None and (unit := unit_of(text)):
            words = [word for word in re.sub(_POWER, "", gold).split() if any(map(str.isalpha, word))]
            is_unit = len(words) < 2 and len(unit) <= _LONGEST_UNIT and not _PRODUCT.fullmatch(gold)
            return unit if is_unit or is_literal(gold) or read_number(text) else None
        if text is not None and parse_number(text) is not None:
            return ""
    return None


def _written(gold: str, unit: str) -> str:
    """A unit as it stands there: `stars`, which are counted with `star`."""
    written = re.sub(rf"^[^a-zA-Z\u00b5\u00b0%{CURRENCIES}]*|[-+\u2212\d.,' ]*$", "", gold)
    return written if unit_name(written) == unit else unit


def after_hashes(golds: Sequence[str]) -> list[tuple[str, str]] | None:
    """(solution, answer) of each text in the form of GSM8K, reasoning and then `#### 42`; None if not all are.

    >>> after_hashes(["3 + 4 = 7\\n#### 7", "2 + 2 = 4\\n#### 4"])
    [('3 + 4 = 7', '7'), ('2 + 2 = 4', '4')]
    """
    found = [_AFTER_HASHES.fullmatch(gold) for gold in golds]
    return [(match[1].strip(), match[2]) for match in found if match] if all(found) else None
