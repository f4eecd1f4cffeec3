"""The measures of held-out answers: their names, their keys in a row, and their text in tables."""

from collections.abc import Sequence
from typing import NamedTuple


class HoldoutMeasure(NamedTuple):
    """A measure of held-out answers."""

    name: str
    """Name in `Evaluation.share_of` and in comparison.json."""
    label: str
    """Name that users see."""
    column: str
    """Column of `Evaluation.rows` with the grade of each answer."""

    @property
    def row_key(self) -> str:
        """Key of the share in a row of a run."""
        return f"holdout/{self.name}"

    @property
    def interval_keys(self) -> list[str]:
        """Keys of the lower and upper end of the 95 % interval in a row of a run."""
        return [f"{self.row_key}_low", f"{self.row_key}_high"]


#: The measures of held-out answers, in the order in which they are shown. Answers can improve in
#: format without being right more often, so every text shows all measures.
HOLDOUT_MEASURES = (
    HoldoutMeasure("accuracy", label="correct", column="is_correct"),
    HoldoutMeasure("in_format", label="in the format", column="is_formatted"),
    HoldoutMeasure("anywhere", label="correct anywhere", column="is_correct_anywhere"),
)
#: Key of the share of correct answers in a row of a run.
ACCURACY_KEY = HOLDOUT_MEASURES[0].row_key


def percent_text(share: float | None, interval: Sequence[float] | None) -> str:
    """Return a share in percent for tables, with its interval if there is one."""
    if share is None:
        return "not measured"
    if interval is None:
        return f"{share:.1%}"
    low, high = interval
    return f"{share:.1%} ({low:.1%} to {high:.1%})"
