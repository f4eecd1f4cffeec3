"""From rows as they are to questions with an answer: which columns play the parts, and which rows are left out and why."""

import json
import numbers
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from grpo_nb.config.arguments import check_choice
from grpo_nb.core.words import did_you_mean, displayable, shorten
from grpo_nb.tasks.answers import Kind, is_same_answer, read_json
from grpo_nb.tasks.numbers import read_number
from grpo_nb.tasks.options import (
    OptionReading,
    as_letter,
    options_in,
    read_list,
    unshown_options,
)
from grpo_nb.tasks.read_rows import Rows

if TYPE_CHECKING:
    from datasets import Dataset

Contradictory = Literal["ask", "drop", "first"]
Columns = Mapping[str, str | Sequence[str]]
RowFilter = Callable[[Mapping[str, Any]], object]
PARTS = ("question", "answer", "prompt")
ACCEPTED = "accepted_answers"
"""The column with all right answers of a row, where the source gives several; `answer` is the first of them."""
# TRL 1.15 passes these names to rewards itself, drops them, or takes their column for images (grpo_trainer.py, lines 1542
# and 2326); a method has `self`.
_TAKEN = frozenset((
    "prompts", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments",
    "image", "images", "self",
))  # fmt: skip
INSTRUCTS = ("system", "developer")
_ROLES = (*INSTRUCTS, "user", "assistant", "tool")
_CHATS = ("messages", "conversations")
_SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant"}
_SOLVED = re.compile(
    r"(?s)(?P<solution>.*?)\s*####\s*(?P<answer>(?:(?!####)[^\n])+?)\s*"
)  # as in GSM8K
# How people call these columns; only ever proposed, never taken.
_USUAL = {
    "question": (
        "question",
        "problem",
        "prompt",
        "instruction",
        "query",
        "input",
        "text",
        "review",
        "sentence",
    ),
    "answer": (
        "answer",
        "label",
        "target",
        "gold",
        "solution",
        "output",
        "response",
        "category",
        "class",
    ),
}


@dataclass
class Cleaned:
    """Rows with `question`, `answer`, and `prompt` where the source has its own; what was left out, with one row of each."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> how many rows."""
    examples: dict[str, str] = field(default_factory=dict)
    """Reason -> one of them, with the number of its row."""
    notes: list[str] = field(default_factory=list)
    used: Mapping[str, list[str]] = field(default_factory=dict)
    """Part -> its columns."""
    reading: "_Reading" = field(default_factory=lambda: _Reading())
    """How answers were read."""

    def leave_out(self, reason: str, number: int, row: Mapping[str, Any]) -> None:
        """Count a row under a reason; what stands in the parts of the first one is kept to be shown."""
        self.left_out[reason] += 1
        cells = ", ".join(
            f"{name}={shorten(repr(_cell(row, name)), 80)}"
            for names in self.used.values()
            for name in names
        )
        self.examples.setdefault(reason, f"row {number}: {cells}")

    @property
    def sentence(self) -> str:
        """What was left out, in one line."""
        return "; ".join(
            f"{count} {reason} ({self.examples[reason]})" for reason, count in self.left_out.items()
        )


class _Item(NamedTuple):
    """A row that can be used."""

    number: int
    row: Mapping[str, Any]
    parts: dict[str, Any]
    """Question, answer, and prompt where it has its own."""


class _LeftOut(Exception):
    """Why a row cannot be used."""


@dataclass(frozen=True)
class _Reading:
    """How the answers of a whole column are read, decided over all rows; a test split of one's own is read alike."""

    has_aliases: bool = False
    """A list of texts holds several answers, any of which is right."""
    is_list_in_text: bool = False
    """Lists of gold answers stand in cells as text, as in a CSV: `['Paris', 'City of Paris']`."""
    options: OptionReading | None = None
    """How an answer names one of the options."""
    is_after_hashes: bool = False
    """Answers are what stands after ####, as in GSM8K."""


