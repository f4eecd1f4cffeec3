"""Load questions to evaluate on, and grade the answers to them.

Scores can be compared only if the questions were asked in the same way: the prompt, the examples
and the way answers are read change a score. For published scores, see docs/guide/evaluate.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.problems import warn_user
from grpo_nb.core.words import displayable, require_whole_number
from grpo_nb.generation.completions import GeneratedCompletion, scoring_arguments
from grpo_nb.scoring.correct_answers import (
    FunctionGrader,
    Grader,
    are_correct,
    are_last_answers_correct,
    grader_scores,
)
from grpo_nb.tasks.answers import summarize_answers
from grpo_nb.tasks.cleaning import CleaningReport, clean
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import Example, fitting_format, with_prompts
from grpo_nb.tasks.read_rows import Source, read_rows, sample_rows

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Questions to evaluate on, and the format in which they are asked."""

    format: AnswerFormat
    holdout: Dataset | list[dict[str, Any]]
    """Rows with `prompt`, `question`, `answer` and the source's columns, as in `Task.holdout`."""


def load_holdout(
    source: Source,
    *,
    limit: int | None = None,
    format: AnswerFormat | None = None,
    columns: Mapping[str, str] | None = None,
    example: Example | None = None,
) -> Holdout:
    """Load questions to evaluate on, as `load_task` reads them. Nothing is kept for training.

    Args:
        source: Path of a file, rows, a `Dataset`, or the id of a data set on the Hub. `"gsm8k"`
            stands for `openai/gsm8k`. The questions of a data set are those of its split `test`.
        limit: Number of questions, by default all. The same limit always selects the same ones.
        format: Answer format to ask in. For a model that was trained on a task, pass
            `format=task.format`.
        columns: As in `load_task`.
        example: As in `load_task`.

    Raises:
        ValueError: There are no rows, `limit` is no whole number of at least 1, or the data set
            cannot be loaded.

    >>> load_holdout([{"question": "1 + 1?", "answer": "2"}]).holdout[0]["answer"]
    '2'
    """
    from datasets import Dataset

    if limit is not None:
        require_whole_number("limit", limit, 1)
    read = read_rows(source, "test")
    # The seed never changes, so two evaluations with the same limit ask the same questions.
    rows = sample_rows(clean(read, CleaningReport(), columns), limit)
    # The kind of the answers decides how the system prompt asks for them.
    format = fitting_format(format, summarize_answers([row["answer"] for row in rows]))
    # All rows become questions: unlike in `load_task`, no share is kept for training.
    holdout = Dataset.from_list(with_prompts(rows, format, example))
    return Holdout(format=format, holdout=holdout)


def grade_answers(
    rows: Sequence[Mapping[str, Any]],
    completions: Sequence[GeneratedCompletion],
    format: AnswerFormat,
    grader: Grader,
) -> list[dict[str, Any]]:
    """Grade each completion, and return a row of `Evaluation.rows` for it.

    There are three grades. `is_correct`: the grader counts the completion as correct.
    `is_formatted`: the completion is exactly in the format. `is_correct_anywhere`: the last
    candidate in the text is the right answer (`grpo_nb.scoring.last_answer`), None if the grader
    is a function, because it does not show where it reads the answer.

    Args:
        rows: Rows with `question` and `answer`.
        completions: One completion for each row.
        format: Format in which the questions were asked.
        grader: From `scoring.correct_answers.choose_grader`.
    """
    texts = [completion.text for completion in completions]
    function_arguments = scoring_arguments(completions, rows)
    scores = grader_scores(grader, texts, rows, format, function_arguments=function_arguments)
    missing = sum(math.isnan(score) for score in scores)
    if missing and isinstance(grader, FunctionGrader):
        warn_user(
            f"{grader.name}() returned None for {missing} of {len(scores)} answers: they count as "
            "not correct."
        )
    grades = are_correct(grader, scores)
    anywhere_grades = are_last_answers_correct(grader, texts, rows, format, grades)
    anywhere_grades = anywhere_grades or [None] * len(texts)
    graded_rows = []
    for row, completion, is_correct, is_correct_anywhere in zip(
        rows, completions, grades, anywhere_grades, strict=True
    ):
        extracted = format.extract_final(completion.text)
        graded_rows.append(
            {
                "question": row["question"],
                "answer": str(row["answer"]),
                # A model can write a lone surrogate, which a parquet file cannot store.
                "completion": displayable(completion.full_text),
                "extracted_answer": None if extracted is None else displayable(extracted),
                "is_correct": is_correct,
                "is_formatted": format.is_exact(completion.text),
                "is_correct_anywhere": is_correct_anywhere,
                "tokens": completion.token_count,
                "is_truncated": completion.is_truncated,
            }
        )
    return graded_rows
