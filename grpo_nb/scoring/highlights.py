"""The parts of a completion that a reward reads, which the lab highlights."""

from typing import NamedTuple

from grpo_nb.rewards.base import RewardFunction, unwrapped
from grpo_nb.tasks.formats import AnswerFormat

WHOLE_TEXT = "whole text"


class Span(NamedTuple):
    """A part of a completion."""

    start: int
    end: int
    what: str
    """`tag`, `answer slot` or `whole text`."""


def spans(reward: RewardFunction, text: str) -> tuple[Span, ...]:
    """Return the parts of a completion that a reward reads, in order; none if they are missing.

    Rewards for the answer read the answer slot, and rewards for the format read the tags. A
    function with an attribute `format` (an `AnswerFormat`) is assumed to read both. Any other
    reward may read anything, so for it the whole text is returned.

    >>> from grpo_nb.rewards import correctness, length
    >>> spans(correctness(), "<answer>7</answer>"), spans(correctness(), "7")
    ((Span(start=8, end=9, what='answer slot'),), ())
    >>> spans(length(5), "so 7")
    (Span(start=0, end=4, what='whole text'),)
    """
    reward = unwrapped(reward)
    looks_at = getattr(reward, "looks_at", "slot and tags")
    format = getattr(reward, "format", None)
    if looks_at == "text" or not isinstance(format, AnswerFormat):
        return (Span(0, len(text), WHOLE_TEXT),)
    parts = []
    if "tags" in looks_at:
        for tag in format.tag_spans(text):
            if tag is not None:
                parts.append(Span(*tag, "tag"))
    answer = format.extract_last(text) if "slot" in looks_at else None
    if answer is not None:
        opening = text.find(format.answer_open)
        start = text.find(answer, opening + len(format.answer_open))
        parts.append(Span(start, start + len(answer), "answer slot"))
    return tuple(sorted(parts))
