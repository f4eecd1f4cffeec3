"""The reward lab: a widget to try rewards by hand, on rows of the task and with completions of one's own or of the model.

Views and controls only: what they show is computed by `grpo_nb.lab.numbers`, `gn.score` and `gn.check_rewards`, and can be had
from there without a widget. Core ipywidgets that 7.7 and 8 share: tabs are named with `set_title`, each control has its label
in words, rows wrap on a narrow page. Callbacks run on the kernel's main thread between cells, so nothing here answers while a
cell runs, a training for example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from grpo_nb.checks.agreement import agreement
from grpo_nb.checks.check_rewards import check_rewards
from grpo_nb.checks.report import RewardReport
from grpo_nb.checks.rows import rows_of
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.core.files import write_text
from grpo_nb.core.panels import Panel, above, button, in_panel, label, line, section, view
from grpo_nb.core.tables import bold, html_of
from grpo_nb.core.words import as_score, displayable, require_number
from grpo_nb.lab import views
from grpo_nb.lab.numbers import example_completions, prompt_text, sample_group
from grpo_nb.rewards.answers import gold_answers
from grpo_nb.rewards.base import RewardFunction, reward_list, weights_by_name
from grpo_nb.rewards.judge_model import judge
from grpo_nb.scoring.scores import Scores, reweight, score
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.read_rows import read_rows
from grpo_nb.tasks.task import Task

_EVERY_REWARD = "every reward"
# Buttons for scores by hand: whole numbers as long as they fit on a line, else the ends, the middle and the quarters.
_MOST_BUTTONS = 10
_FEW_BUTTONS = 5
_NO_MODEL = '<span class="gn-soft gn-why">Sampling needs <code>gn.RewardLab(rewards, task, model, tokenizer)</code>.</span>'


class Entry(widgets.VBox):
    """One completion: its text box, which reports a change when it is left, and the button that removes it."""

    def __init__(self) -> None:
        self.box = above(widgets.Textarea(continuous_update=False, rows=4), "100%")
        self.box.add_class("gn-text")
        self.remove = button("Remove")
        self.remove.add_class("gn-remove")
        super().__init__([self.box, self.remove], layout={"overflow": "visible"})
        self.add_class("gn-entry")


class RewardLab(Panel):
    """Try rewards on rows of a task: every score, weight, total and advantage, what earned it, and the machine's check.

    Begins with a right and a wrong completion of the first row. Scores are computed as a trainer would (`gn.score`), again at
    every change; moving a weight calls no reward. What a reward raises is shown with the completion it raised on.

    From a cell: `lab.update(rewards)` and `lab.label(score)`; `lab.row_number`, `lab.completions` and `lab.weights` can be
    read and set; `lab.row`, `lab.scores`, `lab.advantages`, `lab.report` and `lab.labels` can be read. Everything else that
    `help` lists is ipywidgets' own.

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
        labels: The .csv file that scores by hand are kept in, and read from where it is there; if not given, one beside you
            that is named after the task.

    Raises:
        ValueError, TypeError: No rows, something that is no function, two rewards of one name, a model without its tokenizer.

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
        labels: str | Path | None = None,
    ) -> None:
        require(
            "gn.RewardLab(rewards, task, model, tokenizer, settings)",
            optional=("model", "tokenizer", "settings"),
            roles={"task": "rows"},
            rewards=rewards,
            task=task,
            model=model,
            tokenizer=tokenizer,
            settings=settings,
        )
        if model is not None and tokenizer is None:
            raise ValueError(
                "a model needs its tokenizer to be sampled: RewardLab(rewards, task, model, tokenizer)."
            )
        listed, self._rows = reward_list(rewards), rows_of(task)
        super().__init__()
        self.rewards: list[RewardFunction] = listed
        """The rewards in use; `update` takes up others."""
        self.task, self.model, self.tokenizer, self.answer = task, model, tokenizer, answer
        self.format = format or (task.format if isinstance(task, Task) else xml())
        self.tools = task.tools if isinstance(task, Task) else None
        self.chat_template_kwargs = task.chat_template_kwargs if isinstance(task, Task) else {}
        self.seconds_per_call = seconds_per_call
        self.scores: Scores | None = None
        """The scores shown, under the weights shown; None where scoring itself failed."""
        self.report: RewardReport | None = None
        """What `check_rewards` last said of the row."""
        named = task.name.replace("/", "_") if isinstance(task, Task) else "rows"
        self.labels_file = Path(labels or f"{named}.labels.csv")
        """Where scores by hand are kept."""
        self.labels: list[dict[str, Any]] = (
            read_rows(self.labels_file).rows if self.labels_file.is_file() else []
        )
        """Scores by hand, the oldest first, as `gn.checks.agreement` takes them: `question`, `completion`, `score`."""
        self._are_examples = False
        self._lay_out(settings or Settings())
        self._show_scale()
        # Remembered here, since the weight of a function can be changed without a new function.
        self._carried = weights_by_name(listed)
        self._show_weights(self._carried)
        with self.showing_errors():
            self._show_row()
            if gold_answers(self.row.get(answer)):
                self._show_examples()
            else:
                self._set_completions([""])

    # What a cell can read and set.

    def update(self, rewards: RewardFunction | Sequence[RewardFunction]) -> None:
        """Take up edited rewards and score the same completions again.

        A weight that was moved stays where it is, unless the reward of that name now carries another weight than before.

        Raises:
            ValueError: As the constructor; the lab then keeps the rewards it has.
        """
        listed = reward_list(rewards)
        carried, before, moved = weights_by_name(listed), self._carried, self.weights
        self.rewards, self._carried = listed, carried
        weights = {
            name: moved[name] if before.get(name) == weight else weight
            for name, weight in carried.items()
        }
        self._show_weights(weights)
        self._show_scale()
        self.report, self._report_view.value = (
            None,
            "",
        )  # found on another row, or with other rewards
        self._rescore()

    @property
    def row_number(self) -> int:
        """Which row is shown, from 0."""
        return self._row.value

    @row_number.setter
    def row_number(self, number: int) -> None:
        if not 0 <= number < len(self._rows):
            raise ValueError(
                f"row_number = {number!r} must be between 0 and {len(self._rows) - 1}."
            )
        self._row.value = number

    @property
    def row(self) -> dict[str, Any]:
        """The row shown, with all its columns."""
        row = dict(self._rows[self.row_number])
        return row if self.tools is None else self.task.begun(row)

    @property
    def completions(self) -> list[str]:
        """The texts in the boxes: one group. What no text box can hold, such as NUL, is escaped, and scored as it is shown."""
        return [entry.box.value for entry in self._entries.children]

    @completions.setter
    def completions(self, texts: Sequence[str]) -> None:
        if isinstance(texts, str) or not len(texts):
            raise ValueError(f"completions = {texts!r} must be a list of at least one text.")
        self._set_completions(texts)

    @property
    def weights(self) -> dict[str, float]:
        """The weights shown, by reward."""
        return {name: box.value for name, box in self._boxes.items()}

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            self._boxes[name].value = weight

    def label(self, score: float | None) -> None:
        """Give a score by hand to the first completion shown that has none, and save it; None takes the last one back."""
        import pandas

        waiting = [
            text for text, given in zip(self.completions, self._given, strict=True) if given is None
        ]
        if score is None:
            del self.labels[-1:]
        elif waiting:
            require_number("score", score, *self._scale, is_whole=False)
            self.labels.append(
                {"question": self._asked, "completion": waiting[0], "score": float(score)}
            )
        columns = list(self.labels[0]) if self.labels else ["question", "completion", "score"]
        # In quotes: the spaces before a text are part of it.
        write_text(
            self.labels_file,
            pandas.DataFrame(self.labels, columns=columns).to_csv(index=False, quoting=1),
        )
        self._show_labels()

    @property
    def _scale(self) -> tuple[float, float]:
        """The worst and the best score by hand: those of the judge among the rewards."""
        return next((tuple(one.scale) for one in self.rewards if isinstance(one, judge)), (1, 5))

    @property
    def _choices(self) -> list[float]:
        """The scores that have a button: every whole number of a short scale, else five from one end to the other."""
        low, high = self._scale
        if float(low).is_integer() and float(high).is_integer() and high - low <= _MOST_BUTTONS:
            return list(range(int(low), int(high) + 1))
        step = (high - low) / (_FEW_BUTTONS - 1)
        return [float(f"{low + number * step:.6g}") for number in range(_FEW_BUTTONS - 1)] + [high]

    @property
    def _asked(self) -> str:
        return str(self.row.get("question") or prompt_text(self.row))

    @property
    def _given(self) -> list[float | None]:
        """The scores by hand of the completions shown."""
        given = {
            row["completion"]: row["score"]
            for row in self.labels
            if row.get("question") == self._asked
        }
        return [
            None if score in (None, "") else float(score)
            for score in map(given.get, self.completions)
        ]

    @property
    def advantages(self) -> list[float]:
        """The advantages shown."""
        return self.scores.advantages() if self.scores is not None else []

    def __repr__(self) -> str:
        totals = (
            "not scored"
            if self.scores is None
            else ", ".join(as_score(total) for total in self.scores.totals)
        )
        shown = f"row {self.row_number} of {len(self._rows)}, {len(self._entries.children)} completion(s)"
        return f"RewardLab of {', '.join(self.weights)}: {shown}, totals {totals}"

    # What there is.

    def _lay_out(self, settings: Settings) -> None:
        last = len(self._rows) - 1
        self._row = above(
            widgets.BoundedIntText(min=0, max=last, description=f"Row, 0 to {last}"), "150px"
        )
        self._answers(self._row, self._pick_row)
        self._marked = above(
            widgets.Dropdown(options=[_EVERY_REWARD], description="Mark what counted for"), "240px"
        )
        self._answers(self._marked, self._show_cards)
        # Not a flex box, which would squeeze eight completions into its height instead of scrolling.
        self._entries = widgets.VBox(layout={"max_height": "500px", "display": "block"})
        self._entries.add_class("gn-entries")
        self._size = widgets.BoundedIntText(
            settings.num_generations, min=1, max=256, description="Group size"
        )
        self._temperature = widgets.BoundedFloatText(
            settings.temperature, min=0.0, max=5.0, step=0.1
        )
        self._length = widgets.BoundedIntText(settings.max_completion_length, min=1, max=32_768)
        self._temperature.description, self._length.description = (
            "Temperature",
            "Longest, in tokens",
        )
        self._add_button = self._button("Add a completion", self._add)
        self._example_button = self._button("Right and wrong example", self._show_examples)
        self._sample_button = self._button("Sample a group", self._sample, "primary")
        self._reset_button = self._button("Reset weights", self._reset_weights)
        self._score_button = self._button("Score again", self._rescore)
        self._check_button = self._button("Check the rewards on this row", self._check, "primary")
        self._status, self._row_view, self._table, self._cards, self._report_view = (
            view() for _ in range(5)
        )
        self._status.add_class("gn-status")
        sampling = [
            above(control, "115px") for control in (self._size, self._temperature, self._length)
        ]
        for control in (*sampling, self._sample_button):
            control.disabled = self.model is None
        self._weights = line([])
        self._label_view, self._labels_view = view(), view()
        self._key = above(widgets.Text(), "150px")
        self._answers(self._key, self._press)
        self._buttons = line([])
        by_hand = section(
            "Scores by hand",
            "to measure a judge by",
            self._label_view,
            self._buttons,
            self._labels_view,
        )
        row = section(
            "The row", "training rows of the task", self._row, self._row_view, flex="1 1 350px"
        )
        shown = [
            self._entries,
            line([self._add_button, self._example_button]),
            line([*sampling, self._sample_button]),
        ]
        shown += [widgets.HTML(_NO_MODEL)] if self.model is None else []
        completions = section(
            "Completions", "one group, scored as you leave a box", *shown, flex="1 1 420px"
        )
        moving = "move a weight: totals and advantages follow, no reward is called again"
        weights = line([self._weights, self._reset_button, self._score_button])
        looked = "the parts of the text that each reward looked at"
        self.children = [
            self._header(),
            widgets.HBox(
                [row, completions], layout={"flex_flow": "row wrap", "align_items": "stretch"}
            ),
            self._status,
            self._errors,
            section("Scores", moving, weights, self._table),
            section("Where it came from", looked, self._marked, self._cards),
            by_hand,
            section(
                "The check",
                "what the machine finds on this row",
                self._check_button,
                self._report_view,
            ),
        ]
        self._pictured = [
            ("The row", [self._row_view]), ("", [self._errors]), ("Scores", [self._table]),
            ("Where it came from", [self._cards]), ("The check", [self._report_view]),
            ("Scores by hand", [self._label_view, self._labels_view]),
        ]  # fmt: skip

    def _button(
        self, text: str, callback: Callable[..., object], style: str = ""
    ) -> widgets.Button:
        made = button(text, style)
        made.on_click(callback)
        return made

    def _answers(self, control: widgets.Widget, callback: Callable[..., object]) -> None:
        """Have a callback answer to each new value of a control, but for what is changed `_quietly`."""
        control.observe(lambda change: self._is_quiet or callback(change), "value")

    # What happens.

    def _show_failures(self) -> None:
        if self._failures:
            self._status.value = (
                '<span class="gn-fail">That failed. The reason stands below.</span>'
            )
        errors = self.scores.errors if self.scores is not None else ()
        self._errors.value = views.errors_view([*self._failures, *errors])

    def _set_completions(self, texts: Sequence[str], are_examples: bool = False) -> None:
        with self._quietly():
            # Entries that are there stay, so that a page keeps their size, and the cursor its place.
            entries = list(self._entries.children[: len(texts)])
            for number, text in enumerate(texts):
                if number == len(entries):
                    entries.append(Entry())
                    self._answers(entries[-1].box, self._edited)
                    entries[-1].remove.on_click(functools.partial(self._remove, entries[-1]))
                entries[number].box.value = displayable(text)
        self._place(entries)
        self._are_examples = are_examples
        self._rescore()

    def _place(self, entries: Sequence[Entry]) -> None:
        for number, entry in enumerate(entries, 1):
            entry.box.description, entry.remove.tooltip = (
                f"Completion {number}",
                f"Remove completion {number}",
            )
            entry.remove.disabled = len(entries) == 1
        self._entries.children = entries

    def _edited(self, _: Any) -> None:
        self._are_examples = False
        self._rescore()

    def _add(self, _: Any) -> None:
        self._set_completions([*self.completions, ""])

    def _remove(self, removed: Entry, _: Any) -> None:
        self._place([entry for entry in self._entries.children if entry is not removed])
        self._edited(_)

    @in_panel
    def _show_examples(self) -> None:
        self._set_completions(
            example_completions(self.row, self.format, self.answer), are_examples=True
        )

    @in_panel
    def _pick_row(self) -> None:
        self._show_row()
        self.report, self._report_view.value = (
            None,
            "",
        )  # found on another row, or with other rewards
        if self._are_examples:
            self._show_examples()
            return
        self._rescore()
        self._status.value = f"Row {self.row_number}: your completions stayed, and are scored against its gold answer now."

    @in_panel
    def _show_row(self) -> None:
        gold = self.row.get(self.answer, f"(no column {self.answer!r})")
        shown = functools.partial(
            views.row_view, self.row.get("question", ""), gold, self.tokenizer is not None
        )
        self._row_view.value = shown("")  # a chat template may raise
        is_played = self.tools is not None and self.tokenizer is not None
        how = self.task.template_kwargs if is_played else self.chat_template_kwargs
        self._row_view.value = shown(prompt_text(self.row, self.tokenizer, how))

    @in_panel
    def _rescore(self) -> None:
        self.scores = None
        try:
            options = {"tokenizer": self.tokenizer, "weights": self.weights, "on_error": "record"}
            scoring = functools.partial(score, self.rewards, self.completions, self.row, **options)
            self.scores = run_with_deadline(scoring, self.seconds_per_call)
        finally:
            self._show_scores()
        self._status.value = ""

    def _show_labels(self) -> None:
        self._label_view.value = views.labels_view(
            self.completions, self._given, self.labels, self.labels_file
        )

    def _show_scale(self) -> None:
        """Offer a button for each choice of the scale in use, and say which key gives it."""
        choices = self._choices
        is_whole = all(isinstance(choice, int) for choice in choices)
        self._key.description = (
            "Or press its key here" if is_whole else f"Or a key, 1 to {len(choices)}"
        )
        given = [
            self._button(f"{choice:g}", functools.partial(self._give, choice)) for choice in choices
        ]
        back = self._button("Take the last one back", functools.partial(self._give, None))
        beside = self._button("Person and judge side by side", self._show_beside, "primary")
        self._buttons.children = [*given, back, self._key, beside]

    def _give(self, score: float | None, _: Any = None) -> None:
        with self.showing_errors():
            self.label(score)

    def _press(self, change: Any) -> None:
        with self._quietly():
            self._key.value = ""
        key = change["new"].strip()[-1:]  # the last, where two came before the box was emptied
        if not key.isdecimal():
            return
        choices = self._choices
        if all(isinstance(choice, int) for choice in choices):
            self._give(int(key))
        elif 1 <= int(key) <= len(choices):
            self._give(choices[int(key) - 1])

    @in_panel
    def _show_beside(self) -> None:
        judged = [
            agreement(one, self.labels, probe=False)
            for one in self.rewards
            if isinstance(one, judge)
        ]
        parts = [part for found in judged for part in (bold(found.sentence), found.side_by_side())]
        shown = html_of(parts) or "No reward here is a judge."
        self._labels_view.value = f'<div class="gn-scroll gn-report">{shown}</div>'

    def _show_scores(self) -> None:
        self._show_labels()
        if self.scores is None:
            self._table.value, self._cards.value = '<p class="gn-fail">Not scored.</p>', ""
        else:
            self._table.value = views.scores_view(self.scores, self.advantages)
            self._show_cards()

    @in_panel
    def _show_cards(self) -> None:
        if self.scores is None:
            return
        self._cards.value = (
            ""  # a user's own format object may raise; the scores are right all the same
        )
        chosen = None if self._marked.value == _EVERY_REWARD else self._marked.value
        rewards = dict(zip(self.weights, self.rewards, strict=True))
        self._cards.value = views.cards_view(self.scores, self.advantages, rewards, chosen)

    def _show_weights(self, weights: Mapping[str, float]) -> None:
        shown = {
            name: widgets.FloatText(value, step=0.1, description=label(name))
            for name, value in weights.items()
        }
        self._boxes = {name: above(box, "130px") for name, box in shown.items()}
        self._weights.children = list(self._boxes.values())
        for box in self._boxes.values():
            self._answers(box, self._reweigh)
        with self._quietly():
            self._marked.options = [_EVERY_REWARD, *weights]

    def _reweigh(self, _: Any) -> None:
        if self.scores is None:
            self._rescore()
            return
        self.scores = reweight(self.scores, self.weights)
        self._show_scores()

    def _reset_weights(self, _: Any) -> None:
        with self._quietly():
            self.weights = weights_by_name(self.rewards)
        self._reweigh(_)

    @in_panel
    def _sample(self) -> None:
        if self.tools is not None:
            raise ValueError(
                "an episode with tools is no text for a box: gn.lab.ByHand(task, row) plays one."
            )
        size, self._sample_button.disabled = self._size.value, True
        self._status.value = (
            f"Sampling {size} completions from the model. The kernel is busy until they are there."
        )
        try:
            group = sample_group(
                self.model, self.tokenizer, self.row, num_generations=size, temperature=self._temperature.value,
                max_completion_length=self._length.value, chat_template_kwargs=self.chat_template_kwargs,
            )  # fmt: skip
        finally:
            self._sample_button.disabled = False
        self._set_completions(group)
        self._status.value = f"Sampled {size} completions for row {self.row_number}."

    @in_panel
    def _check(self) -> None:
        own = {
            "format": self.format,
            "answer": self.answer,
            "tokenizer": self.tokenizer,
            "weights": self.weights,
        }
        self.report = check_rewards(self.rewards, [self.row], **own)
        self._report_view.value = (
            f'<div class="gn-scroll gn-report">{self.report._repr_html_()}</div>'
        )
