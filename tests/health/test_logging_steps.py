"""Logs in which a row stands for several steps, small groups, and runs that learn in unusual
ways.
"""

import math

import pytest

from grpo_nb.health.monitor import check_health
from tests.support.faulty_runs import Made, by_tens
from tests.support.health_logs import (
    INFINITE,
    Rows,
    changed,
    critical_rows,
    cut,
    flat,
    healthy_log,
    of,
    seeds,
    severest,
    with_intervals,
)


def small_groups(seed: int, has_lora: bool = True) -> Rows:
    """Return 600 steps of 2 prompts x 4 completions without a KL penalty, every tenth step logged.

    A step in which no group has a signal has a gradient of exactly 0.
    """
    rows = healthy_log(
        600, seed, groups=2, size=4, form=lambda at: 1.0, right=lambda at: 0.04 + 0.5 * at
    )
    for row in rows:
        if not has_lora or row["frac_reward_zero_std"] == 1:
            row["grad_norm"] = 0.0
        del row["kl"]
    return by_tens(Made(rows)).rows


def one_row_in(steps: int, rows: Rows) -> Rows:
    """Return the rows as if each of them stood for so many steps."""
    return [row | {"step": row["step"] * steps} for row in rows]


@pytest.mark.parametrize("seed", seeds(20, 2))
def test_gradient_learning_run_by_tens_has_no_alert(seed: int) -> None:
    assert not of(check_health(small_groups(seed)), "gradient")


def test_gradient_zero_in_last_steps_by_tens_has_no_alert() -> None:
    rows = one_row_in(
        10, flat(6, frac_reward_zero_std=lambda i, r: 0.6, grad_norm=lambda i, r: 0.0)
    )
    assert not of(check_health(rows), "gradient")


@pytest.mark.parametrize("seed", seeds(5))
def test_gradient_without_lora_by_tens_is_critical(seed: int) -> None:
    rows = small_groups(seed, has_lora=False)
    flat_rows = [
        row | {"reward": 1.0, "rewards/right/mean": 0.3, "rewards/form/mean": 1.0} for row in rows
    ]
    assert severest(check_health(flat_rows), "gradient") == "critical"


def test_alert_from_four_rows_is_not_raised() -> None:
    rows = one_row_in(25, cut(0.95))
    assert not check_health(rows[:4]).alerts
    assert severest(check_health(rows[:5]), "truncation") == "warning"


def test_critical_needs_the_rows_that_would_show_a_rise() -> None:
    rows = one_row_in(25, cut(0.95))
    assert severest(check_health(rows[:15]), "truncation") == "warning"
    assert severest(check_health(rows[:16]), "truncation") == "critical"


def test_alert_is_softened_by_five_rising_rows() -> None:
    rows = one_row_in(
        25, changed(5, reward=lambda i, r: float(i), completions__clipped_ratio=lambda i, r: 0.6)
    )
    assert severest(check_health(rows), "truncation") == "info"


def test_alert_of_long_rows_stands_for_one_milder_row() -> None:
    shares = [0.6] * 10 + [0.0] * 10
    rows = one_row_in(25, flat(20, completions__clipped_ratio=lambda i, r: shares[i]))
    (alert,) = of(check_health(rows), "truncation")
    last_found = 12 * 25  # the mean of five rows is below a quarter from row 13 on
    assert alert.ended == last_found + 2 * 25


def test_truncation_of_a_run_with_signal_waits_for_50_steps() -> None:
    assert severest(check_health(cut(0.95)[:49]), "truncation") == "warning"
    assert severest(check_health(cut(0.95)[:50]), "truncation") == "critical"


def test_zero_variance_with_rare_successes_is_never_critical() -> None:
    rare = {
        "reward": lambda i, r: 0.01 * (i % 25 == 0),
        "rewards__right__mean": lambda i, r: 0.01 * (i % 25 == 0),
    }
    rows = flat(
        120,
        frac_reward_zero_std=lambda i, r: float(i % 25 != 0),
        rewards__form__mean=lambda i, r: 0.0,
        **rare,
    )
    assert severest(check_health(rows), "zero_variance") == "warning"


def pairs(size: int, seed: int = 0) -> Rows:
    """Return 200 steps in which three of four completions are right, whatever the group."""
    rows = healthy_log(
        200, seed, groups=32 // size, size=size, right=lambda at: 0.75, form=lambda at: 1.0
    )
    gone = ("rewards/form/mean", "rewards/form/std")
    return [{key: value for key, value in row.items() if key not in gone} for row in rows]


@pytest.mark.parametrize("seed", seeds(5))
def test_zero_variance_of_pairs_that_agree_by_chance_is_silent(seed: int) -> None:
    rows = pairs(2, seed)
    assert not of(check_health(rows), "zero_variance")
    assert not of(check_health(rows, group_size=2), "zero_variance")


