"""Alerts of the health rules: what was seen in a run, with its numbers, and what to change."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grpo_nb.core.tables import ReprMixin, Table, bold
from grpo_nb.core.words import require_choice
from grpo_nb.runs.rows import MetricRow

Severity = Literal["critical", "warning", "info"]
#: Values of `Alert.state`, the most urgent first.
STATES_WORST_FIRST = (*get_args(Severity), "withdrawn")


@dataclass(frozen=True, kw_only=True, repr=False)
class Alert(ReprMixin):
    """A finding about a run, with its numbers, and what to change.

    When an alert is withdrawn, `severity` keeps its last value, and `state` becomes "withdrawn".
    Programs filter and sort by `state`.

    >>> alert = Alert(rule="kl", severity="info", step=20, message="KL 3.", advice="Look at it.")
    >>> Alert(**alert.to_dict()) == alert
    True
    """

    rule: str
    severity: Severity
    """Urgency. "critical": the run learns nothing or loses what it has learned, so stop it.
    "warning": the run wastes time or learns the wrong thing. "info": good to know, or a warning
    about a run whose reward still rises."""
    step: int
    """Step since which the alert has this severity."""
    message: str
    """Observation, with its numbers."""
    advice: str
    """Changes to try, with the names of `Settings`."""
    subject: str = ""
    """Name of the watched thing, such as a reward, if the rule watches several. There is one alert
    for each rule and subject."""
    withdrawn_step: int | None = None
    """Step at which the alert was withdrawn because it was no longer true; None if it is open."""

    def __post_init__(self) -> None:
        # The file of a run can hold any text, but `alert_table` can sort only known severities.
        require_choice("severity", self.severity, get_args(Severity))

    @property
    def state(self) -> str:
        """Severity of an open alert, otherwise `withdrawn`."""
        return self.severity if self.withdrawn_step is None else "withdrawn"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. `Alert(**values)` makes an equal alert."""
        return dataclasses.asdict(self)

    def _shown_parts(self) -> Iterator[Table]:
        yield alert_table([self])


def alert_table(alerts: Iterable[Alert]) -> Table:
    """Return alerts as a table, the worst first and withdrawn ones last."""
    rows = []
    # The sort is stable, so alerts of one severity keep their order.
    for alert in sorted(alerts, key=lambda alert: STATES_WORST_FIRST.index(alert.state)):
        # A rule that watches several things reports each of them by its name.
        name = f"{alert.rule} ({alert.subject})" if alert.subject else alert.rule
        status = alert.state
        if alert.withdrawn_step is not None:
            status = f"withdrawn at step {alert.withdrawn_step} (was {alert.severity})"
        rows.append((bold(status), alert.step, f"{name}: {alert.message}", alert.advice))
    return Table(rows, ("status", "step", "what was seen", "what to change"), wide=(2, 3))


def alerts_of(rows: Iterable[MetricRow]) -> list[Alert]:
    """Return the alerts as of the last row, in the order of their first reports.

    A row holds the alerts that began, changed their severity or were withdrawn at its step. A later
    report replaces an earlier one of the same rule and subject.

    Raises:
        TypeError: A field is missing or unknown.
        ValueError: A severity is unknown.
    """
    latest = {}
    for row in rows:
        for fields in row.get("alerts", ()):
            alert = Alert(**fields)
            # A key that is set again keeps its place, which is that of the first report.
            latest[alert.rule, alert.subject] = alert
    return list(latest.values())
