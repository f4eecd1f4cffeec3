"""`Completion`: a generated text, from whichever engine, and the form in which rewards get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.tasks.tools import final_text, transcript


@dataclass(frozen=True)
class Completion:
    """One generated completion, or one episode with tools."""

    text: str
    """Generated text. For an episode, the text of the model's last message."""
    tokens: int
    """Number of tokens that the model wrote."""
    is_truncated: bool
    """True if it is truncated: it has no end token, or the episode ends before the final answer."""
    ids: Sequence[int] = field(default=(), repr=False)
    """Token ids that the model wrote, with the end token. Rewards get them as `completion_ids`."""
    turns: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Messages of an episode, with the results of tools. Empty without tools."""
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Environment of an episode, as the column that rewards get. Empty without tools."""

    @classmethod
    def of_episode(
        cls,
        turns: Sequence[Mapping[str, Any]],
        written: Sequence[int],
        has_ended: bool,
        columns: Mapping[str, Any],
    ) -> Completion:
        """Build the completion of an episode.

        Args:
            turns: Messages of the episode, without the prompt.
            written: Token ids that the model wrote.
            has_ended: True if the last of them is an end token.
            columns: Environment of the episode, as `Tools.start` returns it.
        """
        # An episode can stop at the limit of its rounds: after a tool result, or after a call that
        # nobody ran.
        last = turns[-1]
        has_answer = last.get("role") != "tool" and not last.get("tool_calls")
        return cls(
            text=final_text(turns),
            tokens=len(written),
            is_truncated=not (has_ended and has_answer),
            ids=tuple(written),
            turns=tuple(turns),
            columns=columns,
        )

    @property
    def shown(self) -> str:
        """The text, or for an episode all messages, calls and tool results as text."""
        return transcript(self.turns) if self.turns else self.text


def as_scored(
    completions: Sequence[Completion], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return completions and rows as the arguments with which `scoring.score` calls rewards.

    As in a training, rewards get every message of an episode, and its environment as a column.

    Args:
        completions: Completions to score.
        rows: Row of the task for each completion.
    """
    # Rewards get an episode as its messages, and a completion without tools as its text.
    texts = [list(one.turns) if one.turns else one.text for one in completions]
    ids = [list(one.ids) for one in completions]
    own_rows = []
    for row, completion in zip(rows, completions, strict=True):
        # The environment as the episode left it takes precedence over a column of that name.
        own_rows.append({**row, **completion.columns})
    return {"completions": texts, "rows": own_rows, "completion_ids": ids}
