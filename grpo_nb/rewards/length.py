"""A reward for the length of a completion; TRL's own, and recipes for style, are in docs/guide/rewards.md."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from grpo_nb.rewards.base import Reward, one_of


@dataclass(frozen=True, repr=False)
class length(Reward):
    """1.0 for a length from `low` to `high`, falling in a straight line to 0.0 at nothing and at twice `high`.

    Padding earns it as well as thinking does. Give it a fifth of what a right answer earns, or less. Tokens are counted where
    the trainer gives `completion_ids`, as TRL does; tried by hand without them, words and punctuation marks are.

    Args:
        low: The shortest length of full score.
        high: The longest; without it nothing is too long.
        unit: `"tokens"`, `"words"` or `"characters"`.

    >>> length(2, 4, unit="words")(completions=["one", "one two", "one two three four five six"])
    [0.5, 1.0, 0.5]
    """

    low: int
    high: int | None = None
    _: KW_ONLY
    unit: str = one_of("tokens", "words", "characters")
    weight: float = 0.2
    source: ClassVar[str] = "the kit's own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.low <= (self.low if self.high is None else self.high):
            raise ValueError(
                f"low = {self.low!r} and high = {self.high!r}: lengths must be at least 1, and low at most high."
            )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        count = self._count(text, row)
        if count < self.low:
            return count / self.low
        return 1.0 if self.high is None else max(0.0, 1.0 - max(count - self.high, 0) / self.high)

    def _count(self, text: str, row: dict[str, Any]) -> int:
        if self.unit == "characters":
            return len(text)
        ids = row.get("completion_ids")
        if self.unit == "tokens" and hasattr(ids, "__len__"):
            return len(ids)
        return len(re.findall(r"\w+|[^\w\s]", text))
