"""Keep a person's scores of completions in a .csv file that `gn.checks.agreement` reads."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_nb.checks.judge_agreement import parse_scores
from grpo_nb.core.files import write_text
from grpo_nb.core.words import require_choice, require_number
from grpo_nb.tasks.read_rows import Row, read_rows

SCORE_CHOICES = (1, 2, 3, 4, 5)
"""Scores offered. `agreement` compares the order of scores, so a judge may have another scale."""


@dataclass
class HandScoreFile:
    """A file with scores by hand, the oldest first.

    Raises:
        ValueError: The file is not a .csv file, has no column `completion`, or has a score that is
            not between the first and the last of `SCORE_CHOICES`.
    """

    path: Path
    rows: list[Row] = field(default_factory=list)
    """Rows with `question`, `completion`, `score` and the other columns of the file."""

    def __post_init__(self) -> None:
        # Scores are written as CSV, and `read_rows` chooses how to read a file by its ending.
        require_choice("the ending of hand_scores", self.path.suffix.lower(), [".csv"])
        # pandas raises an error for a file without a header line.
        if self.path.is_file() and self.path.read_bytes().strip():
            self.rows = read_rows(self.path).rows
            if self.rows and "completion" not in self.rows[0]:
                raise ValueError(f"{self.path} has no column 'completion' with the scored texts")
        for score in parse_scores(self.rows):
            # Scores on two scales have no common order.
            if score is not None and not SCORE_CHOICES[0] <= score <= SCORE_CHOICES[-1]:
                raise ValueError(
                    f"{self.path} has the score {score:g}, but scores in the lab are between "
                    f"{SCORE_CHOICES[0]} and {SCORE_CHOICES[-1]}. Pass a new file: hand_scores=..."
                )

    def scores_of(self, question: str, completions: Sequence[str]) -> list[float | None]:
        """Return the score of each completion of a question; None for one without a score."""
        scores = {}
        for row, score in zip(self.rows, parse_scores(self.rows), strict=True):
            # Later rows overwrite earlier ones, so the latest score of a text counts.
            if row.get("question") == question and score is not None:
                scores[row["completion"]] = score
        return [scores.get(completion) for completion in completions]

    def add(self, question: str, completion: str, score: float) -> None:
        """Add the score of a completion and save all scores.

        Raises:
            ValueError: The score is not between the first and the last of `SCORE_CHOICES`.
        """
        import pandas

        require_number("score", score, SCORE_CHOICES[0], SCORE_CHOICES[-1])
        new = {"question": question, "completion": completion, "score": float(score)}
        rows = [*self.rows, new]
        table = pandas.DataFrame(rows)
        # Saved at once, because a kernel may die while somebody scores a hundred texts. With
        # quotes, because spaces at the start of a text are part of it.
        write_text(self.path, table.to_csv(index=False, quoting=csv.QUOTE_ALL))
        self.rows = rows
