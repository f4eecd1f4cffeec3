"""Each rule on either side of its threshold, what its advice says, and rows that hold anything."""

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo_nb.config.settings import Settings
from grpo_nb.health.history import ACCURACY_INTERVAL, HOLDOUT_TOTAL, RunHistory
from grpo_nb.health.monitor import HealthMonitor, HealthReport, check_health
from grpo_nb.health.trend import main_reward, z_since_start
from grpo_nb.runs.measures import ACCURACY_KEY
from tests.support.health_logs import (
    INFINITE,
    NAN,
    RANGES,
    WEIGHTS,
    Rows,
    changed,
    cut,
    flat,
    healthy_log,
    make_run,
    of,
    seeds,
    severest,
    unpaid,
    with_intervals,
)

SEVERITIES = [None, "info", "warning", "critical"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """Two values on either side of a threshold, and the log that is made with one of them."""

    rule: str
    severity: str
    """Severity that the second value reaches, and the first one does not."""
    silent: float
    speaks: float
    make: Callable[[float], Rows]


def constant(value: object) -> Callable[[int, dict], object]:
    """Return a column with one value in every row."""
    return lambda i, row: value


def growing_late(factor: float, column: str, usual: float = 1.0, steps: int = 120) -> Rows:
    """Return a flat log with a column that is multiplied by a factor from the middle on."""

    def value(i: int, row: dict) -> float:
        noisy = usual * (1 + 0.01 * (i % 5))
        return noisy * factor if i >= steps // 2 else noisy

    return flat(steps, **{column: value})


def falling_to(kept: float) -> Rows:
    """Return a log whose reward gains 3, and then keeps this share of it."""

    def reward(i: int, row: dict) -> float:
        if i < 75:
            return 0.04 * i
        if i < 100:
            return 3.0
        return max(3 * kept, 3 - 0.1 * (i - 99))

    return changed(160, reward=reward)


def with_zero_variance(share: float) -> Rows:
    """Return a flat log in which this share of the groups has zero reward variance."""
    return flat(60, frac_reward_zero_std=constant(share), rewards__right__mean=constant(0.5))


def never_rewarded(steps: float) -> Rows:
    """Return a healthy log with one more reward that is always 0."""
    return changed(int(steps), rewards__rare__mean=constant(0.0), rewards__rare__std=constant(0.0))


def format_with_gain(gain: float) -> Rows:
    """Return a log in which the format is learnt, and the answers gain this much from 0.2."""

    def right(i: int, row: dict) -> float:
        return 0.2 + gain * min(1, i / 100) + 0.01 * (i * i % 7)

    rows = changed(160, rewards__right__mean=right)
    return [
        row | {"reward": row["rewards/form/mean"] + 2 * row["rewards/right/mean"]} for row in rows
    ]


def with_holdout(score: Callable[[int], float]) -> Rows:
    """Return a healthy log with a held-out accuracy in every twentieth row."""
    rows = healthy_log(200, 6)
    for i in range(19, 200, 20):
        rows[i]["holdout/accuracy"] = score(i)
    return with_intervals(rows, Settings().holdout_questions)


def holdout_drop(drop: float) -> Rows:
    return with_holdout(lambda i: min(0.7, 0.3 + 0.005 * i) - drop * (i >= 139))


def holdout_gain(gain: float) -> Rows:
    return with_holdout(lambda i: 0.4 + gain * (i >= 59))


SIDES = {
    "zero variance": Side(
        rule="zero_variance", severity="warning", silent=0.45, speaks=0.55, make=with_zero_variance
    ),
    "zero variance in all groups": Side(
        rule="zero_variance", severity="critical", silent=0.87, speaks=0.92, make=with_zero_variance
    ),
    "truncated": Side(rule="truncation", severity="info", silent=0.23, speaks=0.27, make=cut),
    "half truncated": Side(
        rule="truncation", severity="warning", silent=0.47, speaks=0.53, make=cut
    ),
    "all truncated": Side(
        rule="truncation", severity="critical", silent=0.87, speaks=0.92, make=cut
    ),
    "repeats": Side(
        rule="collapse",
        severity="warning",
        silent=0.45,
        speaks=0.55,
        make=lambda x: flat(30, completions__duplicates=constant(x)),
    ),
    "entropy": Side(
        rule="collapse",
        severity="warning",
        silent=0.25,
        speaks=0.18,
        make=lambda x: growing_late(x, "entropy"),
    ),
    "KL": Side(
        rule="kl_drift",
        severity="info",
        silent=0.45,
        speaks=0.55,
        make=lambda x: growing_late(x / 0.01, "kl", 0.01),
    ),
    "large KL": Side(
        rule="kl_drift",
        severity="warning",
        silent=1.9,
        speaks=2.2,
        make=lambda x: growing_late(x / 0.01, "kl", 0.01),
    ),
    "large gradient": Side(
        rule="gradient",
        severity="warning",
        silent=9,
        speaks=11,
        make=lambda x: growing_late(x, "grad_norm"),
    ),
    "no gradient": Side(
        rule="gradient",
        severity="critical",
        silent=1e-6,
        speaks=0.0,
        make=lambda x: flat(60, grad_norm=constant(x)),
    ),
    "no learning rate": Side(
        rule="gradient",
        severity="critical",
        silent=1e-9,
        speaks=0.0,
        make=lambda x: flat(60, learning_rate=constant(x)),
    ),
    "gradient is NaN": Side(
        rule="not_finite",
        severity="critical",
        silent=2,
        speaks=3,
        make=lambda x: flat(60, grad_norm=lambda i, row: NAN if i < x else 1.0),
    ),
    "a reward is NaN": Side(
        rule="not_finite",
        severity="warning",
        silent=9,
        speaks=10,
        make=lambda x: flat(60, rewards__a__mean=lambda i, row: NAN if i < x else 1.0),
    ),
    "another metric is infinite": Side(
        rule="not_finite",
        severity="warning",
        silent=1.0,
        speaks=INFINITE,
        make=lambda x: flat(9, tools__calls=constant(x)),
    ),
    "longer": Side(
        rule="length",
        severity="warning",
        silent=1.9,
        speaks=2.1,
        make=lambda x: growing_late(x, "completions__mean_length", 100, steps=240),
    ),
    "tool calls fail": Side(
        rule="tools",
        severity="warning",
        silent=0.45,
        speaks=0.55,
        make=lambda x: flat(30, tools__failure_frequency=constant(x)),
    ),
    "flat": Side(
        rule="reward_flat", severity="info", silent=99, speaks=101, make=lambda x: flat(int(x))
    ),
    "flat for half of the run": Side(
        rule="reward_flat",
        severity="info",
        silent=29,
        speaks=31,
        make=lambda x: flat(int(x), max_steps=constant(60)),
    ),
    "flat for long": Side(
        rule="reward_flat", severity="warning", silent=299, speaks=301, make=lambda x: flat(int(x))
    ),
    "half of the gain is lost": Side(
        rule="reward_falling", severity="warning", silent=0.7, speaks=0.3, make=falling_to
    ),
    "all of the gain is lost": Side(
        rule="reward_falling", severity="critical", silent=0.3, speaks=0.02, make=falling_to
    ),
    "never rewarded": Side(
        rule="constant_reward", severity="warning", silent=29, speaks=31, make=never_rewarded
    ),
    "format alone": Side(
        rule="format_only", severity="warning", silent=0.3, speaks=0.0, make=format_with_gain
    ),
    "held-out falls": Side(
        rule="holdout", severity="warning", silent=0.1, speaks=0.35, make=holdout_drop
    ),
    "held-out stays": Side(
        rule="holdout", severity="warning", silent=0.03, speaks=0.015, make=holdout_gain
    ),
}


def report_of(rows: Rows) -> HealthReport:
    """Return the report of a log with all that a run knows of itself."""
    size = Settings().num_generations
    return check_health(rows, weights=WEIGHTS, ranges=RANGES, group_size=size)


@functools.cache
def report_above(name: str) -> HealthReport:
    """Return the report of the log on the side of a threshold that is reported."""
    side = SIDES[name]
    return report_of(side.make(side.speaks))


@pytest.mark.parametrize("name", SIDES)
def test_threshold_is_where_the_guide_says(name: str) -> None:
    side = SIDES[name]
    below = report_of(side.make(side.silent))
    reached = SEVERITIES.index(severest(below, side.rule))
    assert reached < SEVERITIES.index(side.severity)
    assert severest(report_above(name), side.rule) == side.severity


@pytest.mark.parametrize("name", SIDES)
def test_alert_has_a_message_and_advice(name: str) -> None:
    for alert in report_above(name).alerts:
        assert alert.message
        assert alert.advice
        json.dumps(alert.to_dict(), allow_nan=False)


def test_guide_lists_exactly_the_rules() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "health.md"
    rows = [line for line in guide.read_text().splitlines() if line.startswith("| `")]
    listed = {row.split("`")[1] for row in rows}
    assert listed == {side.rule for side in SIDES.values()}
    assert len(listed) == 13  # a new rule raises this number


def test_not_finite_reports_from_the_first_row() -> None:
    monitor = HealthMonitor()
    rows = [
        {"reward": 1.0, "loss": NAN},
        {"reward": 1.0, "loss": NAN, "kl": NAN},
        {"reward": 1.0, "kl": NAN},
    ]
    alerts = [alert for row in rows for alert in monitor.update(row)]
    found = [(alert.subject, alert.severity) for alert in alerts]
    assert found == [("loss", "critical"), ("kl", "critical")]


def test_not_finite_names_a_log_that_never_had_a_reward() -> None:
    (alert,) = check_health([{"step": 1, "loss": 0.0}]).alerts
    assert alert.message == "No reward has been logged since step 0."


def test_not_finite_counts_gradient_norms_in_a_row() -> None:
    rows = [{"reward": 1.0, "grad_norm": norm} for norm in (NAN, NAN, 1.0, NAN)]
    (alert,) = HealthMonitor(rows=rows).alerts
    assert alert.message == "grad_norm is NaN or infinite (consecutive rows: 1)."


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"step": 1, "loss": 0.0}, id="missing"),
        pytest.param({"step": 1, "reward": INFINITE}, id="infinite"),
    ],
)
def test_not_finite_reports_a_first_row_without_reward(row: dict) -> None:
    report = check_health([row])
    assert of(report, "not_finite")
    assert not report.ok


