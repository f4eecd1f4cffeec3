"""Which of several levels of a task to train on: the easiest that the model cannot do yet, found by measuring.

What it can do already teaches it nothing, and what it never gets right neither; between the two lies another level for every
model. Not covered: which questions of a task to take, which is `Task.curriculum`.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.baseline import Baseline, baseline
from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import Shown, Table, bold
from grpo_nb.core.words import shorten
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.tasks.task import Task

MASTERED = 2 / 3
"""Share of right answers from which on a level counts as done: what is left would be hard to show on held-out questions."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LevelChoice(Shown):
    """Levels of a task, easiest first, what a short baseline found of each, and which to train on. Made by `choose_level`."""

    levels: tuple[Task, ...]
    baselines: tuple[Baseline, ...]
    """Of the levels that were measured, which need not be all."""

    @property
    def chosen(self) -> int:
        """The last level measured, or an easier one where that gives no signal and the easier one does."""
        last = len(self.baselines) - 1
        signals = [i for i, gate in enumerate(self.baselines) if _gives_signal(gate)]
        return last if self._is_mastered(last) else max(signals, default=last)

    @property
    def task(self) -> Task:
        """The level to train on."""
        return self.levels[self.chosen]

    @property
    def has_room(self) -> bool:
        """Whether fewer than two thirds of the answers are right at that level: else nothing is left to learn."""
        return not self._is_mastered(self.chosen)

    def _is_mastered(self, level: int) -> bool:
        return self.baselines[level].right_shares[0] >= MASTERED

    @property
    def sentence(self) -> str:
        """Which level is taken and why, in words."""
        chosen, last = self.chosen, len(self.baselines) - 1
        gate = self.baselines[chosen]
        said = f"Level {chosen} is taken: {gate.right_shares[0]:.0%} of the answers are right before training. "
        if chosen < last:
            return said + f"Level {chosen + 1} gives no signal."
        if not self._is_mastered(last):
            return said + (
                "There is something to learn."
                if _gives_signal(gate)
                else "No level gives a signal."
            )
        if last + 1 < len(self.levels):
            return (
                said
                + "In the time given no harder level was tried, so little may be left to learn."
            )
        return said + "Nothing is left to learn: at every level two thirds or more are right."

    def _parts(self) -> Iterable[Any]:
        yield bold(self.sentence)
        found = [("not measured", "", "", "")] * len(self.levels)
        for i, gate in enumerate(self.baselines):
            sampled, greedy = (f"{share:.0%}" for share in gate.right_shares)
            taken = bold("taken") if i == self.chosen else ""
            found[i] = (sampled, greedy, f"{gate.counts['differs']} of {len(gate.rows)}", taken)
        lines = [
            (i, shorten(task.train[0]["question"], 80), *found[i])
            for i, task in enumerate(self.levels)
        ]
        yield Table(
            lines, ("level", "such as", "right", "likeliest answer right", "groups that differ", "")
        )


def _gives_signal(gate: Baseline) -> bool:
    """Some groups differ, and not in their form alone: some answer is right."""
    return gate.counts["differs"] > 0 and gate.right_shares[0] > 0


def choose_level(
    model: Any,
    tokenizer: Any,
    levels: Iterable[Task],
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings | None = None,
    *,
    prompts: int = 8,
    seconds: float = 120.0,
) -> LevelChoice:
    """Measure levels of a task, the easiest first, until fewer than two thirds of the answers are right; take that one.

    Each level is a `baseline` of a few groups, sampled as training would. Harder ones are not looked at, so that a small model
    pays for one. Where the level found gives no signal (nothing is right, or no group differs), the hardest one below that does
    is taken, and where there is none below, it stays: nothing easier is known. Where two thirds are right at every level, the
    hardest is taken, and `has_room` is false. Model and random state are left as they were.

    Args:
        model, tokenizer, rewards, settings, prompts: As `baseline` takes them.
        levels: Tasks of one kind, the easiest first; one alone is measured and taken.
        seconds: After so many no further level is begun.

    Raises:
        ValueError, TypeError, RewardError: As `baseline` does.

    10 to 12 seconds of processor time for each level with the embedded model:

    >>> levels = [gn.load_task("arithmetic", settings, **level) for level in gn.tasks.ARITHMETIC_LEVELS]
    >>> choice = choose_level(model, tokenizer, levels, rewards, settings)
    >>> run = gn.train(model, tokenizer, choice.task, rewards, settings)
    """
    levels, gates, started = tuple(levels), [], time.monotonic()
    for task in levels:
        gates.append(baseline(model, tokenizer, task, rewards, settings, prompts=prompts))
        if gates[-1].right_shares[0] < MASTERED or time.monotonic() - started >= seconds:
            break
    return LevelChoice(levels=levels, baselines=tuple(gates))
