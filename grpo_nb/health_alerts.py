"""What the health rules say: alerts in words with their numbers, and the report that shows them."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.reward_calls import displayable

if TYPE_CHECKING:
    import pandas

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One thing that a run shows, with its numbers, why it matters, and what to change.

    >>> alert = Alert(rule="kl_spike", severity="info", step=20, message="KL 3.", why="Odd text.", advice="Look at it.")
    >>> Alert.from_dict(alert.to_dict()) == alert
    True
    """

    rule: str
    severity: Severity
    """`critical`: the run learns nothing or loses what it learnt, so stop it. `warning`: it wastes time or learns the wrong
    thing. `info`: good to know; also what would be a warning if the reward were not rising."""
    step: int
    """The step at which the rule first saw it."""
    message: str
    """What was seen, with the numbers."""
    why: str
    advice: str
    """What to change, with the names of `Settings`."""
    subject: str = ""
    """What the rule speaks about, where it can speak about several things. An alert comes once for each rule and subject."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers by themselves, for code, which should not read prose."""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity {self.severity!r} is none of {', '.join(SEVERITIES)}.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which `Alert.from_dict` takes back."""
        return {**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, "evidence": dict(self.evidence)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Alert:
        """The inverse of `to_dict`. What a later version may have added is left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def __repr__(self) -> str:
        subject = f" ({self.subject})" if self.subject else ""
        return displayable(
            f"{self.severity}: {self.rule}{subject}, step {self.step}: {self.message}"
            f"\n    why: {self.why}\n    change: {self.advice}"
        )

    def _repr_html_(self) -> str:
        return f"<table>{_html_row(_HEAD, 'th')}{_alert_row(self)}</table>"


_HEAD = ("severity", "step", "what was seen", "why it matters", "what to change")


def _html_row(cells: Sequence[str], tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag} style='text-align:left;vertical-align:top'>{c}</{tag}>" for c in cells) + "</tr>"


def _said(text: str) -> str:
    return html.escape(displayable(text))


def _alert_row(alert: Alert) -> str:
    rule = f"<b>{_said(alert.rule)}</b>" + (f" ({_said(alert.subject)})" if alert.subject else "")
    seen = f"{rule}: {_said(alert.message)}"
    return _html_row((f"<b>{alert.severity}</b>", str(alert.step), seen, _said(alert.why), _said(alert.advice)))


def worst_first(alerts: Sequence[Alert]) -> list[Alert]:
    """Sort by severity, then by step."""
    return sorted(alerts, key=lambda alert: (-SEVERITIES.index(alert.severity), alert.step))


@dataclass(frozen=True, kw_only=True)
class HealthReport:
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
        highest: dict[tuple[str, str], Alert] = {}
        for alert in self.alerts:
            highest[alert.rule, alert.subject] = alert
        return tuple(worst_first(list(highest.values())))

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

    def __repr__(self) -> str:
        lines = [self.summary, *(repr(alert) for alert in self.latest)]
        if self.not_measured:
            lines.append(f"Not measured: {', '.join(self.not_measured)}.")
        return displayable("\n".join(lines))

    def _repr_html_(self) -> str:
        rows = "".join(_alert_row(alert) for alert in self.latest)
        table = f"<table>{_html_row(_HEAD, 'th')}{rows}</table>" if rows else ""
        missing = f"<p>Not measured: {_said(', '.join(self.not_measured))}.</p>" if self.not_measured else ""
        return f"<p><b>{_said(self.summary)}</b></p>{table}{missing}"
