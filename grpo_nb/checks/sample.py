"""The rows that `check_rewards` tries, with their gold and wrong answers, and the probes made from them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.checks import probes as make
from grpo_nb.checks.probes import Probe
from grpo_nb.core.words import in_line, require_number
from grpo_nb.rewards.answers import gold_answers
from grpo_nb.rewards.calls import Batch, make_batch
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.rows import read_rows
from grpo_nb.tasks.task import Task

_TRIED_ROWS, _MORE_ROWS = 4, 60
_LONGEST = 200
_GOLDS_FROM_ROWS = 200


def rows_of(task: Any) -> Sequence[Mapping[str, Any]]:
    """Return the training rows of a task, or rows from whatever holds them; a `datasets.Dataset` stays as it is.

    Raises:
        TypeError, ValueError: Nothing that holds rows, or none in it.
    """
    if isinstance(task, (str, Path)):
        raise TypeError(
            f"task = {in_line(task)} is a text: task = gn.load_task({in_line(task)}, settings) reads what it names."
        )
    if isinstance(task, Task):
        rows = task.train
    elif task is None or not isinstance(task, Iterable):
        raise TypeError(
            f"task = {in_line(task)} is no task and holds no rows: task = gn.load_task(<your file>, settings)."
        )
    else:
        rows = task if hasattr(task, "features") and hasattr(task, "to_pandas") else read_rows(task).rows
    if not len(rows):
        raise ValueError("the task has no rows: rewards are tried on your own rows, at least one.")
    return rows


def check_options(settings: Any, num_generations: Any, seconds_per_call: float = 1.0) -> None:
    """Refuse settings that are none, a group without two completions, and time limits that are none."""
    if num_generations is not None:
        require_number("num_generations", num_generations, 2, why=": GRPO compares the completions of a prompt")
    require_number("seconds_per_call", seconds_per_call, 0.01, is_whole=False)


class Sample:
    """The rows that are tried, with their gold and wrong answers, and the probes made from them.

    Args:
        task: A task, or rows; some with different answers are tried.
        format: In which the probes are written; that of the task, or `xml()`, if not given.
        answer: The column with the gold answer, or a function of the row.
        tokenizer: For token ids; words and marks stand in for them without.
        first: Rows, by their number in another such sample, that are tried before others.
    """

    def __init__(
        self,
        task: Task | Iterable[Mapping[str, Any]],
        format: AnswerFormat | None,
        answer: str | Callable[[Mapping[str, Any]], str],
        tokenizer: Any,
        first: Sequence[int] = (),
    ) -> None:
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(f"tokenizer = {in_line(tokenizer)} must be the tokenizer of the model, or None.")
        rows = _spread(rows_of(task))
        if not callable(answer) and answer not in rows[0]:
            raise ValueError(
                f'the rows have no column {answer!r} but {sorted(rows[0])}. Write answer="<the one with the gold answer>", '
                "or a function of the row."
            )
        self.answer = "answer" if callable(answer) else answer
        self.format = format = format or (task.format if isinstance(task, Task) else xml())
        self.tokenizer, self._ids = tokenizer, {}
        held = [answer(row) if callable(answer) else row.get(answer) for row in rows]
        every_gold = [_gold_text(gold, format) for gold in held]
        if not any(every_gold):
            raise ValueError(f"no row has a gold answer in {in_line(answer)}: rewards are tried with the right answer.")
        rows = [row for row, gold in zip(rows, every_gold, strict=True) if gold]
        held = [gold for gold in held if _gold_text(gold, format)]
        self._accepted = [_accepted(gold, row, format) for gold, row in zip(held, rows, strict=True)]
        every_gold = [gold for gold in every_gold if gold]
        # Rows with different answers, spread over those that were read, and over the forms of answers: 3 kg, 3/4, 3 %.
        distinct = list({gold: i for i, gold in reversed(list(enumerate(every_gold)))}.values())[::-1]
        forms: dict[str, list[int]] = {}
        for i in distinct:
            forms.setdefault(re.sub(r"[\d.,+-]+", "", every_gold[i]), []).append(i)
        if len(forms) > 1:
            turns = itertools.chain(*itertools.zip_longest(*forms.values()))
            distinct = [i for i in turns if i is not None][: max(len(forms), _TRIED_ROWS)]
        step = max(1, len(distinct) // _TRIED_ROWS)
        chosen = distinct[::step][:_TRIED_ROWS]
        left = _others(chosen, len(rows))
        if first:
            first = [(*chosen, *left)[row] for row in first]
            chosen = [*first, *(i for i in chosen if i not in first)][:_TRIED_ROWS]
            left = _others(chosen, len(rows))
        self.rows, self.golds = [rows[i] for i in chosen], [every_gold[i] for i in chosen]
        self.tried = range(len(chosen))
        """Those that are tried in every form; of the others, only whether being right pays."""
        self.rows, self._more = self.rows + [rows[i] for i in left], [every_gold[i] for i in left]
        self._accepted = [self._accepted[i] for i in (*chosen, *left)]
        wrong = [_wrong(gold, every_gold, self._accepted[i]) for i, gold in enumerate(self.golds)]
        self._answers = list(zip(self.golds, wrong, strict=True))
        self.every_gold = every_gold
        per_row = list(enumerate(self._answers))
        self.controls = [p for i, (gold, bad) in per_row for p in make.controls(i, format, gold, bad)]
        self.elsewhere = [p for i, (gold, bad) in per_row for p in make.other_containers(i, gold, bad)]
        self.hostile = list(make.hostile(0, format, self.golds[0]))

    def ordinary(self, layout: str = "") -> list[Probe]:
        """Harmless forms and cheats of every row, and of the first one damaged forms and growing ones, in a layout."""
        written, made = self._written(layout), []
        for i, (gold, wrong) in enumerate(self._answers):
            made += make.harmless(i, self.format, written, gold, wrong[0])
            right = {written(make.PLAIN, answer) for answer in self._accepted[i]}
            cheats = make.cheats(i, self.format, written, gold, wrong[0], self.every_gold, *_asked(self.rows[i]))
            made += [probe for probe in cheats if probe.text not in right]
            if _is_of_given_numbers(gold, self.rows[i]):
                made.append(Probe("7 - 7 added", written(make.PLAIN, f"{gold} + 7 - 7"), i, family="other numbers"))
        made += make.formed(0, self.format, written, self.golds[0], self._answers[0][1][0])
        return [dataclasses.replace(probe, layout=layout) for probe in made]

    def more(self, layout: str) -> list[Probe]:
        """The right and a wrong answer of the rows that are not tried in every form."""
        written = self._written(layout)
        accepted = self._accepted[len(self.tried) :]
        pairs = [(g, _wrong(g, self.every_gold, a)[0]) for g, a in zip(self._more, accepted, strict=True)]
        return [
            Probe(kind, written(make.PLAIN, answer), row, answer, layout=layout)
            for row, pair in enumerate(pairs, len(self.tried))
            for kind, answer in zip(make.MORE, pair, strict=True)
        ]

    def known(self, texts: Sequence[str]) -> list[Probe]:
        """What a reward's own code looks for, in completions of the first row."""
        return list(make.known(0, self._written(""), self.golds[0], self._answers[0][1][0], texts))

    def of_columns(self, names: Iterable[str]) -> list[Probe]:
        """What a row has in columns that a reward takes, beside a wrong answer and in its place.

        Of the first row texts, of each row the last that a list holds beside the gold answer.
        """
        written, made = self._written(""), []
        for row, name in itertools.product(self.tried, names):
            held, (gold, wrong) = self.rows[row].get(name), self._answers[row]
            if isinstance(held, (list, tuple)):
                texts = [text for text in gold_answers(held) if text != gold][-1:]
            else:
                texts = [str(held)] if row == 0 and isinstance(held, (str, int, float)) else []
            for text in (text for text in texts if len(text) < _LONGEST):
                made.append(Probe("text of a column", written(f"{make.PLAIN} {text}", wrong[0]), row, name))
                made.append(Probe("text of a column in the slot", written(make.PLAIN, text), row, name))
        return made

    def _written(self, layout: str) -> make.Written:
        return functools.partial(make.LAYOUTS[layout], self.format)

    def batch(self, probes: Sequence[Probe]) -> Batch:
        """Return the call of a reward on these probes, each with the columns of its row."""
        rows = [self.rows[probe.row] for probe in probes]
        texts = [probe.text for probe in probes]
        prompts = None if {"prompt", "question"} & set(rows[0]) else [""] * len(rows)
        ids = [self._stand_in_ids(text) for text in texts] if self.tokenizer is None else None
        return make_batch(texts, rows, prompts=prompts, completion_ids=ids, tokenizer=self.tokenizer)

    def _stand_in_ids(self, text: str) -> list[int]:
        if text not in self._ids:
            # As many as there are words and marks; the values only have to be ids of any tokenizer.
            self._ids[text] = [len(word) % 1000 for word in re.findall(r"\w+|\W", text)]
        return self._ids[text]


