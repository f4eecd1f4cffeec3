"""A `Task` is what training, rewards and evaluation work on: training and held-out prompts and the format of their answers.

Its rows have `prompt` (chat messages), `question`, `answer` and every other column of the source. Nothing here needs torch; a
tokenizer only for lengths.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from grpo_nb.core.tables import Html, Shown, Table, as_written, bold, escaped
from grpo_nb.core.text import prompt_lengths
from grpo_nb.settings.arguments import check_choice, check_value
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.answers import Answers
from grpo_nb.tasks.curriculum import flat_rows, pass_rates, visit_counts
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.lengths import LengthProposal, propose_lengths

if TYPE_CHECKING:
    from datasets import Dataset

Order = Literal["easy first", "hard first"]


@dataclass(frozen=True, repr=False)
class Task(Shown):
    """Training and held-out prompts that share no question, and the format their answers are asked for in.

    `train` and `holdout` are `datasets.Dataset`s with the columns `prompt`, `question`, `answer` and those of the source. All
    methods that choose rows return a new task.
    """

    name: str
    format: AnswerFormat
    train: Dataset
    holdout: Dataset
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How many rows were left out, by reason."""
    is_ordered: bool = False
    """Train on the rows in their order; otherwise the trainer shuffles them."""
    examples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """One of the rows left out, by reason."""
    notes: tuple[str, ...] = ()
    """What to know about how the source was read."""
    answers: Answers = dataclasses.field(default_factory=lambda: Answers("text"))
    """What kind of answers these are; of labels, which and how often."""
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the chat template is given beside the messages, wherever a prompt is rendered: `{"enable_thinking": False}`."""
    tokenizer: Any = dataclasses.field(default=None, compare=False)
    """Of the model, to show the first prompt as it sees it."""

    @property
    def fingerprint(self) -> str:
        """A hash over every row of both parts, in order, and of what else their template is given; a run records it."""
        digest = hashlib.sha256()
        for part in (self.train, self.holdout):
            for row in part:
                digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        if self.chat_template_kwargs:
            digest.update(json.dumps(dict(self.chat_template_kwargs), sort_keys=True, default=str).encode())
        return digest.hexdigest()[:16]

    def rendered_by(self, settings: Settings) -> Settings:
        """Return settings whose trainer renders the prompts of this task as everything else does.

        Raises:
            ValueError: Their `extra` would have it render others.
        """
        own, asked = dict(self.chat_template_kwargs), settings.extra.get("chat_template_kwargs")
        if asked is not None and asked != own:
            raise ValueError(
                f"extra has chat_template_kwargs = {asked}, and the task was made with {own}: other prompts would be trained "
                f"than are measured. Say it where the task is made: gn.load_task(..., chat_template_kwargs={asked})."
            )
        return settings.replace(extra={**settings.extra, "chat_template_kwargs": own}) if own else settings

    def fit(self, tokenizer: Any, max_prompt_length: int) -> Task:
        """Return the task without the prompts of more than `max_prompt_length` tokens, counted in `dropped`.

        Raises:
            ValueError: If no training or no held-out prompt is short enough.
        """
        check_value("max_prompt_length", max_prompt_length, "int", least=1)
        kept, lost, long, every = {}, 0, "", []
        for part in ("train", "holdout"):
            rows: Dataset = getattr(self, part)
            lengths = prompt_lengths(rows["prompt"], tokenizer, self.chat_template_kwargs)
            every += lengths
            short = [i for i, length in enumerate(lengths) if length <= max_prompt_length]
            if not short:
                raise ValueError(
                    f"all {len(rows)} {part} prompts are longer than max_prompt_length = {max_prompt_length} tokens "
                    f"(the shortest has {min(lengths)}). Write max_prompt_length={max(lengths)}, or shorten the prompts."
                )
            lost += len(rows) - len(short)
            if len(short) < len(rows) and not long:
                most = max(range(len(rows)), key=lengths.__getitem__)
                long = f"{lengths[most]} tokens: {' '.join(rows[most]['question'].split())[:160]}"
            kept[part] = rows.select(short) if len(short) < len(rows) else rows
        task = dataclasses.replace(self, **kept, dropped=self._dropped_and({"too long": lost}))
        if not lost:
            return task
        most = sorted(every)[-(-len(every) * 95 // 100) - 1]
        nearly = f", {most} for 95 % of them" * (max_prompt_length < most < max(every))
        said = (
            f"{lost} of {len(every)} prompts ({lost / len(every):.0%}) left out: longer than max_prompt_length = "
            f"{max_prompt_length} tokens; settings.replace(max_prompt_length={max(every)}) keeps all{nearly}"
        )
        return dataclasses.replace(task, examples={"too long": long, **self.examples}, notes=(*self.notes, said))

    def propose_lengths(self, tokenizer: Any, baseline: Any = None, *, quantile: float = 0.95) -> LengthProposal:
        """Propose `max_prompt_length` and `max_completion_length` from this data, and say where each comes from.

        The prompt length is that of `quantile` of the training prompts, rounded up to 16. The completion length comes from
        what a model generated, if a baseline is given; else from the column `solution`; else it is not known: a gold
        answer alone says nothing about how long the reasoning before it is.

        Args:
            tokenizer: Of the model to be trained.
            baseline: From `gn.baseline`: its `tokens` and `is_cut` are read.
            quantile: Of the prompts to keep.

        Raises:
            ValueError: A quantile that is none.
        """
        how = {"quantile": quantile, "chat_template_kwargs": self.chat_template_kwargs}
        return propose_lengths(self.train, self.format, tokenizer, baseline, **how)

    def with_pass_rates(
        self, measured: Any, *, reward: str | None = None, threshold: float = 1.0, last: int | None = None
    ) -> Task:
        """Return the task with the share of right completions of each training question that was sampled.

        New columns of `train`: `pass_rate`, None where nothing was measured, and `pass_count`, how many completions it rests
        on. With eight completions a rate is known to about a third, no better. Rates from before stay where
        `measured` has none.

        Args:
            measured: A `Baseline`, a `Run`, a staged run, or a list of these, oldest first.
            reward: Which reward says what is right; `correctness`, or the only one, if not given.
            threshold: The unweighted score from which on a completion is right.
            last: Only the last so many groups of each question: a model in training was worse before.

        Raises:
            ValueError: No such reward, or nothing measured on these questions.

        >>> from grpo_nb import load_task
        >>> task = load_task([{"question": q, "answer": "1"} for q in "abcd"], holdout=1)
        >>> task.curriculum()
        Traceback (most recent call last):
        ValueError: no pass rate is known: measure first, task = task.with_pass_rates(gn.baseline(...)).
        """
        check_value("threshold", threshold, "float")
        check_value("last", last, "int | None", ", or None for all groups", least=1)
        found = pass_rates(self.train, measured, reward=reward, threshold=threshold, last=last)
        import pyarrow

        train, before = self.train, [(None, 0)] * len(self.train)
        if "pass_rate" in train.column_names:
            before = list(zip(train["pass_rate"], train["pass_count"], strict=True))
            train = train.remove_columns(["pass_rate", "pass_count"])
        rates, counts = zip(*(found.get(row, known) for row, known in enumerate(before)), strict=True)
        # With their types: a list that holds only None would get none at all.
        train = train.add_column("pass_rate", pyarrow.array(rates, type="float64"))
        return dataclasses.replace(self, train=train.add_column("pass_count", pyarrow.array(counts, type="int64")))

    def curriculum(
        self,
        low: float = 0.1,
        high: float = 0.9,
        *,
        unmeasured: Literal["keep", "drop"] = "keep",
        order: Order | None = None,
    ) -> Task:
        """Return the task with the training questions whose pass rate lies between `low` and `high`, both included.

        The default drops what all or none of eight completions solved, and no more. What is dropped is counted in `dropped`.

        Args:
            low, high: Pass rates, 0 to 1.
            unmeasured: What to do with questions that were never sampled.
            order: Train in this order, those never measured last, instead of a shuffled one; a second pass over the data
                begins again with the first.

        Raises:
            ValueError: No pass rate is known, or no question is left.
        """
        check_value("low", low, "float", least=0, most=1)
        check_value("high", high, "float", ", with low <= high", least=low, most=1)
        check_choice("unmeasured", unmeasured, ("keep", "drop"))
        check_choice("order", order, (None, *get_args(Order)))
        if "pass_rate" not in self.train.column_names:
            raise ValueError("no pass rate is known: measure first, task = task.with_pass_rates(gn.baseline(...)).")
        rates = list(self.train["pass_rate"])
        reasons = {
            f"with a pass rate below {low:g}": [i for i, r in enumerate(rates) if r is not None and r < low],
            f"with a pass rate above {high:g}": [i for i, r in enumerate(rates) if r is not None and r > high],
            "never measured": [i for i, r in enumerate(rates) if r is None and unmeasured == "drop"],
        }
        sign = {"easy first": -1, "hard first": 1}.get(order or "", 0)
        # Python's sort is stable: without an order, and among equals, the rows stay as they are.
        by_rate = sorted(range(len(rates)), key=lambda i: (sign != 0 and rates[i] is None, sign * (rates[i] or 0.0)))
        task = self._without(reasons, by_rate, "Widen low and high, or unmeasured='keep'.")
        return dataclasses.replace(task, is_ordered=True) if order else task

    def after(self, runs: Sequence[Any]) -> Task:
        """Return the task to go on with after other runs: the questions they sampled least often come first.

        Shuffled among themselves, unless the task has an order; the trainer takes the rows as they then are.

        Args:
            runs: What `gn.train` returned of each; none gives the task as it is.
        """
        if not runs:
            return self
        counts, order = visit_counts(self.train, runs), list(range(len(self.train)))
        if not self.is_ordered:
            random.Random(len(runs)).shuffle(order)
        order.sort(key=counts.__getitem__)
        return dataclasses.replace(self, train=self.train.select(order), is_ordered=True)

    def without_flat_groups(self, measured: Any, *, visits: int = 2) -> Task:
        """Return the task without the training questions whose last `visits` groups had no spread in the total.

        For the next run: such a question was solved by all of its group or by none, `visits` times in a row, and
        taught nothing. Questions sampled less often stay.

        Args:
            measured: As in `with_pass_rates`; a run, for a baseline samples each question once.
            visits: Groups in a row. One is little evidence: with a pass rate of 0.8, one group of eight in six is flat.

        Raises:
            ValueError: Nothing measured on these questions, or no question is left.
        """
        check_value("visits", visits, "int", least=1)
        flat = flat_rows(self.train, measured, visits)
        reason = f"without spread in the last {visits} groups" if visits > 1 else "without spread in the last group"
        return self._without({reason: flat}, range(len(self.train)), "Raise visits, or bring harder questions.")

    def _without(self, reasons: Mapping[str, Sequence[int]], order: Iterable[int], advice: str) -> Task:
        """The task without these rows, counted by reason, the others in the order given."""
        gone = {i for rows in reasons.values() for i in rows}
        kept = [i for i in order if i not in gone]
        if not kept:
            why = ", ".join(f"{len(rows)} {reason}" for reason, rows in reasons.items() if rows)
            raise ValueError(f"no training question would be left of {len(self.train)}: {why}. {advice}")
        dropped = self._dropped_and({reason: len(rows) for reason, rows in reasons.items()})
        return dataclasses.replace(self, train=self.train.select(kept), dropped=dropped)

    def _dropped_and(self, more: Mapping[str, int]) -> dict[str, int]:
        return dict(Counter(self.dropped) + Counter(more))  # of reasons without rows nothing is kept

    def _parts(self) -> Iterable[Html | Table]:
        shown = {
            "training prompts": len(self.train),
            "held-out prompts": f"{len(self.holdout)}, no question in both",
            "rows left out": sum(self.dropped.values()) or "none",
            "answers": self.answers.sentence,
            "answer format": self.format.name,
        }
        if "pass_rate" in self.train.column_names:
            rates = list(self.train["pass_rate"])
            known = [rate for rate in rates if rate is not None]
            shown["pass rate"] = f"measured for {len(known)} of {len(rates)} questions"
            if known:
                mean = f"mean {sum(known) / len(known):.2f}"
                shown["pass rate"] += f", {mean}; {known.count(0)} never right, {known.count(1)} always"
        if self.chat_template_kwargs:
            shown["chat template"] = f"given {dict(self.chat_template_kwargs)}"
        if self.is_ordered:
            shown["order"] = "as given, not shuffled"
        yield bold(f"Task {self.name}")
        yield Table(list(shown.items()), narrow=(0,))
        yield from self.notes
        if self.dropped:
            yield Table(
                [(n, why, self.examples.get(why, "")) for why, n in self.dropped.items()],
                head=("rows left out", "why", "one of them (the first row is row 0)"), right=(0,), wide=(2,),
            )  # fmt: skip
        first = self.train[0]
        seen = ", as the model sees it" if self.tokenizer is not None else ""
        said, answer = f"The first training prompt{seen}, whose answer is", first["answer"]
        yield Html(f"{said} {answer!r}:", f"{said} <code>{escaped(answer)}</code>:")
        if self.tokenizer is not None:
            rendered = self.tokenizer.apply_chat_template(
                first["prompt"], tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
            )
            yield Html(rendered, f"<pre style='white-space:pre-wrap'>{escaped(rendered)}</pre>")
        else:
            yield Table([(turn["role"], as_written(turn["content"])) for turn in first["prompt"]])
