"""A task from any source: chat prompts with a gold answer, split so that no question is in both parts."""

import dataclasses
import inspect
import itertools
import numbers
import operator
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from grpo_nb.config.arguments import check_choice
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.words import did_you_mean, in_line, require_number
from grpo_nb.tasks.answers import Answers, Kind, alike_labels, answers_of, as_percentages
from grpo_nb.tasks.chat_template import prompt_lengths
from grpo_nb.tasks.cleaning import (
    ACCEPTED,
    INSTRUCTS,
    Cleaned,
    Columns,
    Contradictory,
    RowFilter,
    as_dataset,
    clean,
    nested_columns,
)
from grpo_nb.tasks.contamination import TrainedQuestions, find_contamination, normalized_question
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.lengths import too_long_to_end
from grpo_nb.tasks.read_rows import FILES, KNOWN, Rows, Source, read_rows
from grpo_nb.tasks.system_role import NO_SYSTEM_ROLE, is_system_role_lost, merge_system_turn
from grpo_nb.tasks.task import Task

Example = tuple[str, str, str] | Sequence[Mapping[str, str]]
TaskRows = list[dict[str, Any]]
_HELD_OUT, _LISTED = 0.2, 101
_OPTION = re.compile(r"^\w\) ")
_RESULT = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ARITHMETIC_LEVELS: tuple[dict[str, Any], ...] = (
    {},
    {"low": 10, "high": 99, "operators": "*"},
    {"terms": 4, "operators": "+-*"},
    {"low": 100, "high": 999, "operators": "*"},
    {"low": 1000, "high": 9999, "operators": "*"},
    {"low": 10, "high": 99, "terms": 6, "operators": "+-*"},
)
"""Options of `arithmetic`, easiest first, from sums up to 20 to what models of several billion parameters get wrong."""


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
    holdout: float | int | Source = _HELD_OUT,
    contradictory: Contradictory = "ask",
    seed: int | None = None,
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    split: str | None = None,
    config: str | None = None,
    encoding: str | None = None,
    **options: Any,
) -> Task:
    """Make a task from what you have, and show what was made of it: the answers, the format, the prompt, what was left out.

    Args:
        source: `"arithmetic"`; the path of a .csv, .tsv, .json, .jsonl or .parquet file; a DataFrame, a `Dataset` or
            `DatasetDict`; a list of dicts or a dict of columns; `"gsm8k"` or the id of a data set on the Hub.
        settings: For `seed` and, with `tokenizer`, `max_prompt_length`.
        columns: Which column plays which part, as `{"question": "Review text", "answer": "label"}`. A question may be made of
            several, `["title", "body"]`, one below the other; columns A, B, C or a list of options at their end are shown
            with letters, and an index in the answer becomes one. `ticket.body` is a field inside of dicts, and an answer of
            dicts is taken as JSON. An answer that is a list of texts holds several, any of which is right. A `prompt` is
            text, or chat messages, which stay as they are but for `system` and `example`.
        kind: Of the answers: `number`, `choice`, `text`, `expression` or `json`; told from the answers if not given. It decides
            what the prompt asks for and how an answer is compared.
        filter: A function of a row, a dict by column, that says whether it stays: `lambda row: row["Nr"] != "Total"`.
        format: The answer format; `xml()` if not given. Where it says nothing of the answer, the kind does.
        system: The system prompt, instead of the one that the format makes, `gn.tasks.xml().system_prompt()`.
        example: One example turn as `(question, reasoning, answer)`. A small model needs it: without, it never
            produces a tag, so that no completion differs from another and nothing is learnt. Or chat messages, such as an
            episode that was played by hand, `gn.lab.ByHand(task, row).example(tokenizer)`.
        holdout: Share (below 1) or number of rows kept for evaluation; of `arithmetic` it is the option `holdout_size`. Or
            rows of your own, from any source that `source` may be: read like the training rows, and used as they are. A
            training question that is among them is left out of training. The name of a split, `holdout="test"`, of a
            `DatasetDict` or of a data set on the Hub.
        contradictory: What to do with a question that has several answers: `ask` raises, `drop` leaves it out, `first`
            keeps the first.
        seed: Of the split and of generated data; that of `settings`, or 0.
        tokenizer: To drop prompts longer than `settings.max_prompt_length`, to see which tags its template opens, and to show
            the first prompt as the model sees it.
        chat_template_kwargs: What the chat template is given beside the messages, in training and wherever else a prompt is
            rendered, such as `{"enable_thinking": False}`; that in `extra` of the settings if not given.
        split, config: Of a `DatasetDict` or a data set on the Hub; the split is `train` there, if not given.
        encoding: Of a text file; UTF-8, or else cp1252, if not given.
        **options: For `arithmetic`: `train_size`, `holdout_size`, `low`, `high`, `operators`, `terms`: how many numbers, in
            brackets where more than two. `gn.tasks.ARITHMETIC_LEVELS` has some, easiest first.

    Raises:
        ValueError: No rows, a missing column, contradictory rows, too few distinct questions, all prompts too long, or a chat
            template that would be told two things, or what it does not read.
        TypeError: A source that holds no rows, or an argument that means nothing for it.
        FileNotFoundError: A path that does not exist.

    >>> task = load_task([{"q": "1+1?", "a": 2}, {"q": "2+2?", "a": 4}], columns={"question": "q", "answer": "a"}, holdout=1)
    >>> len(task.train), len(task.holdout), task.answers.kind
    (1, 1, 'number')
    """
    require(
        "gn.load_task(source, settings)", optional=("settings",), source=source, settings=settings
    )
    seed = (settings.seed if settings is not None else 0) if seed is None else seed
    asked = settings.extra.get("chat_template_kwargs") if settings is not None else None
    chat = dict(chat_template_kwargs if chat_template_kwargs is not None else asked or {})
    check_choice("kind", kind, (None, *get_args(Kind)))
    has_own_holdout = not isinstance(holdout, numbers.Real) or isinstance(holdout, bool)
    if isinstance(source, str) and source == "arithmetic":
        if has_own_holdout or holdout != _HELD_OUT:
            size = "96" if has_own_holdout else holdout
            raise ValueError(
                f"of 'arithmetic', holdout_size says how many are held out: holdout_size={size}"
            )
        _require_arithmetic(options)
        rows, holdout = _arithmetic(seed, **options)
        read, options = Rows("arithmetic", rows, place="arithmetic"), {}
        example = ("What is 3 + 4?", "3 + 4 = 7", "7") if example is None else example
    else:
        read = read_rows(source, split, config, encoding)
    given = {"split": split, "config": config, "encoding": encoding}
    unread = [
        *options,
        *(name for name, value in given.items() if value is not None and name not in read.takes),
    ]
    if unread:
        meant = (
            did_you_mean(unread[0], inspect.signature(load_task).parameters)
            if unread[0] in options
            else ""
        )
        raise TypeError(
            f"{unread[0]}= means nothing for {read.place}{meant if meant.startswith('; did') else ''}"
        )
    cleaned = clean(read, columns, contradictory, filter, kind=kind)
    own = None
    if has_own_holdout:
        own_read = _read_holdout(holdout, source, config, encoding)
        own = clean(own_read, columns, contradictory, filter, kind=kind, like=cleaned)
        _leave_out_held(cleaned, own, read.place)
        cleaned.left_out.update(
            {f"in holdout, {reason}": count for reason, count in own.left_out.items()}
        )
        cleaned.examples.update(
            {f"in holdout, {reason}": shown for reason, shown in own.examples.items()}
        )
        cleaned.notes += [f"in holdout: {note}" for note in own.notes if note not in cleaned.notes]
    notes = cleaned.notes
    every = [*cleaned.rows, *(own.rows if own is not None else ())]
    if kind in (None, "number"):
        notes += read_percentages(every, cleaned.used.get("answer", [""])[0], kind)
    golds = [row["answer"] for row in every]
    answers = answers_of([row.get(ACCEPTED, row["answer"]) for row in every], kind)
    notes += _notes_on_kind(answers, len(golds))
    format = fitting_format(format, answers, system)
    format = format.for_template(tokenizer, chat) if tokenizer is not None else format
    rows = with_prompts(every, format, example, system is not None)
    mark, told = format.answer_open.strip(), [turn["content"] for turn in rows[0]["prompt"][:-1]]
    if mark not in "".join(told):
        notes.append(
            f"nothing in the prompt names {mark}: say it in system=, or in an example turn"
        )
    has_system = any(turn["role"] in INSTRUCTS for row in rows for turn in row["prompt"])
    if tokenizer is not None and has_system and is_system_role_lost(tokenizer, chat):
        rows = [{**row, "prompt": merge_system_turn(row["prompt"])} for row in rows]
        notes.append(NO_SYSTEM_ROLE)
    if tokenizer is not None:
        prompt_lengths([row["prompt"] for row in rows[:1]], tokenizer, chat)  # or it is refused
    if own is None:
        parts = _split(rows, holdout, seed, cleaned.sentence)
    else:
        parts = rows[: len(cleaned.rows)], rows[len(cleaned.rows) :]
        notes += _align_columns(*parts)
    nested = nested_columns([*parts[0], *parts[1]])
    train, held = (as_dataset(part, nested) for part in parts)
    shown = _turns_of(example, format)
    asked = {normalized_question(turn["content"]) for turn in shown if turn["role"] == "user"}
    if found := asked.intersection(map(normalized_question, held["question"])):
        raise ValueError(f"the example's question {min(found)!r:.80} is held out: write another.")
    if tokenizer is not None and settings is not None:
        rendered = [format.render("", str(gold)) for gold in golds]
        rendered += [turn["content"] for turn in shown if turn["role"] == "assistant"]
        notes += too_long_to_end(rendered, tokenizer, settings.max_completion_length)
    task = Task(
        read.name, format, train, held, cleaned.left_out, examples=cleaned.examples, notes=tuple(notes), answers=answers,
        chat_template_kwargs=chat, tokenizer=tokenizer,
    )  # fmt: skip
    if settings is not None:
        task.rendered_by(settings)
        task = task.fit(tokenizer, settings.max_prompt_length) if tokenizer is not None else task
    return task