def clean(
    read: Rows,
    columns: Columns | None = None,
    contradictory: Contradictory = "ask",
    filter: RowFilter | None = None,
    *,
    kind: Kind | None = None,
    like: Cleaned | None = None,
) -> Cleaned:
    """Find question and answer of each row, and leave out what cannot be trained on.

    Args:
        read: What `read_rows` gave.
        columns: Part -> column; of a question also several, which stand one below the other.
        contradictory: What to do with a question that stands there with different answers, as `is_same_answer` tells them
            apart: `ask` raises, `drop` leaves out all of them, `first` keeps the first.
        filter: Of a row, whether it stays.
        kind: The kind of answers, if it was given: with `json`, a list is one answer.
        like: Rows that were read before, whose answers decide how these are read.

    Raises:
        ValueError: No rows, a part without a column, rows that contradict each other, or no row left.
    """
    check_choice("contradictory", contradictory, get_args(Contradictory))
    if not read.rows:
        raise ValueError(
            f"{read.place} has no rows: a task needs at least two, one to train on and one held out."
        )
    found = list(dict.fromkeys(name for row in read.rows for name in row))
    used = _columns_of_parts(read, found, columns)
    cleaned, items = Cleaned(notes=[*read.notes], used=used), []
    kept = []
    for number, row in enumerate(read.rows):
        if filter is None or filter(dict(row)):
            kept.append((number, row))
        else:
            cleaned.leave_out("that filter= leaves out", number, row)
    reading = _reading_of([row for _, row in kept], used, kind)
    if like is not None:
        has_aliases = like.reading.has_aliases or reading.has_aliases
        is_list_in_text = like.reading.is_list_in_text or reading.is_list_in_text
        reading = replace(like.reading, has_aliases=has_aliases, is_list_in_text=is_list_in_text)
    for number, row in kept:
        try:
            items.append(_Item(number, row, _parts(row, used, reading)))
        except _LeftOut as reason:
            cleaned.leave_out(str(reason), number, row)
    if items:
        items, is_after_hashes = _without_solutions(items, reading, cleaned)
        reading = replace(reading, is_after_hashes=is_after_hashes)
    if not items:
        raise ValueError(f"no row of {read.place} is left of {len(read.rows)}: {cleaned.sentence}.")
    cleaned.reading = reading
    cleaned.notes += _notes_on_answers(read.rows, items, used, reading)
    if kind is None and all(map(_is_json_list, items)):
        cleaned.notes.append(
            "each answer is a list in JSON, and the model has to write all of it. If each entry alone is right, write "
            'kind="text"'
        )
    items = _once(read.place, items, contradictory, cleaned)
    _add_columns(found, items, cleaned)
    cleaned.rows = [item.parts for item in items]
    return cleaned


def _reading_of(
    rows: Sequence[Mapping[str, Any]], used: Mapping[str, Sequence[str]], kind: Kind | None
) -> _Reading:
    """Decide how the answers of these rows are read."""
    if "answer" not in used:
        return _Reading()
    golds = [_cell(row, used["answer"][0]) for row in rows]
    options = [options_in(_question_cells(row, used)) for row in rows]
    pairs = [
        (gold, held) for gold, held in zip(golds, options, strict=True) if held and _is_there(gold)
    ]
    is_list_in_text = not pairs and kind != "json" and _has_lists_in_text(golds, kind)
    if is_list_in_text:
        golds = [_listed(gold) for gold in golds]
    return _Reading(
        _has_aliases(golds, kind), is_list_in_text, OptionReading.of(pairs) if pairs else None
    )


def _listed(gold: Any) -> Any:
    """Return the list of texts that a text cell holds; any other cell as it is."""
    listed = read_list(gold) if isinstance(gold, str) else None
    has_texts = isinstance(listed, list) and any(isinstance(entry, str) for entry in listed)
    return listed if has_texts else gold


def _is_json_list(item: _Item) -> bool:
    answer = item.parts["answer"]
    return ACCEPTED not in item.parts and _listed(answer) is not answer


def _has_lists_in_text(golds: Sequence[Any], kind: Kind | None) -> bool:
    """Say whether text cells hold lists of texts; where all cells are JSON, JSON is what the model is to write."""
    texts = [gold for gold in golds if isinstance(gold, str) and gold.strip()]
    has_lists = any(_listed(text) is not text for text in texts)
    return has_lists and (kind is not None or not all(read_json(text)[1] for text in texts))


def _has_aliases(golds: Sequence[Any], kind: Kind | None) -> bool:
    """Say whether lists among the answers hold several right answers; lists of numbers alone are one answer in JSON."""
    entries = [entry for gold in golds if isinstance(gold, (list, tuple)) for entry in gold]
    if all(len(gold) == 1 for gold in golds if isinstance(gold, (list, tuple))):
        return bool(entries) and kind != "json" and not isinstance(entries[0], (list, tuple, dict))
    if (
        not entries
        or kind == "json"
        or any(isinstance(entry, (list, tuple, dict)) for entry in entries)
    ):
        return False
    return kind is not None or any(isinstance(entry, str) for entry in entries)


