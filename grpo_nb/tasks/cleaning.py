"""From rows as they are to questions with an answer: which columns play the parts, and which rows are left out and why."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_nb.settings import did_you_mean
from grpo_nb.tasks.answers import after_hashes
from grpo_nb.tasks.questions import normalized_question
from grpo_nb.tasks.reading import Rows

Contradictory = Literal["ask", "drop", "first", "majority"]
PARTS = ("question", "answer", "prompt")
_ROLES = ("system", "developer", "user", "assistant", "tool")
# What people call these columns; only ever proposed, never taken.
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
        "task",
    ),
    "answer": ("answer", "final", "label", "target", "gold", "solution", "output", "response", "category", "class"),
}


@dataclass
class Cleaned:
    """Rows with `question`, `answer`, and `prompt` where the source has its own; what was left out, with one row of each."""

    rows: list[dict[str, Any]]
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> how many rows."""
    examples: dict[str, str] = field(default_factory=dict)
    """Reason -> one of them, with the number of its row."""
    notes: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, number: int, row: Mapping[str, Any]) -> None:
        """Count a row under a reason; the first one is kept to be shown."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self.examples.setdefault(reason, f"row {number}: {' '.join(str(dict(row)).split())[:160]}")


def clean(read: Rows, columns: Mapping[str, str] | None = None, contradictory: Contradictory = "ask") -> Cleaned:
    """Find question and answer of each row, and leave out what cannot be trained on.

    Args:
        read: What `read_rows` gave.
        columns: Part -> column.
        contradictory: What to do with a question that stands there with different answers: `ask` raises, `drop` leaves out
            all of them, `first` keeps the first, `majority` the answer that occurs most often, and none if that is a draw.

    Raises:
        ValueError: No rows, a part without a column, rows that contradict each other, or no row left.
    """
    if contradictory not in ("ask", "drop", "first", "majority"):
        raise ValueError(f"contradictory = {contradictory!r} must be 'ask', 'drop', 'first' or 'majority'.")
    if not read.rows:
        raise ValueError("the data has no rows: a task needs at least two, one to train on and one held out.")
    cleaned = Cleaned([], notes=list(read.notes))
    found = list(dict.fromkeys(name for row in read.rows for name in row))
    named = _parts(read.rows, found, columns, cleaned)
    made = []
    for number, row in enumerate(read.rows):
        try:
            made.append((number, row, _question_and_answer(row, named)))
        except _LeftOut as reason:
            cleaned.leave_out(str(reason), number, row)
    if not made:
        raise ValueError(f"no row is left of {len(read.rows)}: {describe(cleaned)}.")
    others = [name for name in found if name not in named.values()]
    _say_what_is_replaced(others, named, cleaned)
    kept = [name for name in others if name not in PARTS]
    solutions = after_hashes([parts["answer"] for _, _, parts in made])
    if solutions:
        cleaned.notes.append("answers were read after ####; what stands before them is the column solution")
        for (_, _, parts), (solution, answer) in zip(made, solutions, strict=True):
            parts |= {"solution": solution, "answer": answer}
    numeric = {name for name in kept if read.is_text and all(_is_number(row[name]) for _, row, _ in made)}
    for _, row, parts in _once(made, contradictory, cleaned):
        more = {name: _number(row[name]) if name in numeric else row.get(name) for name in kept}
        cleaned.rows.append({**more, **parts})
    return cleaned


def describe(cleaned: Cleaned) -> str:
    """Return what was left out in one line, with one row of each reason."""
    return "; ".join(f"{count} {reason} ({cleaned.examples[reason]})" for reason, count in cleaned.left_out.items())


class _LeftOut(Exception):
    """Why a row cannot be used."""


def _parts(
    rows: Sequence[Mapping[str, Any]], found: Sequence[str], columns: Mapping[str, str] | None, cleaned: Cleaned
) -> dict[str, str]:
    """Part -> column, from what was asked for and what is there."""
    if columns is not None and not isinstance(columns, Mapping):
        raise TypeError(
            f'columns = {columns!r:.60} must be a dict: columns={{"question": "<column>", "answer": "<column>"}}.'
        )
    named = dict(columns or {})
    if named and set(named.values()) <= set(PARTS) and set(named) <= set(found) and not set(named) <= set(PARTS):
        named = {part: column for column, part in named.items()}
        cleaned.notes.append(f"columns was the other way round; read as columns={named}")
    unknown = [part for part in named if part not in PARTS]
    if unknown:
        raise ValueError(
            f"columns maps {unknown}, but the parts are 'question', 'answer' and 'prompt': "
            'columns={"question": "<column>", "answer": "<column>"}. The data has the columns '
            f"{list(found)}."
        )
    for part in PARTS:
        if part not in named and part in found and part not in named.values():
            named[part] = part
    if "messages" in found and "prompt" not in named and "question" not in named:
        named["prompt"] = "messages"
    twice = [column for column, count in Counter(named.values()).items() if count > 1]
    if twice:
        raise ValueError(
            f"columns gives the column {twice[0]!r} two parts: {named}. Question and answer are two columns."
        )
    needed = ("answer",) if "prompt" in named else ("question", "answer")
    for part in [*named, *needed]:
        column = named.get(part, part)
        if column not in found:
            raise ValueError(_no_column(part, column, rows, named))
    return named


def _no_column(part: str, column: str, rows: Sequence[Mapping[str, Any]], named: Mapping[str, str]) -> str:
    """What is missing, and a map to copy: by the columns' names, else the longest texts as the question."""
    found = list(rows[0])
    free = [name for name in found if name not in named.values()]
    lengths = {name: sum(len(str(row.get(name) or "")) for row in rows[:100]) for name in free}
    guesses = {}
    for missing in ("question", "answer"):
        likely = [name for usual in _USUAL[missing] for name in free if usual in name.lower().split()]
        likely += sorted(free, key=lengths.__getitem__, reverse=missing == "question")
        taken = named.get(missing)
        guesses[missing] = (
            taken if taken in found else next((n for n in likely if n not in guesses.values()), "<column>")
        )
    line = ", ".join(f'"{name}": "{guess}"' for name, guess in guesses.items())
    return (
        f"the data has no column {column!r} for the {part}; it has {found}{did_you_mean(column, found)}. "
        f"Map it: columns={{{line}}}."
    )


