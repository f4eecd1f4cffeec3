"""What a training writes and shows at each logged step: rows, completions, the live figure; and the observers it asks."""

from __future__ import annotations

import itertools
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import staged_file
from grpo_nb.core.progress import is_notebook, progress_bar
from grpo_nb.core.randomness import kept_random_state
from grpo_nb.health.course import sameness
from grpo_nb.models.unsloth import import_unsloth
from grpo_nb.runs.alert import alerts_of
from grpo_nb.runs.best import best_step
from grpo_nb.runs.live import LivePlot
from grpo_nb.runs.rows import read_rows, tidy_row
from grpo_nb.runs.run import Run
from grpo_nb.settings.settings import Settings
from grpo_nb.training.interrupts import Interrupts
from grpo_nb.training.observers import Observer

import_unsloth()

from transformers import TrainerCallback

if TYPE_CHECKING:
    import pandas


# Generations in a row without any score after which a training ends: one can be bad luck, such as a judge out of reach.
_PATIENCE = 3
_GENERATED = "completions/mean_length"
"""Logged where a step made completions, whatever came of their scores."""


class ProgressLine:
    """A bar of the steps, with the last reward and KL; also in a notebook, where the figure waits for its next redraw."""

    def __init__(self, done: int, total: int) -> None:
        described = f"training, resumed at step {done}" if done else "training"
        self._bar = progress_bar(total, initial=done, desc=described, unit="step", leave=True)

    def update(self, rows: Sequence[Mapping[str, float]], *, alerts: Sequence[Any] = (), is_last: bool = False) -> None:
        """Go to the last row."""
        if is_last:
            self._bar.close()
            return
        row = rows[-1]
        if "reward" in row:
            shown = {"reward": f"{row['reward']:.2f}", "KL": f"{row['kl']:z.3f}" if "kl" in row else "not measured"}
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update(row["step"] - self._bar.n)
        self._bar.refresh()


