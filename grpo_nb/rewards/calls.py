"""One call of one reward function, exactly as trl 1.15 makes it, from rows and completions that no trainer holds.

What `grpo_nb.rewards.scores` and `grpo_nb.checks.run` share: the batch, the call, and how TRL reads what comes back.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.core.deadlines import run_in_thread
from grpo_nb.core.text import shorten
from grpo_nb.rewards.base import Completion, Reward, RewardFunction, completion_text, unwrapped

# What TRL does not hand on as a data column, because it passes its own.
_NOT_COLUMNS = ("prompt", "completion", "completion_ids")
FLOAT32_MAX = 3.4028234663852886e38


@dataclass(kw_only=True)
class TrainerState:
    """What a reward sees as `trainer_state` outside a trainer: the names of transformers 5.17, at step 0 of `max_steps`.

    It stands in for `transformers.TrainerState`, whose import would bring the whole library. Pass the real one if you can.
    """

    epoch: float = 0.0
    global_step: int = 0
    max_steps: int = 1
    """Not 0, which is what it is only before a trainer starts: rewards divide by it."""
    logging_steps: int = 1
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 1
    num_input_tokens_seen: int = 0
    total_flos: float = 0.0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)


class NotGiven:
    """Stands where `score` was given no prompts or token ids: a reward that looks at them is told what to pass."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self, *args: Any) -> Any:
        hint = "tokenizer=tokenizer or completion_ids=[...]" if self.name == "completion_ids" else "prompts=[...]"
        raise ValueError(
            f"this reward looks at {self.name}, and score was given none (a trainer always has them). "
            f"Write score(..., {hint})."
        )

    __len__ = __getitem__ = __iter__ = _refuse

    def __repr__(self) -> str:
        return f"<{self.name} not given>"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The keywords of one call of a reward function, in the shape TRL gives them."""

    prompts: Any
    completions: list[Completion]
    completion_ids: Any
    columns: Mapping[str, list[Any]]
    trainer_state: Any = None
    """None outside of training: a plain function gets a `TrainerState`, a reward of the kit None, and stays as it is."""

    def __len__(self) -> int:
        return len(self.completions)

    def select(self, indexes: Sequence[int]) -> Batch:
        """Return the batch with only these completions, in this order."""

        return self._changed(lambda held: held if isinstance(held, NotGiven) else [held[i] for i in indexes])

    def copy(self) -> Batch:
        """Return the batch with lists and messages of its own, so that a reward that changes them changes nothing of yours."""
        return self._changed(copy.deepcopy)

    def _changed(self, change: Callable[[Any], Any]) -> Batch:
        lists = {name: change(getattr(self, name)) for name in ("prompts", "completions", "completion_ids")}
        return dataclasses.replace(self, **lists, columns={key: change(held) for key, held in self.columns.items()})


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
        ValueError: Lengths that do not fit together, rows with different columns, or completions of two shapes.
    """
    if isinstance(completions, (str, Mapping)):
        raise ValueError(f"completions = {shorten(repr(completions), 60)} is one: write a list, completions=[...].")
    completions = list(completions)
    for number, completion in enumerate(completions):
        if not isinstance(completion, str) and not (
            isinstance(completion, Sequence) and all(isinstance(message, Mapping) for message in completion)
        ):
            raise ValueError(
                f"completion {number} is {shorten(repr(completion), 60)}: it must be text, or a list of chat messages "
                '[{"role": "assistant", "content": "..."}].'
            )
    count = len(completions)
    if count == 0:
        raise ValueError("completions is empty: there is nothing to score.")
    listed = [dict(rows)] * count if isinstance(rows, Mapping) else [dict(row) for row in rows or ()]
    if rows is not None and len(listed) != count:
        raise ValueError(
            f"{len(listed)} rows for {count} completions: each completion needs the row of its prompt. "
            "Pass one row (a dict) for completions of one prompt, or one row for each completion."
        )
    for number, row in enumerate(listed):
        if set(row) != set(listed[0]):
            raise ValueError(f"row {number} has the columns {sorted(row)}, but row 0 has {sorted(listed[0])}.")
    name = next((name for name in ("prompt", "question") if listed and name in listed[0]), None)
    if prompts is None and name is not None:
        prompts = [row[name] for row in listed]
    for name, values in (("prompts", prompts), ("completion_ids", completion_ids)):
        if values is not None and len(values) != count:
            raise ValueError(f"{len(values)} {name} for {count} completions: there must be one for each.")
    if len({isinstance(completion, str) for completion in completions}) > 1:
        raise ValueError("completions mixes strings and chat messages: a trainer gives one kind or the other.")
    if prompts is not None and not isinstance(prompts[0], str) and isinstance(completions[0], str):
        # A chat prompt has chat completions: TRL hands rewards messages then, never strings.
        completions = [[{"role": "assistant", "content": completion}] for completion in completions]
    if completion_ids is None and tokenizer is not None:
        # A tokenizer takes no lone surrogate. verbose: a probe longer than the model's context is meant to be.
        texts = [completion_text(c).encode("utf-8", "replace").decode() for c in completions]
        completion_ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    return Batch(
        prompts=NotGiven("prompts") if prompts is None else list(prompts),
        completions=completions,
        completion_ids=NotGiven("completion_ids") if completion_ids is None else [list(ids) for ids in completion_ids],
        columns={key: [row[key] for row in listed] for key in (listed[0] if listed else ()) if key not in _NOT_COLUMNS},
        trainer_state=trainer_state,
    )


