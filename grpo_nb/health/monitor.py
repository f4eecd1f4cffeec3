"""Is this run well? Alerts with numbers and advice, while it trains or from any log, at a cost that does not grow with it.

Alerts follow from the rows alone: those of a resumed run are those of one that was never interrupted. Nothing here loads torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_nb.core.tables import Part, Shown, bold
from grpo_nb.health.course import AVERAGED, LEAST, RECENT, Course
from grpo_nb.health.rules import CHANGES, FROM_THE_FIRST_ROW, RULES, Finding
from grpo_nb.runs.alert import KINDS, SEVERITIES, Alert, Severity, alert_table, worst_first
from grpo_nb.runs.checkpoints import checkpoint_folders
from grpo_nb.runs.rows import read_rows, reading
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.settings.settings import Settings

_STATE = "trainer_state.json"


class HealthMonitor:
    """Looks at each logged row as it comes, and returns what is new to say.

    There is one alert for each rule and subject. It is told when it comes, when its severity changes, and when it is withdrawn,
    since it was not true for 20 steps.

    Args:
        weights: By reward name. Without, the main reward is known by its name, if it has one that says so.
        settings: The run's; advice then has the line to paste, and KL counts as not measured with `beta = 0`.
        ranges: The least and the most that each reward pays, by name.
        rows: Of a run that is resumed: looked at without a word, so that nothing is told twice or forgotten.
        stop_on: `"critical"` to be told to stop at the first critical alert; of a resumed run also at one from before, if it
            still stands after ten more rows.

    >>> monitor = HealthMonitor()
    >>> rows = [{"step": i, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0} for i in range(1, 31)]
    >>> alerts = [alert for row in rows for alert in monitor.update(row)]
    >>> [(alert.rule, alert.severity, alert.step) for alert in alerts]
    [('no_spread', 'warning', 10), ('no_spread', 'critical', 20)]
    """

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        settings: Settings | None = None,
        ranges: Mapping[str, Sequence[float]] | None = None,
        rows: Iterable[Mapping[str, Any]] = (),
        stop_on: Literal["critical"] | None = None,
    ) -> None:
        self.course = Course(weights or {}, settings, ranges or {})
        # Whether a critical alert has come and `stop_on` asks to stop. Save first.
        self.should_stop = False
        self._alerts: dict[tuple[str, str], Alert] = {}
        # By rule and subject: the last step at which it was found with a severity or a worse one.
        self._found: dict[tuple[str, str], dict[str, int]] = {}
        self._stop_on, self._resumed_at = None, 0
        for row in rows:
            self.update(row)
        self._stop_on, self._resumed_at = stop_on, self.course.count

    @property
    def alerts(self) -> list[Alert]:
        """All alerts as they stand, in the order in which they came; those withdrawn are among them."""
        return list(self._alerts.values())

    def update(self, row: Mapping[str, Any]) -> list[Alert]:
        """Take in a row, as metrics.jsonl or TRL's `log_history` has it, and return what is new. It may lack any key."""
        course, fresh = self.course, {}
        course.add(row)
        is_asked = course.count >= AVERAGED and course.steps >= LEAST and course.step == course.paid_at
        for rule in (*FROM_THE_FIRST_ROW, *(RULES if is_asked else ())):
            for finding in rule(course):
                key, rank = (finding.rule, finding.subject), SEVERITIES.index(finding.severity)
                self._found.setdefault(key, {}).update(dict.fromkeys(SEVERITIES[: rank + 1], course.step))
                fresh[key] = finding
        told = []
        for key, found in self._found.items():
            old, new = self._alerts.get(key), fresh.get(key)
            standing = [severity for severity in SEVERITIES if course.step - found.get(severity, -RECENT) < RECENT]
            if not standing and old is not None and old.is_open:
                told.append(dataclasses.replace(old, ended=course.step))
            elif new is not None and (old is None or not old.is_open or old.severity != standing[-1]):
                told.append(self._alert(new, standing[-1]))
        for alert in told:
            self._alerts[alert.rule, alert.subject] = alert
        is_due = self._resumed_at > 0 and course.count - self._resumed_at >= LEAST
        is_found = any(found.get(self._stop_on) == course.step for found in self._found.values())
        self.should_stop |= any(alert.kind == self._stop_on for alert in told) or (is_due and is_found)
        return told

    def _alert(self, finding: Finding, severity: Severity) -> Alert:
        words, settings = {}, self.course.settings
        for name, (setting, changed, said) in CHANGES.items():
            words[name] = said
            if settings is not None and changed(old := getattr(settings, setting)) != old:
                words[name] += f" (settings.replace({setting}={changed(old)!r}); it is {old!r} now)"
        return Alert(
            rule=finding.rule, severity=severity, step=self.course.step, message=finding.message, subject=finding.subject,
            advice=finding.advice.format_map(words),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class HealthReport(Shown):
    """The result of `check_health`. Shows itself as a table, the worst first."""

    alerts: list[Alert]
    """One for each rule and subject as it stands, in the order in which they came; those withdrawn are among them."""
    rows: int
    """How many were looked at."""

    @property
    def latest(self) -> list[Alert]:
        """The alerts, the worst first, those withdrawn last."""
        return worst_first(sorted(self.alerts, key=lambda alert: alert.step))

    @property
    def ok(self) -> bool:
        """Nothing critical and no warning at the end of the log; information is allowed, and what was withdrawn."""
        return all(alert.kind in ("info", "withdrawn") for alert in self.alerts)

    def _parts(self) -> Iterator[Part]:
        kinds = [alert.kind for alert in self.alerts]
        found = ", ".join(f"{kinds.count(kind)} {kind}" for kind in reversed(KINDS) if kind in kinds) or "nothing"
        yield bold(f"Found: {found}. {self.rows} rows with a reward were looked at.")
        if self.alerts:
            yield alert_table(self.latest)


def check_health(
    rows: Run | str | Path | Iterable[Mapping[str, Any]],
    *,
    weights: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    ranges: Mapping[str, Sequence[float]] | None = None,
) -> HealthReport:
    """Replay a log and report what a monitor would have said, step by step. Changes nothing, loads no model.

    Args:
        rows: Rows as in metrics.jsonl or TRL's `log_history`; or a run, its folder, a checkpoint's folder, or the path of a
            metrics.jsonl or trainer_state.json. Names of either generation of TRL.
        weights: By reward name; a run knows its own.
        settings: A run knows its own.
        ranges: The least and the most that each reward pays, by name; a run knows those of the kit's rewards.

    Raises:
        ValueError: What is there is no log, or is damaged.
        FileNotFoundError: There is nothing at that path.

    >>> rows = [{"step": i, "reward": 0.1 * i, "reward_std": 0.5, "kl": 0.001 * i} for i in range(1, 31)]
    >>> check_health(rows).ok
    True
    """
    if isinstance(rows, (str, Path)):
        rows = open_run(rows) if (Path(rows) / "run.json").is_file() else _read_log(Path(rows))
    if isinstance(rows, Run):
        weights, settings, ranges = weights or rows.weights, settings or rows.settings, ranges or rows.ranges
        rows = rows.rows
    monitor = HealthMonitor(weights=weights, settings=settings, ranges=ranges, rows=rows)
    return HealthReport(alerts=monitor.alerts, rows=monitor.course.count)


def _read_log(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a file, or of a folder: of its latest checkpoint, which has all steps, if it has none of its own."""
    newest_first = (checkpoint / _STATE for _, checkpoint in reversed(checkpoint_folders(path)))
    places = (path, path / "metrics.jsonl", path / _STATE, *newest_first)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"there is no log at {str(path)!r}: neither metrics.jsonl nor {_STATE}.")
    if file.suffix == ".jsonl":
        return read_rows(file)
    with reading(file):
        return json.loads(file.read_text("utf-8"))["log_history"]
