"""Rewards for the form of a completion: the gradient that leads a model to a format it has never produced."""

from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_nb.rewards.base import Reward


@dataclass(frozen=True, kw_only=True)
class xml_format(Reward):
    """1.0 if the whole completion is in the format, else 0.0.

    The same for any `AnswerFormat`, given as `format`. From DeepSeek-R1 (arXiv:2501.12948, section 2.2.2).

    >>> xml_format()(completions=["<reasoning>r</reasoning><answer>7</answer>", "7"])
    [1.0, 0.0]
    """

    looks_at: ClassVar[str] = "tags"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return float(self.format.is_exact(text))


@dataclass(frozen=True, kw_only=True)
class xml_tags(Reward):
    """The share of the format's tags that occur exactly once, 0.0 to 1.0: a slope where `xml_format` is a step.

    It pays for tags in any order and for naming them in prose: `incremental_format` is stricter about the order, and neither
    should weigh as much as the answer. The tag count of open-r1, as a share.

    >>> xml_tags()(completions=["<answer>7</answer>"])
    [0.5]
    """

    looks_at: ClassVar[str] = "tags"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return self.format.completeness(text)


@dataclass(frozen=True, kw_only=True)
class incremental_format(Reward):
    """The share of the format's tags that occur once and in order, minus a little for each character after the last.

    With four tags, a quarter each and 0.001 a trailing character but for white space at the ends, as in widely used GRPO
    notebooks; but there a wrong order is paid and text without an end costs without bound. Here the penalty stays below what
    the last tag earns, so that stopping always pays better than leaving the tag out. Formats without a closing mark have no
    trailing text.

    >>> texts = ["<reasoning>r</reasoning><answer>7</answer>", "</answer>7<answer>", "<answer>7</answer>0123456789"]
    >>> incremental_format()(completions=texts)
    [1.0, 0.25, 0.49]
    """

    looks_at: ClassVar[str] = "tags"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        end, found = 0, 0
        spans = self.format.tag_spans(text)
        for span in spans:
            if span is not None and span[0] >= end:
                found, end = found + 1, span[1]
        share = found / len(spans)
        is_closed = bool(self.format.answer_close) and spans[-1] is not None and spans[-1][1] == end
        # Never as much as the last tag earns, or leaving it out would pay better than stopping.
        return (
            share - min(0.001 * len(text[end:].strip()), 0.8 / len(spans)) if is_closed else share
        )
