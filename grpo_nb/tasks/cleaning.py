"""Clean rows: find their questions and answers, and leave out what cannot be trained on."""

import itertools
import json
import numbers
import pprint
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from grpo_nb.core.words import displayable, require_choice, short_repr, shorten
from grpo_nb.tasks.answers import ACCEPTED_COLUMN, AnswerKind, is_right_answer
from grpo_nb.tasks.prompts import Chat, split_system
from grpo_nb.tasks.read_rows import Row, Rows, SourceRows

OnConflict = Literal["raise", "drop", "first"]
Columns = Mapping[str, str]
_ROLES = ("question", "answer", "prompt")
# Names that TRL's GRPOTrainer passes to rewards or reads as images, and names that rewards of
# grpo_nb use. `self` is one of them, because a reward may be a method.
_RESERVED_COLUMNS = {
    *_ROLES,
    "completion",
    "completion_ids",
    "completions",
    "environments",
    "image",
    "images",
    "log_extra",
    "log_metric",
    "prompts",
    "self",
    "trainer_state",
}
# A whole text: a solution, then the answer in one line after the last ####, as in GSM8K.
_SOLUTION_AND_ANSWER = re.compile(
    r"(?s)\A(?P<solution>.*?)\s*####\s*(?P<answer>(?:(?!####)[^\n])+?)\s*\Z"
)