@pytest.mark.parametrize("seed", seeds(10, 2))
def test_length_of_a_run_that_thinks_longer_is_silent(seed: int) -> None:
    """The reward rises from 0.2 to 0.66 and slows down, as in DeepSeek-R1-Zero."""
    rise = lambda at: 0.2 + 0.48 * (1 - math.exp(-2.5 * at))  # noqa: E731
    tokens = lambda i, r: 200 + 700 * (1 - math.exp(-2.5 * i / 400))  # noqa: E731
    rows = healthy_log(400, seed, right=rise, form=lambda at: 1.0)
    rows = [row | {"completions/mean_length": tokens(i, row)} for i, row in enumerate(rows)]
    assert not of(check_health(rows), "length")


def test_length_that_grows_after_the_rise_is_a_warning() -> None:
    rise = lambda at: 0.2 + 0.46 * min(1.0, 4 * at)  # noqa: E731
    rows = healthy_log(400, 0, right=rise, form=lambda at: 1.0)
    rows = [row | {"completions/mean_length": 200.0 + 2 * i} for i, row in enumerate(rows)]
    assert severest(check_health(rows), "length") == "warning"


def evaluated(*scores: float) -> Rows:
    """Return a run that learns, with TRL's own evaluation in rows between."""
    rows = []
    for i, row in enumerate(healthy_log(20 * len(scores), 6)):
        rows.append(row)
        if i % 20 == 19:
            rows.append({"step": row["step"], "eval_loss": 0.1, "eval_reward": scores[i // 20]})
    return rows


def test_holdout_eval_reward_that_falls_is_a_warning() -> None:
    rows = evaluated(0.6, 1.0, 1.5, 2.0, 2.2, 2.1, 1.6, 1.0, 0.8, 0.7)
    (alert,) = of(check_health(rows), "holdout")
    assert (alert.severity, alert.subject) == ("warning", "falling")


def test_holdout_eval_reward_that_stays_is_a_warning() -> None:
    (alert,) = of(check_health(evaluated(0.6, 0.65, 0.6, 0.62, 0.61, 0.6, 0.62, 0.6)), "holdout")
    assert (alert.severity, alert.subject) == ("warning", "flat")


def test_holdout_eval_reward_that_rises_is_silent() -> None:
    assert not of(check_health(evaluated(0.6, 0.9, 1.2, 1.6, 1.8, 2.0, 2.1, 2.0)), "holdout")


def test_holdout_accuracy_takes_precedence_over_eval_reward() -> None:
    rows = evaluated(0.6, 1.0, 1.5, 2.0, 2.2, 2.1, 1.6, 1.0, 0.8, 0.7)
    rising = [
        row | {"holdout/accuracy": row["step"] / 400} if "eval_reward" in row else row
        for row in rows
    ]
    assert not of(check_health(with_intervals(rising, 60)), "holdout")


def test_holdout_never_mixes_accuracy_and_eval_reward() -> None:
    rows = evaluated(2.0, 2.1, 2.0, 2.2, 2.1, 2.0, 2.1, 2.2)
    for step in range(100, 160, 20):
        place = next(i for i, row in enumerate(rows) if row["step"] == step + 5)
        rows.insert(place, {"step": step + 5, "holdout/accuracy": 0.5 + step / 1000})
    assert not of(check_health(with_intervals(rows, 60)), "holdout")


@pytest.mark.parametrize("tokens", [2.0, 9.0])
def test_collapse_of_one_word_answers_is_silent(tokens: float) -> None:
    equal = {"completions__duplicates": lambda i, r: 0.9}
    lost = lambda i, r: 1.0 if i < 40 else 0.1  # noqa: E731
    rows = flat(120, completions__mean_length=lambda i, r: tokens, entropy=lost, **equal)
    assert not of(check_health(rows), "collapse")
    rows = flat(120, completions__mean_length=lambda i, r: 60.0, entropy=lost, **equal)
    assert len(of(check_health(rows), "collapse")) == 2


def test_not_finite_single_infinite_kl_is_no_critical() -> None:
    rows = flat(60, kl=lambda i, r: INFINITE if i == 30 else 0.01)
    assert severest(check_health(rows), "not_finite") == "warning"
    assert critical_rows(flat(60, kl=lambda i, r: INFINITE if i in (5, 6, 7) else 0.01))


def test_zero_variance_at_the_top_without_weights_is_silent() -> None:
    """The weights of two rewards are not known, so the range of the total is not either."""
    rows = healthy_log(
        200,
        0,
        size=4,
        right=lambda at: 0.5 + 0.49 * min(1.0, 2 * at),
        form=lambda at: 0.6 + 0.4 * at,
    )
    rows = [
        row | {"reward": row["rewards/right/mean"] + 0.5 * row["rewards/form/mean"]} for row in rows
    ]
    rows = [row | {"frac_reward_zero_std": 0.9} if row["step"] > 100 else row for row in rows]
    assert check_health(rows).ok
