"""Find out what a reward follows: right answers, the format, or neither.

Scores are compared on the same row and in the same words, so that only the answer, or only the
format, differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.checks.probes import IN_SLOT, THINK_FIRST, Layout

if TYPE_CHECKING:
    import pandas

ANSWER = "tells right from wrong"
FORMAT = "rewards the format, whatever the answer"
OTHER = "follows neither right answers nor the format, in what was tried"

RELATIVE_TOLERANCE = 1e-3
"""Scores that differ by less than this part of the reward's range are equal.

Sums over a batch are not exact.
"""

SMALLEST_RANGE = 1e-3
"""A range below this value counts as this value: a constant reward has rounding errors too."""

MIN_GOLDS_FOLLOWED = 2
"""A reward that is right for a single gold answer always rewards the same label."""

MIN_PART_FOLLOWED = 0.25
"""A reward that cannot read three of four gold answers does not tell right from wrong."""

MIN_LAYOUTS_FOR_LENGTH = 6
"""With fewer layouts tried, length cannot be told from format, so `follows_length` says no."""

ANSWER_DEPENDENT_PART = 0.5
"""A reward depends on the answer if another answer changes the score by this part of its range.

A length reward changes far less, because the answers have similar lengths.
"""

LENGTHENED = ["words", "steps", "the answer"]
"""Variants of `repetition is rewarded` that only lengthen the reasoning."""


@dataclass(frozen=True)
class Role:
    """Role of a reward, as its scores of right and wrong answers and of prose show it."""

    name: str
    """`ANSWER`, `FORMAT` or `OTHER`."""
    layout: Layout
    """Layout that the reward reads, or the task's first layout if it reads none."""
    margins: pandas.DataFrame
    """Rows on which the right answer scores higher than its baseline.

    Columns: `baseline`, the score of the best wrong answer, or of prose for a format reward; and
    `gain`, the score that the right answer adds. Index: the row.
    """


def find_role(probes: pandas.DataFrame, layouts: Sequence[Layout]) -> Role:
    """Return what a reward follows.

    `ANSWER`: in some layout, gold answers score higher than wrong answers. This must hold for most
    gold answers. Fewer are enough (at least two, and a quarter) if no wrong answer scores higher
    than the gold answer of its row.
    `FORMAT`: in a layout, all right answers score higher than prose.
    `OTHER`: neither of these. An example is a reward for short completions.

    Args:
        probes: A table of `ProbeRunner.table`.
        layouts: The task's own layouts come first.
    """
    tolerance = tolerance_of(probes)
    best = best_scores(probes).dropna(subset="right")
    # TRL adds up a missing score as 0.
    score_if_missing = min(0.0, probes["score"].min())
    over_wrong = _margins(best["right"], best["wrong"].fillna(score_if_missing))
    followed = over_wrong[over_wrong["gain"] > tolerance]
    # Count gold answers, not rows: a reward for the most frequent label is right on most rows.
    rights = probes[probes["kind"] == "right"].set_index(["layout", "row"])["variant"]
    golds = rights[best.index].groupby("layout").nunique()
    golds_followed = rights[followed.index].groupby("layout").nunique()
    golds_followed = golds_followed.reindex(golds.index, fill_value=0)
    is_for_most = golds_followed > golds / 2
    smallest_gains = over_wrong["gain"].groupby("layout").min()
    are_enough = golds_followed >= MIN_GOLDS_FOLLOWED
    are_a_part = golds_followed >= MIN_PART_FOLLOWED * golds
    is_for_several = are_enough & are_a_part & (smallest_gains >= -tolerance)
    is_answer = is_for_most | is_for_several
    for layout in layouts:
        if is_answer.get(layout.name, False):
            return Role(ANSWER, layout, followed.loc[layout.name])

    over_prose = _margins(best["right"], best["prose"].fillna(0.0))
    smallest_gains = over_prose["gain"].groupby("layout").min()
    is_format = smallest_gains > tolerance
    for layout in layouts:
        is_shown = layout.is_own or layout.name == THINK_FIRST
        if is_shown and is_format.get(layout.name, False) and not follows_length(probes):
            return Role(FORMAT, layout, over_prose.loc[layout.name])
    return no_role(layouts[0])


