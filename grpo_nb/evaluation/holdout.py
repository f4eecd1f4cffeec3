"""Load questions to evaluate on, and grade the answers to them.

Scores can be compared only if the questions were asked in the same way: the prompt, the examples
and the way answers are read change a score. For published scores, see docs/guide/evaluate.md.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.core.problems import warn_user
from grpo_nb.core.words import displayable
from grpo_nb.generation.completions import GeneratedCompletion, scoring_arguments
from grpo_nb.scoring.grader import Grader
from grpo_nb.tasks.answers import summarize_answers
from grpo_nb.tasks.cleaning import CleaningReport, to_task_rows
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import Example, format_for_answers, messages_of_example, with_prompts
from grpo_nb.tasks.read_rows import Row, Source, read_rows


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Questions to evaluate on, and the format in which they are asked."""

    format: AnswerFormat
    holdout: Iterable[Row]
    """Rows with `prompt`, `question`, `answer` and the source's columns, as in `Task.holdout`."""
    # The other fields are as in `Task`, so that an evaluation reads them from either.
    train: None = None
    tools: None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    start_episode: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict


def load_holdout(
    source: Source,
    *,
    format: AnswerFormat | None = None,
    columns: Mapping[str, str] | None = None,
    example: Example | None = None,
) -> Holdout:
    """Load questions to evaluate on, as `load_task` reads them. Nothing is kept for training.

    Args:
        source: Path of a file, rows, a `Dataset`, or the id of a data set on the Hub. `"gsm8k"`
            stands for `openai/gsm8k`. The questions of a data set are those of its split `test`.
        format: Answer format to ask in. For a model that was trained on a task, pass
            `format=task.format`.
        columns: As in `load_task`.
        example: As in `load_task`.

    Raises:
        ValueError: There are no rows, or the data set cannot be loaded.

    >>> load_holdout([{"question": "1 + 1?", "answer": "2"}]).holdout[0]["answer"]
    '2'
    """
    from datasets import Dataset

    rows = to_task_rows(read_rows(source, "test"), CleaningReport(), columns)
    # The kind of the answers decides how the system prompt asks for them.
    format = format_for_answers(format, summarize_answers([row["answer"] for row in rows]))
    # All rows become questions: unlike in `load_task`, no share is kept for training.
    prompted = with_prompts(rows, format, messages_of_example(example, format))
    return Holdout(format=format, holdout=Dataset.from_list(prompted))


def grade_answers(
    rows: Sequence[Row],
    completions: Sequence[GeneratedCompletion],
    format: AnswerFormat,
    grader: Grader,
) -> list[Row]:
    """Grade each completion, and return a row of `Evaluation.rows` for it.

    There are three grades. `is_correct`: the grader counts the completion as correct.
    `is_formatted`: the completion is exactly in the format. `is_correct_anywhere`: the last
    answer in the text is right (`grpo_nb.scoring.last_answer`), None if the grader is a function,
    because it does not show where it reads the answer.

    Args:
        rows: Rows with `question` and `answer`.
        completions: One completion for each row.
        format: Format in which the questions were asked.
        grader: From `scoring.grader.make_grader`.
    """
    scores = grader.score(format=format, **scoring_arguments(completions, rows))
    missing = sum(math.isnan(score) for score in scores)
    if missing and not grader.reads_slot:
        warn_user(
            f"{grader.name}() returned None for {missing} of {len(scores)} answers: they count as "
            "not correct."
        )
    grades = grader.are_correct(scores)
    graded_rows = []
    for row, completion, is_correct in zip(rows, completions, grades, strict=True):
        # A model can write a lone surrogate, which neither a parquet file nor a notebook can store.
        text = displayable(completion.text)
        graded_rows.append(
            {
                "question": row["question"],
                "answer": str(row["answer"]),
                "completion": displayable(completion.full_text),
                "extracted_answer": format.extract_final(text),
                "is_correct": is_correct,
                "is_formatted": format.is_exact(completion.text),
                "is_correct_anywhere": grader.is_last_answer_correct(
                    completion.text, row, format, is_correct_in_format=is_correct
                ),
                "tokens": completion.token_count,
                "is_truncated": completion.is_truncated,
            }
        )
    return graded_rows
