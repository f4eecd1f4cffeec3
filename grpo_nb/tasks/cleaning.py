"""Clean rows: find their questions and answers, and leave out what cannot be trained on."""

import json
import numbers
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

from grpo_nb.config.arguments import check_choice
from grpo_nb.core.words import did_you_mean, displayable, shorten
from grpo_nb.tasks.answers import ACCEPTED, Kind, is_same_answer
from grpo_nb.tasks.chat_template import SYSTEM_ROLES
from grpo_nb.tasks.dataset import can_store
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.read_rows import Row, Rows

OnConflict = Literal["raise", "drop", "first"]
Columns = Mapping[str, str | Sequence[str]]
RowFilter = Callable[[Row], object]
ColumnsOf = Mapping[str, Sequence[str]]
PARTS = ("question", "answer", "prompt")
# Column names that TRL's GRPOTrainer takes for itself: arguments of rewards, and images.
TAKEN_NAMES = frozenset(
    re.findall(
        r"\w+",
        "prompts completion completions completion_ids trainer_state log_extra log_metric "
        # A reward that is a method has the argument self.
        "environments image images self",
    )
)
_ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
# An answer with its solution, as in GSM8K. The last #### is the one before the answer.
_SOLVED = re.compile(r"(?s)(?P<solution>.*?)\s*####\s*(?P<answer>(?:(?!####)[^\n])+?)\s*")


class Item(NamedTuple):
    """A row that can be used."""

    number: int
    """Place in the source, from 0."""
    row: Row
    parts: dict[str, Any]
    """Question and answer, the row's own prompt if there is one, and the other columns."""


@dataclass(frozen=True)
class Reading:
    """The way to read the answers of a column. All rows decide together."""

    has_aliases: bool = False
    """A list of texts holds several answers, any of which is right."""
    is_after_hashes: bool = False
    """The answer follows ####, as in GSM8K."""


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
    columns_of: ColumnsOf = field(default_factory=dict)
    """The columns of each part: question, answer, prompt."""

    def leave_out(self, reason: str, number: int, row: Row) -> None:
        """Count a row under a reason, and keep the cells of the first one as an example."""
        self.left_out[reason] += 1
        names = [name for names in self.columns_of.values() for name in names]
        cells = [f"{name}={shorten(repr(row.get(name)), 80)}" for name in names]
        self.examples.setdefault(reason, f"row {number}: {', '.join(cells)}")

    @property
    def sentence(self) -> str:
        """The rows left out, in one line."""
        reasons = [f"{n} {reason} ({self.examples[reason]})" for reason, n in self.left_out.items()]
        return "; ".join(reasons)


class _LeftOut(Exception):
    """The reason why a row cannot be used."""


def clean(
    source: Rows,
    columns: Columns | None = None,
    on_conflict: OnConflict = "raise",
    filter: RowFilter | None = None,
    *,
    kind: Kind | None = None,
) -> Cleaned:
    """Find question and answer of each row, and leave out the rows that cannot be trained on.

    Args:
        source: The result of `read_rows`.
        columns: The column of each part; of a question also several.
        on_conflict: What to do with a question that has different answers: `raise` an error, `drop`
            all of its rows, or keep the `first`.
        filter: Function of a row that says whether it stays.
        kind: Kind of the answers, if the user set it: with `json`, a list is one answer.

    Raises:
        ValueError: No rows, a part without a column, conflicting answers, or no row left.
    """
    check_choice("on_conflict", on_conflict, get_args(OnConflict))
    if not source.rows:
        raise ValueError(
            f"{source.place} has no rows: a task needs at least two, one to train on and one held "
            "out."
        )
    names = list(dict.fromkeys(name for row in source.rows for name in row))
    columns_of = _choose_columns(source, names, columns or {})
    cleaned = Cleaned(notes=[*source.notes], columns_of=columns_of)
    selected = []
    for number, row in enumerate(source.rows):
        if filter is None or filter(dict(row)):
            selected.append((number, row))
        else:
            cleaned.leave_out("that filter= leaves out", number, row)
    golds = [row.get(columns_of["answer"][0]) for _, row in selected]
    reading = _choose_reading(golds, kind)
    items = []
    for number, row in selected:
        try:
            items.append(Item(number, row, _read_row(row, columns_of, reading)))
        except _LeftOut as reason:
            cleaned.leave_out(str(reason), number, row)
    if not items:
        raise ValueError(
            f"no row of {source.place} is left of {len(source.rows)}: {cleaned.sentence}."
        )
    cleaned.notes += _notes_on_answers(items, reading)
    items = _merge_repeated(source.place, items, on_conflict, cleaned)
    _add_other_columns(names, items, cleaned, reading)
    cleaned.rows = [item.parts for item in items]
    return cleaned


# Which columns are used.


