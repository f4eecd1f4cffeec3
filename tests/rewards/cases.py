"""What each reward must pay for completions labelled by hand: tests/data/reward_cases.json, and a reward of each kind.

An entry names rewards, their options and the row's columns; under each score stand the texts that must get it, as the content
of an answer slot (`slots`) or whole (`texts`). A list instead of a text holds parts and how often each is repeated.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_nb import rewards
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks import formats

QUICK = Limits(cpu_seconds=0.3, wall_seconds=5.0)
_FORMATS = {
    "boxed": formats.boxed(),
    "xml, opened by the template": dataclasses.replace(formats.xml(), is_opened_by_template=True),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A reward, completions with the score that each must get, and the columns of their row."""

    reward: rewards.Reward
    completions: list[str]
    scores: list[float | None]
    columns: dict[str, Any]
    why: str

    def __str__(self) -> str:
        return f"{type(self.reward).__name__} {self.why} {self.completions[0][:40]!a}"

    def paid(self, *, is_chat: bool = False) -> list[float | None]:
        """The scores of all completions, called together as the trainer calls a reward."""
        chats = [[{"role": "assistant", "content": text}] for text in self.completions]
        columns = {name: [value] * len(chats) for name, value in self.columns.items()}
        return self.reward(completions=chats if is_chat else self.completions, **columns)


def slot(content: str) -> str:
    """An answer slot with this content, and nothing else."""
    return f"<answer>{content}</answer>"


def _spelled(text: str | list[list[Any]]) -> str:
    return text if isinstance(text, str) else "".join(part * times for part, times in text)


def _cases(entry: dict[str, Any]) -> Iterator[Case]:
    labelled = [
        (slot(_spelled(text)), score)
        for score, texts in entry.get("slots", {}).items()
        for text in texts
    ]
    labelled += [
        (_spelled(text), score) for score, texts in entry.get("texts", {}).items() for text in texts
    ]
    completions, scores = (
        [text for text, _ in labelled],
        [json.loads(score) for _, score in labelled],
    )
    options = dict(entry.get("options", {}))
    if "format" in options:
        options["format"] = _FORMATS[options["format"]]
    for name in [entry["reward"]] if isinstance(entry["reward"], str) else entry["reward"]:
        limits = {"limits": QUICK} if name == "code_tests" else {}
        reward = getattr(rewards, name)(**options, **limits)
        yield Case(reward, completions, scores, entry.get("columns", {}), entry.get("why", ""))


_FILE = Path(__file__).parents[1] / "data" / "reward_cases.json"
CASES = [case for entry in json.loads(_FILE.read_text()) for case in _cases(entry)]
# By the name of its class: the reward of that kind's first case.
KINDS = {type(case.reward).__name__: case.reward for case in reversed(CASES)}
