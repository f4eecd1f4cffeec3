"""Score held-out questions at intervals during a training, as an observer of its steps."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from grpo_nb.evaluation.holdout import grade_answers
from grpo_nb.evaluation.model_sources import Decoding, complete_rows
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.runs.rows import HOLDOUT_MEASURES
from grpo_nb.scoring.correct_answers import choose_grader, deciding_reward, grader_in_words

if TYPE_CHECKING:
    from grpo_nb.training.prepare import PreparedTraining


class HoldoutObserver:
    """Observer that answers held-out questions greedily at intervals and records the score.

    The keys are `holdout/accuracy`, `holdout/in_format` and `holdout/anywhere`. Each has a 95 %
    interval (`holdout/accuracy_low`, `holdout/accuracy_high` and so on). `anywhere` is left out if
    the grader does not report where it reads the answer. Step 1, if it is logged, and the step
    `max_steps` are always scored. The random state is restored afterwards, so that the training is
    the same with and without the score.

    Args:
        prepared: The training. The same questions are asked each time, so that the whole curve
            shows one measure.

    Attributes:
        grader_description: Description of the grader: which answers count as correct.
    """

    def __init__(self, prepared: PreparedTraining) -> None:
        self._prepared = prepared
        self._questions = list(islice(prepared.task.holdout, prepared.settings.holdout_questions))
        # The grader is chosen once, so that all points of the curve have the same pass score.
        self._grader = choose_grader(
            deciding_reward(prepared.rewards),
            self._questions,
            prepared.task.format,
            tokenizer=prepared.tokenizer,
            start_episode=prepared.task.start_episode,
        )
        self.grader_description = grader_in_words(self._grader)

    def __call__(self, row: dict[str, Any], _table: Any) -> None:
        """Answer the questions and add the score to the row, if it is due at this step."""
        prepared = self._prepared
        # The first and the last step are the ends of the curve.
        is_due = row["step"] % prepared.settings.holdout_every == 0
        if not is_due and row["step"] not in (1, row["max_steps"]):
            return
        # Answer with the engine that trains: the CPU engine has no copies of the weights otherwise.
        greedy = Decoding(
            settings=prepared.settings_as_run,
            chat_template_kwargs=prepared.task.chat_template_kwargs,
            tools=prepared.task.tools,
        )
        completions = complete_rows(prepared.model, prepared.tokenizer, self._questions, greedy)
        graded = grade_answers(
            self._questions, completions, prepared.task.format, grader=self._grader
        )
        # Only the shares are read, so the evaluation needs no label.
        evaluation = Evaluation(label="", rows=graded)
        for measure in HOLDOUT_MEASURES:
            interval = evaluation.interval_of(measure.name)
            if interval is not None:
                row[measure.key] = evaluation.share_of(measure.name)
                row |= dict(zip(measure.interval_keys, interval, strict=True))