def _choose_columns(source: Rows, names: Sequence[str], columns: Columns) -> dict[str, list[str]]:
    """Return the columns of each part, as the user maps them or as they are called.

    Raises:
        ValueError: An unknown part, or a part without its column, with a map to copy.
    """
    columns_of = {part: [part] for part in PARTS if part in names}
    for part, mapped in columns.items():
        if part not in PARTS:
            raise ValueError(f"columns= has no part {part!r}{did_you_mean(part, PARTS)}")
        part_names = mapped if isinstance(mapped, (list, tuple)) else [mapped]
        if len(part_names) != 1 and part != "question":
            raise ValueError(
                f"columns= has {part_names} for the {part}. Only a question may be of several "
                "columns."
            )
        # A table without a header has numbers as names.
        columns_of[part] = [str(name) for name in part_names]
    if "prompt" in columns_of:
        prompts = [row.get(columns_of["prompt"][0]) for row in source.rows]
        if any(isinstance(prompt, str) for prompt in prompts):
            # A text is the whole question: it wins unless the user has mapped only `question`.
            question_wins = "question" in columns and "prompt" not in columns
            columns_of.pop("prompt" if question_wins else "question", None)
    needed = {} if "prompt" in columns_of else {"question": ["question"]}
    for part, part_names in {**needed, "answer": ["answer"], **columns_of}.items():
        for name in part_names:
            if name not in names:
                # Of two columns, the first is usually the question.
                proposed = names if len(names) == 2 else ["<column>", "<column>"]
                mapped = dict(zip(("question", "answer"), proposed, strict=True))
                raise ValueError(
                    f"{source.place} has no column {name!r} for the {part}; it has "
                    f"{shorten(str(names), 1000)}. Map it: "
                    f"columns={json.dumps(mapped, ensure_ascii=False)}"
                )
    return columns_of


# How answers are read.


def _choose_reading(golds: Sequence[Any], kind: Kind | None) -> Reading:
    """Decide how these answers are read."""
    filled = [gold for gold in golds if is_filled(gold)]
    solved = sum(_SOLVED.fullmatch(str(gold).strip()) is not None for gold in filled)
    has_aliases = _has_aliases(golds, kind)
    return Reading(has_aliases, 2 * solved > len(filled) and not has_aliases)


def _has_aliases(golds: Sequence[Any], kind: Kind | None) -> bool:
    """Say whether lists among the answers hold several right answers: lists of texts do."""
    lists = [gold for gold in golds if isinstance(gold, (list, tuple))]
    entries = [entry for gold in lists for entry in gold]
    return kind != "json" and bool(entries) and all(isinstance(entry, str) for entry in entries)


def _read_row(row: Row, columns_of: ColumnsOf, reading: Reading) -> dict[str, Any]:
    """Return question and answer of a row, and its own prompt if it has one.

    Raises:
        _LeftOut: With the reason why the row cannot be used.
    """
    parts: dict[str, Any] = {}
    question = None
    gold = row.get(columns_of["answer"][0])
    if "prompt" in columns_of:
        question = row.get(columns_of["prompt"][0])
        if isinstance(question, list):
            parts["prompt"] = _read_chat(question)
            question = _text_of_chat(parts["prompt"])
    if "question" in columns_of:
        cells = [row.get(name) for name in columns_of["question"]]
        question = cells[0]
        if len(cells) > 1:
            question = "\n".join(str(cell) for cell in cells if is_filled(cell))
    if reading.has_aliases:
        golds = gold if isinstance(gold, (list, tuple)) else [gold]
        accepted = [_as_text(entry, "answer").strip() for entry in golds if is_filled(entry)]
        parts[ACCEPTED] = list(dict.fromkeys(accepted))
        gold = accepted[0] if accepted else None
    parts["question"] = _as_text(question, "question")
    parts["answer"] = _as_text(gold, "answer").strip()
    if reading.is_after_hashes:
        parts |= _without_solution(parts["answer"])
    return parts


def _without_solution(answer: str) -> dict[str, str]:
    """Return the answer after #### and the solution before it."""
    match = _SOLVED.fullmatch(answer)
    if match is not None:
        return match.groupdict()
    if read_number(answer) is not None:  # an answer without its solution
        return {"answer": answer, "solution": ""}
    raise _LeftOut("whose answer has no #### where most rows have one")


def is_filled(cell: Any) -> bool:
    """Say whether a cell holds anything other than None, NaN or white space."""
    is_nan = isinstance(cell, float) and cell != cell
    return cell is not None and not is_nan and bool(str(cell).strip())


def _as_text(value: Any, part: str) -> str:
    """Return a question or answer as text; an answer that is a dict or list as JSON."""
    if not is_filled(value):
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
            case _:
                raise _LeftOut('whose prompt is no chat, [{"role": "user", "content": "..."}, ...]')
    if not chat or chat[-1]["role"] not in ("user", "tool") or not chat[-1]["content"].strip():
        raise _LeftOut("whose prompt does not end with what a user says")
    return chat


