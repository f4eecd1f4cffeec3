"""Each threshold of docs/guide/health.md from both sides: what is just below it is not said, what is just above it is."""

import ast
import json
import random
import statistics
from collections.abc import Callable

import pytest

from grpo_nb.health.facts import rank_shift, ranks
from grpo_nb.health.monitor import check_health
from grpo_nb.settings.settings import Settings
from tests.support.health_logs import DESERVED, RANGES, WEIGHTS, Rows, changed, flat, healthy_log, severest, told

ORDER = [None, "info", "warning", "critical"]


def without_reward(rows: Rows) -> Rows:
    """Nobody earns anything, so that what has no spread is too hard."""
    return [{**row, "reward": 0.0, "rewards/right/mean": 0.0, "rewards/form/mean": 0.0} for row in rows]


def entropy_of(left: float) -> Rows:
    return flat(40, entropy=lambda i, r: 1.0 if i < 20 else left)


def slower(times: float, longer: float) -> Rows:
    return flat(
        60, step_time=lambda i, r: 5.0 * (times if i >= 30 else 1), completions__mean_length=lambda i, r: 100.0 * (
            longer if i >= 30 else 1),
    )  # fmt: skip


def falling(kl: float) -> Rows:
    return flat(kl=lambda i, r: kl, reward=lambda i, r: r["reward"] - 0.03 * i)


def at_level(level: float) -> Rows:
    """Rises, touches 3 once, and stays at a share of it."""
    return changed(140, reward=lambda i, r: 0.03 * i if i < 60 else 3.0 if i == 60 else 3 * level)


def loud(share: float) -> Rows:
    """A reward of weight 1 that makes this share of the variance; `right`, of weight 2, makes the rest."""
    return flat(
        80, rewards__right__std=lambda i, r: 0.5, rewards__form__std=lambda i, r: 0.0, rewards__loud__mean=lambda i, r: 0.0,
        rewards__loud__std=lambda i, r: (share / (1 - share)) ** 0.5,
    )  # fmt: skip


def held_out(gain: float, key: str = "holdout/accuracy") -> Rows:
    rows = healthy_log(160, 6)
    trained = sum(r["reward"] for r in rows[-20:]) / 20 - sum(r["reward"] for r in rows[:20]) / 20
    scale = 1.0 if key == "holdout/accuracy" else trained
    # 0.4 at step 20, and the full gain from step 40 on.
    return [{**r, key: 0.4 + scale * gain * (i >= 39)} if i % 20 == 19 else r for i, r in enumerate(rows)]


def held_out_lost(lost: float) -> Rows:
    """Rises to 0.7 of 32 questions until step 100, and has lost some of it from step 140 on."""
    course = lambda i: min(0.7, 0.3 + 0.005 * i) - lost * (i >= 139)  # noqa: E731
    return [{**r, "holdout/accuracy": course(i)} if i % 20 == 19 else r for i, r in enumerate(healthy_log(200, 6))]


def fallen_to(kept: float) -> Rows:
    """Gains 3, then keeps this share of it."""
    return changed(
        160, reward=lambda i, r: 0.04 * i if i < 75 else 3.0 if i < 100 else max(3 * kept, 3 - 0.1 * (i - 99))
    )


