"""Write the content of the reward lab's views as HTML.

The templates escape everything that a model, a user or a data set wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from grpo_nb.core.pages import render
from grpo_nb.core.words import format_score, shorten
from grpo_nb.rewards.answers import SlotReward
from grpo_nb.rewards.base import RewardFunction, unwrap_partial
from grpo_nb.rewards.format_rewards import exact_format, partial_format
from grpo_nb.scoring.advantages import NO_PUSH_BELOW, effect_in_words
from grpo_nb.scoring.scores import Scores


def scores_html(scores: Scores) -> str:
    """Return a table with every score, total and advantage, one line per completion."""
    advantages = scores.advantages()
    # Nothing can be learned from a group of equal totals, and the view says so.
    are_equal = max(map(abs, advantages)) < NO_PUSH_BELOW
    return render(
        "lab/templates/scores.jinja",
        scores=scores,
        texts=[" ".join(text.split()) or "(empty)" for text in scores.completions],
        advantages=advantages,
        effects=[effect_in_words(advantage) for advantage in advantages],
        are_equal=are_equal,
        format_score=format_score,
        shorten=shorten,
    )


class Mark(NamedTuple):
    """A part of a completion that a reward looked at."""

    start: int
    end: int
    css_class: str
    title: str
    """Each reward that looked at the part, with its weighted score."""


def marks_html(scores: Scores, rewards: Sequence[RewardFunction]) -> str:
    """Return each completion with the parts marked that a reward looked at."""
    completions = []
    for i, text in enumerate(scores.completions):
        marks = []
        for name, reward in zip(scores.values, rewards, strict=True):
            weighted_score = scores.weights[name] * scores.values[name][i]
            # nan: the reward gave this completion no score, so there is nothing to explain.
            if not math.isnan(weighted_score):
                marks += marks_of(reward, name, weighted_score, text)
        completions.append(split_at_marks(text, marks))
    return render("lab/templates/marks.jinja", completions=completions)


def marks_of(reward: RewardFunction, name: str, weighted_score: float, text: str) -> list[Mark]:
    """Return marks for the answer slot or for the tags, whichever the reward scores.

    Any other reward may read any part of the text, so nothing is marked for it.

    >>> from grpo_nb.rewards import correctness
    >>> marks_of(correctness(), "correctness", 2.0, "<answer>7</answer>")
    [Mark(start=8, end=9, css_class='gn-earned', title='correctness: answer slot, +2')]
    """
    reward = unwrap_partial(reward)
    spans = []
    part = "tag"
    if isinstance(reward, (exact_format, partial_format)):
        spans = [span for span in reward.format.tag_spans(text) if span is not None]
    elif isinstance(reward, SlotReward) and (answer := reward.format.extract_final(text)):
        part = "answer slot"
        # The same answer may also be in the reasoning, so search after the opening of the slot.
        opening = reward.format.answer_open
        start = text.find(answer, text.find(opening) + len(opening))
        spans = [(start, start + len(answer))]
    # One class for points, one for a penalty, and one for neither.
    css_class = "gn-nothing"
    if weighted_score:
        css_class = "gn-earned" if weighted_score > 0 else "gn-lost"
    title = f"{name}: {part}, {weighted_score:+.4g}"
    return [Mark(start, end, css_class, title) for start, end in spans]


def split_at_marks(text: str, marks: Sequence[Mark]) -> list[tuple[str, Mark | None]]:
    """Split a text into pieces, each with its mark; None for a piece without a mark.

    Marks of the same part become one mark with all their titles. Of other overlapping marks, the
    one that starts first is kept.
    """
    pieces = []
    end = 0
    for (start, stop), group in groupby(sorted(marks), key=lambda mark: mark[:2]):
        if start >= end:
            same = list(group)
            title = "; ".join(mark.title for mark in same)
            pieces.append((text[end:start], None))
            # The last class in the alphabet is `gn-nothing`: a reward that was not earned is shown.
            pieces.append((text[start:stop], same[-1]._replace(title=title)))
            end = stop
    pieces.append((text[end:], None))
    return [(piece, mark) for piece, mark in pieces if piece]
