"""Mark a reward whose scores compare the completions of a group."""

import functools

from grpo_nb.rewards.base import RewardFunction


def relative(reward: RewardFunction) -> RewardFunction:
    """Mark a reward that ranks the completions of a group, and return it.

    A score of such a reward has a meaning only next to the other scores of the call. `check_rewards`
    then tries each completion in a small group, and does not expect the same score outside it.

    Args:
        reward: A function with TRL's signature. A bound method is wrapped in a `functools.partial`.

    >>> def shortest_first(completions, **columns):
    ...     lengths = sorted(map(len, completions))
    ...     return [1 - lengths.index(len(text)) / len(lengths) for text in completions]
    >>> is_relative(relative(shortest_first))
    True
    """
    try:
        object.__setattr__(reward, "is_relative", True)
    except (AttributeError, TypeError):  # a bound method or builtin takes no attributes
        reward = functools.partial(reward)
        reward.is_relative = True
    return reward


def is_relative(reward: RewardFunction) -> bool:
    """Return whether a reward was marked with `relative`."""
    return getattr(reward, "is_relative", False) is True
