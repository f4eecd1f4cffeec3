"""A generated completion of any engine, and the form in which rewards get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.tools import transcript

#: Function that takes prompts as token ids, and returns one completion per prompt as token ids.
Sampler = Callable[[Sequence[Sequence[int]]], list[list[int]]]


@dataclass(frozen=True)
class GeneratedCompletion:
    """One generated completion, or one episode with tools."""

    text: str
    """Generated text. For an episode, the text of the model's last message."""
    is_truncated: bool
    """True if it has no end token, or if the episode ends before the final answer."""
    ids: Sequence[int] = field(default=(), repr=False)
    """Token ids that the model wrote, with the end token. Rewards get them as `completion_ids`."""
    turns: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Messages of an episode, with the results of tools, as in the column `turns` of a run. Empty
    without tools."""
    row: Row = field(default_factory=dict, repr=False)
    """Row of an episode, with its first prompt and its environment. Empty without tools."""

    @property
    def token_count(self) -> int:
        """Number of tokens that the model wrote."""
        return len(self.ids)

    @property
    def full_text(self) -> str:
        """The text, or for an episode all messages, calls and tool results as text."""
        return transcript(self.turns) if self.turns else self.text


def scoring_arguments(
    completions: Sequence[GeneratedCompletion], rows: Sequence[Row]
) -> dict[str, Any]:
    """Return completions and rows as the arguments with which `scoring.score` calls rewards.

    As in a training, rewards get every message of an episode, and its environment as a column.

    Args:
        completions: Completions to score.
        rows: Row of the task for each completion.
    """
    # Rewards get an episode as its messages, and a completion without tools as its text.
    texts_or_turns = [
        list(completion.turns) if completion.turns else completion.text
        for completion in completions
    ]
    ids = [list(completion.ids) for completion in completions]
    # The row of an episode has the prompt as the model got it, and the environment.
    pairs = zip(rows, completions, strict=True)
    scored_rows = [completion.row or row for row, completion in pairs]
    return {"completions": texts_or_turns, "rows": scored_rows, "completion_ids": ids}
