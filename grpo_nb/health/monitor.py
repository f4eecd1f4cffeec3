"""Is this run well? Alerts with numbers and advice, while it trains or from any log, at a cost that does not grow with it.

The rules are in `rules_signal` and `rules_rewards`, what they remember in `history`. docs/guide/health.md has every rule with
its threshold and source. Nothing here plots, and nothing loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from grpo_nb.core.files import write_text
from grpo_nb.health.facts import number
from grpo_nb.health.following import Followed
from grpo_nb.health.history import LEAST, WINDOW, History
from grpo_nb.health.report import HealthReport
from grpo_nb.health.rules_rewards import RULES as REWARD_RULES
from grpo_nb.health.rules_signal import FROM_THE_FIRST_ROW
from grpo_nb.health.rules_signal import RULES as SIGNAL_RULES
from grpo_nb.health.sources import completions_of, read_log
from grpo_nb.runs.alert import Alert, read_alerts
from grpo_nb.runs.run import Run
from grpo_nb.settings.out_of_memory import memory_advice
from grpo_nb.settings.settings import Settings

_FILE = "alerts.jsonl"
_FACTS = {
    "kl": "KL (it is not computed with beta = 0)",
    "no_spread": "spread within groups",
    "clipped": "share of completions cut at the length limit",
    "grad_norm": "gradient norm",
    "length": "completion length",
    "entropy": "entropy",
    "step_time": "step time",
    "duplicates": "repeated completions (no texts were given)",
}


class HealthMonitor:
    """Looks at each logged row as it comes, and returns what is new to say.

    It keeps the last 50 rows, the first 50 and some tallies, so that a step costs the same after a hundred rows and after a
    million. There is one alert for each rule and subject. It is told when it comes, when it becomes more severe, and when it
    is withdrawn, since for 20 rows it was not true; it says its number at first, at worst and at last.

    Args:
        weights: Weight by reward name. Without, the main reward is known by its name, if it has one that says so.
        settings: The run's; alerts then name the values to write, and KL counts as not measured with `beta = 0`.
        ranges: The least and the most that each reward pays, by name: without, no level is called low or high. The folder of
            a run knows those of the kit's rewards, and of functions that have an attribute `range`.
        folder: Of a run that trains: its alerts.jsonl has each alert as it stands, whenever there is news and every ten rows.
            Of a resumed run, the rows that the folder holds already are replayed first, so that an alert is neither repeated
            nor forgotten, also if the process was killed between a row and its alert.
        stop_on: `"critical"` to be told to stop at the first critical alert; of a resumed run also at one from before, if it
            is still found after ten more rows.

    >>> monitor = HealthMonitor()
    >>> rows = [{"step": i, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0} for i in range(1, 31)]
    >>> alerts = [alert for row in rows for alert in monitor.update(row)]
    >>> [(alert.rule, alert.severity, alert.step) for alert in alerts]
    [('no_spread', 'warning', 10), ('no_spread', 'critical', 20)]
    """

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        settings: Settings | None = None,
        ranges: Mapping[str, Sequence[float]] | None = None,
        folder: str | Path | None = None,
        stop_on: Literal["critical"] | None = None,
    ) -> None:
        if stop_on not in ("critical", None):
            raise ValueError(f"stop_on = {stop_on!r}: write 'critical', or None to go on whatever happens.")
        _check_told(weights, settings, ranges)
        self.stop_on = stop_on
        self.should_stop = False
        """Whether a critical alert has come and `stop_on` asks to stop. Save first."""
        run = Run(folder) if folder is not None else None
        if run is not None and ranges is None and (run.path / "run.json").is_file():
            ranges = run.ranges
        self._history = History(weights or {}, settings, ranges or {})
        self._followed: dict[tuple[str, str], Followed] = {}
        self._file: Path | None = None
        self._others: list[Alert] = []
        """Alerts of the folder that came from no row."""
        self._resumed_at = 0
        if run is not None:
            texts = completions_of(run, last=WINDOW)
            for row in run.rows:
                self._look(row, _at_step(texts, row))
            self._file, self._resumed_at = run.path / _FILE, self._history.count
            found = self._followed.keys()
            self._others = [a for a in read_alerts(self._file) if (a.rule, a.subject) not in found]
            if found:
                self._write()

    def update(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> list[Alert]:
        """Take in a logged row and return what is new, which is on disk by then. A row may lack any key, and hold anything.

        Args:
            row: As in metrics.jsonl or TRL's `log_history`, with either generation of names.
            completions: The texts of this step, groups one after the other, or one list per group.
        """
        fresh, count = self._look(row, completions), self._history.count
        if self._file is not None and (fresh or (self._followed and count % LEAST == 0)):
            self._write()
        if self._resumed_at and count - self._resumed_at >= LEAST and not self.should_stop:
            old = [f.alert for f in self._followed.values() if f.is_found(self.stop_on, count)]
            fresh += [alert for alert in old if alert not in fresh]
        self.should_stop |= any(alert.kind == self.stop_on for alert in fresh)
        return fresh

    def _look(self, row: Mapping[str, Any], completions: Iterable[Any] | None) -> list[Alert]:
        history = self._history
        is_training = history.add(row, completions)
        rules = [*FROM_THE_FIRST_ROW]
        if history.count >= LEAST and (is_training or history.holdout):
            rules += [*SIGNAL_RULES, *REWARD_RULES]
        for rule in rules:
            for alert in rule.alerts(history):
                followed = self._followed.setdefault((alert.rule, alert.subject), Followed(rule))
                followed.find(alert, history.count)
        return [f.alert for f in self._followed.values() if f.settle(history.count, history.last_step)]

    def _write(self) -> None:
        _write_alerts(self._file, (*self._others, *self.alerts))

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """All alerts as they stand, in the order in which they came; those withdrawn are among them."""
        return tuple(followed.alert for followed in self._followed.values())

    @property
    def checked(self) -> str:
        """How much was looked at, in one sentence."""
        history = self._history
        if not history.count:
            return "No row has a reward, so there was nothing to look at."
        if history.count < LEAST:
            return f"{history.count} rows were looked at; the rules speak from {LEAST} on."
        return f"{history.count} rows up to step {history.last_step} were looked at."

    @property
    def not_measured(self) -> tuple[str, ...]:
        """What no row so far has held, so that no rule could speak about it."""
        history = self._history
        missing = [words for fact, words in _FACTS.items() if not history.values(fact)]
        missing += ["single rewards"] if not history.names else []
        missing += ["held-out score"] if not history.holdout else []
        return tuple(missing) if history.count else ()


def check_health(
    rows: Run | str | Path | Iterable[Mapping[str, Any]],
    *,
    weights: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    ranges: Mapping[str, Sequence[float]] | None = None,
    completions: Mapping[int, Sequence[Any]] | Sequence[Sequence[Any]] | None = None,
) -> HealthReport:
    """Replay a log and report what a monitor would have said, step by step. Changes nothing, loads no model.

    Args:
        rows: Rows as in metrics.jsonl or TRL's `log_history`; or a run, its folder, a checkpoint's folder, or the path of a
            metrics.jsonl or trainer_state.json. Names of either generation of TRL.
        weights: Weight by reward name; a run knows its own.
        settings: A run knows its own.
        ranges: The least and the most that each reward pays, by name; a run knows those of the kit's rewards.
        completions: The texts of each step: by step, or one entry per row. A run knows its own.

    Raises:
        ValueError: What is there is no log, or is damaged.
        TypeError: Of these arguments one is of another kind.
        FileNotFoundError: There is nothing at that path.

    >>> rows = [{"step": i, "reward": 0.1 * i, "reward_std": 0.5, "kl": 0.001 * i} for i in range(1, 31)]
    >>> check_health(rows).ok
    True
    """
    _check_told(weights, settings, ranges, completions)
    log, run = read_log(rows)
    if run is not None:
        weights = run.weights if weights is None else weights
        settings = run.settings if settings is None else settings
        ranges = run.ranges if ranges is None else ranges
        completions = completions_of(run) if completions is None else completions
    monitor = HealthMonitor(weights=weights, settings=settings, ranges=ranges)
    told: list[Alert] = []
    in_order = iter(() if completions is None or isinstance(completions, Mapping) else completions)
    for row in log:
        texts = _at_step(completions, row) if isinstance(completions, Mapping) else next(in_order, None)
        told += monitor.update(row, texts)
    return HealthReport(
        alerts=monitor.alerts, told=tuple(told), checked=monitor.checked, not_measured=monitor.not_measured
    )


def _check_told(weights: Any, settings: Any, ranges: Any, completions: Any = None) -> None:
    """Raise `TypeError` for what says nothing about a run."""

    def maps(given: Any, fits: Callable[[Any], bool]) -> bool:
        return isinstance(given, Mapping) and all(map(fits, given.values()))

    def is_range(ends: Any) -> bool:
        return isinstance(ends, (tuple, list)) and len(ends) == 2 and None not in map(number, ends)

    for name, given, fits, line in (
        ("settings", settings, isinstance(settings, Settings), "gn.preset('auto')"),
        ("weights", weights, maps(weights, lambda weight: number(weight) is not None), "{'correctness': 2.0}"),
        ("ranges", ranges, maps(ranges, is_range), "{'correctness': (0.0, 1.0)}"),
        ("completions", completions, isinstance(completions, Iterable), "{1: ['a text', 'another']}"),
    ):
        if given is not None and not fits:
            raise TypeError(f"{name} = {given!r:.60} cannot be used: write {name}={line}, or leave it out.")


def _at_step(completions: Mapping[int, Any], row: Mapping[str, Any]) -> Any:
    step = row.get("step")
    return completions.get(step) if isinstance(step, (int, float)) else None


def append_alert(folder: str | Path, alert: Alert) -> None:
    """Write down an alert of a run that did not come from a row, such as `explain_out_of_memory`'s."""
    file = Path(folder) / _FILE
    _write_alerts(file, (*read_alerts(file), alert))


def _write_alerts(file: Path, alerts: Iterable[Alert]) -> None:
    # All of them, for they are few: half a line that a crash in mid-write left must not be continued.
    write_text(file, "".join(json.dumps(alert.to_dict()) + "\n" for alert in alerts))


def explain_out_of_memory(
    error: BaseException, settings: Settings, *, step: int = 0, place: str | None = None
) -> Alert | None:
    """Say which setting to lower after an out-of-memory error, with the line to paste; None for any other error.

    Args:
        error: What was raised. Errors that it came from are looked at too.
        settings: Of the run that failed.
        step: Where it failed, if known.
        place: `loading`, `generation` or `the loss`; by default what the error's traceback says, if it says it.

    >>> explain_out_of_memory(RuntimeError("CUDA out of memory"), Settings()).evidence["change"]
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    >>> explain_out_of_memory(ValueError("no"), Settings()) is None
    True
    """
    found = memory_advice(error, settings, place=place)
    return found and Alert(
        rule="out_of_memory",
        severity="critical",
        step=step,
        message=found.message,
        why=found.why,
        advice=found.advice,
        evidence={"change": found.change, "place": found.place, "error": f"{type(error).__name__}: {error}"[:500]},
    )
