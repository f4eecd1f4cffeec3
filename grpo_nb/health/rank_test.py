"""Rank tests that show whether a metric is higher in one part of a run than in another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

CLEAR_Z = 3.0
"""z-score of a shift that causes an alert. The rules test after every step, so a z-score of 2
would be reached by accident in most runs."""

LIKELY_Z = 2.3
"""z-score of a rise that makes alerts milder. It is lower than `CLEAR_Z`, because a run that
probably learns should be left alone."""

SMALLEST_VARIANCE = 1e-9
"""Variance of the rank sum below which all values count as equal."""


def mann_whitney_z(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how much higher `after` is than `before`, as a z-score.

    This is the Mann-Whitney U test in the normal approximation with the correction for ties. It
    compares ranks, because a single outlier in a reward or in the KL can reverse a comparison of
    means. SciPy has this test too, but importing it loads numpy, and it takes ten times as long
    for samples of this size.

    Returns 0 if a sample has fewer than two values, or if all values are equal.

    >>> mann_whitney_z([1, 2, 3, 4], [5, 6, 7, 8]) > 2
    True
    """
    n = len(before)
    m = len(after)
    if n < 2 or m < 2:
        return 0.0

    counts = Counter([*before, *after])
    rank_of = {}
    values_so_far = 0
    for value in sorted(counts):
        values_so_far += counts[value]
        # Equal values share the mean of the ranks that they occupy.
        rank_of[value] = values_so_far - (counts[value] - 1) / 2

    rank_sum = sum(rank_of[value] for value in after)
    expected_rank_sum = m * (n + m + 1) / 2
    ties = sum(count**3 - count for count in counts.values())
    tie_correction = ties / ((n + m) * (n + m - 1))
    variance = n * m / 12 * (n + m + 1 - tie_correction)
    if variance <= SMALLEST_VARIANCE:
        return 0.0
    return (rank_sum - expected_rank_sum) / math.sqrt(variance)


def kendall_z(values: Sequence[float]) -> float:
    """Return how consistently values rise from first to last, as a z-score.

    This is the Mann-Kendall test without a correction for ties. It uses the order of all values,
    so five values are enough for a z-score of 2.4, where two halves would need eight.

    >>> kendall_z([1, 2, 3, 4, 5]) > 2.3
    True
    """
    n = len(values)
    if n < 2:
        return 0.0
    rising_pairs = sum((after > before) - (after < before) for before, after in combinations(values, 2))
    return rising_pairs / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