def _read_holdout(
    holdout: Source, source: Source, config: str | None, encoding: str | None
) -> Rows:
    """Read the user's own held-out rows: from a source, or from another split of the training source."""
    is_text = isinstance(holdout, str)
    if isinstance(holdout, bool) or holdout is None:
        raise TypeError(
            f"holdout = {holdout!r} must be a share such as 0.2, a number of rows, or rows of your own."
        )
    is_name = is_text and "/" not in holdout and not holdout.lower().endswith(FILES)
    if (
        is_name
        and isinstance(source, Mapping)
        and all(hasattr(part, "features") for part in source.values())
    ):
        if holdout not in source:
            raise ValueError(
                f"holdout = {holdout!r} is no split of the data{did_you_mean(holdout, source)}"
            )
        return _in_holdout(read_rows(source, holdout))
    if is_name and isinstance(source, str) and not source.lower().endswith(FILES):
        return _in_holdout(
            read_rows(source, holdout, config)
        )  # a split of the same data set on the Hub
    if is_name and holdout not in KNOWN and not Path(holdout).exists():
        raise ValueError(
            f"holdout = {holdout!r} is no file, and the source has no splits: give a share such as 0.2, a number of rows, a "
            "file, or rows of your own."
        )
    if isinstance(holdout, Mapping) and "test" in holdout and hasattr(holdout["test"], "features"):
        return _in_holdout(read_rows(holdout, "test"))
    split = "test" if is_text and not holdout.lower().endswith(FILES) else None
    return _in_holdout(read_rows(holdout, split, config if split else None, encoding))


