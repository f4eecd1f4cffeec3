"""An alert of a run: in words, with its numbers."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_nb.core.tables import Html, Shown, Table, bold, escaped
from grpo_nb.core.words import in_line

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
KINDS = ("withdrawn", *SEVERITIES)


@dataclass(frozen=True, kw_only=True, repr=False)
class Alert(Shown):
    """One thing that a run shows, with its numbers, and what to change.

    >>> alert = Alert(rule="kl_drift", severity="info", step=20, message="KL 3.", advice="Look at it.")
    >>> Alert(**alert.to_dict()) == alert
    True
    """

    rule: str
    severity: Severity
    """`critical`: the run learns nothing or loses what it learnt, so stop it. `warning`: it wastes time or learns the wrong
    thing. `info`: good to know; also what would be a warning if the reward were not rising."""
    step: int
    """The step since which it is so severe."""
    message: str
    """What was seen, with the numbers."""
    advice: str
    """What to change, with the names of `Settings`."""
    subject: str = ""
    """What the rule speaks about, where it can speak about several things. There is one alert for each rule and subject."""
    ended: int | None = None
    """The step at which it was withdrawn, since it was true no more."""

    @property
    def is_open(self) -> bool:
        """Whether it is still true."""
        return self.ended is None

    @property
    def kind(self) -> str:
        """Its severity, or `withdrawn`."""
        return self.severity if self.is_open else "withdrawn"

    @property
    def standing(self) -> str:
        """Its severity, or that it was withdrawn, and at which step."""
        return (
            self.severity
            if self.is_open
            else f"withdrawn at step {self.ended} (was {self.severity})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, from which `Alert(**values)` is the same again."""
        return dataclasses.asdict(self)

    def _parts(self) -> Iterator[Html]:
        yield alert_table([self])


def alert_table(alerts: Iterable[Alert]) -> Html:
    """Return alerts as a table; as plain text, two lines each."""
    rows, texts = [], []
    for alert in alerts:
        name = f"{alert.rule} ({alert.subject})" if alert.subject else alert.rule
        seen = Html(alert.message, f"<b>{escaped(name)}</b>: {escaped(alert.message)}")
        rows.append((bold(alert.standing), alert.step, seen, alert.advice))
        texts.append(
            f"{alert.standing}: {name}, step {alert.step}: {alert.message}\n    change: {alert.advice}"
        )
    head = ("severity", "step", "what was seen", "what to change")
    return Html("\n".join(texts), Table(rows, head).html())


def alert_from(values: Mapping[str, Any]) -> Alert:
    """Return the alert that a row of a run's file holds.

    Raises:
        TypeError, ValueError: A field is missing, unknown, or of another type.
    """
    alert = Alert(**values)
    for name in ("rule", "message", "advice", "subject"):
        if not isinstance(getattr(alert, name), str):
            raise ValueError(f"{name} = {in_line(getattr(alert, name))} of an alert must be a text")
    if alert.severity not in SEVERITIES:
        raise ValueError(
            f"severity = {in_line(alert.severity)} must be one of {', '.join(SEVERITIES)}"
        )
    is_step = [
        isinstance(step, int) and 0 <= step < 2**53 for step in (alert.step, alert.ended or 0)
    ]
    if not all(is_step):
        raise ValueError(
            f"step = {in_line(alert.step)} and ended = {in_line(alert.ended)} must be steps"
        )
    return alert


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Sort by severity, what was withdrawn last; equals stay as they came."""
    return sorted(alerts, key=lambda alert: -KINDS.index(alert.kind))


def alerts_of(rows: Iterable[Mapping[str, Any]]) -> list[Alert]:
    """The alerts as they stand after the last row, in the order in which they came.

    A row has those that came with it, changed their severity, or were withdrawn.
    """
    alerts = [alert_from(values) for row in rows for values in row.get("alerts", ())]
    return list({(alert.rule, alert.subject): alert for alert in alerts}.values())
