"""Where in a completion a reward looked, which the lab marks."""

from typing import NamedTuple

from grpo_nb.rewards.base import RewardFunction, unwrapped
from grpo_nb.tasks.formats import AnswerFormat

WHOLE_TEXT = "whole text"


class Span(NamedTuple):
    """A part of a completion. Sorted, they stand in the order of the text."""

    start: int
    end: int
    what: str
    """`tag`, `answer slot` or `whole text`."""


def spans(reward: RewardFunction, text: str) -> tuple[Span, ...]:
    """Return the parts of a completion that a reward looked at, in order; nothing where what it looks for is not there.

    Rewards for the answer look at the slot, those for the form at the tags. A function with an attribute `format` (an
    `AnswerFormat`) is taken to look at both. Of every other reward nobody knows, so it is the whole text.

    >>> from grpo_nb.rewards import correctness, length
    >>> spans(correctness(), "<answer>7</answer>"), spans(correctness(), "7")
    ((Span(start=8, end=9, what='answer slot'),), ())
    >>> spans(length(5), "so 7")
    (Span(start=0, end=4, what='whole text'),)
    """
    reward = unwrapped(reward)
    looks_at, format = getattr(reward, "looks_at", "slot and tags"), getattr(reward, "format", None)
    if looks_at == "text" or not isinstance(format, AnswerFormat):
        return (Span(0, len(text), WHOLE_TEXT),)
    found = [
        Span(*span, "tag")
        for span in format.tag_spans(text)
        if span is not None and "tags" in looks_at
    ]
    given = format.extract_last(text) if "slot" in looks_at else None
    if given is not None:
        start = text.find(given, text.find(format.answer_open) + len(format.answer_open))
        found.append(Span(start, start + len(given), "answer slot"))
    return tuple(sorted(found))
