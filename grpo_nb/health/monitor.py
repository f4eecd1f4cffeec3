"""Is this run well? Alerts with numbers and advice, while it trains or from any log, at a cost that does not grow with it.

The rules are in `rules_signal` and `rules_rewards`, what they remember in `history`. docs/guide/health.md has every rule with
its threshold and source. Nothing here plots, and nothing loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from grpo_nb.core import write_text
from grpo_nb.health.history import LEAST, WINDOW, History
from grpo_nb.health.report import HealthReport
from grpo_nb.health.rules_rewards import RULES as REWARD_RULES
from grpo_nb.health.rules_signal import NOT_FINITE
from grpo_nb.health.rules_signal import RULES as SIGNAL_RULES
from grpo_nb.health.sources import completions_of, read_log
from grpo_nb.runs import SEVERITIES, Alert, Run, read_alerts
from grpo_nb.settings import Settings, memory_advice

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

    It keeps the last 50 rows, the first 20 and some tallies, so that a step costs the same after a hundred rows and after a
    million. An alert comes once for each rule and subject, and once more only if it has become more severe.

    Args:
        weights: Weight by reward name. Without, the main reward is known by its name, if it has one that says so.
        settings: The run's; alerts then name the values to write, and KL counts as not measured with `beta = 0`.
        folder: Of a run that trains: each alert is appended to its alerts.jsonl the moment it is known. Of a resumed run, the
            rows that the folder holds already are replayed first, so that an alert is neither repeated nor forgotten, also
            if the process was killed between a row and its alert.
        stop_on: `"critical"` to be told to stop at the first critical alert.

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
        folder: str | Path | None = None,
        stop_on: Literal["critical"] | None = None,
    ) -> None:
        if stop_on not in ("critical", None):
            raise ValueError(f"stop_on = {stop_on!r}: write 'critical', or None to go on whatever happens.")
        self.stop_on = stop_on
        self.should_stop = False
        """Whether a critical alert has come and `stop_on` asks to stop. Save first."""
        self._history = History(weights=weights, settings=settings)
        self._told: dict[tuple[str, str], int] = {}
        self._folder = folder
        if folder is not None:
            for alert in read_alerts(Path(folder) / _FILE):
                self._note(alert)
            run = Run(folder)
            texts = completions_of(run, last=WINDOW)
            append_alert(folder, *(alert for row in run.rows for alert in self._look(row, _at_step(texts, row))))

    def update(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> list[Alert]:
        """Take in a logged row and return the new alerts, which are on disk by then. Rows may lack any key, and hold anything.

        Args:
            row: As in metrics.jsonl or TRL's `log_history`, with either generation of names.
            completions: The texts of this step, groups one after the other, or one list per group.
        """
        fresh = self._look(row, completions)
        if self._folder is not None and fresh:
            append_alert(self._folder, *fresh)
        self.should_stop |= any(alert.severity == self.stop_on for alert in fresh)
        return fresh

    def _look(self, row: Mapping[str, Any], completions: Iterable[Any] | None) -> list[Alert]:
        history = self._history
        is_training = history.add(row, completions)
        rules = [NOT_FINITE]
        if history.count >= LEAST and (is_training or history.holdout):
            rules += [*SIGNAL_RULES, *REWARD_RULES]
        return [alert for rule in rules for alert in rule.alerts(history) if self._note(alert)]

    def _note(self, alert: Alert) -> bool:
        """Note that it is said, and return whether it is news: a rule and subject never said, or with less severity."""
        key, rank = (alert.rule, alert.subject), SEVERITIES.index(alert.severity)
        is_news = rank > self._told.get(key, -1)
        if is_news:
            self._told[key] = rank
        return is_news

    @property
    def checked(self) -> str:
        """How much was looked at, in one sentence."""
        history = self._history
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
    completions: Mapping[int, Sequence[Any]] | Sequence[Sequence[Any]] | None = None,
) -> HealthReport:
    """Replay a log and report what a monitor would have said, step by step. Changes nothing, loads no model.

    Args:
        rows: Rows as in metrics.jsonl or TRL's `log_history`; or a run, its folder, a checkpoint's folder, or the path of a
            metrics.jsonl or trainer_state.json. Names of either generation of TRL.
        weights: Weight by reward name; a run knows its own.
        settings: A run knows its own.
        completions: The texts of each step: by step, or one entry per row. A run knows its own.

    Raises:
        ValueError: What is there is no log.
        FileNotFoundError: There is nothing at that path.

    >>> rows = [{"step": i, "reward": 0.1 * i, "reward_std": 0.5, "kl": 0.001 * i} for i in range(1, 31)]
    >>> check_health(rows).ok
    True
    """
    log, run = read_log(rows)
    if run is not None:
        weights = run.weights if weights is None else weights
        settings = run.settings if settings is None else settings
        completions = completions_of(run) if completions is None else completions
    monitor = HealthMonitor(weights=weights, settings=settings)
    alerts: list[Alert] = []
    in_order = iter(() if completions is None or isinstance(completions, Mapping) else completions)
    for row in log:
        texts = _at_step(completions, row) if isinstance(completions, Mapping) else next(in_order, None)
        alerts += monitor.update(row, texts)
    return HealthReport(alerts=tuple(alerts), checked=monitor.checked, not_measured=monitor.not_measured)


def _at_step(completions: Mapping[int, Any], row: Mapping[str, Any]) -> Any:
    step = row.get("step")
    return completions.get(step) if isinstance(step, (int, float)) else None


def append_alert(folder: str | Path, *alerts: Alert) -> None:
    """Write down alerts of a run; also one that did not come from a row, such as `explain_out_of_memory`'s."""
    file = Path(folder) / _FILE
    known = read_alerts(file)
    # All of them, for they are few: half a line that a crash in mid-write left must not be continued.
    if known or alerts:
        write_text(file, "".join(json.dumps(alert.to_dict()) + "\n" for alert in (*known, *alerts)))


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
