"""Clean rows: find their questions and answers, and leave out what cannot be trained on."""

import json
import numbers
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

from grpo_nb.config.arguments import check_choice
from grpo_nb.core.words import closest_name, did_you_mean, displayable, shorten
from grpo_nb.tasks.answers import ACCEPTED, Kind, is_same_answer
from grpo_nb.tasks.chat_template import INSTRUCTS
from grpo_nb.tasks.dataset import can_store
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.options import (
    OptionReading,
    Options,
    choose_reading,
    options_in,
    unshown_options,
)
from grpo_nb.tasks.read_rows import Rows

OnConflict = Literal["ask", "drop", "first"]
Columns = Mapping[str, str | Sequence[str]]
RowFilter = Callable[[Mapping[str, Any]], object]
PARTS = ("question", "answer", "prompt")
# TRL 1.15 passes these names to rewards itself, drops them, or takes their column for images
# (grpo_trainer.py, lines 1542 and 2326); a method has `self`.
TAKEN_NAMES = frozenset(
    {
        "prompts",
        "completion",
        "completions",
        "completion_ids",
        "trainer_state",
        "log_extra",
        "log_metric",
        "environments",
        "image",
        "images",
        "self",
    }
)
_ROLES = (*INSTRUCTS, "user", "assistant", "tool")
# An answer with its solution, as in GSM8K. The last #### is the one before the answer.
_SOLVED = re.compile(r"(?s)(?P<solution>.*?)\s*####\s*(?P<answer>(?:(?!####)[^\n])+?)\s*")
# Common names of these columns. An error proposes them; they are never taken unasked.
_USUAL_NAMES = {
    "question": [
        "question",
        "problem",
        "prompt",
        "instruction",
        "query",
        "input",
        "text",
        "review",
        "sentence",
    ],
    "answer": [
        "answer",
        "label",
        "target",
        "gold",
        "solution",
        "output",
        "response",
        "category",
        "class",
    ],
}


class Item(NamedTuple):
    """A row that can be used."""

    number: int
    """Place in the source, from 0."""
    row: Mapping[str, Any]
    parts: dict[str, Any]
    """Question and answer, the row's own prompt if there is one, and the other columns."""


@dataclass(frozen=True)
class Reading:
    """The way to read the answers of a column. All rows decide together."""

    has_aliases: bool = False
    """A list of texts holds several answers, any of which is right."""
    is_after_hashes: bool = False
    """The answer follows ####, as in GSM8K."""
    options: OptionReading | None = None
    """The way in which an answer names an option."""


@dataclass
class Cleaned:
    """Rows with `question` and `answer`, and a report on what was left out or changed."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of rows left out, by reason."""
    examples: dict[str, str] = field(default_factory=dict)
    """One of these rows, by reason."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what was changed, and what to check."""
    used: Mapping[str, list[str]] = field(default_factory=dict)
    """The columns of each part."""
    reading: Reading = Reading()

    def leave_out(self, reason: str, number: int, row: Mapping[str, Any]) -> None:
        """Count a row under a reason, and keep the cells of the first one as an example."""
        self.left_out[reason] += 1
        names = [name for names in self.used.values() for name in names]
        cells = [f"{name}={shorten(repr(_cell(row, name)), 80)}" for name in names]
        self.examples.setdefault(reason, f"row {number}: {', '.join(cells)}")

    @property
    def sentence(self) -> str:
        """The rows left out, in one line."""
        reasons = [f"{n} {reason} ({self.examples[reason]})" for reason, n in self.left_out.items()]
        return "; ".join(reasons)


class _LeftOut(Exception):
    """The reason why a row cannot be used."""