def _in_holdout(read: Rows) -> Rows:
    return dataclasses.replace(read, place="holdout" if read.place == "the data" else read.place)


def _leave_out_held(cleaned: Cleaned, own: Cleaned, place: str) -> None:
    """Leave out the training rows whose question is among the user's own held-out rows.

    Raises:
        ValueError: All of them are.
    """
    held = {_question_key(row["question"]) for row in own.rows}
    held |= {normalized_question(row["question"]) for row in own.rows}
    kept = []
    for row in cleaned.rows:
        question = row["question"]
        if {_question_key(question), normalized_question(question)} & held:
            reason = "whose question is held out too"
            cleaned.left_out[reason] += 1
            cleaned.examples.setdefault(reason, f"question={in_line(question, 80)}")
        else:
            kept.append(row)
    if not kept:
        raise ValueError(
            f"every question of {place} is also in holdout, so nothing is left to train on: give two different sets of rows, "
            "or holdout=0.2 to split one."
        )
    cleaned.rows = kept
    trained = TrainedQuestions.of([row["question"] for row in kept], "the training part")
    find_contamination([row["question"] for row in own.rows], trained).require_none()


def _align_columns(train: TaskRows, held: TaskRows) -> list[str]:
    """Give both parts the same columns, and return a note on those that only one of them has."""
    notes = []
    names = [list(dict.fromkeys(name for row in part for name in row)) for part in (train, held)]
    for part, own, other, said in (
        (held, *reversed(names), "held-out"),
        (train, *names, "training"),
    ):
        missing = [name for name in other if name not in own]
        if missing:
            notes.append(
                f"the {said} rows have no {', '.join(map(repr, missing))}: None in each of them"
            )
        for row in part:
            row.update(dict.fromkeys(missing))
    return notes


