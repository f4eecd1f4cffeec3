"""Score completions with reward functions as `GRPOTrainer` of trl 1.15 does, without a trainer.

`score` builds the keywords of a call (`make_batch`), then calls each reward and reads its scores
(`call_reward`). A reward returns None for no score, which becomes NaN, as in TRL. Reward models and
async rewards are not covered. "TRL" below means this version.
"""

from __future__ import annotations

import contextlib
import copy
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.tables import Part, ReprMixin, Table, verbatim
from grpo_nb.core.words import displayable, format_score, short_repr, shorten
from grpo_nb.rewards.base import (
    Completion,
    RewardFunction,
    completion_text,
    reward_list,
    reward_name,
    rows_of,
    unwrap_partial,
    weights_by_name,
)
from grpo_nb.scoring.advantages import group_advantages

if TYPE_CHECKING:
    import pandas

Rows = Mapping[str, Any] | Iterable[Mapping[str, Any]] | None
"""The data row of each completion, one row for all completions, or None for no columns."""
Batch = dict[str, list[Any] | None]
"""`prompts`, `completions`, `completion_ids` and the columns, as TRL passes them to a reward."""
TRL_KEYWORDS = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)
"""Keywords that TRL passes to a reward besides the columns of the data."""
# Data columns that are not passed under their own names. TRL uses the names of `TRL_KEYWORDS`
# itself, passes `prompt` as `prompts`, and drops `completion`.
_COLUMNS_LEFT_OUT = (*TRL_KEYWORDS, "prompt", "completion")
# TRL holds scores in a float32 tensor.
_FLOAT32_MAX = 3.4028234663852886e38

SCORE_TOLERANCE = 1e-6
"""Scores or totals that differ by less are equal: the difference is floating-point rounding."""


class RewardError(Exception):
    """A reward function failed. The message names it, the row and the completion.

    `__cause__` is the exception that the function raised, or the error in its scores.
    """


class UnusableOutputError(ValueError):
    """A reward raised nothing, but returned something that TRL cannot use as scores."""


def make_batch(
    completions: Sequence[Completion],
    rows: Rows = None,
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
    tokenizer: Any = None,
) -> Batch:
    """Return the batch with which TRL would call the rewards. Arguments as in `score`.

    The columns are copies, so that a reward cannot change the user's rows. `environments`, which
    are meant to change, and columns that cannot be copied are passed as they are.

    Raises:
        ValueError: The lengths do not match, a row is not a dict, or texts and chats are mixed.
        KeyError: A row does not have a column of the first row.
    """
    are_texts = all(isinstance(completion, str) for completion in completions)
    are_chats = all(isinstance(completion, (list, tuple)) for completion in completions)
    # A single text is also a sequence of texts (its letters), and a single message one of its keys.
    is_single = isinstance(completions, (str, Mapping))
    if is_single or len(completions) == 0 or not (are_texts or are_chats):
        raise ValueError(
            f"completions = {short_repr(completions)} must be a list of texts, or a list of lists "
            "of chat messages, and have at least one."
        )
    # Completions may be a pandas Series, but rewards index them by position, as a list.
    completions = list(completions)
    if rows is None or isinstance(rows, Mapping):
        row_list = [rows or {}] * len(completions)
    else:
        # Rows that are not iterable, such as a number, are refused below.
        row_list = list(rows) if isinstance(rows, Iterable) else []
    are_dicts = all(isinstance(row, Mapping) for row in row_list)
    if not are_dicts or len(row_list) != len(completions):
        raise ValueError(
            f"rows = {short_repr(rows)} must be a list with one dict for each of the "
            f"{len(completions)} completions, or one dict."
        )
    # As in TRL, the first row decides which columns there are.
    columns = {}
    for name in row_list[0]:
        columns[name] = [row[name] for row in row_list]
    # `prompt` first: it is what the model read, with the system prompt and the examples.
    prompts = columns.get("prompt", columns.get("question"))
    if are_texts and prompts and isinstance(prompts[0], (list, tuple)):
        # TRL passes the completions of a chat prompt as messages.
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    if completion_ids is None and tokenizer is not None:
        completion_ids = [_token_ids(completion, tokenizer) for completion in completions]
    for name in _COLUMNS_LEFT_OUT:
        columns.pop(name, None)
    batch = {
        "prompts": prompts,
        "completions": [with_final_model_message(completion) for completion in completions],
        "completion_ids": completion_ids,
        **columns,
    }
    for name, values in batch.items():
        if name != "environments":
            # A lock, for example, cannot be copied.
            with contextlib.suppress(Exception):
                batch[name] = copy.deepcopy(values)
    return batch


