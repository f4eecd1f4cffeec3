"""Show the reward lab: a widget to try rewards by hand on rows of a task.

It uses only core ipywidgets that versions 7.7 and 8 share. Each control has a text label. Callbacks
run on the kernel's main thread between cells. So no control responds while a cell runs, for example
during a training.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from grpo_nb.checks.rows import training_rows
from grpo_nb.config.settings import Settings
from grpo_nb.core.pages import render
from grpo_nb.core.panels import (
    Panel,
    as_callback,
    button,
    control_description,
    empty_view,
    section,
    with_label_above,
    wrapping_hbox,
)
from grpo_nb.core.words import displayable, format_score
from grpo_nb.lab import views
from grpo_nb.lab.examples import example_completions, prompt_text
from grpo_nb.lab.hand_scores import SCORE_CHOICES, HandScoreFile
from grpo_nb.rewards.answers import golds_in_cell
from grpo_nb.rewards.base import RewardFunction, reward_list, weights_by_name
from grpo_nb.scoring.scores import Scores, score
from grpo_nb.tasks.formats import xml
from grpo_nb.tasks.prompts import with_prompts
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.task import Task


class CompletionEntry(widgets.VBox):
    """Text box and remove button of a completion. A change takes effect when you leave the box."""

    def __init__(self, text: str) -> None:
        self.text_box = with_label_above(
            widgets.Textarea(text, continuous_update=False, rows=4), "100%"
        )
        self.text_box.add_class("gn-text")
        self.remove_button = button("Remove")
        self.remove_button.add_class("gn-remove")
        super().__init__([self.text_box, self.remove_button], layout={"overflow": "visible"})
        self.add_class("gn-entry")


class RewardLab(Panel):
    """A widget to try rewards on rows of a task, with each score, weight, total and advantage.

    The lab starts with a right and a wrong completion of the first row. At every change, scores are
    computed again as a trainer would (`gn.score`). Moving a weight calls no reward. An error of a
    reward is shown together with the completion that caused it.

    From a cell: `lab.set_rewards(rewards)`, `lab.score_by_hand(score)`, `lab.sample()`.
    Read and set `lab.completions` and `lab.settings`. Read `lab.row_number`, `lab.row`,
    `lab.weights`, `lab.scores` and `lab.hand_scores`.

    Args:
        rewards: One or more reward functions. After you edit them in the next cell, pass them to
            `lab.set_rewards(rewards)`, which scores the same completions again.
        task: A task, whose training rows are shown, or a list of dicts or `datasets.Dataset`. Plain
            rows need the gold answer in the column `answer`, and are asked in the format `xml()`.
            For another column or format, use `load_task`.
        model: Model to sample from. All other parts work without it.
        tokenizer: For sampling, for the prompt as the model sees it, and for rewards that read
            token ids.
        settings: Completion length, sampling and group size of `lab.sample()`.
        hand_scores: The .csv file with scores by hand. It is read if it exists. Default: a file
            named after the task, in the current folder.

    Raises:
        ValueError, TypeError: No rows, a reward that is not a function, or two rewards of one name.
        ValueError: `hand_scores` is not a .csv file, cannot be read, or has a score outside 1 to 5.

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
        hand_scores: str | Path | None = None,
    ) -> None:
        rewards = reward_list(rewards)
        rows = training_rows(task)
        if not isinstance(task, Task):
            task = Task("rows", xml(), rows, [])
        super().__init__()
        self.rewards: list[RewardFunction] = rewards
        """Rewards in use. `set_rewards` replaces them."""
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings or Settings()
        self.scores: Scores | None = None
        """Scores shown, with the weights shown; None if scoring itself failed."""
        # The name of a task can be the id of a dataset on the Hub, such as openai/gsm8k.
        file_name = f"{task.name.replace('/', '_')}.hand_scores.csv"
        self._hand_score_file = HandScoreFile(Path(hand_scores or file_name).expanduser())
        self._rows = rows
        self.row: Row = {}
        """The row shown, with all its columns, and with the environment that was scored last."""

        self._make_views()
        self._make_controls()
        self._lay_out()
        self._show_weights(weights_by_name(rewards))
        # If a row or a reward fails, the lab still appears, and shows the error.
        with self.showing_errors():
            self._show_row()
            if golds_in_cell(self.row.get("answer")):
                self._show_examples()
            else:
                self._set_completions([""])

    # ---- For a cell: read, set and call ----

    def set_rewards(self, rewards: RewardFunction | Sequence[RewardFunction]) -> None:
        """Replace the rewards and score the same completions again, with the rewards' own weights.

        Raises:
            ValueError, TypeError: As for the constructor. The lab then keeps its rewards.
        """
        # Both calls come first, because they may raise, and the lab then keeps its rewards.
        rewards = reward_list(rewards)
        weights = weights_by_name(rewards)
        self.rewards = rewards
        self._show_weights(weights)
        self._rescore()

    @property
    def row_number(self) -> int:
        """Number of the row shown, from 0."""
        return self._row_box.value

    @property
    def completions(self) -> list[str]:
        """The texts in the boxes, which are one group.

        Characters that a text box cannot hold, such as NUL, are escaped, and scored as shown.
        """
        return [entry.text_box.value for entry in self._entries.children]

    @completions.setter
    def completions(self, texts: Sequence[str]) -> None:
        if isinstance(texts, str) or not len(texts):
            raise ValueError(f"completions = {texts!r} must be a list with at least one text.")
        self._set_completions(texts)

    @property
    def weights(self) -> dict[str, float]:
        """Weights shown, by reward."""
        return {name: box.value for name, box in self._weight_boxes.items()}

    @property
    def hand_scores(self) -> list[Row]:
        """Scores by hand, the oldest first, as rows for `gn.checks.agreement`."""
        return self._hand_score_file.rows

    def score_by_hand(self, score: float) -> None:
        """Give a score by hand to the first completion without one, and save it.

        Raises:
            ValueError: The score is not from 1 to 5, or every completion has one already.
        """
        existing = self._hand_score_file.scores_of(self._question, self.completions)
        if None not in existing:
            raise ValueError(
                "each completion shown has a score by hand. Show other completions, or correct a "
                f"score in {self._hand_score_file.path} and make a new lab."
            )
        self._hand_score_file.add(self._question, self.completions[existing.index(None)], score)
        self._show_hand_scores()

    def sample(self) -> None:
        """Replace the completions by a group sampled from the model.

        Raises:
            ValueError: The task has tools, or there is no model or tokenizer.
        """
        if self.task.tools is not None:
            raise ValueError(
                "an episode with tools does not fit into a text box. Run one with "
                "gn.lab.ManualEpisode(task, row_number)."
            )
        if self.model is None or self.tokenizer is None:
            raise ValueError(
                "sampling needs a model and its tokenizer. Write "
                "RewardLab(rewards, task, model, tokenizer)."
            )
        from grpo_nb.generation.sampling import generate  # imports torch, which the rest does not

        size = self.settings.num_generations
        self._status.value = (
            f"Sampling {size} completions from the model. The kernel is busy until they are there."
        )
        try:
            group = generate(
                self.model,
                self.tokenizer,
                [self._row_with_prompt()] * size,
                temperature=self.settings.temperature,
                sampling_parameters=self.settings.sampling_besides_temperature,
                max_completion_length=self.settings.max_completion_length,
                chat_template_kwargs=self.task.chat_template_kwargs,
                shared_prompts=self.settings.shared_prompts,
            )
        finally:
            # After an error, the line must not say that the kernel is still busy.
            self._status.value = ""
        self._set_completions([completion.text for completion in group])
        self._status.value = f"Sampled {size} completions for row {self.row_number}."

    def __repr__(self) -> str:
        return (
            f"RewardLab of {', '.join(self.weights)}: row {self.row_number} of {len(self._rows)}, "
            f"{len(self.completions)} completion(s)"
        )

    # ---- Controls and layout ----

    def _make_views(self) -> None:
        # `_static_views` lists the views of a page that cannot show widgets, such as GitHub's.
        self._row_view = empty_view()
        self._status = empty_view()
        self._status.add_class("gn-status")
        self._scores_view = empty_view()
        self._marks_view = empty_view()
        self._hand_score_view = empty_view()
        self._static_views = [
            ("The row", self._row_view),
            ("", self._error_view),
            ("Scores", self._scores_view),
            ("Where it came from", self._marks_view),
            ("Scores by hand", self._hand_score_view),
        ]

    def _make_controls(self) -> None:
        last = len(self._rows) - 1
        row_box = widgets.BoundedIntText(min=0, max=last, description=f"Row, 0 to {last}")
        self._row_box = with_label_above(row_box, "150px")
        self._row_box.observe(self._pick_row, "value")
        # No flex box: it would squeeze eight completions into its height instead of scrolling.
        self._entries = widgets.VBox(layout={"max_height": "500px", "display": "block"})
        self._entries.add_class("gn-entries")
        self._weight_line = wrapping_hbox([])
        score_buttons = []
        for choice in SCORE_CHOICES:
            callback = functools.partial(self.score_by_hand, choice)
            score_buttons.append(self._button(f"{choice}", callback))
        self._hand_score_buttons = wrapping_hbox(score_buttons)

    def _lay_out(self) -> None:
        row_section = section(
            "The row",
            "training rows of the task; another row keeps the completions",
            self._row_box,
            self._row_view,
            flex="1 1 350px",
        )
        buttons = [
            self._button("Add a completion", self._add_entry),
            self._button("Right and wrong example", self._show_examples),
            self._button("Sample a group", self.sample, "primary"),
        ]
        completions_section = section(
            "Completions",
            "one group, scored as you leave a box",
            self._entries,
            wrapping_hbox(buttons),
            flex="1 1 420px",
        )
        self.children = [
            self._header(),
            widgets.HBox(
                [row_section, completions_section],
                layout={"flex_flow": "row wrap", "align_items": "stretch"},
            ),
            self._status,
            self._error_view,
            section(
                "Scores",
                "change a weight: totals and advantages follow, no reward is called again",
                self._weight_line,
                self._scores_view,
            ),
            section(
                "Where it came from",
                "the parts of the text that rewards looked at",
                self._marks_view,
            ),
            section(
                "Scores by hand",
                "to compare with a judge",
                self._hand_score_view,
                self._hand_score_buttons,
            ),
        ]

    def _button(self, text: str, callback: Callable[[], object], style: str = "") -> widgets.Button:
        """Return a button that calls `callback` and shows its errors in the panel."""

        def on_click(_: widgets.Button) -> None:
            with self.showing_errors():
                callback()

        control = button(text, style)
        control.on_click(on_click)
        return control

    def _show_weights(self, weights: Mapping[str, float]) -> None:
        # `weights` reads these boxes: a second copy of the weights could differ from those shown.
        self._weight_boxes: dict[str, widgets.FloatText] = {}
        for name, weight in weights.items():
            box = widgets.FloatText(weight, step=0.1, description=control_description(name))
            box.observe(self._reweigh, "value")
            self._weight_boxes[name] = with_label_above(box, "130px")
        self._weight_line.children = list(self._weight_boxes.values())

    # ---- Rows and completions ----

    @as_callback
    def _pick_row(self) -> None:
        # The completions stay: somebody may have written them.
        self._show_row()
        self._rescore()

    @as_callback
    def _show_row(self) -> None:
        self.row = dict(self._rows[self.row_number])
        # Cleared first: if the prompt cannot be made, the view must not show the earlier row.
        self._row_view.value = ""
        self._row_view.value = render(
            "lab/templates/row.jinja",
            question=self.row.get("question", ""),
            gold=self.row.get("answer", "(no column 'answer')"),
            prompt=prompt_text(self._row_with_prompt(), self.tokenizer, self.task.render_kwargs),
        )

    def _row_with_prompt(self) -> Row:
        """Return the row shown, with the prompt as the model gets it."""
        row = self._rows[self.row_number]
        # A row with a question alone gets the prompt that a task would make.
        if "prompt" not in row and "question" in row:
            (row,) = with_prompts([row], self.task.format)
        return self.task.start_episode(row)

    def _show_examples(self) -> None:
        self._set_completions(example_completions(self.row, self.task.format))

    def _set_completions(self, texts: Sequence[str]) -> None:
        self._show_entries([self._new_entry(text) for text in texts])
        self._rescore()

    def _new_entry(self, text: str) -> CompletionEntry:
        # A text box cannot hold NUL or a lone surrogate, which a model can write.
        entry = CompletionEntry(displayable(text))
        entry.text_box.observe(self._rescore, "value")
        entry.remove_button.on_click(lambda _: self._remove_entry(entry))
        return entry

    def _show_entries(self, entries: Sequence[CompletionEntry]) -> None:
        for number, entry in enumerate(entries, 1):
            entry.text_box.description = f"Completion {number}"
            entry.remove_button.tooltip = f"Remove completion {number}"
            # An empty group cannot be scored, so the last box stays.
            entry.remove_button.disabled = len(entries) == 1
        self._entries.children = entries

    def _add_entry(self) -> None:
        self._show_entries([*self._entries.children, self._new_entry("")])
        self._rescore()

    def _remove_entry(self, removed: CompletionEntry) -> None:
        self._show_entries([entry for entry in self._entries.children if entry is not removed])
        self._rescore()

    # ---- Scores ----

    @as_callback
    def _rescore(self) -> None:
        self.scores = None
        # If scoring fails, `scores` stays None, and the table shows "Not scored" instead of the
        # earlier numbers.
        try:
            # Each time, a new episode is started, because a reward may change the environment.
            self.row = self.task.start_episode(self._rows[self.row_number])
            scores = score(
                self.rewards,
                self.completions,
                self.row,
                tokenizer=self.tokenizer,
            )
            self.scores = dataclasses.replace(scores, weights=self.weights)
        finally:
            # An earlier "Sampled 8 completions" is no longer true of the completions shown.
            self._status.value = ""
            self._show_scores()

    @as_callback
    def _reweigh(self) -> None:
        # Only a weight has changed, so known scores are weighted again without calling a reward.
        if self.scores is None:
            self._rescore()
            return
        self.scores = dataclasses.replace(self.scores, weights=self.weights)
        self._show_scores()

    def _show_scores(self) -> None:
        self._show_hand_scores()
        self._marks_view.value = ""
        if self.scores is None:
            self._scores_view.value = '<p class="gn-fail">Not scored.</p>'
            return
        self._scores_view.value = views.scores_html(self.scores)
        # Marking may fail in a user's own format, but the scores are right all the same.
        with self.showing_errors():
            self._marks_view.value = views.marks_html(self.scores, self.rewards)

    # ---- Scores by hand ----

    @property
    def _question(self) -> str:
        return str(self.row.get("question") or prompt_text(self.row))

    def _show_hand_scores(self) -> None:
        self._hand_score_view.value = render(
            "lab/templates/hand_scores.jinja",
            texts=self.completions,
            scores=self._hand_score_file.scores_of(self._question, self.completions),
            count=len(self.hand_scores),
            file=self._hand_score_file.path,
            format_score=format_score,
        )
