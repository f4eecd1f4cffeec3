"""Intervals, tests and power computations of the kit, each with its source.

The functions take plain numbers. scipy and numpy are imported inside the functions that need them,
so that importing the kit stays fast.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, variance
from typing import Literal

Verdict = Literal["better", "worse", "no difference shown"]

NO_DIFFERENCE: Verdict = "no difference shown"

#: With fewer questions no difference is claimed, because chance would decide the verdict.
MIN_QUESTIONS = 10
#: Quantile of the standard normal distribution for a two-sided interval of 95 %.
Z_95 = 1.959964
# Quantile of the standard normal distribution for a power of 80 %.
_Z_POWER_80 = 0.841621
#: Random sign flips tried at once: 9999 flips of thousands of questions would take gigabytes.
_FLIPS_AT_ONCE = 1000


# Shares of correct answers


def share_interval(shares: Sequence[float], answers_per_question: int = 1) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a mean of shares, one share for each question.

    Several samples of one question are not several questions (arXiv:2411.00640). So n is an
    effective sample size: the variance of one answer, divided by the variance of the mean (Franco
    et al., Journal of Survey Statistics and Methodology 7, 2019). It is at least the number of
    questions and at most the number of answers. With one answer per question, or the same share
    everywhere, n is the number of questions.

    Args:
        shares: The share of correct answers of each question, from 0 to 1.
        answers_per_question: Number of answers behind each share.

    >>> low, high = share_interval([1.0] * 8 + [0.0] * 2)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    questions = len(shares)
    share = fmean(shares)
    n = questions
    if len(set(shares)) > 1:
        variance_of_mean = variance(shares, share) / questions
        effective_size = share * (1 - share) / variance_of_mean
        n = min(max(effective_size, questions), questions * answers_per_question)
    added = Z_95**2 / 2
    middle = (n * share + added) / (n + 2 * added)
    variance_of_count = n * share * (1 - share) + added / 2
    half_width = Z_95 * math.sqrt(variance_of_count) / (n + 2 * added)
    # With a share of 0 or 1, one end is the share itself. `min` and `max` keep rounding from
    # excluding it.
    return max(0.0, min(middle - half_width, share)), min(1.0, max(middle + half_width, share))


# Two models on the same questions


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """Difference between two models on the same questions, second minus first."""

    questions: int
    difference: float
    interval: tuple[float, float]
    """95 % interval over paired questions (Bonett and Price)."""
    p_value: float
    detectable_difference: float | None
    """Minimum detectable difference with a power of 80 %, also known as the minimum detectable
    effect. None with fewer than 10 questions, or if not even a difference of 1 would be detected.
    """

    @property
    def verdict(self) -> Verdict:
        """Verdict about the second model. Better or worse needs p < 0.05 and ten questions."""
        if self.questions < MIN_QUESTIONS or self.p_value >= 0.05:
            return NO_DIFFERENCE
        return "better" if self.difference > 0 else "worse"


def paired_result(
    first: Sequence[float], second: Sequence[float], answers_per_question: int = 1
) -> PairedResult:
    """Compare two models, given the share of correct answers of each question under both.

    Args:
        first: The shares of the first model, one for each question.
        second: The shares of the second model, in the same order.
        answers_per_question: Number of answers behind each share.

    Raises:
        ValueError: The two lists differ in length.

    >>> result = paired_result([0.0] * 12, [1.0] * 9 + [0.0] * 3)
    >>> result.difference, round(result.p_value, 4)
    (0.75, 0.0039)
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    return PairedResult(
        questions=len(differences),
        difference=fmean(differences),
        interval=paired_interval(differences, answers_per_question),
        p_value=paired_p_value(differences, answers_per_question),
        detectable_difference=detectable_difference(differences),
    )


