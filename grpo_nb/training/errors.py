"""Explain the errors that end a training: a reward failed, or the machine lacks something."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.config.memory_savers import memory_advice
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

#: Only these errors of a reward can report missing memory or a GPU fault. The text of any other
#: error may quote a completion.
MACHINE_ERRORS = (RuntimeError, MemoryError)
#: Keywords that TRL passes to a reward in addition to the columns of the data.
TRL_KEYWORDS = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)
#: Keywords that are passed on whole when a failing call is repeated row by row. `score` splits
#: them.
REPEATED_KEYWORDS = ("prompts", "completion_ids", "trainer_state")


def with_named_errors(reward: RewardFunction) -> RewardFunction:
    """Return the reward with errors that name the reward, the row and the completion.

    Scores that TRL could not use (too few, infinite, not numbers) are errors too, while it is still
    known which reward gave them.
    """
    name = reward_name(reward)

    def guard(completions: Sequence[Completion], **others: Any) -> list[Any]:
        keywords = {"completions": [with_last_word(c) for c in completions], **others}
        with _locating_errors(reward, keywords):
            scores = list(reward(**keywords))
            return _require_usable(name, scores, keywords["completions"])

    async def async_guard(completions: Sequence[Completion], **others: Any) -> list[Any]:
        keywords = {"completions": [with_last_word(c) for c in completions], **others}
        with _locating_errors(reward, keywords):
            scores = list(await reward(**keywords))
            return _require_usable(name, scores, keywords["completions"])

    wrapper = async_guard if is_async(reward) else guard
    wrapper.__name__ = name
    return wrapper


def _require_usable(name: str, scores: list[Any], completions: Sequence[Completion]) -> list[Any]:
    """Return the scores, or raise a `RewardError` if TRL cannot train on them."""
    if len(scores) != len(completions):
        message = (
            f"it returned {len(scores)} scores for {len(completions)} completions: return one "
            "score for each"
        )
        raise RewardError(name, None, "", ValueError(message))
    for row, value in enumerate(to_floats(scores, len(scores))):
        # One infinite score makes every advantage of its group NaN, and with them the adapter.
        if math.isinf(value):
            excerpt = repr(shorten(completion_text(completions[row]), 120))
            message = (
                f"it gave {scores[row]!r:.40}: return a finite number, or None if the reward does "
                "not apply to this completion"
            )
            raise RewardError(name, row, excerpt, ValueError(message))
    return scores


@contextlib.contextmanager
def _locating_errors(reward: RewardFunction, keywords: Mapping[str, Any]) -> Iterator[None]:
    """Raise an error of the reward as a `RewardError` that names the row.

    Running out of memory stays as it is.
    """
    try:
        yield
    except (RewardError, EnvironmentProblem):
        raise
    except Exception as error:
        if isinstance(error, MACHINE_ERRORS) and is_out_of_memory(error):
            raise
        completions = keywords["completions"]
        columns = {key: values for key, values in keywords.items() if key not in TRL_KEYWORDS}
        rows = []
        for index in range(len(completions)):
            rows.append({key: values[index] for key, values in columns.items()})
        repeated = {key: keywords.get(key) for key in REPEATED_KEYWORDS}
        # Called for its error: it calls the reward with each row alone, and raises a `RewardError`
        # for the row that fails. A judge that is paid for each call is paid again here, and a
        # reward that remembers its calls sees them twice.
        score(reward, completions, rows, **repeated)
        # No row fails alone, so the error belongs to the whole call.
        raise RewardError(reward_name(reward), None, "", error) from error


@contextlib.contextmanager
def explaining_machine_faults(settings: Settings, run: Path | None = None) -> Iterator[None]:
    """Raise an error of the block as an `EnvironmentProblem` with advice if the machine caused it.

    Args:
        settings: The run's settings.
        run: The run's folder; None before it has one.

    Raises:
        EnvironmentProblem: Memory or disk is full, or the GPU failed.
    """
    try:
        yield
    except EnvironmentProblem:
        raise
    except Exception as error:
        # The error of a reward is the reward's own fault, unless its cause can be the machine.
        may_be_machine = (
            not isinstance(error, RewardError)
            or isinstance(error.__cause__, MACHINE_ERRORS)
            or is_disk_full(error)
        )
        if not may_be_machine:
            raise
        problem = _machine_problem(error, settings, run)
        if problem is None:
            raise
        raise problem from error


def _machine_problem(
    error: Exception, settings: Settings, run: Path | None
) -> EnvironmentProblem | None:
    """Return the machine's problem behind an error, with advice; None if it is not the cause."""
    message = memory_advice(error, settings)
    if message is not None:
        if run is not None:
            message += (
                " Another batch size or length makes it another run, which can start from what "
                f"this run has learned: gn.load_model(settings, adapter={str(run / 'adapter')!r})."
            )
        return EnvironmentProblem(f"{message}\n({type(error).__name__}: {str(error)[:200]})")
    if run is not None and is_disk_full(error):
        return EnvironmentProblem(
            f"the disk of {str(run)!r} is full ({error}). Everything saved before is kept. Free "
            f"some space, then resume with gn.train(..., resume={str(run)!r})."
        )
    return gpu_problem(error)
