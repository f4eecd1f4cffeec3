"""What all rewards share: the signature of TRL, a name, a weight, a range, and the text of a completion of either shape."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_nb.formats import AnswerFormat, xml

if TYPE_CHECKING:
    from grpo_nb.rewards.cases import CaseTable

Completion = str | Sequence[Mapping[str, Any]]


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: a string as it is, chat messages as the content of the last one.

    Content in parts, as multimodal chats have it, is the text of its text parts.

    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else None
    content = last.get("content") if isinstance(last, Mapping) else ""
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, repr=False)
class Reward(abc.ABC):
    """A reward function as TRL calls it; one float per completion, higher is better; None where it has nothing to say.

    Subclasses define `score_text`, or `score_batch` where completions are judged together. `weight` is handed to TRL as
    `reward_weights`, so that curves show the plain score.
    """

    weight: float = 1.0
    format: AnswerFormat = field(default_factory=xml)
    name: str = ""

    source: ClassVar[str] = ""
    """Where the definition comes from: paper and equation, or the upstream code of the same meaning."""

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not math.isfinite(self.weight):
            raise ValueError(f"weight = {self.weight!r} of {type(self).__name__} must be a finite number.")
        # TRL makes the metric keys from __name__, and averages two rewards of the same name together without a word.
        object.__setattr__(self, "__name__", self.name or type(self).__name__.strip("_"))

    def __repr__(self) -> str:
        return f"{self.__name__}(weight={self.weight:g}, format={self.format.name!r})"

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest score there can be, before the weight."""
        return (0.0, 1.0)

    @property
    def cases(self) -> CaseTable:
        """Completions with the score each must get, from the easy to the hostile; a table that shows itself.

        They are those of this kind of reward with the parameters that the table names, whatever the parameters here.
        """
        from grpo_nb.rewards.cases import cases_of

        return cases_of(self)

    @abc.abstractmethod
    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        """Score one completion. `row` holds the values of the data set's columns for it."""

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        """Score completions together; one by one unless a subclass gains from doing otherwise."""
        return [self.score_text(text, row) for text, row in zip(texts, rows, strict=True)]

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        per_row = {k: v for k, v in columns.items() if isinstance(v, (list, tuple)) and len(v) == len(completions)}
        rows = [{key: values[i] for key, values in per_row.items()} for i in range(len(completions))]
        return self.score_batch([completion_text(completion) for completion in completions], rows)

    def column_of(self, row: Mapping[str, Any], column: str) -> Any:
        """Return the row's value of a data column that this reward cannot do without.

        Raises:
            ValueError: The data has no such column.
        """
        if column not in row:
            raise ValueError(
                f"the reward {self.__name__!r} needs the data column {column!r}, but the data has "
                f"{sorted(row) or 'no columns'}; write {self.__name__}(column=...) or rename the column."
            )
        return row[column]


def weight_of(reward: Callable[..., Any]) -> float:
    """The weight a reward function carries, 1.0 if it carries none, as plain functions do."""
    return float(getattr(reward, "weight", 1.0))


def name_of(reward: Callable[..., Any]) -> str:
    """The name under which TRL logs a reward function: for a `functools.partial`, that of the function it wraps."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return getattr(reward, "__name__", type(reward).__name__)


def weights_by_name(rewards: Iterable[Callable[..., Any]]) -> dict[str, float]:
    """Return each reward's weight by its name, and refuse what TRL would mix up.

    Raises:
        ValueError: One is not callable, or two have the same name: TRL logs the mean of both under it.

    >>> from grpo_nb.rewards import correctness, xml_tags
    >>> weights_by_name([correctness(), xml_tags()])
    {'correctness': 2.0, 'xml_tags': 1.0}
    """
    weights: dict[str, float] = {}
    for reward in rewards:
        if not callable(reward):
            raise ValueError(
                f"rewards holds {reward!r}, which is no function; did you forget its brackets, or call it?"
            )
        name = name_of(reward)
        if name in weights:
            raise ValueError(
                f"two rewards are named {name!r}, and TRL would average their curves. Give one another name=..."
            )
        weights[name] = weight_of(reward)
    return weights
