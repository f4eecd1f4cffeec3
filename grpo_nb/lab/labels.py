"""Keep a person's scores of completions in a .csv file that `gn.checks.agreement` reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.core.files import write_text
from grpo_nb.core.words import require_number
from grpo_nb.tasks.read_rows import read_rows

MAX_CHOICES = 11
"""A scale with at most this many whole numbers, such as 0 to 10, has a choice for each of them."""

CHOICES_OF_LONG_SCALE = 5
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

    @property
    def has_whole_choices(self) -> bool:
        """True if the choices are all whole numbers of the scale."""
        low, high = self.scale
        are_whole = float(low).is_integer() and float(high).is_integer()
        return are_whole and high - low + 1 <= MAX_CHOICES

    @property
    def choices(self) -> list[float]:
        """Scores to choose from."""
        low, high = self.scale
        if self.has_whole_choices:
            return list(range(int(low), int(high) + 1))
        step = (high - low) / (CHOICES_OF_LONG_SCALE - 1)
        inner = [float(f"{low + i * step:.6g}") for i in range(CHOICES_OF_LONG_SCALE - 1)]
        return [*inner, high]

    def score_of_key(self, key: str) -> float | None:
        """Return the score that a key stands for; None for any other key.

        A digit is the score itself if the choices are whole numbers, and else the number of the
        choice, from 1.
        """
        if not key.isdecimal():
            return None
        if self.has_whole_choices:
            return int(key)
        return dict(enumerate(self.choices, 1)).get(int(key))

    def scores_of(self, question: str, completions: Sequence[str]) -> list[float | None]:
        """Return the score of each completion of a question; None for one without a score."""
        given = {}
        for row in self.rows:
            if row.get("question") == question and row["score"] not in (None, ""):
                given[row["completion"]] = float(row["score"])
        return [given.get(completion) for completion in completions]

    def add(self, question: str, completion: str, score: float) -> None:
        """Add a score and save all.

        Raises:
            ValueError: The score is not on the scale.
        """
        require_number("score", score, *self.scale, is_whole=False)
        self.rows.append({"question": question, "completion": completion, "score": float(score)})
        self._save()

    def remove_last(self) -> None:
        """Remove the latest score and save the others."""
        del self.rows[-1:]
        self._save()

    def _save(self) -> None:
        import pandas

        # The file that was read may have other columns than the rows that were added to it.
        names = [name for row in self.rows for name in row]
        columns = list(dict.fromkeys(names)) or list(COLUMNS)
        table = pandas.DataFrame(self.rows, columns=columns)
        # With quotes, because spaces at the start of a text are part of it.
        write_text(self.file, table.to_csv(index=False, quoting=1))
