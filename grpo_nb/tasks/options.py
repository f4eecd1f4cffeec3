"""Options of a multiple-choice question: where a row has them, and how its answer names one of them."""

import ast
import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_nb.tasks.answers import folded, read_letter

# Column names such as A, opa, option_b, choice1, answerC, sol2, ending0. Other words are not options: sentence1, sentence2.
_COLUMN = re.compile(
    r"(?P<word>op|opt|option|choice|ans|answer|alternative|alt|ending|sol|solution|candidate|)"
    r"[ _-]*\(?(?P<mark>[a-z]|\d)[).:]?",
    re.IGNORECASE,
)
_FIRST_MARKS = ("a", "0", "1")
_LISTS = ("choices", "options", "endings")
# Names of the two fields where each option is a dict of its own.
_LABEL_FIELDS, _TEXT_FIELDS = {"label", "key", "letter", "id"}, {"text", "value", "content"}


class Option(NamedTuple):
    """One option: the letter it is shown behind, how the source calls it, and its text."""

    letter: str
    labels: tuple[str, ...]
    text: Any


class Options(tuple):
    """The options of a row, empty if there are none; `columns` are the columns they stand in."""

    columns: Sequence[str] = ()
    first_index: int | None = None
    """The number of the first option, where the names of the columns say it: 1 for option1, option2."""


