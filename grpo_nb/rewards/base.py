"""What all rewards share: the signature of TRL, a name, a weight, and the text of a completion of either shape."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.formats import AnswerFormat, xml

Completion = str | Sequence[dict[str, Any]]


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: a string as it is, chat messages as the content of the last one.

    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, repr=False)
class Reward(abc.ABC):
    """A reward function as TRL calls it; one float per completion, higher is better.

    Subclasses define `score_text`. `weight` is handed to TRL as `reward_weights`, so that curves show the plain score.
    """

    weight: float = 1.0
    format: AnswerFormat = field(default_factory=xml)
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not math.isfinite(self.weight):
            raise ValueError(f"weight = {self.weight!r} of {type(self).__name__} must be a finite number.")
        # TRL makes the metric keys from __name__, and averages two rewards of the same name together without a word.
        object.__setattr__(self, "__name__", self.name or type(self).__name__.strip("_"))

    def __repr__(self) -> str:
        return f"{self.__name__}(weight={self.weight:g}, format={self.format.name!r})"

    @abc.abstractmethod
    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        """Score one completion. `row` holds the values of the data set's columns for it."""

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        per_row = {k: v for k, v in columns.items() if isinstance(v, (list, tuple)) and len(v) == len(completions)}
        return [
            self.score_text(completion_text(completion), {key: values[i] for key, values in per_row.items()})
            for i, completion in enumerate(completions)
        ]


def weight_of(reward: Callable[..., Any]) -> float:
    """The weight a reward function carries, 1.0 if it carries none, as plain functions do."""
    return float(getattr(reward, "weight", 1.0))


def name_of(reward: Callable[..., Any]) -> str:
    """The name under which TRL logs a reward function."""
    return getattr(reward, "__name__", type(reward).__name__)