def clean(
    read: Rows,
    columns: Columns | None = None,
    on_conflict: OnConflict = "ask",
    filter: RowFilter | None = None,
    *,
    kind: Kind | None = None,
    like: Reading | None = None,
) -> Cleaned:
    """Find question and answer of each row, and leave out the rows that cannot be trained on.

    Args:
        read: The result of `read_rows`.
        columns: The column of each part; of a question also several, one below the other.
        on_conflict: What to do with a question that has different answers: `ask` raises, `drop`
            leaves out all of its rows, `first` keeps the first.
        filter: Function of a row that says whether it stays.
        kind: Kind of the answers, if the user set it: with `json`, a list is one answer.
        like: Reading of the training rows, to read held-out rows in the same way.

    Raises:
        ValueError: No rows, a part without a column, conflicting answers, or no row left.
    """
    check_choice("on_conflict", on_conflict, get_args(OnConflict))
    if not read.rows:
        raise ValueError(
            f"{read.place} has no rows: a task needs at least two, one to train on and one held "
            "out."
        )
    names = list(dict.fromkeys(name for row in read.rows for name in row))
    used = _choose_columns(read, names, columns)
    cleaned = Cleaned(notes=[*read.notes], used=used)
    selected = _select(read.rows, filter, cleaned)
    cleaned.reading = _choose_answer_reading([row for _, row in selected], used, kind, like)
    items = []
    for number, row in selected:
        try:
            items.append(Item(number, row, _read_row(row, used, cleaned.reading)))
        except _LeftOut as reason:
            cleaned.leave_out(str(reason), number, row)
    if not items:
        raise ValueError(f"no row of {read.place} is left of {len(read.rows)}: {cleaned.sentence}.")
    cleaned.notes += _notes_on_answers(items, cleaned, kind)
    if "question" in used:
        cleaned.notes += unshown_options(read.rows, used["question"])
    items = _merge_repeated(read.place, items, on_conflict, cleaned)
    _add_other_columns(names, items, cleaned)
    cleaned.rows = [item.parts for item in items]
    return cleaned


def _select(
    rows: Sequence[Mapping[str, Any]], filter: RowFilter | None, cleaned: Cleaned
) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the rows that the user's filter keeps, with their numbers."""
    selected = []
    for number, row in enumerate(rows):
        if filter is None or filter(dict(row)):
            selected.append((number, row))
        else:
            cleaned.leave_out("that filter= leaves out", number, row)
    return selected


# Which columns are used.


def _choose_columns(
    read: Rows, names: Sequence[str], columns: Columns | None
) -> dict[str, list[str]]:
    """Return the columns of each part, as the user maps them or as they are called.

    Raises:
        ValueError: An unknown part, or a part without its column, with a map to copy.
    """
    known = [*names, *_nested_names(read.rows)]
    used = {}
    for part, mapped in (columns or {}).items():
        if part not in PARTS:
            hint = did_you_mean(part, PARTS)
            is_turned = isinstance(mapped, str) and mapped in PARTS
            if is_turned and closest_name(part, PARTS) is None:
                turned = json.dumps({mapped: part}, ensure_ascii=False)
                hint = f". The part comes first: columns={turned}"
            raise ValueError(
                f"columns= has the part {part!r}, which is none of {', '.join(PARTS)}{hint}"
            )
        used[part] = _column_names(part, mapped)
    for part in PARTS:
        if part not in used and part in names:
            used[part] = [part]
    needed = {} if "prompt" in used else {"question": ["question"]}
    for part, part_names in {**needed, "answer": ["answer"], **used}.items():
        if len(part_names) > 1 and part != "question":
            raise ValueError(
                f"columns= has {part_names} for the {part}. Only a question may be of several "
                "columns."
            )
        missing = [name for name in part_names if name not in known]
        if missing:
            raise ValueError(
                f"{read.place} has no column {missing[0]!r} for the {part}; it has "
                f"{shorten(str(known), 1000)}. Map it: {_proposed_map(known, used)}"
            )
    return used


def _column_names(part: str, mapped: Any) -> list[str]:
    """Return the columns of a part as texts; a table without a header has numbers as names."""
    names = [mapped] if isinstance(mapped, (str, int)) else mapped
    if not isinstance(names, (list, tuple)) or not names or None in names:
        raise ValueError(
            f"columns= has {mapped!r} for the {part}. Write the name of a column: "
            f'columns={{{json.dumps(part)}: "..."}}'
        )
    return [str(name) for name in names]


def _nested_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of fields inside dicts, such as `ticket.body`."""
    names: dict[str, None] = {}

    def add_fields(value: Any, path: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                names[f"{path}.{key}"] = None
                add_fields(inner, f"{path}.{key}")

    for row in rows:
        for name, value in row.items():
            add_fields(value, name)
    return [name for name in names if not rows or name not in rows[0]]


def _cell(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of a nested field such as `ticket.body`; None if missing."""
    value: Any = row
    for key in [name] if name in row else name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    # A cell of pandas may hold an array or a number of numpy.
    return value.tolist() if hasattr(value, "tolist") else value


