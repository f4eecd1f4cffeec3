"""Alerts as they are shown in a terminal."""

from __future__ import annotations

from grpo_nb.runs.alert import Alert, terminal_text
from grpo_nb.runs.outcome import LINE_WIDTH


def test_terminal_text_of_a_long_alert_has_short_lines() -> None:
    alert = Alert(
        rule="not_finite",
        subject="a\x1breward",
        severity="warning",
        step=20,
        message="The values are not finite. " * 5,
        advice="Look at them.",
    )
    lines = terminal_text(alert).splitlines()
    assert lines[0].startswith("warning, step 20: not_finite (a")
    assert max(map(len, lines)) <= LINE_WIDTH
    assert lines[-1].endswith("Look at them.")
    assert "\x1b" not in lines[0]
