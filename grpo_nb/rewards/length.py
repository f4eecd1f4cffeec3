"""A reward for the length of a completion; TRL's own, and recipes for style, are in docs/guide/recipes.md."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from grpo_nb.rewards.base import Reward


@dataclass(frozen=True)
class length(Reward):
    """1.0 for a length from `low` to `high`, falling in a straight line to 0.0 at nothing and at twice `high`.

    Padding earns it as well as thinking does: give it a fifth of what a right answer earns, or less. Tokens are counted where
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
    unit: Literal["tokens", "words", "characters"] = "tokens"
    weight: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in ("tokens", "words", "characters"):
            raise ValueError(f"unit = {self.unit!r} must be tokens, words or characters.")
        highest = self.low if self.high is None else self.high
        if not 1 <= self.low <= highest:
            raise ValueError(
                f"low = {self.low!r} and high = {self.high!r}: low must be at least 1, and at most high. Without high, as in "
                "length(1), nothing is too long."
            )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        if self.unit == "tokens" and "completion_ids" in row:
            count = len(row["completion_ids"])
        else:
            count = (
                len(text) if self.unit == "characters" else len(re.findall(r"\w+|[^\w\s]", text))
            )
        if count < self.low:
            return count / self.low
        return 1.0 if self.high is None else max(0.0, 1.0 - max(count - self.high, 0) / self.high)
