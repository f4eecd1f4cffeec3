"""What all rewards share: TRL's signature, a name, a weight, a range, and where in a completion they look."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.tools import final_text

Completion = str | Sequence[Mapping[str, Any]]
RewardFunction = Callable[..., Sequence[float | None]]
_XML = xml()


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: a string as it is, of chat messages the last word, if the model has it and no tool.

    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    return completion if isinstance(completion, str) else final_text(completion)


def with_last_word(completion: Completion) -> Completion:
    """Return an episode whose last message is the model's, with a content: what a tool said is never read as its answer.

    >>> with_last_word([{"role": "tool", "content": "7"}])[-1]
    {'role': 'assistant', 'content': ''}
    """
    last = {} if isinstance(completion, str) or not completion else completion[-1]
    if last.get("role") == "tool":
        return [*completion, {"role": "assistant", "content": ""}]
    if last.get("tool_calls") and last.get("content") is None:
        return [*completion[:-1], {**last, "content": ""}]
    return completion


def per_row(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the columns of a call as one mapping for each of its completions; what is no column of that length is left out."""
    # TRL has lists; by hand it may be a column of numpy, pandas or datasets.
    listed = {
        key: held.tolist() if hasattr(held, "tolist") else held for key, held in columns.items()
    }
    is_column = lambda held: (
        isinstance(held, Sequence) and not isinstance(held, str) and len(held) == count
    )
    held_by_row = {key: held for key, held in listed.items() if is_column(held)}
    return [{key: held[i] for key, held in held_by_row.items()} for i in range(count)]


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward function as TRL calls it: one float per completion, higher is better; None where it has nothing to say.

    Subclasses define `score_text`, or `score_batch` where completions are judged together. `weight` is handed to TRL as
    `reward_weights`, so that curves show the plain score.
    """

    weight: float = 1.0
    format: AnswerFormat = _XML
    """Where the answer stands."""
    name: str = ""
    """Under which TRL logs it; that of the class where it is not given."""
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The lowest and the highest score there can be, before the weight."""
    looks_at: ClassVar[str] = "text"
    """`slot`, `tags` or `text`: what the lab marks."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__repr__ = (
            Reward.__repr__
        )  # else every @dataclass writes one of its own, with all defaults

    def __post_init__(self) -> None:
        check_weight(self.weight, self.__name__)

    @property
    def __name__(self) -> str:
        # TRL makes the metric keys from this, and averages two rewards of the same name together without a word.
        return self.name or type(self).__name__

    def __repr__(self) -> str:
        held = [
            (field.name, getattr(self, field.name), field.default)
            for field in dataclasses.fields(self)
        ]
        told = {name: value for name, value, default in held if value != default}
        if "format" in told:
            told["format"] = self.format.name
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        """Score one completion. `row` holds the values of the data set's columns for it."""
        if type(self).score_batch is Reward.score_batch:
            raise NotImplementedError(
                f"{type(self).__name__} defines neither score_text nor score_batch"
            )
        return self.score_batch([text], [row])[0]

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        """Score completions together; one by one unless a subclass gains from doing otherwise."""
        return [self.score_text(text, row) for text, row in zip(texts, rows, strict=True)]

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        rows = per_row(columns, len(completions))
        needed = getattr(self, "column", None)
        if rows and needed in columns and needed not in rows[0]:
            raise ValueError(
                _wrong_length(self.__name__, needed, columns[needed], len(completions))
            )
        return self.score_batch(list(map(completion_text, completions)), rows)

    def column_of(self, row: Mapping[str, Any], column: str) -> Any:
        """Return the row's value of a data column that this reward cannot do without.

        Raises:
            ValueError: The data has no such column.
        """
        if column not in row:
            there = f"the data has {sorted(row) or 'no columns'}; write {type(self).__name__}(column=...)"
            raise ValueError(
                f"the reward {self.__name__!r} needs the data column {column!r}, but {there}."
            )
        return row[column]