# Rule, the severity that is reached at the second value and not at the first, the two values, a log made with one.
SIDES: dict[str, tuple[str, str, float, float, Callable[[float], Rows]]] = {
    "no spread": ("no_spread", "warning", 0.45, 0.52, lambda x: flat(60, frac_reward_zero_std=lambda i, r: x)),
    "no spread, perhaps": ("no_spread", "info", 0.45, 0.52, lambda x: flat(10, frac_reward_zero_std=lambda i, r: x)),
    "no spread, for sure": ("no_spread", "warning", 0.6, 0.66, lambda x: flat(10, frac_reward_zero_std=lambda i, r: x)),
    "no spread at all": (
        "no_spread", "critical", 0.87, 0.92, lambda x: without_reward(flat(60, frac_reward_zero_std=lambda i, r: x))),
    "cut": ("truncation", "info", 0.23, 0.27, lambda x: flat(60, completions__clipped_ratio=lambda i, r: x)),
    "much cut": ("truncation", "warning", 0.47, 0.53, lambda x: flat(60, completions__clipped_ratio=lambda i, r: x)),
    "all cut": ("truncation", "critical", 0.87, 0.92, lambda x: flat(60, completions__clipped_ratio=lambda i, r: x)),
    "certain": ("collapse", "warning", 0.25, 0.18, entropy_of),
    "KL spike, ratio": ("kl_spike", "info", 0.2, 0.3, lambda x: flat(60, kl=lambda i, r: x if i == 50 else 0.05)),
    "KL spike, least": ("kl_spike", "info", 0.09, 0.11, lambda x: flat(60, kl=lambda i, r: x if i == 50 else 0.005)),
    "KL spikes": ("kl_spike", "warning", 1, 2, lambda x: flat(60, kl=lambda i, r: 20.0 if i in (40, 50)[:int(x)] else 0.05)),
    "KL broken": ("kl_spike", "warning", 9, 11, lambda x: flat(60, kl=lambda i, r: x if i in (40, 50) else 0.05)),
    "KL step": ("kl_step", "info", 0.36, 0.44, lambda x: flat(60, kl=lambda i, r: x if i >= 40 else 0.2)),
    "KL": ("kl_drift", "info", 0.45, 0.55, lambda x: flat(60, kl=lambda i, r: x)),
    "KL while it falls": ("kl_drift", "warning", 0.45, 0.55, falling),
    "KL gone while it falls": ("kl_drift", "critical", 9, 11, falling),
    "gradient": ("gradient", "info", 9, 11, lambda x: flat(60, grad_norm=lambda i, r: x if i == 50 else 1.0)),
    "gradients": ("gradient", "warning", 2, 3, lambda x: flat(60, grad_norm=lambda i, r: 20.0 if i in (45, 50, 55)[:int(x)]
                                                              else 1.0)),
    "no gradient": ("gradient", "critical", 1e-6, 1e-9, lambda x: flat(60, grad_norm=lambda i, r: x)),
    "gradient NaN": ("not_finite", "critical", 2, 3, lambda x: flat(60, grad_norm=lambda i, r: float("nan") if i < x else 1.0)),
    "ratio": ("ratio_clipping", "warning", 0.18, 0.22, lambda x: flat(60, clip_ratio__region_mean=lambda i, r: x)),
    "time": ("slow_steps", "warning", 1.9, 2.1, lambda x: slower(x, 1.0)),
    "time beyond length": ("slow_steps", "warning", 2.5, 2.7, lambda x: slower(x, 2.0)),
    "flat": ("reward_flat", "info", 99, 101, lambda x: flat(int(x))),
    "flat by half": ("reward_flat", "info", 29, 31, lambda x: flat(int(x), max_steps=lambda i, r: 60)),
    "flat for long": ("reward_flat", "warning", 299, 301, lambda x: flat(int(x))),
    "at its top": ("reward_saturated", "info", 0.93, 0.97, at_level),
    "never paid": ("constant_reward", "warning", 29, 31, lambda x: changed(
        int(x), rewards__rare__mean=lambda i, r: 0.0, rewards__rare__std=lambda i, r: 0.0)),
    "loud": ("dominating_reward", "warning", 0.75, 0.85, loud),
    "held-out lost": ("holdout_falling", "warning", 0.1, 0.35, held_out_lost),
    "spread": ("spread_growth", "warning", 4.5, 5.5, lambda x: flat(60, reward_std=lambda i, r: x if i >= 30 else 1.0)),
    "at the cap": ("truncation", "warning", 0.93, 0.96, lambda x: flat(
        60, completions__clipped_ratio=lambda i, r: 0.0, completions__mean_length=lambda i, r: 500 * x,
        completions__max_length=lambda i, r: 500)),
    "held-out": ("holdout_flat", "warning", 0.03, 0.015, held_out),
    "held-out reward": ("holdout_flat", "warning", 0.2, 0.05, lambda x: held_out(x, "eval_reward")),
    "longer": ("length_growth", "warning", 1.4, 1.6, lambda x: flat(60, completions__mean_length=lambda i, r: 100 * (
        x if i >= 20 else 1) + i % 3)),
    "shorter": ("length_growth", "info", 0.4, 0.3, lambda x: flat(60, completions__mean_length=lambda i, r: 100 * (
        x if i >= 20 else 1) + i % 3)),
    "lost": ("reward_falling", "critical", 0.25, 0.05, fallen_to),
    "less": ("reward_falling", "warning", 0.7, 0.3, fallen_to),
}  # fmt: skip


@pytest.mark.parametrize("case", SIDES)
def test_a_threshold_is_where_the_page_says(case: str) -> None:
    rule, severity, silent, speaks, make = SIDES[case]
    reached = [severest(check_health(make(value), weights=WEIGHTS, ranges=RANGES), rule) for value in (silent, speaks)]
    assert ORDER.index(reached[0]) < ORDER.index(severity) and reached[1] == severity, reached


