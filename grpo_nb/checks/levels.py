"""Choose the level of a task to train on: the easiest one that the model has not mastered.

If the model already answers a question correctly every time, or never, all completions earn the
same reward and there is nothing to learn from them. Not covered: which questions of a task to use,
which is `Task.curriculum`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.learning_signal import Baseline, baseline
from grpo_nb.config.settings import Settings
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.tasks.task import Task

MASTERED = 2 / 3
"""Share of correct answers from which on a level counts as mastered.

A gain above it would be hard to show on held-out questions.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class LevelChoice:
    """Levels of a task, their baselines, and the level to train on. Made by `choose_level`."""

    levels: tuple[Task, ...]
    """Tasks, the easiest first."""
    baselines: tuple[Baseline, ...]
    """Baselines of the first levels. Harder levels were not measured."""

    @property
    def chosen(self) -> int:
        """Number of the level to train on, from 0.

        It is the last level measured. If that one gives no signal, it is the hardest of the easier
        levels that gives one.
        """
        last = len(self.baselines) - 1
        if self._is_mastered(last):
            return last
        with_signal = [level for level, one in enumerate(self.baselines) if _gives_signal(one)]
        return max(with_signal, default=last)

    @property
    def task(self) -> Task:
        """The level to train on."""
        return self.levels[self.chosen]

    @property
    def has_room(self) -> bool:
        """True if the model has not mastered the chosen level, so that it can still improve."""
        return not self._is_mastered(self.chosen)

    def _is_mastered(self, level: int) -> bool:
        return self.baselines[level].sampled_accuracy >= MASTERED

    @property
    def sentence(self) -> str:
        """The choice and its reason in words."""
        last = len(self.baselines) - 1
        before = self.baselines[self.chosen]
        if self.chosen < last:
            reason = f"Level {self.chosen + 1} gives no learning signal."
        elif not self._is_mastered(last) and _gives_signal(before):
            reason = "There is something to learn."
        elif not self._is_mastered(last):
            reason = "No level gives a learning signal."
        else:
            reason = "Nothing is left to learn: two thirds or more are correct at every level."
        share = before.sampled_accuracy
        return (
            f"Level {self.chosen}: {share:.0%} of the answers are correct before training. {reason}"
        )

    def __repr__(self) -> str:
        return self.sentence


def _gives_signal(measured: Baseline) -> bool:
    """Return whether groups differ, and not only in their format: some answer is correct."""
    return measured.counts["differs"] > 0 and measured.sampled_accuracy > 0


def choose_level(
    model: Any,
    tokenizer: Any,
    levels: Iterable[Task],
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings | None = None,
    *,
    prompts: int = 8,
) -> LevelChoice:
    """Measure levels of a task, the easiest first, and choose the first that is not mastered.

    A level is mastered if two thirds of the sampled answers are correct. Harder levels are not
    measured, so a small model pays for one. If the level found gives no signal, the hardest of the
    easier levels that gives one is chosen. If all levels are mastered, the hardest is chosen, and
    `has_room` is false. Model and random state do not change.

    Args:
        model: As for `baseline`.
        tokenizer: As for `baseline`.
        levels: Tasks of one kind, the easiest first. A single one is measured and chosen.
        rewards: As for `baseline`.
        settings: As for `baseline`.
        prompts: Number of groups per level.

    Raises:
        ValueError: No levels.
        ValueError, TypeError, RewardError: As for `baseline`.

    Takes 10 to 12 seconds of processor time per level with the embedded model:

    >>> levels = [
    ...     gn.load_task("arithmetic", settings, **level) for level in gn.tasks.ARITHMETIC_LEVELS
    ... ]
    >>> choice = choose_level(model, tokenizer, levels, rewards, settings)
    >>> run = gn.train(model, tokenizer, choice.task, rewards, settings)
    """
    levels = tuple(levels)
    if not levels:
        raise ValueError("levels has no tasks. Pass a list of tasks, the easiest first.")
    baselines: list[Baseline] = []
    for task in levels:
        baselines.append(baseline(model, tokenizer, task, rewards, settings, prompts=prompts))
        if baselines[-1].sampled_accuracy < MASTERED:
            break
    return LevelChoice(levels=levels, baselines=tuple(baselines))
