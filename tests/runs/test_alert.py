"""Alerts as they are shown in a terminal."""

from __future__ import annotations

from grpo_nb.runs.alert import Alert, lines_of
from grpo_nb.runs.outcome import LINE_WIDTH


def test_lines_of_a_long_alert_are_short() -> None:
    alert = Alert(
        rule="not_finite",
        subject="a\x1breward",
        severity="warning",
        step=20,
        message="The values are not finite. " * 5,
        advice="Look at them.",
    )
    lines = lines_of(alert).splitlines()
    assert lines[0].startswith("warning, step 20: not_finite (a")
    assert max(map(len, lines)) <= LINE_WIDTH
    assert lines[-1].endswith("Look at them.")
    assert "\x1b" not in lines[0]
