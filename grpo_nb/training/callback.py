"""What happens at each logged step: a row is made, observers look at it, the folder has it, it is shown, a checkpoint is due.

TRL logs -> row and table of completions -> observers, each may add to the row -> health rules -> `Run.write_step` -> bar,
figure, alerts -> `grpo_nb.training.trainer`. Nothing is kept here that the rows do not say.
"""

import contextlib
import json
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from tqdm import tqdm

from grpo_nb.config.settings import Settings
from grpo_nb.core.files import put_in_place, staged_folder
from grpo_nb.core.progress import CellOutput, is_notebook, progress_bar
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.models.adapter import save_adapter
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.rewards.base import completion_text
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.checkpoints import keep_best
from grpo_nb.runs.figure import LivePlot
from grpo_nb.runs.groups import played
from grpo_nb.runs.repetition import repetition_metrics
from grpo_nb.runs.rows import best_row, tidy_row
from grpo_nb.runs.run_folder import Run
from grpo_nb.upstream.trl import last_generation

import_unsloth()

from transformers import TrainerCallback

Observer = Callable[[dict[str, Any], pandas.DataFrame | None], bool | None]
"""Called with each row before it is written, and the step's completions, as `Run.completions(step)` gives them (None where the
step used those of an earlier one). It may add keys to the row; True ends the training after this step. One that remembers
something is resumed with it, if it has `state_dict()` and `load_state_dict(state)`."""

_GENERATED = "completions/mean_length"
"""Logged where a step made completions, whatever came of their scores."""


