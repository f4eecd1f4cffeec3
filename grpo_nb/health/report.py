"""The report on the health of a run: its alerts, the worst first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.core.tables import Part, Shown, bold
from grpo_nb.runs.alert import KINDS, Alert, alert_table, worst_first

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, repr=False)
class HealthReport(Shown):
    """The result of `check_health`. Shows itself as a table, the worst first."""

    alerts: tuple[Alert, ...]
    """One for each rule and subject as it stands, in the order in which they came; those withdrawn are among them."""
    checked: str
    """What was looked at, in one sentence."""
    told: tuple[Alert, ...] = ()
    """What a monitor said at each row: that an alert came, became more severe, or was withdrawn."""
    not_measured: tuple[str, ...] = ()
    """What the log does not hold, so that no rule could speak about it."""

    @property
    def latest(self) -> tuple[Alert, ...]:
        """The alerts, the worst first, those withdrawn last."""
        return tuple(worst_first(sorted(self.alerts, key=lambda alert: alert.step)))

    @property
    def ok(self) -> bool:
        """Nothing critical and no warning at the end of the log; information is allowed, and what was withdrawn."""
        return all(alert.kind in ("info", "withdrawn") for alert in self.alerts)

    def of(self, rule: str) -> tuple[Alert, ...]:
        """Return the alerts of one rule, by its name, as they stand."""
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
        kinds = [alert.kind for alert in self.alerts]
        found = ", ".join(f"{kinds.count(kind)} {kind}" for kind in reversed(KINDS) if kind in kinds)
        return f"Found: {found}. {self.checked}" if found else f"Nothing found. {self.checked}"

    def _parts(self) -> Iterator[Part]:
        yield bold(self.summary)
        if self.latest:
            yield alert_table(self.latest)
        if self.not_measured:
            yield f"Not measured: {', '.join(self.not_measured)}."
