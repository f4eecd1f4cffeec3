"""The reward lab: a widget to try rewards by hand, on rows of the task and with completions of one's own or of the model.

Views and controls only: what they show is computed by `grpo_nb.lab.numbers`, `gn.score` and `gn.check_rewards`, and can be had
from there without a widget. Core ipywidgets that 7.7 and 8 share: tabs are named with `set_title`, each control has its label
in words, rows wrap on a narrow page. Callbacks run on the kernel's main thread between cells, so nothing here answers while a
cell runs, a training for example.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from grpo_nb.checks.report import RewardReport
from grpo_nb.checks.run import check_rewards
from grpo_nb.checks.sample import check_options, rows_of
from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.core.panels import above, button, in_panel, line, section, view
from grpo_nb.core.words import as_score, displayable
from grpo_nb.lab import views
from grpo_nb.lab.controls import Entry, WeighedPanel
from grpo_nb.lab.numbers import example_completions, gold_of, prompt_text, sample_group
from grpo_nb.rewards.answers import gold_answers
from grpo_nb.rewards.base import RewardFunction, reward_list, weights_by_name
from grpo_nb.rewards.scores import Scores, reweight, score
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.task import Task

_EVERY_REWARD = "every reward"
_NO_MODEL = (
    '<span class="gn-soft gn-why">Sampling is off: the lab was given no model. Write completions yourself, or make it '
    "with <code>gn.RewardLab(rewards, task, model, tokenizer)</code>.</span>"
)


class RewardLab(WeighedPanel):
    """Try rewards on rows of a task: every score, weight, total and advantage, what earned it, and the machine's check.

    Begins with a right and a wrong completion of the first row. Scores are computed as a trainer would (`gn.score`), again at
    every change; moving a weight calls no reward. What a reward raises is shown with the completion it raised on.

    Args:
        rewards: One or more reward functions. Edited in the next cell, they are taken up with `lab.update(rewards)`, which
            scores the same completions again.
        task: A `Task` (its training rows are shown), or rows: a list of dicts, a `datasets.Dataset`.
        model: To sample from. Without it there is everything else.
        tokenizer: To sample, to show the prompt as the model sees it, and for rewards that look at token ids.
        settings: For the group size, temperature and completion length to begin with.
        answer: The column with the gold answer.
        format: Where rows are given: the format of the answer; `xml()` if not given.
        seconds_per_call: After so long a scoring is stopped, and says so.

    Raises:
        ValueError, TypeError: No rows, something that is no function, two rewards of one name, a model without its tokenizer,
            or an argument that cannot be.

    >>> from grpo_nb.rewards import correctness
    >>> lab = RewardLab([correctness()], [{"question": "What is 20 + 3?", "answer": "23"}])
    >>> lab.scores.totals
    (2.0, 0.0)
    """

    panel_title = "Reward lab"

    def __init__(
        self,
        rewards: RewardFunction | Sequence[RewardFunction],
        task: Task | Sequence[Mapping[str, Any]],
        model: Any = None,
        tokenizer: Any = None,
        settings: Settings | None = None,
        *,
        answer: str = "answer",
        format: AnswerFormat | None = None,
        seconds_per_call: float = 20.0,
    ) -> None:
        if model is not None and tokenizer is None:
            raise ValueError("a model needs its tokenizer to be sampled: RewardLab(rewards, task, model, tokenizer).")
        check_options(settings, None, seconds_per_call)
        self._rewards, self._rows = reward_list(rewards), rows_of(task)
        carried = weights_by_name(self._rewards)
        super().__init__()
        self.task, self.model, self.tokenizer, self.answer = task, model, tokenizer, answer
        self.format = format or (task.format if isinstance(task, Task) else xml())
        self.chat_template_kwargs = task.chat_template_kwargs if isinstance(task, Task) else {}
        self.seconds_per_call = seconds_per_call
        self.scores: Scores | None = None
        """The scores shown, under the weights shown; None where scoring itself failed."""
        self.report: RewardReport | None = None
        """What `check_rewards` last said of the row."""
        self._are_examples = False
        self._lay_out(settings or Settings())
        self._connect()
        self._show_weights(carried)
        with self.showing_errors():
            self._show_row()
            if gold_answers(self.row.get(answer)):
                self._show_examples()
            else:
                self._set_completions([""])

    # What a cell can read and set.

    @property
    def rewards(self) -> list[RewardFunction]:
        """The rewards in use; setting it is `update`."""
        return list(self._rewards)

    @rewards.setter
    def rewards(self, rewards: RewardFunction | Sequence[RewardFunction]) -> None:
        self.update(rewards)

    def update(self, rewards: RewardFunction | Sequence[RewardFunction]) -> None:
        """Take up edited rewards and score the same completions again.

        A weight that was moved stays where it is, unless the reward of that name now carries another weight than before.

        Raises:
            ValueError: As the constructor; the lab then keeps the rewards it has.
        """
        listed, before, moved = reward_list(rewards), weights_by_name(self._rewards), self.weights
        carried = weights_by_name(listed)
        self._rewards = listed
        self._show_weights({n: moved[n] if n in moved and before[n] == w else w for n, w in carried.items()})
        self._forget()
        self._rescore()

    @property
    def row_number(self) -> int:
        """Which row is shown, from 0."""
        return self._row.value

    @row_number.setter
    def row_number(self, number: int) -> None:
        if not 0 <= number < len(self._rows):
            raise ValueError(f"row_number = {number!r} must be between 0 and {len(self._rows) - 1}.")
        self._row.value = number

    @property
    def row(self) -> dict[str, Any]:
        """The row shown, with all its columns."""
        return dict(self._rows[self.row_number])

    @property
    def completions(self) -> list[str]:
        """The texts in the boxes: one group."""
        return [entry.box.value for entry in self._entries.children]

    @completions.setter
    def completions(self, texts: Sequence[str]) -> None:
        if isinstance(texts, str) or not len(texts):
            raise ValueError(f"completions = {texts!r} must be a list of at least one text.")
        for text in texts:
            if displayable(text) != text:
                raise ValueError(
                    f"{text[:60]!r} holds a lone surrogate or NUL, which no text box can show. "
                    "Score it with gn.score(...) instead."
                )
        self._set_completions(list(texts))

    @property
    def advantages(self) -> list[float]:
        """The advantages shown."""
        return self.scores.advantages() if self.scores is not None else []

    def __repr__(self) -> str:
        totals = "not scored" if self.scores is None else ", ".join(as_score(total) for total in self.scores.totals)
        return (
            f"RewardLab of {', '.join(self.weights)}: row {self.row_number} of {len(self._rows)}, "
            f"{len(self._entries.children)} completion(s), totals {totals}"
        )

    # What there is.

    def _lay_out(self, settings: Settings) -> None:
        last = len(self._rows) - 1
        self._row = above(widgets.BoundedIntText(min=0, max=last, description=f"Row, 0 to {last}"), "150px")
        # Not a flex box, which would squeeze eight completions into its height instead of scrolling.
        self._entries = widgets.VBox(layout={"max_height": "500px", "display": "block"})
        self._entries.add_class("gn-entries")
        self._add_button, self._example_button = button("Add a completion"), button("Right and wrong example")
        self._size = widgets.BoundedIntText(settings.num_generations, min=1, max=256, description="Group size")
        self._temperature = widgets.BoundedFloatText(settings.temperature, min=0.0, max=5.0, step=0.1)
        self._temperature.description = "Temperature"
        self._length = widgets.BoundedIntText(settings.max_completion_length, min=1, max=32_768)
        self._length.description = "Longest, in tokens"
        self._sample_button = button("Sample a group", "primary")
        self._sampling = [above(self._size, "100px"), above(self._temperature, "100px"), above(self._length, "130px")]
        self._reset_button, self._score_button = button("Reset weights"), button("Score again")
        self._marked = above(widgets.Dropdown(options=[_EVERY_REWARD], description="Mark what counted for"), "240px")
        self._status, self._row_view, self._why_not, self._table, self._cards, self._report_view = (
            view() for _ in range(6)
        )
        self._check_button = button("Check the rewards on this row", "primary")
        self._status.add_class("gn-status")
        if self.model is None:
            for control in (*self._sampling, self._sample_button):
                control.disabled = True
            self._why_not.value = _NO_MODEL
        row = section("The row", "training rows of the task", self._row, self._row_view, flex="1 1 350px")
        buttons = (line([self._add_button, self._example_button]), line([*self._sampling, self._sample_button]))
        shown = (self._entries, *buttons, self._why_not)
        completions = section("Completions", "one group, scored as you leave a box", *shown, flex="1 1 420px")
        moving = "move a weight: totals and advantages follow, no reward is called again"
        weights = line([self._weights, self._reset_button, self._score_button])
        looked = "the parts of the text that each reward looked at"
        self.children = [
            self._header(),
            widgets.HBox([row, completions], layout={"flex_flow": "row wrap", "align_items": "stretch"}),
            self._status,
            self._errors,
            section("Scores", moving, weights, self._table),
            section("Where it came from", looked, self._marked, self._cards),
            section("The check", "what the machine finds on this row", self._check_button, self._report_view),
        ]
        self._pictured = [
            ("The row", [self._row_view]),
            ("", [self._errors]),
            ("Scores", [self._table]),
            ("Where it came from", [self._cards]),
            ("The check", [self._report_view]),
        ]

    def _connect(self) -> None:
        for pressed, callback in (
            (self._add_button, self._add),
            (self._example_button, self._show_examples),
            (self._sample_button, self._sample),
            (self._reset_button, self._reset_weights),
            (self._score_button, self._rescore),
            (self._check_button, self._check),
        ):
            pressed.on_click(callback)
        for control, callback in (
            (self._row, self._pick_row),
            (self._marked, self._show_cards),
        ):
            self._on_change(control, callback)

    # What happens.

    def _show_failures(self) -> None:
        if self._failures:
            self._status.value = '<span class="gn-fail">That failed. The reason stands below.</span>'
        errors = self.scores.errors if self.scores is not None else ()
        self._errors.value = views.errors_view([*self._failures, *errors])

    def _forget(self) -> None:
        """Take away what was found on another row or with other rewards: it must not stand beside this one."""
        self.report, self._report_view.value = None, ""

    def _set_completions(self, texts: Sequence[str], are_examples: bool = False) -> None:
        with self._quietly():
            # Entries that are there stay, so that a page keeps their size, and the cursor its place.
            entries = list(self._entries.children[: len(texts)])
            entries += [self._make_entry() for _ in range(len(texts) - len(entries))]
            for entry, text in zip(entries, texts, strict=True):
                entry.box.value = text
        self._are_examples = are_examples
        self._place(entries)
        self._rescore()

    def _make_entry(self) -> Entry:
        entry = Entry()
        self._on_change(entry.box, self._edited)
        entry.remove.on_click(functools.partial(self._remove, entry))
        return entry

    def _place(self, entries: Sequence[Entry]) -> None:
        for number, entry in enumerate(entries, 1):
            entry.name(number, is_alone=len(entries) == 1)
        self._entries.children = entries

    def _edited(self, _: Any) -> None:
        self._are_examples = False
        self._rescore()

    def _add(self, _: Any = None) -> None:
        self._set_completions([*self.completions, ""])

    def _remove(self, removed: Entry, _: Any = None) -> None:
        self._are_examples = False
        self._place([entry for entry in self._entries.children if entry is not removed])
        self._rescore()

    @in_panel
    def _show_examples(self) -> None:
        self._set_completions(example_completions(self.row, self.format, self.answer), are_examples=True)
        self._status.value = ""

    @in_panel
    def _pick_row(self) -> None:
        self._show_row()
        self._forget()
        if self._are_examples:
            self._show_examples()
            return
        self._rescore()
        if self.scores is not None:
            self._status.value = (
                f"Row {self.row_number}: your completions stayed, and are scored against its gold answer now."
            )

    @in_panel
    def _show_row(self) -> None:
        row = self.row
        gold = f"(no column {self.answer!r})" if row.get(self.answer) is None else str(row[self.answer])
        shown = functools.partial(views.row_view, str(row.get("question", "")), gold, self.tokenizer is not None)
        self._row_view.value = shown("")  # a chat template may raise
        self._row_view.value = shown(prompt_text(row, self.tokenizer, self.chat_template_kwargs))

    @in_panel
    def _rescore(self) -> None:
        self.scores = None
        try:
            options = {"tokenizer": self.tokenizer, "weights": self.weights, "on_error": "record"}
            scoring = functools.partial(score, self._rewards, self.completions, self.row, **options)
            self.scores = run_with_deadline(scoring, self.seconds_per_call)
        finally:
            self._show_scores()
        self._status.value = ""

    def _show_scores(self) -> None:
        if self.scores is None:
            self._table.value = '<p class="gn-fail">Not scored.</p>'
            self._cards.value = ""
        else:
            self._table.value = views.scores_view(self.scores, self.advantages)
            self._show_cards()

    @in_panel
    def _show_cards(self) -> None:
        if self.scores is None:
            return
        self._cards.value = ""  # a user's own format object may raise; the scores are right all the same
        rewards = dict(zip(self.weights, self._rewards, strict=True))
        self._cards.value = views.cards_view(self.scores, self.advantages, rewards, self._chosen)

    @property
    def _chosen(self) -> str | None:
        """The reward for which the cards are marked; None for every one."""
        return None if self._marked.value == _EVERY_REWARD else self._marked.value[len("the reward ") :]

    def _show_weights(self, weights: Mapping[str, float]) -> None:
        self._weights.show(weights)
        with self._quietly():
            self._marked.options = [_EVERY_REWARD, *(f"the reward {name}" for name in weights)]

    def _reweigh(self, _: Any) -> None:
        if self.scores is None:
            self._rescore()
            return
        self.scores = reweight(self.scores, self.weights)
        self._show_scores()

    def _reset_weights(self, _: Any = None) -> None:
        with self._quietly():
            self.weights = weights_by_name(self._rewards)
        self._reweigh(None)

    @in_panel
    def _sample(self) -> None:
        if self.model is None:
            raise ValueError(
                "there is no model to sample from: make the lab with RewardLab(rewards, task, model, tokenizer)."
            )
        size = self._size.value
        with self._working(self._sample_button, "Sampling..."):
            self._status.value = f"Sampling {size} completions from the model. The kernel is busy until they are there."
            options = {**self._sampling_options, "chat_template_kwargs": self.chat_template_kwargs}
            group = sample_group(self.model, self.tokenizer, self.row, **options)
        self._set_completions([displayable(text) for text in group])
        self._status.value = f"Sampled {size} completions for row {self.row_number}."

    @property
    def _sampling_options(self) -> dict[str, Any]:
        names = ("num_generations", "temperature", "max_completion_length")
        return {name: control.value for name, control in zip(names, self._sampling, strict=True)}

    @in_panel
    def _check(self) -> None:
        gold_of(self.row, self.answer)
        own = {"format": self.format, "answer": self.answer, "tokenizer": self.tokenizer, "weights": self.weights}
        with self._working(self._check_button, "Checking..."):
            self.report = check_rewards(self._rewards, [self.row], **own)
        self._report_view.value = views.report_view(self.report)