@dataclass
class CleaningReport:
    """Report on a source: the rows left out, with reasons and examples, and notes."""

    left_out: Counter[str] = field(default_factory=Counter)
    """Number of rows left out, by reason.

    A reason follows the count: "3 with an empty answer", "2 repeated". Advice is in brackets.
    """
    examples: dict[str, str] = field(default_factory=dict)
    """The first of these rows, by reason."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what was changed, and what to check."""

    def leave_out(self, reason: str, example: str) -> None:
        """Count a row under a reason, and keep the first one as an example."""
        self.left_out[reason] += 1
        self.examples.setdefault(reason, example)

    def note(self, sentence: str) -> None:
        """Add a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def reasons_in_words(self) -> str:
        """The reasons why rows were left out, each with its count and an example, in one line."""
        return "; ".join(
            f"{count} {reason} ({self.examples[reason]})" for reason, count in self.left_out.items()
        )


class _UnusableRow(Exception):
    """The reason why a row cannot be used, as in `CleaningReport.left_out`."""


# Reason why each row is left out, by the row's number in the source.
_Reasons = dict[int, str]


def to_task_rows(
    source: SourceRows,
    report: CleaningReport,
    columns: Columns | None = None,
    on_conflict: OnConflict = "raise",
    kind: AnswerKind | None = None,
) -> Rows:
    """Return rows with `question` and `answer`, without those that cannot be trained on.

    Args:
        source: The result of `read_rows`.
        report: The report, to which left-out rows and notes are added.
        columns: Name of the column of each role: `question`, `answer` or `prompt`.
        on_conflict: What to do with a question that has different answers: `raise` an error, `drop`
            all of its rows, or keep the `first`.
        kind: Kind of the answers, if the user set it. With `json`, a list is one answer.

    Raises:
        ValueError: No rows, a role without a column, conflicting answers, or no row left.
    """
    require_choice("on_conflict", on_conflict, get_args(OnConflict))
    name_in_errors = source.name_in_errors
    if not source.rows:
        raise ValueError(f"{name_in_errors} has no rows: each part of a task needs one.")
    if source.note:
        report.note(source.note)

    # 1. Find the columns.
    names = list(dict.fromkeys(itertools.chain(*source.rows)))
    column_of = _choose_columns(source, names, columns or {})
    has_lists_of_answers = kind != "json" and _are_lists_of_texts(
        row.get(column_of["answer"]) for row in source.rows
    )
    if has_lists_of_answers:
        report.note(
            "each text in a list of answers is right (column 'accepted_answers'), and the first is "
            'shown. If a list is one answer, write kind="json"'
        )

    # 2. Read question and answer of each row, by the number of the row in the source.
    rows: dict[int, Row] = {}
    reasons: _Reasons = {}
    for row_number, row in enumerate(source.rows):
        try:
            rows[row_number] = _question_and_answer(row, column_of, has_lists_of_answers)
        except _UnusableRow as error:
            reasons[row_number] = str(error)
    _split_solutions(rows.values(), report)

    # 3. Add the other columns. One of them may be `accepted_answers`, which step 4 needs.
    for name in names:
        if name not in column_of.values():
            values = [source.rows[row_number].get(name) for row_number in rows]
            # A table without a header has numbers as names, which a `Dataset` refuses.
            _add_column(rows.values(), str(name), values, report)

    # 4. Leave rows out.
    reasons |= _repeated_rows(rows, on_conflict, name_in_errors)
    for row_number, reason in sorted(reasons.items()):
        row = source.rows[row_number]
        cells = [f"{name}={short_repr(row.get(name), 80)}" for name in column_of.values()]
        report.leave_out(reason, f"{source.row_name} {row_number}: {', '.join(cells)}")
        rows.pop(row_number, None)  # a row that could not be read is not in `rows`
    if not rows:
        raise ValueError(
            f"no row of {name_in_errors} is left of {len(source.rows)}: {report.reasons_in_words}. "
            "Rows are counted from 0, without a header line."
        )
    task_rows = list(rows.values())
    store_as_text(task_rows, report)
    return task_rows


def _choose_columns(source: SourceRows, names: Sequence[str], columns: Columns) -> dict[str, str]:
    """Return the column of each role: question, answer and prompt.

    A role that `columns` does not name has the column of its own name. Each row needs an answer,
    and a question or a prompt. The prompt's text replaces a missing question.

    The column `prompt` is the prompt if `columns` says so. If `columns` names no question, it is
    the prompt too where it holds chats, or where there is no column `question`. Otherwise it is an
    ordinary column.

    Raises:
        ValueError: An unknown role, or a role without its column, with a map to copy.
    """
    column_of = {"question": "question", "answer": "answer"}
    has_chats = any(isinstance(row.get("prompt"), (list, tuple)) for row in source.rows)
    is_prompt_the_question = "prompt" in names and "question" not in names
    if "question" not in columns and (has_chats or is_prompt_the_question):
        column_of["prompt"] = "prompt"
    for role in columns:
        require_choice("key of columns", role, _ROLES)
    column_of |= columns
    # With a prompt, a source needs no column for the question.
    if "prompt" in column_of and "question" not in {*columns, *names}:
        del column_of["question"]
    missing_roles = [role for role, name in column_of.items() if name not in names]
    if missing_roles:
        # A guess: the unused columns are those of the missing roles, in their order. If their
        # numbers differ, the advice has placeholders.
        proposed = [name for name in names if name not in column_of.values()]
        if len(proposed) != len(missing_roles):
            proposed = ["<column>"] * len(missing_roles)
        advice = column_of | dict(zip(missing_roles, proposed, strict=True))
        to_copy = json.dumps(advice, ensure_ascii=False)
        role = missing_roles[0]
        raise ValueError(
            f"{source.name_in_errors} has no column {column_of[role]!r} for the {role}; it has "
            f"{short_repr(names, 1000)}. Map it: columns={to_copy}"
        )
    return column_of


# How rows are read.


def _are_lists_of_texts(cells: Iterable[Any]) -> bool:
    """Return True if the lists in a column hold texts and nothing else.

    Some lists may be empty, but not all. None and NaN in a list are ignored.
    """
    lists = [cell for cell in cells if isinstance(cell, (list, tuple))]
    # None and NaN are skipped. A blank text counts, because it shows that the lists hold texts.
    items = [item for item in itertools.chain(*lists) if isinstance(item, str) or _is_filled(item)]
    return bool(items) and all(isinstance(item, str) for item in items)


def _question_and_answer(row: Row, column_of: Mapping[str, str], has_lists_of_answers: bool) -> Row:
    """Return question and answer of a row, and its own prompt if it has one.

    Raises:
        _UnusableRow: With the reason why the row cannot be used.
    """
    task_row: Row = {}
    cells = {role: row.get(name) for role, name in column_of.items()}
    # `question` or `prompt` is None if the source has no such column.
    question, gold, prompt = map(cells.get, _ROLES)
    if isinstance(prompt, str) and not _is_filled(question):
        question = prompt
    elif _is_filled(prompt):
        task_row["prompt"] = _read_chat(prompt)
        if not _is_filled(question):
            # All messages make the question, because many chats end with the same "ok".
            _, messages = split_system(task_row["prompt"])
            question = "\n".join(message["content"] for message in messages)
    if has_lists_of_answers:
        golds = gold if isinstance(gold, (list, tuple)) else [gold]
        texts = [_as_text(item, "answer").strip() for item in golds if _is_filled(item)]
        task_row[ACCEPTED_COLUMN] = list(dict.fromkeys(texts))
        gold = texts[0] if texts else None
    task_row["question"] = _as_text(question, "question")
    task_row["answer"] = _as_text(gold, "answer").strip()
    return task_row


def _is_filled(cell: Any) -> bool:
    """Return True if a cell holds anything other than None, NaN or white space."""
    is_nan = isinstance(cell, numbers.Real) and cell != cell  # numpy's numbers too
    return cell is not None and not is_nan and str(cell).strip() != ""


def _as_text(value: Any, role: str) -> str:
    """Return a question or answer as text; an answer of several values as JSON.

    Raises:
        _UnusableRow: The value is empty, or neither text nor a number.
    """
    if not _is_filled(value):
        raise _UnusableRow(f"with an empty {role}")
    if isinstance(value, (dict, list, tuple)) and role == "answer":
        return _as_json(value)
    if not isinstance(value, (str, numbers.Number)):
        raise _UnusableRow(f"whose {role} is neither text nor a number")
    # pandas turns whole numbers in a column with an empty cell into floats.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return displayable(str(value))


def _as_json(value: Any) -> str:
    return displayable(json.dumps(value, ensure_ascii=False, default=str))


def _read_chat(messages: Any) -> Chat:
    """Return chat messages with `role` and `content` alone.

    Raises:
        _UnusableRow: The messages are not a chat, have tool calls, or end with another role.
    """
    chat = []
    try:
        for message in messages:
            if message.get("tool_calls"):
                raise _UnusableRow(
                    "whose prompt has tool_calls (write each call in content, as the model's "
                    "template writes it)"
                )
            chat.append({"role": message["role"], "content": displayable(message["content"])})
        last = chat[-1]
    except (TypeError, LookupError, AttributeError):
        raise _UnusableRow(
            'whose prompt is not a chat, [{"role": "user", "content": "..."}, ...] (if it is the '
            'question as text, write columns={"question": <column of the prompt>})'
        ) from None
    if last["role"] not in ("user", "tool") or not last["content"].strip():
        raise _UnusableRow("whose prompt does not end with what a user says")
    return chat


def _split_solutions(rows: Collection[Row], report: CleaningReport) -> None:
    """Split answers at #### if most rows have it, as in GSM8K."""
    matches = [_SOLUTION_AND_ANSWER.match(row["answer"]) for row in rows]
    if matches.count(None) >= len(rows) / 2:
        return
    for row, match in zip(rows, matches, strict=True):
        row.update(match.groupdict() if match else {"solution": ""})
    report.note("answers were read after ####; the text before is in the column solution")