def _question_cells(
    row: Mapping[str, Any], used: Mapping[str, Sequence[str]]
) -> list[tuple[str, Any]]:
    """Return the columns of the question with their values."""
    return [(name, _cell(row, name)) for name in used.get("question", ())]


def _without_solutions(
    items: list[_Item], reading: _Reading, cleaned: Cleaned
) -> tuple[list[_Item], bool]:
    """Read the answers after ####, if most rows have them; leave out a row that then has none."""
    solved = [_SOLVED.fullmatch(item.parts["answer"]) for item in items]
    count = sum(match is not None for match in solved)
    is_after_hashes = reading.is_after_hashes or 2 * count > len(items)
    if not is_after_hashes or not count:
        if count:
            cleaned.notes.append(
                f"{count} of {len(items)} answers contain ####; they are used as they are written"
            )
        return items, is_after_hashes
    cleaned.notes.append(
        "answers were read after ####; what stands before them is the column solution"
    )
    kept = []
    for item, match in zip(items, solved, strict=True):
        if match is not None:
            item.parts.update(match.groupdict())
            if ACCEPTED in item.parts:
                matches = {one: _SOLVED.fullmatch(one) for one in item.parts[ACCEPTED]}
                accepted = [match["answer"] if match else one for one, match in matches.items()]
                item.parts[ACCEPTED] = list(dict.fromkeys(accepted))
        elif read_number(item.parts["answer"]) is not None:
            item.parts["solution"] = ""  # the answer without its solution
        else:
            cleaned.leave_out(
                "whose answer has no #### where most rows have one", item.number, item.row
            )
            continue
        kept.append(item)
    return kept, True


def _notes_on_answers(
    rows: Sequence[Mapping[str, Any]],
    items: Sequence[_Item],
    used: Mapping[str, Sequence[str]],
    reading: _Reading,
) -> list[str]:
    """Return what to know about how the answers were read; rows without a list of answers get one of their own."""
    notes = []
    lists = sum(len(item.parts.get(ACCEPTED, ())) > 1 for item in items)
    if reading.has_aliases and any(ACCEPTED in item.parts for item in items):
        for item in items:
            item.parts.setdefault(ACCEPTED, [item.parts["answer"]])
        notes.append(
            f"{lists} of {len(items)} rows have several answers: each is right (column {ACCEPTED!r}), the first is shown. "
            'If a list is one answer, write kind="json"'
        )
    separated = [item.parts["answer"] for item in items if "|" in item.parts["answer"]]
    if 2 * len(separated) > len(items) and not any("$" in answer for answer in separated):
        notes.append(
            f"{len(separated)} of {len(items)} answers contain |, such as {separated[0]!r:.60}. If it separates several right "
            'answers, make them lists first: frame["answer"].str.split("|")'
        )
    if reading.options is not None:
        notes += reading.options.notes(used["answer"][0])
    if "question" in used:
        notes += unshown_options(rows, used["question"])
    return notes


def _add_columns(found: Sequence[str], items: Sequence[_Item], cleaned: Cleaned) -> None:
    """Add the columns that play no part, renamed where their name is taken."""
    renamed = [names[0] for names in cleaned.used.values() if len(names) == 1]
    if unused := sorted({*PARTS}.intersection(found).difference(*cleaned.used.values())):
        cleaned.notes.append(
            f"the data's own {', '.join(map(repr, unused))} is not used: other columns take that part"
        )
    taken = _TAKEN | ({"solution"} if cleaned.reading.is_after_hashes else set())
    if not all(map(_is_list_of_texts, (item.row.get(ACCEPTED) for item in items))):
        taken |= {ACCEPTED}  # another meaning: rewards would take its values for right answers
    for name in found:
        if name in PARTS or name in renamed:
            continue
        column = _column(name, [item.row.get(name) for item in items], cleaned)
        kept_as = name
        while kept_as in taken or (kept_as != name and kept_as in found):
            kept_as = f"source_{kept_as}"
        if kept_as != name:
            why = (
                f"the trainer uses the name {name!r} itself"
                if name in _TAKEN
                else "the answers have one of this name"
                if name != ACCEPTED
                else "a column of that name holds lists of right answers"
            )
            cleaned.notes.append(f"the column {name!r} is now {kept_as!r}: {why}")
        for item, value in zip(items, column, strict=True):
            item.parts.setdefault(kept_as, value)


