"""Make a task from any source: chat prompts with gold answers, and no question in both parts."""

import dataclasses
import inspect
import numbers
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from grpo_nb.config.arguments import check_choice
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.words import did_you_mean, in_line
from grpo_nb.tasks.answers import ACCEPTED, Answers, Kind, answers_of, read_percentages
from grpo_nb.tasks.arithmetic import EXAMPLE, arithmetic_rows
from grpo_nb.tasks.chat_template import SYSTEM_ROLES
from grpo_nb.tasks.cleaning import Cleaned, Columns, OnConflict, RowFilter, clean
from grpo_nb.tasks.contamination import question_key
from grpo_nb.tasks.dataset import as_dataset, columns_as_json
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.read_rows import FILES, KNOWN, Rows, Source, is_dataset_dict, read_rows
from grpo_nb.tasks.task import Task

Example = tuple[str, str, str] | Sequence[Mapping[str, str]]
TaskRows = list[dict[str, Any]]
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
    split: str | None = None,
    config: str | None = None,
    **options: Any,
) -> Task:
    """Make a task from your data, and show the result: answers, format, prompt, rows left out.

    Args:
        source: `"arithmetic"`; the path of a .csv, .tsv, .json, .jsonl, .parquet or .xlsx file; a
            DataFrame, a `Dataset` or `DatasetDict`; a list of dicts or a dict of columns;
            `"gsm8k"` or the id of a data set on the Hub.
        settings: For `seed` and, with `tokenizer`, `max_prompt_length`.
        columns: The column of each part, `{"question": "Review text", "answer": "label"}`. Several
            columns of a question are shown one below the other. A `prompt` is chat messages, or
            text. See docs/guide/data.md for more.
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
            `gn.lab.ByHand(task, row).example(tokenizer)`.
        holdout: Share (below 1) or number of rows kept for evaluation, 0.2 if not given;
            `arithmetic` has the option `holdout_size` instead. Or rows of your own, from any
            source: they are read like the training rows and all used, and a training row with one
            of their questions is left out. Or the name of a split, `holdout="test"`, of a
            `DatasetDict` or of a data set on the Hub.
        on_conflict: What to do with a question that has several answers: `raise` an error, `drop`
            it, or keep the `first`.
        seed: Seed of the split and of generated data; that of `settings`, or 0, if not given.
        tokenizer: To leave out prompts longer than `settings.max_prompt_length`, to see which tags
            its template opens, and to show the first prompt as the model sees it.
        chat_template_kwargs: Arguments of the chat template wherever a prompt is rendered, such as
            `{"enable_thinking": False}`; those in `extra` of the settings if not given.
        split: Split of a `DatasetDict` or of a data set on the Hub; there `train` if not given.
        config: Configuration of the data set on the Hub: of `source` or, if only the held-out rows
            are on the Hub, of `holdout`.
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

    # 1. Read the source, and find question and answer in each row.
    if isinstance(source, str) and source == "arithmetic":
        source_rows, holdout = _read_arithmetic(seed, holdout, options)
        options = {}
        example = example if example is not None else EXAMPLE
    else:
        source_rows = read_rows(source, split, config)
    unused_split = {} if source_rows.has_splits else {"split": split}
    _require_no_unused(source_rows.place, {**unused_split, **options})
    is_split = holdout is None or isinstance(holdout, numbers.Real)
    held_rows = None if is_split else _read_holdout(holdout, source, source_rows, config)
    _require_use_of_config(config, source_rows, held_rows)
    cleaned = clean(source_rows, columns, on_conflict, filter, kind=kind)
    rows = cleaned.rows
    if held_rows is not None:
        held = clean(held_rows, columns, on_conflict, filter, kind=kind)
        _report_holdout(cleaned, held)
        rows = [*_without_held_out(cleaned, held, source_rows.place), *held.rows]
    notes = [*cleaned.notes]

    # 2. Find the kind of the answers, which decides how they are asked for and compared.
    notes += read_percentages(rows, cleaned.columns_of["answer"][0], kind)
    answers = answers_of([row.get(ACCEPTED, row["answer"]) for row in rows], kind)

    # 3. Make the prompts.
    format = fitting_format(format, answers, system)
    if tokenizer is not None:
        format = format.for_template(tokenizer, chat_template_kwargs)
    rows = with_prompts(rows, format, example, has_own_system=system is not None)
    # A column that only some rows have is None in the others.
    names = dict.fromkeys(name for row in rows for name in row)
    rows = [{**dict.fromkeys(names), **row} for row in rows]
    notes += _notes_on_prompt(rows, answers, format)

    # 4. Split them, so that no question is in both parts.
    if is_split:
        size = _HELD_OUT if holdout is None else holdout
        train, test = _split(rows, size, seed, cleaned.sentence)
    else:
        train = rows[: -len(held.rows)]
        test = rows[-len(held.rows) :]
    _require_not_held_out(_turns_of(example, format), test)

    # 5. Check lengths, and show the result.
    json_columns = columns_as_json(rows)
    task = Task(
        source_rows.name,
        format,
        as_dataset(train, json_columns),
        as_dataset(test, json_columns),
        cleaned.left_out,
        examples=cleaned.examples,
        notes=tuple(notes),
        answers=answers,
        chat_template_kwargs=dict(chat_template_kwargs),
        tokenizer=tokenizer,
    )
    if tokenizer is not None:
        task = task.for_template(tokenizer)
    if settings is not None:
        # Raises if the settings have other arguments of the chat template.
        task.rendered_by(settings)
        if tokenizer is not None:
            task = task.fit(tokenizer, settings.max_prompt_length)
    return task


def _read_arithmetic(seed: int, holdout: Any, options: Mapping[str, Any]) -> tuple[Rows, int]:
    """Return generated rows, and how many of them are held out."""
    if holdout is not None:
        raise ValueError("for 'arithmetic', write holdout_size=96 in place of holdout=.")
    known = set(inspect.signature(arithmetic_rows).parameters) - {"seed"}
    unknown = {name: value for name, value in options.items() if name not in known}
    _require_no_unused("'arithmetic'", unknown, others=known)
    own_options = {name: value for name, value in options.items() if name in known}
    rows, holdout_size = arithmetic_rows(seed, **own_options)
    return Rows("arithmetic", rows, place="'arithmetic'"), holdout_size


def _require_no_unused(
    described_as: str, arguments: Mapping[str, Any], others: Iterable[str] = ()
) -> None:
    """Refuse arguments that a source has no use for, unless they are None.

    Args:
        described_as: The source's name in a sentence.
        arguments: The arguments, by name.
        others: Names that the source knows, in addition to those of `load_task`.

    Raises:
        TypeError: With the argument that was probably meant.
    """
    for name, value in arguments.items():
        if value is not None:
            known = {*inspect.signature(load_task).parameters, *others} - {name}
            raise TypeError(f"{name}= means nothing for {described_as}{did_you_mean(name, known)}")


def _require_use_of_config(config: str | None, source_rows: Rows, held_rows: Rows | None) -> None:
    """Refuse `config` if neither the training rows nor the held-out rows are on the Hub."""
    is_on_hub = source_rows.is_on_hub or (held_rows is not None and held_rows.is_on_hub)
    if not is_on_hub:
        _require_no_unused(source_rows.place, {"config": config})


# Held-out rows of the user's own.


def _read_holdout(holdout: Source, source: Source, source_rows: Rows, config: str | None) -> Rows:
    """Read held-out rows from a source of their own, or from a split of the training source.

    A text is a file, a data set on the Hub, or else the name of a split.
    """
    is_text = isinstance(holdout, str)
    is_source = is_text and ("/" in holdout or holdout in KNOWN or holdout.lower().endswith(FILES))
    if is_text and not is_source:
        if not source_rows.has_splits:
            raise ValueError(
                f"holdout = {holdout!r} is no file to read, and the source has no splits: give a "
                "share such as 0.2, a number of rows, a file, or rows of your own."
            )
        rows = read_rows(source, holdout, config)
    else:
        if is_dataset_dict(holdout) and "test" not in holdout:
            raise ValueError(
                f"the DatasetDict in holdout= has no split 'test', but {[*holdout]}: give one of "
                f"its splits, holdout=data[{next(iter(holdout))!r}]."
            )
        # A configuration belongs to one data set. It is the held-out one's only if the training
        # rows are not on the Hub.
        is_own_config = not source_rows.is_on_hub or (is_text and holdout == source)
        rows = read_rows(holdout, "test", config if is_own_config else None)
    return dataclasses.replace(rows, place="holdout")


def _report_holdout(cleaned: Cleaned, held: Cleaned) -> None:
    """Add the report on the held-out rows to that on the training rows."""
    for reason, count in held.left_out.items():
        cleaned.left_out[f"in holdout, {reason}"] = count
        cleaned.examples[f"in holdout, {reason}"] = held.examples[reason]
    new_notes = [note for note in held.notes if note not in cleaned.notes]
    cleaned.notes += [f"in holdout: {note}" for note in new_notes]


def _without_held_out(cleaned: Cleaned, held: Cleaned, described_as: str) -> TaskRows:
    """Return the training rows whose question is not among the held-out rows.

    Raises:
        ValueError: There is none.
    """
    held_keys = {question_key(row["question"]) for row in held.rows}
    kept = []
    for row in cleaned.rows:
        question = row["question"]
        if question_key(question) in held_keys:
            reason = "whose question is held out too"
            cleaned.left_out[reason] += 1
            cleaned.examples.setdefault(reason, f"question={in_line(question, 80)}")
        else:
            kept.append(row)
    if not kept:
        raise ValueError(
            f"every question of {described_as} is also in holdout, so nothing is left to train on: "
            "give two different sets of rows, or holdout=0.2 to split one."
        )
    return kept


# Prompts.


def fitting_format(
    format: AnswerFormat | None, answers: Answers, system: str | None = None
) -> AnswerFormat:
    """Return the format with a system prompt that fits the answers, or with the given one.

    Raises:
        ValueError: The given one is empty.
    """
    format = format if format is not None else xml()
    if system == "":
        raise ValueError(
            "system = '' is no system prompt: write its text, or leave system= out for the one of "
            "the format. For prompts without one, give chat messages of your own in the column "
            "`prompt`."
        )
    if system is not None:
        return dataclasses.replace(format, instruction=system)
    if format.answer_hint:
        return format
    return dataclasses.replace(format, answer_hint=answers.hint)


def with_prompts(
    rows: TaskRows, format: AnswerFormat, example: Example | None, has_own_system: bool = False
) -> TaskRows:
    """Return the rows with the chat messages that ask their question.

    A row's own messages stay, with the example after their system prompt. With `has_own_system`,
    the format's system prompt takes the place of theirs.

    Raises:
        ValueError: The example is empty, or the format cannot read its answer back.
    """
    system = [{"role": "system", "content": format.system_prompt()}]
    example_turns = _turns_of(example, format)
    prompted = []
    for row in rows:
        own = row.get("prompt")
        if own is None:
            instructions = system
            turns = [{"role": "user", "content": row["question"]}]
        else:
            own_system = [turn for turn in own if turn["role"] in SYSTEM_ROLES]
            instructions = system if has_own_system else own_system
            turns = [turn for turn in own if turn["role"] not in SYSTEM_ROLES]
        prompted.append({**row, "prompt": [*instructions, *example_turns, *turns]})
    return prompted


def _turns_of(example: Example | None, format: AnswerFormat) -> list[dict[str, str]]:
    """Return the chat messages of an example.

    Raises:
        ValueError: The example is neither three texts nor a list of messages, or the format cannot
            read its answer back.
    """
    if example is None:
        return []
    if all(isinstance(turn, Mapping) for turn in example):
        return [dict(turn) for turn in example]
    question, reasoning, answer = map(str, example)
    reply = format.render(reasoning, answer)
    if format.extract(reply) != answer.strip():
        raise ValueError(
            f"the example's answer cannot be read back in the format {format.name!r}: "
            f"{reply!r:.160}"
        )
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]


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


def _require_not_held_out(example_turns: Sequence[Mapping[str, str]], test: TaskRows) -> None:
    """Refuse an example whose question is held out, because the model would have seen it."""
    held_keys = {question_key(row["question"]) for row in test}
    for turn in example_turns:
        if turn["role"] == "user" and question_key(turn["content"]) in held_keys:
            raise ValueError(
                f"the example's question {turn['content']!r:.80} is held out: write another."
            )


# The split.


def _split(
    rows: TaskRows, holdout: float | int, seed: int, left_out: str
) -> tuple[TaskRows, TaskRows]:
    """Return training and held-out rows; questions with the same key are in the same part."""
    is_share = 0 < holdout < 1
    if isinstance(holdout, bool) or not (is_share or holdout == int(holdout)):
        raise ValueError(
            f"holdout = {holdout!r} is neither a share below 1 nor a number of rows. Write 0.2 for "
            "a fifth of the rows, or 50 for 50 rows."
        )
    count = max(round(holdout * len(rows)), 1) if is_share else int(holdout)
    keys = [question_key(row["question"]) for row in rows]
    places_of: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places_of.setdefault(key, []).append(place)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    held: set[int] = set()
    for place in order:
        if len(held) < count:
            held.update(places_of[keys[place]])
    if not 0 < len(held) < len(rows):
        raise ValueError(
            f"holdout = {holdout!r} would hold out {len(held)} of {len(rows)} questions, and each "
            "part needs one. Questions that differ only in punctuation, capitals or the order of "
            f"options are kept together. Rows left out: {left_out or 'none'}."
        )
    train = [row for place, row in enumerate(rows) if place not in held]
    return train, [rows[place] for place in sorted(held)]
