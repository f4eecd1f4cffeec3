"""Keep a person's scores of completions in a .csv file that `gn.checks.agreement` reads."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from grpo_nb.checks.judge_agreement import score_by_hand
from grpo_nb.core.files import write_text
from grpo_nb.core.words import require_number
from grpo_nb.tasks.read_rows import read_rows

MAX_CHOICES = 11
"""A scale of at most this many scores at a distance of 1, such as 0 to 10, offers each of them."""

CHOICES_OF_OTHER_SCALES = 5
"""Choices on any other scale: both ends, the middle and the quarters."""

DEFAULT_SCALE = (1, 5)
COLUMNS = ("question", "completion", "score")


@dataclass
class HandLabels:
    """Scores by hand, the oldest first."""

    file: Path
    scale: tuple[float, float] = DEFAULT_SCALE
    """Worst and best score."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows with `question`, `completion`, `score` and the other columns of the file."""

    def __post_init__(self) -> None:
        if self.file.is_file():
            self.rows = read_rows(self.file).rows
        if any("completion" not in row for row in self.rows):
            raise ValueError(
                f"{self.file} has no column 'completion', so its scores belong to no text. Pass "
                "RewardLab(rewards, task, labels=...) a new file, or one with the columns "
                f"{', '.join(COLUMNS)}."
            )
        self._added = 0
        """Number of scores given since the file was read. Their rows are the last ones."""

    @property
    def choices(self) -> list[float]:
        """Scores to choose from, at equal distances."""
        low, high = self.scale
        # A reader of a scale from 0 to 100 cannot tell 41 from 42, so few choices are offered.
        length = float(high - low)
        has_few_steps = length.is_integer() and length < MAX_CHOICES
        count = int(length) + 1 if has_few_steps else CHOICES_OF_OTHER_SCALES
        return numpy.linspace(low, high, count).tolist()

    def scores_of(self, question: str, completions: Sequence[str]) -> list[float | None]:
        """Return the score of each completion of a question; None for one without a score."""
        scores = {}
        for row in self.rows:
            # The latest score of a text counts: later rows overwrite earlier ones.
            if row.get("question") == question and score_by_hand(row) is not None:
                scores[row["completion"]] = score_by_hand(row)
        return [scores.get(completion) for completion in completions]

    def add(self, question: str, completion: str, score: float) -> None:
        """Score a completion and save all.

        Raises:
            ValueError: The score is not on the scale.
        """
        require_number("score", score, *self.scale, is_whole=False)
        self.rows.append({"question": question, "completion": completion, "score": float(score)})
        self._added += 1
        # Saved at once, because a kernel may die while somebody scores a hundred texts.
        self._save()

    def undo(self) -> None:
        """Remove the latest score and save the others. Scores read from the file stay.

        Raises:
            ValueError: No score has been given since the file was read.
        """
        if not self._added:
            raise ValueError(
                f"there is no score to undo. Scores of an earlier session stay in {self.file}: "
                "edit them there."
            )
        self.rows.pop()
        self._added -= 1
        self._save()

    def _save(self) -> None:
        import pandas

        table = pandas.DataFrame(self.rows, columns=None if self.rows else COLUMNS)
        # With quotes, because spaces at the start of a text are part of it.
        write_text(self.file, table.to_csv(index=False, quoting=csv.QUOTE_ALL))
