"""One call of one reward function, exactly as trl 1.15 makes it, from rows and completions that no trainer holds.

What `grpo_nb.scoring.scores` and `grpo_nb.checks` share: the batch, the call, and how TRL reads what comes back.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.async_rewards import is_async, run_coroutine
from grpo_nb.rewards.base import Completion, Reward, RewardFunction, completion_text, with_last_word

# What TRL does not hand on as a data column, because it passes its own.
_NOT_COLUMNS = ("prompt", "completion", "completion_ids")
FLOAT32_MAX = 3.4028234663852886e38


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The keywords of one call of a reward function, in the shape TRL gives them."""

    prompts: list[Any] | None
    completions: list[Completion]
    completion_ids: list[list[int]] | None
    columns: Mapping[str, list[Any]]
    trainer_state: Any = None
    """None outside of training: a plain function gets a stand-in at step 0, a reward of the kit None."""

    def __len__(self) -> int:
        return len(self.completions)

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        """Lists and messages of its own; environments stay what they are, for they may hold what cannot be copied."""
        lists = (self.prompts, self.completions, self.completion_ids)
        prompts, completions, ids = (copy.deepcopy(held, memo) for held in lists)
        columns = {
            key: held if key == "environments" else copy.deepcopy(held)
            for key, held in self.columns.items()
        }
        return dataclasses.replace(
            self, prompts=prompts, completions=completions, completion_ids=ids, columns=columns
        )

    def select(self, indexes: Sequence[int]) -> Batch:
        """Return the batch with only these completions, in this order."""
        lists = {name: getattr(self, name) for name in ("prompts", "completions", "completion_ids")}
        chosen = {name: held and [held[i] for i in indexes] for name, held in lists.items()}
        columns = {key: [held[i] for i in indexes] for key, held in self.columns.items()}
        return Batch(**chosen, columns=columns, trainer_state=self.trainer_state)


def make_batch(
    completions: Sequence[Completion],
    rows: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    *,
    prompts: Sequence[Any] | None = None,
    completion_ids: Sequence[Sequence[int]] | None = None,
    tokenizer: Any = None,
    trainer_state: Any = None,
) -> Batch:
    """Return what TRL would call the rewards with. Arguments as in `score`.

    Raises:
        ValueError: Lengths that do not fit together, or completions of two shapes.
        KeyError: A row without a column of the first.
    """
    shapes = {"text" if isinstance(one, str) else type(one).__name__ for one in completions}
    if isinstance(completions, str) or len(shapes) != 1 or "dict" in shapes:
        raise ValueError(
            f"completions = {completions!r:.60} must be a list of texts, or a list of lists of chat messages."
        )
    completions, count = list(map(with_last_word, completions)), len(completions)
    listed = (
        [dict(rows or {})] * count
        if isinstance(rows, Mapping | None)
        else [dict(row) for row in rows]
    )
    name = next((name for name in ("prompt", "question") if listed and name in listed[0]), None)
    if prompts is None and name is not None:
        prompts = [row[name] for row in listed]
    for name, values in (
        ("rows", listed),
        ("prompts", prompts),
        ("completion_ids", completion_ids),
    ):
        if values is not None and len(values) != count:
            raise ValueError(
                f"{len(values)} {name} for {count} completions: write one for each, or one row for all."
            )
    if prompts is not None and not isinstance(prompts[0], str) and shapes == {"text"}:
        # A chat prompt has chat completions: TRL hands rewards messages then, never strings.
        completions = [[{"role": "assistant", "content": completion}] for completion in completions]
    if completion_ids is None and tokenizer is not None:
        # A tokenizer takes no lone surrogate. verbose: a probe longer than the model's context is meant to be.
        texts = [completion_text(c).encode("utf-8", "replace").decode() for c in completions]
        completion_ids = [
            tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts
        ]
    columns = {key: [row[key] for row in listed] for key in listed[0] if key not in _NOT_COLUMNS}
    prompts, ids = (None if held is None else list(held) for held in (prompts, completion_ids))
    return Batch(
        prompts=prompts,
        completions=completions,
        completion_ids=ids,
        columns=columns,
        trainer_state=trainer_state,
    )


class RewardError(Exception):
    """A reward function failed. The message names it, the row and the completion; `__cause__` is what it raised."""

    def __init__(self, reward: str, row: int | None, excerpt: str, cause: BaseException) -> None:
        self.reward, self.row, self.excerpt = reward, row, excerpt
        where = (
            "on the whole batch, though on none of its rows alone"
            if row is None
            else f"on row {row}: {excerpt}"
        )
        super().__init__(
            f"the reward {reward!r} raised {type(cause).__name__}: {str(cause)[:300]} ({where})"
        )
        self.__cause__ = cause


def call_reward(reward: RewardFunction, batch: Batch) -> list[Any]:
    """Call a reward as TRL does and return what it gave for each completion, unconverted.

    An async reward runs in a thread of its own, because a notebook's thread has an event loop running.

    Raises:
        TypeError: It gave something that is no list.
    """
    state = batch.trainer_state
    if state is None and not isinstance(reward, Reward):
        # transformers.TrainerState would bring the whole library. max_steps is not 0: rewards divide by it.
        state = types.SimpleNamespace(
            global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, log_history=[]
        )
    ignored = lambda name, values: None  # noqa: E731
    # The lists are the batch's own, as they are the trainer's own there.
    output = reward(
        prompts=batch.prompts, completions=batch.completions, completion_ids=batch.completion_ids, **batch.columns,
        trainer_state=state, log_extra=ignored, log_metric=ignored,
    )  # fmt: skip
    if is_async(reward):
        output = run_coroutine(output)
    if not isinstance(output, Iterable):
        raise TypeError(
            f"it returned {output!r:.60}; it must be a list of one float for each completion"
        )
    return list(output)


def to_float(value: Any) -> float:
    """Return a score as TRL's float32 tensor reads it: None is NaN, what is too large for float32 is infinite.

    Raises:
        TypeError: What torch cannot take as one number, such as text, a list or a complex number.
        OverflowError: An int too large for any float, at which torch fails too.
    """
    if value is None:
        return math.nan
    if (
        isinstance(value, (str, bytes, list, tuple, dict, complex))
        or type(value).__name__ == "ndarray"
    ):
        raise TypeError(
            f"a score is {value!r:.60}, a {type(value).__name__}; it must be one number or None"
        )
    number = float(value)
    return (
        math.copysign(math.inf, number)
        if math.isfinite(number) and abs(number) > FLOAT32_MAX
        else number
    )


def to_floats(output: Sequence[Any], count: int) -> list[float]:
    """Return the scores of a batch as floats, one for each completion.

    Raises:
        ValueError: Another number of scores than completions.
        TypeError, OverflowError: As `to_float`.
    """
    if len(output) != count:
        raise ValueError(
            f"it returned {len(output)} scores for {count} completions: there must be one for each"
        )
    return [to_float(value) for value in output]
