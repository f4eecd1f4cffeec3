"""Alerts followed from the first row in which they are found until they are true no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from grpo_nb.health.history import LEAST, RECENT, WINDOW, History
from grpo_nb.runs.alert import SEVERITIES, Alert


class Rule(NamedTuple):
    """A function that yields the alerts of one name, or nothing.

    Where it needs a fact, it is given the values of the last rows, and is not asked before `LEAST` of them were measured.
    An alert's evidence begins with what it is about. A float there is followed; a share is named so.
    """

    name: str
    find: Callable[..., Iterator[Alert]]
    needs: str | None = None
    last: int = WINDOW
    is_low_worse: bool = False
    """Whether the number is worse the lower it is."""
    hold: float = RECENT
    """After how many rows without it an alert is withdrawn, or is less severe; infinite for what has happened for good."""

    def alerts(self, history: History) -> Iterator[Alert]:
        """What there is to say after the last row."""
        needed = [history.values(self.needs, self.last)] if self.needs else []
        if all(len(values) >= LEAST for values in needed):
            for alert in self.find(history, *needed):
                yield dataclasses.replace(alert, rule=self.name)


class Followed:
    """An alert as it stands: how severe it is now, its number at first, at worst and at last, and its end."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._found_at: dict[int, int] = {}
        """Rank of a severity -> the last row in which it was found with that severity or a worse one."""
        self._rank = -1
        self._points: dict[str, tuple[int, float]] = {}

    def find(self, alert: Alert, count: int) -> None:
        """Take in what the rule says after this row."""
        self._found, self._key = alert, next(iter(alert.evidence), "")
        self._found_at |= dict.fromkeys(range(SEVERITIES.index(alert.severity) + 1), count)
        value = alert.evidence.get(self._key)
        if isinstance(value, float):  # a count only grows
            now = alert.step, value
            first, worst = self._points.get("first", now), self._points.get("worst", now)
            is_worse = value < worst[1] if self._rule.is_low_worse else value > worst[1]
            self._points = {"first": first, "worst": now if is_worse else worst, "last": now}

    def settle(self, count: int, step: int) -> bool:
        """Say after a row whether there is news: true for the first time or again, more severe, or true no more."""
        standing = [rank for rank, at in self._found_at.items() if count - at < self._rule.hold]
        before, self._rank = self._rank, max(standing, default=-1)
        if self._rank > before:
            self._since, self._ended = step, None
        elif self._rank < 0 <= before:
            self._ended = step
        if self._rank >= 0:
            self._severity = SEVERITIES[self._rank]
        return self._rank > before or self._rank < 0 <= before

    def is_found(self, severity: str | None, count: int) -> bool:
        """Whether it was found with this severity in the last row."""
        return severity is not None and self._found_at.get(SEVERITIES.index(severity)) == count

    @property
    def alert(self) -> Alert:
        """The alert, its message with the course of its number."""
        shown = "{:.0%}" if self._key.startswith("share") else "{:.3g}"
        said = {name: f"{name} {shown.format(value)} at step {step}" for name, (step, value) in self._points.items()}
        course = {name: {"step": step, self._key: value} for name, (step, value) in self._points.items()}
        is_level = len({shown.format(value) for _, value in self._points.values()}) <= 1
        return dataclasses.replace(
            self._found,
            severity=self._severity,
            step=self._since,
            message=self._found.message if is_level else f"{self._found.message} ({', '.join(said.values())})",
            evidence=self._found.evidence if is_level else {**self._found.evidence, **course},
            ended=self._ended,
        )