def _proposed_map(known: Sequence[str], used: Mapping[str, list[str]]) -> str:
    """Return a map to copy, with usual names or, of two columns, the first as the question."""
    proposed: dict[str, Any] = {}
    if "messages" in known and "question" not in used:
        proposed["prompt"] = "messages"
    for part, words in _USUAL_NAMES.items():
        if part == "question" and "prompt" in proposed:
            continue
        mapped = used.get(part, [])
        is_known = all(name in known for name in mapped)
        if part == "question" and len(mapped) > 1 and is_known:
            proposed[part] = mapped
            continue
        free = [name for name in known if name not in proposed.values()]
        similar = [name for word in words for name in free if word in name.casefold()]
        proposed[part] = similar[0] if similar else "<column>"
    if len(known) == 2:
        free = [name for name in known if name not in proposed.values()]
        for part, name in proposed.items():
            proposed[part] = free.pop(0) if name == "<column>" else name
    return f"columns={json.dumps(proposed, ensure_ascii=False)}"


# How answers are read.


def _choose_answer_reading(
    rows: Sequence[Mapping[str, Any]],
    used: Mapping[str, Sequence[str]],
    kind: Kind | None,
    like: Reading | None,
) -> Reading:
    """Decide how the answers of these rows are read; held-out rows like the training rows."""
    golds = [_cell(row, used["answer"][0]) for row in rows]
    texts = [str(gold).strip() for gold in golds if _is_there(gold)]
    solved = sum(_SOLVED.fullmatch(text) is not None for text in texts)
    has_aliases = _has_aliases(golds, kind)
    most_solved = 2 * solved > len(texts)
    if like is not None:
        # Held-out answers without any #### are read as they are written.
        most_solved = most_solved or (like.is_after_hashes and solved > 0)
        has_aliases = has_aliases or like.has_aliases
    is_after_hashes = most_solved and not has_aliases
    if like is not None:
        return replace(like, has_aliases=has_aliases, is_after_hashes=is_after_hashes)
    rows_options = [options_in(_question_cells(row, used)) for row in rows]
    pairs = [
        (gold, options)
        for gold, options in zip(golds, rows_options, strict=True)
        if options is not None and _is_there(gold)
    ]
    return Reading(has_aliases, is_after_hashes, choose_reading(pairs) if pairs else None)


def _has_aliases(golds: Sequence[Any], kind: Kind | None) -> bool:
    """Say whether lists among the answers hold several right answers.

    Lists of numbers are one answer in JSON, unless each has one entry or `kind` is another one.
    """
    lists = [gold for gold in golds if isinstance(gold, (list, tuple))]
    entries = [entry for gold in lists for entry in gold]
    if not entries or kind == "json":
        return False
    if any(isinstance(entry, (list, tuple, dict)) for entry in entries):
        return False
    is_one_each = all(len(gold) == 1 for gold in lists)
    return is_one_each or kind is not None or any(isinstance(entry, str) for entry in entries)


def _question_cells(
    row: Mapping[str, Any], used: Mapping[str, Sequence[str]]
) -> list[tuple[str, Any]]:
    """Return the columns of the question with their values."""
    return [(name, _cell(row, name)) for name in used.get("question", ())]


def _read_row(
    row: Mapping[str, Any], used: Mapping[str, Sequence[str]], reading: Reading
) -> dict[str, Any]:
    """Return question and answer of a row, and its own prompt if it has one.

    Raises:
        _LeftOut: With the reason why the row cannot be used.
    """
    parts: dict[str, Any] = {}
    question = None
    gold = _cell(row, used["answer"][0])
    if "prompt" in used:
        question = _cell(row, used["prompt"][0])
        if isinstance(question, list):
            parts["prompt"] = _read_chat(question)
            question = _text_of_chat(parts["prompt"])
    if "question" in used:
        cells = _question_cells(row, used)
        options = options_in(cells)
        if options is not None:
            gold = reading.options.letter_of(gold, options) if reading.options else None
            if gold is None:
                raise _LeftOut("whose answer is none of its options")
        question = _joined(cells, options)
    if reading.has_aliases and isinstance(gold, (list, tuple)):
        accepted = [_as_text(entry, "answer").strip() for entry in gold if _is_there(entry)]
        parts[ACCEPTED] = list(dict.fromkeys(accepted))
        gold = accepted[0] if accepted else None
    parts["question"] = _as_text(question, "question")
    parts["answer"] = _as_text(gold, "answer").strip()
    if reading.is_after_hashes:
        parts |= _without_solution(parts["answer"])
    return parts


