"""The rules on made-up runs that none of them was set on, and alerts followed to their end."""

import json
from pathlib import Path

import pytest

from grpo_nb.health.monitor import HealthMonitor, check_health
from grpo_nb.runs.alert import Alert
from tests.support.faulty_runs import ASIDE, FAULTS, RUNS, SEEN, judged
from tests.support.health_logs import NAN, RANGES, WEIGHTS, Rows, changed, flat, healthy_log, make_run, severest, told


@pytest.mark.parametrize("names", [SEEN, sorted(ASIDE)], ids=["seen", "aside"])
def test_four_of_five_faults_are_named_and_no_healthy_run_is_accused(names: list[str]) -> None:
    faulty = sum(name.partition(" #")[0] in FAULTS for name in names)
    missed, accused = judged(names, check_health)
    assert faulty - len(missed) >= 0.8 * faulty, missed
    assert not accused


def test_the_made_up_runs_are_as_many_as_the_page_says() -> None:
    assert len(FAULTS) >= 30 and len(RUNS) - 2 * len(FAULTS) >= 24 and abs(len(SEEN) - len(ASIDE)) <= 1


def earned_at(step: int) -> Rows:
    return changed(100, rewards__rare__mean=lambda i, r: 0.2 * (i + 1 == step), rewards__rare__std=lambda i, r: 0.0)


def test_what_stopped_being_true_is_withdrawn() -> None:
    report = check_health(earned_at(62), weights=WEIGHTS)
    (alert,) = report.of("constant_reward")
    assert (alert.severity, alert.step, alert.ended, alert.standing) == (
        "warning", 30, 62, "withdrawn at step 62 (was warning)")  # fmt: skip
    assert report.ok and report.latest[-1] == alert and "1 withdrawn" in report.summary
    assert "withdrawn at step 62 (was warning)" in repr(report) and "withdrawn" in report._repr_html_()
    assert [a.standing for a in report.told if a.rule == alert.rule] == ["info", "warning", alert.standing]


def test_an_alert_says_its_number_at_first_at_worst_and_at_last() -> None:
    shares = [0.6] * 20 + [0.74] * 30 + [0.37] * 50
    rows = flat(100, completions__clipped_ratio=lambda i, r: shares[i])
    (alert,) = check_health(rows).of("truncation")
    assert "(first 60% at step 10, worst 74% at step 40, last 37% at step 100)" in alert.message
    assert alert.message.startswith("37% of the completions") and alert.severity == "warning", "half of the run was cut"
    assert alert.evidence["worst"] == {"step": 40, "share_now": pytest.approx(0.74)}
    assert json.loads(json.dumps(alert.to_dict(), allow_nan=False)) == alert.to_dict()


def test_severity_follows_what_is_true_and_what_comes_back_is_told_again() -> None:
    cut = [0.95] * 40 + [0.0] * 160 + [0.95] * 30
    report = check_health(flat(230, completions__clipped_ratio=lambda i, r: cut[i]))
    standing = [(a.kind, a.step) for a in report.told if a.rule == "truncation"]
    assert standing[:2] == [("warning", 10), ("critical", 20)] and standing[-1][0] == "critical"
    assert "withdrawn" in [kind for kind, _ in standing]


def test_alerts_on_disk_are_no_more_than_ten_rows_old(tmp_path: Path) -> None:
    rows = flat(47, completions__clipped_ratio=lambda i, r: 0.3 + 0.01 * i)
    run = make_run(tmp_path / "run", [])
    monitor = HealthMonitor(folder=run.path)
    monitor._write = lambda write=monitor._write: (calls.append(1), write())[1]
    calls: list[int] = []
    for row in rows:
        monitor.update(row)
    (alert,) = (a for a in run.alerts if a.rule == "truncation")
    assert alert.evidence["last"]["step"] == 40 and len(calls) <= 4 + len(check_health(rows).told)