def read_percentages(rows: TaskRows, column: str, kind: Kind | None = None) -> list[str]:
    """Write the percent sign behind answers of a column of percentages, and return a note where that changed one."""
    golds = [row["answer"] for row in rows]
    if kind is None and answers_of(golds).kind != "number":
        return []
    signed, note = as_percentages(golds, column)
    for row, gold in zip(rows, signed, strict=True):
        if gold != row["answer"] and ACCEPTED in row:
            row[ACCEPTED] = [gold if one == row["answer"] else one for one in row[ACCEPTED]]
        row["answer"] = gold
    return [note] if note else []


def _notes_on_kind(answers: Answers, count: int) -> list[str]:
    """Return notes on answers of another kind, and on labels that look like two spellings of one."""
    notes = []
    if answers.odd:
        odd = f"{len(answers.odd)} of {count} answers are no {answers.kind}, such as {answers.odd[0]!r:.60}"
        notes.append(f"{odd}: paid as written; filter= leaves such rows out")
    if answers.kind == "choice":
        rows = {label: round(share * count) for label, share in answers.labels}
        for one, other in alike_labels([*rows]):
            notes.append(
                f"the labels {one!r} ({rows[one]} rows) and {other!r} ({rows[other]} rows) look alike, and the prompt "
                f"names both. If they are one label, write it in one way first: frame[column].replace({{{other!r}: {one!r}}})"
            )
    return notes


def fitting_format(
    format: AnswerFormat | None, answers: Answers, system: str | None = None
) -> AnswerFormat:
    """Return the format, `xml()` if none is given, with a system prompt that fits the answers, or with the one given."""
    format = format if format is not None else xml()
    if system is not None:
        return dataclasses.replace(format, instruction=system)
    return format if format.answer_hint else dataclasses.replace(format, answer_hint=answers.hint)


def with_prompts(
    rows: TaskRows, format: AnswerFormat, example: Example | None, is_told: bool = False
) -> TaskRows:
    """Return the rows with the chat messages that ask their question.

    Messages of a row's own stay as they are, but for what was asked for: an example turn comes before what they say, and with
    `is_told` the format's system prompt takes the place of theirs.

    Raises:
        ValueError: An example whose answer the format cannot read back.
    """
    system, shown = (
        [{"role": "system", "content": format.system_prompt()}],
        _turns_of(example, format),
    )

    def prompt(row: dict[str, Any]) -> list[dict[str, str]]:
        own = row.get("prompt")
        if own is None:
            return [*system, *shown, {"role": "user", "content": row["question"]}]
        told = [turn for turn in own if turn["role"] in INSTRUCTS]
        return [*(system if is_told else told), *shown, *(turn for turn in own if turn not in told)]

    return [{**row, "prompt": prompt(row)} for row in rows]


def _turns_of(example: Example | None, format: AnswerFormat) -> list[dict[str, str]]:
    """The chat messages of an example."""
    if example is None or isinstance(example[0], Mapping):
        return [dict(turn) for turn in example or ()]
    asked, reasoning, answer = map(str, example)
    reply = format.render(reasoning, answer)
    if format.extract(reply) != answer.strip():
        raise ValueError(
            f"the example's answer cannot be read back in the format {format.name!r}: {reply!r:.160}"
        )
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]


