"""Intervals and tests agree with their definitions, with brute force and with simulation."""

import math
import random
import warnings

import numpy
import pytest
from scipy.stats import binomtest

from grpo_nb.core.statistics import (
    detectable_difference,
    mann_whitney_z,
    mean_with_interval,
    paired_result,
    rank_correlation,
    rise_p_value,
    rise_z,
    share_interval,
)


@pytest.mark.parametrize(
    ("right", "count"),
    [
        pytest.param(0, 20, id="0 of 20"),
        pytest.param(3, 20, id="3 of 20"),
        pytest.param(20, 20, id="20 of 20"),
        pytest.param(1, 1, id="1 of 1"),
        pytest.param(50, 96, id="50 of 96"),
    ],
)
def test_share_interval_of_single_samples_is_wilsons(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(0.95, method="wilson")
    interval = share_interval([1.0] * right + [0.0] * (count - right))
    assert interval == pytest.approx((expected.low, expected.high))


def sampled_share(rate: float, samples: int, generator: random.Random) -> float:
    """Return the share of right answers among samples that are right at a rate."""
    return sum(generator.random() < rate for _ in range(samples)) / samples


def test_share_interval_of_samples_covers_the_truth() -> None:
    """Simulate 300 studies of 25 questions, each with a difficulty of its own, and 4 samples."""
    generator = random.Random(1)
    true_share = 1 / 3
    covered = 0
    for _ in range(300):
        rates = [generator.betavariate(0.5, 1.0) for _ in range(25)]
        shares = [sampled_share(rate, 4, generator) for rate in rates]
        low, high = share_interval(shares, answers_per_question=4)
        covered += low <= true_share <= high
    assert covered >= 0.91 * 300


def sampled_change(count: int, gain: float, loss: float, generator: random.Random) -> list[float]:
    """Return the change of each question: up with chance `gain`, down with chance `loss`."""
    changes = []
    for _ in range(count):
        number = generator.random()
        if number < gain:
            changes.append(1.0)
        elif number < gain + loss:
            changes.append(-1.0)
        else:
            changes.append(0.0)
    return changes


@pytest.mark.parametrize(
    ("count", "gain", "loss"),
    [
        pytest.param(16, 0.2, 0.1, id="16 questions"),
        pytest.param(48, 0.3, 0.02, id="48 questions"),
        pytest.param(96, 0.05, 0.05, id="96 questions"),
        pytest.param(400, 0.25, 0.1, id="400 questions"),
    ],
)
def test_paired_interval_covers_the_difference(count: int, gain: float, loss: float) -> None:
    generator = random.Random(2)
    covered = 0
    for _ in range(400):
        change = sampled_change(count, gain, loss, generator)
        low, high = paired_result([0.0] * count, change).interval
        covered += low <= gain - loss <= high
    assert 0.93 * 400 <= covered <= 0.995 * 400


def test_paired_p_value_of_equal_models_is_rarely_small() -> None:
    """Compare a model with itself 150 times: p < 0.05 in about 5 % of the comparisons."""
    generator = random.Random(2)
    significant = 0
    for _ in range(150):
        rates = [generator.betavariate(0.5, 0.5) for _ in range(20)]
        first = [sampled_share(rate, 4, generator) for rate in rates]
        second = [sampled_share(rate, 4, generator) for rate in rates]
        significant += paired_result(first, second, answers_per_question=4).p_value < 0.05
    assert significant <= 0.09 * 150


# Nine answers became right, two became wrong, and one stayed right.
BEFORE = [0.0] * 9 + [1.0] * 3
AFTER = [1.0] * 9 + [0.0] * 2 + [1.0]


def test_paired_p_value_of_single_samples_is_mcnemars() -> None:
    result = paired_result(BEFORE, AFTER)
    assert result.p_value == pytest.approx(binomtest(9, 11).pvalue)
    assert result.difference == pytest.approx(7 / 12)


def test_paired_p_value_of_sign_flips_is_mcnemars() -> None:
    """Flips of -1, 0 and 1 are the same test."""
    exact = paired_result(BEFORE, AFTER)
    flipped = paired_result(BEFORE, AFTER, answers_per_question=4)
    assert flipped.p_value == pytest.approx(exact.p_value)


def test_paired_p_value_of_one_question_is_one() -> None:
    assert paired_result([0.5], [1.0], answers_per_question=4).p_value == 1.0


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_paired_interval_has_a_width_where_all_change_alike(change: float) -> None:
    low, high = paired_result([0.0] * 12, [change] * 12, answers_per_question=2).interval
    assert high - low > 0.05
    assert low <= change <= high


def test_paired_result_of_other_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="is longer than"):
        paired_result([1.0], [1.0, 0.0])