def _text_of_chat(chat: Sequence[Mapping[str, str]]) -> str:
    """Return what a chat asks: the user's message or, after other messages, all of them.

    The last message is not enough, because many chats end with the same "ok".
    """
    turns = [turn for turn in chat if turn["role"] not in SYSTEM_ROLES]
    if len(turns) == 1:
        return turns[0]["content"]
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def _notes_on_answers(items: Sequence[Item], reading: Reading) -> list[str]:
    """Return notes on how answers were read."""
    notes = []
    if reading.is_after_hashes:
        notes.append("answers were read after ####; the text before is in the column solution")
    if reading.has_aliases:
        several = sum(len(item.parts[ACCEPTED]) > 1 for item in items)
        notes.append(
            f"{several} of {len(items)} rows have several answers: each is right (column "
            f'{ACCEPTED!r}), the first is shown. If a list is one answer, write kind="json"'
        )
    return notes


# Which rows are left out, and what is kept with a row.


def _merge_repeated(
    place: str, items: Sequence[Item], on_conflict: OnConflict, cleaned: Cleaned
) -> list[Item]:
    """Return the rows with each question once, whatever its white space.

    Raises:
        ValueError: A question has different answers, and `on_conflict` is `raise`.
    """
    groups: dict[str, list[Item]] = {}
    for item in items:
        turns = item.parts.get("prompt") or [{"content": item.parts["question"]}]
        words = " ".join(turn["content"] for turn in turns).split()
        groups.setdefault(" ".join(words), []).append(item)
    kept = []
    for group in groups.values():
        first, *others = group
        conflicting = [item for item in others if not _share_an_answer(item.parts, first.parts)]
        if conflicting and on_conflict == "raise":
            row_numbers = [item.number for item in group]
            golds = list(dict.fromkeys(item.parts["answer"] for item in group))
            raise ValueError(
                f"{place}: rows {row_numbers[:4]} ask {shorten(first.parts['question'], 120)!r} "
                f'with different answers, {golds}. on_conflict="drop" leaves such questions out, '
                '"first" keeps the first. Where each is right, write one row with a list as its '
                'answer, such as ["Paris", "City of Paris"].'
            )
        if conflicting and on_conflict == "drop":
            for item in group:
                cleaned.leave_out("contradictory", item.number, item.row)
            continue
        kept.append(first)
        for item in others:
            reason = "contradictory" if item in conflicting else "repeated"
            cleaned.leave_out(reason, item.number, item.row)
    return kept


def _share_an_answer(parts: Row, other: Row) -> bool:
    """Say whether two rows have a right answer in common."""
    answers = parts.get(ACCEPTED, [parts["answer"]])
    golds = other.get(ACCEPTED, [other["answer"]])
    return any(is_same_answer(answer, gold) for answer, gold in product(answers, golds))


def _add_other_columns(
    names: Sequence[str], items: Sequence[Item], cleaned: Cleaned, reading: Reading
) -> None:
    """Give each row the columns that are not used, renamed if their name is taken."""
    mapped = [name for part_names in cleaned.columns_of.values() for name in part_names]
    # Columns that are a whole part are in the row already.
    whole = [part_names[0] for part_names in cleaned.columns_of.values() if len(part_names) == 1]
    for name in names:
        if name in PARTS and name not in mapped:
            cleaned.notes.append(
                f"the data's own {name!r} is not used: other columns take that part"
            )
        if name in PARTS or name in whole:
            continue
        values = [item.row.get(name) for item in items]
        is_taken = name in TAKEN_NAMES
        is_taken |= name == "solution" and reading.is_after_hashes
        # Rewards would take other values for right answers.
        is_taken |= name == ACCEPTED and not all(map(_is_list_of_texts, values))
        kept_as = name
        if is_taken:
            kept_as = f"source_{name}"
            while kept_as in names:
                kept_as = f"source_{kept_as}"
            cleaned.notes.append(f"the column {name!r} is now {kept_as!r}: its name is taken")
        values = _storable(name, values, cleaned)
        for item, value in zip(items, values, strict=True):
            item.parts.setdefault(kept_as, value)


def _is_list_of_texts(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(entry, str) for entry in value)


def _storable(name: str, values: list[Any], cleaned: Cleaned) -> list[Any]:
    """Return the values of a column, as text if neither Arrow nor JSON holds them unchanged."""
    if can_store(values):
        return values
    cleaned.notes.append(f"the column {name!r} is stored as text; non-text values as JSON")
    texts: list[str | None] = []
    for value in values:
        if isinstance(value, str):
            texts.append(displayable(value))
        else:
            texts.append(None if value is None else _as_json(value))
    return texts
