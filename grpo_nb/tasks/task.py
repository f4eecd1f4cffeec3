"""A `Task`: training and held-out prompts, and the format of their answers.

Training, rewards and evaluation work on it.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import ReprMixin, RichText, Table, bold, escaped, verbatim
from grpo_nb.core.words import shorten
from grpo_nb.tasks.answers import AnswerSummary
from grpo_nb.tasks.cleaning import CleaningReport
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import render_prompt, require_chat_template
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.tools import Tool, Tools

if TYPE_CHECKING:
    from datasets import Dataset

# `pre` keeps line breaks; only `code` is monospaced on the pages of notebooks.
_PROMPT_BOX = (
    "<pre style='margin:0;padding:6px 8px;border-radius:4px;background:rgba(128,128,128,.09);"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:break-word'>"
    "<code style='padding:0;background:none;color:inherit'>{}</code></pre>"
)


@dataclass(frozen=True, repr=False)
class Task(ReprMixin):
    """Training and held-out prompts that share no question, and the format of their answers.

    `train` and `holdout` are `datasets.Dataset`s with the columns `prompt` (chat messages),
    `question`, `answer` and those of the source. Methods that choose rows return a new task, and
    leave this one unchanged.
    """

    name: str
    format: AnswerFormat
    train: Dataset
    holdout: Dataset
    report: CleaningReport = dataclasses.field(default_factory=CleaningReport)
    """Report on rows left out and on changes of the source, with reasons and examples."""
    is_ordered: bool = False
    """True to train on the rows in their order; otherwise the trainer shuffles them."""
    answers: AnswerSummary = dataclasses.field(default=AnswerSummary("text"))
    """Kind of the answers; for choices, the labels with their shares."""
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the chat template for every prompt, such as `{"enable_thinking": False}`."""
    tokenizer: Any = None
    """Tokenizer of the model, to show the first prompt as the model sees it."""
    tools: Tools | None = None
    """Tools that the model may call before it answers."""

    @property
    def left_out(self) -> Counter[str]:
        """Number of rows left out, by reason."""
        return self.report.left_out

    # Tools and templates.

    def with_tools(
        self,
        *functions: Tool,
        environment: type | None = None,
        rounds: int = 8,
        seconds_per_call: float = 10.0,
    ) -> Task:
        """Return the task with functions that a model may call before it answers.

        The model sees the name of a function, the types of its arguments and its docstring, in
        which each argument has a line below `Args:`. The model gets what a function returns or
        raises. Functions run in the process of the training (docs/guide/tools.md).

        Args:
            functions: Tools that are the same for all completions.
            environment: A class whose public methods are tools; each completion has an object of
                its own. `reset(self, **row)` starts an episode with the columns of the row, and
                the text that it returns is added to the question. Rewards get the objects as the
                column `environments`.
            rounds: Number of times in an episode that the model may call tools.
            seconds_per_call: Longest time of a call. A longer one is stopped and reported to the
                model as a failure. The limit works only on the main thread of a POSIX system.

        Raises:
            TypeError: A tool without a name, or an environment that is no class.
            ValueError: An async tool, two tools with the same name, an environment with
                `get_reward` or without `reset`, or one that starts differently within a group. A
                function without type hints or a docstring is refused later, when transformers
                describes it to a model.
        """
        tools = Tools(functions, environment, rounds, seconds_per_call)
        # One row is enough: a start that is random is so for nearly every row.
        tools.require_repeatable(self.train[0])
        return dataclasses.replace(self, tools=tools)

    @property
    def render_kwargs(self) -> dict[str, Any]:
        """All arguments of the chat template: `chat_template_kwargs`, and the tools' schemas."""
        schemas = None if self.tools is None else self.tools.schemas
        return {**self.chat_template_kwargs, "tools": schemas}

    def start_episode(self, row: Row) -> Row:
        """Return the row with which an episode starts.

        An environment adds its text to the prompt, and itself as the column `environments`.
        """
        return dict(row) if self.tools is None else self.tools.start_episode(row)

    def prompt_lengths(self, rows: Dataset, tokenizer: Any) -> list[int]:
        """Return the length of each prompt in tokens, as in training.

        The chat template, the tools and the generation prompt are included.

        Raises:
            ValueError: There is no chat template, or it leaves out the system prompt.
            TemplateError: The chat template refuses a prompt.
        """
        require_chat_template(tokenizer, self.chat_template_kwargs)
        # Every prompt is checked: chats of the data may have other system messages, and an example
        # may have one in the middle, which some templates do not render.
        texts = [
            render_prompt(self.start_episode(row)["prompt"], tokenizer, self.render_kwargs)
            for row in rows
        ]
        if not texts:
            return []  # transformers refuses an empty list
        # The template has written all special tokens. The tokenizer's own warning of long prompts
        # is not needed here.
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)
        return list(map(len, encoded["input_ids"]))

    @property
    def fingerprint(self) -> str:
        """Hash of all rows, of the arguments of the chat template and of the names of the tools.

        The code of the tools is not hashed.
        Two tasks with the same rows in the same order but another split have the same hash. So a
        run also records the sizes of both parts.
        """
        items = [*self.train, *self.holdout]
        if self.chat_template_kwargs:
            items.append(dict(self.chat_template_kwargs))
        if self.tools is not None:
            environment_name = getattr(self.tools.environment, "__name__", "")
            items.append([str(self.tools.rounds), environment_name, *self.tools.names])
        digest = hashlib.sha256()
        for item in items:
            # A value that JSON does not know, such as a date, is hashed as text.
            digest.update(json.dumps(item, sort_keys=True, default=str).encode())
        return digest.hexdigest()[:16]

    def settings_for_template(self, settings: Settings) -> Settings:
        """Return settings with which the trainer renders prompts as this task does.

        Raises:
            ValueError: The `extra` of the settings has other arguments of the chat template.
        """
        task_kwargs = dict(self.chat_template_kwargs)
        settings_kwargs = settings.extra.get("chat_template_kwargs")
        if settings_kwargs not in (None, task_kwargs):
            raise ValueError(
                f"extra has chat_template_kwargs = {settings_kwargs}, and the task was made with "
                f"{task_kwargs}: write them where the task is made, "
                "gn.load_task(..., chat_template_kwargs=...)."
            )
        if not task_kwargs:
            return settings
        # The trainer reads the arguments from `extra`.
        return settings.replace(extra={**settings.extra, "chat_template_kwargs": task_kwargs})

    # Which rows are trained on.

    def without_long_prompts(self, tokenizer: Any, max_prompt_length: float) -> Task:
        """Return the task without prompts of more than `max_prompt_length` tokens.

        The prompts left out are counted in `left_out`.

        Raises:
            ValueError: No training prompt or no held-out prompt is short enough, or the chat
                template leaves out the system prompt.
            TemplateError: The chat template refuses a prompt.
        """
        parts = {"train": self.train, "holdout": self.holdout}
        # Both parts are measured first, because the messages below name the limit that keeps all
        # prompts.
        lengths = {name: self.prompt_lengths(rows, tokenizer) for name, rows in parts.items()}
        longest = max([*lengths["train"], *lengths["holdout"]])
        if longest <= max_prompt_length:
            return self
        # Counted in a copy, so that the report of `self` is unchanged.
        report = copy.deepcopy(self.report)
        short_parts = {}
        for name, rows in parts.items():
            short = []
            for index, length in enumerate(lengths[name]):
                if length <= max_prompt_length:
                    short.append(index)
                else:
                    question = shorten(rows[index]["question"], 160)
                    report.leave_out(
                        "too long",
                        f"{length} tokens, settings.replace(max_prompt_length={longest}) keeps "
                        f"all: {question}",
                    )
            # A task that was made by hand may have no held-out questions.
            if not short and lengths[name]:
                raise ValueError(
                    f"all {len(rows)} {name} prompts are longer than max_prompt_length = "
                    f"{max_prompt_length} tokens. Write max_prompt_length={longest}, or shorten "
                    "the prompts."
                )
            short_parts[name] = rows.select(short)
        return dataclasses.replace(self, **short_parts, report=report)

    def after(self, runs: Sequence[Any]) -> Task:
        """Return the task for a stage after these runs: the least sampled questions come first.

        Equally sampled questions are shuffled. The trainer takes the rows in the new order.

        Args:
            runs: The runs of the earlier stages; an empty list returns the task unchanged.
        """
        if not runs:
            return self
        # Runs record prompts as JSON.
        prompts = [json.dumps(self.start_episode(row)["prompt"]) for row in self.train]
        times_sampled = Counter()
        for run in runs:
            times_sampled.update(run.completions()["prompt"])
        order = list(range(len(prompts)))
        # The same runs give the same order, which a resumed training needs.
        random.Random(len(runs)).shuffle(order)
        # The sort keeps the order of equally sampled questions.
        order.sort(key=lambda index: times_sampled[prompts[index]])
        return dataclasses.replace(self, train=self.train.select(order), is_ordered=True)

    # How it is shown.

    def _shown_parts(self) -> Iterable[RichText | Table | str]:
        yield bold(f"Task {self.name}")
        summary = [
            ("training prompts", len(self.train)),
            ("held-out prompts", f"{len(self.holdout)}, no question in both"),
            ("rows left out", self.left_out.total() or "none"),
            ("answers", self.answers.in_words),
            ("answer format", self.format.name),
        ]
        if self.tools is not None:
            summary.append(("tools", ", ".join(self.tools.names)))
        yield Table(summary, narrow=(0,))
        changes = [
            (count, f"left out: {reason}", self.report.examples[reason])
            for reason, count in self.left_out.items()
        ]
        changes += [("", "note", note) for note in self.report.notes]
        if changes:
            head = ("rows", "what happened", "one of them (the first row is row 0)")
            yield Table(changes, head, right=(0,), wide=(2,))
        yield f"The first training prompt, whose answer is {self.train[0]['answer']!r}:"
        prompt = self.start_episode(self.train[0])["prompt"]
        if self.tokenizer is None:
            yield Table([(message["role"], verbatim(message["content"])) for message in prompt])
            return
        rendered = render_prompt(prompt, self.tokenizer, self.render_kwargs)
        yield RichText(rendered, _PROMPT_BOX.format(escaped(rendered)))
