"""Turn the findings of the rules into alerts, row by row.

Alerts depend on the rows alone, so a resumed run has the same alerts as a run that was never
interrupted. The cost of a row does not grow with the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.tables import Part, ReprMixin, bold
from grpo_nb.health.history import ASSUMED_GROUP_SIZE, MIN_ROWS, SHORT_WINDOW, WINDOW, RunHistory
from grpo_nb.health.rules import CHECKS, HealthFinding, check_not_finite
from grpo_nb.health.trend import measure_trend
from grpo_nb.runs.alert import STATES_WORST_FIRST, Alert, alert_table
from grpo_nb.runs.rows import MetricRow
from grpo_nb.runs.run_folder import Run, open_run

AlertKey = tuple[str, str]
"""Rule and subject."""


class HealthMonitor:
    """A monitor of a run, which reports new alerts after each logged row.

    There is one alert for each rule and subject. An alert is reported when it is new, when its
    severity changes, and when it is withdrawn. It is withdrawn when nothing was found for 20 steps
    (or for two rows, if these stand for more).

    Args:
        weights: Weight of each reward, by name. The main reward is the one with the largest weight.
        ranges: Lowest and highest score that each reward can give, by name.
        group_size: Number of completions per prompt.
        rows: Earlier rows of a resumed run. `update` does not report their alerts again.

    >>> monitor = HealthMonitor()
    >>> for step in range(1, 31):
    ...     row = {"step": step, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
    ...     for alert in monitor.update(row):
    ...         print(alert.rule, alert.severity, alert.step)
    zero_variance warning 10
    zero_variance critical 20
    """

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        ranges: Mapping[str, Sequence[float]] | None = None,
        group_size: int = ASSUMED_GROUP_SIZE,
        rows: Iterable[MetricRow] = (),
    ) -> None:
        self.history = RunHistory(weights=weights or {}, ranges=ranges or {}, group_size=group_size)
        """History of the run, which the rules read."""
        self.is_critical = False
        """True if the last row has a critical finding. A critical alert stays open longer: it
        becomes milder only after 20 steps (or two rows, if these stand for more) without one."""
        self._alerts: dict[AlertKey, Alert] = {}
        # Last step with a finding at least as severe as the alert.
        self._last_confirmed_step: dict[AlertKey, int] = {}
        # Last step with a finding of any severity.
        self._last_finding_step: dict[AlertKey, int] = {}
        for row in rows:
            self.update(row)

    @property
    def alerts(self) -> list[Alert]:
        """The latest alert of each rule and subject, in the order of their first report."""
        return list(self._alerts.values())

    def report(self) -> HealthReport:
        """Return the alerts so far as a report, which shows itself in a notebook."""
        return HealthReport(alerts=self.alerts, row_count=self.history.reward_row_count)

    def update(self, row: MetricRow) -> list[Alert]:
        """Add a row, and return the alerts that are new, changed or withdrawn.

        Args:
            row: Metrics of a step, as in metrics.jsonl or TRL's `log_history`. Any key may be
                missing.
        """
        self.history.add(row)
        findings = {(finding.rule, finding.subject): finding for finding in self._run_checks()}
        self.is_critical = any(finding.severity == "critical" for finding in findings.values())

        changed = []
        for key in self._alerts | findings:
            alert = self._changed_alert(key, findings.get(key))
            if alert is not None:
                self._alerts[key] = alert
                changed.append(alert)
        return changed

    def _run_checks(self) -> Iterator[HealthFinding]:
        history = self.history
        yield from check_not_finite(history)
        # The other checks read windows of rows with a reward, which other rows do not change.
        is_reward_step = history.step == history.last_reward_step
        is_long_enough = (
            history.reward_row_count >= MIN_ROWS and history.logged_steps >= SHORT_WINDOW
        )
        if is_reward_step and is_long_enough:
            trend = measure_trend(history)
            for check in CHECKS:
                yield from check(history, trend)

    def _changed_alert(self, key: AlertKey, finding: HealthFinding | None) -> Alert | None:
        """Return the new alert of a rule and subject, None if its alert stays as it is.

        An alert is opened or raised at once. It is lowered or withdrawn only after a delay. For
        example, if a row is logged at each step:

            findings                    alert
            critical at 1-10            critical at 1-29
            warning at 11-40            warning from 30, 20 steps after the last critical finding
            none from 41                withdrawn at 60, 20 steps after the last finding
        """
        step = self.history.step
        delay = max(WINDOW, 2 * self.history.steps_per_row)

        # 1. Without a finding there is an alert, which is withdrawn after the delay.
        if finding is None:
            alert = self._alerts[key]
            if alert.state == "withdrawn" or step - self._last_finding_step[key] < delay:
                return None
            return dataclasses.replace(alert, withdrawn_step=step)

        # 2. During the delay, a finding that is milder than the alert changes nothing.
        self._last_finding_step[key] = step
        # An alert that does not exist yet counts as withdrawn, so any finding opens it.
        state = self._alerts[key].state if key in self._alerts else "withdrawn"
        is_milder = STATES_WORST_FIRST.index(finding.severity) > STATES_WORST_FIRST.index(state)
        if is_milder and step - self._last_confirmed_step[key] < delay:
            return None

        # 3. Any other finding confirms the alert, or changes its severity.
        self._last_confirmed_step[key] = step
        if finding.severity == state:
            return None
        return Alert(**finding._asdict(), step=step)


@dataclass(frozen=True, kw_only=True, repr=False)
class HealthReport(ReprMixin):
    """The result of `check_health`. It shows itself as a table, the worst alert first."""

    alerts: list[Alert]
    """The latest alert of each rule and subject, in the order of their first report."""
    row_count: int
    """Number of rows with a reward."""

    @property
    def ok(self) -> bool:
        """True if no warning and no critical alert is open at the end of the log."""
        return all(alert.state in ("info", "withdrawn") for alert in self.alerts)

    def _shown_parts(self) -> Iterator[Part]:
        yield bold(f"Alerts: {len(self.alerts)}. Checked {self.row_count} rows with a reward.")
        if self.alerts:
            yield alert_table(self.alerts)


def check_health(
    rows: Any,
    *,
    weights: Mapping[str, float] | None = None,
    ranges: Mapping[str, Sequence[float]] | None = None,
    group_size: int | None = None,
) -> HealthReport:
    """Replay a log, and report what a monitor would have reported. No model is loaded.

    Args:
        rows: A run or its folder; or a list of rows such as TRL's `log_history`, which is
            also in a checkpoint's trainer_state.json.
        weights: Weight of each reward, by name; a run knows its own.
        ranges: Lowest and highest score of each reward, by name; a run knows those of the kit's
            rewards.
        group_size: Number of completions per prompt; a run knows its own. Without it, groups of two
            are assumed, and `zero_variance` reports only clear cases.

    Raises:
        ValueError: The log has no rows, or is damaged.
        FileNotFoundError: There is no run at that path.
        TypeError: The rows are not mappings.

    >>> rows = [{"step": i, "reward": 0.1 * i, "reward_std": 0.5} for i in range(30)]
    >>> check_health(rows).ok
    True
    """
    if isinstance(rows, (str, Path, Run)):
        run = open_run(rows)
        weights = weights or run.weights
        ranges = ranges or run.ranges
        group_size = group_size or run.settings.num_generations
        rows = run.rows
    rows = list(rows)
    if not rows:
        raise ValueError("the log has no rows, so there is nothing to check.")
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"a row of the log is a {type(row).__name__}, but the metrics of a step are a "
                "mapping from names to numbers. Pass trainer.state.log_history, or a run."
            )
    return HealthMonitor(
        weights=weights,
        ranges=ranges,
        group_size=group_size or ASSUMED_GROUP_SIZE,
        rows=rows,
    ).report()
