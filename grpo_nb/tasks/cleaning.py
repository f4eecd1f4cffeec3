"""From rows as they are to questions with an answer: which columns play the parts, and which rows are left out and why."""

import json
import numbers
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from grpo_nb.core.words import displayable, shorten
from grpo_nb.settings.arguments import check_choice
from grpo_nb.tasks.answers import is_same_answer
from grpo_nb.tasks.read_rows import Rows

Contradictory = Literal["ask", "drop", "first"]
Columns = Mapping[str, str | Sequence[str]]
Keep = Callable[[Mapping[str, Any]], object]
PARTS = ("question", "answer", "prompt")
INSTRUCTS = ("system", "developer")
_ROLES = (*INSTRUCTS, "user", "assistant", "tool")
_CHATS = ("messages", "conversations")
_SPEAKERS = {"human": "user", "gpt": "assistant", "bot": "assistant"}
_SOLVED = re.compile(r"(?s)(?P<solution>.*?)\s*####\s*(?P<answer>[^\n]+?)\s*")  # as in GSM8K
# How people call these columns; only ever proposed, never taken.
_USUAL = {
    "question": ("question", "problem", "prompt", "instruction", "query", "input", "text", "review", "sentence"),
    "answer": ("answer", "label", "target", "gold", "solution", "output", "response", "category", "class"),
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

    def leave_out(self, reason: str, number: int, row: Mapping[str, Any]) -> None:
        """Count a row under a reason; what stands in the parts of the first one is kept to be shown."""
        self.left_out[reason] += 1
        cells = ", ".join(
            f"{name}={shorten(repr(row.get(name)), 80)}" for names in self.used.values() for name in names
        )
        self.examples.setdefault(reason, f"row {number}: {cells}")

    @property
    def sentence(self) -> str:
        """What was left out, in one line."""
        return "; ".join(f"{count} {reason} ({self.examples[reason]})" for reason, count in self.left_out.items())


class _Item(NamedTuple):
    """A row that can be used."""

    number: int
    row: Mapping[str, Any]
    parts: dict[str, Any]
    """Question, answer, and prompt where it has its own."""


class _LeftOut(Exception):
    """Why a row cannot be used."""


def clean(
    read: Rows, columns: Columns | None = None, contradictory: Contradictory = "ask", keep: Keep | None = None
) -> Cleaned:
    """Find question and answer of each row, and leave out what cannot be trained on.

    Args:
        read: What `read_rows` gave.
        columns: Part -> column; of a question also several, which stand one below the other.
        contradictory: What to do with a question that stands there with different answers, as `is_same_answer` tells them
            apart: `ask` raises, `drop` leaves out all of them, `first` keeps the first.
        keep: Of a row, whether it stays.

    Raises:
        ValueError: No rows, a part without a column, rows that contradict each other, or no row left.
    """
    check_choice("contradictory", contradictory, get_args(Contradictory))
    if not read.rows:
        raise ValueError(f"{read.place} has no rows: a task needs at least two, one to train on and one held out.")
    found = list(dict.fromkeys(name for row in read.rows for name in row))
    used = _columns_of_parts(read.place, found, columns)
    cleaned, items = Cleaned(notes=[*read.notes], used=used), []
    for number, row in enumerate(read.rows):
        try:
            if keep is not None and not keep(dict(row)):
                raise _LeftOut("that keep= leaves out")
            items.append(_Item(number, row, _parts(row, used)))
        except _LeftOut as reason:
            cleaned.leave_out(str(reason), number, row)
    if not items:
        raise ValueError(f"no row of {read.place} is left of {len(read.rows)}: {cleaned.sentence}.")
    if all(solved := [_SOLVED.fullmatch(item.parts["answer"]) for item in items]):
        cleaned.notes.append("answers were read after ####; what stands before them is the column solution")
        for item, match in zip(items, solved, strict=True):
            item.parts.update(match.groupdict())
    items = _once(read.place, items, contradictory, cleaned)
    renamed = [names[0] for names in used.values() if len(names) == 1]
    if unused := sorted({*PARTS}.intersection(found).difference(*used.values())):
        cleaned.notes.append(f"the data's own {', '.join(map(repr, unused))} is not used: other columns take that part")
    for name in found:
        if name not in PARTS and name not in renamed:
            column = _column(name, [item.row.get(name) for item in items], cleaned)
            for item, value in zip(items, column, strict=True):
                item.parts.setdefault(name, value)
    cleaned.rows = [item.parts for item in items]
    return cleaned


def _columns_of_parts(place: str, found: Sequence[str], columns: Columns | None) -> dict[str, list[str]]:
    """Part -> its columns, from what was asked for and what is there.

    Raises:
        ValueError: An unknown part, or one without its column, with a map to copy.
    """
    named = {part: [names] if isinstance(names, str) else [*names] for part, names in (columns or {}).items()}
    named |= {part: [part] for part in PARTS if part not in named and part in found}
    chats = [name for name in _CHATS if name in found]
    if chats and not {"question", "prompt"} & named.keys():
        named["prompt"] = chats[:1]
    needed = {} if "prompt" in named else {"question": ["question"]}
    if named.get("prompt", [""])[0] not in _CHATS:  # of a chat, the last turn is the answer where no column is
        needed["answer"] = ["answer"]
    for part, names in {**needed, **named}.items():
        missing = [name for name in names if name not in found]
        if missing or part not in PARTS or (len(names) != 1 and part != "question"):
            told = f"{place} has no column {(missing or names)[0]!r} for the {part}; it has {found}"
            raise ValueError(f"{told}. Only a question may be of several columns. Map it: {_proposed(found)}")
    return named


def _proposed(found: Sequence[str]) -> str:
    """A map to copy: the usual names, else of two columns the first as the question."""
    proposed: dict[str, str] = {}
    for part, usual in _USUAL.items():
        called = [name for word in usual for name in found if word in name.casefold() and name not in proposed.values()]
        proposed[part] = called[0] if called else "<column>"
    if len(found) == 2 and "<column>" in proposed.values():
        rest = [name for name in found if name not in proposed.values()]
        proposed = {part: rest.pop(0) if name == "<column>" else name for part, name in proposed.items()}
    return f"columns={json.dumps(proposed, ensure_ascii=False)}"


def _parts(row: Mapping[str, Any], used: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Question, answer, and prompt where the row has its own."""
    parts: dict[str, Any] = {}
    gold = row.get(used["answer"][0]) if "answer" in used else None
    asked = row.get(used["prompt"][0]) if "prompt" in used else None
    if isinstance(asked, list):
        chat = _chat(asked)
        if "answer" not in used and chat and chat[-1]["role"] == "assistant":
            gold = chat.pop()["content"]
        if not chat or chat[-1]["role"] not in ("user", "tool") or not chat[-1]["content"].strip():
            raise _LeftOut("whose prompt does not end with what a user says")
        parts["prompt"], asked = chat, _asked_by(chat)
    if "question" in used:
        (_, asked), *more = [(name, row.get(name)) for name in used["question"]]
        if more and (options := _options(more[-1][1])):
            more[-1:] = zip(string.ascii_uppercase, options["text"], strict=False)
            gold = _letter(gold, options)
        # Columns A, B, C are options behind their letter.
        lines = [f"{name}) {value}" if len(name) == 1 else str(value) for name, value in more if _is_there(value)]
        if more:
            asked = "\n".join([str(asked)] * _is_there(asked) + lines)
    return {**parts, "question": _text(asked, "question"), "answer": _text(gold, "answer").strip()}


def _is_there(value: Any) -> bool:
    """Whether a cell holds anything: no None, NaN or white space."""
    return value is not None and not (isinstance(value, float) and value != value) and bool(str(value).strip())


def _text(value: Any, part: str) -> str:
    """A value as text; an answer that is a dict or list as JSON."""
    if not _is_there(value):
        raise _LeftOut(f"with an empty {part}")
    if isinstance(value, (dict, list)) and part == "answer":
        return _as_text(value)
    if not isinstance(value, (str, numbers.Number)):
        raise _LeftOut(f"whose {part} is no text")
    # pandas makes whole numbers beside an empty cell to floats.
    return displayable(str(int(value) if isinstance(value, float) and value.is_integer() else value))


def _options(held: Any) -> Mapping[str, Sequence[Any]]:
    """The labels and texts of options: of a list, as in MMLU, or as ARC has them; empty for what is neither."""
    if isinstance(held, list):
        return {"label": string.ascii_uppercase[: len(held)], "text": held}
    return held if isinstance(held, Mapping) and held.keys() == {"label", "text"} else {}


def _letter(gold: Any, options: Mapping[str, Sequence[Any]]) -> str:
    """The letter of the option that an answer is, by its label, its text, or its index, counted from 0."""
    texts = options["text"]
    for known, wanted in (([*map(str, options["label"])], str(gold)), (texts, gold)):
        if wanted in known:
            return string.ascii_uppercase[known.index(wanted)]
    if gold not in range(len(texts)):
        raise _LeftOut("whose answer is none of its options")
    return string.ascii_uppercase[int(gold)]


def _chat(turns: Sequence[Any]) -> list[dict[str, str]]:
    """Messages with role and content alone, those of ShareGPT's form (`from`, `value`) too."""
    chat = []
    for turn in turns:
        match turn:
            case {"role": str(speaker), "content": str(content)} | {"from": str(speaker), "value": str(content)}:
                role = _SPEAKERS.get(speaker, speaker)
                chat.append({"role": role, "content": displayable(content)})
    if len(chat) < len(turns) or any(turn["role"] not in _ROLES for turn in chat):
        raise _LeftOut('whose prompt is no chat, [{"role": "user", "content": "..."}, ...]')
    return chat


def _asked_by(chat: Sequence[Mapping[str, str]]) -> str:
    """What a chat asks: what the user says or, after other turns, all of it, for many chats end with the same "ok"."""
    said = [turn for turn in chat if turn["role"] not in INSTRUCTS]
    return said[0]["content"] if len(said) == 1 else "\n".join(f"{turn['role']}: {turn['content']}" for turn in said)


def _once(place: str, items: Sequence[_Item], contradictory: Contradictory, cleaned: Cleaned) -> list[_Item]:
    """The rows with each question once, whatever its white space."""
    groups: dict[str, list[_Item]] = {}
    for item in items:
        turns = item.parts.get("prompt") or [{"content": item.parts["question"]}]
        groups.setdefault(" ".join(" ".join(turn["content"] for turn in turns).split()), []).append(item)
    kept = []
    for first, *others in groups.values():
        gold = first.parts["answer"]
        repeated = [item for item in others if is_same_answer(item.parts["answer"], gold)]
        is_open = len(repeated) < len(others)
        if is_open and contradictory == "ask":
            rows = {item.number: item.parts["answer"] for item in (first, *others)}
            asked = f"{place}: rows {[*rows][:4]} ask {shorten(first.parts['question'], 120)!r} with different answers"
            raise ValueError(
                f'{asked}, {[*dict.fromkeys(rows.values())]}. contradictory="drop" leaves such questions out, "first" keeps '
                'the first. Where each is right: a column of lists, and gn.rewards.correctness(column="<that column>").'
            )
        if is_open and contradictory == "drop":
            others, repeated = [first, *others], []
        else:
            kept.append(first)
        for item in others:
            cleaned.leave_out("repeated" if item in repeated else "contradictory", item.number, item.row)
    return kept


def _column(name: str, values: list[Any], cleaned: Cleaned) -> list[Any]:
    """A column that plays no part, as it is; as text what Arrow refuses or would change: it gives each dict the keys of all."""
    import pyarrow

    try:
        is_kept = "struct" not in str(pyarrow.array(values).type)
    except (ValueError, TypeError, OverflowError):  # pyarrow's own errors are of these kinds
        is_kept = False
    if is_kept:
        return values
    cleaned.notes.append(f"the column {name!r} is kept as text, what is none as JSON")
    return [None if value is None else _as_text(value) for value in values]


def _as_text(value: Any) -> str:
    return displayable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
