"""Keep a person's scores of completions in a .csv file that `gn.checks.agreement` reads."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.checks.judge_agreement import hand_scores
from grpo_nb.core.files import write_text
from grpo_nb.core.words import require_choice, require_number
from grpo_nb.tasks.read_rows import read_rows

CHOICES = (1, 2, 3, 4, 5)
"""Scores offered. `agreement` compares the order of scores, so a judge may have another scale."""


@dataclass
class HandScores:
    """Scores by hand, the oldest first.

    Raises:
        ValueError: The file is not a .csv file, has no column `completion`, or has a score that is
            not between the first and the last of `CHOICES`.
    """

    file: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows with `question`, `completion`, `score` and the other columns of the file."""

    def __post_init__(self) -> None:
        # Scores are written as CSV, and `read_rows` chooses how to read a file by its ending.
        require_choice("the ending of labels", self.file.suffix.lower(), [".csv"])
        # pandas raises an error for a file without a header line.
        if self.file.is_file() and self.file.read_bytes().strip():
            self.rows = read_rows(self.file).rows
            if self.rows and "completion" not in self.rows[0]:
                raise ValueError(f"{self.file} has no column 'completion' with the scored texts")
        for score in hand_scores(self.rows):
            # Scores on two scales have no common order.
            if score is not None and not CHOICES[0] <= score <= CHOICES[-1]:
                raise ValueError(
                    f"{self.file} has the score {score:g}, but scores in the lab are between "
                    f"{CHOICES[0]} and {CHOICES[-1]}. Pass a new file: labels=..."
                )

    def scores_of(self, question: str, completions: Sequence[str]) -> list[float | None]:
        """Return the score of each completion of a question; None for one without a score."""
        scores = {}
        for row, score in zip(self.rows, hand_scores(self.rows), strict=True):
            # Later rows overwrite earlier ones, so the latest score of a text counts.
            if row.get("question") == question and score is not None:
                scores[row["completion"]] = score
        return [scores.get(completion) for completion in completions]

    def add(self, question: str, completion: str, score: float) -> None:
        """Add the score of a completion and save all scores.

        Raises:
            ValueError: The score is not between the first and the last of `CHOICES`.
        """
        import pandas

        require_number("score", score, CHOICES[0], CHOICES[-1])
        new = {"question": question, "completion": completion, "score": float(score)}
        rows = [*self.rows, new]
        table = pandas.DataFrame(rows)
        # Saved at once, because a kernel may die while somebody scores a hundred texts. With
        # quotes, because spaces at the start of a text are part of it.
        write_text(self.file, table.to_csv(index=False, quoting=csv.QUOTE_ALL))
        self.rows = rows
