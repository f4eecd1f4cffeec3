"""What sampling gives, whichever engine writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.tasks.tools import final_text, transcript


@dataclass(frozen=True)
class Completion:
    """One generated completion."""

    text: str
    """Of an episode with tools the model's last word."""
    tokens: int
    """How many the model wrote."""
    is_cut: bool
    """It reached the length limit without an end token, or in its last turn called tools that nobody ran."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """The token ids as sampled, with the end token: what rewards get as `completion_ids`. Of an episode, the model's own."""
    turns: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Of an episode: every message, those of tools too."""
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of an episode: its environment, as the column that rewards get."""

    @classmethod
    def of_episode(
        cls, turns: Sequence[Any], written: Sequence[int], has_ended: bool, columns: Any
    ) -> Completion:
        """Make one of an episode, of which the model wrote these tokens."""
        is_cut = (
            not has_ended or turns[-1].get("role") == "tool" or bool(turns[-1].get("tool_calls"))
        )
        return cls(final_text(turns), len(written), is_cut, tuple(written), tuple(turns), columns)

    @property
    def shown(self) -> str:
        """All that was said and done."""
        return transcript(self.turns) if self.turns else self.text


def as_scored(
    completions: Sequence[Completion], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Completions and rows as a training hands them to rewards: of an episode every turn, and its environment."""
    return {
        "completions": [list(c.turns) if c.turns else c.text for c in completions],
        "rows": [{**row, **c.columns} for row, c in zip(rows, completions, strict=True)],
        "completion_ids": [list(c.ids) for c in completions],
    }