def _is_list_of_texts(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple))
    return value is None or (is_list and all(isinstance(entry, str) for entry in value))


def _columns_of_parts(
    read: Rows, found: Sequence[str], columns: Columns | None
) -> dict[str, list[str]]:
    """Part -> its columns, from what was asked for and what is there.

    Raises:
        ValueError: An unknown part, or one without its column, with a map to copy.
    """
    place, fields = read.place, [*found, *_fields(read.rows)]
    _require_parts(columns or {}, fields)
    named = {part: _names_of(part, names) for part, names in (columns or {}).items()}
    named |= {part: [part] for part in PARTS if part not in named and part in found}
    chats = [name for name in _CHATS if name in found]
    if chats and not {"question", "prompt"} & named.keys():
        named["prompt"] = chats[:1]
    needed = {} if "prompt" in named else {"question": ["question"]}
    if (
        named.get("prompt", [""])[0] not in _CHATS
    ):  # of a chat, the last turn is the answer where no column is
        needed["answer"] = ["answer"]
    for part, names in {**needed, **named}.items():
        missing = [name for name in names if name not in fields]
        if missing or (len(names) != 1 and part != "question"):
            told = f"{place} has no column {(missing or [names])[0]!r} for the {part}; it has {shorten(str(fields), 1000)}"
            asked = {
                part: names
                for part, names in named.items()
                if {*names} <= {*fields} and len(names) > 1
            }
            raise ValueError(
                f"{told}. Only a question may be of several columns. Map it: {_proposed(fields, asked)}"
            )
    return named


def _names_of(part: str, names: Any) -> list[str]:
    """Return the columns of a part as texts; a table without a header has numbers as names."""
    listed = [names] if isinstance(names, (str, int)) else names
    if not isinstance(listed, (list, tuple)) or not listed or None in listed:
        raise ValueError(
            f'columns= has {names!r} for the {part}. Write the name of a column: columns={{{json.dumps(part)}: "..."}}'
        )
    return [str(name) for name in listed]


def _require_parts(columns: Columns, fields: Sequence[str]) -> None:
    """Refuse a map with a part that does not exist.

    Raises:
        ValueError: With the map turned round, where columns and parts changed places.
    """
    unknown = [part for part in columns if part not in PARTS]
    if not unknown:
        return
    meant = did_you_mean(unknown[0], PARTS)
    if all(isinstance(name, str) and name in PARTS for name in columns.values()) and {*columns} <= {
        *fields
    }:
        turned = {part: name for name, part in columns.items()}
        meant = f". The part comes first: columns={json.dumps(turned, ensure_ascii=False)}"
    raise ValueError(
        f"columns= has the part {unknown[0]!r}, which is none of {', '.join(PARTS)}{meant}"
    )


