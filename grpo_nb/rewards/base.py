"""The base class `Reward`, and functions that read name, weight and range of any reward function.

`Reward` gives a subclass TRL's signature, a name, a weight and a range.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grpo_nb.core.words import require_number
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.tools import final_text

Completion = str | Sequence[Mapping[str, Any]]
RewardFunction = Callable[..., Sequence[float | None]]
_LARGEST_WEIGHT = 1_000_000
"""Largest weight that is accepted. It is far above any in use, so a larger one is a mistake."""


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: a string itself, or the content of the last chat message.

    The text is empty if the last message is from a tool.

    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    return completion if isinstance(completion, str) else final_text(completion)


def rows_of(columns: Mapping[str, Any], count: int) -> list[Row]:
    """Return the columns of a call as one row per completion.

    Arguments that are not a column of `count` values, such as `trainer_state`, are left out.
    """
    rows = [{} for _ in range(count)]
    for name, values in columns.items():
        # Any sized container is a column: TRL passes lists, and a user may pass a column of numpy,
        # pandas or datasets. A text and a dict are values.
        is_column = isinstance(values, Sized) and not isinstance(values, (str, Mapping))
        if is_column and len(values) == count:
            for row, value in zip(rows, values, strict=True):
                # An array of numpy, such as the messages of a prompt, becomes a list.
                row[name] = value.tolist() if getattr(value, "ndim", 0) else value
    return rows


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward function as TRL calls it: one float per completion, or None for no score.

    Subclasses are named in lower case, because the name of the class is the name in TRL's logs.

    Subclasses define `score_text`, or `__call__` if they score the completions together. The score
    is not multiplied by the weight here: TRL does that (`reward_weights`), and its curves show
    unweighted scores.
    """

    weight: float = 1.0
    format: AnswerFormat = field(default=xml())
    """The place of the answer in a completion."""
    name: str = ""
    """Name in TRL's logs; the name of the class if empty."""
    range: ClassVar[tuple[float, float] | None] = None
    """Lowest and highest possible score, before the weight; None if unknown."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Give the class a `__repr__` of its own. `@dataclass`, which runs later, keeps that one. An
        # inherited one would be replaced by one with every default value.
        cls.__repr__ = cls.__repr__

    def __post_init__(self) -> None:
        require_weight(self.weight, self.__name__)

    @property
    def __name__(self) -> str:
        # TRL names its metrics by this attribute. It averages two rewards with the same name
        # without a warning.
        return self.name or type(self).__name__

    def __repr__(self) -> str:
        arguments = []
        for parameter in dataclasses.fields(self):
            value = getattr(self, parameter.name)
            if parameter.repr and value != parameter.default:
                shown = value.name if parameter.name == "format" else value
                arguments.append(f"{parameter.name}={shown!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def score_text(self, text: str, row: Row) -> float | None:
        """Return the score of one completion.

        Args:
            text: The completion.
            row: Value of each data column for this completion.
        """
        raise NotImplementedError

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        pairs = zip(completions, rows_of(columns, len(completions)), strict=True)
        return [self.score_text(completion_text(completion), row) for completion, row in pairs]

    def require_column(self, row: Row, column: str) -> None:
        """Check that the data has a column that this reward needs.

        Raises:
            ValueError: The data has no such column.
        """
        if column not in row:
            raise ValueError(
                f"the reward {self.__name__!r} needs the data column {column!r}, with one value "
                f"for each completion. The columns with as many values are {sorted(row)}; write "
                f"{type(self).__name__}(column=...)."
            )


def relative(reward: RewardFunction) -> RewardFunction:
    """Mark a reward that ranks the completions of a group, and return it.

    A score of such a reward can only be compared with the other scores of the same call. So
    `check_rewards` skips such a reward and says so, and no evaluation grades with it. Marking a
    method of an object marks it for every object of its class.

    Args:
        reward: A function with TRL's signature, or an object that can be called so.

    >>> def shortest_first(completions, **columns):
    ...     lengths = sorted(map(len, completions))
    ...     return [1 - lengths.index(len(text)) / len(lengths) for text in completions]
    >>> is_relative(relative(shortest_first))
    True
    """
    # A bound method has no attributes of its own, so its function is marked.
    marked = getattr(reward, "__func__", reward)
    # A `Reward` is frozen, so plain assignment would raise.
    object.__setattr__(marked, "is_relative", True)
    return reward


def is_relative(reward: RewardFunction) -> bool:
    """Return True if a reward was marked with `relative`."""
    return attribute_of(reward, "is_relative", False) is True


def require_weight(weight: Any, name: str) -> None:
    """Check the weight of the reward with this name.

    Raises:
        ValueError: The weight is not a number from -1,000,000 to 1,000,000.
    """
    require_number(f"weight of {name}", weight, -_LARGEST_WEIGHT, _LARGEST_WEIGHT)


def range_of(reward: RewardFunction) -> tuple[float, float] | None:
    """Return the lowest and highest score that a reward declares as `range`, or None.

    A `functools.partial` has no range, even if its function has one: the fixed arguments may change
    the scores.
    """
    return range_or_none(getattr(reward, "range", None))


def range_or_none(value: Any) -> tuple[float, float] | None:
    """Return two finite numbers, the lower one first, as floats; None for anything else."""
    try:
        low, high = value
        # False for NaN too.
        is_range = -math.inf < low < high < math.inf
    except (TypeError, ValueError):
        return None
    return (float(low), float(high)) if is_range else None


def unwrap_partial(reward: RewardFunction) -> RewardFunction:
    """Return the function inside a `functools.partial`, however often it is wrapped."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def attribute_of(reward: RewardFunction, name: str, default: Any) -> Any:
    """Return an attribute of a reward; a partial without it has that of the wrapped function."""
    while isinstance(reward, functools.partial) and name not in vars(reward):
        reward = reward.func
    return getattr(reward, name, default)


