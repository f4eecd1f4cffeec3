"""Questions to evaluate on, which nothing is trained on, and how answers are read and judged.

What a published score means also depends on prompt, examples and how answers are read: only scores that were asked alike can be
compared, and lm-evaluation-harness takes a merged folder (docs/guide/evaluate.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.tables import Part, Shown, Table, as_written, bold
from grpo_nb.generation.samples import Completion, as_scored
from grpo_nb.scoring.right_by import (
    FunctionJudge,
    Judge,
    judge_scores,
    right_anywhere,
    right_by,
)
from grpo_nb.tasks.answers import answers_of
from grpo_nb.tasks.cleaning import ACCEPTED, clean
from grpo_nb.tasks.dataset import as_dataset
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.load import fitting_format, read_percentages, with_prompts
from grpo_nb.tasks.read_rows import Source, read_rows

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True, repr=False)
class HeldOut(Shown):
    """Questions to evaluate on, and how they are asked. Shows itself with its first prompt."""

    name: str
    format: AnswerFormat
    holdout: Dataset
    """Columns `prompt`, `question`, `answer` and those of the source."""

    def _parts(self) -> Iterable[Part]:
        yield bold(
            f"Held-out set {self.name}: {len(self.holdout)} questions, answer format {self.format.name}"
        )
        yield Table(
            [(turn["role"], as_written(turn["content"])) for turn in self.holdout[0]["prompt"]]
        )


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
    read = read_rows(source, split=split)
    cleaned = clean(read, columns)
    read_percentages(cleaned.rows, cleaned.used.get("answer", [""])[0])
    rows = chosen(cleaned.rows, limit, seed)
    format = fitting_format(format, answers_of([row.get(ACCEPTED, row["answer"]) for row in rows]))
    return HeldOut(
        name=read.name, format=format, holdout=as_dataset(with_prompts(rows, format, example))
    )


def chosen(rows: Sequence[dict[str, Any]], limit: int | None, seed: int) -> list[dict[str, Any]]:
    """So many of the rows, drawn by the seed, in their order; all without a limit."""
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), limit))]


def read_answers(
    questions: Sequence[Mapping[str, Any]],
    completions: Sequence[Completion],
    format: AnswerFormat,
    reward: Judge | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each completion, with its answer and three separate judgements.

    `is_correct`: the answer is right where the format has it, as the last word. `is_formatted`: the completion is exactly in
    the format. `is_anywhere`: the right answer is the last candidate in the text, in the format or not
    (`grpo_nb.scoring.candidates`); None where the judge does not say where it reads the answer.
    `judge_score`: the score of the judge, None included, if that is a function.

    Args:
        questions: Rows with `question` and `answer`.
        completions: One completion for each row.
        format: The format in which the questions were asked.
        reward: The judge of what is correct (`scoring.right_by.choose_judge`); `correctness()` if not given.
    """
    texts = [completion.text for completion in completions]
    scored = as_scored(completions, questions)
    scores = judge_scores(reward, texts, questions, format, scored=scored)
    is_correct = right_by(reward, texts, questions, format, scores=scores)
    is_anywhere = right_anywhere(reward, texts, questions, format, is_correct)
    rows = []
    for place, (row, completion) in enumerate(zip(questions, completions, strict=True)):
        rows.append(
            {
                "question": row["question"],
                "answer": str(row["answer"]),
                "completion": completion.shown,
                "given": format.extract_last(completion.text),
                "is_correct": is_correct[place],
                "is_formatted": format.is_exact(completion.text),
                "is_anywhere": None if is_anywhere is None else is_anywhere[place],
                "tokens": completion.tokens,
                "is_cut": completion.is_cut,
            }
        )
        if isinstance(reward, FunctionJudge):
            rows[-1]["judge_score"] = None if math.isnan(scores[place]) else scores[place]
    return rows
