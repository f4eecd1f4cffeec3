"""Options of a multiple-choice question: where a row has them, and which one its answer names.

Options are in columns such as A, B, C or option1, option2, or in one list. They are shown behind
the letters A, B, C, ... An answer names an option by its label, its text or its position; all rows
together decide by which.
"""

import ast
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_nb.core.words import in_line
from grpo_nb.tasks.answers import folded

# Column names such as A, opa, option_b, choice1, answerC, sol2, ending0. Columns with other words,
# such as sentence1 and sentence2, hold no options. A table without a header has columns 0, 1, ...
_COLUMN = re.compile(
    r"(?!\d)(?P<word>op|opt|option|choice|ans|answer|alt|alternative|ending|sol|solution|)"
    r"[ _-]*\(?(?P<mark>[a-z]|\d{1,2})[).:]?",
    re.IGNORECASE,
)
_COUNTS = (
    " ".join(string.ascii_lowercase),
    " ".join(map(str, range(0, 100))),
    " ".join(map(str, range(1, 100))),
)
_LIST_COLUMNS = ("choices", "options", "endings")
NamesBy = Literal["label", "text", "position"]


@dataclass(frozen=True)
class Options:
    """The options of one row, in their order."""

    columns: tuple[str, ...]
    """The columns that hold them."""
    labels: tuple[str, ...]
    """Their names in the source, such as `opa`, or the letters A, B, C, ..."""
    texts: tuple[Any, ...]

    @property
    def lines(self) -> list[str]:
        """The options as a question shows them; an empty cell is no option."""
        lettered = zip(string.ascii_uppercase, self.texts, strict=False)
        return [f"{letter}) {text}" for letter, text in lettered if is_filled(text)]

    def place_of(self, gold: Any, names_by: NamesBy, base: int) -> int | None:
        """Return the place of the option that an answer names, from 0; None if it names none.

        Args:
            gold: The answer.
            names_by: How it names an option.
            base: Number of the first option, for positions.
        """
        gold = gold[0] if isinstance(gold, (list, tuple)) and len(gold) == 1 else gold
        if names_by == "position":
            number = _whole_number(gold)
            places = range(base, base + len(self.texts))
            return places.index(number) if number in places else None
        if names_by == "label":
            label = str(gold).strip().casefold()
            labels = [label.casefold() for label in self.labels]
            letters = list(string.ascii_lowercase)
            known = labels if label in labels else letters[: len(labels)]
            return known.index(label) if label in known else None
        wanted = folded(str(gold))
        matches = [place for place, text in enumerate(self.texts) if folded(str(text)) == wanted]
        return matches[0] if len(matches) == 1 else None


@dataclass(frozen=True)
class OptionReading:
    """The way in which the answers of a column name an option."""

    names_by: NamesBy
    base: int = 0
    """Number of the first option, for positions."""
    is_base_certain: bool = True
    """True if an answer or a column name shows the base."""

    def letter_of(self, gold: Any, options: Options) -> str | None:
        """Return the letter of the option that an answer names; None if it names none."""
        place = options.place_of(gold, self.names_by, self.base)
        if place is None or not is_filled(options.texts[place]):
            return None
        return string.ascii_uppercase[place]

    def notes(self, column: str) -> list[str]:
        """Return a note on how positions were counted; nothing for labels and texts."""
        if self.names_by != "position":
            return []
        note = (
            f"the answers in {column!r} are positions of options, counted from {self.base}: "
            f"{self.base} is A"
        )
        if not self.is_base_certain:
            note += ". No row shows this, so look at one: if it is wrong, write letters instead"
        return [note]


