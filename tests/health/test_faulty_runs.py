"""The rules on made-up runs that none of them was set on; alerts followed to their end, and through a resume."""

import json
from collections.abc import Iterable
from statistics import fmean

import pytest

from grpo_nb.health.monitor import HealthMonitor, check_health
from grpo_nb.runs.alert import Alert, alerts_of
from tests.support.faulty_runs import ASIDE, SEEN, judged, made_run
from tests.support.health_logs import Rows, changed, cut, flat, healthy_log, of, unpaid


@pytest.mark.parametrize(
    "names", [pytest.param(SEEN, marks=pytest.mark.slow), sorted(ASIDE)], ids=["seen", "aside"]
)
def test_faults_are_named_and_no_healthy_run_is_accused(names: list[str]) -> None:
    missed, accused = judged(names, check_health)
    assert len(missed) <= 1 and not accused, (missed, accused)


def by_ten(rows: Rows) -> Rows:
    """The log as `logging_steps=10` writes it: the mean of ten steps in a row."""
    blocks = [rows[i : i + 10] for i in range(0, len(rows) - 9, 10)]
    return [{key: fmean(row[key] for row in block if key in row) for key in block[-1]} | {"step": block[-1]["step"]}
            for block in blocks]  # fmt: skip


def test_a_log_of_every_tenth_step_is_judged_in_time() -> None:
    """A window is so many steps, not rows: what is plain at step 100 is not told at step 300."""
    cases = [
        ("truncation", cut(0.95)),
        ("no_spread", unpaid(60)),
        ("kl_drift", flat(100, kl=lambda i, r: 0.1 * i)),
    ]
    for rule, rows in cases:
        (alert,) = of(check_health(by_ten(rows)), rule)
        assert alert.severity in ("warning", "critical") and alert.step <= 60, rule
    for seed in range(5):
        assert check_health(by_ten(healthy_log(400, seed)), weights={"right": 2.0, "form": 1.0}).ok


def written(rows: Rows, alerts: Iterable[list[Alert]]) -> Rows:
    """Rows as a run's folder has them, read back."""
    told = zip(rows, alerts, strict=True)
    return json.loads(
        json.dumps(
            [{**row, "alerts": [a.to_dict() for a in new]} if new else row for row, new in told]
        )
    )


RESUMED = ["one text for all #0", "rises and loses it #1", "KL runs away #0", "flat for long #0"]


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_has_the_alerts_of_one_that_was_never_interrupted(name: str) -> None:
    made = made_run(name)
    whole = HealthMonitor(**made.told)
    unbroken = written(made.rows, [whole.update(row) for row in made.rows])
    assert alerts_of(unbroken) == whole.alerts == check_health(made.rows, **made.told).alerts != []
    for at in (7, 60, 120):
        resumed = HealthMonitor(**made.told, rows=unbroken[:at])
        assert [
            *unbroken[:at],
            *written(made.rows[at:], [resumed.update(row) for row in made.rows[at:]]),
        ] == unbroken


def test_what_is_no_longer_true_is_withdrawn_and_told_again_if_it_comes_back() -> None:
    shares = [0.95] * 60 + [0.0] * 140 + [0.6] * 40
    monitor = HealthMonitor()
    rows = flat(240, completions__clipped_ratio=lambda i, r: shares[i])
    told = [alert for row in rows for alert in monitor.update(row) if alert.rule == "truncation"]
    standing = [(alert.kind, alert.step) for alert in told]
    assert (
        standing[:2] == [("warning", 10), ("critical", 50)]
        and standing[-1][0] == "warning"
        and told[-1].step > 200
    )
    (gone,) = (alert for alert in told if not alert.is_open)
    assert (
        80 <= gone.ended <= 100
        and gone.standing == f"withdrawn at step {gone.ended} (was {gone.severity})"
    )
    assert len(of(check_health(rows), "truncation")) == 1, "one for each rule and subject"


def test_a_sudden_drop_is_told_within_eight_rows() -> None:
    rows = changed(120, reward=lambda i, r: 0.015 if i >= 112 else r["reward"])
    (alert,) = of(check_health(rows), "reward_falling")
    assert alert.severity == "warning" and 113 <= alert.step <= 120 and "dropped" in alert.message


def test_a_run_that_rises_is_never_stopped() -> None:
    for seed in range(20):
        monitor = HealthMonitor(stop_on="critical")
        for row in healthy_log(150, seed, groups=1, right=lambda at: 0.1 + 0.4 * at):
            monitor.update(row)
        assert not monitor.should_stop, seed


@pytest.mark.parametrize(("is_mended", "stops"), [(False, True), (True, False)])
def test_a_resumed_run_stops_at_what_stopped_it_before_unless_that_is_mended(
    is_mended: bool, stops: bool
) -> None:
    rows = unpaid(80)
    first = HealthMonitor(stop_on="critical")
    stopped = [first.update(row) and first.should_stop for row in rows]
    assert stopped.index(True) == 19, "the first critical alert stops"
    resumed = HealthMonitor(rows=rows[:25], stop_on="critical")
    for i, row in enumerate(healthy_log(40, groups=8) if is_mended else rows[25:65]):
        assert not resumed.should_stop or i >= 10, "ten rows to show that it is another run"
        resumed.update({**row, "step": 26 + i})
    assert resumed.should_stop == stops