@pytest.mark.parametrize("count", [24, 60, 240])
def test_detectable_difference_is_found_four_times_in_five(count: int) -> None:
    """Simulate 1,000 studies with exactly this difference, and count the significant ones."""
    up_and_down = [1.0, -1.0] * (count // 6)
    unchanged = [0.0] * (count - len(up_and_down))
    smallest = detectable_difference(up_and_down + unchanged)
    changed = max(1 / 3, smallest)
    gain = (changed + smallest) / 2
    generator = random.Random(3)
    found = 0
    for _ in range(1000):
        change = sampled_change(count, gain, changed - gain, generator)
        improved = change.count(1.0)
        moved = improved + change.count(-1.0)
        found += moved > 0 and binomtest(improved, moved).pvalue < 0.05
    assert 0.76 <= found / 1000 <= 0.88


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.5], id="one value"),
        pytest.param([0.5, 0.5, 0.5], id="equal values"),
        pytest.param([0.1, 0.1, 0.1], id="equal values whose sum is rounded"),
    ],
)
def test_estimate_of_means_without_a_spread_has_no_interval(values: list[float]) -> None:
    assert mean_with_interval([[value] for value in values]).interval is None


def test_mann_whitney_z_agrees_with_scipy() -> None:
    from scipy.stats import mannwhitneyu, norm

    generator = random.Random(4)
    before = [float(generator.randint(0, 5)) for _ in range(12)]
    after = [float(generator.randint(1, 6)) for _ in range(9)]
    exact = mannwhitneyu(after, before, method="asymptotic", use_continuity=False)
    p_value = 2 * norm.sf(abs(mann_whitney_z(before, after)))
    assert p_value == pytest.approx(exact.pvalue)


def test_z_score_of_equal_values_is_zero() -> None:
    assert mann_whitney_z([1.0, 1.0], [1.0, 1.0]) == 0.0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0]], ids=["none", "one", "equal"])
def test_rise_z_without_an_order_shows_no_rise(values: list[float]) -> None:
    with warnings.catch_warnings(action="error"):
        assert rise_z(values) < 0


def test_rise_p_value_of_falling_values_is_large() -> None:
    assert rise_p_value([5.0, 4.0, 3.0, 2.0, 1.0]) > 0.9


def test_rank_correlation_of_a_constant_is_zero() -> None:
    assert rank_correlation([1, 2, 3, 4, 5], [7, 7, 7, 7, 7]).value == 0.0


def test_rank_correlation_of_few_pairs_shows_nothing() -> None:
    assert rank_correlation([1, 2, 3], [1, 2, 3]).interval == (-1.0, 1.0)


# ---- Means over groups ----


def test_estimate_interval_is_student_t_over_groups() -> None:
    low, high = mean_with_interval([[1.0] * 8, [0.0] * 8] * 4).interval
    # With 7 degrees of freedom, by hand: 2.3646 * sqrt(2 / 7) / sqrt(8).
    half = 2.3646 * math.sqrt(2 / 7) / math.sqrt(8)
    assert high - 0.5 == pytest.approx(half, abs=1e-3)
    assert 0.5 - low == pytest.approx(half, abs=1e-3)


def test_estimate_of_equal_groups_has_no_interval() -> None:
    assert mean_with_interval([[1.0, 0.0] * 4] * 8).interval is None


def test_estimate_interval_stays_in_the_likely_range() -> None:
    assert mean_with_interval([[1.0], [1.0], [0.5], [0.0]]).interval == (0.0, 1.0)
    assert mean_with_interval([[1.0], [1.0], [0.5], [-0.1]]).interval[0] < -0.1


def test_estimate_interval_covers_the_mean_as_promised() -> None:
    generator = numpy.random.default_rng(0)
    intervals = []
    for _ in range(600):
        rates = generator.beta(1.5, 1.5, 8)
        interval = mean_with_interval(
            [generator.binomial(1, rate, 8).tolist() for rate in rates]
        ).interval
        if interval is not None:
            intervals.append(interval)
    covered = sum(low <= 0.5 <= high for low, high in intervals)
    assert 0.92 <= covered / len(intervals) <= 0.98
