"""The numbers against their definitions, brute force and simulation."""

import itertools
import random

import pytest
from scipy.stats import binomtest

from grpo_nb.core.statistics import paired_result, pass_at_k, share_interval, smallest_difference


@pytest.mark.parametrize("correct", range(7))
@pytest.mark.parametrize("k", (1, 2, 3, 6))
def test_pass_at_k_is_the_share_of_all_choices(correct: int, k: int) -> None:
    draws = [i < correct for i in range(6)]
    chosen = [any(subset) for subset in itertools.combinations(draws, k)]
    assert pass_at_k(6, correct, k) == pytest.approx(sum(chosen) / len(chosen))
    assert 0 < pass_at_k(100_000, 3, 5_000) < 1, "and nothing overflows"


@pytest.mark.parametrize(("right", "count"), ((0, 20), (3, 20), (20, 20), (1, 1), (50, 96)))
def test_one_sample_each_is_wilsons_interval(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(0.95, method="wilson")
    low, high = share_interval([1.0] * right + [0.0] * (count - right))
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_intervals_hold_what_they_promise_for_clusters() -> None:
    """300 small studies: 25 questions of their own difficulty, 4 samples each. The truth is inside in about 95 % of them."""
    draw, inside = random.Random(1), 0
    for _ in range(300):
        rates = [draw.betavariate(0.5, 1.0) for _ in range(25)]
        shares = [sum(draw.random() < rate for _ in range(4)) / 4 for rate in rates]
        low, high = share_interval(shares, samples=4)
        inside += low <= 1 / 3 <= high
    assert inside >= 0.91 * 300


@pytest.mark.parametrize(
    ("count", "gain", "loss"), [(16, 0.2, 0.1), (48, 0.3, 0.02), (96, 0.05, 0.05), (400, 0.25, 0.1)]
)
def test_the_interval_of_a_difference_covers_it(count: int, gain: float, loss: float) -> None:
    draw, inside = random.Random(2), 0
    for _ in range(400):
        drawn = [draw.random() for _ in range(count)]
        change = [1.0 if d < gain else -1.0 if d < gain + loss else 0.0 for d in drawn]
        low, high = paired_result([0.0] * count, change).interval
        inside += low <= gain - loss <= high
    assert 0.93 * 400 <= inside <= 0.995 * 400


def test_nothing_is_found_where_nothing_is_more_often_than_promised() -> None:
    """150 comparisons of a model with itself, drawn anew: p < 0.05 in no more than about 5 % of them."""
    draw, found = random.Random(2), 0
    for _ in range(150):
        rates = [draw.betavariate(0.5, 0.5) for _ in range(20)]
        sides = [
            [sum(draw.random() < rate for _ in range(4)) / 4 for rate in rates] for _ in range(2)
        ]
        found += paired_result(*sides, samples=4).p_value < 0.05
    assert found <= 0.09 * 150


def test_the_tests_agree_where_they_are_the_same() -> None:
    before, after = [0.0] * 9 + [1.0] * 3, [1.0] * 9 + [0.0] * 2 + [1.0]
    exact = paired_result(before, after)
    assert exact.p_value == pytest.approx(
        binomtest(9, 11).pvalue
    ) and exact.difference == pytest.approx(7 / 12)
    flipped = paired_result(before, after, samples=4)
    assert flipped.p_value == pytest.approx(exact.p_value), (
        "sign flips of -1, 0 and 1 are McNemar's test"
    )
    assert paired_result([0.5], [1.0], samples=4).p_value == 1.0
    for change in (0.0, 1.0):  # and where all are alike the interval still has a width
        low, high = paired_result([0.0] * 12, [change] * 12, samples=2).interval
        assert high - low > 0.05 and low <= change <= high
    with pytest.raises(ValueError, match="cannot be compared in pairs"):
        paired_result([1.0], [1.0, 0.0])


@pytest.mark.parametrize("count", (24, 60, 240))
def test_the_smallest_difference_is_found_about_four_times_in_five(count: int) -> None:
    """Draw studies with the very difference that is said to be found, and count."""
    smallest = smallest_difference([1.0, -1.0] * (count // 6) + [0.0] * (count - count // 6 * 2))
    changed = max(1 / 3, smallest)
    gain, draw, found = (changed + smallest) / 2, random.Random(3), 0
    for _ in range(1000):
        drawn = [draw.random() for _ in range(count)]
        gained, moved = sum(d < gain for d in drawn), sum(d < changed for d in drawn)
        found += moved > 0 and binomtest(gained, moved).pvalue < 0.05
    assert 0.76 <= found / 1000 <= 0.88
