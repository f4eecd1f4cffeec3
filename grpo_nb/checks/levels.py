"""Choose the level of a task to train on: the easiest one that the model has not mastered.

If the model already answers a question correctly every time, or never, all completions earn the
same reward and there is nothing to learn from them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.learning_signal import Baseline, baseline
from grpo_nb.config.settings import Settings
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.tasks.task import Task

MIN_MASTERED_ACCURACY = 2 / 3
"""Smallest share of correct answers at which a level counts as mastered.

A gain above it would be hard to show on held-out questions.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class LevelChoice:
    """The level of a task to train on, with the baselines. Made by `choose_level`."""

    task: Task
    """The level to train on."""
    can_improve: bool
    """True if the model has not mastered the chosen level."""
    sentence: str
    """The choice and its reason in words. Levels are counted from 0."""
    baselines: tuple[Baseline, ...]
    """Baselines of the levels that were measured, the easiest first."""

    def __repr__(self) -> str:
        return self.sentence


def choose_level(
    model: Any,
    tokenizer: Any,
    levels: Iterable[Task],
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings,
    *,
    prompts: int = 8,
) -> LevelChoice:
    """Measure levels of a task, the easiest first, and choose the first that is not mastered.

    A level is mastered if at least two thirds of the sampled answers are correct. Measuring stops
    at the first level that is not. If all levels are mastered, the hardest is chosen, and
    `can_improve` is false. The model and the random state do not change.

    Args:
        model, tokenizer, rewards, settings: As for `baseline`.
        levels: Tasks of one kind, the easiest first. A single one is measured and chosen.
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
    # Load all levels first, so that an error does not come after a long measurement.
    levels = tuple(levels)
    if not levels:
        raise ValueError("levels has no tasks. Pass a list of tasks, the easiest first.")
    baselines = []
    for task in levels:
        measured = baseline(model, tokenizer, task, rewards, settings, prompts=prompts)
        baselines.append(measured)
        is_mastered = measured.sampled_accuracy >= MIN_MASTERED_ACCURACY
        if not is_mastered:
            break

    # The last level measured is chosen: the first that is not mastered, or the hardest.
    if is_mastered:
        reason = "Too little is left to show a gain: two thirds or more are correct at every level."
    elif measured.result_counts["differs"] > 0 and measured.has_answer_signal:
        reason = "There is something to learn."
    else:
        reason = "This level gives no learning signal."
    return LevelChoice(
        task=task,
        can_improve=not is_mastered,
        sentence=f"Level {len(baselines) - 1}: {measured.sampled_accuracy:.0%} of the answers are "
        f"correct before training. {reason}",
        baselines=tuple(baselines),
    )
