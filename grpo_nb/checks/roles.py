"""Find out what a reward follows: right answers, the format, or neither.

Only completions of the same row with the same reasoning are compared. They differ in nothing but
the answer, or in nothing but the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.checks.probes import DO_NOT_KNOW, FILLERS, Layout

if TYPE_CHECKING:
    import pandas

FOLLOWS_ANSWER = "tells right from wrong"
FOLLOWS_FORMAT = "rewards the format, whatever the answer"
FOLLOWS_NEITHER = "follows neither right answers nor the format, in what was tried"

RELATIVE_TOLERANCE = 1e-3
"""Scores count as equal if they differ by at most this part of the reward's range.

Sums over a batch are not exact.
"""

SMALLEST_RANGE = 1e-3
"""Smallest range assumed for a reward, because a constant reward has rounding errors too."""

MIN_SHARE_FOLLOWED = 0.25
"""Smallest share of the gold answers that must score above wrong ones, if none scores below.

A reward may misread the others, such as `1,204`.
"""

ANSWER_DEPENDENT_PART = 0.5
"""A reward depends on the answer if another answer changes the score by this part of its range.

A length reward changes far less, because the answers have similar lengths.
"""


@dataclass(frozen=True)
class Role:
    """Role of a reward, derived from its scores for right answers, wrong answers and prose."""

    name: str
    """`FOLLOWS_ANSWER`, `FOLLOWS_FORMAT` or `FOLLOWS_NEITHER`."""
    layout: Layout
    """Layout that the reward reads, or the task's first layout if it reads none."""
    margins: pandas.DataFrame
    """The rows of the task on which the right answer scores higher than its reference.

    Columns: those of `best_scores`; `reference`, the score of the best wrong answer, or of prose
    for a format reward; and `gain`, the score that the right answer adds. No rows for
    `FOLLOWS_NEITHER`.
    """


def find_role(scored_probes: pandas.DataFrame, layouts: Sequence[Layout]) -> Role:
    """Return what a reward follows.

    `FOLLOWS_ANSWER`: in some layout, most gold answers score higher than wrong answers. At least
    two and `MIN_SHARE_FOLLOWED` are enough if none scores lower.
    `FOLLOWS_FORMAT`: in a layout of the task, all right answers score higher than prose, and more
    words of reasoning do not change the score.
    `FOLLOWS_NEITHER`: neither of these. An example is a reward for short completions.

    Args:
        scored_probes: A table of `ProbeRunner.table`.
        layouts: The task's own layouts come first.
    """
    tolerance = tolerance_of(scored_probes)
    rights = scored_probes[scored_probes["category"] == "right"]
    golds = rights.groupby("row_index")["variant"].first()
    for layout in layouts:
        margins = _margins(scored_probes, layout, "wrong")
        gains = margins["gain"]
        followed = margins[gains > tolerance]
        # Count gold answers, not rows: a reward for the most frequent label is right on most rows.
        gold_count = golds[margins.index].nunique()
        followed_count = golds[followed.index].nunique()
        is_for_most = followed_count > gold_count / 2
        # A reward that follows only one of several gold answers may just reward that label.
        is_for_several = followed_count >= max(2, MIN_SHARE_FOLLOWED * gold_count)
        if is_for_most or (is_for_several and gains.min() >= -tolerance):
            return Role(FOLLOWS_ANSWER, layout, followed)

    # A reward for length also prefers the format to prose, because the format is longer.
    is_for_length = is_length_dependent(scored_probes)
    for layout in layouts:
        margins = _margins(scored_probes, layout, "prose")
        is_better = margins["gain"].min() > tolerance
        if layout.is_own and is_better and not is_for_length:
            return Role(FOLLOWS_FORMAT, layout, margins)
    return Role(FOLLOWS_NEITHER, layouts[0], margins[:0])


def _margins(
    scored_probes: pandas.DataFrame, layout: Layout, reference_category: str
) -> pandas.DataFrame:
    """Return the margins of the right answers of all rows, as in `Role.margins`."""
    scores = best_scores(scored_probes, layout)
    reference = scores[reference_category]
    return scores.assign(reference=reference, gain=scores["right"] - reference)


def best_scores(scored_probes: pandas.DataFrame, layout: Layout) -> pandas.DataFrame:
    """Return the best scores of each row: of right and wrong answers, and of prose.

    Columns: `right` and `wrong` in this layout, and `prose`. None is 0, as in TRL's sum. A row is
    left out if its right answer got None, because another reward scores it, or if no wrong answer
    was tried, because the reward is slow.
    """
    tried = in_layout_or_prose(scored_probes, layout)
    scores = tried.groupby(["row_index", "category"])["score"]
    best = scores.max().unstack().reindex(columns=["right", "wrong", "prose"])
    is_compared = best.index.isin(tried["row_index"][tried["category"] == "wrong"])
    return best[is_compared].dropna(subset="right").fillna(0.0)


def in_layout_or_prose(scored_probes: pandas.DataFrame, layout: Layout) -> pandas.DataFrame:
    """Return the probes in a layout, and those without one: prose and hostile texts."""
    return scored_probes[scored_probes["layout"].isin([layout.name, ""])]


def tolerance_of(scored_probes: pandas.DataFrame) -> float:
    """Return the difference up to which two scores count as equal."""
    # If no score is known, the range is NaN, and `max` returns its first argument.
    known_range = max(SMALLEST_RANGE, score_range(scored_probes))
    return RELATIVE_TOLERANCE * known_range


def score_range(scored_probes: pandas.DataFrame) -> float:
    """Return the difference between the highest and the lowest score; NaN if none is known."""
    scores = scored_probes["score"]
    return scores.max() - scores.min()


def is_answer_dependent(scored_probes: pandas.DataFrame) -> bool:
    """Return True if another answer in the same words changes the score of some row a lot.

    "I do not know" in the slot counts as another answer, because a reward for any label scores
    right and wrong answers alike.
    """
    category = scored_probes["category"]
    is_answer = category.isin(["right", "wrong"]) | (scored_probes["variant"] == DO_NOT_KNOW)
    known_range = max(SMALLEST_RANGE, score_range(scored_probes[is_answer]))
    scores = scored_probes[is_answer].groupby(["layout", "row_index"])["score"]
    changes = scores.max() - scores.min()
    return bool(changes.max() > ANSWER_DEPENDENT_PART * known_range)


def is_length_dependent(scored_probes: pandas.DataFrame) -> bool:
    """Return True if more words of reasoning change the score of the same answer."""
    is_longer = (scored_probes["category"] == "growth") & scored_probes["variant"].isin(FILLERS)
    # If no such probe was scored, the change is NaN, which is never above the tolerance.
    change = score_range(scored_probes[is_longer])
    return bool(change > tolerance_of(scored_probes))
