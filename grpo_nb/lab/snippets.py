"""The line of code under each view of the reward lab, in the names of the user's own notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython import get_ipython

from grpo_nb.core.text import name_in
from grpo_nb.tasks.task import Task

# Completions longer than this together are named, not spelt out: nobody reads or copies a line of a hundred pages.
_LITERAL_LENGTH = 1500


class CodeLines:
    """The line of code that gives what each view of a lab shows, in the names of the notebook that it stands in.

    Where there is no notebook, the names are those of the lab's constructor.

    Args:
        lab: A `RewardLab`.
        given_rewards: What its user gave as rewards: the object that the notebook has a name for, as long as it is a list of
            the rewards in use.
    """

    def __init__(self, lab: Any, given_rewards: Any) -> None:
        shell = get_ipython()
        names: Mapping[str, Any] = shell.user_ns if shell is not None else {}
        self._of, self.lab = lab, name_in(names, lab, "lab")

        def name(value: Any, part: str) -> str:
            return name_in(names, value, part if shell is None else f"{self.lab}.{part}") if value is not None else ""

        as_given = isinstance(given_rewards, list) and given_rewards == lab.rewards
        self.rewards = name(given_rewards, "rewards") if as_given else f"{self.lab}.rewards"
        self.task, self.model = name(lab.task, "task"), name(lab.model, "model")
        self.tokenizer = name(lab.tokenizer, "tokenizer")
        is_task = isinstance(lab.task, Task)
        self.row = f"{self.task}{'.train' if is_task else ''}[{lab.row_number}]"
        self._with_tokenizer = f", tokenizer={self.tokenizer}" if self.tokenizer else ""
        self._chat = f", chat_template_kwargs={self.task}.chat_template_kwargs" if lab.chat_template_kwargs else ""
        self._options = f", format={self.task if is_task else self.lab}.format"
        self._options += f", answer={lab.answer!r}" if lab.answer != "answer" else ""
        self._options += f", weights={lab.moved_weights!r}" if lab.moved_weights else ""
        self._options += self._with_tokenizer

    def prompt(self) -> str:
        """The prompt as the model sees it."""
        rest = f", {self.tokenizer}{self._chat}" if self.tokenizer else ""
        return f"from grpo_nb.lab import prompt_text; print(prompt_text({self.row}{rest}))"

    def sample(self, options: Mapping[str, float]) -> str:
        """A group sampled from the model."""
        given = ", ".join(
            [self.model, self.tokenizer, self.row, *(f"{name}={value:g}" for name, value in options.items())]
        )
        return f"from grpo_nb.lab import sample_group; completions = sample_group({given}{self._chat})"

    def score(self) -> str:
        """The scores, under the weights that the rewards carry."""
        rest = ', on_error="record"' if self._of.scores is not None and self._of.scores.errors else ""
        given = self._literal(self._of.completions, "completions")
        return f"gn.score({self.rewards}, {given}, {self.row}{self._with_tokenizer}{rest})"

    def reweight(self) -> str:
        """Totals and advantages under the weights that are shown."""
        return f"gn.rewards.reweight({self.score()}, {self._of.weights!r}).advantages()"

    def spans(self, reward: int) -> str:
        """What one reward looked at in the first completion."""
        return f"from grpo_nb.rewards import spans; spans({self.rewards}[{reward}], {self._completion(0)})"

    def probe(self) -> str:
        """The probes on the row."""
        return f"from grpo_nb.lab import probe_row; probe_row({self.rewards}, {self.row}{self._options})"

    def check(self) -> str:
        """The whole check on the row."""
        return f"gn.check_rewards({self.rewards}, [{self.row}]{self._options})"

    def _completion(self, number: int) -> str:
        return self._literal(self._of.completions[number], f"completions[{number}]")

    def _literal(self, value: Any, name: str) -> str:
        return repr(value) if len(repr(value)) <= _LITERAL_LENGTH else f"{self.lab}.{name}"
