"""Rewards for the form of a completion: the gradient that leads a model to a format it has never produced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_nb.rewards.base import Reward, Span, checked, slot_span, tag_spans
from grpo_nb.rewards.structured import check_schema, fits_schema
from grpo_nb.tasks.formats import AnswerFormat, think_answer
from grpo_nb.tasks.notation import read_json


@dataclass(frozen=True, kw_only=True, repr=False)
class xml_format(Reward):
    """1.0 if the whole completion is in the format, else 0.0.

    The same for any `AnswerFormat`; `answer_format` is its other name.

    >>> xml_format()(completions=["<reasoning>r</reasoning><answer>7</answer>", "7"])
    [1.0, 0.0]
    """

    source: ClassVar[str] = "the format reward of DeepSeek-R1 (arXiv:2501.12948, section 2.2.2)"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return float(self.format.is_exact(text))

    def looks_at(self, text: str) -> tuple[Span, ...]:
        return tag_spans(self.format, text)


@dataclass(frozen=True, repr=False)
class answer_format(xml_format):
    r"""1.0 if the whole completion is in this format, whichever it is, else 0.0.

    >>> from grpo_nb.tasks import formats
    >>> answer_format(formats.boxed())(completions=[r"so \\boxed{7}", r"so \\boxed{7} or 8"])
    [1.0, 0.0]
    """

    format: AnswerFormat


@dataclass(frozen=True, kw_only=True, repr=False)
class xml_tags(Reward):
    """The share of the format's tags that occur exactly once, 0.0 to 1.0: a slope where `xml_format` is a step.

    It pays for tags in any order and for naming them in prose. `incremental_format` is stricter about the order; neither
    should weigh as much as the answer.

    >>> xml_tags()(completions=["<answer>7</answer>"])
    [0.5]
    """

    source: ClassVar[str] = "the tag count of open-r1, as a share"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return self.format.completeness(text)

    def looks_at(self, text: str) -> tuple[Span, ...]:
        return tag_spans(self.format, text)


@dataclass(frozen=True, kw_only=True, repr=False)
class incremental_format(Reward):
    """The share of the format's tags that occur once and in order, minus a little for each character after the last.

    With four tags, a quarter each and 0.001 a trailing character, as in the widely used recipe; but there a wrong order is
    paid and text without an end costs without bound. Here the penalty stays below what the last tag earns, so that stopping
    always pays better than leaving the tag out. Formats without a closing mark have no trailing text.

    Args:
        weight: Of the total reward.
        format: Whose tags; `xml()` if not given.
        name: Under which TRL logs it.
        penalty: For each character after the last tag, white space at the ends not counted.

    >>> texts = ["<reasoning>r</reasoning><answer>7</answer>", "</answer>7<answer>", "<answer>7</answer>0123456789"]
    >>> incremental_format()(completions=texts)
    [1.0, 0.25, 0.49]
    """

    penalty: float = checked("between 0 and 1 for each character; 0.001 is usual", lambda value: 0 <= value <= 1, 0.001)
    source: ClassVar[str] = (
        "the XML count of the widely used GRPO notebooks: a quarter a tag, -0.001 a trailing character"
    )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        end, found = 0, 0
        spans = self.format.tag_spans(text)
        for span in spans:
            if span is not None and span[0] >= end:
                found, end = found + 1, span[1]
        share = found / len(spans)
        is_closed = bool(self.format.answer_close) and spans[-1] is not None and spans[-1][1] == end
        # Never as much as the last tag earns, or leaving it out would pay better than stopping.
        return share - min(self.penalty * len(text[end:].strip()), 0.8 / len(spans)) if is_closed else share

    def looks_at(self, text: str) -> tuple[Span, ...]:
        kept: list[Span] = []
        for tag in tag_spans(self.format, text):
            if not kept or tag.start >= kept[-1].end:
                kept.append(tag)
        return tuple(kept)


@dataclass(frozen=True, kw_only=True, repr=False)
class think_format(Reward):
    r"""1.0 if the completion is reasoning between `<think>` and `</think>`, then an answer of any form; else 0.0.

    Gives TRL's `think_format_reward` on its documented examples. It differs where that one pays for less than it says: for no
    answer after the reasoning, for none in it, and for a second `</think>`. And it is right when the chat template has already
    written `<think>` (`format.for_template(tokenizer)`), where TRL's is always 0.

    >>> think_format()(completions=["<think>\nThis is my reasoning.\n</think>\nThis is my answer.", "<think></think>"])
    [1.0, 0.0]
    """

    source: ClassVar[str] = "TRL's think_format_reward; think_format() says where it differs"

    def __post_init__(self) -> None:
        self._set(format=self.format or think_answer())
        super().__post_init__()
        if not self.format.reasoning_open:
            raise ValueError(
                f"the format {self.format.name!r} has no tags around the reasoning, so think_format has nothing to look at."
            )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        opening, closing = self.format.reasoning_open, self.format.reasoning_close
        if self.format.is_opened_by_template:
            text = opening + text.removeprefix("\n")
        text = text.strip()
        if not text.startswith(opening) or text.count(opening) != 1 or text.count(closing) != 1:
            return 0.0
        reasoning, answer = text.removeprefix(opening).split(closing)
        return float(bool(reasoning.strip()) and bool(answer.strip()))

    def looks_at(self, text: str) -> tuple[Span, ...]:
        ours = (self.format.reasoning_open, self.format.reasoning_close)
        return tuple(tag for tag in tag_spans(self.format, text) if text[tag.start : tag.end] in ours)


@dataclass(frozen=True, kw_only=True, repr=False)
class json_format(Reward):
    """1.0 if the completion is one JSON object or array and fits the schema, else 0.0. A Markdown fence around it may stay.

    Args:
        weight: Of the total reward.
        format: Where the answer stands, if `is_in_slot`; `xml()` if not given.
        name: Under which TRL logs it.
        schema: A JSON schema. Without one, `{}` is enough.
        is_in_slot: Look at the answer slot only, not at the whole completion.

    >>> json_format(schema={"required": ["city"]})(completions=['{"city": "Oslo"}', "{}", "Sure! {}"])
    [1.0, 0.0, 0.0]
    """

    schema: Mapping[str, Any] | str | None = None
    is_in_slot: bool = False
    source: ClassVar[str] = "the kit's own"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(schema=check_schema(self.schema))

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        part = self.format.extract_last(text) if self.is_in_slot else text
        value, is_json = read_json(part) if part else (None, False)
        # A number or a word alone is JSON too; nobody who asks for JSON means that.
        if not is_json or not isinstance(value, (dict, list)):
            return 0.0
        return float(self.schema is None or fits_schema(value, self.schema))

    def looks_at(self, text: str) -> tuple[Span, ...]:
        return (
            slot_span(self.format, self.format.extract_last(text), text) if self.is_in_slot else super().looks_at(text)
        )
