"""The reward lab: a widget to try rewards by hand, on rows of the task and with completions of one's own or of the model.

Views and controls only: what they show is computed by `grpo_nb.lab`, `grpo_nb.scoring` and `grpo_nb.checks`, and can be had
from there without a widget. Core ipywidgets, 7.7 to 8. Callbacks run on the kernel's main thread between cells, so nothing
here answers while a cell runs, a training for example.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb import lab_html as views
from grpo_nb.config import Settings
from grpo_nb.data import Task
from grpo_nb.deadlines import run_with_deadline
from grpo_nb.findings import RewardReport
from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.lab import ProbeTable, example_completions, prompt_text, rows_of, sample_group
from grpo_nb.lab_code import CodeLines, notebook_lines
from grpo_nb.lab_controls import EVERY_REWARD, Entry, LabControls, in_panel, weight_box
from grpo_nb.lab_tabs import CasesTab, ProbesTab
from grpo_nb.reward_calls import RewardFunction, displayable, reward_name
from grpo_nb.rewards.base import weight_of, weights_by_name
from grpo_nb.rewards.slot import gold_answers
from grpo_nb.scoring import Scores, reweight, score


def _listed(rewards: RewardFunction | Sequence[RewardFunction]) -> list[RewardFunction]:
    listed = [rewards] if callable(rewards) else list(rewards)
    if not listed:
        raise ValueError("rewards is empty: without a reward there is nothing to try.")
    weights_by_name(listed)
    return listed


class RewardLab(LabControls):
    """Try rewards on rows of a task: every score, weight, total and advantage, what earned it, probes, and cases to keep.

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
        cases: The file for cases kept, which `check_rewards(..., cases=path)` runs.
        seconds_per_call: After so long a scoring is stopped, and says so.

    Raises:
        ValueError: No rows, something that is no function, two rewards of one name, or a model without its tokenizer.

    >>> from grpo_nb.rewards import correctness
    >>> lab = RewardLab([correctness()], [{"question": "What is 20 + 3?", "answer": "23"}])
    >>> lab.scores.totals
    (2.0, 0.0)
    """

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
        cases: str | Path = "reward_cases.jsonl",
        seconds_per_call: float = 20.0,
    ) -> None:
        if model is not None and tokenizer is None:
            raise ValueError("a model needs its tokenizer to be sampled: RewardLab(rewards, task, model, tokenizer).")
        self._rows = rows_of(task)
        self._given_rewards, self._rewards = rewards, _listed(rewards)
        super().__init__(rows=len(self._rows), settings=settings or Settings(), has_model=model is not None)
        self.task, self.model, self.tokenizer, self.answer = task, model, tokenizer, answer
        self.format = format or (task.format if isinstance(task, Task) else xml())
        self.seconds_per_call = seconds_per_call
        self.scores: Scores | None = None
        """The scores shown, under the weights shown; None where scoring itself failed."""
        self._failures: list[BaseException] = []
        self._are_examples = False
        self._cases = CasesTab(self, str(cases))
        self._probes = ProbesTab(self, self._cases)
        self._add_tabs([("Probes", self._probes), ("Cases to keep", self._cases)])
        self._pictured.append(("Probes", [self._probes.table, self._probes.report_view]))
        self._connect()
        self._show_weights({reward_name(reward): weight_of(reward) for reward in self._rewards})
        self._show_row()
        self._cases.show()
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
        listed = _listed(rewards)
        before = {reward_name(reward): weight_of(reward) for reward in self._rewards}
        moved = self.weights
        carried = {reward_name(reward): weight_of(reward) for reward in listed}
        self._given_rewards, self._rewards = rewards, listed
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
    def weights(self) -> dict[str, float]:
        """The weights shown, by reward."""
        return {name: box.value for name, box in self._weight_boxes.items()}

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            if name not in self._weight_boxes:
                raise ValueError(f"weights names {name!r}, but the rewards are {list(self._weight_boxes)}.")
            self._weight_boxes[name].value = weight

    @property
    def advantages(self) -> list[float]:
        """The advantages shown."""
        return self.scores.advantages() if self.scores is not None else []

    @property
    def moved_weights(self) -> dict[str, float]:
        """The weights shown that are not those that the rewards carry."""
        carried = {reward_name(reward): weight_of(reward) for reward in self._rewards}
        return {name: weight for name, weight in self.weights.items() if weight != carried[name]}

    @property
    def probes(self) -> ProbeTable | None:
        """The probes last run on the row."""
        return self._probes.found

    @property
    def report(self) -> RewardReport | None:
        """What `check_rewards` last said of the row."""
        return self._probes.report

    def __repr__(self) -> str:
        totals = "not scored" if self.scores is None else ", ".join(views.number(total) for total in self.scores.totals)
        return (
            f"RewardLab of {', '.join(self._weight_boxes)}: row {self.row_number} of {len(self._rows)}, "
            f"{len(self._entries.children)} completion(s), totals {totals}"
        )

    # What happens.

    def _connect(self) -> None:
        for pressed, callback in (
            (self._add_button, self._add),
            (self._example_button, self._show_examples),
            (self._sample_button, self._sample),
            (self._reset_button, self._reset_weights),
            (self._score_button, self._rescore),
        ):
            pressed.on_click(callback)
        for control in (self._size, self._temperature, self._length):
            control.observe(self._show_code, "value")
        self._row.observe(self._pick_row, "value")
        self._marked.observe(self._show_cards, "value")

    @contextlib.contextmanager
    def showing_errors(self) -> Iterator[None]:
        """Show in the lab what is raised inside."""
        self._failures = []
        try:
            yield
        except Exception as error:
            self._failures = [error]
            self._status.value = '<span class="gn-fail">That failed. The reason stands below.</span>'
        self._show_errors()

    def _forget(self) -> None:
        """Take away what was found on another row or with other rewards."""
        self._probes.forget()
        self._cases.result.value = ""

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
        entry.box.observe(self._edited, "value")
        entry.remove.on_click(functools.partial(self._remove, entry))
        return entry

    def _place(self, entries: Sequence[Entry]) -> None:
        for number, entry in enumerate(entries, 1):
            entry.name(number, is_alone=len(entries) == 1)
        self._entries.children = entries
        with self._quietly():
            self._cases.completion.options = [(f"Completion {i + 1}", i) for i in range(len(entries))]

    def _edited(self, _: Any) -> None:
        if not self._is_quiet:
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

    def _pick_row(self, _: Any) -> None:
        self._show_row()
        self._forget()
        if self._are_examples:
            self._show_examples()
        else:
            self._rescore()
            self._status.value = (
                f"Row {self.row_number}: your completions stayed, and are scored against its gold answer now."
            )

    @in_panel
    def _show_row(self) -> None:
        row = self.row
        self._row_code.value = views.code(self.code_lines().prompt)
        gold = row.get(self.answer)
        shown = f"(no column {self.answer!r})" if gold is None else str(gold)
        self._row_view.value = views.row_view(str(row.get("question", "")), shown, "", self.tokenizer is not None)
        prompt = prompt_text(row, self.tokenizer)
        self._row_view.value = views.row_view(str(row.get("question", "")), shown, prompt, self.tokenizer is not None)

    @in_panel
    def _rescore(self) -> None:
        self.scores = None
        try:
            self.scores = run_with_deadline(
                lambda: score(
                    self._rewards, self.completions, self.row, tokenizer=self.tokenizer, weights=self.weights, on_error="record"
                ),
                self.seconds_per_call,
            )  # fmt: skip
        finally:
            self._show_scores()
        self._cases.suggest()
        self._status.value = ""

    def _show_scores(self) -> None:
        if self.scores is None:
            self._table.value = '<p class="gn-fail">Not scored.</p>'
            self._cards.value = ""
        else:
            self._table.value = views.scores_view(self.scores, self.advantages)
            self._show_cards()
        self._show_code()

    def _show_errors(self) -> None:
        errors = self.scores.errors if self.scores is not None else ()
        self._errors.value = views.errors_view([*self._failures, *errors])

    def _show_cards(self, _: Any = None) -> None:
        if self.scores is None or self._is_quiet:
            return
        rewards = {reward_name(reward): reward for reward in self._rewards}
        chosen = None if self._marked.value == EVERY_REWARD else self._marked.value[len("the reward ") :]
        try:
            self._cards.value = views.cards_view(self.scores, self.advantages, rewards, chosen)
        except Exception as error:  # a user's own format object may raise; the scores are right all the same
            self._failures.append(error)
            self._cards.value = ""
        self._show_code()

    def _show_weights(self, weights: Mapping[str, float]) -> None:
        self._weight_boxes = {}
        for name, weight in weights.items():
            self._weight_boxes[name] = weight_box(name, weight)
            self._weight_boxes[name].observe(self._reweigh, "value")
        self._weights_box.children = list(self._weight_boxes.values())
        with self._quietly():
            self._marked.options = [EVERY_REWARD, *(f"the reward {name}" for name in weights)]
            self._cases.reward.options = list(weights)

    def _reweigh(self, _: Any) -> None:
        if self._is_quiet:
            return
        if self.scores is None:
            self._rescore()
            return
        self.scores = reweight(self.scores, self.weights)
        self._show_scores()

    def _reset_weights(self, _: Any = None) -> None:
        with self._quietly():
            self.weights = {reward_name(reward): weight_of(reward) for reward in self._rewards}
        self._reweigh(None)

    @in_panel
    def _sample(self) -> None:
        if self.model is None:
            raise ValueError(
                "there is no model to sample from: make the lab with RewardLab(rewards, task, model, tokenizer)."
            )
        size = self._size.value
        self._sample_button.disabled, self._sample_button.description = True, "Sampling..."
        self._status.value = f"Sampling {size} completions from the model. The kernel is busy until they are there."
        try:
            group = sample_group(
                self.model, self.tokenizer, self.row, num_generations=size, temperature=self._temperature.value,
                max_completion_length=self._length.value,
            )  # fmt: skip
        finally:
            self._sample_button.disabled, self._sample_button.description = False, "Sample a group"
        self._set_completions([displayable(text) for text in group])
        self._status.value = f"Sampled {size} completions for row {self.row_number}."

    # The code under the views.

    def code_lines(self) -> CodeLines:
        """Return the lines of code for what is shown."""
        return notebook_lines(self, self._given_rewards)

    def _show_code(self, _: Any = None) -> None:
        lines, texts = self.code_lines(), self.completions
        has_failed = self.scores is not None and bool(self.scores.errors)
        self._table_code.value = views.code(lines.score(texts, has_failed))
        self._weights_code.value = views.code(lines.reweight(texts, self.weights, has_failed), "with these weights")
        chosen = self._marked.index - 1 if self._marked.value != EVERY_REWARD else 0
        self._cards_code.value = views.code(lines.spans(max(chosen, 0), texts, 0), "the marks in code")
        if self.model is not None:
            line = lines.sample(self._size.value, self._temperature.value, self._length.value)
            self._sample_code.value = views.code(line)
