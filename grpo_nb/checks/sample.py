"""The rows that `check_rewards` tries, with their gold and wrong answers, and the probes made from them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grpo_nb.checks import probes as make
from grpo_nb.checks.probes import Probe
from grpo_nb.rewards import Batch, make_batch
from grpo_nb.tasks import AnswerFormat, Task, xml

_TRIED_ROWS = 4
_GOLDS_FROM_ROWS = 200


class Sample:
    """The rows that are tried, with their gold and wrong answers, and the probes made from them.

    Args:
        task: A task, or rows; some with different answers are tried.
        format: In which the probes are written; that of the task, or `xml()`, if not given.
        answer: The column with the gold answer, or a function of the row.
        tokenizer: For token ids; words and marks stand in for them without.
    """

    def __init__(
        self,
        task: Task | Iterable[Mapping[str, Any]],
        format: AnswerFormat | None,
        answer: str | Callable[[Mapping[str, Any]], str],
        tokenizer: Any,
    ) -> None:
        is_task = isinstance(task, Task)
        rows = [dict(row) for row in itertools.islice(task.train if is_task else task, _GOLDS_FROM_ROWS)]
        if not rows:
            raise ValueError("the task has no rows: rewards are checked on your own rows, at least one.")
        if not callable(answer) and answer not in rows[0]:
            raise ValueError(
                f'the rows have no column {answer!r} but {sorted(rows[0])}. Write answer="<the one with the gold answer>", '
                "or a function of the row."
            )
        self.format = format = format or (task.format if is_task else xml())
        self.tokenizer, self._ids = tokenizer, {}
        every_gold = [_gold_text(answer(row) if callable(answer) else row[answer], format) for row in rows]
        # Rows with different answers, spread over those that were read.
        distinct = list({gold: i for i, gold in reversed(list(enumerate(every_gold)))}.values())[::-1]
        step = max(1, len(distinct) // _TRIED_ROWS)
        chosen = distinct[::step][:_TRIED_ROWS]
        self.rows, self.golds = [rows[i] for i in chosen], [every_gold[i] for i in chosen]
        self.controls: list[Probe] = []
        self.ordinary: list[Probe] = []
        self.elsewhere: list[Probe] = []
        self.hostile = list(make.hostile(0, format, self.golds[0]))
        for i, (row, gold) in enumerate(zip(self.rows, self.golds, strict=True)):
            wrong = make.wrong_answers(gold, every_gold)
            alike = [other for other in wrong if len(other) == len(gold)]
            wrong = alike if len(alike) >= 2 else wrong
            self.controls += make.controls(i, format, gold, wrong)
            self.ordinary += make.harmless(i, format, gold, wrong)
            self.ordinary += make.cheats(i, format, gold, wrong, every_gold, *_asked(row))
            self.ordinary += make.formed(i, format, gold, wrong[0]) if i == 0 else []
            self.elsewhere += make.other_containers(i, gold, wrong)

    def batch(self, probes: Sequence[Probe]) -> Batch:
        """Return the call of a reward on these probes, each with the columns of its row."""
        rows = [self.rows[probe.row] for probe in probes]
        texts = [probe.text for probe in probes]
        prompts = [row.get("prompt", row.get("question", "")) for row in rows]
        ids = [self._stand_in_ids(text) for text in texts] if self.tokenizer is None else None
        return make_batch(texts, rows, prompts=prompts, completion_ids=ids, tokenizer=self.tokenizer)

    def _stand_in_ids(self, text: str) -> list[int]:
        if text not in self._ids:
            # As many as there are words and marks; the values only have to be ids of any tokenizer.
            self._ids[text] = [len(word) % 1000 for word in re.findall(r"\w+|\W", text)]
        return self._ids[text]


def _asked(row: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt and the question of a row as texts."""
    prompt, question = row.get("prompt"), row.get("question")
    if not isinstance(prompt, (list, tuple)):
        return str(prompt or ""), str(question or prompt or "")
    turns = [str(turn.get("content", "")) for turn in prompt]
    return "\n".join(turns), str(question or (turns[-1] if turns else ""))


def _gold_text(gold: Any, format: AnswerFormat) -> str:
    """A list of accepted answers is represented by its first; a slot that ends with its line holds no more than a line."""
    if isinstance(gold, (list, tuple)) and gold:
        gold = gold[0]
    text = str(gold).strip()
    return text if format.answer_close else text.split("\n", 1)[0]