def _joined(cells: Sequence[tuple[str, Any]], options: Options | None) -> Any:
    """Return the question: its columns one below the other, options behind their letters."""
    option_columns = options.columns if options is not None else ()
    (_, question), *more = [cell for cell in cells if cell[0] not in option_columns]
    lines = []
    for name, value in more:
        if _is_there(value):
            # A column whose name is one letter is an option.
            lines.append(f"{name}) {value}" if len(name) == 1 else str(value))
    for option in options.options if options is not None else ():
        if _is_there(option.text):
            lines.append(f"{option.letter}) {option.text}")
    if not more and not lines:
        return question
    if _is_there(question):
        lines.insert(0, str(question))
    return "\n".join(lines)


def _without_solution(answer: str) -> dict[str, str]:
    """Return the answer after #### and the solution before it."""
    match = _SOLVED.fullmatch(answer)
    if match is not None:
        return match.groupdict()
    if read_number(answer) is not None:  # an answer without its solution
        return {"answer": answer, "solution": ""}
    raise _LeftOut("whose answer has no #### where most rows have one")


def _is_there(value: Any) -> bool:
    """Say whether a cell holds anything other than None, NaN or white space."""
    is_nan = isinstance(value, float) and value != value
    return value is not None and not is_nan and bool(str(value).strip())


def _as_text(value: Any, part: str) -> str:
    """Return a question or answer as text; an answer that is a dict or list as JSON."""
    if not _is_there(value):
        raise _LeftOut(f"with an empty {part}")
    if isinstance(value, (dict, list)) and part == "answer":
        return _as_json(value)
    if not isinstance(value, (str, numbers.Number)):
        raise _LeftOut(f"whose {part} is no text")
    # pandas turns whole numbers in a column with an empty cell into floats.
    is_whole_float = isinstance(value, float) and value.is_integer()
    return displayable(str(int(value) if is_whole_float else value))


def _as_json(value: Any) -> str:
    return displayable(json.dumps(value, ensure_ascii=False, default=str))


def _read_chat(turns: Sequence[Any]) -> list[dict[str, str]]:
    """Return chat messages with `role` and `content` alone."""
    chat = []
    for turn in turns:
        match turn:
            case {"role": str(role), "content": str(content)} if role in _ROLES:
                chat.append({"role": role, "content": displayable(content)})
    if len(chat) < len(turns):
        raise _LeftOut('whose prompt is no chat, [{"role": "user", "content": "..."}, ...]')
    last = chat[-1] if chat else {"role": "", "content": ""}
    if last["role"] not in ("user", "tool") or not last["content"].strip():
        raise _LeftOut("whose prompt does not end with what a user says")
    return chat


def _text_of_chat(chat: Sequence[Mapping[str, str]]) -> str:
    """Return what a chat asks: the user's message or, after other messages, all of them.

    The last message is not enough, because many chats end with the same "ok".
    """
    turns = [turn for turn in chat if turn["role"] not in INSTRUCTS]
    if len(turns) == 1:
        return turns[0]["content"]
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def _notes_on_answers(items: Sequence[Item], cleaned: Cleaned, kind: Kind | None) -> list[str]:
    """Return notes on how answers were read, and give each row its list of right answers."""
    notes = []
    reading = cleaned.reading
    answers = [item.parts["answer"] for item in items]
    if reading.is_after_hashes:
        notes.append("answers were read after ####; what stands before them is the column solution")
    elif solved := sum(_SOLVED.fullmatch(answer) is not None for answer in answers):
        notes.append(
            f"{solved} of {len(items)} answers contain ####; they are used as they are written"
        )
    if any(ACCEPTED in item.parts for item in items):
        several = sum(len(item.parts.get(ACCEPTED, ())) > 1 for item in items)
        for item in items:
            item.parts.setdefault(ACCEPTED, [item.parts["answer"]])
        notes.append(
            f"{several} of {len(items)} rows have several answers: each is right (column "
            f'{ACCEPTED!r}), the first is shown. If a list is one answer, write kind="json"'
        )
    notes += _notes_on_packed_answers(answers, kind)
    if reading.options is not None:
        notes += reading.options.notes(cleaned.used["answer"][0])
    return notes


def _notes_on_packed_answers(answers: Sequence[str], kind: Kind | None) -> list[str]:
    """Return notes on texts that may hold several right answers: `['a', 'b']` or `a|b`."""
    notes = []
    if kind != "json":
        lists = [answer for answer in answers if re.fullmatch(r"""\[\s*["'].*["']\s*\]""", answer)]
        if lists:
            notes.append(
                f"{len(lists)} of {len(answers)} answers are a list written as text, such as "
                f"{lists[0]!r:.60}, and the model has to write all of it. If each entry alone is "
                'right, make them lists first: frame["answer"] = '
                '[ast.literal_eval(x) if x[:1] == "[" else x for x in frame["answer"]]'
            )
    separated = [answer for answer in answers if "|" in answer]
    # In LaTeX, | is an absolute value.
    if 2 * len(separated) > len(answers) and not any("$" in answer for answer in separated):
        notes.append(
            f"{len(separated)} of {len(answers)} answers contain |, such as {separated[0]!r:.60}. "
            "If it separates several right answers, make them lists first: "
            'frame["answer"].str.split("|")'
        )
    return notes