def with_final_model_message(completion: Completion) -> Completion:
    """Return a completion whose last message is from the model and has a text.

    For reward functions of users, which read the text `completion[-1]["content"]`. A `Reward`
    uses `completion_text`. If an episode ends with the result of a tool, or with a message that
    only calls tools, a message with the text "" is added.

    >>> with_final_model_message([{"role": "tool", "content": "7"}])[-1]
    {'role': 'assistant', 'content': ''}
    """
    if isinstance(completion, str) or not completion:
        return completion
    last = completion[-1]
    if last.get("role") != "tool" and last.get("content") is not None:
        return completion
    return [*completion, {"role": "assistant", "content": ""}]


def _token_ids(completion: Completion, tokenizer: Any) -> list[int]:
    # A tokenizer refuses a lone surrogate.
    text = completion_text(completion).encode("utf-8", "replace").decode()
    # verbose=False: no warning for a text that is longer than the model's context.
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def first_step_state() -> types.SimpleNamespace:
    """Return a stand-in for the `transformers.TrainerState` that the first step gets.

    The real class would import the whole library. `max_steps` is 1, because rewards divide by it.
    """
    return types.SimpleNamespace(
        global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, log_history=[]
    )


def call_reward(reward: RewardFunction, batch: Batch, trainer_state: Any = None) -> list[float]:
    """Call a reward as TRL does, and return its `checked_scores`.

    Without a state, the reward gets `first_step_state`.

    Raises:
        UnusableOutputError: The reward returned something that TRL cannot use as scores.
    """
    # Counted before the call, because a reward can change its lists.
    count = len(batch["completions"])
    # As in the trainer, the reward gets the batch's own lists and no copies.
    output = reward(
        **batch,
        trainer_state=trainer_state or first_step_state(),
        log_extra=lambda column, values: None,
        log_metric=lambda name, value: None,
    )
    # Only `iter` is tried: an error inside a generator is the reward's own.
    try:
        values = iter(output)
    except TypeError:
        # One number, also as an array of numpy or torch without dimensions.
        raise UnusableOutputError(
            f"it returned {output!r:.60}; it must be a list of one float for each completion"
        ) from None
    return checked_scores(list(values), count)


def checked_scores(output: Sequence[Any], count: int) -> list[float]:
    """Return the scores of a batch as floats, NaN for None.

    TRL reads NaN as no score too. An infinite score is refused, although TRL accepts it: it makes
    all advantages of its group useless.

    Raises:
        UnusableOutputError: The number of scores is not the number of completions, a score is not
            one number, or it is infinite in the float32 tensor in which TRL holds scores.
    """
    if len(output) != count:
        raise UnusableOutputError(
            f"it returned {len(output)} scores for {count} completions: there must be one for each"
        )
    numbers = []
    for value in output:
        try:
            number = math.nan if value is None else float(value)
        except Exception:
            # A list, for example, or an int that is too large for a float. It is refused below.
            number = math.inf
        # float("0.5") reads a text, but torch does not.
        if isinstance(value, str) or abs(number) > _FLOAT32_MAX:
            raise UnusableOutputError(
                f"a score is {value!r:.60}; it must be a finite number, or None for no score"
            )
        numbers.append(number)
    return numbers


@dataclass(frozen=True, kw_only=True, repr=False)
class Scores(ReprMixin):
    """The score of each reward for each completion, and the totals. Shows itself as a table."""

    completions: tuple[str, ...]
    """Text of each completion."""
    values: Mapping[str, tuple[float, ...]]
    """Scores by the name of the reward, before weights; NaN for no score."""
    weights: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def totals(self) -> tuple[float, ...]:
        """Weighted sum for each completion, without the rewards that gave no score.

        The total is NaN if no reward gave a score. TRL leaves such a completion out of its group.
        """
        import pandas

        weighted = pandas.DataFrame(self.values) * pandas.Series(self.weights)
        # min_count=1: without any score, the sum is NaN and not 0.
        return tuple(weighted.sum(axis="columns", min_count=1))

    def advantages(self) -> list[float]:
        """Return `group_advantages` of the totals, with all completions as one group."""
        return group_advantages(self.totals, len(self))

    @property
    def table(self) -> pandas.DataFrame:
        """Table with one row per completion: its text, the score of each reward, the total.

        Raises:
            ValueError: A reward is named `completion` or `total`, as the other two columns are.
        """
        import pandas

        if {"completion", "total"} & self.values.keys():
            raise ValueError(
                "the table has columns 'completion' and 'total': rename the reward of that name"
            )

        # pyarrow cannot store a lone surrogate.
        texts = [displayable(text) for text in self.completions]
        return pandas.DataFrame({"completion": texts, **self.values, "total": self.totals})

    def _shown_parts(self) -> Iterator[Part]:
        headings = [f"{name} x {self.weights[name]:g}" for name in self.values]
        columns = [*self.values.values(), self.totals]
        numbers = [map(format_score, scores) for scores in columns]
        texts = [verbatim(shorten(text, 400)) for text in self.completions]
        rows = list(zip(*numbers, texts, strict=True))
        yield Table(rows, [*headings, "total", "completion"], right=range(len(columns)))


