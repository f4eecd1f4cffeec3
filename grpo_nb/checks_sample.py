"""The rows that `check_rewards` tries, with their gold and wrong answers, and the probes made from them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grpo_nb import probes as make
from grpo_nb.data import Task
from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.probes import Probe
from grpo_nb.reward_calls import Batch, make_batch

_TRIED_ROWS = 4
_GOLDS_FROM_ROWS = 200


class Sample:
    """The rows that are tried, with their gold and wrong answers, and how a batch of probes is made from them."""

    def __init__(
        self, rows: list[dict[str, Any]], golds: list[str], every_gold: list[str], format: AnswerFormat, tokenizer: Any
    ) -> None:
        self.rows, self.golds, self.format, self.tokenizer = rows, golds, format, tokenizer
        self.every_gold = every_gold
        self._ids: dict[str, list[int]] = {}
        self.wrong = []
        for gold in golds:
            wrong = make.wrong_answers(gold, every_gold)
            alike = [answer for answer in wrong if len(answer) == len(gold)]
            self.wrong.append(alike if len(alike) >= 2 else wrong)

    @classmethod
    def of(
        cls,
        task: Task | Iterable[Mapping[str, Any]],
        format: AnswerFormat | None,
        answer: str | Callable[[Mapping[str, Any]], str],
        tokenizer: Any,
    ) -> Sample:
        if isinstance(task, Task):
            source: Iterable[Mapping[str, Any]] = task.train
            format = format or task.format
        else:
            source = task
        rows = [dict(row) for row in itertools.islice(source, _GOLDS_FROM_ROWS)]
        if not rows:
            raise ValueError("the task has no rows: rewards are checked on your own rows, at least one.")
        if not callable(answer) and answer not in rows[0]:
            raise ValueError(
                f'the rows have no column {answer!r} but {sorted(rows[0])}. Write answer="<the one with the gold answer>", '
                "or a function of the row."
            )
        format = format or xml()
        golds = [_gold_text(answer(row) if callable(answer) else row[answer], format) for row in rows]
        # Rows with different answers, spread over those that were read.
        distinct = list({gold: i for i, gold in reversed(list(enumerate(golds)))}.values())[::-1]
        step = max(1, len(distinct) // _TRIED_ROWS)
        chosen = distinct[::step][:_TRIED_ROWS]
        return cls([rows[i] for i in chosen], [golds[i] for i in chosen], golds, format, tokenizer)

    def batch(self, probes: Sequence[Probe]) -> Batch:
        """Return the call of a reward on these probes, each with the columns of its row."""
        rows = [self.rows[probe.row] for probe in probes]
        texts = [probe.text for probe in probes]
        prompts = [row.get("prompt", row.get("question", "")) for row in rows]
        ids = None
        if self.tokenizer is None:
            ids = [self._stand_in_ids(text) for text in texts]
        return make_batch(texts, rows, prompts=prompts, completion_ids=ids, tokenizer=self.tokenizer)

    def _stand_in_ids(self, text: str) -> list[int]:
        if text not in self._ids:
            # As many as there are words and marks; the values only have to be ids of any tokenizer.
            self._ids[text] = [len(word) % 1000 for word in re.findall(r"\w+|\W", text)]
        return self._ids[text]

    def prompt_text(self, row: int) -> str:
        prompt = self.rows[row].get("prompt", "")
        if isinstance(prompt, str):
            return prompt
        return "\n".join(str(turn.get("content", "")) for turn in prompt)

    def question(self, row: int) -> str:
        prompt = self.rows[row].get("prompt")
        asked = prompt[-1].get("content", "") if isinstance(prompt, list) and prompt else prompt
        return str(self.rows[row].get("question") or asked or "")

    def controls(self) -> list[Probe]:
        return [p for i, g in enumerate(self.golds) for p in make.controls(i, self.format, g, self.wrong[i])]

    def ordinary(self) -> list[Probe]:
        made = []
        for i, gold in enumerate(self.golds):
            made += make.harmless(i, self.format, gold, self.wrong[i])
            made += make.cheats(
                i, self.format, gold, self.wrong[i], self.every_gold, self.prompt_text(i), self.question(i)
            )
        made += make.form_probes(0, self.format, self.golds[0])
        return made + make.lengths(0, self.format, self.golds[0], self.wrong[0][0])

    def elsewhere(self) -> list[Probe]:
        return [p for i, g in enumerate(self.golds) for p in make.other_containers(i, g, self.wrong[i])]


def _gold_text(gold: Any, format: AnswerFormat) -> str:
    """A list of accepted answers is represented by its first; a slot that ends with its line holds no more than a line."""
    if isinstance(gold, (list, tuple)) and gold:
        gold = gold[0]
    text = str(gold).strip()
    return text if format.answer_close else text.split("\n", 1)[0]