@pytest.mark.parametrize("case", [*DESERVED, *SIDES])
def test_every_setting_in_an_advice_exists_and_may_be_written(case: str) -> None:
    settings = Settings(max_completion_length=64)
    rows = DESERVED[case][2] if case in DESERVED else SIDES[case][4](SIDES[case][3])
    for alert in check_health(rows, weights=WEIGHTS, settings=settings).alerts:
        assert alert.message and alert.why and alert.advice and alert.step >= 1
        for written in alert.advice.split("settings.replace(")[1:]:
            name, value = written.split(")")[0].split("=")
            settings.replace(**{name: ast.literal_eval(value)})
        json.dumps(alert.to_dict(), allow_nan=False)


def texts(distinct: int, others: int) -> list[list[str]]:
    """Four groups of eight: so many different texts in each group, and so many of all that are not the common one."""
    if others:
        every = [f"other {k}" if k < others else "same" for k in range(32)]
        return [every[i::4] for i in range(4)]
    return [[f"group {g} text {k % distinct}" for k in range(8)] for g in range(4)]


@pytest.mark.parametrize(
    ("distinct", "others", "expected"),
    [(5, 0, None), (4, 0, "within groups"), (0, 8, "within groups"), (0, 5, "one answer")],
)
def test_equal_texts_are_counted(distinct: int, others: int, expected: str | None) -> None:
    # 3 of 7 repeat another one, 4 of 7; 75 % are one text, 84 %.
    report = check_health(flat(20), completions=[texts(distinct, others)] * 20, weights=WEIGHTS)
    assert [alert.subject for alert in report.of("collapse")] == ([expected] if expected else [])


def test_cutting_that_begins_is_told_within_ten_steps() -> None:
    rows = flat(80, completions__clipped_ratio=lambda i, r: 0.3 if i >= 60 else 0.0)
    assert check_health(rows).of("truncation")[0].step in range(68, 71)


@pytest.mark.parametrize(
    ("level", "ranges", "kind", "severity"),
    [
        (0.1, RANGES, "too hard", "critical"), (0.5, RANGES, "all alike", "critical"), (0.95, RANGES, "too easy", "warning"),
        # What it can be is not known: no level is a high one, whatever was seen, and nothing is earned at 0.
        (0.95, None, "all alike", "critical"), (2.0, {"right": (0, 20)}, "too hard", "critical"),
        (0.0, None, "too hard", "critical"), (0.0, {"right": (-1, 0)}, "too easy", "warning"),
    ],
)  # fmt: skip
def test_where_the_reward_lies_in_what_it_can_be_says_what_kind_of_sameness(
    level: float, ranges: dict | None, kind: str, severity: str
) -> None:
    rows = flat(
        40, frac_reward_zero_std=lambda i, r: 1.0 if i > 8 else 0.0,
        rewards__right__mean=lambda i, r: level * (1 if i > 8 else 0.9 + 0.2 * (i % 2)),
    )  # fmt: skip
    report = check_health(rows, weights=WEIGHTS, ranges=ranges)
    assert {alert.evidence["kind"] for alert in told(report, "no_spread")} == {kind}
    assert severest(report, "no_spread") == severity
    assert ("not known" in report.of("no_spread")[0].message) == (ranges is None)


def test_a_run_that_rises_is_spared() -> None:
    """Of each of these the page says that it is softened, or not said, while a reward rises."""
    unpaid = changed(
        60, frac_reward_zero_std=lambda i, r: 0.95 if i >= 30 else 0.1, rewards__right__mean=lambda i, r: 0.0
    )
    quiet: dict[str, tuple[str, str | None, Rows]] = {
        "no spread": ("no_spread", "warning", unpaid),
        "cut": ("truncation", "info", changed(60, completions__clipped_ratio=lambda i, r: 0.95 if i >= 30 else 0)),
        "gradients": ("gradient", "info", changed(60, grad_norm=lambda i, r: 20.0 if i in (45, 50, 55) else 1.0)),
        "KL": ("kl_drift", "info", changed(60, kl=lambda i, r: 20.0)),
        "longer": ("length_growth", None, changed(60, completions__mean_length=lambda i, r: 100.0 + 5 * i)),
        "flat": ("reward_flat", None, flat(120, rewards__right__mean=lambda i, r: 0.005 * i)),
    }
    for case, (rule, expected, rows) in quiet.items():
        # Before row 21 nothing can be said to rise.
        late = [a.severity for a in check_health(rows, weights=WEIGHTS).of(rule) if a.step > 20]
        assert set(late) <= ({expected, "info"} if expected else set()), (case, late)


