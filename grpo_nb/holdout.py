"""Held-out questions: how answers to them are read, and how a training is scored on them at intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.formats import AnswerFormat
from grpo_nb.random_state import kept_random_state
from grpo_nb.rewards.answers import is_same_answer

if TYPE_CHECKING:
    import pandas

    from grpo_nb.rollout import Completion


def read_answers(
    questions: Sequence[Mapping[str, Any]], completions: Sequence[Completion], format: AnswerFormat
) -> list[dict[str, Any]]:
    """Return a row for each question: what was given (only as the last word, as the rewards read it), and if it is right."""
    rows = []
    for row, completion in zip(questions, completions, strict=True):
        given = format.extract_last(completion.text)
        rows.append(
            {
                "question": row["question"],
                "answer": str(row["answer"]),
                "completion": completion.text,
                "given": given,
                "is_correct": given is not None and is_same_answer(given, str(row["answer"])),
                "is_formatted": format.is_exact(completion.text),
                "tokens": completion.tokens,
                "is_cut": completion.is_cut,
            }
        )
    return rows


class HoldoutScore:
    """Answers held-out questions greedily at intervals while a run is trained, and adds the score to the row of the step.

    The keys are `holdout/accuracy`, `holdout/in_format` and `holdout/mean_length`. The random state is put back
    afterwards: the training is the same with and without. An observer (`grpo_nb.recorder`), which the stop button cuts short:
    that step's row is then without a score.

    Args:
        questions: Rows with `prompt`, `question` and `answer`; always the same ones, so that the curve is of one measure.
        every: Steps between two scores; the first step is scored too.
        max_completion_length: Tokens; that of the training.
    """

    is_interruptible = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        questions: Sequence[Mapping[str, Any]],
        format: AnswerFormat,
        *,
        every: int,
        max_completion_length: int,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._questions, self._format = list(questions), format
        self._every, self._limit = every, max_completion_length

    def on_row(self, row: dict[str, float], completions: pandas.DataFrame | None) -> bool:
        """Score, if it is time."""
        step = int(row["step"])
        if step % self._every == 0 or step == 1:
            row |= self.score()
        return False

    def score(self) -> dict[str, float]:
        """Answer the questions with the model as it is, and return the measurements."""
        from grpo_nb.rollout import generate

        with kept_random_state():
            answers = read_answers(
                self._questions,
                generate(
                    self._model,
                    self._tokenizer,
                    [row["prompt"] for row in self._questions],
                    max_completion_length=self._limit,
                ),
                self._format,
            )
        count = len(answers)
        return {
            "holdout/accuracy": sum(row["is_correct"] for row in answers) / count,
            "holdout/in_format": sum(row["is_formatted"] for row in answers) / count,
            "holdout/mean_length": sum(row["tokens"] for row in answers) / count,
        }

    def state_dict(self) -> dict[str, Any]:
        """Nothing: each score stands for itself."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to take up."""
