"""Rewards for the length of a completion. None of them says anything about its worth: keep their weights small.

Lengths are in tokens when the trainer gives `completion_ids`, as TRL does. Tried by hand without them, words and punctuation
marks are counted instead, which is near enough to see what a reward does. `unit` asks for words or characters always.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import Reward

UNITS = ("tokens", "words", "characters")


@dataclass(frozen=True, repr=False)
class LengthReward(Reward):
    """A reward of the length alone."""

    unit: str = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in UNITS:
            raise ValueError(f"unit = {self.unit!r} must be one of {', '.join(UNITS)}.")

    def __repr__(self) -> str:
        return f"{self.__name__}(weight={self.weight:g}, unit={self.unit!r})"

    def length(self, text: str, row: dict[str, Any]) -> int:
        """The length of a completion in this reward's unit."""
        ids = row.get("completion_ids")
        if self.unit == "tokens" and ids is not None and hasattr(ids, "__len__"):
            return len(ids)
        if self.unit == "characters":
            return len(text)
        return len(split_words(text))


def split_words(text: str) -> list[str]:
    """Words and punctuation marks, each by itself.

    >>> split_words("It's 7.")
    ['It', "'", 's', '7', '.']
    """
    return re.findall(r"\w+|[^\w\s]", text)


@dataclass(frozen=True, repr=False)
class _IdealLength(LengthReward):
    low: int = 1
    high: int = 1
    source: ClassVar[str] = "the kit's own"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        length = self.length(text, row)
        if length < self.low:
            return length / self.low
        return max(0.0, 1.0 - max(length - self.high, 0) / self.high)


@dataclass(frozen=True, repr=False)
class _MinimumLength(LengthReward):
    minimum: int = 1
    source: ClassVar[str] = "the kit's own"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return min(1.0, self.length(text, row) / self.minimum)


@dataclass(frozen=True, repr=False)
class _SoftOverlong(LengthReward):
    max_length: int = 1
    cache: int = 0
    source: ClassVar[str] = "DAPO, arXiv:2503.14476, equation 13; TRL's get_soft_overlong_punishment"

    @property
    def range(self) -> tuple[float, float]:
        return (-1.0, 0.0)

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        length, free = self.length(text, row), self.max_length - self.cache
        if length <= free:
            return 0.0
        return (free - length) / self.cache if length <= self.max_length else -1.0


@dataclass(frozen=True, repr=False)
class _CosineLength(LengthReward):
    max_length: int = 1
    wrong: tuple[float, float] = (-1.0, -0.5)
    right: tuple[float, float] = (0.5, 1.0)
    judge: Reward = field(default_factory=correctness)
    source: ClassVar[str] = "arXiv:2502.03373, appendix C.1; TRL's get_cosine_scaled_reward"

    @property
    def range(self) -> tuple[float, float]:
        return (min(self.wrong), max(self.right))

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        return self.score_batch([text], [row])[0]

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        verdicts = self.judge.score_batch(texts, rows)
        return [
            None if verdict is None else self._scale(verdict >= 1, self.length(text, row))
            for verdict, text, row in zip(verdicts, texts, rows, strict=True)
        ]

    def _scale(self, is_right: bool, length: int) -> float:
        # Beyond the maximum the cosine would rise again.
        cosine = math.cos(min(length / self.max_length, 1.0) * math.pi)
        # Right: short is best. Wrong: long is best, as thinking on may still help.
        end, start = self.right if is_right else reversed(self.wrong)
        return float(end + 0.5 * (start - end) * (1.0 + cosine))


def ideal_length(
    low: int, high: int | None = None, *, weight: float = 0.2, name: str = "ideal_length", unit: str = "tokens"
) -> Reward:
    """1.0 for a length from `low` to `high`, falling in a straight line to 0.0 at nothing and at twice `high`.

    Padding earns it as well as thinking does. Give it a fifth of what a right answer earns, or less.

    Args:
        low: The shortest length of full score.
        high: The longest; `low` if not given.
        weight: Of the total reward.
        name: Under which TRL logs it.
        unit: `"tokens"`, `"words"` or `"characters"`.

    >>> ideal_length(2, 4, unit="words")(completions=["one", "one two", "one two three four five six"])
    [0.5, 1.0, 0.5]
    """
    high = low if high is None else high
    if not 1 <= low <= high:
        raise ValueError(f"low = {low!r} and high = {high!r}: lengths must be at least 1, and low at most high.")
    return _IdealLength(weight=weight, name=name, unit=unit, low=low, high=high)


def minimum_length(minimum: int, *, weight: float = 0.2, name: str = "minimum_length", unit: str = "tokens") -> Reward:
    """1.0 from `minimum` on, below it the share of it that is there: against answers without any reasoning.

    >>> minimum_length(4, unit="words")(completions=["one", "one two three four five"])
    [0.25, 1.0]
    """
    if minimum < 1:
        raise ValueError(f"minimum = {minimum!r} must be at least 1.")
    return _MinimumLength(weight=weight, name=name, unit=unit, minimum=minimum)


def soft_overlong(
    max_length: int, cache: int, *, weight: float = 1.0, name: str = "soft_overlong", unit: str = "tokens"
) -> Reward:
    """0.0 up to `max_length - cache`, then down in a straight line to -1.0 at `max_length` and beyond.

    TRL's `get_soft_overlong_punishment(max_completion_len, soft_punish_cache)`, the same numbers. It works only if
    `max_length` is at most the trainer's `max_completion_length`: no completion gets longer than that.

    >>> soft_overlong(100, 20)(completions=["..."], completion_ids=[[1] * 90])
    [-0.5]
    """
    if not 0 <= cache <= max_length or max_length < 1:
        raise ValueError(f"max_length = {max_length!r}, cache = {cache!r}: cache must be between 0 and max_length.")
    return _SoftOverlong(weight=weight, name=name, unit=unit, max_length=max_length, cache=cache)


def cosine_length(
    max_length: int,
    *,
    judge: Reward | None = None,
    weight: float = 1.0,
    name: str = "cosine_length",
    unit: str = "tokens",
    wrong: tuple[float, float] = (-1.0, -0.5),
    right: tuple[float, float] = (0.5, 1.0),
) -> Reward:
    r"""A right answer earns more the shorter it is; a wrong one loses less the longer it is, on a cosine.

    TRL's `get_cosine_scaled_reward` with the same numbers, but for the judge: any reward of the kit, where TRL's is its
    `accuracy_reward`. Put it in the place of a reward for correctness, not beside it.

    Args:
        max_length: Where the cosine ends.
        judge: The reward that says what is right (1.0); `correctness()` if not given.
        weight: Of the total reward.
        name: Under which TRL logs it.
        unit: `"tokens"`, `"words"` or `"characters"`.
        wrong: Score of a wrong completion of no length, and of `max_length`.
        right: Score of a right completion of `max_length`, and of no length.

    >>> reward = cosine_length(max_length=100)
    >>> reward(completions=["<answer>7</answer>", "<answer>8</answer>"], answer=["7", "7"], completion_ids=[[1] * 50] * 2)
    [0.75, -0.75]
    """
    if max_length < 1:
        raise ValueError(f"max_length = {max_length!r} must be at least 1.")
    if not wrong[0] <= wrong[1] <= right[0] <= right[1]:
        raise ValueError(
            f"wrong = {wrong!r} and right = {right!r} must rise: else being wrong pays better than being right."
        )
    judge = judge or correctness()
    return _CosineLength(
        weight=weight, format=judge.format, name=name, unit=unit, max_length=max_length, wrong=tuple(wrong),
        right=tuple(right), judge=judge,
    )  # fmt: skip
