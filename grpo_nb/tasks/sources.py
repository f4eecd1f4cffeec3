"""Rows of any source to a task: chat prompts with a gold answer, split so that no question is in both parts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.settings import did_you_mean
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.questions import normalized_question
from grpo_nb.tasks.task import Task

Source = str | Path | Sequence[Mapping[str, Any]] | Any
Messages = list[dict[str, str]]
_ARITHMETIC = {"train_size": 224, "holdout_size": 96, "low": 1, "high": 20, "operators": "+"}
_FILES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def load_task(
    source: Source = "arithmetic",
    settings: Any = None,
    *,
    columns: Mapping[str, str] | None = None,
    format: AnswerFormat | None = None,
    example: tuple[str, str, str] | None = None,
    holdout: float | int = 0.2,
    seed: int | None = None,
    tokenizer: Any = None,
    split: str = "train",
    **options: Any,
) -> Task:
    """Make a task from the kit's own `arithmetic`, a file, a Hub id, a `datasets.Dataset` or rows in memory.

    Args:
        source: `"arithmetic"`; the path of a .csv, .json, .jsonl or .parquet file; a list of dicts; a `Dataset`; or a Hub id.
        settings: For `seed` and, with `tokenizer`, `max_prompt_length`.
        columns: Which column plays which part, as `{"question": "problem", "answer": "solution"}`. A column `prompt` of
            chat messages is taken as it is.
        format: The answer format; `xml()` if not given.
        example: One example turn as `(question, reasoning, answer)`. A small model needs it: without, it never
            produces a tag, so that no completion differs from another and nothing is learnt.
        holdout: Share (below 1) or number of rows kept for evaluation.
        seed: Of the split and of generated data; that of `settings`, or 0.
        tokenizer: To drop prompts longer than `settings.max_prompt_length`, and to see which tags its template opens.
        split: Of a Hub data set.
        **options: For `arithmetic`: `train_size`, `holdout_size`, `low`, `high`, `operators`.

    Raises:
        ValueError: No rows, a missing column, too few distinct questions, or all prompts too long.
        FileNotFoundError: A path that does not exist.

    >>> task = load_task([{"q": "1+1?", "a": 2}, {"q": "2+2?", "a": 4}], columns={"question": "q", "answer": "a"}, holdout=1)
    >>> len(task.train), len(task.holdout)
    (1, 1)
    """
    format = format or xml()
    if tokenizer is not None:
        format = format.for_template(tokenizer)
    if seed is None:
        seed = settings.seed if settings is not None else 0
    if isinstance(source, str) and source == "arithmetic":
        for option in options:
            if option not in _ARITHMETIC:
                raise ValueError(f"unknown option {option!r} of arithmetic{did_you_mean(option, _ARITHMETIC)}")
        rows, holdout = _arithmetic(seed=seed, **{**_ARITHMETIC, **options})
        example = example or ("What is 3 + 4?", "3 + 4 = 7", "7")
        name, columns = "arithmetic", None
    else:
        if options:
            raise ValueError(
                f"{sorted(options)} are options of the generated task 'arithmetic', not of {source!r:.80}."
            )
        name, rows = source_rows(source, split)
    rows = rows_with_prompts(rows, columns or {}, format, example)
    unique = list({normalized_question(row["question"]): row for row in reversed(rows)}.values())[::-1]
    dropped = {"repeated questions": len(rows) - len(unique)} if len(unique) < len(rows) else {}
    train, held = _split(unique, holdout, seed)
    from datasets import Dataset

    task = Task(name, format, Dataset.from_list(train), Dataset.from_list(held), dropped)
    if tokenizer is not None and settings is not None:
        task = task.fit(tokenizer, settings.max_prompt_length)
    return task


def _arithmetic(
    *, seed: int, train_size: int, holdout_size: int, low: int, high: int, operators: str
) -> tuple[list[dict[str, str]], int]:
    """Distinct questions `a op b` with low <= a, b <= high; no difference is negative."""
    if not operators or set(operators) - set("+-*"):
        raise ValueError(f"operators = {operators!r} must be made of +, - and *.")
    if train_size < 1 or holdout_size < 1:
        raise ValueError(f"train_size = {train_size} and holdout_size = {holdout_size} must each be at least 1.")
    results = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
    numbers = range(low, high + 1)
    # 3 + 4 is the example turn, which must not be a question.
    every = [
        (a, op, b) for op in dict.fromkeys(operators) for a in numbers for b in numbers
        if (op != "-" or a >= b) and (a, op, b) != (3, "+", 4)
    ]  # fmt: skip
    if len(every) < train_size + holdout_size:
        raise ValueError(
            f"numbers from {low} to {high} with {operators!r} give {len(every)} distinct questions, but train_size "
            f"{train_size} + holdout_size {holdout_size} = {train_size + holdout_size} are asked for. Raise high, "
            "or ask for fewer."
        )
    chosen = random.Random(seed).sample(every, train_size + holdout_size)
    rows = [{"question": f"What is {a} {op} {b}?", "answer": str(results[op](a, b))} for a, op, b in chosen]
    return rows, holdout_size


def source_rows(source: Source, split: str) -> tuple[str, list[dict[str, Any]]]:
    """Return a name and the rows of a file, a Hub id, a `Dataset` or rows in memory, as they are."""
    from datasets import Dataset, load_dataset

    if isinstance(source, Dataset):
        return source.info.dataset_name or "dataset", source.to_list()
    if not isinstance(source, (str, Path)):
        return "rows", [dict(row) for row in source]
    path = Path(source)
    if path.suffix.lower() in _FILES:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty: a task needs at least two rows.")
        return path.stem, load_dataset(_FILES[path.suffix.lower()], data_files=str(path), split="train").to_list()
    try:
        return str(source), load_dataset(str(source), split=split).to_list()
    except (OSError, ConnectionError) as error:
        raise ValueError(
            f"{str(source)!r} is neither 'arithmetic', a .csv/.json/.jsonl/.parquet file, nor a data set that can be "
            f"reached ({type(error).__name__}: {str(error).splitlines()[0]:.200}). Check the name and the network."
        ) from error


def rows_with_prompts(
    rows: list[dict[str, Any]],
    columns: Mapping[str, str],
    format: AnswerFormat,
    example: tuple[str, str, str] | None,
) -> list[dict[str, Any]]:
    """Return the rows with `prompt`, `question` and `answer`, taken from the columns that play these parts."""
    if not rows:
        raise ValueError("the data has no rows: a task needs at least two, one to train on and one held out.")
    unknown = set(columns) - {"question", "answer", "prompt"}
    if unknown:
        raise ValueError(f"columns maps {sorted(unknown)}, but the parts are 'question', 'answer' and 'prompt'.")
    found = list(rows[0])
    has_prompt = columns.get("prompt", "prompt") in found
    named = {part: columns.get(part, part) for part in ("question", "answer")}
    if has_prompt and "question" not in columns and "question" not in found:
        named.pop("question")
    for part, column in named.items():
        if column not in found:
            raise ValueError(
                f"the data has no column {column!r} for the {part}; it has {found}{did_you_mean(column, found)}. "
                f'Map it: columns={{"{part}": "<one of them>"}}.'
            )
    made = []
    for number, row in enumerate(rows):
        answer = row.get(named["answer"])
        if answer is None or str(answer).strip() == "":
            raise ValueError(f"row {number} has no answer in column {named['answer']!r}: {str(row)[:120]}")
        prompt = row[columns.get("prompt", "prompt")] if has_prompt else None
        question = str(row[named["question"]]) if "question" in named else prompt[-1]["content"]
        parts = {
            "prompt": prompt or _messages(question, format, example),
            "question": question,
            "answer": str(answer).strip(),
        }
        made.append({**{k: v for k, v in row.items() if k not in named.values()}, **parts})
    return made


def _messages(question: str, format: AnswerFormat, example: tuple[str, str, str] | None) -> Messages:
    turns = [("system", format.system_prompt())]
    if example is not None:
        asked, reasoning, answer = example
        turns += [("user", asked), ("assistant", format.render(reasoning, answer))]
    return [{"role": role, "content": text} for role, text in [*turns, ("user", question)]]


def _split(rows: list[dict[str, Any]], holdout: float | int, seed: int) -> tuple[list[Any], list[Any]]:
    count = round(holdout * len(rows)) if 0 < holdout < 1 else int(holdout)
    count = max(count, 1)
    if holdout <= 0 or count >= len(rows):
        raise ValueError(
            f"holdout = {holdout!r} of {len(rows)} distinct questions leaves {max(len(rows) - count, 0)} to train on: "
            "both parts need at least one. Give more rows, or another share."
        )
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    held = set(order[:count])
    return [r for i, r in enumerate(rows) if i not in held], [rows[i] for i in sorted(held)]
