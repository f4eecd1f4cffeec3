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
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import Html, Shown, Table, as_written, bold, escaped
from grpo_nb.core.words import shorten
from grpo_nb.tasks.answers import Answers
from grpo_nb.tasks.chat_template import NO_SYSTEM_ROLE, fit_to_template, prompt_lengths
from grpo_nb.tasks.curriculum import completion_counts, pass_rates
from grpo_nb.tasks.dataset import as_dataset
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.tools import Tool, Tools

if TYPE_CHECKING:
    from datasets import Dataset


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
    """What kind of answers these are; of choices, which and how often."""
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the chat template is given beside the messages, wherever a prompt is rendered: `{"enable_thinking": False}`."""
    tokenizer: Any = dataclasses.field(default=None, compare=False)
    """Of the model, to show the first prompt as it sees it."""
    tools: Tools | None = None
    """What the model may do before it answers."""

    def with_tools(
        self,
        *functions: Tool,
        environment: type | None = None,
        rounds: int = 8,
        seconds_per_call: float = 10.0,
    ) -> Task:
        """Return the task with functions that a model may call before it answers; what they return or raise is told to it.

        All that it knows of one are its name, the types of its arguments and its docstring, in which each argument has a line
        below `Args:`. They run in the process of the training (docs/guide/tools.md).

        Args:
            functions: Tools that are the same for all.
            environment: A class whose public methods are tools; each completion plays in an object of its own.
                `reset(self, **row)` begins an episode with the columns of the row; what it returns is put behind the question.
                Rewards get the objects as the column `environments`.
            rounds: How often in an episode calls may follow the results of those before.
            seconds_per_call: A call that takes longer is stopped and told as a failure; on the main thread of a POSIX system.

        Raises:
            TypeError, ValueError: What cannot be described to a model, or would not begin alike for a whole group.
        """
        tools = Tools(functions, environment, rounds, seconds_per_call)
        tools.require_repeatable(self.train[0])
        return dataclasses.replace(self, tools=tools)

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What renders its prompts as a training does: `chat_template_kwargs`, and the tools."""
        return {
            **self.chat_template_kwargs,
            **({"tools": self.tools.schemas} if self.tools is not None else {}),
        }

    def begun_prompts(self, rows: Dataset) -> list[Any]:
        """Return the prompts of some of its rows, each with what its environment says at first."""
        return (
            [self.tools.begin(row)[0] for row in rows]
            if self.tools is not None
            else list(rows["prompt"])
        )

    def prompt_lengths(self, rows: Dataset, tokenizer: Any) -> list[int]:
        """Return the length of the prompts of some of its rows in tokens, as a training sees them."""
        return prompt_lengths(self.begun_prompts(rows), tokenizer, self.template_kwargs)

    def begun(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row as rewards get it where nobody has played: with an environment that has just begun, if there is one."""
        return {**row, **(self.tools.begin(row)[1] if self.tools is not None else {})}

    @property
    def fingerprint(self) -> str:
        """A hash over every row of both parts, in order, and of what else their template is given; a run records it."""
        digest = hashlib.sha256()
        more = [dict(self.chat_template_kwargs)] if self.chat_template_kwargs else []
        more += [self.tools.identity] if self.tools is not None else []
        for row in (*self.train, *self.holdout, *more):
            digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        return digest.hexdigest()[:16]

    def rendered_by(self, settings: Settings) -> Settings:
        """Return settings whose trainer renders the prompts of this task as everything else does.

        Raises:
            ValueError: Their `extra` would have it render others.
        """
        own, asked = dict(self.chat_template_kwargs), settings.extra.get("chat_template_kwargs")
        if asked is not None and asked != own:
            told = f"extra has chat_template_kwargs = {asked}, and the task was made with {own}"
            raise ValueError(
                f"{told}: say it where the task is made, gn.load_task(..., chat_template_kwargs={asked})."
            )
        return (
            settings.replace(extra={**settings.extra, "chat_template_kwargs": own})
            if own
            else settings
        )

    def fit(self, tokenizer: Any, max_prompt_length: int) -> Task:
        """Return the task without the prompts of more than `max_prompt_length` tokens, counted in `dropped`.

        Where the chat template has no system role, what the system says stands in the first user message from here on.

        Raises:
            ValueError: If no training or no held-out prompt is short enough.
        """
        fitted = self._with_fitted_prompts(tokenizer)
        if fitted is not self:
            return fitted.fit(tokenizer, max_prompt_length)
        kept, every = {}, []
        for part in ("train", "holdout"):
            rows: Dataset = getattr(self, part)
            lengths = self.prompt_lengths(rows, tokenizer)
            kept[part] = rows.select(
                [i for i, length in enumerate(lengths) if length <= max_prompt_length]
            )
            if len(kept[part]) == 0:
                all_longer = f"all {len(rows)} {part} prompts are longer than max_prompt_length = {max_prompt_length} tokens"
                raise ValueError(
                    f"{all_longer}. Write max_prompt_length={max(lengths)}, or shorten the prompts."
                )
            every += zip(lengths, rows["question"], strict=True)
        too_long = [pair for pair in every if pair[0] > max_prompt_length]
        if not too_long:
            return self
        length, question = max(too_long)
        note = f"{len(too_long)} of {len(every)} prompts left out: settings.replace(max_prompt_length={length}) keeps all"
        examples = {**self.examples, "too long": f"{length} tokens: {shorten(question, 160)}"}
        dropped = self._dropped_and({"too long": len(too_long)})
        return dataclasses.replace(
            self, **kept, dropped=dropped, examples=examples, notes=(*self.notes, note)
        )

    def _with_fitted_prompts(self, tokenizer: Any) -> Task:
        """Return the task without a system role in its prompts, if the chat template has none."""
        parts = {}
        for name in ("train", "holdout"):
            rows = getattr(self, name)
            prompts = list(rows["prompt"])
            fitted = fit_to_template(prompts, tokenizer, self.template_kwargs)
            if fitted == prompts:
                return self
            changed = [{**row, "prompt": prompt} for row, prompt in zip(rows, fitted, strict=True)]
            parts[name] = as_dataset(changed)
        return dataclasses.replace(self, **parts, notes=(*self.notes, NO_SYSTEM_ROLE))

    def with_pass_rates(self, measured: Any, *, reward: str | None = None) -> Task:
        """Return the task with the share of right completions of each training question that was sampled.

        It is a column of `train`, `pass_rate`, None where nothing was measured. With eight completions a rate is known to
        about a third, no better. Rates from before stay where `measured` has none.

        Args:
            measured: A `Baseline`, a `Run`, or a list of these.
            reward: Which reward says what is right, by paying 1; `correctness`, or the only one, if not given.

        Raises:
            ValueError: No such reward, or nothing measured on these questions.
        """
        import pyarrow

        train, before = self.train, [None] * len(self.train)
        found = pass_rates(train, measured, reward, self.begun_prompts(train))
        if "pass_rate" in train.column_names:
            before, train = list(train["pass_rate"]), train.remove_columns("pass_rate")
        rates = [found.get(row, known) for row, known in enumerate(before)]
        # With its type: a list that holds only None would get none.
        return dataclasses.replace(
            self, train=train.add_column("pass_rate", pyarrow.array(rates, type="float64"))
        )

    def curriculum(self, low: float = 0.1, high: float = 0.9) -> Task:
        """Return the task with the training questions whose pass rate lies between `low` and `high`, both included.

        The default drops what all or none of eight completions solved, counted in `dropped`, and keeps what was never
        measured. `task.train.select(...)` makes any other choice.

        Raises:
            ValueError: No pass rate is known, or no question is left.

        >>> from grpo_nb import load_task
        >>> load_task([{"question": q, "answer": "1"} for q in "abcd"], holdout=1).curriculum()
        Traceback (most recent call last):
        ValueError: no pass rate is known: measure first, task = task.with_pass_rates(gn.baseline(...)).
        """
        if "pass_rate" not in self.train.column_names:
            raise ValueError(
                "no pass rate is known: measure first, task = task.with_pass_rates(gn.baseline(...))."
            )
        rates = list(self.train["pass_rate"])
        below = [i for i, rate in enumerate(rates) if rate is not None and rate < low]
        above = [i for i, rate in enumerate(rates) if rate is not None and rate > high]
        kept = sorted({*range(len(rates))}.difference(below, above))
        if not kept:
            raise ValueError(
                f"no training question of {len(rates)} has a pass rate from {low:g} to {high:g}: widen both."
            )
        dropped = {
            f"with a pass rate below {low:g}": len(below),
            f"with a pass rate above {high:g}": len(above),
        }
        return dataclasses.replace(
            self, train=self.train.select(kept), dropped=self._dropped_and(dropped)
        )

    def after(self, runs: Sequence[Any]) -> Task:
        """Return the task to go on with after other runs: the questions they sampled least often come first.

        Shuffled among themselves, unless the task has an order; the trainer takes the rows as they then are.

        Args:
            runs: What `gn.train` returned of each; none gives the task as it is.
        """
        if not runs:
            return self
        counts = completion_counts(self.train, runs, self.begun_prompts(self.train))
        order = list(range(len(self.train)))
        if not self.is_ordered:
            random.Random(len(runs)).shuffle(order)
        order.sort(key=counts.__getitem__)
        return dataclasses.replace(self, train=self.train.select(order), is_ordered=True)

    def _dropped_and(self, more: Mapping[str, int]) -> dict[str, int]:
        return dict(
            Counter(self.dropped) + Counter(more)
        )  # of reasons without rows nothing is kept

    def _parts(self) -> Iterable[Html | Table | str]:
        shown = {
            "training prompts": len(self.train),
            "held-out prompts": f"{len(self.holdout)}, no question in both",
            "rows left out": sum(self.dropped.values()) or "none",
            "answers": self.answers.sentence,
            "answer format": self.format.name,
        }
        if self.tools is not None:
            shown["tools"] = ", ".join(
                tool.__name__ for tool in self.tools.of(self.tools.fresh_environment)
            )
        if "pass_rate" in self.train.column_names:
            known = sum(rate is not None for rate in self.train["pass_rate"])
            shown["pass rate"] = f"measured for {known} of {len(self.train)} questions"
        yield bold(f"Task {self.name}")
        yield Table(list(shown.items()), narrow=(0,))
        yield from self.notes
        if self.dropped:
            rows = [
                (count, reason, self.examples.get(reason, ""))
                for reason, count in self.dropped.items()
            ]
            yield Table(
                rows,
                ("rows left out", "why", "one of them (the first row is row 0)"),
                right=(0,),
                wide=(2,),
            )
        first = self.train[0]
        said = "The first training prompt, whose answer is"
        yield Html(
            f"{said} {first['answer']!r}:", f"{said} <code>{escaped(first['answer'])}</code>:"
        )
        if self.tokenizer is None:
            yield Table([(turn["role"], as_written(turn["content"])) for turn in first["prompt"]])
            return
        how = {"tokenize": False, "add_generation_prompt": True, **self.template_kwargs}
        rendered = self.tokenizer.apply_chat_template(first["prompt"], **how)
        yield Html(rendered, f"<pre style='white-space:pre-wrap'>{escaped(rendered)}</pre>")