def no_role(layout: Layout) -> Role:
    """Return the role of a reward that follows nothing, or whose scores show nothing."""
    import pandas

    return Role(OTHER, layout, pandas.DataFrame({"baseline": [], "gain": []}, dtype=float))


def _margins(right: pandas.Series, baseline: pandas.Series) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame({"baseline": baseline, "gain": right - baseline})


def best_scores(probes: pandas.DataFrame) -> pandas.DataFrame:
    """Return the best finite scores of right and wrong answers, and of prose.

    Index: layout and row. Columns `right`, `wrong` and `prose`, the same in each layout; NaN where
    no completion has a finite score.
    """
    answers = probes[probes["kind"].isin(["right", "wrong"])]
    best = answers.groupby(["layout", "row", "kind"])["score"].max().unstack()
    best = best.reindex(columns=["right", "wrong"])
    prose = probes[probes["kind"] == "prose"]
    best_prose = prose.groupby("row")["score"].max()
    return best.join(best_prose.rename("prose"), on="row")


def tolerance_of(probes: pandas.DataFrame) -> float:
    """Return the difference up to which two scores count as equal."""
    known_range = max(SMALLEST_RANGE, score_range(probes))
    return RELATIVE_TOLERANCE * known_range


def score_range(probes: pandas.DataFrame) -> float:
    """Return the difference between the highest and the lowest finite score."""
    scores = probes["score"]
    return scores.max() - scores.min()


def is_answer_dependent(probes: pandas.DataFrame) -> bool:
    """Return whether another answer in the same words changes the score by much.

    It must do so on most rows, in at least one layout.
    """
    controls = probes[probes["kind"].isin(["right", "wrong", "prose"])]
    known_range = max(SMALLEST_RANGE, score_range(controls))
    large_change = ANSWER_DEPENDENT_PART * known_range
    answers = controls[controls["kind"] != "prose"]
    scored = answers.dropna(subset="score")
    scores = scored.groupby(["layout", "row"])["score"]
    ranges = scores.max() - scores.min()
    is_changed = ranges > large_change
    changed_shares = is_changed.groupby("layout").mean()
    return bool(changed_shares.max() > 0.5)


def is_length_dependent(probes: pandas.DataFrame) -> bool:
    """Return whether more words of reasoning change the score of the same answer."""
    repeated = probes[probes["kind"] == "repetition is rewarded"]
    longer = repeated[repeated["variant"].isin(LENGTHENED)]
    return bool(score_range(longer) > tolerance_of(probes))


def is_phrase_dependent(probes: pandas.DataFrame) -> bool:
    """Return whether some phrase in the reasoning changes the score of the same answer."""
    with_phrase = probes[probes["kind"] == "a phrase is rewarded"]
    is_in_slot = with_phrase["variant"].str.endswith(IN_SLOT)
    in_reasoning = with_phrase[~is_in_slot]
    return bool(score_range(in_reasoning) > tolerance_of(probes))


def follows_length(probes: pandas.DataFrame) -> bool:
    """Return whether the length of a text alone explains the scores of right answers and prose.

    Texts in the layouts of other prompts count too: a reward for the format gives them nothing,
    though they are as long. Two levels are no evidence: a format reward also scores one layout,
    perhaps the longest, higher than the rest.
    """
    texts = probes[probes["kind"].isin(["right", "prose"])]
    if texts["layout"].nunique() <= MIN_LAYOUTS_FOR_LENGTH:  # prose is in no layout
        return False
    scored = texts.dropna(subset="score")
    scored = scored.assign(length=scored["text"].str.len())
    tolerance = tolerance_of(probes)
    for _, row in scored.groupby("row"):
        scores = row.sort_values(["length", "score"])["score"]
        levels = (scores / tolerance).round().nunique()
        is_monotonic = scores.is_monotonic_increasing or scores.is_monotonic_decreasing
        if levels <= 2 or not is_monotonic:
            return False
    return not scored.empty
