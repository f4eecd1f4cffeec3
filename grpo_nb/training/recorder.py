"""Record each logged step of a training: write it, show it, and decide whether to save or stop.

For each step that TRL logs, the `Recorder` makes a row and the table of its completions, lets the
observers add to the row, asks the health rules, writes both with `write_step`, shows them, and
tells the trainer whether to save a checkpoint and whether to stop. Alerts depend only on the rows,
so a resumed run gets the same alerts.
"""

from __future__ import annotations

import contextlib
import copy
import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas
from tqdm import tqdm

from grpo_nb.config.settings import Settings
from grpo_nb.core.problems import warn_user
from grpo_nb.core.progress import CellOutput, is_notebook, progress_bar
from grpo_nb.evaluation.holdout import grade_answers
from grpo_nb.evaluation.model_sources import Decoding, complete_rows
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.health.history import duplicates_entry
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.rewards.base import reward_name
from grpo_nb.runs.alert import Alert, alert_table
from grpo_nb.runs.checkpoints import sync
from grpo_nb.runs.figure import LivePlot
from grpo_nb.runs.groups import completion_texts, completions_table
from grpo_nb.runs.measures import HOLDOUT_MEASURES
from grpo_nb.runs.rows import MEAN_LENGTH_KEY, MetricRow, row_from_logs
from grpo_nb.runs.run_folder import Run
from grpo_nb.runs.writing import write_figure, write_step
from grpo_nb.scoring.grader import deciding_reward, make_grader
from grpo_nb.upstream.trl import last_generation

import_unsloth()

from transformers import TrainerCallback

if TYPE_CHECKING:
    from grpo_nb.training.prepare import PreparedTraining
    from grpo_nb.training.trainer import RunTrainer

Observer = Callable[[MetricRow, pandas.DataFrame | None], bool | None]
"""A function that is called with each row before it is written, and with the step's completions.

The completions are those of `Run.completions(step)`, or None if the step used those of an earlier
step. Both are copies. New keys of the row are recorded, and all other changes are ignored. The key
"alerts" is refused. Each new value must be a number, also of numpy or torch, or another value that
JSON can hold. An observer returns True to end the training after this step. To keep its state when
the run is resumed, an observer needs `state_dict()` and `load_state_dict(state)`. The state is
stored as JSON.
"""


