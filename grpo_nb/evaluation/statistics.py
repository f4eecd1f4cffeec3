"""Intervals, paired tests, pass@k and the smallest difference that shows, from held-out answers.

The question is the unit everywhere. Several samples of one question are no further questions, so they are averaged first, and
the spread between questions is what counts (arXiv:2411.00640). Not covered: questions that come in families, such as several
about one passage, which are taken as independent here.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance
from typing import Any, Literal

Verdict = Literal["better", "worse", "no difference shown"]
LEVEL = 0.95
POWER = 0.8
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf((1 + LEVEL) / 2)
FEWEST_QUESTIONS = 10
"""Under so many questions no difference is claimed, whatever a test says: a few questions are an anecdote, not a sample."""
_RESAMPLES = 9999
_EXACT_POWER_UP_TO = 2000


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of `k` samples is right.

    1 - C(n - c, k) / C(n, k), as a product, so that nothing overflows (Chen et al., arXiv:2107.03374, equation 1). The
    naive 1 - (1 - c/n)^k is too low.

    Args:
        samples: n, how many were drawn.
        correct: c, how many of them were right.
        k: At most n.

    Raises:
        ValueError: Numbers that cannot be.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.5, 1.0)
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@{k} of {samples} samples with {correct} right cannot be estimated: k must be 1 to {samples}."
        )
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
    count = len(values)
    share = sum(values) / count
    effective = float(count)
    if samples > 1 and count > 1:
        spread = variance(values, share)
        if spread > 0:
            effective = min(max(share * (1 - share) / (spread / count), count), count * samples)
    middle = (share + _Z * _Z / (2 * effective)) / (1 + _Z * _Z / effective)
    half = _Z / (1 + _Z * _Z / effective) * math.sqrt(share * (1 - share) / effective + (_Z / (2 * effective)) ** 2)
    # Where all or none are right, one end is the share itself, but for rounding.
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """The difference between two models on the same questions, second minus first."""

    questions: int
    difference: float
    interval: tuple[float, float]
    """95 %: bootstrap over questions, in pairs."""
    p_value: float
    test: str
    """Which test the p value is of."""
    smallest: float | None
    """The smallest difference that this test would have shown with a power of 80 %; None if no difference could show."""

    @property
    def verdict(self) -> Verdict:
        """`better`, `worse` or `no difference shown`, of the second: test, interval and number of questions must agree."""
        if self.questions < FEWEST_QUESTIONS or self.p_value >= 1 - LEVEL or not self.excludes_zero:
            return "no difference shown"
        return "better" if self.difference > 0 else "worse"

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        low, high = self.interval
        return low > 0 or high < 0

    @property
    def disagreement(self) -> str:
        """Why interval and test say different things, where they do; else empty."""
        if self.questions < FEWEST_QUESTIONS or self.excludes_zero == (self.p_value < 1 - LEVEL):
            return ""
        if self.excludes_zero:
            return (
                "The interval leaves out zero and the test does not reach 0.05: where few answers changed, the interval, which "
                "draws these questions again and again, is too narrow, and the test decides."
            )
        return (
            "The test reaches 0.05 and the interval still holds zero: the difference is too near to it to be claimed."
        )


def paired_result(first: Sequence[float], second: Sequence[float], samples: int = 1) -> PairedResult:
    """Compare two models, given each question's share of right answers under both.

    With one answer each: the exact McNemar test, which asks only whether answers that changed went one way more often than
    chance would have it. With several: the test that flips the signs of the questions' differences at random, which is
    McNemar's where differences are only -1, 0 and 1 (Fisher, The Design of Experiments, 1935, section 21). All flips are
    tried where there are few, else 9999 random ones, counted with the one observed, so that p is never 0 (Phipson and
    Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).

    The interval is a percentile bootstrap. Where all questions changed alike there is nothing to resample, and it would have no
    width at all; then it is Bonett and Price's (Journal of Educational and Behavioral Statistics 37, 2012), which adds a pair
    of answers each way.

    Raises:
        ValueError: No questions, or not as many for both.

    >>> result = paired_result([0.0] * 12, [1.0] * 9 + [0.0] * 3)
    >>> result.difference, round(result.p_value, 4)
    (0.75, 0.0039)
    """
    import numpy
    from scipy.stats import bootstrap

    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} questions cannot be compared in pairs.")
    change = numpy.asarray(second, float) - numpy.asarray(first, float)
    test, p_value = _test(change, samples)
    if numpy.ptp(change) < 1e-12:
        interval = _interval_of_alike(float(change[0]), len(change))
    else:
        # In parts, for n x 9999 numbers of thousands of questions at once would be gigabytes.
        batch = max(1, 4_000_000 // len(change))
        found = bootstrap(
            (change,), numpy.mean, confidence_level=LEVEL, method="percentile", rng=0, n_resamples=_RESAMPLES, batch=batch
        )  # fmt: skip
        interval = (float(found.confidence_interval.low), float(found.confidence_interval.high))
    return PairedResult(
        questions=len(change), difference=float(change.mean()), interval=interval, p_value=p_value, test=test,
        smallest=smallest_difference(change.tolist(), samples),
    )  # fmt: skip


def _test(change: Any, samples: int) -> tuple[str, float]:
    import numpy
    from scipy.stats import binomtest, permutation_test

    moved = change[numpy.abs(change) > 1e-12]
    if samples == 1:
        gained = int((moved > 0).sum())
        return "exact McNemar", float(binomtest(gained, len(moved)).pvalue) if len(moved) else 1.0
    if len(moved) < 2:  # one question is right or wrong under either sign with the same chance
        return "sign-flip permutation", 1.0
    # A question that did not change is the same under either sign, so only the others are flipped.
    found = permutation_test(
        (moved,), numpy.sum, permutation_type="samples", vectorized=True, n_resamples=_RESAMPLES, rng=0,
        batch=max(1, 4_000_000 // len(moved)),
    )  # fmt: skip
    return "sign-flip permutation", min(float(found.pvalue), 1.0)


def _interval_of_alike(change: float, count: int) -> tuple[float, float]:
    """Bonett and Price's interval, where every question changed by the same."""
    gained, lost = ((count * max(part, 0.0) + 1) / (count + 2) for part in (change, -change))
    half = _Z * math.sqrt(max(gained + lost - (gained - lost) ** 2, 0.0) / (count + 2))
    return max(gained - lost - half, -1.0), min(gained - lost + half, 1.0)


