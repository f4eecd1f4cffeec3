"""The rules on made-up runs, alerts followed to their end, and through a resume."""

import json
from collections.abc import Iterable, Iterator

import pytest

from grpo_nb.health.history import RunHistory
from grpo_nb.health.monitor import HealthMonitor, check_health
from grpo_nb.health.rules import HealthFinding
from grpo_nb.runs.alert import Alert, alerts_of
from tests.support.faulty_runs import ASIDE, SEEN, Made, by_tens, judged, made_run
from tests.support.health_logs import (
    NAN,
    Rows,
    critical_rows,
    cut,
    flat,
    healthy_log,
    of,
    seeds,
    severest,
    unpaid,
)


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        pytest.param(SEEN, 1, marks=pytest.mark.slow, id="seen"),
        pytest.param(sorted(ASIDE), 0, marks=pytest.mark.slow, id="aside"),
        pytest.param(sorted(ASIDE)[::6], 0, id="some of each"),
    ],
)
def test_faults_are_named_and_healthy_runs_left_alone(names: list[str], allowed: int) -> None:
    missed, accused = judged(names, check_health)
    assert len(missed) <= allowed, missed
    assert not accused


TENFOLD = [
    pytest.param("truncation", lambda: cut(0.95), id="truncation"),
    pytest.param("zero_variance", lambda: unpaid(60), id="zero variance"),
    pytest.param("kl_drift", lambda: flat(100, kl=lambda i, row: 0.1 * i), id="KL"),
]


@pytest.mark.parametrize(("rule", "make"), TENFOLD)
def test_log_of_every_tenth_step_is_judged_in_time(rule: str, make) -> None:
    """Windows are counted in steps, so an alert does not need ten times as many."""
    report = check_health(by_tens(Made(make())).rows)
    (alert,) = of(report, rule)
    assert severest(report, rule) in ("warning", "critical")
    assert alert.step <= 60


@pytest.mark.parametrize("seed", seeds(5))
def test_healthy_log_of_every_tenth_step_is_left_alone(seed: int) -> None:
    rows = by_tens(Made(healthy_log(400, seed))).rows
    assert check_health(rows, weights={"right": 2.0, "form": 1.0}).ok


def with_alerts(rows: Rows, alerts: Iterable[list[Alert]]) -> Rows:
    """Return the rows as the folder of a run has them, read back."""
    stored = []
    for row, new in zip(rows, alerts, strict=True):
        if new:
            row = row | {"alerts": [alert.to_dict() for alert in new]}
        stored.append(row)
    return json.loads(json.dumps(stored))


RESUMED = ["one text for all #0", "rises and loses it #1", "KL runs away #0", "flat for long #0"]


@pytest.mark.parametrize(
    "name", [RESUMED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in RESUMED[1:])]
)
def test_resumed_run_has_the_alerts_of_an_uninterrupted_one(name: str) -> None:
    made = made_run(name)
    monitor = HealthMonitor(**made.told)
    unbroken = with_alerts(made.rows, [monitor.update(row) for row in made.rows])
    assert monitor.alerts
    assert alerts_of(unbroken) == monitor.alerts
    assert check_health(made.rows, **made.told).alerts == monitor.alerts
    for start in (7, 60, 120):
        resumed = HealthMonitor(**made.told, rows=unbroken[:start])
        rest = with_alerts(made.rows[start:], [resumed.update(row) for row in made.rows[start:]])
        assert unbroken[:start] + rest == unbroken


@pytest.fixture(scope="module")
def coming_and_going() -> Rows:
    """A flat log: nearly all completions are truncated, then none, then more than half."""
    shares = [0.95] * 60 + [0.0] * 140 + [0.6] * 40
    return flat(240, completions__clipped_ratio=lambda i, row: shares[i])


def test_alert_gets_worse_is_withdrawn_and_comes_back(coming_and_going: Rows) -> None:
    monitor = HealthMonitor()
    alerts = [alert for row in coming_and_going for alert in monitor.update(row)]
    alerts = [alert for alert in alerts if alert.rule == "truncation"]
    first = [(alert.state, alert.step) for alert in alerts[:2]]
    assert first == [("warning", 10), ("critical", 50)]
    (withdrawn,) = [alert for alert in alerts if alert.state == "withdrawn"]
    assert 80 <= withdrawn.withdrawn_step <= 100
    severity = withdrawn.severity
    assert f"withdrawn at step {withdrawn.withdrawn_step} (was {severity})" in repr(withdrawn)
    assert alerts[-1].state == "warning"
    assert alerts[-1].step > 200


def test_alert_stays_while_its_cause_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(history: RunHistory, trend: object) -> Iterator[HealthFinding]:
        if history.step <= 49:
            severity = "critical" if history.step <= 30 else "info"
            yield HealthFinding("tools", severity, "Seen.", "Look.")

    monkeypatch.setattr("grpo_nb.health.monitor.CHECKS", [check])
    monitor = HealthMonitor()
    alerts = [alert for row in flat(80) for alert in monitor.update(row)]
    assert [alert.state for alert in alerts] == ["critical", "withdrawn"]
    assert alerts[-1].withdrawn_step == 49 + 20


def test_report_has_one_alert_per_rule_and_subject(coming_and_going: Rows) -> None:
    assert len(of(check_health(coming_and_going), "truncation")) == 1


@pytest.mark.parametrize("seed", seeds(20, 2))
def test_run_that_rises_is_never_stopped(seed: int) -> None:
    rows = healthy_log(150, seed, groups=1, right=lambda at: 0.1 + 0.4 * at)
    assert not critical_rows(rows)


def test_resumed_run_is_critical_while_its_cause_holds() -> None:
    rows = unpaid(80)
    resumed = HealthMonitor(rows=rows[:25])
    resumed.update(rows[25])
    assert resumed.is_critical


def test_resumed_run_is_not_critical_because_of_earlier_rows() -> None:
    resumed = HealthMonitor(rows=[{"reward": 1.0, "loss": NAN}])
    resumed.update({"reward": 1.0, "loss": 0.1})
    assert not resumed.is_critical


def test_run_is_critical_from_its_first_critical_finding_on() -> None:
    assert critical_rows(unpaid(80))[0] == 19