class Recorder(TrainerCallback):
    """Writes each logged step into the run's folder and shows it; tells the trainer when to save and when to stop.

    Args:
        run: Whose folder is written to; rows that are there are continued.
        trainer: Keeps the last generation batch in `_logs`, as TRL does, and says when to save.
        settings: Of the run.
        observers: Asked at each row, in this order; the health rules come last, for they read what all others add.
    """

    def __init__(
        self, run: Run, trainer: Any, settings: Settings, observers: Sequence[Observer] = ()
    ) -> None:
        self.run, self.trainer, self.settings, self.observers = (
            run,
            trainer,
            settings,
            list(observers),
        )
        self.rows, self.weights = run.rows, run.weights
        self.health = HealthMonitor(
            weights=self.weights, settings=settings, ranges=run.ranges, rows=self.rows, stop_on=settings.stop_on_alert
        )  # fmt: skip
        self.is_interrupted = False
        """Whether the stop button was pressed."""
        self.stopped_by: str | None = None
        """The critical alerts, or the observer, that asked to stop."""
        self.error: BaseException | None = None
        """What an observer raised. The step was done, so it is recorded and saved before this is raised."""
        self.bar: tqdm | None = None
        """There from the first step on."""
        self._plot: LivePlot | None = None
        self._alerts = CellOutput()
        self._is_shown = True

    @contextlib.contextmanager
    def stop_button(self) -> Iterator[None]:
        """Within the block the first Ctrl-C lets the step end, and a second one is raised at once; the bar says so.

        Outside of the main thread no interrupt arrives.
        """

        def note(number: int, frame: Any) -> None:
            if self.is_interrupted:
                raise KeyboardInterrupt
            self.is_interrupted = True
            if self.bar is not None:
                self.bar.set_description("stopping after this step, press again to stop now")

        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, note) if is_main else None
        try:
            yield
        finally:
            if is_main:
                signal.signal(signal.SIGINT, before)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin()
        state.log_history = [dict(row) for row in self.rows]
        self.bar = progress_bar(
            state.max_steps, initial=state.global_step, desc="training", unit="step", leave=True
        )
        self._plot = (
            LivePlot(self.weights, self.settings.beta, self.run.reference)
            if is_notebook()
            else None
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A judge without the calls for another step ends the training as the stop button does.
        if any(getattr(reward, "is_spent", False) for reward in self.run.rewards):
            self.is_interrupted = True
            warnings.warn(
                "A judge's budget does not last for another step, so it ends here.", stacklevel=2
            )
        # With more `logging_steps`, too: a checkpoint comes after a row.
        control.should_log |= self.is_interrupted or control.should_training_stop

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if logs is None or "train_runtime" in logs:  # the trainer's closing summary
            return
        row = tidy_row(logs, state.global_step, state.max_steps, self.settings.beta)
        table = None
        if _GENERATED in row:
            has_tools, size = bool(self.trainer.tools), self.settings.num_generations
            table = completions_table(
                last_generation(self.trainer), row["step"], size, self.weights, has_tools
            )
            texts = list(played(table))
            row |= repetition_metrics(
                texts[first : first + size] for first in range(0, len(texts), size)
            )
            if has_tools:
                last = [turns[-1] for turns in map(json.loads, table["turns"])]
                row["tools/unanswered"] = sum(bool(turn.get("tool_calls")) for turn in last) / len(
                    last
                )
        for observer in self.observers:
            try:
                if observer(row, table):
                    self.stopped_by = getattr(observer, "__name__", type(observer).__name__)
            except (Exception, KeyboardInterrupt) as error:
                self.error = self.error or error
        fresh = self.health.update(row)
        row |= {"alerts": [alert.to_dict() for alert in fresh]} if fresh else {}
        if self.health.should_stop:
            self.stopped_by = ", ".join(
                alert.rule for alert in self.health.alerts if alert.kind == "critical"
            )
        self.run.write_step(row, table)
        self.rows.append(row)
        if "holdout/accuracy" in row and best_row(self.rows)["step"] == row["step"]:
            target = best_adapter(self.run, row["step"])
            with staged_folder(target) as staged:
                save_adapter(self.trainer.accelerator.unwrap_model(self.trainer.model), staged)
                put_in_place(staged, target)
            keep_best(self.run.path)
        self._show(row, fresh)
        control.should_training_stop |= self.is_interrupted or bool(self.stopped_by or self.error)
        control.should_save = control.should_training_stop or self.trainer.is_save_due(
            self.settings.save_steps
        )

    def _show(self, row: Mapping[str, Any], fresh: Sequence[Alert]) -> None:
        """Bring bar, figure and alerts up to date. Where that fails it is left: it is no reason to end a training."""
        if not self._is_shown:
            return
        try:
            if "reward" in row:
                shown = {
                    "reward": f"{row['reward']:.2f}",
                    "KL": f"{row['kl']:z.3f}" if "kl" in row else "not measured",
                }
                self.bar.set_postfix(shown, refresh=False)
            self.bar.update(row["step"] - self.bar.n)
            self.bar.refresh()
            if self._plot is not None:
                self._plot.update(self.rows, alerts=self.health.alerts)
            if fresh and is_notebook():
                report = self.health.report()
                self._alerts.show({"text/html": report._repr_html_(), "text/plain": repr(report)})
            else:
                for alert in fresh:
                    tqdm.write(repr(alert))
        except Exception as error:
            self._is_shown = False
            warnings.warn(
                f"Nothing more is shown of this training, because showing it failed ({type(error).__name__}: {error}). It goes "
                "on, and everything is recorded: run.plot() draws it, run.alerts has the alerts.",
                stacklevel=2,
            )

    def close(self) -> None:
        """End the bar, draw the last figure, and write the curves as an image."""
        if self.bar is not None:
            self.bar.close()
        if self._plot is not None and self._is_shown:
            self._plot.update(self.rows, alerts=self.health.alerts, is_last=True)
        self.run.save_figure()


def best_adapter(run: Run, step: int) -> Path:
    """Where the adapter of the best held-out score is kept."""
    return run.path / "best" / f"step-{step}"


def completions_table(
    logs: Mapping[str, Any],
    step: int,
    size: int,
    weights: Mapping[str, float],
    has_tools: bool = False,
) -> pandas.DataFrame:
    """Return the last generation batch of a trainer as `Run.completions` has it.

    Args:
        logs: What TRL keeps of it, whether or not it prints it.
        step: Of the trainer.
        size: Of a group. Its rows are consecutive: RepeatSampler repeats each prompt `num_generations` times.
        weights: Of the rewards by name.
        has_tools: Whether a completion is an episode, of which every turn is kept.
    """
    scores = pandas.DataFrame({name: list(values) for name, values in logs["rewards"].items()})
    prompts = [
        prompt if isinstance(prompt, str) else json.dumps(prompt) for prompt in logs["prompt"]
    ]
    texts = list(map(completion_text, logs["completion"]))
    # Of those that are a number, as TRL has it; NaN where none is.
    total = (scores * pandas.Series(weights)).sum(axis=1, min_count=1)
    first = {"step": step, "group": scores.index // size, "prompt": prompts, "completion": texts}
    if has_tools:
        first["turns"] = [json.dumps(turns, default=str) for turns in logs["completion"]]
    own = {**first, **scores, "total": total, "advantage": list(logs["advantages"])}
    # What rewards log of each completion (TRL's `log_extra`), such as a judge's words.
    said = {
        name: pandas.Series(map(str, words))
        for name, words in logs.get("extra", {}).items()
        if name not in own
    }
    # At once: a table that grows by columns takes twice as long.
    return pandas.DataFrame(own | said)