def _require_arithmetic(options: Mapping[str, Any]) -> None:
    """Refuse options that `arithmetic` does not have, or values that it cannot use.

    Raises:
        TypeError: An unknown option, or no whole number.
        ValueError: Operators other than +, - and *, or numbers out of their bounds.
    """
    known = [name for name in inspect.signature(_arithmetic).parameters if name != "seed"]
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"{name}= means nothing for 'arithmetic'{did_you_mean(name, known)}")
        if name != "operators":
            # The numbers may be negative; their count may not.
            require_number(name, value, 1 if name not in ("low", "high") else -(10**18))
        elif not (isinstance(value, str) and value and {*value} <= {*_RESULT}):
            raise ValueError(
                f"operators = {in_line(value)} must be a text of some of + - *, such as '+-'."
            )
    low, high = options.get("low", 1), options.get("high", 20)
    if low > high:
        raise ValueError(f"low = {low} is above high = {high}: numbers are drawn from low to high.")


def _arithmetic(
    seed: int, train_size: int = 224, holdout_size: int = 96, low: int = 1, high: int = 20, operators: str = "+",
    terms: int = 2,
) -> tuple[TaskRows, int]:  # fmt: skip
    """Distinct questions of `terms` numbers from low to high, and how many to hold out; no difference is negative."""
    count, draw, span = train_size + holdout_size, random.Random(seed), range(low, high + 1)
    every: dict[str, int] = {}
    if terms == 2 and len(span) <= _LISTED:
        for op, a, b in itertools.product(operators, span, span):
            if op != "-" or a >= b:
                every[f"{a} {op} {b}"] = _RESULT[op](a, b)
    else:  # too many to list: drawn until there are enough
        for _ in range(100 * count):
            every.update([_expression(draw, terms, low, high, operators)])
            if len(every) > count:
                break
    every.pop("3 + 4", None)  # the example turn, which must not be a question
    if len(every) < count:
        raise ValueError(
            f"there are {len(every)} distinct questions of train_size + holdout_size = {count}: raise high."
        )
    chosen = draw.sample(list(every), count)
    return [
        {"question": f"What is {asked}?", "answer": str(every[asked])} for asked in chosen
    ], holdout_size


def _expression(
    draw: random.Random, terms: int, low: int, high: int, operators: str
) -> tuple[str, int]:
    """An expression of so many numbers, what belongs together in brackets, and its value."""
    if terms == 1:
        number = draw.randint(low, high)
        return str(number), number
    left, op = draw.randint(1, terms - 1), draw.choice(operators)
    parts = [_expression(draw, part, low, high, operators) for part in (left, terms - left)]
    if op == "-":
        parts.sort(key=lambda part: part[1], reverse=True)
    (a, first), (b, second) = parts
    written = [f"({text})" if " " in text else text for text in (a, b)]
    return f" {op} ".join(written), _RESULT[op](first, second)


def _question_key(question: str) -> str:
    """Return what is the same for questions that differ only in their writing or in the order of their lines."""
    lines = (_OPTION.sub("", line) for line in question.splitlines())
    return "\n".join(sorted(map(normalized_question, lines))).casefold()


def _split(
    rows: TaskRows, holdout: float | int, seed: int, left_out: str
) -> tuple[TaskRows, TaskRows]:
    if not 0 < holdout < 1 and not float(holdout).is_integer():
        raise ValueError(
            f"holdout = {holdout!r} must be a share below 1, such as 0.2, or a whole number of rows."
        )
    count = max(round(holdout * len(rows)), 1) if 0 < holdout < 1 else int(holdout)
    # Questions that differ only in their writing, in capitals too, or in the order of their lines, such as options, are on
    # the same side.
    alike: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(_question_key(row["question"]), []).append(i)
    groups = {i: group for group in alike.values() for i in group}
    order, held = list(range(len(rows))), set()
    random.Random(seed).shuffle(order)
    for i in order:
        if len(held) < count:
            held.update(groups[i])
    if not 0 < len(held) < len(rows):
        parts = (
            f"holds out {len(held)} of {len(rows)} questions that differ in more than their writing"
        )
        raise ValueError(
            f"holdout = {holdout!r} {parts}: both parts need one. Rows left out: {left_out or 'none'}."
        )
    return [r for i, r in enumerate(rows) if i not in held], [rows[i] for i in sorted(held)]
