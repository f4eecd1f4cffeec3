"""What a training writes and shows at each logged step, and who else looks at it: rows, completions, live figure, observers."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grpo_nb.config import Settings
from grpo_nb.interrupts import Interrupts
from grpo_nb.metrics import Run, read_rows, tidy_row
from grpo_nb.models import import_unsloth
from grpo_nb.plots import LivePlot, is_notebook, png, training_figure
from grpo_nb.random_state import kept_random_state

import_unsloth()

from transformers import TrainerCallback

if TYPE_CHECKING:
    import pandas

    from grpo_nb.resumable import ResumableTrainer


class Observer(Protocol):
    """Looks at each logged step while a run is trained; may add measurements to its row, and may ask to stop.

    What it says in `state_dict` is kept in each checkpoint and handed to `load_state_dict` when the run is resumed, so
    that nothing is told or counted twice.

    The stop button waits for it. One that takes long and has nothing to remember can have an attribute `is_interruptible =
    True`: then it is cut short, and what it would have added to the row is missing there.
    """

    def on_row(self, row: dict[str, float], completions: pandas.DataFrame | None) -> bool:
        """Look at a step before it is written; keys added to the row are written with it.

        Args:
            row: As `Run.rows` has it, with `step`.
            completions: As `Run.completions(step)` gives it; None where the step used completions of an earlier one
                (`num_iterations` above 1), whose row has no rewards either.

        Returns:
            True to stop the training after this step, with its checkpoint and adapter saved.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What it has to remember, fit for JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what was remembered."""
        ...


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
        self.trainer: ResumableTrainer | None = None
        self.interrupts = Interrupts()
        self.stopped_by: str | None = None
        """The observer that asked to stop."""
        self.pending: BaseException | None = None
        """What went wrong while a step was recorded. Raised when the step is complete: its weights are already changed."""
        self._warned: set[str] = set()
        self._started = time.perf_counter()
        self.live = LivePlot(weights, settings.beta) if is_notebook() else None
        self.bar: Any = None
        (run.path / "completions").mkdir(exist_ok=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin()
        if self.live is None:
            from tqdm import tqdm

            done = state.global_step
            self.bar = tqdm(
                total=state.max_steps,
                initial=done,
                desc=f"training, resumed at step {done}" if done else "training",
                unit="step",
            )

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
            table = self._completions(state.global_step) if "reward" in row else None
            self._ask_observers(row, table)
        except BaseException as error:
            self._keep(error)
        if self.stopped_by is not None:
            control.should_training_stop = True
        try:
            plain = self._plain(row, state.global_step)
            row.clear()
            row.update(plain)
            self._write(row, table)
        except Exception as error:
            self._keep(error)
        self._show(row)

    def _ask_observers(self, row: dict[str, float], table: pandas.DataFrame | None) -> None:
        for observer in self.observers:
            if self._ask(observer, row, table):
                self.stopped_by = type(observer).__name__

    def _ask(self, observer: Observer, row: dict[str, float], table: pandas.DataFrame | None) -> bool:
        if not getattr(observer, "is_interruptible", False):
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
            except (
                Warning
            ) as error:  # where warnings are errors, they end the training, but not in the middle of a step
                self._keep(error)

    def _show(self, row: Mapping[str, float]) -> None:
        """Bring the figure or the bar up to date. One that fails is switched off: it is no reason to end a training."""
        try:
            if self.live is not None:
                self.live.update(self.rows, alerts=self._alerts())
            elif self.bar is not None:
                self._advance_bar(row)
        except Exception as error:
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        what = "figure" if self.live is not None else "progress bar"
        self.live = self.bar = None
        self._warn_once(
            "the display",
            f"The live {what} is switched off, because it failed ({type(error).__name__}: {error}). The training goes on, and "
            "everything is recorded: run.plot() draws it.",
        )

    @property
    def step(self) -> int:
        """The last step that was recorded; 0 before the first."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def seconds(self) -> float:
        """Time since this process began with the run."""
        return time.perf_counter() - self._started

    def copy_records(self, folder: Path) -> None:
        """Write the rows and alerts so far into a checkpoint, which they belong to: the run's own go back to them."""
        # From memory: where the last row could not be written, the checkpoint has it all the same.
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        alerts = self.run.path / "alerts.jsonl"
        if alerts.is_file():
            (folder / "alerts.jsonl").write_bytes(alerts.read_bytes())

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
        file = self.run.path / "completions" / f"step_{row['step']:06d}.parquet"
        staged = file.with_suffix(".partial")
        try:
            table.to_parquet(staged, index=False)
            staged.replace(file)
        finally:
            staged.unlink(missing_ok=True)

    def _completions(self, step: int) -> pandas.DataFrame:
        import pandas

        logs = self.trainer._logs  # the last generation batch, which TRL keeps whether or not it prints it
        count = len(logs["completion"])
        table: dict[str, Any] = {
            "step": [step] * count,
            # Rows of a group are consecutive: RepeatSampler repeats each prompt num_generations times.
            "group": [i // self.settings.num_generations for i in range(count)],
            "prompt": [json.dumps(p) if not isinstance(p, str) else p for p in logs["prompt"]],
            "completion": [c if isinstance(c, str) else c[-1]["content"] for c in logs["completion"]],
        }
        scores = {name: list(values) for name, values in logs["rewards"].items()}
        table |= scores
        columns = [(scores[name], weight) for name, weight in self.weights.items()]
        table["total"] = [
            math.fsum(w * values[i] for values, w in columns if not math.isnan(values[i])) for i in range(count)
        ]
        table["advantage"] = list(logs["advantages"])
        return pandas.DataFrame(table)

    def _alerts(self) -> list[dict[str, Any]]:
        return read_rows(self.run.path / "alerts.jsonl")

    def _advance_bar(self, row: Mapping[str, float]) -> None:
        if "reward" in row:
            shown = {"reward": f"{row['reward']:.2f}", "KL": f"{row['kl']:z.3f}" if "kl" in row else "not measured"}
            self.bar.set_postfix(shown, refresh=False)
        self.bar.update(row["step"] - self.bar.n)

    def state_dict(self) -> dict[str, Any]:
        """What the observers have to remember, by name."""
        return {name: observer.state_dict() for name, observer in self._named_observers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand each observer what it had to remember; one that was not there before starts anew."""
        for name, observer in self._named_observers():
            if name in state:
                observer.load_state_dict(state[name])

    def _named_observers(self) -> list[tuple[str, Observer]]:
        named: dict[str, Observer] = {}
        for observer in self.observers:
            kind = type(observer).__name__
            same = sum(name.split("#")[0] == kind for name in named)
            named[f"{kind}#{same}"] = observer
        return list(named.items())

    def close(self) -> None:
        """End the bar or the live figure."""
        try:
            if self.bar is not None:
                self.bar.close()
            if self.live is not None:
                self.live.update(self.rows, alerts=self._alerts(), is_last=True)
        except Exception as error:
            self._switch_off(error)

    def save_figure(self) -> Path | None:
        """Write the curves as an image, if there is a row."""
        if not self.rows:
            return None
        folder = self.run.path / "figures"
        folder.mkdir(exist_ok=True)
        file, staged = folder / "training.png", folder / ".training.partial"
        figure = training_figure(self.rows, self.weights, self.settings.beta, alerts=self._alerts())
        try:
            staged.write_bytes(png(figure, dpi=150))
            staged.replace(file)
        finally:
            staged.unlink(missing_ok=True)
        return file


def _as_plain(key: Any, value: Any) -> Any:
    """A value as JSON reads it back; numbers of numpy and torch as floats."""
    if not isinstance(key, str):
        raise TypeError("the key is no text")
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return float(value)
    return value