def reward_name(reward: RewardFunction) -> str:
    """Return the name under which a run logs a reward.

    A `functools.partial` can have a name of its own: `strict.__name__ = "strict"`. Without one it
    has the name of the wrapped function.
    """
    return attribute_of(reward, "__name__", type(unwrap_partial(reward)).__name__)


def reward_list(rewards: RewardFunction | Sequence[RewardFunction]) -> list[RewardFunction]:
    """Return one reward, or a list or tuple of several, as a list.

    Raises:
        ValueError: There is no reward, or one of them cannot be called as a reward.
    """
    functions = list(rewards) if isinstance(rewards, (list, tuple)) else [rewards]
    if not functions:
        raise ValueError(
            "rewards is empty: without a reward there is nothing to score or to learn from."
        )
    for reward in functions:
        # A class can be called too, but a call makes a reward and scores nothing.
        if isinstance(reward, type) or not callable(reward):
            raise ValueError(
                f"rewards = {reward!r:.80} is not a reward function: "
                "write rewards=[gn.rewards.correctness()]."
            )
    return functions


def weights_by_name(rewards: RewardFunction | Sequence[RewardFunction]) -> dict[str, float]:
    """Return each reward's weight by its name, 1.0 for a reward without the attribute `weight`.

    Args:
        rewards: One reward function or several.

    Raises:
        ValueError: An element is not a reward function, a weight is not a number from -1,000,000 to
            1,000,000, or two rewards have the same name (TRL logs only the mean of the two).

    >>> from grpo_nb.rewards import correctness, partial_format
    >>> weights_by_name([correctness(), partial_format()])
    {'correctness': 2.0, 'partial_format': 0.5}
    """
    weights = {}
    for reward in reward_list(rewards):
        name = reward_name(reward)
        if name in weights:
            raise ValueError(
                f"two rewards are named {name!r}, and TRL would log only the mean of the two: "
                "rename one of them, with name='strict' for a reward of gn.rewards, or with "
                "strict.__name__ = 'strict' for a function."
            )
        weight = attribute_of(reward, "weight", 1.0)
        require_weight(weight, name)
        weights[name] = float(weight)
    return weights