class Recorder(TrainerCallback):
    """Callback that writes and shows each logged step, and decides when to save and to stop.

    Args:
        run: The run whose folder is written to. Its existing rows are continued.
        trainer: The run's `RunTrainer`.
        settings: The run's settings.
        observers: Called with each row, in this order. The health rules come after them, because
            the rules read what observers add.

    Attributes:
        is_interrupted: True after the first Ctrl-C. The training then ends after the current
            step.
        stopped_by: Names of the observers and critical alerts that asked to stop.
        error: The error of an observer, or None. `train` raises it once the step is recorded and
            saved, so that the step is not lost.
        bar: The progress bar, from the first step on.
    """

    def __init__(
        self,
        run: Run,
        trainer: RunTrainer,
        settings: Settings,
        observers: Sequence[Observer],
    ) -> None:
        self.run = run
        self.trainer = trainer
        self.settings = settings
        self.observers = observers
        self.weights = run.weights
        self.health = HealthMonitor(
            weights=self.weights,
            ranges=run.ranges,
            group_size=settings.num_generations,
            rows=run.rows,
        )
        self.is_interrupted = False
        self.stopped_by = []
        self.error = None
        self.bar = None
        self._plot = LivePlot(run) if is_notebook() else None
        self._alert_output = CellOutput()
        self._can_show = True

    @contextlib.contextmanager
    def ending_after_step_at_interrupt(self) -> Iterator[None]:
        """End the training after the current step at the first Ctrl-C within the block.

        A second Ctrl-C ends the training at once. Outside the main thread, where no interrupt
        arrives, the block runs as usual.
        """

        def on_interrupt(number: int, frame: Any) -> None:
            # The second press raises `KeyboardInterrupt`, as in any program.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.is_interrupted = True
            if self.bar is not None:
                self.bar.set_description("stopping after this step, press again to stop now")

        # Python delivers signals to the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.write_or_load_first_checkpoint()
        self.bar = progress_bar(
            state.max_steps, initial=state.global_step, desc="training", unit="step", leave=True
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The last step must be logged, because a checkpoint only follows a logged step (`on_log`).
        control.should_log |= self.is_interrupted or control.should_training_stop

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        # At the end, transformers logs a summary of the training.
        if "train_runtime" in logs:
            return
        # 1. Make the row and the table of completions. Observers and health rules add to the row.
        row = row_from_logs(logs, state.global_step, state.max_steps, self.settings.beta)
        # A step without this metric reused the completions of an earlier one.
        table = self._completions_of_step(row) if MEAN_LENGTH_KEY in row else None
        row = self._ask_observers(row, table)
        new_alerts = self.health.update(row)
        if new_alerts:
            row["alerts"] = [alert.to_dict() for alert in new_alerts]
        # An alert stays critical for a while after its last critical row. Stop only at such a row,
        # and then name all critical alerts.
        if self.settings.stop_on_alert and self.health.is_critical:
            self.stopped_by += [
                alert.rule for alert in self.health.alerts if alert.state == "critical"
            ]
        # 2. Write before showing: a figure that fails loses nothing.
        write_step(self.run, row, table)
        self._show(row, new_alerts)
        # 3. Save the last step, whatever ends the training.
        if self.is_interrupted or self.stopped_by or self.error:
            control.should_training_stop = True
        is_save_due = self.trainer.is_save_due(self.settings.save_steps)
        control.should_save = control.should_training_stop or is_save_due
        if control.should_save:
            # The rows of a complete checkpoint must be on the disk.
            sync(self.run.path / "metrics.jsonl")

    def _completions_of_step(self, row: MetricRow) -> pandas.DataFrame:
        """Return the step's completions as a table; add measurements of their text to the row."""
        has_tools = bool(self.trainer.tools)
        logs = last_generation(self.trainer)
        table = completions_table(
            logs,
            step=row["step"],
            group_size=self.settings.num_generations,
            weights=self.weights,
            has_tools=has_tools,
        )
        row.update(duplicates_entry(completion_texts(table), table["group"]))
        if has_tools:
            # Share of episodes that end with a tool call, because no round was left to answer.
            last_turns = [turns[-1] for turns in logs["completion"]]
            row["tools/unanswered"] = fmean(bool(turn.get("tool_calls")) for turn in last_turns)
        return table

    def _ask_observers(self, row: MetricRow, table: pandas.DataFrame | None) -> MetricRow:
        """Return the row with what the observers add.

        The row goes through JSON, so that the health rules see what a resumed run will read. If an
        observer fails, or adds an entry that JSON cannot hold, its entries are left out, the
        observers after it are not asked, and its error ends the training after this step.
        """
        for observer in self.observers:
            # The observer gets copies, so that it cannot change the record.
            extended_row = copy.deepcopy(row)
            try:
                if observer(extended_row, None if table is None else table.copy()):
                    self.stopped_by.append(reward_name(observer))
                if "alerts" in extended_row:
                    raise ValueError(
                        "an observer cannot write row['alerts'], which has the alerts of the "
                        "health rules. Use another key."
                    )
                # Numbers of numpy and torch become floats. Recorded values take precedence.
                row = json.loads(json.dumps(extended_row, default=float)) | row
            except BaseException as error:
                # `train` raises the error after the row is written and saved.
                self.error = error
                break
        return row

    def _show(self, row: MetricRow, new_alerts: Sequence[Alert]) -> None:
        """Update bar, figure and alerts.

        If that fails, warn once and show nothing more: the training goes on.
        """
        if not self._can_show:
            return
        try:
            self.bar.update(row["step"] - self.bar.n)
            if "reward" in row:
                # The flag z avoids "-0.000".
                kl = f"{row['kl']:z.3f}" if "kl" in row else "not measured"
                self.bar.set_postfix({"reward": f"{row['reward']:.2f}", "KL": kl})
            # A notebook shows the figure and all alerts so far, a terminal only the new alerts.
            if self._plot is not None:
                self._plot.update()
                # Rendering the table takes longer than a small step, so it is rendered only when
                # there are new alerts.
                if new_alerts:
                    table = alert_table(self.health.alerts)
                    self._alert_output.show({"text/html": table.html(), "text/plain": table.text()})
            elif new_alerts:
                tqdm.write(alert_table(new_alerts).text())
        except Exception as error:
            self._can_show = False
            warn_user(
                "The progress of this training is not shown any more, because showing it failed "
                f"({type(error).__name__}: {error}). The training goes on, and everything is "
                "recorded: run.plot() draws the curves, run.alerts has the alerts.",
            )

    def close(self) -> None:
        """End the bar, write the curves as an image, and draw the last figure."""
        if self.bar is not None:
            self.bar.close()
        write_figure(self.run)
        if self._plot is not None and self._can_show:
            self._plot.update(is_last=True)


class HoldoutObserver:
    """Observer that answers held-out questions greedily at intervals and records the score.

    The keys are `holdout/accuracy`, `holdout/in_format` and `holdout/anywhere`. Each has a 95 %
    interval (`holdout/accuracy_low`, `holdout/accuracy_high` and so on). `anywhere` is left out if
    the grader does not report where it reads the answer. Step 1, if it is logged, and the step
    `max_steps` are always scored. The training is the same with and without the score, because
    `complete_rows` restores the random state.

    Args:
        prepared: The training. The same questions are asked each time, so that the whole curve
            shows one measure.

    Attributes:
        grader: Decides which answers count as correct.
    """

    def __init__(self, prepared: PreparedTraining) -> None:
        self._prepared = prepared
        self._questions = list(islice(prepared.task.holdout, prepared.settings.holdout_questions))
        # The grader is made once, so that all points of the curve have the same pass score.
        self.grader = make_grader(
            deciding_reward(prepared.rewards),
            self._questions,
            prepared.task.format,
            tokenizer=prepared.tokenizer,
            start_episode=prepared.task.start_episode,
        )

    def __call__(self, row: MetricRow, _table: Any) -> None:
        """Answer the questions and add the score to the row, if it is due at this step."""
        prepared = self._prepared
        # The first and the last step are the ends of the curve.
        is_end = row["step"] in (1, row["max_steps"])
        if row["step"] % prepared.settings.holdout_every and not is_end:
            return
        # Answer with the engine that trains, because the memory plan counts only that engine.
        greedy = Decoding(
            settings=prepared.settings_as_run,
            chat_template_kwargs=prepared.task.chat_template_kwargs,
            tools=prepared.task.tools,
        )
        completions = complete_rows(prepared.model, prepared.tokenizer, self._questions, greedy)
        graded = grade_answers(
            self._questions, completions, prepared.task.format, grader=self.grader
        )
        evaluation = Evaluation(label="", rows=graded, grader=self.grader)
        for measure in HOLDOUT_MEASURES:
            interval = evaluation.interval_of(measure.name)
            if interval is not None:
                row[measure.row_key] = evaluation.share_of(measure.name)
                row.update(zip(measure.interval_keys, interval, strict=True))