def _wrong_length(reward: str, column: str, value: Any, count: int) -> str:
    """Return what to write where a column is not a list with one value for each completion."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    held = f"{len(value)} values" if is_list else f"one {type(value).__name__}"
    held = "1 value" if held == "1 values" else held
    example = f"[{value!r:.40}] * {count}" if not is_list else f"{column}=[...]"
    return (
        f"the column {column!r} of the reward {reward!r} has {held} for {count} completion{'' if count == 1 else 's'}. "
        f"Each completion needs its own value: {example if is_list else f'{column}={example}'}."
    )


def kinds() -> dict[str, type[Reward]]:
    """Every class of reward of the kit by name, for making one again from what was recorded of it."""
    found: list[type[Reward]] = [Reward]
    for kind in found:  # which grows
        found += kind.__subclasses__()
    return {kind.__name__: kind for kind in found if kind.__module__.startswith(f"{__package__}.")}


def check_weight(weight: Any, name: str) -> float:
    """Return a weight as a float.

    Raises:
        ValueError: It is no finite number, and so would be every total.
    """
    if (
        isinstance(weight, bool)
        or not isinstance(weight, numbers.Real)
        or not math.isfinite(weight)
    ):
        raise ValueError(f"weight = {weight!r} of {name} must be a finite number, such as 1.0.")
    return float(weight)


def range_of(reward: RewardFunction) -> tuple[float, float] | None:
    """The least and the most that a reward pays, where its attribute `range` says it."""
    ends = getattr(reward, "range", None)
    is_pair = isinstance(ends, (tuple, list)) and len(ends) == 2
    if not is_pair or not all(isinstance(end, numbers.Real) for end in ends):
        return None
    return float(ends[0]), float(ends[1])


def unwrapped(reward: RewardFunction) -> RewardFunction:
    """The function that a `functools.partial` wraps, however often; any other as it is."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def reward_name(reward: RewardFunction) -> str:
    """Return the name under which a run logs a reward function.

    For a `functools.partial` it is the name that was given to it, `strict.__name__ = "strict"`, else that of the function it
    wraps. TRL 1.15 would log both under the latter; `training.errors.guarded` hands it functions of these names.
    """
    while isinstance(reward, functools.partial) and "__name__" not in vars(reward):
        reward = reward.func
    return getattr(reward, "__name__", type(reward).__name__)


def reward_list(
    rewards: RewardFunction | Iterable[RewardFunction], *, least: int = 1
) -> list[RewardFunction]:
    """Return one reward, or several, as a list, and refuse what cannot be called as a reward.

    Raises:
        ValueError: There are fewer than `least` (0 or 1), or one of them is no reward function.
    """
    if isinstance(rewards, str) or not (callable(rewards) or isinstance(rewards, Iterable)):
        raise ValueError(
            f"rewards = {rewards!r:.80} is no reward function: write rewards=[gn.rewards.correctness()]."
        )
    listed = [rewards] if callable(rewards) else list(rewards)
    if len(listed) < least:
        raise ValueError(
            "rewards is empty: without a reward there is nothing to score or to learn from."
        )
    for reward in listed:
        if not callable(reward) or isinstance(reward, type):
            raise ValueError(
                f"rewards holds {reward!r:.80}, which is no reward function: correctness() is one, its class is not."
            )
    return listed


def weights_by_name(rewards: RewardFunction | Iterable[RewardFunction]) -> dict[str, float]:
    """Return each reward's weight by its name, 1.0 where it has no attribute `weight`; refuse what TRL would mix up.

    Raises:
        ValueError: One is no reward function, its weight no finite number, or two have the same name: TRL logs the mean of
            both under it.

    >>> from grpo_nb.rewards import correctness, xml_tags
    >>> weights_by_name([correctness(), xml_tags()])
    {'correctness': 2.0, 'xml_tags': 1.0}
    """
    weights: dict[str, float] = {}
    for reward in reward_list(rewards, least=0):
        name = reward_name(reward)
        if name in weights:
            raise ValueError(
                f"two rewards are named {name!r}, which TRL would average: give one another name, "
                "such as name='strict' for a reward of the kit, or strict.__name__ = 'strict' for a function."
            )
        weights[name] = check_weight(getattr(reward, "weight", 1.0), name)
    return weights


def changed_weights(weights: Mapping[str, float], changed: Mapping[str, float]) -> dict[str, float]:
    """Return weights by name with some of them changed.

    Raises:
        ValueError: A name that no reward has, or a weight that is no finite number.
    """
    if unknown := changed.keys() - weights.keys():
        raise ValueError(
            f"weights names {', '.join(map(repr, unknown))}, but the rewards are {list(weights)}."
        )
    return {name: check_weight(changed.get(name, weight), name) for name, weight in weights.items()}
