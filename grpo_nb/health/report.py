"""The report on the health of a run: its alerts, the worst first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.core import Part, Shown, bold
from grpo_nb.runs import SEVERITIES, Alert, alert_table, worst_first

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, repr=False)
class HealthReport(Shown):
    """The result of `check_health`. Shows itself as a table, the worst first."""

    alerts: tuple[Alert, ...]
    """In the order in which they came. An alert that got more severe is there with each severity."""
    checked: str
    """What was looked at, in one sentence."""
    not_measured: tuple[str, ...] = ()
    """What the log does not hold, so that no rule could speak about it."""

    @property
    def latest(self) -> tuple[Alert, ...]:
        """The alerts, the worst first, each rule and subject with its highest severity only."""
        return tuple(worst_first({(alert.rule, alert.subject): alert for alert in self.alerts}.values()))

    @property
    def ok(self) -> bool:
        """Nothing critical and no warning; information is allowed."""
        return all(alert.severity == "info" for alert in self.alerts)

    def of(self, rule: str) -> tuple[Alert, ...]:
        """Return the alerts of one rule, by its name."""
        return tuple(alert for alert in self.alerts if alert.rule == rule)

    @property
    def table(self) -> pandas.DataFrame:
        """The alerts as a table."""
        import pandas

        columns = [f.name for f in dataclasses.fields(Alert)]
        return pandas.DataFrame([alert.to_dict() for alert in self.alerts], columns=columns)

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        latest = self.latest
        counts = [(sum(a.severity == severity for a in latest), severity) for severity in reversed(SEVERITIES)]
        found = ", ".join(f"{n} {severity}" for n, severity in counts if n)
        return f"Found: {found}. {self.checked}" if found else f"Nothing found. {self.checked}"

    def _parts(self) -> Iterator[Part]:
        yield bold(self.summary)
        if self.latest:
            yield alert_table(self.latest)
        if self.not_measured:
            yield f"Not measured: {', '.join(self.not_measured)}."
