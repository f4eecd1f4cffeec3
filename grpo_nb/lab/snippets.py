"""The line of code under each view of the reward lab, in the names of the user's own notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython import get_ipython

from grpo_nb.tasks import Task

# Completions longer than this together are named, not spelt out: nobody reads or copies a line of a hundred pages.
_LITERAL_LENGTH = 1500


def name_in(namespace: Mapping[str, Any], value: Any, default: str) -> str:
    """Return the name under which a notebook knows an object, so that a line of code shown to its user works as it stands.

    >>> name_in({"_": [1], "numbers": (numbers := [1])}, numbers, "lab.numbers")
    'numbers'
    """
    return next((name for name, found in namespace.items() if found is value and not name.startswith("_")), default)


@dataclass(frozen=True, kw_only=True)
class CodeLines:
    """The line of code that gives what each view of the lab shows, in the names of the user's notebook."""

    lab: str = "lab"
    rewards: str = "rewards"
    task: str = "task"
    model: str = "model"
    tokenizer: str = ""
    """Empty where the lab has none."""
    is_task: bool = True
    row: int = 0
    answer: str = "answer"

    @property
    def row_code(self) -> str:
        """The row."""
        return f"{self.task}{'.train' if self.is_task else ''}[{self.row}]"

    @property
    def prompt(self) -> str:
        """The prompt as the model sees it."""
        rest = f", {self.tokenizer}" if self.tokenizer else ""
        return f"from grpo_nb.lab import prompt_text; print(prompt_text({self.row_code}{rest}))"

    def sample(self, num_generations: int, temperature: float, max_completion_length: int) -> str:
        """A group sampled from the model."""
        return (
            f"from grpo_nb.lab import sample_group; completions = sample_group({self.model}, {self.tokenizer}, "
            f"{self.row_code}, num_generations={num_generations}, temperature={temperature:g}, "
            f"max_completion_length={max_completion_length})"
        )

    def score(self, completions: Sequence[str], has_failed: bool = False) -> str:
        """The scores, under the weights that the rewards carry."""
        rest = f", tokenizer={self.tokenizer}" if self.tokenizer else ""
        rest += ', on_error="record"' if has_failed else ""
        return f"gn.score({self.rewards}, {self._literal(completions)}, {self.row_code}{rest})"

    def reweight(self, completions: Sequence[str], weights: Mapping[str, float], has_failed: bool = False) -> str:
        """Totals and advantages under other weights."""
        return f"gn.rewards.reweight({self.score(completions, has_failed)}, {dict(weights)!r}).advantages()"

    def spans(self, reward: int, completions: Sequence[str], number: int) -> str:
        """What one reward looked at in one completion."""
        return f"from grpo_nb.rewards import spans; spans({self.rewards}[{reward}], {self._one(completions, number)})"

    def probe(self, weights: Mapping[str, float] | None = None) -> str:
        """The probes on the row."""
        return f"from grpo_nb.lab import probe_row; probe_row({self.rewards}, {self.row_code}{self._options(weights)})"

    def check(self, cases: str = "", weights: Mapping[str, float] | None = None) -> str:
        """The whole check on the row, with the cases kept."""
        rest = f", cases={cases!r}" if cases else ""
        return f"gn.check_rewards({self.rewards}, [{self.row_code}]{self._options(weights)}{rest})"

    def keep(
        self, path: str, reward: str, completions: Sequence[str], number: int, expected: float | None, label: str
    ) -> str:
        """A case kept."""
        return (
            f"from grpo_nb.checks import add_case; add_case({path!r}, {reward!r}, {self._one(completions, number)}, "
            f"{expected!r}, columns={self.row_code}, label={label!r})"
        )

    def _options(self, weights: Mapping[str, float] | None) -> str:
        rest = f", format={self.task if self.is_task else self.lab}.format"
        rest += f", answer={self.answer!r}" if self.answer != "answer" else ""
        rest += f", weights={dict(weights)!r}" if weights else ""
        return rest + (f", tokenizer={self.tokenizer}" if self.tokenizer else "")

    def _one(self, completions: Sequence[str], number: int) -> str:
        literal = repr(completions[number])
        return literal if len(literal) <= _LITERAL_LENGTH else f"{self.lab}.completions[{number}]"

    def _literal(self, completions: Sequence[str]) -> str:
        literal = repr(list(completions))
        return literal if len(literal) <= _LITERAL_LENGTH else f"{self.lab}.completions"


def notebook_lines(lab: Any, given_rewards: Any) -> CodeLines:
    """Return the lines for a lab in the names of the notebook that it stands in; where there is none, those of its constructor.

    Args:
        lab: A `RewardLab`.
        given_rewards: What its user gave as rewards: the object that the notebook has a name for, as long as it is a list of
            the rewards in use.
    """
    shell = get_ipython()
    names: Mapping[str, Any] = shell.user_ns if shell is not None else {}
    lab_name = name_in(names, lab, "lab")
    as_given = isinstance(given_rewards, list) and given_rewards == lab.rewards

    def name(value: Any, part: str) -> str:
        return name_in(names, value, part if shell is None else f"{lab_name}.{part}") if value is not None else ""

    return CodeLines(
        lab=lab_name,
        rewards=name(given_rewards, "rewards") if as_given else f"{lab_name}.rewards",
        task=name(lab.task, "task"), model=name(lab.model, "model"), tokenizer=name(lab.tokenizer, "tokenizer"),
        is_task=isinstance(lab.task, Task), row=lab.row_number, answer=lab.answer,
    )  # fmt: skip