# Repeated questions.


def _repeated_rows(
    rows: Mapping[int, Row], on_conflict: OnConflict, name_in_errors: str
) -> _Reasons:
    """Return the reasons to leave out rows that repeat an earlier question.

    Questions that differ only in white space are the same. The earlier row gets the accepted
    answers of the rows that repeat it.

    Raises:
        ValueError: A question has different answers, and `on_conflict` is `raise`.
    """
    reasons: _Reasons = {}
    first_row_with = {}
    for row_number, row in rows.items():
        words = row["question"].split()
        if "prompt" in row:
            words = [(message["role"], *message["content"].split()) for message in row["prompt"]]
        first = first_row_with.setdefault(str(words), row_number)
        if first == row_number:
            continue
        if _have_common_answer(row, rows[first]):
            reasons[row_number] = "repeated"
            # Answers that only the later row accepts are right too.
            accepted = rows[first].get(ACCEPTED_COLUMN) or []
            more = [answer for answer in row.get(ACCEPTED_COLUMN) or () if answer not in accepted]
            if more:
                rows[first][ACCEPTED_COLUMN] = [*accepted, *more]
            continue
        if on_conflict == "raise":
            answers = [rows[first]["answer"], row["answer"]]
            raise ValueError(
                f"{name_in_errors}: rows {first} and {row_number} (counted from 0, without a "
                f"header line) ask {shorten(row['question'], 120)!r} "
                f'with different answers, {answers}. on_conflict="drop" leaves such '
                'questions out, "first" keeps the first. Where each is right, write one row with a '
                'list as its answer, such as ["Paris", "City of Paris"].'
            )
        reasons[row_number] = "contradictory"
        # Nobody knows which of the answers is right, so the first row is left out too.
        if on_conflict == "drop":
            reasons[first] = "contradictory"
    return reasons


