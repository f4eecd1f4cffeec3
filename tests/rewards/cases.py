"""Completions labelled by hand, from tests/data/reward_cases.json, and one reward of each kind.

An entry of the file names rewards, their options and the columns of the row. Under each score it
lists the texts that must get it, either as the content of an answer slot (`slots`) or as whole
completions (`texts`). Instead of a text there may be a list of parts, each with the number of its
repetitions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_nb import rewards
from grpo_nb.sandbox.outcomes import Limits
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

    def scores_given(self, *, is_chat: bool = False) -> list[float | None]:
        """Return the scores of all completions, in one call as the trainer makes it."""
        completions: list[Any] = list(self.completions)
        if is_chat:
            completions = [[{"role": "assistant", "content": text}] for text in completions]
        columns = {name: [value] * len(completions) for name, value in self.columns.items()}
        return self.reward(completions=completions, **columns)


def slot(content: str) -> str:
    """Return an answer slot with this content, and nothing else."""
    return f"<answer>{content}</answer>"


def _text_of(text: str | list[list[Any]]) -> str:
    if isinstance(text, str):
        return text
    return "".join(part * times for part, times in text)


def _cases(entry: dict[str, Any]) -> Iterator[Case]:
    completions = []
    scores = []
    for score, texts in entry.get("slots", {}).items():
        completions += [slot(_text_of(text)) for text in texts]
        scores += [json.loads(score)] * len(texts)
    for score, texts in entry.get("texts", {}).items():
        completions += [_text_of(text) for text in texts]
        scores += [json.loads(score)] * len(texts)
    options = dict(entry.get("options", {}))
    if "format" in options:
        options["format"] = _FORMATS[options["format"]]
    names = [entry["reward"]] if isinstance(entry["reward"], str) else entry["reward"]
    for name in names:
        limits = {"limits": QUICK} if name == "code_tests" else {}
        reward = getattr(rewards, name)(**options, **limits)
        yield Case(reward, completions, scores, entry.get("columns", {}), entry.get("why", ""))


_FILE = Path(__file__).parents[1] / "data" / "reward_cases.json"
CASES = [case for entry in json.loads(_FILE.read_text()) for case in _cases(entry)]
# The reward of the first case of each class, by the name of the class.
KINDS = {type(case.reward).__name__: case.reward for case in reversed(CASES)}

_LABELLED = Path(__file__).parents[1] / "data" / "answers.jsonl"


@dataclasses.dataclass
class LabelledResult:
    """The labelled answers on which a reward and a strict person do not agree."""

    right: int = 0
    """Answers that are labelled as right."""
    wrongly_scored: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    wrongly_refused: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def judged_as_labelled(name: str, *, step: int = 1) -> LabelledResult:
    """Compare a reward with the labels of every `step`-th answer in tests/data/answers.jsonl."""
    cases = [json.loads(line) for line in _LABELLED.read_text().splitlines()]
    result = LabelledResult()
    for case in [case for case in cases if _is_for(case, name)][::step]:
        reward = getattr(rewards, name)(**case.get("options", {}))
        # One answer per call, so that no batch runs out of time.
        (score,) = reward(completions=[slot(case["slot"])], answer=[case["gold"]])
        result.right += case["pay"]
        if score and not case["pay"]:
            result.wrongly_scored.append(case)
        if case["pay"] and not score:
            result.wrongly_refused.append(case)
    return result


def _is_for(case: dict[str, Any], name: str) -> bool:
    """Return True if a labelled answer was labelled for this reward."""
    if name in case["rewards"]:
        return True
    # Labels for plain numbers hold for correctness too, unless they are about units that convert.
    is_of_numbers = case["rewards"] == ["number"] and name == "correctness"
    return is_of_numbers and case.get("options", {}).keys() <= {"tolerance"}