class RewardError(Exception):
    """A reward function failed. The message names it, the row and the completion; `__cause__` is what it raised."""

    def __init__(self, reward: str, row: int | None, excerpt: str, cause: BaseException) -> None:
        self.reward, self.row, self.excerpt = reward, row, excerpt
        where = "on the whole batch, though on none of its rows alone" if row is None else f"on row {row}: {excerpt}"
        super().__init__(f"the reward {reward!r} raised {type(cause).__name__}: {str(cause)[:300]} ({where})")
        self.__cause__ = cause


class UnreadableOutput(TypeError):
    """A reward returned something that is no list of scores."""

    def __init__(self, output: Any) -> None:
        self.output = output
        super().__init__(
            f"it returned {shorten(repr(output), 60)}, a {type(output).__name__}; it must be a list of one float for each "
            "completion"
        )


def is_async(reward: Callable[..., Any]) -> bool:
    """Say whether TRL awaits this reward: a coroutine function, or an object whose `__call__` is one."""
    reward = unwrapped(reward)
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(getattr(reward, "__call__", None))  # noqa: B004


def call_reward(
    reward: RewardFunction,
    batch: Batch,
    *,
    log_extra: Callable[[str, list[Any]], None] = lambda column, values: None,
    log_metric: Callable[[str, float], None] = lambda name, value: None,
) -> list[Any]:
    """Call a reward as TRL does and return what it gave for each completion, unconverted.

    An async reward gets an event loop of its own in a thread, because a notebook's thread has one running.
    """
    state = batch.trainer_state
    if state is None and not isinstance(reward, Reward):
        state = TrainerState()
    # The lists are the batch's own, as they are the trainer's own there.
    output = reward(
        prompts=batch.prompts, completions=batch.completions, completion_ids=batch.completion_ids, **batch.columns,
        trainer_state=state, log_extra=log_extra, log_metric=log_metric,
    )  # fmt: skip
    if is_async(reward):
        output = run_in_thread(lambda: asyncio.run(output), None)
    if not isinstance(output, Iterable):
        raise UnreadableOutput(output)
    return list(output)


def to_float(value: Any) -> float:
    """Return a score as TRL's float32 tensor reads it: None is NaN, what is too large for float32 is infinite.

    Raises:
        TypeError: What torch cannot take as one number, such as text, a list or a complex number.
        OverflowError: An int too large for any float, at which torch fails too.
    """
    if value is None:
        return math.nan
    if isinstance(value, (str, bytes, list, tuple, dict, complex)) or type(value).__name__ == "ndarray":
        raise TypeError(
            f"a score is {shorten(repr(value), 60)}, a {type(value).__name__}; it must be one number or None"
        )
    number = float(value)
    return math.copysign(math.inf, number) if math.isfinite(number) and abs(number) > FLOAT32_MAX else number


def to_floats(output: Sequence[Any], count: int) -> list[float]:
    """Return the scores of a batch as floats, one for each completion.

    Raises:
        ValueError: Another number of scores than completions.
        TypeError, OverflowError: As `to_float`.
    """
    if len(output) != count:
        raise ValueError(f"it returned {len(output)} scores for {count} completions: there must be one for each")
    return [to_float(value) for value in output]