def _spread(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows from all over the task, one of each of so many equal stretches: a file may be sorted by its labels.

    Each at random, but always the same: every fifth row of labels that take turns may be one label.
    """
    count, draw = min(len(rows), _GOLDS_FROM_ROWS), random.Random(0)
    return [dict(rows[draw.randrange(i * len(rows) // count, (i + 1) * len(rows) // count)]) for i in range(count)]


def _others(chosen: Sequence[int], count: int) -> list[int]:
    """Of so many rows some that are not chosen, spread over them."""
    left = [i for i in range(count) if i not in chosen]
    return left[:: max(1, -(-len(left) // _MORE_ROWS))]


def _accepted(gold: Any, row: Mapping[str, Any], format: AnswerFormat) -> list[str]:
    """What is right beside the gold answer: the others of a list of them, and of a list in another column that holds it too."""
    text = _gold_text(gold, format)
    lists = [[_gold_text(one, format) for one in v] for v in row.values() if isinstance(v, (list, tuple))]
    return [one for texts in lists if text in texts for one in texts]


def _wrong(gold: str, every_gold: Sequence[str], accepted: Sequence[str]) -> list[str]:
    """Wrong answers, none that its row accepts too, and only those as long as the gold one where there are enough.

    The labels of the gold answer in another order may be right, and are not tried.
    """
    others = [answer for answer in every_gold if answer not in accepted and _labels(answer) != _labels(gold)]
    wrong = [answer for answer in make.wrong_answers(gold, others) if answer not in accepted]
    alike = [other for other in wrong if len(other) == len(gold)]
    return alike if len(alike) >= 2 else wrong


def _labels(answer: str) -> Any:
    """The parts of an answer in words, in any order, as far as it has several; the answer itself else."""
    parts = frozenset(part for part in re.split(r"\s*[;,|/\n]\s*", answer.strip().casefold()) if part)
    return parts if len(parts) > 1 and re.search(r"[^\W\d_]", answer) else answer


def _is_of_given_numbers(gold: str, row: Mapping[str, Any]) -> bool:
    """Whether a gold answer is a sum of numbers that a column of the row lists, as in the game of Countdown."""
    used = collections.Counter(re.findall(r"\d+", gold))
    listed = [str(v) for v in row.values() if re.fullmatch(r"[\d\s,;\[\]()]*\d[\s,;]+\d[\d\s,;\[\]()]*", str(v))]
    is_sum = re.fullmatch(r"[\d\s()+*/-]*\d\s*[-+*/][\d\s()+*/-]*", gold)
    return bool(is_sum) and any(used <= collections.Counter(re.findall(r"\d+", given)) for given in listed)


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
    text = "" if gold is None else str(gold).strip()
    return text if format.answer_close else text.split("\n", 1)[0]
