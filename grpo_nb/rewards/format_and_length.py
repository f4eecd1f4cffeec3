"""Rewards for the format and the length of a completion.

A format reward leads a model to a format that it has never produced. `docs/guide/recipes.md` has
more rewards for style.
"""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from grpo_nb.rewards.base import Reward


@dataclass(frozen=True, kw_only=True)
class xml_format(Reward):
    """1.0 if the whole completion is in the format, else 0.0.

    The format can be any `AnswerFormat`, given as `format`. Source: DeepSeek-R1 (arXiv:2501.12948,
    section 2.2.2).

    >>> xml_format()(completions=["<reasoning>r</reasoning><answer>7</answer>", "7"])
    [1.0, 0.0]
    """

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return float(self.format.is_exact(text))


@dataclass(frozen=True, kw_only=True)
class xml_tags(Reward):
    """The share of the format's tags that occur exactly once, 0.0 to 1.0.

    It rises with every tag, where `xml_format` is all or nothing. It also rewards tags in the wrong
    order and tags that are only mentioned, so it must not weigh as much as the answer. Source: the
    tag count of open-r1, as a share.

    >>> xml_tags()(completions=["<answer>7</answer>"])
    [0.5]
    """

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return self.format.completeness(text)


@dataclass(frozen=True)
class length(Reward):
    """1.0 for a length from `low` to `high`; outside, less.

    Outside, the score falls in a straight line to 0.0 at length 0 and at twice `high`. Padding is
    rewarded as well as thinking, so give this reward a fifth of the weight of a right answer, or
    less.

    Args:
        low: Shortest length with the full score.
        high: Longest length with the full score; without it nothing is too long.
        unit: `"tokens"` or `"words"`. Tokens are counted in the trainer's `completion_ids`; where
            there are none, words and punctuation marks are counted instead. Words are separated by
            white space.

    >>> length(2, 4, unit="words")(completions=["one", "one two", "one two three four five six"])
    [0.5, 1.0, 0.5]
    """

    low: int
    high: int | None = None
    _: KW_ONLY
    unit: Literal["tokens", "words"] = "tokens"
    weight: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in ("tokens", "words"):
            raise ValueError(f"unit = {self.unit!r} must be 'tokens' or 'words'.")
        is_reversed = self.high is not None and self.high < self.low
        if self.low < 1 or is_reversed:
            raise ValueError(
                f"low = {self.low!r} and high = {self.high!r}: low must be at least 1, and at most "
                "high. Without high, as in length(1), nothing is too long."
            )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        count = self._count(text, row)
        if count < self.low:
            return count / self.low
        if self.high is None or count <= self.high:
            return 1.0
        excess = (count - self.high) / self.high
        return max(0.0, 1.0 - excess)

    def _count(self, text: str, row: dict[str, Any]) -> int:
        if self.unit == "words":
            return len(text.split())
        if "completion_ids" in row:
            return len(row["completion_ids"])
        words_and_marks = re.findall(r"\w+|[^\w\s]", text)
        return len(words_and_marks)
