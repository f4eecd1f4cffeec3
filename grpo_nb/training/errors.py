"""What ended a training, in words: which reward on which row, memory, disk, GPU."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.config.planning import memory_advice
from grpo_nb.config.settings import Settings
from grpo_nb.core.words import EnvironmentProblem, shorten
from grpo_nb.machine.faults import gpu_problem, is_out_of_memory
from grpo_nb.rewards.async_rewards import is_async
from grpo_nb.rewards.base import (
    Completion,
    RewardFunction,
    completion_text,
    reward_name,
    with_last_word,
)
from grpo_nb.runs.checkpoints import is_disk_full
from grpo_nb.scoring.calls import RewardError, to_floats
from grpo_nb.scoring.scores import score

# What a reward raised may tell of memory or GPU; the words of other errors may be those of a completion.
_OF_THE_MACHINE = (RuntimeError, MemoryError)
# What TRL hands to a reward beside the columns of the data.
_NOT_COLUMNS = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)


def guarded(reward: RewardFunction) -> RewardFunction:
    """Return the reward as it is, but for its errors: they name the reward, the row and what was scored there.

    Scores that the trainer could not use (too few, not numbers) are errors here too, while it is known whose they are.
    """
    name = reward_name(reward)

    def guard(completions: Sequence[Completion], **others: Any) -> list[Any]:
        keywords = {"completions": list(map(with_last_word, completions)), **others}
        with _located(reward, keywords):
            return _usable(name, list(reward(**keywords)), keywords["completions"])

    async def async_guard(completions: Sequence[Completion], **others: Any) -> list[Any]:
        keywords = {"completions": list(map(with_last_word, completions)), **others}
        with _located(reward, keywords):
            return _usable(name, list(await reward(**keywords)), keywords["completions"])

    guarding = async_guard if is_async(reward) else guard
    guarding.__name__ = name
    return guarding


def _usable(name: str, scores: list[Any], completions: Sequence[Completion]) -> list[Any]:
    """Return the scores, if TRL can train on them."""
    if len(scores) != len(completions):  # no row has done it
        told = f"it returned {len(scores)} scores for {len(completions)} completions: there must be one for each"
        raise RewardError(name, None, "", ValueError(told))
    for row, value in enumerate(to_floats(scores, len(scores))):
        if math.isinf(
            value
        ):  # every advantage of its group, and with them the adapter, would be NaN
            excerpt = repr(shorten(completion_text(completions[row]), 120))
            told = f"it gave {scores[row]!r:.40}: give a finite number, or None where it has nothing to say"
            raise RewardError(name, row, excerpt, ValueError(told))
    return scores


@contextlib.contextmanager
def _located(reward: RewardFunction, keywords: dict[str, Any]) -> Iterator[None]:
    """Raise what goes wrong in the block with reward, row and excerpt: each row is tried on its own. Memory stays memory."""
    try:
        yield
    except (RewardError, EnvironmentProblem):
        raise
    except Exception as error:
        if isinstance(error, _OF_THE_MACHINE) and is_out_of_memory(error):
            raise
        columns = {key: values for key, values in keywords.items() if key not in _NOT_COLUMNS}
        rows = [
            {key: values[i] for key, values in columns.items()}
            for i in range(len(keywords["completions"]))
        ]
        known = {key: keywords.get(key) for key in ("prompts", "completion_ids", "trainer_state")}
        score(
            reward, keywords["completions"], rows, **known
        )  # raises a `RewardError` where a row alone does it
        raise RewardError(reward_name(reward), None, "", error) from error


@contextlib.contextmanager
def explained(settings: Settings, run: Path | None = None) -> Iterator[None]:
    """Raise what ends the block: with what to do where the machine is the reason, and as it is otherwise.

    Args:
        settings: Of the run.
        run: The run's folder; None before it has one.

    Raises:
        EnvironmentProblem: Memory, disk or GPU.
    """
    try:
        yield
    except Exception as error:
        of_a_reward = isinstance(error, RewardError) and not isinstance(
            error.__cause__, _OF_THE_MACHINE
        )
        if isinstance(error, EnvironmentProblem) or (of_a_reward and not is_disk_full(error)):
            raise
        memory, problem = memory_advice(error, settings), gpu_problem(error)
        if memory is not None:
            told = f"{memory.message} {memory.why} {memory.advice}"
            if run is not None:
                told += (
                    " With another batch or length it is another run, which can begin with what this one learnt: "
                    f"gn.load_model(settings, adapter={str(run / 'adapter')!r})."
                )
            problem = EnvironmentProblem(f"{told}\n({type(error).__name__}: {str(error)[:200]})")
        elif run is not None and is_disk_full(error):
            problem = EnvironmentProblem(
                f"the disk of {str(run)!r} is full ({error}). What was saved before is kept. Free some space, then go on with "
                f"gn.train(..., resume={str(run)!r})."
            )
        if problem is None:
            raise
        raise problem from error