def smallest_difference(change: Sequence[float], samples: int = 1) -> float | None:
    """Return the smallest true difference that such a comparison shows four times in five; None if it can show none.

    It rests on how many answers changed here, not on which way they went: a study of the size at hand, looked at before its
    result. With one answer each it is the power of the exact McNemar test, with as many changed answers as here, or
    one in each direction if fewer did. With several, (1.96 + 0.84) standard errors (arXiv:2411.00640, section 5).

    >>> smallest_difference([0.0] * 9) is None
    True
    >>> 0.10 < smallest_difference([1.0] * 12 + [-1.0] * 8 + [0.0] * 80) < 0.15
    True
    """
    count = len(change)
    if count < FEWEST_QUESTIONS:
        return None
    if samples > 1:
        # Nothing or everything changed: the spread of a question that changed each way among two more.
        spread = variance(change) or 2 / (count + 2)
        return min((_Z + _NORMAL.inv_cdf(POWER)) * math.sqrt(spread / count), 1.0)
    changed = max(sum(abs(c) > 1e-12 for c in change) / count, 2 / (count + 2))
    steps = 2048
    found = bisect.bisect_left(range(steps), POWER, key=lambda step: _power(count, changed, (step + 1) / steps))
    return (found + 1) / steps if found < steps else None


def _power(count: int, changed: float, difference: float) -> float:
    """The chance that the exact McNemar test shows a true difference, with this share of answers that change."""
    import numpy
    from scipy.stats import binom

    changed = min(max(changed, difference), 1.0)  # a difference of d needs at least d changed answers
    if count > _EXACT_POWER_UP_TO:
        # Connor, Biometrics 43, 1987, equation 3: with so many questions the exact test is as good as normal.
        spread = math.sqrt(max(changed - difference**2, 1e-12))
        return _NORMAL.cdf((difference * math.sqrt(count) - _Z * math.sqrt(changed)) / spread)
    pairs = numpy.arange(count + 1)
    weights = binom.pmf(pairs, count, changed)
    pairs, weights = pairs[weights > 1e-9], weights[weights > 1e-9]
    # The most losses of m changed answers at which p is still below 5 %: P(X <= b) <= 0.025 with X ~ Bin(m, 1/2).
    most = binom.ppf((1 - LEVEL) / 2, pairs, 0.5)
    most = numpy.where(binom.cdf(most, pairs, 0.5) > (1 - LEVEL) / 2, most - 1, most)
    loss = (1 - difference / changed) / 2
    return float((weights * binom.cdf(most, pairs, loss)).sum())
