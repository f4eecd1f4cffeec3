"""Options of a multiple-choice question, and which one its answer names.

Options are in several columns, or in one column of lists. They are shown behind the letters A, B,
C, ... An answer names an option by its label, its text or its position; all rows together decide
by which.
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

# Columns that often hold options. They are never taken unasked; a note proposes them.
_LIST_COLUMNS = ("choices", "options", "endings")
_OPTION_COLUMN = re.compile(
    r"(?i)(?:op|opt|option|choice|ans|answer|sol)[ _-]?\(?(?:[a-h]|\d)\)?|(?-i:[A-H])"
)
NamesBy = Literal["label", "text", "position"]


@dataclass(frozen=True)
class Options:
    """The options of one row, in their order."""

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
        if names_by == "position":
            number = _whole_number(gold)
            places = range(base, base + len(self.texts))
            return places.index(number) if number in places else None
        if names_by == "label":
            wanted = str(gold).strip().casefold()
            names = [label.casefold() for label in self.labels]
            letters = list(string.ascii_lowercase[: len(names)])
            # Letters stand for places unless they are labels: in columns B, A, the answer A is
            # the second.
            if wanted not in names and not {*letters} & {*names}:
                names = letters
            return names.index(wanted) if wanted in names else None
        wanted = folded(str(gold))
        texts = [folded(str(text)) for text in self.texts]
        matches = [place for place, text in enumerate(texts) if text == wanted]
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


def choose_reading(pairs: Sequence[tuple[Any, Options]]) -> OptionReading:
    """Return the reading that finds an option for most of these answers."""
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
    return OptionReading(max(counts, key=counts.__getitem__), base, is_certain)


def read_options(cells: Mapping[str, Any]) -> Options | None:
    """Return the options in these columns, or in the only one; None if it holds no list.

    Raises:
        ValueError: The options are dicts.

    >>> read_options({"opa": "x", "opb": "y"}).texts, read_options({"choices": '["x", "y"]'}).texts
    (('x', 'y'), ('x', 'y'))
    """
    text_of: Any = cells
    if len(cells) == 1:
        (cell,) = cells.values()
        text_of = _by_label(cell)
    if not text_of:
        return None
    if any(isinstance(text, Mapping) for text in text_of.values()):
        raise ValueError(
            f"the options in {', '.join(cells)} are dicts, such as {in_line(text_of)}. Give a list "
            'of their texts, such as ["Paris", "Rome"].'
        )
    # There are no letters for more.
    labels = list(map(str, text_of))[: len(string.ascii_uppercase)]
    texts = list(text_of.values())[: len(string.ascii_uppercase)]
    return Options(tuple(labels), tuple(texts))


def _by_label(cell: Any) -> dict[Any, Any]:
    """Return the options in one cell by their labels; nothing if it holds no list or dict."""
    if isinstance(cell, str):
        cell = _read_literal(cell.strip())
    if isinstance(cell, Mapping) and cell.keys() == {"label", "text"}:  # as in ARC
        return dict(zip(cell["label"], cell["text"], strict=False))
    if isinstance(cell, Mapping):  # as in MedQA
        return dict(cell)
    if isinstance(cell, (list, tuple)):
        return dict(zip(string.ascii_uppercase, cell, strict=False))
    return {}


def _read_literal(text: str) -> Any:
    """Return the value of a text as JSON or Python write it; None for other texts."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def is_filled(cell: Any) -> bool:
    """Say whether a cell holds anything other than None, NaN or white space."""
    is_nan = isinstance(cell, float) and cell != cell
    return cell is not None and not is_nan and bool(str(cell).strip())


def _whole_number(gold: Any) -> int | None:
    """Return the number that a position is: a whole number, `"2"`, or the 2.0 of pandas."""
    digits = str(gold).strip().removesuffix(".0")
    return int(digits) if re.fullmatch(r"\d{1,3}", digits) else None


def notes_on_unused(names: Sequence[str]) -> list[str]:
    """Return a note if columns that are not used as options are probably some."""
    lists = [name for name in names if name in _LIST_COLUMNS]
    columns = lists[:1] or [name for name in names if _OPTION_COLUMN.fullmatch(name)]
    if not lists and len(columns) < 2:
        return []
    return [
        f"{', '.join(map(repr, columns))} may be options of the question. To show them with "
        f'letters, add to columns=: "options": {json.dumps(columns, ensure_ascii=False)}'
    ]
