"""The rows that `check_rewards` tries, spread over the whole task, with their gold answers and wrong ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.probes import Probe, wrong_answers
from grpo_nb.core.words import in_line
from grpo_nb.rewards.calls import Batch, make_batch
from grpo_nb.tasks.read_rows import read_rows
from grpo_nb.tasks.task import Task

_TRIED, _READ, _FORMS = 24, 200, 4


def rows_of(task: Any) -> Sequence[Mapping[str, Any]]:
    """Return the training rows of a task, or rows from whatever holds them; a `datasets.Dataset` stays as it is.

    Raises:
        TypeError, ValueError: Nothing that holds rows, or none in it.
    """
    if isinstance(task, Task):
        rows = task.train
    else:
        rows = task if hasattr(task, "features") and hasattr(task, "to_pandas") else read_rows(task).rows
    if not len(rows):
        raise ValueError("the task has no rows: rewards are tried on your own rows, at least one.")
    return rows


@dataclass(frozen=True)
class Rows:
    """Rows with their gold answers, those with answers of different forms first."""

    rows: list[dict[str, Any]]
    golds: list[str]
    accepted: list[list[str]]
    """What is right in a row: the gold answer, and the others of a list that holds it."""
    every_gold: list[str]
    """Of up to 200 rows."""
    tokenizer: Any = None

    @classmethod
    def take(cls, task: Any, answer: str | Callable[..., Any], tokenizer: Any = None) -> Rows:
        """Take rows from all over a task, one of each of so many equal stretches: a file may be sorted by its labels.

        Args:
            task: A task, or rows.
            answer: The column with the gold answer, or a function of the row.
            tokenizer: For token ids; words and marks stand in for them without.

        Raises:
            TypeError, ValueError: No rows, no such column, or no gold answer in it.
        """
        held, draw = rows_of(task), random.Random(0)
        count = min(len(held), _READ)
        # Each at random, but always the same: every fifth row of labels that take turns may be one label.
        drawn = [draw.randrange(i * len(held) // count, (i + 1) * len(held) // count) for i in range(count)]
        rows = [dict(held[i]) for i in drawn]
        if not callable(answer) and answer not in rows[0]:
            raise ValueError(
                f'the rows have no column {answer!r} but {sorted(rows[0])}. Write answer="<the one with the gold answer>", '
                "or a function of the row."
            )
        cells = [_texts(answer(row) if callable(answer) else row[answer]) for row in rows]
        there = [i for i in range(count) if cells[i]]
        if not there:
            raise ValueError(f"no row has a gold answer in {in_line(answer)}: rewards are tried with the right answer.")
        first = list({cells[i][0]: i for i in reversed(there)}.values())[::-1]
        more = [i for i in there if i not in first]
        # Answers of different forms first: 3/4, 3 kg, 3 %.
        forms = list({re.sub(r"[\d.,+-]+", "", cells[i][0]): i for i in first}.values())[:_FORMS]
        spread = [i for part in (first, more) for i in part[:: max(1, len(part) // _TRIED)]]
        chosen = list(dict.fromkeys([*forms, *spread]))[:_TRIED]
        lists = {i: [cells[i], *map(_texts, rows[i].values())] for i in chosen}
        accepted = [[text for texts in lists[i] if cells[i][0] in texts for text in texts] for i in chosen]
        golds = [cells[i][0] for i in chosen]
        begun = task.begun if isinstance(task, Task) else dict
        return cls([begun(rows[i]) for i in chosen], golds, accepted, [cells[i][0] for i in there], tokenizer)

    def wrong(self, row: int) -> list[str]:
        """Wrong answers of a row, only those as long as the gold one where there are enough."""
        gold, accepted = self.golds[row], self.accepted[row]
        wrong = wrong_answers(gold, [other for other in self.every_gold if other not in accepted])
        wrong = [answer for answer in wrong if answer not in accepted] or ["none of these"]
        alike = [answer for answer in wrong if len(answer) == len(gold)]
        return alike if len(alike) >= 2 else wrong

    def question(self, row: int) -> str:
        """What the row asks, as text."""
        prompt = self.rows[row].get("prompt", "")
        turns = prompt if isinstance(prompt, (list, tuple)) else [{"content": prompt}]
        return str(self.rows[row].get("question") or turns[-1]["content"])

    def batch(self, probes: Sequence[Probe]) -> Batch:
        """Return the call of a reward on these probes, each with the columns of its row."""
        rows, texts = [self.rows[probe.row] for probe in probes], [probe.text for probe in probes]
        prompts = None if {"prompt", "question"} & set(rows[0]) else [""] * len(rows)
        ids = None
        if self.tokenizer is None:
            # As many as there are words and marks; the values only have to be ids of any tokenizer.
            ids = [[len(word) % 1000 for word in re.findall(r"\w+|\W", text)] for text in texts]
        return make_batch(texts, rows, prompts=prompts, completion_ids=ids, tokenizer=self.tokenizer)


def _texts(cell: Any) -> list[str]:
    """The answers in a cell as texts: one, several of a list, or none."""
    held = cell if isinstance(cell, (list, tuple)) else [cell]
    return [text for one in held if one is not None and (text := str(one).strip())]