def choose_reading(pairs: Sequence[tuple[Any, Options]]) -> OptionReading | None:
    """Return the reading that finds an option for most of these answers; None if none does."""
    numbers = [(_whole_number(gold), options) for gold, options in pairs]
    base = 0
    is_certain = any(number == 0 for number, _ in numbers)
    # The number of the last option, and names such as option1, show that 1 is the first.
    is_from_1 = any(number == len(options.texts) for number, options in numbers)
    is_named_1 = any(options.labels[0].endswith("1") for _, options in numbers)
    if not is_certain and (is_from_1 or is_named_1):
        base = 1
        is_certain = True
    # If two ways find as many options, the first one is taken.
    counts: dict[NamesBy, int] = {"label": 0, "text": 0, "position": 0}
    for names_by in counts:
        places = [options.place_of(gold, names_by, base) for gold, options in pairs]
        counts[names_by] = len(places) - places.count(None)
    best = max(counts, key=counts.__getitem__)
    return OptionReading(best, base, is_certain) if counts[best] else None


def options_in(cells: Sequence[tuple[str, Any]]) -> Options | None:
    """Return the options in the columns of a question: a list in the last one, or several columns.

    Raises:
        ValueError: The options are dicts.

    >>> options_in([("q", "Which?"), ("opa", "x"), ("opb", "y")]).texts
    ('x', 'y')
    """
    if len(cells) < 2:
        return None
    name, value = cells[-1]
    in_cell = _labelled(value)
    if any(isinstance(text, Mapping) for text in in_cell.values()):
        raise ValueError(
            f"the options in the column {name!r} are dicts: {in_line(value)}. Give a list of their "
            'texts, such as ["Paris", "Rome"].'
        )
    if in_cell:
        return Options((name,), tuple(in_cell), tuple(in_cell.values()))
    values = dict(cells)
    columns = tuple(_option_names([name for name, _ in cells[1:]]))
    return Options(columns, columns, tuple(map(values.get, columns))) if columns else None


def _labelled(value: Any) -> dict[str, Any]:
    """Return the options in one cell by their labels; nothing if the cell holds none.

    >>> _labelled('["x", "y"]') == _labelled({"A": "x", "B": "y"}) == {"A": "x", "B": "y"}
    True
    """
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        value = _read_literal(value.strip())
    if isinstance(value, (list, tuple)):
        return dict(zip(string.ascii_uppercase, value, strict=False))
    if not isinstance(value, Mapping):
        return {}
    if value.keys() == {"label", "text"}:  # as in ARC
        return dict(zip(map(str, value["label"]), value["text"], strict=False))
    is_lettered = _option_names(list(map(str, value))) == list(value)  # as in MedQA
    return dict(value) if is_lettered else {}


def _read_literal(text: str) -> Any:
    """Return the value of a text as JSON or Python write it; None for other texts."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _option_names(names: Sequence[str]) -> list[str]:
    """Return the names that count A, B, C, ... or 1, 2, 3, ... after one word.

    >>> _option_names(["q", "opa", "opb", "level"]), _option_names(["A", "B"])
    (['opa', 'opb'], ['A', 'B'])
    """
    marks_of: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _COLUMN.fullmatch(name):
            marks = marks_of.setdefault(match["word"].casefold(), {})
            marks[name] = match["mark"].casefold()
    for marks in marks_of.values():
        count = " ".join(marks.values())
        if len(marks) > 1 and any(known.startswith(count) for known in _COUNTS):
            return list(marks)
    return []


def is_filled(cell: Any) -> bool:
    """Say whether a cell holds anything other than None, NaN or white space."""
    is_nan = isinstance(cell, float) and cell != cell
    return cell is not None and not is_nan and bool(str(cell).strip())


def _whole_number(gold: Any) -> int | None:
    """Return the number that a position is: a whole number, `"2"`, or the 2.0 of pandas."""
    digits = str(gold).strip().removesuffix(".0")
    return int(digits) if re.fullmatch(r"\d{1,3}", digits) else None


def unshown_options(row: Mapping[str, Any], shown: Sequence[str]) -> list[str]:
    """Return a note if a row has options that the question does not show."""
    names = [name for name in row if name not in shown]
    lists = [name for name in names if name in _LIST_COLUMNS and _labelled(row[name])]
    columns = _option_names(names) or lists
    if not columns:
        return []
    question = json.dumps([*shown, *columns], ensure_ascii=False)
    return [
        f"the question does not show {', '.join(map(repr, columns))}. If these are its options: "
        f'"question": {question}'
    ]