def paired_p_value(differences: Sequence[float], answers_per_question: int = 1) -> float:
    """Return the p-value of a difference, under the hypothesis that both models are equally good.

    With one answer per question, this is the exact McNemar test: it asks whether the changed
    answers went one way more often than chance explains. With several answers, the signs of the
    differences are flipped at random (Fisher, The Design of Experiments, 1935, section 21). For
    differences of -1, 0 and 1 the two tests are the same. With few questions, all flips are tried.
    Otherwise 9999 random flips are tried. The observed signs count as one more, so p is never 0
    (Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).

    Args:
        differences: The difference of each question, second minus first.
        answers_per_question: Number of answers behind each share.
    """
    import numpy
    from scipy.stats import binomtest, permutation_test

    # A difference of 0 is the same under either sign.
    nonzero_differences = [value for value in differences if abs(value) > 1e-12]
    # With one changed question both flips are equally extreme, so p = 1.
    if len(nonzero_differences) < 2:
        return 1.0
    if answers_per_question == 1:
        improved = sum(value > 0 for value in nonzero_differences)
        return float(binomtest(improved, len(nonzero_differences)).pvalue)
    test = permutation_test(
        (nonzero_differences,),
        numpy.sum,
        permutation_type="samples",
        vectorized=True,
        batch=_FLIPS_AT_ONCE,
        rng=0,
    )
    return float(test.pvalue)


def paired_interval(
    differences: Sequence[float], answers_per_question: int = 1
) -> tuple[float, float]:
    """Return the 95 % interval of Bonett and Price for a mean difference of paired shares.

    Source: Journal of Educational and Behavioral Statistics 37, 2012. One more question is assumed
    to have changed in each direction, so that the interval has a width even if all questions
    changed alike. For shares of several samples, the sum of squared differences replaces the number
    of changed questions in the formula, and each added question weighs 1/`answers_per_question`.
    With the weight 1 the interval is too wide: it covered the truth in 99.9 % of studies of 12
    questions with 4 samples (docs/evidence/evaluate.md).
    """
    # The two added questions are included.
    n = len(differences) + 2
    middle = sum(differences) / n
    sum_of_squares = sum(value * value for value in differences)
    mean_square = (sum_of_squares + 2 / answers_per_question) / n
    variance_of_mean = (mean_square - middle * middle) / n
    half_width = Z_95 * math.sqrt(variance_of_mean)
    return max(middle - half_width, -1.0), min(middle + half_width, 1.0)


def detectable_difference(differences: Sequence[float]) -> float | None:
    """Return the minimum detectable difference at a power of 80 %.

    It is also called the minimum detectable effect. Only the number of changed answers matters,
    not their direction; at least one change in each direction is assumed. The formula is Connor's
    (Biometrics 43, 1987, equation 3), with n - 1/d in place of n for a difference d (continuity
    correction).

    Args:
        differences: The difference of each question, second minus first.

    Returns:
        The difference, at most 1. None with fewer than 10 questions, or if not even a difference of
        1 would be detected.

    >>> detectable_difference([0.0] * 9) is None
    True
    >>> 0.10 < detectable_difference([1.0] * 12 + [-1.0] * 8 + [0.0] * 80) < 0.15
    True
    """
    questions = len(differences)
    if questions < MIN_QUESTIONS:
        return None
    sum_of_squares = sum(value * value for value in differences)
    changed_share = max(sum_of_squares / questions, 2 / (questions + 2))
    for step in range(1, 1001):
        difference = step / 1000
        # A difference of d needs at least a share d of changed answers.
        assumed_share = max(changed_share, difference)
        n = max(questions - 1 / difference, 0.0)
        test_term = Z_95 * math.sqrt(assumed_share)
        power_term = _Z_POWER_80 * math.sqrt(assumed_share - difference**2)
        if difference * math.sqrt(n) >= test_term + power_term:
            return difference
    return None


# Means, ranks and trends


@dataclass(frozen=True)
class Estimate:
    """A mean or a correlation with its 95 % interval."""

    value: float
    interval: tuple[float, float] | None
    """None if the interval is unknown."""

    def __str__(self) -> str:
        text = f"{self.value:.2f}"
        if self.interval is not None:
            low, high = self.interval
            text += f" ({low:.2f} to {high:.2f})"
        return text