@dataclass(frozen=True)
class OptionReading:
    """How the answers of a column name an option: by label, by text, or by its position."""

    ways: tuple[str, ...]
    """`label`, `text` or `position`, in the order in which they are tried."""
    first_index: int = 0
    """The number of the first option, where positions are read."""
    is_sure: bool = True
    """Whether an answer showed from which number positions are counted."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[Any, Options]]) -> "OptionReading":
        """Decide by all rows: the way in which most answers can be read."""
        pairs = [(_only(gold), options) for gold, options in pairs]
        first_index, is_sure = _first_index(pairs)
        counts = {
            "label": sum(_by_label(gold, options) is not None for gold, options in pairs),
            "text": sum(_by_text(gold, options) is not None for gold, options in pairs),
            "position": sum(
                _by_position(gold, options, first_index) is not None for gold, options in pairs
            ),
        }
        best = max(counts, key=counts.__getitem__)
        # A number that is no option's text is no position either, unless numbers are positions in most rows.
        ways = (
            ("position",)
            if best == "position"
            else ("label", "text")
            if best == "label"
            else ("text", "label")
        )
        return cls(ways, first_index, is_sure)

    def notes(self, column: str) -> list[str]:
        """Return how positions were counted; nothing where answers are labels or texts."""
        if self.ways != ("position",):
            return []
        note = f"the answers in {column!r} are positions of options, counted from {self.first_index}: {self.first_index} is A"
        if not self.is_sure:
            note += ". No row shows this, so look at one: if it is wrong, put the letters into the column"
        return [note]


def options_in(cells: Sequence[tuple[str, Any]]) -> Options:
    """Return the options in the columns of a question: in the last ones, or in one list at the end.

    >>> [option.text for option in options_in([("q", "Which?"), ("opa", "x"), ("opb", "y")])]
    ['x', 'y']
    """
    if len(cells) < 2:
        return Options()
    name, held = cells[-1]
    entries = _entries(held)
    if not entries:
        return _options_in_columns(cells)
    options = Options(
        Option(letter, (label,), text)
        for letter, (label, text) in zip(string.ascii_uppercase, entries, strict=False)
    )
    options.columns = (name,)
    return options


def _entries(held: Any) -> list[tuple[str, Any]]:
    """Return label and text of each option in one cell; nothing where the cell holds no options.

    >>> _entries('["x", "y"]') == _entries({"A": "x", "B": "y"}) == _entries(["A) x", "B) y"])
    True
    """
    if isinstance(held, str):
        held = read_list(held)
    if isinstance(held, Mapping):
        if held.keys() == {"label", "text"}:  # as in ARC
            return list(zip(map(str, held["label"]), held["text"], strict=False))
        is_marked = len(held) > 1 and _runs([*map(str, held)]) == [[*map(str, held)]]
        return (
            [(str(mark), text) for mark, text in held.items()] if is_marked else []
        )  # as in MedQA
    if not isinstance(held, (list, tuple)):
        return []
    labelled = [_labelled(entry) for entry in held]
    if held and None not in labelled:
        return labelled
    entries = list(zip(string.ascii_uppercase, held, strict=False))
    marked = [re.fullmatch(rf"(?s)\(?{label}[).:]\s*(.+)", str(text)) for label, text in entries]
    if all(marked):  # as in AQuA: ["A) 21", "B) 22"]
        entries = [(label, match[1]) for (label, _), match in zip(entries, marked, strict=True)]
    return entries


def _labelled(entry: Any) -> tuple[str, Any] | None:
    """Return label and text of an option that is a dict, `{"label": "A", "text": "Paris"}`."""
    fields = {*entry} if isinstance(entry, Mapping) else set()
    labels, texts = fields & _LABEL_FIELDS, fields & _TEXT_FIELDS
    if len(fields) != 2 or len(labels) != 1 or len(texts) != 1:
        return None
    return str(entry[labels.pop()]), entry[texts.pop()]


def read_list(text: str) -> Any:
    """Return the list or dict that a text cell holds, in JSON or as Python writes it; None for any other text."""
    if text.strip()[:1] not in ("[", "{"):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _options_in_columns(cells: Sequence[tuple[str, Any]]) -> Options:
    names = [name for name, _ in cells[1:]]
    run = next((run for run in _runs(names) if run[-1] == names[-1]), [])
    if not run:
        return Options()
    values, marks = dict(cells), [_COLUMN.fullmatch(name)["mark"] for name in run]
    # "1" in option1 is a position, not a label: whether 1 or 0 is the first is decided by all rows.
    options = Options(
        Option(letter, (letter, name) if mark.isdigit() else (letter, mark, name), values[name])
        for letter, mark, name in zip(string.ascii_uppercase, marks, run, strict=False)
    )
    options.columns = tuple(run)
    options.first_index = int(marks[0]) if marks[0].isdigit() else None
    return options


def _runs(names: Sequence[str]) -> list[list[str]]:
    """Return the runs of columns that hold options: one word, and letters or numbers in their order."""
    runs: list[list[str]] = []
    last = None
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match is None or (match["mark"].isdigit() and not match["word"]):
            last = None
            continue
        word, mark = match["word"].casefold(), match["mark"].casefold()
        if last is not None and last[0] == word and ord(mark) == ord(last[1]) + 1:
            runs[-1].append(name)
        elif mark in _FIRST_MARKS:
            runs.append([name])
        else:
            last = None
            continue
        last = word, mark
    return [run for run in runs if len(run) > 1]


def as_letter(gold: Any, options: Options, reading: OptionReading) -> str | None:
    """Return the letter of the option that an answer names; None if it names none, or an empty one."""
    gold = _only(gold)
    for way in reading.ways:
        place = (
            _by_position(gold, options, reading.first_index)
            if way == "position"
            else (_by_label if way == "label" else _by_text)(gold, options)
        )
        if place is not None:
            text = options[place].text
            is_empty = text is None or text != text or not str(text).strip()
            return None if is_empty else options[place].letter
    return None


def _only(gold: Any) -> Any:
    """Return the one entry of a list of one, and any other value as it is."""
    return gold[0] if isinstance(gold, (list, tuple)) and len(gold) == 1 else gold


def _by_label(gold: Any, options: Options) -> int | None:
    written = str(gold).strip()
    place = _place_of_label(written, options)
    if place is not None:
        return place
    letter, text = read_letter(written)  # (b), B., Option B, or B) with its text
    place = _place_of_label(letter, options) if letter else None
    is_contradicted = (
        place is not None and text and folded(text) != folded(str(options[place].text))
    )
    return None if is_contradicted else place


def _place_of_label(label: str, options: Options) -> int | None:
    wanted = label.casefold()
    return next(
        (i for i, one in enumerate(options) if wanted in map(str.casefold, one.labels)), None
    )


def _by_text(gold: Any, options: Options) -> int | None:
    wanted = str(gold).strip()
    same = [i for i, one in enumerate(options) if str(one.text).strip() == wanted]
    if same:
        return same[0]
    alike = [i for i, one in enumerate(options) if folded(str(one.text)) == folded(wanted)]
    return alike[0] if len(alike) == 1 else None


def _by_position(gold: Any, options: Options, first_index: int) -> int | None:
    number = _whole_number(gold)
    return (
        number - first_index
        if number is not None and 0 <= number - first_index < len(options)
        else None
    )


def _whole_number(gold: Any) -> int | None:
    """Return the number that a position is, also as text or as pandas has it beside an empty cell."""
    if isinstance(gold, bool):
        return None
    if isinstance(gold, float):
        return int(gold) if gold.is_integer() else None
    text = str(gold).strip()
    return int(text) if isinstance(gold, (int, str)) and re.fullmatch(r"\d{1,3}", text) else None


def _first_index(pairs: Sequence[tuple[Any, Options]]) -> tuple[int, bool]:
    """Return from which number positions are counted, and whether an answer shows it: 0, or as many as there are options."""
    numbers = [(_whole_number(gold), options) for gold, options in pairs]
    if any(number == 0 for number, _ in numbers):
        return 0, True
    if any(number == len(options) for number, options in numbers):
        return 1, True
    by_name = next(
        (options.first_index for _, options in numbers if options.first_index is not None), None
    )
    return (0, False) if by_name is None else (by_name, True)


def unshown_options(rows: Iterable[Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """Return a note where the data has options that the question does not show."""
    first = next(iter(rows), {})
    lists = [[name] for name in _LISTS if _entries(first.get(name))]
    for run in [*_runs([*first]), *lists]:
        if not {*run} & {*shown}:
            columns = json.dumps([*shown, *run], ensure_ascii=False)
            return [
                f'the question does not show {", ".join(map(repr, run))}. If these are its options: "question": {columns}'
            ]
    return []