def test_a_reward_at_its_top_is_not_called_flat() -> None:
    rows = changed(400, reward=lambda i, r: min(3.0, 0.03 * i), rewards__right__mean=lambda i, r: min(1.0, 0.01 * i),
                   rewards__form__mean=lambda i, r: min(1.0, 0.01 * i))  # fmt: skip
    report = check_health(rows, weights=WEIGHTS, ranges=RANGES)
    assert report.of("reward_saturated") and not report.of("reward_flat")
    for ranges in (None, {"right": (0, 1)}, RANGES | {"form": (0, 3)}):
        assert not check_health(rows, weights=WEIGHTS, ranges=ranges).of("reward_saturated"), (
            "the most is not known, or more"
        )


def test_who_dominates_is_counted_with_its_weight() -> None:
    spreads = flat(80, rewards__right__std=lambda i, r: 0.3, rewards__form__std=lambda i, r: 0.9)
    assert not check_health(spreads, weights=WEIGHTS).of("dominating_reward")
    assert check_health(spreads, weights={"right": 1.1, "form": 1.0}).of("dominating_reward")
    main = flat(80, rewards__right__std=lambda i, r: 0.9, rewards__form__std=lambda i, r: 0.1)
    assert not check_health(main, weights=WEIGHTS).of("dominating_reward"), "the main one is meant to"


def test_two_rewards_fight_only_for_sure_and_only_over_what_they_pay_for() -> None:
    choose = random.Random(3)
    first = [0.2 + 0.02 * choose.random() for _ in range(30)]
    for _ in range(10_000):  # another reward that goes against it by half, over 30 rows: t = 3.5
        second = [0.2 - 0.6 * (a - 0.2) + 0.02 * choose.random() for a in first]
        r = statistics.correlation(ranks(first), ranks(second))
        if -0.57 < r < -0.54:
            break
    else:
        pytest.fail("no such pair was found")

    def fights(other: list[float], count: int, **weights: float) -> list[str]:
        rows = flat(
            count, rewards__right__mean=lambda i, r: first[i % 30], rewards__short__mean=lambda i, r: other[i % 30]
        )
        return [a.severity for a in check_health(rows, weights={**WEIGHTS, **weights}).of("fighting_rewards")
                if "short" in a.subject and "right" in a.subject]  # fmt: skip

    assert fights(second, 30) == []
    against = [1 - a for a in first]
    assert fights(against, 30) == ["info"]
    # A penalty that falls where the other rises agrees with it.
    assert fights(against, 30, short=-1.0) == [] and fights(first, 30, short=-1.0) == ["info"]
    losing = flat(60, rewards__right__mean=lambda i, r: 0.9 - 0.01 * i, rewards__short__mean=lambda i, r: 0.01 * i)
    assert severest(check_health(losing, weights={**WEIGHTS, "short": 1.0}), "fighting_rewards") == "warning"


@pytest.mark.parametrize(("steps", "form", "expected"), [(99, 1.0, "info"), (105, 1.0, "warning"), (105, 0.9, "info")])
def test_form_alone_is_a_warning_once_the_form_is_learnt(steps: int, form: float, expected: str) -> None:
    rows = changed(
        steps, rewards__right__mean=lambda i, r: 0.2 + 0.01 * (i * i % 7),
        rewards__form__mean=lambda i, r: 1.0 if i == 40 else form * min(1.0, i / 40),
    )  # fmt: skip
    rows = [{**row, "reward": row["rewards/form/mean"] + 2 * row["rewards/right/mean"]} for row in rows]
    assert severest(check_health(rows, weights=WEIGHTS, ranges=RANGES), "form_only") == expected


def test_a_held_out_score_is_compared_only_with_a_reward_that_rose() -> None:
    rows = [{**r, "holdout/accuracy": 0.4} if i % 20 == 19 else r for i, r in enumerate(flat(160))]
    assert not check_health(rows, weights=WEIGHTS).of("holdout_flat")


@pytest.mark.parametrize(("below", "expected"), [(0.25, None), (0.4, "warning"), (0.9, "critical")])
def test_how_far_below_its_start_a_reward_has_to_be(below: float, expected: str | None) -> None:
    cycle = [0.1 * (i * 7 % 10) for i in range(20)]
    z = rank_shift(cycle, [value - below for value in cycle])
    assert {None: z > -3, "warning": -4.5 < z <= -3, "critical": z <= -4.5}[expected], z
    rows = flat(60, reward=lambda i, r: cycle[i % 20] - (below if i >= 40 else 0))
    assert severest(check_health(rows, weights=WEIGHTS), "reward_falling") == expected
