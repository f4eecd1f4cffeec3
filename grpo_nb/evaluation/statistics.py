"""Intervals, paired tests, pass@k and the smallest difference that shows, from held-out answers.

The question is the unit everywhere. Several samples of one question are no further questions, so they are averaged first, and
the spread between questions is what counts (arXiv:2411.00640). Not covered: questions that come in families, such as several
about one passage, which are taken as independent here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import variance
from typing import Literal

Verdict = Literal["better", "worse", "no difference shown"]
FEWEST_QUESTIONS = 10
"""Under so many questions no difference is claimed, whatever a test says: a few questions are an anecdote, not a sample."""
# Of a normal variable: the ends of 95 % on both sides, and what a power of four times in five needs.
_Z, _POWER = 1.959964, 0.841621


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of `k` samples is right.

    1 - C(n - c, k) / C(n, k), as a product, so that nothing overflows (Chen et al., arXiv:2107.03374, equation 1). The
    naive 1 - (1 - c/n)^k is too low.

    Args:
        samples: n, how many were drawn.
        correct: c, how many of them were right.
        k: At most n.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.5, 1.0)
    """
    if samples - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - correct + 1, samples + 1))


def share_interval(values: Sequence[float], samples: int = 1) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a mean of shares, one for each question, from `samples` samples of each.

    With one sample each this is Wilson's interval. With more, the number of questions is replaced by the effective one: as many
    independent answers as would have the spread that the questions have between them (Franco et al., Journal of Survey
    Statistics and Methodology 7, 2019). Where all questions are alike that spread says nothing, and their number is taken.

    Args:
        values: For each question its share of right answers, 0 to 1.
        samples: How many answers each share is made of.

    >>> low, high = share_interval([1.0] * 8 + [0.0] * 2)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    n = float(len(values))
    share = sum(values) / n
    if samples > 1 and n > 1 and (spread := variance(values, share)) > 0:
        n = min(max(share * (1 - share) / (spread / n), n), n * samples)
    middle = (share + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(share * (1 - share) / n + (_Z / (2 * n)) ** 2)
    # Where all or none are right, one end is the share itself, but for rounding.
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """The difference between two models on the same questions, second minus first."""

    questions: int
    difference: float
    interval: tuple[float, float]
    """95 %, over questions in pairs (Bonett and Price)."""
    p_value: float
    smallest: float | None
    """The smallest true difference that is shown with a power of 80 %; None if no difference could show."""

    @property
    def verdict(self) -> Verdict:
        """`better`, `worse` or `no difference shown`, of the second: p below 0.05, and ten questions."""
        if self.questions < FEWEST_QUESTIONS or self.p_value >= 0.05:
            return "no difference shown"
        return "better" if self.difference > 0 else "worse"


def paired_result(first: Sequence[float], second: Sequence[float], samples: int = 1) -> PairedResult:
    """Compare two models, given each question's share of right answers under both.

    With one answer each: the exact McNemar test, which asks only whether answers that changed went one way more often than
    chance would have it. With several: the test that flips the signs of the questions' differences at random, which is
    McNemar's where differences are only -1, 0 and 1 (Fisher, The Design of Experiments, 1935, section 21). All flips are
    tried where there are few, else 9999 random ones, counted with the one observed, so that p is never 0 (Phipson and
    Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).

    Raises:
        ValueError: No questions, or not as many for both.

    >>> result = paired_result([0.0] * 12, [1.0] * 9 + [0.0] * 3)
    >>> result.difference, round(result.p_value, 4)
    (0.75, 0.0039)
    """
    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} questions cannot be compared in pairs.")
    change = [b - a for a, b in zip(first, second, strict=True)]
    return PairedResult(
        questions=len(change),
        difference=sum(change) / len(change),
        interval=_interval(change, samples),
        p_value=_p_value([c for c in change if abs(c) > 1e-12], samples),
        smallest=smallest_difference(change),
    )


def _p_value(moved: Sequence[float], samples: int) -> float:
    """Of the questions that changed: one that did not is the same under either sign."""
    import numpy
    from scipy.stats import binomtest, permutation_test

    if len(moved) < min(samples, 2):  # one question is right or wrong under either sign with the same chance
        return 1.0
    if samples == 1:
        return float(binomtest(sum(c > 0 for c in moved), len(moved)).pvalue)
    # In parts, for 9999 flips of thousands of questions at once would be gigabytes.
    batch = max(1, 4_000_000 // len(moved))
    how = {"permutation_type": "samples", "vectorized": True, "batch": batch, "rng": 0}
    return min(float(permutation_test((moved,), numpy.sum, **how).pvalue), 1.0)


def _interval(change: Sequence[float], samples: int) -> tuple[float, float]:
    """Bonett and Price's interval (Journal of Educational and Behavioral Statistics 37, 2012).

    One question more is taken to have changed each way, so that it has a width where all changed alike. Of shares of several
    samples, their squares stand where theirs has counts, and one answer of the added questions: with all of them it held the
    truth in 99.9 % of studies of 12 questions with 4 samples (docs/evidence/evaluate.md).
    """
    n = len(change) + 2
    middle = sum(change) / n
    squares = (sum(c * c for c in change) + 2 / samples) / n
    half = _Z * math.sqrt((squares - middle * middle) / n)
    return max(middle - half, -1.0), min(middle + half, 1.0)


def smallest_difference(change: Sequence[float]) -> float | None:
    """Return the smallest true difference that such a comparison shows four times in five; None if it can show none.

    It rests on how many answers changed here, or one in each direction if fewer did, not on which way they went: a study of
    the size at hand, looked at before its result. The formula is Connor's (Biometrics 43, 1987, equation 3), with 1/difference
    questions fewer for the steps of the exact test.

    Args:
        change: For each question the share of right answers, second model minus first.

    >>> smallest_difference([0.0] * 9) is None
    True
    >>> 0.10 < smallest_difference([1.0] * 12 + [-1.0] * 8 + [0.0] * 80) < 0.15
    True
    """
    count = len(change)
    if count < FEWEST_QUESTIONS:
        return None
    changed = max(sum(c * c for c in change) / count, 2 / (count + 2))
    for step in range(1, 1001):
        difference = step / 1000
        spread = max(changed, difference)  # a difference of d needs at least d changed answers
        n = max(count - 1 / difference, 0.0)
        needed = _Z * math.sqrt(spread) + _POWER * math.sqrt(max(spread - difference**2, 0.0))
        if difference * math.sqrt(n) >= needed:
            return difference
    return None
