"""Options of a multiple-choice question: where a row has them, and which one its answer names.

Options are in columns such as A, B, C or option1, option2, or in one list. They are shown behind
the letters A, B, C, ... An answer names an option by its label, its text or its position; all rows
together decide by which.
"""

import ast
import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from grpo_nb.core.words import in_line
from grpo_nb.tasks.answers import folded

# Column names such as A, opa, option_b, choice1, answerC, sol2, ending0. Columns with other words,
# such as sentence1 and sentence2, hold no options.
_COLUMN = re.compile(
    r"(?P<word>op|opt|option|choice|ans|answer|alternative|alt|ending|sol|solution|candidate|)"
    r"[ _-]*\(?(?P<mark>[a-z]|\d)[).:]?",
    re.IGNORECASE,
)
_FIRST_MARKS = ("a", "0", "1")
_LIST_COLUMNS = ("choices", "options", "endings")


class Option(NamedTuple):
    """One option of a question."""

    letter: str
    """The letter behind which the option is shown."""
    labels: tuple[str, ...]
    """The names of the option in the source."""
    text: Any


@dataclass(frozen=True)
class Options:
    """The options of one row."""

    options: tuple[Option, ...]
    columns: tuple[str, ...]
    """The columns that hold them."""
    first_number: int | None = None
    """Number of the first option, if the column names show it: 1 for option1, option2."""


@dataclass(frozen=True)
class OptionReading:
    """The way in which the answers of a column name an option."""

    way: Literal["label", "text", "position"]
    first_number: int = 0
    """Number of the first option, for positions."""
    is_first_number_shown: bool = True
    """True if an answer or a column name shows the number of the first option."""

    def letter_of(self, gold: Any, options: Options) -> str | None:
        """Return the letter of the option that an answer names; None if it names none."""
        gold = _only_entry(gold)
        place = _FIND[self.way](gold, options, self.first_number)
        if place is None and self.way != "position":
            other = "text" if self.way == "label" else "label"
            place = _FIND[other](gold, options, self.first_number)
        if place is None:
            return None
        option = options.options[place]
        is_empty = option.text is None or option.text != option.text or not str(option.text).strip()
        return None if is_empty else option.letter

    def notes(self, column: str) -> list[str]:
        """Return a note on how positions were counted; nothing for labels and texts."""
        if self.way != "position":
            return []
        first = self.first_number
        note = (
            f"the answers in {column!r} are positions of options, counted from {first}: "
            f"{first} is A"
        )
        if not self.is_first_number_shown:
            note += (
                ". No row shows this, so look at one: if it is wrong, put the letters into the "
                "column"
            )
        return [note]


def choose_reading(pairs: Sequence[tuple[Any, Options]]) -> OptionReading:
    """Return the reading that finds an option for most of these answers."""
    pairs = [(_only_entry(gold), options) for gold, options in pairs]
    first_number, is_shown = _first_number(pairs)
    counts = {}
    for way, find in _FIND.items():
        places = [find(gold, options, first_number) for gold, options in pairs]
        counts[way] = sum(place is not None for place in places)
    return OptionReading(max(counts, key=counts.__getitem__), first_number, is_shown)