def _say_what_is_replaced(others: Sequence[str], named: Mapping[str, str], cleaned: Cleaned) -> None:
    for name in others:
        if name in PARTS and name in named:
            cleaned.notes.append(f"the data's own column {name!r} is not used: {named[name]!r} takes its place")


def _question_and_answer(row: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    prompt = row.get(named["prompt"]) if "prompt" in named else None
    if "question" in named:
        parts["question"] = _text(row.get(named["question"]), "question")
    elif isinstance(prompt, (list, tuple)):
        parts["question"] = _checked_chat(prompt)
    else:
        parts["question"], prompt = _text(prompt, "question"), None
    if isinstance(prompt, (list, tuple)):
        parts["prompt"] = [dict(turn) for turn in prompt]
    parts["answer"] = _text(row.get(named["answer"]), "answer").strip()
    return parts


def _text(value: Any, part: str) -> str:
    """A value as text. pandas has NaN for an empty cell, and makes whole numbers beside one to floats."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value).strip() in ("", "<NA>", "NaT"):
        raise _LeftOut(f"with an empty {part}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, (str, numbers.Number)):
        raise _LeftOut(f"whose {part} is no text")
    return str(value)


def _checked_chat(turns: Sequence[Any]) -> str:
    """The last user turn of chat messages that a model can be asked with."""
    for turn in turns:
        if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES or not isinstance(turn.get("content"), str):
            raise _LeftOut('whose prompt is no chat, [{"role": "user", "content": "..."}, ...]')
    if not turns or turns[-1]["role"] not in ("user", "tool") or not turns[-1]["content"].strip():
        raise _LeftOut("whose prompt does not end with what a user says")
    return turns[-1]["content"]


def _once(
    made: Sequence[tuple[int, Mapping[str, Any], dict[str, Any]]], contradictory: Contradictory, cleaned: Cleaned
) -> list[tuple[int, Mapping[str, Any], dict[str, Any]]]:
    """The rows with each question once, whatever the way it is written."""
    groups: dict[str, list[tuple[int, Mapping[str, Any], dict[str, Any]]]] = {}
    for item in made:
        parts = item[2]
        key = parts["question"] if "prompt" not in parts else "\n".join(turn["content"] for turn in parts["prompt"])
        groups.setdefault(normalized_question(key), []).append(item)
    at_odds = [group for group in groups.values() if len({item[2]["answer"] for item in group}) > 1]
    if at_odds and contradictory == "ask":
        first = at_odds[0]
        answers = " and ".join(repr(answer) for answer in dict.fromkeys(item[2]["answer"][:60] for item in first))
        raise ValueError(
            f"{len(at_odds)} question{'s stand' if len(at_odds) > 1 else ' stands'} there with different answers, such as "
            f"{first[0][2]['question'][:120]!r} with {answers} (rows {', '.join(str(item[0]) for item in first[:4])}). "
            'Say what to do: contradictory="drop" leaves them out, "first" keeps the first, "majority" the answer '
            "that most rows have."
        )
    kept = []
    for group in groups.values():
        chosen = _chosen(group, contradictory)
        if chosen is not None:
            kept.append(chosen)
        for item in group:
            if item is not chosen:
                same = chosen is not None and item[2]["answer"] == chosen[2]["answer"]
                cleaned.leave_out("repeated" if same else "contradictory", item[0], item[1])
    return kept


def _chosen(group: list[Any], contradictory: Contradictory) -> Any:
    counts = Counter(item[2]["answer"] for item in group).most_common()
    if len(counts) == 1 or contradictory == "first":
        return group[0]
    if contradictory == "drop" or counts[0][1] == counts[1][1]:
        return None
    return next(item for item in group if item[2]["answer"] == counts[0][0])


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(_number(value))
    except (TypeError, ValueError):
        return False


def _number(value: str) -> int | float:
    return int(value) if value.strip().lstrip("+-").isdigit() else float(value)
