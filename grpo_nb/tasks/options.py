"""Options of a multiple-choice question, and which one its answer names.

Options are in several columns, or in one column of lists. They are shown behind the letters A, B,
C, ... An answer names an option by its label, its text or its position; all rows together decide
by which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal

from grpo_nb.tasks.answers import folded

# Texts by label: the column, such as `opa`, or the letter. A row has at most 26 options.
Options = dict[str, Any]


def read_options(cells: Mapping[str, Any]) -> Options:
    """Return the options in these columns, or in the only one; none if it holds no list.

    >>> read_options({"opa": "x", "opb": "y"}), read_options({"choices": ["x", "y"]})
    ({'opa': 'x', 'opb': 'y'}, {'A': 'x', 'B': 'y'})
    """
    if len(cells) > 1:
        return dict(list(cells.items())[: len(ascii_uppercase)])
    (cell,) = cells.values()
    if isinstance(cell, Mapping) and cell.keys() == {"label", "text"}:  # as in ARC
        return dict(zip(cell["label"], cell["text"], strict=False))
    if isinstance(cell, Mapping):  # as in MedQA
        return dict(cell)
    if isinstance(cell, (list, tuple)):
        return dict(zip(ascii_uppercase, cell, strict=False))
    return {}


def option_lines(options: Options) -> list[str]:
    """Return the options as a question shows them; an empty cell is no option."""
    lettered = zip(ascii_uppercase, options.values(), strict=False)
    return [f"{letter}) {text}" for letter, text in lettered if is_filled(text)]


@dataclass(frozen=True)
class OptionReading:
    """The way in which the answers of a column name an option."""

    names_by: Literal["label", "text", "position"]
    first: int = 0
    """Number of the first option, for positions."""

    def letter_of(self, gold: Any, options: Options) -> str | None:
        """Return the letter of the option that an answer names; None if it names none.

        >>> OptionReading("text").letter_of("rome", {"opa": "Paris", "opb": "Rome"})
        'B'
        """
        wanted = folded(str(gold))
        if self.names_by == "position":
            # The 2.0 of pandas is 2.
            wanted = wanted.removesuffix(".0")
            names = [str(self.first + place) for place in range(len(options))]
        elif self.names_by == "text":
            names = [folded(str(text)) for text in options.values()]
        else:
            names = [str(label).casefold() for label in options]
            letters = list(ascii_uppercase.casefold()[: len(names)])
            # Letters stand for places unless they are labels: in columns B, A, the answer A is
            # the second.
            if wanted not in names and not {*letters} & {*names}:
                names = letters
        if names.count(wanted) != 1:
            return None
        place = names.index(wanted)
        return ascii_uppercase[place] if is_filled([*options.values()][place]) else None


def choose_reading(golds: Sequence[Any], options_of: Sequence[Options]) -> OptionReading:
    """Return the reading that finds an option for most of these answers.

    Positions count from 1 if no answer is 0, and an answer is the number of the last option or the
    first option has a name such as `option1`.
    """
    pairs = list(zip(golds, options_of, strict=True))
    numbers = [str(gold).strip().removesuffix(".0") for gold in golds]
    has_last = any(
        number == str(len(options)) for number, options in zip(numbers, options_of, strict=True)
    )
    is_named_1 = any(str(next(iter(options), "")).endswith("1") for options in options_of)
    first = 1 if "0" not in numbers and (has_last or is_named_1) else 0
    # If two ways find as many options, the first one is taken.
    readings = [OptionReading(names_by, first) for names_by in ("label", "text", "position")]
    return max(
        readings,
        key=lambda reading: sum(reading.letter_of(*pair) is not None for pair in pairs),
    )


def is_filled(cell: Any) -> bool:
    """Say whether a cell holds anything other than None, NaN or white space."""
    is_nan = isinstance(cell, float) and cell != cell
    return cell is not None and not is_nan and bool(str(cell).strip())