def options_in(cells: Sequence[tuple[str, Any]]) -> Options | None:
    """Return the options in the columns of a question: in the last ones, or in a list at the end.

    Raises:
        ValueError: The options are dicts.

    >>> found = options_in([("q", "Which?"), ("opa", "x"), ("opb", "y")])
    >>> [option.text for option in found.options]
    ['x', 'y']
    """
    if len(cells) < 2:
        return None
    name, value = cells[-1]
    entries = _entries(value)
    if not entries:
        return _options_in_columns(cells)
    if any(isinstance(text, Mapping) for _, text in entries):
        raise ValueError(
            f"the options in the column {name!r} are dicts: {in_line(value)}. Give a list of their "
            'texts, such as ["Paris", "Rome"].'
        )
    options = [
        Option(letter, (label,), text)
        for letter, (label, text) in zip(string.ascii_uppercase, entries, strict=False)
    ]
    return Options(tuple(options), (name,))


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Return label and text of each option in one cell; nothing if the cell holds no options.

    >>> _entries('["x", "y"]') == _entries({"A": "x", "B": "y"}) == [("A", "x"), ("B", "y")]
    True
    """
    if isinstance(value, str):
        value = _read_list(value)
    if isinstance(value, Mapping):
        if value.keys() == {"label", "text"}:  # as in ARC
            return list(zip(map(str, value["label"]), value["text"], strict=False))
        labels = [str(label) for label in value]
        is_options = _runs_of_options(labels) == [labels]  # as in MedQA
        return list(zip(labels, value.values(), strict=True)) if is_options else []
    if not isinstance(value, (list, tuple)):
        return []
    return list(zip(string.ascii_uppercase, value, strict=False))


def _read_list(text: str) -> Any:
    """Return the list or dict in a text cell, as JSON or Python write it; None for other texts."""
    if text.strip()[:1] not in ("[", "{"):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _options_in_columns(cells: Sequence[tuple[str, Any]]) -> Options | None:
    names = [name for name, _ in cells[1:]]
    runs = [run for run in _runs_of_options(names) if run[-1] == names[-1]]
    if not runs:
        return None
    values = dict(cells)
    options = []
    for letter, name in zip(string.ascii_uppercase, runs[0], strict=False):
        mark = _COLUMN.fullmatch(name)["mark"]
        # The 1 of option1 is a position. All rows decide if 0 or 1 is the first.
        labels = (letter, name) if mark.isdigit() else (letter, mark, name)
        options.append(Option(letter, labels, values[name]))
    first_mark = _COLUMN.fullmatch(runs[0][0])["mark"]
    first_number = int(first_mark) if first_mark.isdigit() else None
    return Options(tuple(options), tuple(runs[0]), first_number)


def _runs_of_options(names: Sequence[str]) -> list[list[str]]:
    """Return the runs of two or more names with the same word and consecutive marks.

    >>> _runs_of_options(["q", "opa", "opb", "level", "alt1", "alt2"])
    [['opa', 'opb'], ['alt1', 'alt2']]
    """
    runs: list[list[str]] = []
    expected = None
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match is None or (match["mark"].isdigit() and not match["word"]):
            expected = None
            continue
        word = match["word"].casefold()
        mark = match["mark"].casefold()
        if (word, mark) == expected:
            runs[-1].append(name)
        elif mark in _FIRST_MARKS:
            runs.append([name])
        else:
            expected = None
            continue
        expected = (word, chr(ord(mark) + 1))
    return [run for run in runs if len(run) > 1]


def _only_entry(gold: Any) -> Any:
    """Return the entry of a list of one, and any other value unchanged."""
    return gold[0] if isinstance(gold, (list, tuple)) and len(gold) == 1 else gold


def _find_label(gold: Any, options: Options, _: int) -> int | None:
    wanted = str(gold).strip().casefold()
    for place, option in enumerate(options.options):
        if wanted in [label.casefold() for label in option.labels]:
            return place
    return None


def _find_text(gold: Any, options: Options, _: int) -> int | None:
    """Return the option with this text, or the only one with it in another writing."""
    texts = [str(option.text).strip() for option in options.options]
    wanted = str(gold).strip()
    if wanted in texts:
        return texts.index(wanted)
    alike = [place for place, text in enumerate(texts) if folded(text) == folded(wanted)]
    return alike[0] if len(alike) == 1 else None


def _find_position(gold: Any, options: Options, first_number: int) -> int | None:
    number = _whole_number(gold)
    if number is None:
        return None
    place = number - first_number
    return place if 0 <= place < len(options.options) else None


# If two find as many options, the first one is taken.
_FIND = {"label": _find_label, "text": _find_text, "position": _find_position}


def _whole_number(gold: Any) -> int | None:
    """Return the number that a position is: a whole number, `"2"`, or the 2.0 of pandas."""
    if isinstance(gold, bool):
        return None
    if isinstance(gold, float):
        return int(gold) if gold.is_integer() else None
    is_short_number = re.fullmatch(r"\d{1,3}", str(gold).strip()) is not None
    return int(gold) if isinstance(gold, (int, str)) and is_short_number else None


def _first_number(pairs: Sequence[tuple[Any, Options]]) -> tuple[int, bool]:
    """Return the number from which positions are counted, and whether something shows it.

    An answer of 0 shows that it is 0. An answer that equals the number of options shows that it
    is 1. Otherwise the names of the columns may show it.
    """
    numbers = [(_whole_number(gold), options) for gold, options in pairs]
    if any(number == 0 for number, _ in numbers):
        return 0, True
    if any(number == len(options.options) for number, options in numbers):
        return 1, True
    for _, options in numbers:
        if options.first_number is not None:
            return options.first_number, True
    return 0, False


def unshown_options(rows: Iterable[Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """Return a note if the data has options that the question does not show."""
    first = next(iter(rows), {})
    groups = _runs_of_options([*first])
    groups += [[name] for name in _LIST_COLUMNS if _entries(first.get(name))]
    for columns in groups:
        if not {*columns} & {*shown}:
            question = json.dumps([*shown, *columns], ensure_ascii=False)
            return [
                f"the question does not show {', '.join(map(repr, columns))}. If these are its "
                f'options: "question": {question}'
            ]
    return []
