"""Make a task from any source: chat prompts with gold answers, and no question in both parts."""

import dataclasses
import inspect
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from grpo_nb.config.arguments import check_choice
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.words import did_you_mean, in_line
from grpo_nb.tasks.answers import ACCEPTED, Answers, Kind, answers_of
from grpo_nb.tasks.cleaning import Changes, Columns, OnConflict, RowFilter, clean
from grpo_nb.tasks.contamination import question_key
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import (
    Example,
    TaskRows,
    example_turns,
    fitting_format,
    require_tokenizer,
    with_prompts,
)
from grpo_nb.tasks.read_rows import (
    ARITHMETIC_EXAMPLE,
    HOLDOUT_SIZE,
    Rows,
    Source,
    arithmetic_rows,
    read_rows,
)
from grpo_nb.tasks.task import Task, as_datasets

# Share of the rows that is held out if the user does not choose another.
_HELD_OUT = 0.2


def load_task(
    source: Source = "arithmetic",
    settings: Settings | None = None,
    *,
    columns: Columns | None = None,
    kind: Kind | None = None,
    filter: RowFilter | None = None,
    format: AnswerFormat | None = None,
    system: str | None = None,
    example: Example | None = None,
    holdout: float | int | Source | None = None,
    on_conflict: OnConflict = "raise",
    seed: int | None = None,
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Task:
    """Make a task from your data, and show the result: answers, format, prompt, rows left out.

    Args:
        source: `"arithmetic"`; the path of a .csv, .tsv, .json, .jsonl, .parquet or .xlsx file; a
            DataFrame, a `Dataset` or `DatasetDict`; a list of dicts or a dict of columns;
            `"gsm8k"` or the id of a data set on the Hub. Of several splits, `train` is read.
        settings: For `seed` and, with `tokenizer`, `max_prompt_length`.
        columns: The column of each part, `{"question": "Review text", "answer": "label"}`. A
            `prompt` is chat messages, or text. See docs/guide/data.md for more.
        kind: Kind of the answers: `number`, `choice`, `text`, `expression` or `json`. The answers
            decide if it is not given. The kind sets what the prompt asks for and how an answer is
            compared.
        filter: Function of a row (a dict by column) that says whether the row stays:
            `lambda row: row["Nr"] != "Total"`.
        format: The answer format; `xml()` if not given. If it has no hint for the answer, the
            kind sets it.
        system: System prompt to use in place of the format's own,
            `gn.tasks.xml().system_prompt()`.
        example: One example turn as `(question, reasoning, answer)`. A small model needs it:
            without one it never writes a tag, all its completions score the same, and nothing is
            learned. Or chat messages, such as an episode that was played by hand,
            `gn.lab.ByHand(task, row_number).example(tokenizer)`.
        holdout: Share (below 1) or number of rows kept for evaluation, 0.2 if not given, and for
            `arithmetic` its `holdout_size`. Or rows of your own, from any source: they are read
            like the training rows and all used, and a training row with one of their questions is
            left out. Of several splits, `test` is read.
        on_conflict: What to do with a question that has several answers: `raise` an error, `drop`
            it, or keep the `first`.
        seed: Seed of the split and of generated data; that of `settings`, or 0, if not given.
        tokenizer: To leave out prompts longer than `settings.max_prompt_length`, to see which tags
            its template opens, and to show the first prompt as the model sees it.
        chat_template_kwargs: Arguments of the chat template wherever a prompt is rendered, such as
            `{"enable_thinking": False}`; those in `extra` of the settings if not given.
        **options: For `arithmetic`: `train_size`, `holdout_size`, `low`, `high`, `operators` and
            `terms`, the count of numbers. `gn.tasks.ARITHMETIC_LEVELS` has some, easiest first.

    Raises:
        ValueError: No rows, a missing column, conflicting answers, too few distinct questions, all
            prompts too long, or arguments that the chat template does not read.
        TypeError: A source that holds no rows, or an argument that means nothing for it.
        FileNotFoundError: A path that does not exist.

    >>> rows = [{"q": "1+1?", "a": 2}, {"q": "2+2?", "a": 4}]
    >>> task = load_task(rows, columns={"question": "q", "answer": "a"}, holdout=1)
    >>> len(task.train), len(task.holdout), task.answers.kind
    (1, 1, 'number')
    """
    require(
        "gn.load_task(source, settings)", optional=("settings",), source=source, settings=settings
    )
    check_choice("kind", kind, (None, *get_args(Kind)))
    if seed is None:
        seed = settings.seed if settings is not None else 0
    if chat_template_kwargs is None:
        extra = settings.extra if settings is not None else {}
        chat_template_kwargs = extra.get("chat_template_kwargs") or {}

    # 1. Read the source.
    if isinstance(source, str) and source == "arithmetic":
        _require_known(options, inspect.signature(arithmetic_rows).parameters, "'arithmetic'")
        source_rows = Rows(
            "arithmetic", arithmetic_rows(seed, **options), described_as="'arithmetic'"
        )
        holdout = options.get("holdout_size", HOLDOUT_SIZE) if holdout is None else holdout
        example = ARITHMETIC_EXAMPLE if example is None else example
    else:
        source_rows = read_rows(source)
        _require_known(options, (), source_rows.described_as)

    # 2. Find question and answer in each row.
    changes = Changes()
    rows = clean(source_rows, changes, columns, on_conflict, filter, kind=kind)
    own_holdout: TaskRows = []
    is_split = holdout is None or isinstance(holdout, (int, float))
    if not is_split:
        holdout_rows = read_rows(holdout, "test")
        holdout_rows = dataclasses.replace(
            holdout_rows, described_as="holdout", prefix="in holdout, "
        )
        own_holdout = clean(holdout_rows, changes, columns, on_conflict, filter, kind=kind)
        rows = _without_held_out(rows, own_holdout, source_rows.described_as, changes)
    train_size = len(rows)
    rows = [*rows, *own_holdout]

    # 3. Find the kind of the answers, which decides how they are asked for and compared.
    answers = answers_of([row.get(ACCEPTED, row["answer"]) for row in rows], kind)

    # 4. Make the prompts.
    format = fitting_format(format, answers, system)
    if tokenizer is not None:
        require_tokenizer(tokenizer, chat_template_kwargs)
        format = format.for_template(tokenizer, chat_template_kwargs)
    rows = with_prompts(rows, format, example)
    notes = [*changes.notes, *_notes_on_prompt(rows, answers, format)]

    # 5. Split them, so that no question is in both parts.
    shown = _shown_questions(example_turns(example, format), own_holdout)
    if is_split:
        size = _HELD_OUT if holdout is None else holdout
        train, held_out = _split(rows, size, seed, never_held=shown, changes=changes)
    else:
        train = rows[:train_size]
        held_out = rows[train_size:]

    # 6. Check the lengths, and show the result.
    train_part, holdout_part = as_datasets(train, held_out)
    task = Task(
        source_rows.name,
        format,
        train_part,
        holdout_part,
        changes.dropped,
        examples=changes.examples,
        notes=tuple(dict.fromkeys(notes)),
        answers=answers,
        chat_template_kwargs=dict(chat_template_kwargs),
        tokenizer=tokenizer,
    )
    if settings is not None:
        # Raises if the settings have other arguments of the chat template.
        task.rendered_by(settings)
    if tokenizer is None:
        return task
    if settings is None:
        return task.without_system_role(tokenizer)
    return task.fit(tokenizer, settings.max_prompt_length)


def _require_known(options: Mapping[str, Any], known: Iterable[str], described_as: str) -> None:
    """Refuse options that the source does not have.

    Raises:
        TypeError: With the argument that was probably meant.
    """
    arguments = {*inspect.signature(load_task).parameters, *known}
    for name in options:
        if name not in known:
            raise TypeError(
                f"{name}= means nothing for {described_as}{did_you_mean(name, arguments)}"
            )


# The held-out part.


def _split(
    rows: TaskRows, holdout: float | int, seed: int, *, never_held: set[str], changes: Changes
) -> tuple[TaskRows, TaskRows]:
    """Return training and held-out rows; questions with the same key are in the same part."""
    is_share = 0 < holdout < 1
    if not is_share and holdout != int(holdout):
        raise ValueError(
            f"holdout = {holdout!r} is neither a share below 1 nor a number of rows. Write 0.2 for "
            "a fifth of the rows, or 50 for 50 rows."
        )
    count = max(round(holdout * len(rows)), 1) if is_share else holdout
    keys = [question_key(row["question"]) for row in rows]
    rows_per_key = Counter(keys)
    order = list(rows_per_key)
    random.Random(seed).shuffle(order)
    held_keys: set[str] = set()
    held_count = 0
    for key in order:
        if held_count < count and key not in never_held:
            held_keys.add(key)
            held_count += rows_per_key[key]
    if not 0 < held_count < len(rows):
        raise ValueError(
            f"holdout = {holdout!r} would hold out {held_count} of {len(rows)} questions, and each "
            "part needs one. Questions that differ only in punctuation or capitals are kept "
            f"together. Rows left out: {changes.sentence or 'none'}."
        )
    train = [row for row, key in zip(rows, keys, strict=True) if key not in held_keys]
    held_out = [row for row, key in zip(rows, keys, strict=True) if key in held_keys]
    return train, held_out


def _without_held_out(
    rows: TaskRows, held_out: TaskRows, described_as: str, changes: Changes
) -> TaskRows:
    """Return the training rows whose question is not among the held-out rows.

    Raises:
        ValueError: There is none.
    """
    held_keys = {question_key(row["question"]) for row in held_out}
    kept = []
    for row in rows:
        question = row["question"]
        if question_key(question) in held_keys:
            example = f"question={in_line(question, 80)}"
            changes.leave_out("whose question is held out too", example)
        else:
            kept.append(row)
    if not kept:
        raise ValueError(
            f"every question of {described_as} is also in holdout, so nothing is left to train on: "
            "give two different sets of rows, or holdout=0.2 to split one."
        )
    return kept


def _shown_questions(turns: Iterable[Mapping[str, str]], own_holdout: TaskRows) -> set[str]:
    """Return the keys of the example's messages, whose questions would measure nothing.

    Raises:
        ValueError: One of the user's own held-out rows asks the example's question.
    """
    shown = {question_key(turn["content"]) for turn in turns}
    for row in own_holdout:
        if question_key(row["question"]) in shown:
            raise ValueError(
                f"the example's question {row['question']!r:.80} is held out: write another."
            )
    return shown


def _notes_on_prompt(rows: TaskRows, answers: Answers, format: AnswerFormat) -> list[str]:
    """Return notes on answers of another kind, and on a prompt that does not name the format."""
    notes = []
    if answers.odd:
        notes.append(
            f"{len(answers.odd)} of {len(rows)} answers are no {answers.kind}, such as "
            f"{answers.odd[0]!r:.60}: an answer must equal them as text; filter= can leave such "
            "rows out"
        )
    mark = format.answer_open.strip()
    # The last message is the question, unless it is the only one: a chat of the user's own.
    turns = rows[0]["prompt"]
    instructions = turns[:-1] or turns
    if mark not in "".join(turn["content"] for turn in instructions):
        notes.append(
            f"nothing in the prompt names {mark}: describe the format in system=, or give an "
            "example"
        )
    return notes
