"""Is this run well? Alerts with numbers and advice, while it trains or from any log, at a cost that does not grow with it.

The rules are in `health_rules` and `health_rules_rewards`, what they remember in `health_history`. docs/health.md has every
rule with its threshold and source. Nothing here plots, and nothing loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from grpo_nb.config import Settings
from grpo_nb.health_alerts import SEVERITIES, Alert, HealthReport, Severity
from grpo_nb.health_history import LEAST, WINDOW, History
from grpo_nb.health_memory import explain_out_of_memory
from grpo_nb.health_rules import RULES as SIGNAL_RULES
from grpo_nb.health_rules import find_not_finite
from grpo_nb.health_rules_rewards import RULES as REWARD_RULES
from grpo_nb.health_sources import completions_of, read_log
from grpo_nb.metrics import Run, read_alerts, read_rows

__all__ = ["Alert", "HealthLog", "HealthMonitor", "HealthReport", "Severity", "check_health", "explain_out_of_memory"]

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

    >>> monitor = HealthMonitor()
    >>> rows = [{"step": i, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0} for i in range(1, 31)]
    >>> alerts = [alert for row in rows for alert in monitor.update(row)]
    >>> [(alert.rule, alert.severity, alert.step) for alert in alerts]
    [('no_spread', 'warning', 10), ('no_spread', 'critical', 20)]
    """

    def __init__(self, *, weights: Mapping[str, float] | None = None, settings: Settings | None = None) -> None:
        self._history = History(weights=weights, settings=settings)
        self._told: dict[tuple[str, str], int] = {}

    def update(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> list[Alert]:
        """Take in a logged row and return the new alerts. Rows may lack any key, and hold anything.

        Args:
            row: As in metrics.jsonl or TRL's `log_history`, with either generation of names.
            completions: The texts of this step, groups one after the other, or one list per group.
        """
        history = self._history
        is_training = history.add(row, completions)
        rules = [find_not_finite]
        if history.count >= LEAST and (is_training or history.holdout):
            rules += [*SIGNAL_RULES, *REWARD_RULES]
        fresh = []
        for rule in rules:
            for alert in rule(history):
                key, rank = (alert.rule, alert.subject), SEVERITIES.index(alert.severity)
                if rank > self._told.get(key, -1):
                    self._told[key] = rank
                    fresh.append(alert)
        return fresh

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

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. A monitor that loads them neither repeats an alert nor forgets one."""
        return {"history": self._history.state_dict(), "told": [[*key, rank] for key, rank in self._told.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._history.load_state_dict(state["history"])
        self._told = {(rule, subject): rank for rule, subject, rank in state["told"]}

    def mark_told(self, alerts: Iterable[Alert]) -> None:
        """Do not say these again."""
        for alert in alerts:
            key, rank = (alert.rule, alert.subject), SEVERITIES.index(alert.severity)
            self._told[key] = max(rank, self._told.get(key, -1))


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
    log = read_log(rows)
    weights = weights if weights is not None else log.weights
    settings = settings if settings is not None else log.settings
    if completions is None and log.run is not None:
        completions = completions_of(log.run)
    monitor = HealthMonitor(weights=weights, settings=settings)
    alerts: list[Alert] = []
    for number, row in enumerate(log.rows):
        alerts += monitor.update(row, _completions_at(completions, number, row))
    return HealthReport(alerts=tuple(alerts), checked=monitor.checked, not_measured=monitor.not_measured)


def _completions_at(completions: Any, number: int, row: Mapping[str, Any]) -> Any:
    if completions is None:
        return None
    if isinstance(completions, Mapping):
        step = row.get("step")
        return completions.get(step) if isinstance(step, (int, float)) else None
    return completions[number] if number < len(completions) else None


class HealthLog:
    """The alerts of a run as it trains: each is appended to alerts.jsonl the moment it is known.

    For a resumed run, the rows that the folder holds already are replayed first. So an alert is neither repeated nor
    forgotten, also if the process was killed between a row and its alert.

    Args:
        folder: The run's.
        weights: Weight by reward name.
        settings: The run's.
        stop_on: `"critical"` to be told to stop at the first critical alert.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        weights: Mapping[str, float] | None = None,
        settings: Settings | None = None,
        stop_on: Literal["critical"] | None = None,
    ) -> None:
        if stop_on not in ("critical", None):
            raise ValueError(f"stop_on = {stop_on!r}: write 'critical', or None to go on whatever happens.")
        self.stop_on = stop_on
        self.should_stop = False
        """Whether a critical alert has come and `stop_on` asks to stop. Save first."""
        self._file = Path(folder) / "alerts.jsonl"
        self._monitor = HealthMonitor(weights=weights, settings=settings)
        self._replay(Path(folder))

    def _replay(self, folder: Path) -> None:
        told = read_alerts(self._file)
        self._monitor.mark_told(told)
        rows = read_rows(folder / "metrics.jsonl")
        texts = completions_of(Run(folder), last=WINDOW) if rows else {}
        missed = [a for row in rows for a in self._monitor.update(row, _completions_at(texts, 0, row))]
        _mend(self._file)
        self._append(missed)

    def record(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> list[Alert]:
        """Take in a row that was just logged, and return the new alerts, which are on disk by then."""
        fresh = self._monitor.update(row, completions)
        self._append(fresh)
        if self.stop_on is not None and any(alert.severity == self.stop_on for alert in fresh):
            self.should_stop = True
        return fresh

    def _append(self, alerts: Sequence[Alert]) -> None:
        if alerts:
            _write(self._file, alerts, "a")


def append_alert(folder: str | Path, alert: Alert) -> None:
    """Write down an alert of a run that did not come from a row, such as `explain_out_of_memory`'s."""
    file = Path(folder) / "alerts.jsonl"
    _mend(file)
    _write(file, [alert], "a")


def _mend(file: Path) -> None:
    """Take away half a line that a crash in mid-write left: the next one must not continue it."""
    if file.is_file() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
        _write(file, read_alerts(file), "w")


def _write(file: Path, alerts: Sequence[Alert], mode: str) -> None:
    with file.open(mode) as opened:
        opened.write("".join(json.dumps(alert.to_dict()) + "\n" for alert in alerts))
