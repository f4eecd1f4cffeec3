"""Who looks at each logged step while a run is trained: the held-out score, the health alerts, observers of the user's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_nb.core.progress import CellOutput
from grpo_nb.evaluation.comparison import Evaluation
from grpo_nb.evaluation.heldout import read_answers
from grpo_nb.evaluation.statistics import paired_result
from grpo_nb.evaluation.subjects import Decoding, answers_of_model
from grpo_nb.health.monitor import HealthMonitor, HealthReport
from grpo_nb.rewards.judging import answer_reward
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.best import ACCURACY, BEHIND, HIGH, LOW

if TYPE_CHECKING:
    import pandas


class Observer:
    """Looks at each logged step while a run is trained; may add measurements to its row, and may ask to stop.

    One that remembers something says it in `state_dict`: that is kept in each checkpoint and handed to `load_state_dict` when
    the run is resumed, so that nothing is told or counted twice.
    """

    is_interruptible: ClassVar[bool] = False
    """The stop button waits for an observer. One that takes long and has nothing to remember can be cut short instead; what it
    would have added to the row is missing there."""

    def on_row(self, row: dict[str, float], completions: pandas.DataFrame | None) -> bool:
        """Look at a step before it is written; keys added to the row are written with it.

        Args:
            row: As `Run.rows` has it, with `step`.
            completions: As `Run.completions(step)` gives it; None where the step used completions of an earlier one
                (`num_iterations` above 1), whose row has no rewards either.

        Returns:
            True to stop the training after this step, with its checkpoint and adapter saved.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What to remember, fit for JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what was remembered."""


class HoldoutScore(Observer):
    """Answers held-out questions greedily at intervals while a run is trained, and adds the score to the row of the step.

    The keys are `holdout/accuracy` with its 95 % interval (`low`, `high`), `in_format`, `mean_length`, and `behind_best`: 1 if
    the paired comparison with the best step so far shows that this one is worse. The first and the last step are scored too.
    The random state is put back afterwards: the training is the same with and without. The stop button cuts it short: that
    step's row is then without a score.

    Args:
        prepared: The training, a `grpo_nb.training.trainer.Prepared`. Always the same questions are asked, so that the curve is
            of one measure.
    """

    is_interruptible = True

    def __init__(self, prepared: Any) -> None:
        self._prepared = prepared
        held, count = prepared.task.holdout, prepared.settings.holdout_questions
        self._questions = [held[i] for i in range(min(count, len(held)))]
        self._best: list[float] = []
        """1 for each question that was answered right at the best step so far, else 0."""

    def on_row(self, row: dict[str, float], completions: pandas.DataFrame | None) -> bool:
        """Score, if it is time."""
        step = int(row["step"])
        if step % self._prepared.settings.holdout_every == 0 or step in (1, row.get("max_steps")):
            row |= self.score()
        return False

    def score(self) -> dict[str, float]:
        """Answer the questions with the model as it is, and return the measurements."""
        training, prompts = self._prepared, [row["prompt"] for row in self._questions]
        greedy = Decoding(
            max_completion_length=training.settings.max_completion_length,
            chat_template_kwargs=training.task.chat_template_kwargs,
        )
        completions = answers_of_model(training.model, training.tokenizer, prompts, greedy)
        paid_by = answer_reward(training.rewards)
        found = Evaluation("", read_answers(self._questions, completions, training.task.format, reward=paid_by))
        right, (low, high) = found.shares, found.interval
        score = {ACCURACY: found.accuracy, "holdout/in_format": found.format_share, LOW: low, HIGH: high}
        score["holdout/mean_length"] = found.mean_length
        is_comparable = len(self._best) == len(right)  # else another number of questions was asked before a resume
        score[BEHIND] = float(is_comparable and paired_result(self._best, right).verdict == "worse")
        if not is_comparable or sum(right) > sum(self._best):
            self._best = right
        return score

    def state_dict(self) -> dict[str, Any]:
        """The answers of the best step."""
        return {"best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them up."""
        self._best = list(state["best"])


class HealthAlerts(Observer):
    """Runs the health rules on each row; what they say stands in the row, and is shown.

    In a notebook as one table that grows below the figure, in a terminal as lines above the bar.

    Args:
        monitor: Of this run; of a resumed one with its rows so far.
        write: For a terminal: prints text without tearing the progress bar. None in a notebook.
        is_shown: Whether anything is shown at all.
    """

    def __init__(
        self, monitor: HealthMonitor, write: Callable[[str], None] | None = None, *, is_shown: bool = True
    ) -> None:
        self._monitor, self._write, self._is_shown = monitor, write, is_shown
        self._output = CellOutput()

    def on_row(self, row: dict[str, Any], completions: pandas.DataFrame | None) -> bool:
        """Look at the step, and say whether to stop."""
        fresh = self._monitor.update(row)
        if fresh:
            row["alerts"] = [alert.to_dict() for alert in fresh]
        if fresh and self._is_shown:
            try:
                self._show(fresh)
            except Exception as error:  # what cannot be shown is in the row, and is no reason to end a training
                self._is_shown = False
                warnings.warn(
                    f"Alerts of this run are not shown any more ({type(error).__name__}: {error}); run.alerts has them.",
                    stacklevel=2,
                )
        return self._monitor.should_stop

    def _show(self, fresh: Sequence[Alert]) -> None:
        if self._write is not None:
            for alert in fresh:
                self._write(repr(alert))
            return
        report = HealthReport(alerts=self._monitor.alerts, rows=self._monitor.course.count)
        self._output.show({"text/html": report._repr_html_(), "text/plain": repr(report)})