# Which rows are left out, and what is kept with a row.


def _merge_repeated(
    place: str, items: Sequence[Item], on_conflict: OnConflict, cleaned: Cleaned
) -> list[Item]:
    """Return the rows with each question once, whatever its white space.

    Raises:
        ValueError: A question has different answers, and `on_conflict` is `ask`.
    """
    groups: dict[str, list[Item]] = {}
    for item in items:
        turns = item.parts.get("prompt") or [{"content": item.parts["question"]}]
        words = " ".join(turn["content"] for turn in turns).split()
        groups.setdefault(" ".join(words), []).append(item)
    kept = []
    for group in groups.values():
        first, *others = group
        repeated = [item for item in others if _share_an_answer(item.parts, first.parts)]
        has_conflict = len(repeated) < len(others)
        if has_conflict and on_conflict == "ask":
            _raise_conflict(place, group)
        if has_conflict and on_conflict == "drop":
            others = group
            repeated = []
        else:
            kept.append(first)
        for item in others:
            reason = "repeated" if item in repeated else "contradictory"
            cleaned.leave_out(reason, item.number, item.row)
    return kept


def _raise_conflict(place: str, group: Sequence[Item]) -> None:
    question = shorten(group[0].parts["question"], 120)
    row_numbers = [item.number for item in group]
    golds = list(dict.fromkeys(item.parts["answer"] for item in group))
    raise ValueError(
        f"{place}: rows {row_numbers[:4]} ask {question!r} with "
        f'different answers, {golds}. on_conflict="drop" leaves such questions out, "first" keeps '
        "the first. Where each is right, write one row with a list as its answer, such as "
        '["Paris", "City of Paris"].'
    )


def _share_an_answer(parts: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether two rows have a right answer in common."""
    answers = parts.get(ACCEPTED, [parts["answer"]])
    golds = other.get(ACCEPTED, [other["answer"]])
    return any(is_same_answer(answer, gold) for answer, gold in product(answers, golds))


def _add_other_columns(names: Sequence[str], items: Sequence[Item], cleaned: Cleaned) -> None:
    """Give each row the columns that are not used, renamed if their name is taken."""
    mapped = [name for part_names in cleaned.used.values() for name in part_names]
    renamed = [part_names[0] for part_names in cleaned.used.values() if len(part_names) == 1]
    hidden = sorted({*PARTS}.intersection(names).difference(mapped))
    if hidden:
        cleaned.notes.append(
            f"the data's own {', '.join(map(repr, hidden))} is not used: other columns take that "
            "part"
        )
    taken = _taken_names(items, cleaned.reading)
    for name in names:
        if name in PARTS or name in renamed:
            continue
        values = [item.row.get(name) for item in items]
        if not can_store(values):
            cleaned.notes.append(f"the column {name!r} is stored as text; non-text values as JSON")
            values = [_written(value) for value in values]
        kept_as = name
        while kept_as in taken or (kept_as != name and kept_as in names):
            kept_as = f"source_{kept_as}"
        if kept_as != name:
            cleaned.notes.append(f"the column {name!r} is now {kept_as!r}: {taken[name]}")
        for item, value in zip(items, values, strict=True):
            item.parts.setdefault(kept_as, value)


def _taken_names(items: Sequence[Item], reading: Reading) -> dict[str, str]:
    """Return the names that a column cannot have, each with the reason."""
    taken = {name: f"the trainer uses the name {name!r} itself" for name in TAKEN_NAMES}
    if reading.is_after_hashes:
        taken["solution"] = "the answers have one of this name"
    if not all(_is_list_of_texts(item.row.get(ACCEPTED)) for item in items):
        # Rewards would take other values for right answers.
        taken[ACCEPTED] = "a column of that name holds lists of right answers"
    return taken


def _is_list_of_texts(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple))
    return value is None or (is_list and all(isinstance(entry, str) for entry in value))


def _written(value: Any) -> str | None:
    """Return a value as text, for a column that neither Arrow nor JSON holds unchanged."""
    if value is None or isinstance(value, str):
        return value if value is None else displayable(value)
    return _as_json(value)
