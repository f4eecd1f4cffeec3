"""One call of one reward function, exactly as trl 1.15 makes it, outside a trainer.

`make_batch` builds the keywords of the call, `call_reward` makes it, and `to_floats` reads the
result as TRL does. `grpo_nb.scoring.scores` and `grpo_nb.checks` use these.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.base import (
    Completion,
    Reward,
    RewardFunction,
    completion_text,
    is_async,
    run_coroutine,
    with_last_word,
)

# Columns for which TRL passes its own values.
_REPLACED_BY_TRL = ("prompt", "completion", "completion_ids")
# TRL holds scores in a float32 tensor.
FLOAT32_MAX = 3.4028234663852886e38


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The keywords of one call of a reward function, in the shape in which TRL passes them."""

    prompts: list[Any] | None
    completions: list[Completion]
    completion_ids: list[list[int]] | None
    columns: Mapping[str, list[Any]]
    trainer_state: Any = None
    """None outside a training. Then a plain function gets a stand-in at step 0."""

    def __len__(self) -> int:
        return len(self.completions)

    def copied(self) -> Batch:
        """Return a copy with own lists and messages, so that a reward cannot change the original.

        Environments and the trainer's state are shared, because some cannot be copied.
        """
        shared = [self.trainer_state, *self.columns.get("environments", [])]
        return copy.deepcopy(self, {id(value): value for value in shared})

    def select(self, indexes: Sequence[int]) -> Batch:
        """Return the batch with only these completions, in this order."""

        def chosen(values: list[Any] | None) -> list[Any] | None:
            return None if values is None else [values[index] for index in indexes]

        return dataclasses.replace(
            self,
            prompts=chosen(self.prompts),
            completions=chosen(self.completions),
            completion_ids=chosen(self.completion_ids),
            columns={name: chosen(values) for name, values in self.columns.items()},
        )


def make_batch(
    completions: Sequence[Completion],
    rows: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    *,
    prompts: Sequence[Any] | None = None,
    completion_ids: Sequence[Sequence[int]] | None = None,
    tokenizer: Any = None,
    trainer_state: Any = None,
) -> Batch:
    """Return the keywords with which TRL would call the rewards. Arguments as in `score`.

    Raises:
        ValueError: Lengths that do not match, rows that are no dicts, or completions of two kinds.
        KeyError: A row that does not have a column of the first row.
    """
    count = len(completions)
    is_text = _are_texts(completions)
    completions = [with_last_word(completion) for completion in completions]
    listed_rows = _listed(rows, count)
    if prompts is None:
        prompts = _prompts_in(listed_rows)
    lists = {"rows": listed_rows, "prompts": prompts, "completion_ids": completion_ids}
    for name, values in lists.items():
        if isinstance(values, str):
            raise ValueError(
                f"{name} = {values!r:.60} must be a list with one for each completion."
            )
        if values is not None and len(values) != count:
            advice = (
                "pass one for each, or one row for all" if name == "rows" else "pass one for each"
            )
            raise ValueError(f"{len(values)} {name} for {count} completions: {advice}.")
    if is_text and prompts is not None and not isinstance(prompts[0], str):
        # A chat prompt has chat completions: TRL then passes messages, never strings.
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    if completion_ids is None and tokenizer is not None:
        completion_ids = _token_ids(completions, tokenizer)
    columns = {}
    for name in listed_rows[0]:
        if name not in _REPLACED_BY_TRL:
            columns[name] = [row[name] for row in listed_rows]
    return Batch(
        prompts=None if prompts is None else list(prompts),
        completions=completions,
        completion_ids=None if completion_ids is None else list(completion_ids),
        columns=columns,
        trainer_state=trainer_state,
    )


def _are_texts(completions: Sequence[Completion]) -> bool:
    """Return True if the completions are strings, False if they are lists of chat messages."""
    if len(completions) == 0:
        raise ValueError("completions is empty: there is nothing to score.")
    are_texts = [isinstance(completion, str) for completion in completions]
    is_one_message = any(isinstance(completion, Mapping) for completion in completions)
    if isinstance(completions, str) or is_one_message or len(set(are_texts)) > 1:
        raise ValueError(
            f"completions = {completions!r:.60} must be a list of texts, "
            "or a list of lists of chat messages."
        )
    return are_texts[0]