def _have_common_answer(one: Row, other: Row) -> bool:
    """Return True if an answer of one row is right for the other row.

    Both orders are tried: `B) Paris` is accepted where the gold answer is `B`, but not `B` where it
    is `B) Paris`.
    """
    # The data may have a column of accepted answers, whose items need not be texts.
    answers = [map(str, [row["answer"], *(row.get(ACCEPTED_COLUMN) or [])]) for row in (one, other)]
    return any(
        is_right_answer(answer, other_answer) or is_right_answer(other_answer, answer)
        for answer, other_answer in itertools.product(*answers)
    )


# The other columns.


def _add_column(
    rows: Collection[Row], name: str, values: list[Any], report: CleaningReport
) -> None:
    """Add a column to the rows, under another name if its own is taken."""
    new_name = name
    reason = "its name is taken"
    are_lists = all(isinstance(value, (list, tuple, type(None))) for value in values)
    if name == ACCEPTED_COLUMN and not are_lists:
        new_name = f"source_{name}"
        reason = "it does not hold lists of answers"
    while new_name in _RESERVED_COLUMNS or any(new_name in row for row in rows):
        new_name = f"source_{new_name}"
    if new_name != name:
        report.note(f"the column {name!r} is now {new_name!r}: {reason}")
    for row, value in zip(rows, values, strict=True):
        row[new_name] = value


def store_as_text(rows: Rows, report: CleaningReport) -> None:
    """Store as text each column that a `Dataset` of these rows would change or refuse.

    Lists of accepted answers stay lists; their items become texts.
    """
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        if name not in _ROLES and _is_changed_by_arrow(values):
            report.note(f"the column {name!r} is stored as text; non-text values as JSON")
            for row, value in zip(rows, values, strict=True):
                if name == ACCEPTED_COLUMN and value is not None:
                    # The list stays a list, because rewards would take its JSON for one answer.
                    row[name] = [_cell_as_text(item) for item in value if _is_filled(item)]
                else:
                    row[name] = _cell_as_text(value)


def _is_changed_by_arrow(values: list[Any]) -> bool:
    """Return True if a `Dataset` would change or refuse these values.

    Arrow gives each dict in a column the keys of all the dicts, and changes a 3 in it to 3.0 if
    another dict has 2.5. In a plain column the second change is accepted, as in pandas.
    """
    import pyarrow

    try:
        array = pyarrow.array(values)
    except (ValueError, TypeError, OverflowError):  # pyarrow's own errors are of these kinds
        return True
    has_dicts = "struct" in str(array.type)
    # `pformat` sorts the keys of dicts, and writes 3 and 3.0 differently.
    return has_dicts and pprint.pformat(array.to_pylist()) != pprint.pformat(values)


def _cell_as_text(value: Any) -> str | None:
    if value is None:
        return None
    return displayable(value) if isinstance(value, str) else _as_json(value)
