"""Each rule on either side of its threshold; what advice says; rows that hold anything; where logs lie."""

import ast
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_nb.config.settings import Settings
from grpo_nb.health.monitor import HealthMonitor, check_health
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
    severest,
    unpaid,
)

ORDER = [None, "info", "warning", "critical"]


def late(times: float, column: str, usual: float = 1.0, steps: int = 120) -> Rows:
    """A log in which nothing rises, and a column is so many times as large from the middle on."""
    return flat(
        steps,
        **{column: lambda i, r: usual * (1 + 0.01 * (i % 5)) * (times if i >= steps // 2 else 1)},
    )


def fallen_to(kept: float) -> Rows:
    """Gains 3, then keeps this share of it."""
    course = lambda i, r: (
        0.04 * i if i < 75 else 3.0 if i < 100 else max(3 * kept, 3 - 0.1 * (i - 99))
    )
    return changed(160, reward=course)


def still_at(share: float) -> Rows:
    """Half right, as far as is known; so many groups are without spread."""
    return flat(60, frac_reward_zero_std=lambda i, r: share, rewards__right__mean=lambda i, r: 0.5)


def never_paid(steps: float) -> Rows:
    return changed(
        int(steps), rewards__rare__mean=lambda i, r: 0.0, rewards__rare__std=lambda i, r: 0.0
    )


def form_at(gain: float) -> Rows:
    """The form is learnt; the answers gain so much from 0.2."""
    rows = changed(
        160, rewards__right__mean=lambda i, r: 0.2 + gain * min(1, i / 100) + 0.01 * (i * i % 7)
    )
    return [
        {**row, "reward": row["rewards/form/mean"] + 2 * row["rewards/right/mean"]} for row in rows
    ]


def held_out(course: Callable[[int], float]) -> Rows:
    return [
        {**r, "holdout/accuracy": course(i)} if i % 20 == 19 else r
        for i, r in enumerate(healthy_log(200, 6))
    ]


# Rule, the severity that is reached at the second value and not at the first, the two values, a log made with one.
SIDES: dict[str, tuple[str, str, float, float, Callable[[float], Rows]]] = {
    "no spread": ("no_spread", "warning", 0.45, 0.55, still_at),
    "no spread at all": ("no_spread", "critical", 0.87, 0.92, still_at),
    "cut": ("truncation", "info", 0.23, 0.27, cut),
    "much cut": ("truncation", "warning", 0.47, 0.53, cut),
    "all cut": ("truncation", "critical", 0.87, 0.92, cut),
    "at the limit": ("truncation", "critical", 0.93, 0.96, lambda x: flat(
        60, completions__mean_length=lambda i, r: 500 * x, completions__max_length=lambda i, r: 500,
        completions__clipped_ratio=lambda i, r: None)),
    "repeats": ("collapse", "warning", 0.45, 0.55, lambda x: flat(30, completions__duplicates=lambda i, r: x)),
    "one text": ("collapse", "critical", 0.75, 0.85, lambda x: flat(30, completions__same_answer=lambda i, r: x)),
    "entropy": ("collapse", "warning", 0.25, 0.18, lambda x: late(x, "entropy")),
    "KL": ("kl_drift", "info", 0.45, 0.55, lambda x: late(x / 0.01, "kl", 0.01)),
    "much KL": ("kl_drift", "warning", 1.9, 2.2, lambda x: late(x / 0.01, "kl", 0.01)),
    "KL gone while the reward falls": ("kl_drift", "critical", 9, 12, lambda x: flat(
        120, kl=lambda i, r: x * i / 110, reward=lambda i, r: r["reward"] - 0.03 * i)),
    "gradient grown": ("gradient", "warning", 9, 11, lambda x: late(x, "grad_norm")),
    "no gradient": ("gradient", "critical", 1e-6, 0.0, lambda x: flat(60, grad_norm=lambda i, r: x)),
    "no learning rate": ("gradient", "critical", 1e-9, 0.0, lambda x: flat(60, learning_rate=lambda i, r: x)),
    "gradient NaN": ("not_finite", "critical", 2, 3, lambda x: flat(60, grad_norm=lambda i, r: NAN if i < x else 1.0)),
    "a reward NaN": ("not_finite", "warning", 9, 10, lambda x: flat(60, rewards__a__mean=lambda i, r: NAN if i < x else 1.0)),
    "another metric infinite": ("not_finite", "warning", 1.0, INFINITE, lambda x: flat(9, tools__calls=lambda i, r: x)),
    "longer": ("length", "warning", 1.9, 2.1, lambda x: late(x, "completions__mean_length", 100, steps=240)),
    "shorter": ("length", "warning", 0.4, 0.3, lambda x: late(x, "completions__mean_length", 100)),
    "flat": ("reward_flat", "info", 99, 101, lambda x: flat(int(x))),
    "flat by half": ("reward_flat", "info", 29, 31, lambda x: flat(int(x), max_steps=lambda i, r: 60)),
    "flat for long": ("reward_flat", "warning", 299, 301, lambda x: flat(int(x))),
    "some lost": ("reward_falling", "warning", 0.7, 0.3, fallen_to),
    "all lost": ("reward_falling", "critical", 0.3, 0.02, fallen_to),
    "never paid": ("constant_reward", "warning", 29, 31, never_paid),
    "form alone": ("form_only", "warning", 0.3, 0.0, form_at),
    "held-out lost": ("holdout", "warning", 0.1, 0.35, lambda x: held_out(
        lambda i: min(0.7, 0.3 + 0.005 * i) - x * (i >= 139))),
    "held-out stays": ("holdout", "warning", 0.03, 0.015, lambda x: held_out(lambda i: 0.4 + x * (i >= 39))),
}  # fmt: skip


@pytest.mark.parametrize("case", SIDES)
def test_a_threshold_is_where_the_page_says(case: str) -> None:
    rule, severity, silent, speaks, make = SIDES[case]
    reached = [
        severest(check_health(make(value), weights=WEIGHTS, ranges=RANGES), rule)
        for value in (silent, speaks)
    ]
    assert ORDER.index(reached[0]) < ORDER.index(severity) and reached[1] == severity, reached


@pytest.mark.parametrize("case", SIDES)
def test_every_setting_in_an_advice_exists_and_may_be_written(case: str) -> None:
    settings = Settings(max_completion_length=64)
    *_, value, make = SIDES[case]
    for alert in check_health(make(value), weights=WEIGHTS, settings=settings).alerts:
        assert alert.message and alert.advice and alert.step >= 1 and "{" not in alert.advice
        for line in alert.advice.split("settings.replace(")[1:]:
            name, new = line.split(")")[0].split("=")
            settings.replace(**{name: ast.literal_eval(new)})
        json.dumps(alert.to_dict(), allow_nan=False)


def test_nan_and_missing_rewards_need_no_ten_rows() -> None:
    monitor = HealthMonitor()
    rows = [
        {"reward": 1.0, "loss": NAN},
        {"reward": 1.0, "loss": NAN, "kl": NAN},
        {"reward": 1.0, "kl": NAN},
    ]
    told = [(a.subject, a.severity) for row in rows for a in monitor.update(row)]
    assert told == [("loss", "critical"), ("kl", "critical")]
    # TRL's row where every reward was NaN or None: the recorder leaves out what is None.
    for row in ({"step": 1, "loss": 0.0}, {"step": 1, "reward": INFINITE}):
        assert not check_health([row]).ok
    gone = check_health([*healthy_log(30), *({"step": 31 + i, "loss": 0.0} for i in range(22))])
    assert [(a.severity, a.step) for a in of(gone, "no_reward")] == [("critical", 50)]
    assert not check_health(unpaid(9)).alerts, "the others speak from ten on"


def test_what_is_learnt_is_no_fault_and_some_rows_need_no_reward() -> None:
    learnt = changed(160, rewards__right__std=lambda i, r: 0.1, frac_reward_zero_std=lambda i, r: min(0.9, i / 60),
                     rewards__right__mean=lambda i, r: min(0.96, 0.2 + i / 60))  # fmt: skip
    reused = [
        r if i % 12 == 0 else {"step": r["step"], "loss": 0.1}
        for i, r in enumerate(healthy_log(400))
    ]
    evaluated = [{"eval_loss": 1.0}, *healthy_log(30), {"train_runtime": 3.0}]
    for rows in (learnt, reused, evaluated):
        assert check_health(rows, weights=WEIGHTS, ranges=RANGES).ok


def test_what_was_not_measured_is_not_judged() -> None:
    rows = [{**row, "grad_norm": 0.0} for row in unpaid()]
    assert not of(check_health(rows), "gradient"), (
        "without spread there is nothing that a gradient could be of"
    )
    bare = [{k: v for k, v in row.items() if k != "frac_reward_zero_std"} for row in unpaid()]
    assert severest(check_health(bare), "no_spread") == "critical", "reward_std says it too"
    assert not of(
        check_health([{k: v for k, v in row.items() if not k.endswith("std")} for row in bare]),
        "no_spread",
    )
    drifting = late(300, "kl", 0.01)
    assert not of(check_health(drifting, settings=Settings(beta=0.0)), "kl_drift")
    assert of(check_health(drifting, settings=Settings(beta=0.1)), "kl_drift")
    sometimes = changed(rewards__code__mean=lambda i, r: NAN if i % 2 else 0.1 * (i % 7))
    assert not of(check_health(sometimes), "constant_reward")


@pytest.mark.parametrize("seed", range(8))
def test_no_row_makes_it_raise(seed: int) -> None:
    choose = random.Random(seed)
    anything = [
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
    keys = [
        *healthy_log(1)[0],
        "clip_ratio",
        "holdout/accuracy",
        "max_steps",
        "rewards/b",
        "rewards/",
        "",
    ]
    monitor = HealthMonitor(
        weights=choose.choice([None, {}, WEIGHTS, {"right": 0.0, "form": -1.0}])
    )
    for row in healthy_log(80, seed):
        row |= {
            key: choose.choice(anything)
            for key in choose.sample(keys, choose.randrange(len(keys) // 2))
        }
        for alert in monitor.update(row if choose.random() < 0.9 else {}):
            assert repr(alert) and alert._repr_html_()
            json.dumps(alert.to_dict(), allow_nan=False)


def test_a_log_is_read_from_wherever_it_is(tmp_path: Path) -> None:
    rows = never_paid(120)
    expected = check_health(rows).alerts
    for step in (9, 120):
        state = {"log_history": [*rows[:step], {"train_runtime": 3.0, "step": step}]}
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    assert check_health(tmp_path).alerts == expected, "the latest checkpoint's"
    assert check_health(str(tmp_path / "checkpoint-120" / "trainer_state.json")).alerts == expected
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 121, "rew'
    )
    assert check_health(tmp_path).alerts == expected
    with pytest.raises(FileNotFoundError, match="no log at"):
        check_health(tmp_path / "nowhere.json")
    (tmp_path / "other.json").write_text('{"epoch": 1}')
    with pytest.raises(ValueError, match=r"other.json.*log_history"):
        check_health(tmp_path / "other.json")


def test_a_run_brings_its_weights_and_settings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "cut", cut(0.6), max_completion_length=40)
    report = check_health(run.path)
    assert "max_completion_length=80" in of(report, "truncation")[0].advice
    assert report.alerts == check_health(run).alerts
    assert of(check_health(make_run(tmp_path / "form", form_at(0.0))), "form_only")
    assert not of(check_health(form_at(0.0)), "form_only"), (
        "without weights no reward is the main one"
    )
    assert "1 warning" in repr(report) and "truncation" in report._repr_html_() and not report.ok
