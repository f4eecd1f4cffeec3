"""What the gold answers are: numbers, JSON, labels, expressions or text. Prompt, rewards and floor go by it."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from grpo_nb.core import shorten
from grpo_nb.tasks.notation import (
    CURRENCIES,
    by_quantity,
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
_LONGEST_LINE = 300  # characters of a line to copy
_POINT = re.compile(r"\d+\.\d+")
_LONGEST_ANSWER = 200  # what is longer is not written twice by chance
# A few answers of another kind are told, and do not change what all are.
_NEARLY_ALL = 0.9
# Where no more than this share are of another kind, they are told, whatever all are then taken for.
_MOST_ODD: dict[Kind, float] = {"numbers": 0.5, "json": 0.2, "labels": 0.2, "expressions": 0.2}
_ODD: dict[Kind, tuple[str, str]] = {
    "numbers": ("is no number ({})", "are no numbers ({})"),
    "json": ("is no JSON object or array ({})", "are no JSON object or array ({})"),
    "labels": (
        "comes once or twice ({}), while all others are a few labels",
        "come once or twice ({}), while all others are a few labels",
    ),
    "expressions": ("is no expression ({})", "are no expressions ({})"),
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
_SHORTEST_SLIP, _LONG_WORD = 5, 9  # letters
_WORD_START, _WORD_END = re.compile(r"[^\W\d_]*"), re.compile(r"[^\W\d_]*$")
# Letters that are taken for each other: vowels, neighbours on the keyboard, sounds.
_VOWELS = re.compile(r"[aeiouy\u00e4\u00f6\u00fc]{2}")
_PAIRS = set(map("".join, itertools.pairwise("qwertyuiop asdfghjkl zxcvbnm tzu ck sz dt bp fv")))
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
        "are read as fractions, so that 0.5 is right for 1/2; where they are days and months, reward them with "
        "gn.rewards.exact_text()",
    ),
    (
        re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})|[-+]?\d{1,3}(\.\d{3})+,\d+|[-+]?\d{1,3}(\.\d{3}){2,}"),
        "may have a decimal comma: decimal=',' reads them so; as they are, English reads them otherwise or not at all",
    ),
)
# A letter alone is a unit where it is one that people know: 5 m, 5 N, but 2x is a product, and 3 x another.
_PRODUCT = re.compile(r".*(\d[a-zA-Z]|\s[a-z])(?<!\s[dghlmst])")
_FRACTION = re.compile(r"/\s*\d|\\frac|[\u00bc-\u00be\u2150-\u215e]")
_LIST = re.compile(r"(?s)\[\s*(?P<mark>['\"])(?!.*'\s+').*(?P=mark)\s*\]")  # without a comma, numpy's
_AROUND_DIGITS = re.compile(r"^[^\d+-]*|\D*$")
_AFTER_HASHES = re.compile(r"(?s)(.*?)\n?\s*####\s*([^\n]+?)\s*")


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
    often: tuple[str, float] | None = None
    """Of few numbers that come again and again, such as ratings, the most frequent and its share of the rows."""

    @property
    def hint(self) -> str:
        """What the system prompt puts in the place of the answer."""
        if self.kind == "labels":
            return "one of: " + ", ".join(sorted(label for label, _ in self.labels))
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
        return {"numbers": number, "expressions": "expression", "text": "answer"}[self.kind]

    @property
    def floor(self) -> tuple[str, float] | None:
        """The most frequent label or rating, and the share of rows it alone would be right on; None for other kinds."""
        return self.labels[0] if self.labels else self.often

    @property
    def sentence(self) -> str:
        """The kind in words."""
        if self.kind == "labels":
            return f"{len(self.labels)} labels: " + ", ".join(f"{label} ({share:.0%})" for label, share in self.labels)
        if self.units:
            return "numbers: " + ", ".join(
                f"in {unit} ({s:.0%})" if unit else f"alone ({s:.0%})" for unit, s in self.units
            )
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
    # Prices and measures that come again and again are no labels: a label is not computed.
    if units.total() >= _NEARLY_ALL * len(golds):
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


def doubts_of(
    answers: Answers, golds: Sequence[str], column: str = "answer", raw: Mapping[str, Sequence[Any]] | None = None
) -> list[str]:
    """What in these answers of a column may not be what it seems: those of another kind than most, numbers meant otherwise.

    Args:
        answers: From `answers_of`.
        golds: The answers.
        column: Where they stand in the data.
        raw: By answer what stands there, where that is something else.

    >>> doubts_of(Answers("numbers"), ["1,50", "9,99", "3"])[0][:60]
    "2 answers, such as '1,50', may have a decimal comma: decimal"
    """
    unit_by_gold = _unit_by_gold(golds)
    most, odd = odd_ones(golds)
    said, raw = [], raw or {gold: [gold] for gold in golds}
    counts = Counter(golds if most == "labels" or (most == "text" and answers.labels) else ())
    slips, none = _slips(counts), set(_no_answers(counts))
    odd = [gold for gold in odd if gold not in slips and gold not in none]
    is_rare = most == "labels"
    if named := _shown(odd, 12 if is_rare else 4):
        named = [f"{_of(odd, golds)} {_ODD[most][len(odd) > 1].format(named)}"]
    if shown := _shown(missing := [gold for gold in golds if gold in none]):
        named = [*named, f"{_of(missing, golds)} may stand for no answer ({shown})"]
    if named:
        taken = (
            "asked for and paid as written" if answers.kind == most or not odd else f"all are taken as {answers.kind}"
        )
        keep = f"keep=lambda row: {_without(missing if is_rare else [*odd, *missing], most, column, raw)}"
        cure = f"mend those rows, or leave them out if they mean that there is no answer: {keep}"
        if is_rare and odd:
            cure = "rare labels cannot be told from slips: mend those that are"
            cure += f", and leave out what stands for no answer: {keep}" * bool(missing)
        said.append(f"{', and '.join(named)}: {taken}; {cure}")
    if slips:
        first, meant = next(iter(slips.items()))
        cell, mended = f"frame[{column!r}]", {value: other for gold, other in slips.items() for value in raw[gold]}
        said.append(
            f"{_of([gold for gold in golds if gold in slips], golds)} may be misspelt, such as {first!r} "
            f"({counts[first]}) beside {meant!r} ({counts[meant]}); to mend them: {cell} = {cell}.replace({mended})"
        )
    if lists := [gold for gold in golds if _LIST.fullmatch(gold) and answers.kind != "json"]:
        cell = f"frame[{column!r}]"
        said.append(
            f"{len(lists)} answers are lists written as text, such as {shorten(lists[0], 60)!r}; to read them: import ast; "
            f"{cell} = {cell}.map(lambda cell: ast.literal_eval(cell) if str(cell)[:1] == '[' "
            "else cell)"
        )
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
            same = by_quantity(unit for unit in units if unit_name(unit) in {unit_by_gold[gold] for gold in others})
            base = [unit for factors in same if isinstance(factors, dict) for unit in factors if factors[unit] == 1]
            said.append(
                f"{len(others)} answers are a number with a unit, such as {others[0]!r}{also * (not prices)}: {paid} number "
                f"and unit together, gn.rewards.number(units={same}) {'converts, and pays ' * bool(base)}the number alone too"
                f"{', in ' * bool(base)}{', '.join(base)}"
            )
    if answers.kind == "text" and (several := _in_several_writings(golds)):
        said.append(
            f"{len(several)} answer{'s are' if len(several) > 1 else ' is'} written in several ways, such as "
            f"{' and '.join(map(repr, several[0][:2]))}: gn.rewards.exact_text() ignores white space alone, and pays one of "
            "them only; gn.rewards.correctness() ignores capitals, a full stop and quotation marks too"
        )
    for pattern, what in _DOUBTFUL if answers.kind == "numbers" else ():
        if found := [gold for gold in golds if pattern.fullmatch(_AROUND_DIGITS.sub("", gold))]:
            said.append(f"{len(found)} answers, such as {found[0]!r}, {what}")
    return said


def _of(some: Sequence[str], golds: Sequence[str]) -> str:
    return f"{len(some)} of {len(golds)} answers"


def _shown(golds: Sequence[str], most: int = 4) -> str:
    return ", ".join(map(repr, list(dict.fromkeys(shorten(gold, 60) for gold in golds))[:most]))


def _slips(counts: Counter[str]) -> dict[str, str]:
    """By label the more frequent one that was meant."""
    usual = [(other, often, label_spelling(other)) for other, often in counts.most_common(MOST_LABELS)]
    found: dict[str, str] = {}
    for label, count in counts.items():
        spelled = label_spelling(label)
        for other, often, meant in usual:
            if label not in found and 0 < _rarer(spelled, meant) * count <= often:
                found[label] = other
    return found


def _rarer(typed: str, meant: str) -> int:
    """How many times rarer a label has to be for a slip of another: one wrong letter of a word, not its first; 0 for any other.

    `atypical` and `grade 2` are no slips, nor is `trainee`: what differs there is what is said. A long word, or one with two
    letters swapped, is hardly another one.

    >>> _rarer("techink", "technik"), _rarer("postive", "positive"), _rarer("female", "male"), _rarer("class b", "class a")
    (2, 5, 0, 0)
    """
    if abs(len(typed) - len(meant)) > 1:
        return 0
    start = _shared(typed, meant)
    end = _shared(typed[start:][::-1], meant[start:][::-1])
    one, other = (text[start : len(text) - end] for text in (typed, meant))
    words = [_WORD_END.search(t[:start])[0] + _WORD_START.match(t[start:])[0] for t in (typed, meant)]
    longest = max(map(len, words))
    is_inside = (one + other).replace(" ", "x").isalpha() and meant[:start][-1:].isalpha()
    if not is_inside or longest < _SHORTEST_SLIP:
        return 0
    is_swap = len(one) == 2 and one == other[::-1]
    is_last = not meant[len(meant) - end :][:1].isalpha()
    is_near = _VOWELS.fullmatch(one + other) or {one + other, other + one} & _PAIRS
    if not is_swap and len(one + other) > 1 and (len(one) != 1 or len(other) != 1 or is_last or not is_near):
        return 0
    return 2 if is_swap or longest >= _LONG_WORD else 5


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])


def _no_answers(counts: Counter[str]) -> list[str]:
    """The labels that people write where there is no answer; rare ones, or marks alone beside words, may be just that."""
    plain_words = {label: " ".join(re.findall(r"[^\W_]+", label.casefold())) for label in counts}
    marks = [label for label, words in plain_words.items() if not words]
    are_none = all(map(_NO_ANSWER_MARKS.fullmatch, marks)) and 2 * sum(counts[mark] for mark in marks) < counts.total()
    most = max(counts.values(), default=0)
    return [
        label
        for label, words in plain_words.items()
        if (words == "" and are_none)
        or _NO_ANSWER.fullmatch(words)
        or (_NO_ANSWER_IF_RARE.fullmatch(words) and 2 * counts[label] < most)
    ]


def _without(odd: Sequence[str], kind: Kind, column: str, raw: Mapping[str, Sequence[Any]]) -> str:
    """What a row has to be so that none of these answers stays: by their list, or where that is too long by their kind."""
    gone = [value for gold in dict.fromkeys(odd) for value in raw[gold]]
    named = f"row[{column!r}] not in {tuple(gone)}"
    by_kind = f"gn.tasks.answers_of([str(row[{column!r}])]).kind == {kind!r}"
    if len(named) <= _LONGEST_LINE or kind in ("labels", "text"):
        return named
    kept = [value for gold in raw.keys() - set(odd) for value in raw[gold]]
    is_told = [answers_of([str(value)]).kind == kind for value in (*kept, *gone)] == [True] * len(kept) + [False] * len(
        gone
    )
    return by_kind if is_told else named


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


def _in_several_writings(golds: Sequence[str]) -> list[list[str]]:
    """The writings of each answer that has more than one of them."""
    writings: dict[str, list[str]] = {}
    for gold in dict.fromkeys(" ".join(gold.split()) for gold in golds if len(gold) <= _LONGEST_ANSWER):
        writings.setdefault(spelling(gold), []).append(gold)
    return [alike for alike in writings.values() if len(alike) > 1]


def odd_ones(golds: Sequence[str]) -> tuple[Kind, list[str]]:
    """Return the kind that most answers are of, and the few that are not; of labels, those that never come again."""
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
        r"\s*[^\s\d.,]{0,8}",
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
            words = [word for word in gold.split() if any(map(str.isalpha, word))]
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
