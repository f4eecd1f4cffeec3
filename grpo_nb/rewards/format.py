"""Rewards for the form of a completion: the gradient that leads a model to a format it has never produced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.rewards.base import Reward


@dataclass(frozen=True, repr=False)
class _Exact(Reward):
    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return float(self.format.is_exact(text))


@dataclass(frozen=True, repr=False)
class _Tags(Reward):
    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return self.format.completeness(text)


def xml_format(*, weight: float = 1.0, format: AnswerFormat | None = None, name: str = "xml_format") -> Reward:
    """1.0 if the whole completion is in the format, else 0.0.

    >>> xml_format()(completions=["<reasoning>r</reasoning><answer>7</answer>", "7"])
    [1.0, 0.0]
    """
    return _Exact(weight=weight, format=format or xml(), name=name)


def xml_tags(*, weight: float = 1.0, format: AnswerFormat | None = None, name: str = "xml_tags") -> Reward:
    """The share of the format's tags that occur exactly once, 0.0 to 1.0: a slope where `xml_format` is a step.

    >>> xml_tags()(completions=["<answer>7</answer>"])
    [0.5]
    """
    return _Tags(weight=weight, format=format or xml(), name=name)