class Recorder(TrainerCallback):
    """Writes each logged step to the run directory and shows it: a live figure in a notebook, a bar in a terminal.

    Args:
        run: Whose folder is written to; rows that are there are continued.
        settings: Of the run.
        weights: Of the rewards by name.
        observers: Asked at each row, in this order.
    """

    def __init__(
        self, run: Run, settings: Settings, weights: Mapping[str, float], observers: Sequence[Observer] = ()
    ) -> None:
        self.run, self.settings, self.weights = run, settings, dict(weights)
        self.observers = list(observers)
        self.rows: list[dict[str, float]] = read_rows(run.path / "metrics.jsonl")
        self.trainer: Any = None
        """Told to `begin` when everything is built and loaded; keeps the last generation batch in `_logs`, as TRL does."""
        self.interrupts = Interrupts()
        self.stopped_by: str | None = None
        """The observer that asked to stop."""
        self.pending: BaseException | None = None
        """What went wrong while a step was recorded. Raised when the step is complete: its weights are already changed."""
        self._warned: set[str] = set()
        self.started = time.perf_counter()
        self.displays: list[ProgressLine | LivePlot] = []
        (run.path / "completions").mkdir(exist_ok=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin()
        self.displays = [ProgressLine(state.global_step, state.max_steps)]
        self.displays += [LivePlot(self.weights, self.settings.beta, self.run.reference)] if is_notebook() else []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.interrupts.hold()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs is None or "train_runtime" in logs:  # the trainer's closing summary
            return
        # As it is noted: TRL's own means of what rewards log may be numpy's numbers, which a tidy row would not take.
        row = tidy_row(self._plain(logs, state.global_step), state.global_step, state.max_steps, self.settings.beta)
        self.rows.append(row)  # whatever happens below, the step was done
        table: pandas.DataFrame | None = None
        try:
            table = self._completions(state.global_step) if _GENERATED in row else None
            if table is not None:
                row |= sameness(list(group) for _, group in table.groupby("group")["completion"])
            for observer in self.observers:
                if self._ask(observer, row, table):
                    self.stopped_by = type(observer).__name__
            self._require_scores(row)
        except BaseException as error:
            self._keep(error)
        if self.stopped_by is not None:
            control.should_training_stop = True
        if self.kept_step == row["step"]:
            control.should_save = True  # its adapter is in no other place once the next step is done
        try:
            self.rows[-1] = row = self._plain(row, state.global_step)
            self._write(row, table)
        except Exception as error:
            self._keep(error)
        self._show()

    @property
    def kept_step(self) -> int | None:
        """The best held-out step, whose checkpoint is kept; None where the last step is what counts."""
        best = best_step(self.rows) if self.settings.keep == "best" else None
        return best and best.step

    def _require_scores(self, row: Mapping[str, Any]) -> None:
        """Refuse to go on, or to end as if all were well, where no reward says anything of any completion.

        Raises:
            ValueError: Which rewards, what they gave, and what to write.
        """
        generated = (row for row in reversed(self.rows) if _GENERATED in row)
        silent = sum(1 for _ in itertools.takewhile(lambda row: "reward" not in row, generated))
        is_end = row["step"] == row["max_steps"] and not any("reward" in row for row in self.rows)
        if silent >= _PATIENCE or (silent and is_end):
            names = ", ".join(map(repr, self.weights))
            raise ValueError(
                f"nothing was learnt in the last {silent} step{'s' * (silent > 1)}: the reward{'s' * (len(self.weights) > 1)} "
                f"{names} gave NaN or None for every completion. Return a finite number for each, 0.0 for a bad one; "
                "gn.score(rewards, completions, row) shows what they give, run.completions() what they were given."
            )

    def _ask(self, observer: Observer, row: dict[str, float], table: pandas.DataFrame | None) -> bool:
        if not observer.is_interruptible:
            return observer.on_row(row, table)
        try:
            # The random state outside: wherever the interrupt comes, it is put back whole.
            with kept_random_state(), self.interrupts.let_through():
                return observer.on_row(row, table)
        except KeyboardInterrupt as interrupt:
            self.interrupts.hold()  # it may have come on the way back to holding
            self._keep(interrupt)
            return False

    def _keep(self, error: BaseException) -> None:
        """Keep an error until the step is complete. The first one is raised, and says what came after it."""
        if self.pending is None:
            self.pending = error
            return
        # An interrupt only ends the training, while an error says why it has to end.
        first, second = (self.pending, error) if isinstance(self.pending, Exception) else (error, self.pending)
        first.add_note(f"In the same step: {type(second).__name__}: {second}")
        self.pending = first

    def _plain(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """What JSON can hold, and numbers of other kinds as plain ones. What is neither is left out, with a warning."""
        plain: dict[str, Any] = {}
        for key, value in values.items():
            if value is None:  # not measured: it has no key
                continue
            try:
                plain[key] = _as_plain(key, value)
            except Exception:  # whatever its own conversion raises
                self._warn_once(
                    str(key), f"{key!r} of step {step} is left out of the rows: {value!r:.100} is no number, but a "
                    f"{type(value).__name__}. Add a float to the row to keep it.",
                )  # fmt: skip
        return plain

    def _warn_once(self, subject: str, text: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            try:
                warnings.warn(text, stacklevel=2)
            except Warning as error:  # where they are errors, they end the training, but not in the middle of a step
                self._keep(error)

    def _show(self, *, is_last: bool = False) -> None:
        """Bring the bar and the figure up to date. One that fails is switched off: it is no reason to end a training."""
        for display in list(self.displays):
            try:
                display.update(self.rows, alerts=alerts_of(self.rows), is_last=is_last)
            except Exception as error:
                what = "figure" if isinstance(display, LivePlot) else "progress bar"
                self.displays.remove(display)
                self._warn_once(
                    what,
                    f"The live {what} is switched off, because it failed ({type(error).__name__}: {error}). The training goes "
                    "on, and everything is recorded: run.plot() draws it.",
                )

    @property
    def step(self) -> int:
        """The last step that was recorded; 0 before the first."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def seconds(self) -> float:
        """Time that the run took, with its parts in earlier processes: `started` is set back by them."""
        return time.perf_counter() - self.started

    def copy_records(self, folder: Path) -> None:
        """Write the rows so far into a checkpoint, which they belong to: the run's own go back to them."""
        # From memory: where the last row could not be written, the checkpoint has it all the same.
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def raise_pending(self) -> None:
        """Raise what went wrong while the last step was recorded."""
        if self.pending is not None:
            error, self.pending = self.pending, None
            if isinstance(error, Exception):
                error.add_note(f"This came while step {self.step} was recorded; the step itself was done.")
            raise error

    def _write(self, row: Mapping[str, float], table: pandas.DataFrame | None) -> None:
        # Opened anew each time: a network drive sends a file away when it is closed.
        with (self.run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if table is None:
            return
        with staged_file(self.run.path / "completions" / f"step_{row['step']:06d}.parquet") as staged:
            table.to_parquet(staged, index=False)

    def _completions(self, step: int) -> pandas.DataFrame:
        return completions_table(self.trainer._logs, step, self.settings.num_generations, self.weights)

    @property
    def named_observers(self) -> dict[str, Observer]:
        """The observers by names that a resumed run finds again."""
        kinds = [type(observer).__name__ for observer in self.observers]
        return {f"{kind}#{kinds[:i].count(kind)}": self.observers[i] for i, kind in enumerate(kinds)}

    def close(self) -> None:
        """End the bar or the live figure, and write the curves as an image, if there is a row."""
        self._show(is_last=True)
        self.run.save_figure()


def completions_table(logs: Mapping[str, Any], step: int, size: int, weights: Mapping[str, float]) -> pandas.DataFrame:
    """Return the last generation batch of a trainer as `Run.completions` has it.

    Args:
        logs: What TRL keeps of it, whether or not it prints it.
        step: Of the trainer.
        size: Of a group. Its rows are consecutive: RepeatSampler repeats each prompt `num_generations` times.
        weights: Of the rewards by name.
    """
    import pandas

    count = len(logs["completion"])
    scores = {name: list(values) for name, values in logs["rewards"].items()}
    columns = [(scores[name], weight) for name, weight in weights.items()]
    return pandas.DataFrame(
        {
            "step": [step] * count,
            "group": [i // size for i in range(count)],
            "prompt": [json.dumps(p) if not isinstance(p, str) else p for p in logs["prompt"]],
            "completion": [c if isinstance(c, str) else c[-1]["content"] for c in logs["completion"]],
            **scores,
            "total": [_total([w * values[i] for values, w in columns]) for i in range(count)],
            "advantage": list(logs["advantages"]),
        }
    )


def _total(scores: Sequence[float]) -> float:
    """The sum of those that are a number, as TRL has it; NaN where none is."""
    known = [score for score in scores if not math.isnan(score)]
    return math.fsum(known) if known else math.nan


def _as_plain(key: Any, value: Any) -> Any:
    """A value as JSON reads it back; numbers of numpy and torch as floats."""
    if not isinstance(key, str):
        raise TypeError("the key is no text")
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return float(value)
    return value
