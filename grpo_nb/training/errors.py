"""What ended a training, in words: which reward on which row, memory, disk."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_nb.core.files import free_path
from grpo_nb.core.words import EnvironmentProblem, shorten
from grpo_nb.machine.faults import gpu_problem, is_out_of_memory
from grpo_nb.rewards.base import RewardFunction, completion_text, reward_name
from grpo_nb.rewards.calls import RewardError, is_async, to_floats
from grpo_nb.rewards.scores import score
from grpo_nb.runs.checkpoints import is_disk_full
from grpo_nb.settings.out_of_memory import MemoryAdvice, memory_advice
from grpo_nb.settings.settings import Settings
from grpo_nb.training.resume import MAY_CHANGE

# What TRL hands to a reward beside the columns of the data.
_NOT_COLUMNS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")


def guarded(reward: RewardFunction) -> RewardFunction:
    """Return the reward as it is, but for its errors: they name the reward, the row and what was scored there.

    Scores that the trainer could not use (too few, not numbers) are errors here too, while it is known whose they are.
    """
    name = reward_name(reward)

    @contextlib.contextmanager
    def located(keywords: dict[str, Any]) -> Iterator[list[Any]]:
        scores: list[Any] = []
        try:
            yield scores
        except Exception as error:
            raise _named(reward, name, keywords, error) from error
        count = len(keywords["completions"])
        try:
            read = to_floats(scores, count)
        except (ValueError, TypeError, OverflowError) as error:
            if len(scores) != count:  # no row has done it
                raise RewardError(name, None, "", error) from error
            raise _named(reward, name, keywords, error) from error
        for row, value in enumerate(read):
            if math.isinf(value):  # every advantage of its group, and with them the adapter, would be NaN
                text = shorten(completion_text(keywords["completions"][row]), 120)
                told = f"it gave {scores[row]!r:.40}: give a finite number, or None where it has nothing to say"
                raise RewardError(name, row, repr(text), ValueError(told))

    def guard(**keywords: Any) -> list[Any]:
        with located(keywords) as scores:
            scores.extend(reward(**keywords))  # `+=` of a list would add the numbers of an array
        return scores

    async def async_guard(**keywords: Any) -> list[Any]:
        with located(keywords) as scores:
            scores.extend(await reward(**keywords))
        return scores

    guarding = async_guard if is_async(reward) else guard
    guarding.__name__ = name
    return guarding


def _named(reward: RewardFunction, name: str, keywords: dict[str, Any], error: Exception) -> Exception:
    """The error with reward, row and excerpt: each row is tried on its own. Memory is told of as memory."""
    if isinstance(error, EnvironmentProblem) or (_may_be_of_the_machine(error) and is_out_of_memory(error)):
        return error
    count = len(keywords["completions"])
    columns = {key: values for key, values in keywords.items() if key not in _NOT_COLUMNS}
    rows = [{key: values[i] for key, values in columns.items()} for i in range(count)]
    try:
        score(
            reward, keywords["completions"], rows, prompts=keywords["prompts"], completion_ids=keywords["completion_ids"],
            trainer_state=keywords.get("trainer_state"),
        )  # fmt: skip
    except RewardError as located:
        return located
    return RewardError(name, None, "", error)


def _may_be_of_the_machine(error: BaseException | None) -> bool:
    """Whether what a reward raised may tell of memory or GPU: the words of other errors may be those of a completion."""
    return isinstance(error, (RuntimeError, MemoryError))


def explained(error: Exception, run: Path | None, settings: Settings, step: int = 0) -> Exception:
    """Return the error to raise: with what to do where the machine is the reason, and as it is otherwise.

    Args:
        error: What ended the training.
        run: The run's folder; None before it has one.
        settings: Of the run.
        step: The last one done.
    """
    if isinstance(error, RewardError) and not _may_be_of_the_machine(error.__cause__) and not is_disk_full(error):
        return error
    if isinstance(error, EnvironmentProblem):
        return error
    memory = memory_advice(error, settings)
    if memory is not None:
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else 'no message'}"
        problem = EnvironmentProblem(f"{memory.message} {memory.why} {_next_attempt(memory, run, step)}\n({said})")
    elif run is not None and is_disk_full(error):
        problem = EnvironmentProblem(
            f"the disk of {str(run)!r} is full ({error}). What was saved before is kept. Free some space, then go on with "
            f"gn.train(..., resume={str(run)!r})."
        )
    else:
        problem = gpu_problem(error)
        if problem is None:
            return error
        if run is not None:
            problem.add_note(f"What was trained is kept in {str(run)!r}.")
    problem.__cause__ = error
    return problem


def _next_attempt(memory: MemoryAdvice, run: Path | None, step: int) -> str:
    """What to do after out-of-memory, as lines to paste. Other settings make another run, but for those a run may change."""
    change = memory.change
    adapter = run and run / "adapter"
    kept = f"What the {step} steps have taught is in {str(adapter)!r}." if step else "No step was done."
    if not change:
        return f"{memory.advice} {kept}"
    lines = [
        f"settings = settings.replace({', '.join(f'{name}={value!r}' for name, value in change.items())})",
        "model, tokenizer = gn.load_model(settings)",
    ]
    if run is None:
        why = "The run begins with them"
        lines.append("run = gn.train(model, tokenizer, task, rewards, settings)")
    elif set(change) <= set(MAY_CHANGE):
        why = "The run goes on with them"
        lines.append(f"run = gn.train(model, tokenizer, task, rewards, settings, resume={str(run)!r})")
    else:
        why = (
            f"With them it is another run, and resuming {run.name!r} would refuse them; the new one begins with step 1"
        )
        if step:
            why += " on what was learnt so far"
            lines += ["from grpo_nb.models.load import load_adapter", f"load_adapter(model, {str(adapter)!r})"]
        lines.append(f"run = gn.train(model, tokenizer, task, rewards, settings, name={free_path(run).name!r})")
    pasted = "\n".join(f"    {line}" for line in lines)
    return (
        f"{kept} In a fresh kernel (this one still holds the memory) make settings, task and rewards as before, then write:\n"
        f"{pasted}\n{why}."
    )
