"""Make a task from any source: chat prompts with gold answers, and no question in both parts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.words import require_choice, require_whole_number, short_repr
from grpo_nb.tasks.answers import AnswerKind, AnswerSummary, summarize_answers
from grpo_nb.tasks.arithmetic import (
    ARITHMETIC_EXAMPLE,
    ARITHMETIC_HOLDOUT_SIZE,
    arithmetic_rows,
)
from grpo_nb.tasks.cleaning import (
    CleaningReport,
    Columns,
    OnConflict,
    store_as_text,
    to_task_rows,
)
from grpo_nb.tasks.contamination import question_key
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import (
    Example,
    format_for_answers,
    messages_of_example,
    require_chat_template,
    with_prompts,
)
from grpo_nb.tasks.read_rows import Rows, Source, SourceRows, read_rows
from grpo_nb.tasks.task import Task

# Share of the rows that is held out by default.
_HOLDOUT_SHARE = 0.2


def load_task(
    source: Source = "arithmetic",
    settings: Settings | None = None,
    *,
    columns: Columns | None = None,
    kind: AnswerKind | None = None,
    format: AnswerFormat | None = None,
    system: str | None = None,
    example: Example | None = None,
    holdout: float | Source | None = None,
    on_conflict: OnConflict = "raise",
    seed: int | None = None,
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Task:
    """Make a task from your data.

    A notebook shows the task with its answers, format, first prompt and the rows left out.

    Args:
        source: `"arithmetic"`; the path of a .csv, .tsv, .json, .jsonl, .parquet or .xlsx file; a
            DataFrame, a `Dataset` or `DatasetDict`; a list of dicts; `"gsm8k"` or the id of a data
            set on the Hub. Of a `DatasetDict` or the Hub, the split `train` is read.
        settings: Settings to take `seed` and, with `tokenizer`, `max_prompt_length` from.
        columns: The column of each role, `{"question": "Review text", "answer": "label"}`. The
            roles are `question`, `answer` and `prompt`. A prompt is chat messages, or a text that
            is the question. If the source has a column `question`, a column `prompt` of texts is
            not used as the prompt: it is kept as `source_prompt`. See docs/guide/data.md for more.
        kind: Kind of the answers: `number`, `choice`, `text`, `expression` or `json`. If not given,
            the answers decide. The kind sets what the prompt asks for and which rewards
            `gn.rewards.rewards_for` chooses. It does not change `gn.rewards.correctness`, which
            reads the gold answer `10` as a number even if the kind is `text`.
        format: The answer format; `xml()` if not given. If it has no `answer_hint`, the kind sets
            one.
        system: System prompt. If it is empty or not given, the format writes one, which
            `task.format.system_prompt()` shows.
        example: One example turn as `(question, reasoning, answer)`; or chat messages, such as an
            episode that you ran by hand,
            `gn.lab.ManualEpisode(task, row_number).example(tokenizer)`. Give one to a small model.
            Without an example, it hardly ever writes the tags, all its completions score the same,
            and it learns nothing. `arithmetic` has one of its own; `()` means none.
        holdout: Rows to keep for evaluation: a share below 1 (0.2 if not given), a number of rows,
            or your own rows from any source (of a `DatasetDict` or the Hub, the split `test`). All
            of your own rows are held out, and training rows that ask the same questions are left
            out. For `arithmetic`, a number of rows (96 if not given) or your own rows. If the
            answers are labels, each label has nearly the same share in both parts.
        on_conflict: What to do with a question that has different answers: `raise` an error, `drop`
            all of its rows, or keep the `first`.
        seed: Seed of the split and of generated data; that of `settings`, or 0, if not given.
        tokenizer: Tokenizer of the model. It is used to leave out prompts longer than
            `settings.max_prompt_length`, to see which tags its template opens, and to show the
            first prompt as the model sees it.
        chat_template_kwargs: Arguments of the chat template for every prompt, such as
            `{"enable_thinking": False}`.
        **options: For `arithmetic`: `train_size`, `low`, `high`, `operators` and `terms`, the count
            of numbers in a question. `gn.tasks.ARITHMETIC_LEVELS` has examples, easiest first.

    Raises:
        ValueError: No rows, a missing column, conflicting answers, too few distinct questions, all
            prompts too long, or arguments that the chat template does not read.
        TypeError: A source that is not listed above, a row that is not a dict, or an argument that
            means nothing for the source.
        FileNotFoundError: A path that does not exist.

    >>> rows = [{"q": "1+1?", "a": 2}, {"q": "2+2?", "a": 4}]
    >>> task = load_task(rows, columns={"question": "q", "answer": "a"}, holdout=1)
    >>> len(task.train), len(task.holdout), task.answers.kind
    (1, 1, 'number')
    """
    from datasets import Dataset

    require_types(
        "gn.load_task(source, settings, tokenizer=tokenizer)",
        optional=("settings", "tokenizer"),
        settings=settings,
        tokenizer=tokenizer,
    )
    require_choice("kind", kind, (None, *get_args(AnswerKind)))
    is_arithmetic = isinstance(source, str) and source == "arithmetic"
    if options and not is_arithmetic:
        raise TypeError(f"{', '.join(options)}= means nothing for this source.")
    if seed is None:
        seed = settings.seed if settings is not None else 0
    chat_template_kwargs = dict(chat_template_kwargs or {})

    # 1. Read the source.
    if holdout is None:
        holdout = ARITHMETIC_HOLDOUT_SIZE if is_arithmetic else _HOLDOUT_SHARE
    is_share_or_count = isinstance(holdout, numbers.Real)  # numpy's numbers too
    held_out_keys = None  # chosen in step 5, unless the user gives held-out rows
    if is_arithmetic:
        # If the user gives held-out rows, none are generated. A share is refused below.
        holdout_size = holdout if is_share_or_count else 0
        require_whole_number("holdout", holdout_size, 0)
        source_rows = SourceRows("arithmetic", arithmetic_rows(seed, holdout_size, **options))
        example = ARITHMETIC_EXAMPLE if example is None else example
    else:
        source_rows = read_rows(source)

    # 2. Find question and answer in each row, the user's held-out rows included.
    report = CleaningReport()
    rows = to_task_rows(source_rows, report, columns, on_conflict, kind)
    if not is_share_or_count:
        held_out_source = dataclasses.replace(
            read_rows(holdout, "test"),
            name_in_errors="the held-out data",
            row_name="held-out row",
        )
        held_out_rows = to_task_rows(held_out_source, report, columns, on_conflict, kind)
        held_out_keys = {question_key(row["question"]) for row in held_out_rows}
        training_rows = _without_questions(
            rows, held_out_keys, "whose question is held out too", report
        )
        # One list until step 5, because both parts must get the same kind, format and columns.
        rows = [*training_rows, *held_out_rows]
        # A column may hold 3 in one source and "3" in the other.
        store_as_text(rows, report)

    # 3. Find the kind of the answers, which decides what the prompt asks for.
    answers = summarize_answers([row["answer"] for row in rows], kind)

    # 4. Make the prompts.
    format = format_for_answers(format, answers, system)
    if tokenizer is not None:
        require_chat_template(tokenizer, chat_template_kwargs)
        format = format.for_template(tokenizer, chat_template_kwargs)
    example_messages = messages_of_example(example, format)
    rows = with_prompts(rows, format, example_messages)
    _note_problems(rows, answers, format, report)

    # 5. Hold questions out. Each prompt shows the example, so the example's question would measure
    # nothing.
    example_keys = {question_key(message["content"]) for message in example_messages}
    rows = _without_questions(rows, example_keys, "that the example shows", report)
    keys = [question_key(row["question"]) for row in rows]
    if held_out_keys is None:
        is_choice = answers.kind == "choice"
        # Answers that differ only in capitals are one label, as in `summarize_answers`.
        labels = [row["answer"].casefold() if is_choice else "" for row in rows]
        held_out_keys = _choose_held_out(keys, labels, holdout, seed)
    train = [row for row, key in zip(rows, keys, strict=True) if key not in held_out_keys]
    held_out = [row for row, key in zip(rows, keys, strict=True) if key in held_out_keys]
    if not train or not held_out:
        raise ValueError(
            f"holdout = {short_repr(holdout)} leaves {len(train)} training and {len(held_out)} "
            "held-out questions, and each part needs one. Questions that differ only in "
            "punctuation or capitals are kept together. Rows left out: "
            f"{report.reasons_in_words or 'none'}. Rows are counted from 0, without a header line."
        )

    # 6. Make the task, and leave out prompts that are too long.
    rows = [*train, *held_out]
    # A column that only some rows have is None in the others.
    empty = dict.fromkeys(itertools.chain(*rows))
    # Make one data set and cut it, because two would infer the types of their columns separately.
    data = Dataset.from_list([{**empty, **row} for row in rows])
    task = Task(
        source_rows.task_name,
        format,
        data.take(len(train)),
        data.skip(len(train)),
        report=report,
        answers=answers,
        chat_template_kwargs=chat_template_kwargs,
        tokenizer=tokenizer,
    )
    # Without settings no prompt is too long, but each is still rendered and checked.
    max_prompt_length = math.inf
    if settings is not None:
        task.settings_for_template(settings)  # raises if the settings have other arguments
        max_prompt_length = settings.max_prompt_length
    return task if tokenizer is None else task.without_long_prompts(tokenizer, max_prompt_length)


# The held-out part.


def _choose_held_out(
    keys: Sequence[str], labels: Sequence[str], holdout: float, seed: int
) -> set[str]:
    """Return the keys of the held-out questions.

    Rows with the same key stay together, so that no question is in both parts in two spellings.
    Each label has nearly the same share in both parts.

    Args:
        keys: Key of the question of each row.
        labels: Label of each row; all the same if the answers are not labels.
        holdout: Share or number of the rows to hold out.
        seed: Seed of the choice.
    """
    target = max(round(holdout * len(keys)), 1) if 0 < holdout < 1 else holdout
    require_whole_number("holdout", target, 0)
    rows_per_key = Counter(keys)
    order = list(rows_per_key)
    random.Random(seed).shuffle(order)
    # Interleave the labels: the i-th of the n keys of a label gets the position (i + 0.5) / n. So
    # any beginning of the sorted order has nearly the same shares of the labels as the whole. Equal
    # positions stay in shuffled order.
    label_of_key = dict(zip(keys, labels, strict=True))
    keys_per_label = Counter(label_of_key.values())
    placed_per_label = Counter()
    position_of_key = {}
    for key in order:
        label = label_of_key[key]
        position_of_key[key] = (placed_per_label[label] + 0.5) / keys_per_label[label]
        placed_per_label[label] += 1
    order.sort(key=position_of_key.get)
    held_out_keys = set()
    held_out_count = 0
    for key in order:
        if held_out_count >= target:
            break
        held_out_keys.add(key)
        held_out_count += rows_per_key[key]
    return held_out_keys


def _without_questions(rows: Rows, keys: set[str], reason: str, report: CleaningReport) -> Rows:
    """Return the rows whose question has none of these keys, and report the others."""
    if not keys:
        return rows  # computing the keys of all questions takes time
    kept = []
    for row in rows:
        if question_key(row["question"]) in keys:
            report.leave_out(reason, f"question={short_repr(row['question'], 80)}")
        else:
            kept.append(row)
    return kept


def _note_problems(
    rows: Rows, answers: AnswerSummary, format: AnswerFormat, report: CleaningReport
) -> None:
    """Note answers of another kind, and a prompt that does not name the format."""
    if answers.exceptions:
        report.note(
            f"{len(answers.exceptions)} of {len(rows)} answers are not of kind "
            f"{answers.kind}, such as {short_repr(answers.exceptions[0])}: each is compared as "
            "what it is, a number, JSON or text"
        )
    tag = format.answer_open.strip()
    if tag not in "".join(message["content"] for message in rows[0]["prompt"]):
        report.note(
            f"nothing in the prompt names {tag}: describe the format in system=, or give an example"
        )