def _fields(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields inside of dicts, as `ticket.body`."""
    names: dict[str, None] = {}

    def add(value: Any, place: str) -> None:
        if isinstance(value, Mapping):
            for key, held in value.items():
                names[f"{place}.{key}"] = None
                add(held, f"{place}.{key}")

    for row in rows:
        for name, value in row.items():
            add(value, name)
    return [name for name in names if not any(name in row for row in rows[:1])]


def _cell(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of a field inside of dicts: `ticket.body`; None where there is none."""
    value: Any = row
    for key in [name] if name in row else name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    # A cell of pandas may hold an array or a number of numpy.
    return value.tolist() if hasattr(value, "tolist") else value


def _proposed(found: Sequence[str], asked: Mapping[str, list[str]]) -> str:
    """A map to copy: what was asked for and is there, the usual names, else of two columns the first as the question."""
    proposed: dict[str, Any] = {}
    for part, usual in _USUAL.items():
        if part == "question" and part in asked:
            proposed[part] = asked[part]
            continue
        called = [
            name
            for word in usual
            for name in found
            if word in name.casefold() and name not in proposed.values()
        ]
        proposed[part] = called[0] if called else "<column>"
    if len(found) == 2 and "<column>" in proposed.values():
        rest = [name for name in found if name not in proposed.values()]
        proposed = {
            part: rest.pop(0) if name == "<column>" else name for part, name in proposed.items()
        }
    return f"columns={json.dumps(proposed, ensure_ascii=False)}"


def _parts(
    row: Mapping[str, Any], used: Mapping[str, Sequence[str]], reading: _Reading
) -> dict[str, Any]:
    """Question, answer, and prompt where the row has its own."""
    parts: dict[str, Any] = {}
    gold = _cell(row, used["answer"][0]) if "answer" in used else None
    asked = _cell(row, used["prompt"][0]) if "prompt" in used else None
    if isinstance(asked, list):
        chat = _chat(asked)
        if "answer" not in used and chat and chat[-1]["role"] == "assistant":
            gold = chat.pop()["content"]
        if not chat or chat[-1]["role"] not in ("user", "tool") or not chat[-1]["content"].strip():
            raise _LeftOut("whose prompt does not end with what a user says")
        parts["prompt"], asked = chat, _asked_by(chat)
    if "question" in used:
        cells = _question_cells(row, used)
        options = options_in(cells)
        if options:
            gold = as_letter(gold, options, reading.options) if reading.options else None
            if gold is None:
                raise _LeftOut("whose answer is none of its options")
        (_, asked), *more = [(name, value) for name, value in cells if name not in options.columns]
        # A column of one letter is an option behind its letter.
        lines = [
            f"{name}) {value}" if len(name) == 1 else str(value)
            for name, value in more
            if _is_there(value)
        ]
        lines += [f"{option.letter}) {option.text}" for option in options if _is_there(option.text)]
        if more or lines:
            asked = "\n".join([str(asked)] * _is_there(asked) + lines)
    gold = _listed(gold) if reading.is_list_in_text else gold
    if reading.has_aliases and isinstance(gold, (list, tuple)):
        accepted = [_text(entry, "answer").strip() for entry in gold if _is_there(entry)]
        parts[ACCEPTED] = list(dict.fromkeys(accepted))
        gold = accepted[0] if accepted else None
    return {**parts, "question": _text(asked, "question"), "answer": _text(gold, "answer").strip()}


def _is_there(value: Any) -> bool:
    """Whether a cell holds anything: no None, NaN or white space."""
    return (
        value is not None
        and not (isinstance(value, float) and value != value)
        and bool(str(value).strip())
    )


def _text(value: Any, part: str) -> str:
    """A value as text; an answer that is a dict or list as JSON."""
    if not _is_there(value):
        raise _LeftOut(f"with an empty {part}")
    if isinstance(value, (dict, list)) and part == "answer":
        return _as_text(value)
    if not isinstance(value, (str, numbers.Number)):
        raise _LeftOut(f"whose {part} is no text")
    # pandas makes whole numbers beside an empty cell to floats.
    return displayable(
        str(int(value) if isinstance(value, float) and value.is_integer() else value)
    )


def _chat(turns: Sequence[Any]) -> list[dict[str, str]]:
    """Messages with role and content alone, those of ShareGPT's form (`from`, `value`) too."""
    chat = []
    for turn in turns:
        match turn:
            case {"role": str(speaker), "content": str(content)} | {
                "from": str(speaker),
                "value": str(content),
            }:
                role = _SPEAKERS.get(speaker, speaker)
                chat.append({"role": role, "content": displayable(content)})
    if len(chat) < len(turns) or any(turn["role"] not in _ROLES for turn in chat):
        raise _LeftOut('whose prompt is no chat, [{"role": "user", "content": "..."}, ...]')
    return chat


def _asked_by(chat: Sequence[Mapping[str, str]]) -> str:
    """What a chat asks: what the user says or, after other turns, all of it, for many chats end with the same "ok"."""
    said = [turn for turn in chat if turn["role"] not in INSTRUCTS]
    return (
        said[0]["content"]
        if len(said) == 1
        else "\n".join(f"{turn['role']}: {turn['content']}" for turn in said)
    )


def _once(
    place: str, items: Sequence[_Item], contradictory: Contradictory, cleaned: Cleaned
) -> list[_Item]:
    """The rows with each question once, whatever its white space."""
    groups: dict[str, list[_Item]] = {}
    for item in items:
        turns = item.parts.get("prompt") or [{"content": item.parts["question"]}]
        groups.setdefault(" ".join(" ".join(turn["content"] for turn in turns).split()), []).append(
            item
        )
    kept = []
    for first, *others in groups.values():
        repeated = [item for item in others if _is_same_gold(item.parts, first.parts)]
        is_open = len(repeated) < len(others)
        if is_open and contradictory == "ask":
            rows = {item.number: item.parts["answer"] for item in (first, *others)}
            asked = f"{place}: rows {[*rows][:4]} ask {shorten(first.parts['question'], 120)!r} with different answers"
            raise ValueError(
                f'{asked}, {[*dict.fromkeys(rows.values())]}. contradictory="drop" leaves such questions out, "first" keeps '
                'the first. Where each is right, write one row with a list as its answer, such as ["Paris", "City of Paris"].'
            )
        if is_open and contradictory == "drop":
            others, repeated = [first, *others], []
        else:
            kept.append(first)
        for item in others:
            cleaned.leave_out(
                "repeated" if item in repeated else "contradictory", item.number, item.row
            )
    return kept


def _is_same_gold(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Say whether two rows share a right answer."""
    golds = wanted.get(ACCEPTED, [wanted["answer"]])
    return any(
        is_same_answer(one, gold)
        for one in given.get(ACCEPTED, [given["answer"]])
        for gold in golds
    )


def _column(name: str, values: list[Any], cleaned: Cleaned) -> list[Any]:
    """Return a column that plays no part, as it is; as text only where neither Arrow nor JSON holds it unchanged."""
    is_filled = any(map(_has_empty_field, values))
    if not is_filled and (not _is_changed_by_arrow(values) or _is_json(values)):
        return values
    cleaned.notes.append(f"the column {name!r} is kept as text, what is none as JSON")
    return [None if value is None else _as_text(value) for value in values]


def _is_changed_by_arrow(values: list[Any]) -> bool:
    """Say whether Arrow refuses a column, or changes its dicts: it gives each of them the keys of all."""
    import pyarrow

    try:
        array = pyarrow.array(values)
    except (ValueError, TypeError, OverflowError):  # pyarrow's own errors are of these kinds
        return True
    return "struct" in str(array.type) and repr(array.to_pylist()) != repr(values)


def _is_json(values: list[Any]) -> bool:
    """Say whether the type Json of datasets holds a column unchanged: it reads 1/3 as 0.33333333333333304."""
    from datasets import Json

    try:
        written = [json.dumps(value, allow_nan=False, ensure_ascii=False) for value in values]
        is_shown = all(displayable(text) == text for text in written)
        return is_shown and repr([Json().decode_example(text) for text in written]) == repr(values)
    except (ValueError, TypeError, RecursionError):
        return False


def _has_empty_field(cell: Any) -> bool:
    """Say whether a list of dicts, such as hidden tests, has None in a dict further inside: `code_tests` refuses it."""
    if not isinstance(cell, list):
        return False
    inside = [value for entry in cell if isinstance(entry, Mapping) for value in entry.values()]
    return any(map(_holds_none, inside))


def _holds_none(value: Any) -> bool:
    """Say whether a dict at any depth holds None."""
    if isinstance(value, Mapping):
        return any(held is None or _holds_none(held) for held in value.values())
    return isinstance(value, list) and any(map(_holds_none, value))


def nested_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that a `Dataset` has to store as JSON to give them back unchanged."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [
        name
        for name in names
        if name != "prompt" and _is_changed_by_arrow([row.get(name) for row in rows])
    ]


def as_dataset(rows: Sequence[Mapping[str, Any]], nested: Sequence[str] | None = None) -> "Dataset":
    """Return rows as a `Dataset` whose cells are what they were: a dict stays a dict, with its own keys.

    Args:
        rows: All with the same columns.
        nested: From `nested_columns` of more rows than these, so that two parts get the same types.
    """
    from datasets import Dataset, Features, Json

    nested = nested_columns(rows) if nested is None else nested
    plain = Dataset.from_list(
        [{name: value for name, value in row.items() if name not in nested} for row in rows]
    )
    if not nested:
        return plain
    features = {name: Json() if name in nested else plain.features[name] for name in rows[0]}
    # Written here, for Json itself writes ten decimals and takes the text "2" for the number.
    written = [
        {name: _as_json(cell) if name in nested else cell for name, cell in row.items()}
        for row in rows
    ]
    return Dataset.from_list(written, features=Features(features))


def _as_json(cell: Any) -> str | None:
    return None if cell is None else json.dumps(cell, ensure_ascii=False)


def _as_text(value: Any) -> str:
    return displayable(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )
