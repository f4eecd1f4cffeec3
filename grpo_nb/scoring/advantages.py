"""Advantages of completions within their groups, by the formula of `GRPOTrainer` of trl 1.15.

Two settings of TRL are not covered: `scale_rewards="batch"`, and
`multi_objective_aggregation="normalize_then_sum"`, whose advantages do not follow from the totals.
"""

from collections.abc import Sequence
from typing import Any, Literal

from grpo_nb.core.words import require_choice

# TRL adds this to the standard deviation, so that it never divides by zero.
_EPSILON = 1e-4
NO_PUSH_BELOW = 1e-6
"""An advantage whose absolute value is smaller counts as zero: the completion is not pushed."""


def split_into_groups(values: Sequence[Any], group_size: int) -> list[Sequence[Any]]:
    """Split the values of all completions into groups, in order."""
    return [values[start : start + group_size] for start in range(0, len(values), group_size)]


def group_advantages(
    totals: Sequence[float | None],
    num_generations: int,
    *,
    scale_rewards: Literal["group", "none"] = "group",
) -> list[float]:
    """Return the advantage of each completion within its group, by the formula of TRL.

    The advantage is (total - mean of the group) / (std + 1e-4), where std is the sample standard
    deviation of the group (divisor n - 1). `"none"` does not divide (Dr. GRPO, arXiv:2503.20783).

    NaN, None and infinite totals are left out of mean and std, and get the advantage 0. (With an
    infinite total, TRL makes all advantages of the group 0 or, for `"none"`, down to -3e38.) The
    numbers are computed in float64; TRL uses float32.

    Args:
        totals: Weighted totals, the completions of a group next to each other.
        num_generations: Size of a group.
        scale_rewards: As in `GRPOConfig`.

    Raises:
        ValueError: The totals cannot be divided into groups, or `scale_rewards` is unknown.

    >>> [round(advantage, 3) for advantage in group_advantages([2.0, 0.0, 0.0, 0.0], 4)]
    [1.5, -0.5, -0.5, -0.5]
    """
    require_choice("scale_rewards", scale_rewards, ("group", "none"))
    # Imported here, because importing the package must not load it.
    import numpy as np

    # A None becomes NaN. Mean and standard deviation leave masked totals out.
    groups = np.ma.masked_invalid(np.array(totals, dtype=float).reshape(-1, num_generations))
    advantages = groups - groups.mean(axis=1, keepdims=True)
    if scale_rewards == "group":
        advantages /= groups.std(axis=1, ddof=1, keepdims=True) + _EPSILON
    return advantages.filled(0.0).ravel().tolist()


def effect_in_words(advantage: float) -> str:
    """Return in words what training does to a completion with this advantage.

    >>> effect_in_words(0.7), effect_in_words(-0.7), effect_in_words(0.0)
    ('pushed up', 'pushed down', 'no push')
    """
    if advantage >= NO_PUSH_BELOW:
        return "pushed up"
    if advantage <= -NO_PUSH_BELOW:
        return "pushed down"
    return "no push"
