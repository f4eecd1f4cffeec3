"""Questions to evaluate on, which nothing is trained on, and how answers are read and judged.

What a published score means also depends on prompt, examples and how answers are read: only scores that were asked alike can be
compared, and lm-evaluation-harness takes a merged folder (docs/guide/evaluate.md).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.tables import Part, Shown, Table, as_written, bold
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.judging import right_by
from grpo_nb.tasks.answers import answers_of, is_same_answer
from grpo_nb.tasks.cleaning import clean
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.load import fitting_format, with_prompts
from grpo_nb.tasks.read_rows import Source, read_rows

if TYPE_CHECKING:
    from datasets import Dataset

    from grpo_nb.generation.samples import Completion


def same_as_gold(given: Sequence[str | None], rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Judge by the column `answer`: as numbers where it is one, else as text."""
    return [g is not None and is_same_answer(g, str(row["answer"])) for g, row in zip(given, rows, strict=True)]


def read_answers(
    questions: Sequence[Mapping[str, Any]],
    completions: Sequence[Completion],
    format: AnswerFormat,
    reward: Reward | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each question: what was given (only as the last word, as the rewards read it), and if it is right.

    Args:
        questions: Rows with `question` and `answer`.
        completions: One of each.
        format: In which they were asked.
        reward: Says what is right, as it paid in training (from `rewards.answer_reward`); without one, sameness with the column
            `answer`.
    """
    answers = [format.extract_last(completion.text) for completion in completions]
    if reward is None:
        verdicts = same_as_gold(answers, questions)
    else:
        verdicts = right_by(reward, [completion.text for completion in completions], questions, format)
    return [
        {
            "question": row["question"],
            "answer": str(row["answer"]),
            "completion": completion.text,
            "given": given,
            "is_correct": is_correct,
            "is_formatted": format.is_exact(completion.text),
            "tokens": completion.tokens,
            "is_cut": completion.is_cut,
        }
        for row, completion, given, is_correct in zip(questions, completions, answers, verdicts, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, repr=False)
class HeldOut(Shown):
    """Questions to evaluate on, and how they are asked. Shows itself with its first prompt."""

    name: str
    format: AnswerFormat
    holdout: Dataset
    """Columns `prompt`, `question`, `answer` and those of the source."""
    asked: str
    """How the questions are asked, in words."""

    def _parts(self) -> Iterable[Part]:
        yield bold(f"Held-out set {self.name}")
        how = {"asked": self.asked, "answer format": self.format.name}
        yield Table([("held-out questions", len(self.holdout)), *how.items()], narrow=(0,))
        first = self.holdout[0]
        yield f"First prompt (answer {first['answer']!r}):"
        yield Table([(turn["role"], as_written(turn["content"])) for turn in first["prompt"]])


def load_holdout(
    source: Source,
    *,
    limit: int | None = None,
    format: AnswerFormat | None = None,
    columns: Mapping[str, str] | None = None,
    example: tuple[str, str, str] | None = None,
    seed: int = 0,
    split: str = "test",
) -> HeldOut:
    """Load questions to evaluate on, as `load_task` reads them, all of them held out.

    Args:
        source: The path of a file, rows, a `Dataset` or a Hub id; `"gsm8k"` is `openai/gsm8k`.
        limit: How many questions, drawn by `seed`; all if not given.
        format: The answer format to ask in, for a model that was trained on it: `format=task.format`.
        columns, example: As in `load_task`.
        seed: Of the choice of questions.
        split: Of a Hub data set.

    Raises:
        ValueError: No rows, or a data set that cannot be reached.

    >>> load_holdout([{"question": "1 + 1?", "answer": "2"}]).holdout[0]["answer"]
    '2'
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit = {limit!r} must be at least 1, or None for all.")
    read = read_rows(source, split=split)
    rows = chosen(clean(read, columns).rows, limit, seed)
    format = fitting_format(format, answers_of([row["answer"] for row in rows]))
    how = "with one example turn" if example else "with the instruction alone"
    return _held_out(read.name, format, with_prompts(rows, format, example), asked=how)


def _held_out(name: str, format: AnswerFormat, rows: Sequence[Mapping[str, Any]], **more: Any) -> HeldOut:
    from datasets import Dataset

    return HeldOut(name=name, format=format, holdout=Dataset.from_list([dict(row) for row in rows]), **more)


def chosen(rows: Sequence[dict[str, Any]], limit: int | None, seed: int) -> list[dict[str, Any]]:
    """So many of the rows, drawn by the seed, in their order; all without a limit."""
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), limit))]
