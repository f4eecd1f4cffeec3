"""Rows of any source to chat prompts with a gold answer, split so that no question is in both parts.

A `Task` is what training, rewards and evaluation work on: `prompt` (chat messages), `question`, `answer` and every other
column of the source. Nothing here needs torch; a tokenizer only for the length filter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import html
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import did_you_mean
from grpo_nb.curriculum import Curriculum, question_key
from grpo_nb.formats import AnswerFormat, xml

if TYPE_CHECKING:
    from datasets import Dataset

    from grpo_nb.lengths import LengthProposal

Source = str | Path | Sequence[Mapping[str, Any]] | Any
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Task(Curriculum):
    """Training and held-out prompts that share no question, and the format their answers are asked for in.

    `train` and `holdout` are `datasets.Dataset`s with the columns `prompt`, `question`, `answer` and those of the source.
    """

    name: str
    format: AnswerFormat
    train: Dataset
    holdout: Dataset
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How many rows were left out, by reason."""
    is_ordered: bool = False
    """Train on the rows in their order; otherwise the trainer shuffles them."""

    @property
    def fingerprint(self) -> str:
        """A hash over every row of both parts, in order; a run records it."""
        digest = hashlib.sha256()
        for part in (self.train, self.holdout):
            for row in part:
                digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        return digest.hexdigest()[:16]

    def fit(self, tokenizer: Any, max_prompt_length: int) -> Task:
        """Return the task without the prompts of more than `max_prompt_length` tokens, counted in `dropped`.

        Raises:
            ValueError: If no training or no held-out prompt is short enough.
        """
        kept, lost = {}, 0
        for part in ("train", "holdout"):
            rows: Dataset = getattr(self, part)
            lengths = prompt_lengths(rows["prompt"], tokenizer)
            short = [i for i, length in enumerate(lengths) if length <= max_prompt_length]
            if not short:
                raise ValueError(
                    f"all {len(rows)} {part} prompts are longer than max_prompt_length = {max_prompt_length} tokens "
                    f"(the shortest has {min(lengths)}). Write max_prompt_length={max(lengths)}, or shorten the prompts."
                )
            lost += len(rows) - len(short)
            kept[part] = rows.select(short) if len(short) < len(rows) else rows
        dropped = {**self.dropped, "too long": self.dropped.get("too long", 0) + lost} if lost else self.dropped
        return dataclasses.replace(self, **kept, dropped=dropped)

    def propose_lengths(self, tokenizer: Any, baseline: Any = None, *, quantile: float = 0.95) -> LengthProposal:
        """Propose `max_prompt_length` and `max_completion_length` from this data, and say where each comes from.

        The prompt length is that of `quantile` of the training prompts, rounded up to 16. The completion length comes from
        what a model generated, if a baseline is given; else from the column `solution`; else it is not known: a gold
        answer alone says nothing about how long the reasoning before it is.

        Args:
            tokenizer: Of the model to be trained.
            baseline: From `gn.baseline`: its `tokens` and `is_cut` are read.
            quantile: Of the prompts to keep.

        Raises:
            ValueError: A quantile that is none.
        """
        from grpo_nb.lengths import propose_lengths

        return propose_lengths(self, tokenizer, baseline, quantile=quantile)

    def _facts(self) -> list[tuple[str, str]]:
        left_out = ", ".join(f"{n} {why}" for why, n in self.dropped.items()) or "none"
        return [
            ("training prompts", str(len(self.train))),
            ("held-out prompts", f"{len(self.holdout)}, no question in both"),
            ("rows left out", left_out),
            ("answer format", self.format.name),
            *([("pass rate", self.pass_rate_facts())] if self.pass_rate_facts() else []),
            *([("order", "as given, not shuffled")] if self.is_ordered else []),
        ]

    def __repr__(self) -> str:
        facts = "\n".join(f"  {name}: {value}" for name, value in self._facts())
        example = "\n".join(f"  {m['role']}: {m['content']!r}" for m in self.train[0]["prompt"])
        return f"Task {self.name}\n{facts}\nFirst prompt (answer {self.train[0]['answer']!r}):\n{example}"

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th>{n}</th><td style='text-align:left'>{html.escape(v)}</td></tr>" for n, v in self._facts()
        )
        turns = "".join(
            f"<tr><th style='vertical-align:top'>{html.escape(m['role'])}</th>"
            f"<td style='text-align:left'><pre style='margin:0'>{html.escape(m['content'])}</pre></td></tr>"
            for m in self.train[0]["prompt"]
        )
        gold = html.escape(str(self.train[0]["answer"]))
        return (
            f"<p><b>{html.escape(self.name)}</b></p><table>{facts}</table>"
            f"<p>The first training prompt, whose answer is <code>{gold}</code>:</p><table>{turns}</table>"
        )


def prompt_lengths(prompts: Iterable[Messages], tokenizer: Any) -> list[int]:
    """Return the length of each prompt in tokens, with chat template and generation prompt, as training sees it."""
    ids = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True)
    return [len(row) for row in ids["input_ids"]]


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
        rows, holdout = _arithmetic(seed=seed, **_checked_arithmetic(options))
        example = example or ("What is 3 + 4?", "3 + 4 = 7", "7")
        name, columns = "arithmetic", None
    else:
        if options:
            raise ValueError(
                f"{sorted(options)} are options of the generated task 'arithmetic', not of {source!r:.80}."
            )
        name, rows = source_rows(source, split)
    rows = rows_with_prompts(rows, columns or {}, format, example)
    unique = list({question_key(row["question"]): row for row in reversed(rows)}.values())[::-1]
    dropped = {"repeated questions": len(rows) - len(unique)} if len(unique) < len(rows) else {}
    train, held = _split(unique, holdout, seed)
    from datasets import Dataset

    task = Task(name, format, Dataset.from_list(train), Dataset.from_list(held), dropped)
    if tokenizer is not None and settings is not None:
        task = task.fit(tokenizer, settings.max_prompt_length)
    return task


def _checked_arithmetic(options: Mapping[str, Any]) -> dict[str, Any]:
    known = {"train_size": 224, "holdout_size": 96, "low": 1, "high": 20, "operators": "+"}
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option {name!r} of arithmetic{did_you_mean(name, known)}")
    return {**known, **options}


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
        rows = [dict(row) for row in source]
        return "rows", rows
    kinds = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
    path = Path(source)
    if path.suffix.lower() in kinds:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty: a task needs at least two rows.")
        loaded = load_dataset(kinds[path.suffix.lower()], data_files=str(path), split="train")
        return path.stem, loaded.to_list()
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
        rest = {k: v for k, v in row.items() if k not in (*named.values(), "prompt")}
        prompt = row[columns.get("prompt", "prompt")] if has_prompt else None
        question = str(row[named["question"]]) if "question" in named else prompt[-1]["content"]
        made.append(
            {
                "prompt": prompt or _messages(question, format, example),
                "question": question,
                "answer": str(answer).strip(),
                **rest,
            }
        )
    return made


def _messages(question: str, format: AnswerFormat, example: tuple[str, str, str] | None) -> Messages:
    messages = [{"role": "system", "content": format.system_prompt()}]
    if example is not None:
        asked, reasoning, answer = example
        messages += [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": format.render(reasoning, answer)},
        ]
    return [*messages, {"role": "user", "content": question}]


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