def mean_with_interval(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean over groups and its 95 % t interval. NaN scores are left out.

    With as few as eight groups, a percentile bootstrap contains the true mean less often than it
    promises, so Student's t over the group means is used. If the lowest score is exactly 0, 0 is
    assumed to be the lowest possible score, and the interval is clipped there; likewise for a
    highest score of exactly 1. For a reward with another scale, the interval can then be too short.

    Args:
        groups: Scores of each group. The groups may have different sizes.

    Returns:
        The mean, NaN if there are no scores. The interval is None with fewer than two groups, or if
        all groups have the same mean.

    >>> mean_with_interval([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).value
    0.5
    """
    from scipy import stats

    scores = []
    group_means = []
    for group in groups:
        known = [score for score in group if not math.isnan(score)]
        if known:
            scores += known
            group_means.append(fmean(known))
    mean = fmean(group_means) if group_means else math.nan
    # If all groups have the same mean, their spread is unknown, not 0.
    if len(set(group_means)) < 2:
        return Estimate(mean, None)
    standard_error = stats.sem(group_means)
    low, high = stats.t.interval(0.95, len(group_means) - 1, mean, standard_error)
    # Rewards need not declare their range, and most give scores from 0 to 1.
    if min(scores) == 0:
        low = max(low, 0.0)
    if max(scores) == 1:
        high = min(high, 1.0)
    return Estimate(mean, (low, high))


def mann_whitney_z(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how much higher `after` is than `before`, as a z-score.

    This is the Mann-Whitney U test in the normal approximation with the correction for ties. It
    compares only which value of a pair is higher, because a single outlier in a reward or in the KL
    can reverse a comparison of means. The health rules call it several times per logged step, and
    scipy's own test takes ten times as long for so few numbers.

    Returns:
        The z-score; 0 if a side has fewer than two values, or if all values are equal.

    >>> mann_whitney_z([1, 2, 3, 4], [5, 6, 7, 8]) > 2
    True
    """
    n = len(before)
    m = len(after)
    if min(n, m) < 2:
        return 0.0
    total = n + m
    counts = Counter([*before, *after]).values()
    # Ties make the variance smaller.
    ties = sum(count**3 - count for count in counts)
    tie_correction = ties / (total * (total - 1))
    variance_of_difference = n * m * (total + 1 - tie_correction) / 3
    if variance_of_difference == 0:
        return 0.0
    rising_minus_falling = 0
    for earlier, later in product(before, after):
        rising_minus_falling += (later > earlier) - (later < earlier)
    return rising_minus_falling / math.sqrt(variance_of_difference)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return Spearman's correlation and the interval of Bonett and Wright.

    The interval is normal in atanh(r), with the variance (1 + r^2 / 2) / (n - 3) (Bonett and
    Wright, Psychometrika 65, 2000).

    Args:
        first: Values of one side.
        second: Values of the other side, in the same order.

    Returns:
        The correlation, from -0.999 to 0.999, and 0 if a side is constant. The interval is never
        None.

    >>> rank_correlation([1, 2, 3, 4, 5], [2, 4, 6, 8, 9]).value > 0.99
    True
    """
    from scipy.stats import spearmanr

    r = 0.0
    # A constant side has no order.
    if len(set(first)) > 1 and len(set(second)) > 1:
        r = float(spearmanr(first, second).statistic)
    # At 1 and -1, atanh is infinite.
    r = max(-0.999, min(r, 0.999))
    variance_of_atanh = math.inf
    if len(first) > 3:
        variance_of_atanh = (1 + r * r / 2) / (len(first) - 3)
    half_width = Z_95 * math.sqrt(variance_of_atanh)
    middle = math.atanh(r)
    return Estimate(r, (math.tanh(middle - half_width), math.tanh(middle + half_width)))


def rise_p_value(values: Sequence[float]) -> float:
    """Return the one-sided p-value of the Mann-Kendall test that values rise.

    The test counts the pairs of values that are in rising order (Kendall 1938; Mann 1945). It is
    exact for up to some thirty values without ties; otherwise it uses the normal approximation.

    Returns:
        The p-value; 1 if all values are equal.

    >>> rise_p_value([0.2, 0.4, 0.3, 0.9, 1.1, 1.2, 1.4]) < 0.01
    True
    """
    from scipy.stats import kendalltau

    if len(set(values)) < 2:
        return 1.0
    return float(kendalltau(range(len(values)), values, alternative="greater").pvalue)


def rise_z(values: Sequence[float]) -> float:
    """Return `rise_p_value` as a z-score, which the health rules compare with their limits.

    Five rising values are enough for a z-score of 2.4; `mann_whitney_z` needs nine values to reach
    it. If all values are equal, the z-score is minus infinity.

    >>> rise_z([1, 2, 3, 4, 5]) > 2.3
    True
    """
    from scipy.stats import norm

    return float(norm.isf(rise_p_value(values)))