def test_softening_ends_when_the_rise_ends() -> None:
    """A rise over 60 rows, then 200 rows of the same with an entropy that goes."""
    rows = healthy_log(260, 5, speed=4.3)
    for i, row in enumerate(rows):
        row["entropy"] = 1.2 if i < 100 else 0.1
    (alert,) = check_health(rows, weights=WEIGHTS).of("collapse")
    assert alert.severity == "warning" and alert.is_open and alert.step < 160


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        # TRL's row where every reward was NaN or None: the recorder leaves out what is None.
        ([{"step": i, "loss": 0.0, "grad_norm": 0.0} for i in (1, 2, 3)], 1),
        ([{"step": 1, "loss": 0.1, "kl": 0.0}], 1),
        ([*healthy_log(30), *({"step": 31 + i, "loss": 0.0} for i in range(22))], 50),
    ],
)
def test_a_log_without_rewards_is_not_called_good(rows: Rows, first: int) -> None:
    report = check_health(rows)
    (alert,) = report.of("no_reward")
    assert alert.severity == "critical" and alert.step == first and not report.ok and "check_rewards" in alert.advice


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_rewards_that_are_no_numbers_are_critical_from_the_first_row(value: float) -> None:
    assert severest(check_health([{"step": 1, "reward": value, "loss": 0.0}]), "not_finite") == "critical"


def test_rows_of_a_batch_used_several_times_and_evaluations_need_no_reward() -> None:
    rows = [r if i % 12 == 0 else {"step": r["step"], "loss": 0.1} for i, r in enumerate(healthy_log(400))]
    assert not check_health(rows).of("no_reward")
    assert not check_health([{"eval_loss": 1.0}, *healthy_log(30), {"train_runtime": 3.0}]).of("no_reward")


def test_a_kl_that_was_there_from_the_start_is_not_this_runs() -> None:
    def drift(course: float) -> Alert:
        return check_health(flat(60, kl=lambda i, r: 0.8 + course * i)).of("kl_drift")[-1]

    assert "beta" not in drift(0.001).advice and "another model" in drift(0.001).why
    assert "beta" in drift(0.05).advice


def test_messages_say_what_was_measured() -> None:
    low, high = (
        check_health(flat(60, kl=lambda i, r, k=k: k if i == 50 else 0.01)).of("kl_spike")[0] for k in (0.2, 30.0)
    )
    assert "nearly impossible" not in low.why and "nearly impossible" in high.why
    loud = flat(60, rewards__loud__mean=lambda i, r: 9.0 * (i % 7), rewards__loud__std=lambda i, r: 9.0)
    means = [{k: v for k, v in row.items() if not k.endswith("/std")} for row in loud]
    said = [check_health(rows, weights=WEIGHTS).of("dominating_reward")[0].message for rows in (loud, means)]
    assert "between completions" in said[0] and "between the means of steps" in said[1]
    # One row of fifty in which both are different orders nothing.
    alone = flat(60, rewards__right__mean=lambda i, r: 1.0 - (i == 40), rewards__form__mean=lambda i, r: float(i == 40))
    assert not check_health(alone, weights=WEIGHTS).of("fighting_rewards")
    assert check_health(changed(rewards__rare__mean=lambda i, r: 0.0, rewards__rare__std=lambda i, r: 0.0), ranges={
        **RANGES, "rare": (-1.0, 0.0)}, weights=WEIGHTS).of("constant_reward")[0].severity == "info"  # fmt: skip


def test_length_that_came_with_the_rise_is_left_alone() -> None:
    rows = healthy_log(260, 5, speed=4.3)
    with_rise = [{**r, "completions/mean_length": 200.0 + 5 * min(i, 60) + i % 3} for i, r in enumerate(rows)]
    after_it = [{**r, "completions/mean_length": 200.0 + 4 * max(0, i - 60) + i % 3} for i, r in enumerate(rows)]
    assert not check_health(with_rise, weights=WEIGHTS).of("length_growth")
    assert told(check_health(after_it, weights=WEIGHTS), "length_growth")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (((None,), {}), TypeError, "rows = None is no log: write check_health"),
        (((5,), {}), TypeError, "rows = 5 is no log"),
        ((({"epoch": 1},), {}), ValueError, "holds no log_history"),
        (((["a"],), {}), ValueError, "each row is a mapping"),
        ((([],), {"weights": 5}), TypeError, "weights = 5 cannot be used: write weights="),
        ((([],), {"weights": {"a": "x"}}), TypeError, "weights = {'a': 'x'} cannot"),
        ((([],), {"ranges": {"a": 1.0}}), TypeError, r"ranges = {'a': 1.0} cannot .*\(0.0, 1.0\)"),
        ((([],), {"settings": {}}), TypeError, "settings = {} cannot be used"),
        ((([],), {"completions": 5}), TypeError, "completions = 5"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(arguments: tuple, error: type, said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        check_health(*arguments[0], **arguments[1])
    assert "\n" not in str(caught.value)
