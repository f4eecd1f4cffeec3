"""The held-out score of a run while it is trained."""

from typing import Any

from grpo_nb.evaluation.heldout import read_answers
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.evaluation.subjects import Decoding, answers_of_model
from grpo_nb.rewards.answers import correctness
from grpo_nb.scoring.right_by import choose_judge, judge_in_words


class HoldoutScore:
    """Answers held-out questions greedily at intervals while a run is trained, and adds the score to the row of the step.

    The keys are `holdout/accuracy` with its 95 % interval (`low`, `high`), `in_format` and `anywhere` (the correct answer is
    the last candidate in the text, in the format or not) with theirs (`in_format_low`, ...), and `mean_length`. `anywhere` is
    left out where the judge does not say where it reads the answer. The first and the last step are scored too. The random
    state is put back afterwards: the training is the same with and without.

    Args:
        prepared: The training, a `grpo_nb.training.prepare.Prepared`. Always the same questions are asked, so that the curve is
            of one measure.
    """

    def __init__(self, prepared: Any) -> None:
        self._prepared = prepared
        held, count = prepared.task.holdout, prepared.settings.holdout_questions
        self._questions = [held[i] for i in range(min(count, len(held)))]
        # Chosen once: all points of the curve have the same full score.
        self._judge = choose_judge(
            prepared.rewards,
            self._questions,
            prepared.task.format,
            tokenizer=prepared.tokenizer,
            begun=prepared.task.begun,
        )

    @property
    def judged_by(self) -> str:
        """Description of the judge: which answers count as correct."""
        return judge_in_words(self._judge or correctness(), self._questions)

    def __call__(self, row: dict[str, Any], completions: Any) -> None:
        """Score, if it is time."""
        is_due = row["step"] % self._prepared.settings.holdout_every == 0
        if is_due or row["step"] in (1, row["max_steps"]):
            row |= self.score()

    def score(self) -> dict[str, float]:
        """Answer the questions with the model as it is, and return the measurements."""
        training = self._prepared
        greedy = Decoding(
            max_completion_length=training.settings.max_completion_length,
            chat_template_kwargs=training.task.chat_template_kwargs,
            tools=training.task.tools,
        )
        completions = answers_of_model(training.model, training.tokenizer, self._questions, greedy)
        rows = read_answers(self._questions, completions, training.task.format, reward=self._judge)
        found = Evaluation("", rows)
        low, high = found.interval
        measured = {"holdout/accuracy": found.accuracy, "holdout/low": low, "holdout/high": high}
        for measure, name in (("format", "in_format"), ("anywhere", "anywhere")):
            share, interval = found.share_of(measure), found.interval_of(measure)
            if share is not None and interval is not None:
                measured[f"holdout/{name}"] = share
                measured[f"holdout/{name}_low"], measured[f"holdout/{name}_high"] = interval
        measured["holdout/mean_length"] = found.mean_length
        return measured