def score(
    rewards: RewardFunction | Sequence[RewardFunction],
    completions: Sequence[Completion],
    rows: Rows = None,
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
    tokenizer: Any = None,
    trainer_state: Any = None,
) -> Scores:
    """Score completions with reward functions as TRL calls them, without changing your data.

    The rewards share one copy of your data, as in the trainer: a reward sees what an earlier one
    changed. Environments and columns that cannot be copied, such as locks, are passed as they are.
    A call is a trial and not a training step: the rewards get a `trainer_state` whose `is_trial` is
    True, and the state that they keep in `state_dict()` is restored.

    Args:
        rewards: One or more reward functions.
        completions: Strings or chat messages. If the prompts are chat messages, strings become
            messages, as TRL makes them.
        rows: The data row of each completion, or one row for all (a group). The rewards get its
            columns. `prompts` is the column `prompt`, else the column `question`, else None.
        completion_ids: Token ids, for rewards that count tokens.
        tokenizer: Makes `completion_ids` if they are not given: the tokens of each text, or of the
            last message of each chat, without an end token.
        trainer_state: For rewards that read the training progress. They get a copy. Without it,
            they get the state of the first step.

    Raises:
        RewardError: A reward raised, or returned something that TRL cannot use. The message names
            the first such row.
        ValueError: Two rewards have the same name, a reward is not a function, or the rows do not
            fit the completions.
        KeyError: A row does not have a column of the first row.
        EnvironmentProblem: A reward cannot work on this machine, such as a judge without its
            server.

    >>> from grpo_nb.rewards import correctness, partial_format
    >>> rewards = [correctness(), partial_format()]
    >>> score(rewards, ["<answer>7</answer>", "7"], {"answer": "7"}).totals
    (2.25, 0.0)
    """
    rewards = reward_list(rewards)
    weights = weights_by_name(rewards)
    batch = make_batch(completions, rows, completion_ids=completion_ids, tokenizer=tokenizer)
    texts = tuple(map(completion_text, batch["completions"]))
    state = copy.copy(trainer_state or first_step_state())
    state.is_trial = True
    values = {}
    with restoring_reward_states(rewards):
        for reward in rewards:
            try:
                values[reward_name(reward)] = tuple(call_reward(reward, batch, state))
            except EnvironmentProblem:
                # A judge without its server would fail on each row as well, only more slowly.
                raise
            except Exception as error:
                raise_reward_error(reward, batch, error, texts=texts, trainer_state=state)
    return Scores(completions=texts, values=values, weights=weights)


@contextlib.contextmanager
def restoring_reward_states(rewards: Sequence[RewardFunction]) -> Iterator[None]:
    """Restore the `state_dict` of each reward at the end of the block."""
    with contextlib.ExitStack() as stack:
        for reward in rewards:
            owner = state_owner(reward)
            if hasattr(owner, "load_state_dict"):
                # Copied, because a state_dict may return the very lists that the reward adds to.
                # The reward itself may hold a lock or a model, which cannot be copied.
                stack.callback(owner.load_state_dict, copy.deepcopy(owner.state_dict()))
        yield


def state_owner(function: RewardFunction) -> Any:
    """Return the object that has the `state_dict` of a reward or observer.

    A partial or a bound method has the state of the object behind it.
    """
    function = unwrap_partial(function)
    return getattr(function, "__self__", function)


def raise_reward_error(
    reward: RewardFunction,
    batch: Batch,
    batch_error: Exception,
    *,
    texts: Sequence[str],
    trainer_state: Any,
) -> NoReturn:
    """Raise a `RewardError` that names the reward and the first row that fails in the same way.

    To find the row, each row of the failed batch is scored alone. Only an error of the same type
    counts: a reward that compares the completions of a group may fail on a single row for another
    reason.

    Args:
        reward: The reward that failed.
        batch: The arguments of the failed call.
        batch_error: The error of the failed call.
        texts: Text of each completion. A reward may have changed those of the batch.
        trainer_state: The state that the reward got.

    Raises:
        RewardError: The reward failed.
        EnvironmentProblem: Something outside the reward failed, such as the server of a judge.
    """
    error = batch_error
    place = "only on the whole batch; no row alone fails in this way"
    for index, row in enumerate(rows_of(batch, len(texts))):
        # `rows_of` keeps only columns. The other arguments, such as None for the token ids, come
        # from the batch.
        row_alone = batch | {column: [value] for column, value in row.items()}
        try:
            call_reward(reward, row_alone, trainer_state)
        except EnvironmentProblem:
            raise
        except Exception as row_error:
            if type(row_error) is type(batch_error):
                error = row_error
                place = f"on row {index}: {short_repr(texts[index], 160)}"
                break
    # The message of an `UnusableOutputError` says what the reward returned.
    has_returned = isinstance(error, UnusableOutputError)
    failure = "failed" if has_returned else f"raised {type(error).__name__}"
    message = f"the reward {reward_name(reward)!r} {failure}: {str(error)[:300]} ({place})"
    raise RewardError(message) from error