def _listed(
    rows: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None, count: int
) -> list[Mapping[str, Any]]:
    """Return the rows as a list; one row, or none, counts for all completions."""
    listed = [rows or {}] * count if rows is None or isinstance(rows, Mapping) else list(rows)
    if not all(isinstance(row, Mapping) for row in listed):
        raise ValueError(
            f"rows = {rows!r:.60} must be a list with one dict for each completion, or one dict."
        )
    return listed


def _prompts_in(rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    for name in ("prompt", "question"):
        if rows and name in rows[0]:
            return [row[name] for row in rows]
    return None


def _token_ids(completions: Sequence[Completion], tokenizer: Any) -> list[list[int]]:
    token_ids = []
    for completion in completions:
        # A tokenizer refuses a lone surrogate.
        text = completion_text(completion).encode("utf-8", "replace").decode()
        # verbose=False: no warning for a text that is longer than the model's context.
        token_ids.append(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return token_ids


class RewardError(Exception):
    """A reward function failed. The message names it, the row and the completion.

    `__cause__` is the exception that the function raised.
    """

    def __init__(self, reward: str, row: int | None, excerpt: str, cause: BaseException) -> None:
        self.reward = reward
        self.row = row
        self.excerpt = excerpt
        place = f"on row {row}: {excerpt}"
        if row is None:
            place = "on the whole batch, though on none of its rows alone"
        error = f"{type(cause).__name__}: {str(cause)[:300]}"
        super().__init__(f"the reward {reward!r} raised {error} ({place})")
        self.__cause__ = cause


class ReturnTypeError(TypeError):
    """A reward returned something that is not an iterable of scores."""


def first_step_state() -> types.SimpleNamespace:
    """Return a stand-in for the `transformers.TrainerState` that the first step gets.

    The real class would import the whole library. `max_steps` is 1, because rewards divide by it.
    """
    return types.SimpleNamespace(
        global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, log_history=[]
    )


def call_reward(reward: RewardFunction, batch: Batch) -> list[Any]:
    """Call a reward as TRL does and return its scores as they are, unconverted.

    An async reward runs in the event loop that all async rewards share, in a thread of its own,
    because the notebook's own loop is already running.

    Raises:
        ReturnTypeError: The reward did not return an iterable.
    """
    state = batch.trainer_state
    if state is None and not isinstance(reward, Reward):
        state = first_step_state()
    # As in the trainer, the reward gets the batch's own lists and no copies.
    output = reward(
        prompts=batch.prompts,
        completions=batch.completions,
        completion_ids=batch.completion_ids,
        **batch.columns,
        trainer_state=state,
        log_extra=lambda name, values: None,
        log_metric=lambda name, value: None,
    )
    if is_async(reward):
        output = run_coroutine(output)
    if not isinstance(output, Iterable):
        raise ReturnTypeError(
            f"it returned {output!r:.60}; it must be a list of one float for each completion"
        )
    return list(output)


def to_float(value: Any) -> float:
    """Return a score as TRL's float32 tensor reads it.

    None is NaN, and a number that is too large for float32 is infinite.

    Raises:
        TypeError: A value that torch cannot read as one number, such as text, a list or a complex
            number.
        OverflowError: An int that is too large for any float. Torch fails on it too.
    """
    if value is None:
        return math.nan
    is_no_number = isinstance(value, (str, bytes, list, tuple, dict, complex))
    if is_no_number or type(value).__name__ == "ndarray":
        raise TypeError(
            f"a score is {value!r:.60}, a {type(value).__name__}; it must be one number or None"
        )
    number = float(value)
    if math.isfinite(number) and abs(number) > FLOAT32_MAX:
        return math.copysign(math.inf, number)
    return number


def to_floats(output: Sequence[Any], count: int) -> list[float]:
    """Return the scores of a batch as floats, one for each completion.

    Raises:
        ValueError: The number of scores is not the number of completions.
        TypeError, OverflowError: As in `to_float`.
    """
    if len(output) != count:
        raise ValueError(
            f"it returned {len(output)} scores for {count} completions: there must be one for each"
        )
    return [to_float(value) for value in output]
