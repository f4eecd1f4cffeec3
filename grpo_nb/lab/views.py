"""Write the views of the reward lab as HTML.

The templates escape everything that a model, a user or a data set wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_nb.core.pages import errors_view as show_tracebacks
from grpo_nb.core.pages import last_lines, render
from grpo_nb.core.words import as_score, shorten
from grpo_nb.rewards.answers import SlotReward
from grpo_nb.rewards.base import RewardFunction, unwrap_partial
from grpo_nb.rewards.format_and_length import xml_format, xml_tags
from grpo_nb.scoring.scores import NO_SPREAD, RewardError, Scores

MESSAGE_LENGTH = 300
"""Characters shown of the message of a reward's error."""


def push(advantage: float) -> str:
    """Return in words what training does to a completion with this advantage.

    >>> push(0.7), push(-0.7), push(0.0)
    ('more likely', 'less likely', 'not moved')
    """
    if abs(advantage) < NO_SPREAD:
        return "not moved"
    return "more likely" if advantage > 0 else "less likely"


def scores_view(scores: Scores, advantages: Sequence[float]) -> str:
    """Return a table with every score, total and advantage, one line per completion."""
    lines = []
    for i, text in enumerate(scores.completions):
        # `row` is None if the reward failed on the whole group, so each line has no score.
        failed = [error.reward for error in scores.errors if error.row in (None, i)]
        line = {
            "text": " ".join(text.split()) or "(empty)",
            "failed": failed,
            "push": "unknown" if failed else push(advantages[i]),
        }
        lines.append(line)
    return render(
        "lab/templates/scores.jinja",
        scores=scores,
        advantages=advantages,
        lines=lines,
        note=_note_on_group(scores),
        number=as_score,
        shorten=shorten,
    )


def _note_on_group(scores: Scores) -> str:
    if scores.errors:
        return (
            "A reward failed, and a trainer would stop here. The advantages are those of the other "
            "completions."
        )
    if len(scores) == 1:
        return (
            "With one completion there is nothing to compare, so its advantage is 0. Add another "
            "one, or sample a group."
        )
    known = [total for total in scores.totals if not math.isnan(total)]
    if known and max(known) - min(known) < NO_SPREAD:
        return (
            "All totals are equal, so every advantage is 0 and GRPO learns nothing from this group."
        )
    return ""


def errors_view(errors: Sequence[BaseException]) -> str:
    """Return the errors with the ends of their tracebacks; empty if there are none.

    For an error of a reward, the reward and the completion are named.
    """
    parts = []
    for error in errors:
        if not isinstance(error, RewardError):
            parts.append(show_tracebacks([error]))
            continue
        cause = error.__cause__ or error
        part = render(
            "lab/templates/failure.jinja",
            error=error,
            kind=type(cause).__name__,
            cause=shorten(str(cause), MESSAGE_LENGTH),
            trace=last_lines(cause),
        )
        parts.append(part)
    return "".join(parts)


class Piece(NamedTuple):
    """A piece of a completion."""

    text: str
    css_class: str = ""
    title: str = ""
    """Rewards that looked at the piece; empty for text that none looked at."""


class Span(NamedTuple):
    """A part of a completion that a reward reads."""

    start: int
    end: int
    what: str
    """`tag` or `answer slot`."""


class Mark(NamedTuple):
    """A part of a completion that a reward looked at."""

    span: Span
    earned: float
    """Weighted score of the reward."""
    reward: str


def marks_view(scores: Scores, rewards: Mapping[str, Callable[..., Any]]) -> str:
    """Return each completion with the parts marked that a reward looked at."""
    completions = []
    for i, text in enumerate(scores.completions):
        marks = []
        for name, reward in rewards.items():
            earned = scores.weights[name] * scores.values[name][i]
            marks += [Mark(span, earned, name) for span in spans_read(reward, text)]
        completions.append(split_at_marks(text, marks))
    return render("lab/templates/marks.jinja", completions=completions)


def spans_read(reward: RewardFunction, text: str) -> list[Span]:
    """Return the answer slot for a reward for the answer, and the tags for one for the format.

    Any other reward may read anything, so nothing is marked for it.

    >>> from grpo_nb.rewards import correctness
    >>> spans_read(correctness(), "<answer>7</answer>"), spans_read(correctness(), "7")
    ([Span(start=8, end=9, what='answer slot')], [])
    """
    reward = unwrap_partial(reward)
    if isinstance(reward, (xml_format, xml_tags)):
        tags = [tag for tag in reward.format.tag_spans(text) if tag is not None]
        return [Span(start, end, "tag") for start, end in tags]
    answer = reward.format.extract_last(text) if isinstance(reward, SlotReward) else None
    if answer is None:
        return []
    # The same answer may also be in the reasoning, so search behind the opening of the slot.
    opening = text.find(reward.format.answer_open)
    start = text.find(answer, opening + len(reward.format.answer_open))
    return [Span(start, start + len(answer), "answer slot")]


def split_at_marks(text: str, marks: Sequence[Mark]) -> list[Piece]:
    """Split a text into marked and unmarked pieces.

    Of overlapping marks, the one that starts first is kept.

    >>> split_at_marks("b7", [Mark(Span(1, 2, "answer slot"), 2.0, "correctness")])[1]
    Piece(text='7', css_class='gn-earned', title='correctness: answer slot, +2')
    """
    pieces = []
    end = 0
    for span, earned, reward in sorted(marks):
        if span.start < end or span.end <= span.start:
            continue
        css_class = "gn-nothing"  # zero, or no score
        if earned > 0:
            css_class = "gn-earned"
        elif earned < 0:
            css_class = "gn-lost"
        score = "no score" if math.isnan(earned) else f"{earned:+.4g}"
        pieces.append(Piece(text[end : span.start]))
        title = f"{reward}: {span.what}, {score}"
        pieces.append(Piece(text[span.start : span.end], css_class, title))
        end = span.end
    pieces.append(Piece(text[end:]))
    return [piece for piece in pieces if piece.text]