def test_not_finite_reports_a_reward_missing_for_20_steps() -> None:
    # TRL leaves a reward out if it is NaN or None for every completion.
    rows = healthy_log(30)
    rows += [{"step": 31 + i, "loss": 0.0} for i in range(22)]
    (alert,) = of(check_health(rows), "not_finite")
    assert (alert.subject, alert.severity, alert.step) == ("missing reward", "critical", 50)


def test_other_rules_are_silent_before_step_10() -> None:
    assert not check_health(unpaid(9)).alerts


HEALTHY = {
    "learnt": lambda: changed(
        160,
        rewards__right__std=constant(0.1),
        frac_reward_zero_std=lambda i, row: min(0.9, i / 60),
        rewards__right__mean=lambda i, row: min(0.96, 0.2 + i / 60),
    ),
    "completions used twelve times": lambda: [
        row if i % 12 == 0 else {"step": row["step"], "loss": 0.1}
        for i, row in enumerate(healthy_log(400))
    ],
    "evaluation and summary": lambda: [
        {"eval_loss": 1.0},
        *healthy_log(30),
        {"train_runtime": 3.0},
    ],
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_healthy_run_has_no_warning(make: Callable[[], Rows]) -> None:
    assert check_health(make(), weights=WEIGHTS, ranges=RANGES).ok


def without(rows: Rows, ending: str) -> Rows:
    """Return the rows without the columns whose names have this ending."""
    return [
        {name: value for name, value in row.items() if not name.endswith(ending)} for row in rows
    ]


def test_gradient_of_zero_with_zero_variance_is_silent() -> None:
    rows = [row | {"grad_norm": 0.0} for row in unpaid()]
    assert not of(check_health(rows), "gradient")


def test_zero_variance_is_known_from_the_deviation_alone() -> None:
    rows = without(unpaid(), "frac_reward_zero_std")
    assert severest(check_health(rows), "zero_variance") == "critical"


def test_zero_variance_without_any_deviation_is_silent() -> None:
    assert not of(check_health(without(unpaid(), "std")), "zero_variance")


def test_main_reward_of_equal_weights_is_unknown() -> None:
    history = RunHistory()
    history.add({"reward": 1.0, "rewards/correctness/mean": 0.5, "rewards/style/mean": 0.5})
    assert main_reward(history) is None


def test_start_of_a_reward_that_is_missing_later_is_not_now() -> None:
    history = RunHistory()
    for i in range(10):
        scores = {"rewards/right/mean": float(i >= 2)} if i < 5 else {}
        history.add({"step": 10 * (i + 1), "reward": 1.0, **scores})
    assert z_since_start(history, "rewards/right") == 0


def test_holdout_of_eight_questions_needs_a_larger_drop() -> None:
    rows = holdout_drop(0.22)
    assert of(check_health(rows, ranges=RANGES), "holdout")
    assert not of(check_health(with_intervals(rows, 8), ranges=RANGES), "holdout")


def test_holdout_near_the_top_is_silent() -> None:
    assert not of(check_health(with_holdout(lambda i: 0.98), ranges=RANGES), "holdout")


def test_constant_reward_that_is_often_nan_is_silent() -> None:
    rows = changed(rewards__code__mean=lambda i, row: NAN if i % 2 else 0.1 * (i % 7))
    assert not of(check_health(rows), "constant_reward")


def test_reward_that_ranks_within_a_group_is_silent() -> None:
    rows = changed(rewards__code__mean=lambda i, row: 0.0, rewards__code__std=lambda i, row: 0.5)
    assert not of(check_health(rows), "constant_reward")


ANYTHING = [
    None,
    "",
    "0.5",
    True,
    [],
    {},
    NAN,
    INFINITE,
    -INFINITE,
    0,
    -0.0,
    1e308,
    -1e308,
    1e-320,
    1e25,
    3,
    -2.5,
]


@pytest.mark.parametrize("seed", seeds(8, 2))
def test_update_accepts_any_value_in_a_row(seed: int) -> None:
    chance = random.Random(seed)
    holdout_metrics = [ACCURACY_KEY, HOLDOUT_TOTAL, *ACCURACY_INTERVAL]
    names = [*healthy_log(1)[0], *holdout_metrics, "max_steps", "rewards/b", "rewards/", ""]
    weights = chance.choice([None, {}, WEIGHTS, {"right": 0.0, "form": -1.0}])
    monitor = HealthMonitor(weights=weights)
    for row in healthy_log(80, seed):
        for name in chance.sample(names, chance.randrange(len(names) // 2)):
            row[name] = chance.choice(ANYTHING)
        for alert in monitor.update(row if chance.random() < 0.9 else {}):
            assert repr(alert)
            assert alert._repr_html_()
            json.dumps(alert.to_dict(), allow_nan=False)


def half_of_the_groups_are_equal() -> Rows:
    """Return a log with middling rewards, in which more than half of the groups are equal."""
    return flat(
        60,
        frac_reward_zero_std=constant(0.55),
        rewards__right__mean=lambda i, row: 0.45 + 0.1 * (i % 2),
    )


def test_zero_variance_uses_the_group_size_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "eights", half_of_the_groups_are_equal(), num_generations=8)
    assert of(check_health(run), "zero_variance")
    assert check_health(run.path).alerts == check_health(run).alerts


def test_zero_variance_without_group_size_assumes_pairs() -> None:
    rows = half_of_the_groups_are_equal()
    assert not of(check_health(rows), "zero_variance")
    assert of(check_health(rows, group_size=8), "zero_variance")


def test_two_points_for_half_of_the_answers_are_no_success() -> None:
    rows = flat(
        60,
        frac_reward_zero_std=constant(0.95),
        rewards__right__mean=lambda i, row: 0.95 + 0.02 * (i % 2),
        rewards__right__std=constant(1.0),
    )
    alerts = of(check_health(rows, weights=WEIGHTS), "zero_variance")
    assert "nearly all succeed" not in alerts[-1].message


def test_kl_drift_with_a_high_and_noisy_start_does_not_warn() -> None:
    chance = random.Random(0)
    rows = flat(200, kl=lambda i, row: 5 * chance.lognormvariate(0, 0.3))
    assert severest(check_health(rows), "kl_drift") != "warning"


def test_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a run"):
        check_health(tmp_path / "nowhere")


def test_check_health_takes_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs" / "first", cut(0.6))
    monkeypatch.chdir(tmp_path)
    assert check_health("runs/first").alerts == check_health(run).alerts


def test_run_brings_its_weights(tmp_path: Path) -> None:
    rows = format_with_gain(0.0)
    assert of(check_health(make_run(tmp_path / "form", rows)), "format_only")
    assert not of(check_health(rows), "format_only")


def test_report_shows_counts_and_rules(tmp_path: Path) -> None:
    report = check_health(cut(0.6))
    assert not report.ok
    assert "Alerts: 1. Checked 60 rows" in repr(report)
    assert "truncation" in report._repr_html_()


def test_not_finite_with_several_rows_shows_their_number() -> None:
    rows = [{"reward": 1.0, "grad_norm": norm} for norm in (1.0, NAN, NAN, NAN)]
    alerts = HealthMonitor(rows=rows).alerts
    assert alerts[-1].message == "grad_norm is NaN or infinite (consecutive rows: 3)."
