"""Score completions with reward functions as TRL would, without a trainer.

`score` calls each reward as `GRPOTrainer._calculate_rewards` of trl 1.15 does. `group_advantages`
is that trainer's formula. `reweight` shows what other weights would change. Two features of TRL are
not covered: reward models, and `multi_objective_aggregation="normalize_then_sum"`, whose advantages
do not follow from the totals.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.core.argument_types import require
from grpo_nb.core.tables import Html, Part, Shown, Table, escaped
from grpo_nb.core.words import EnvironmentProblem, as_score, displayable, in_line, shorten
from grpo_nb.rewards import base
from grpo_nb.rewards.base import Completion, RewardFunction, completion_text, is_async, reward_name
from grpo_nb.scoring.calls import (
    FLOAT32_MAX,
    Batch,
    RewardError,
    call_reward,
    make_batch,
    to_floats,
)

if TYPE_CHECKING:
    import pandas

ScaleRewards = Literal["group", "batch", "none"] | bool
# TRL adds this to the standard deviation, so that it never divides by zero.
_EPSILON = 1e-4


@dataclass(frozen=True, kw_only=True, repr=False)
class Scores(Shown):
    """The score of each reward for each completion, and the totals. Shows itself as a table."""

    completions: tuple[str, ...]
    """Text of each completion."""
    values: Mapping[str, tuple[float, ...]]
    """Scores by the name of the reward, before weights; NaN for None and for a failure."""
    weights: Mapping[str, float]
    errors: tuple[RewardError, ...] = ()
    """Failures with their rows, if `on_error="record"`."""

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def totals(self) -> tuple[float, ...]:
        """Weighted sum for each completion, without the rewards that returned None.

        The total is NaN if every reward returned None; TRL leaves such a completion out of its
        group. It is also NaN if a reward failed, because the total is unknown then; `errors` tells
        the two apart.
        """
        failed_rows = {error.row for error in self.errors}
        totals = []
        for place in range(len(self)):
            parts = []
            for name, scores in self.values.items():
                part = self.weights[name] * scores[place]
                if not math.isnan(part):
                    parts.append(part)
            # A failure without a row is one of the whole batch.
            is_unknown = place in failed_rows or None in failed_rows
            totals.append(sum(parts) if parts and not is_unknown else math.nan)
        return tuple(totals)

    def advantages(self, num_generations: int | None = None) -> list[float]:
        """Return `group_advantages` of the totals; all are one group if no size is given."""
        size = len(self) if num_generations is None else num_generations
        return group_advantages(self.totals, size)

    @property
    def table(self) -> pandas.DataFrame:
        """Table with one row per completion: its text, the score of each reward, the total."""
        import pandas

        # pyarrow cannot store a lone surrogate.
        texts = [displayable(text) for text in self.completions]
        rows = zip(texts, *self.values.values(), self.totals, strict=True)
        return pandas.DataFrame(list(rows), columns=["completion", *self.values, "total"])

    def _parts(self) -> Iterator[Part]:
        heads = [f"{name} x {self.weights[name]:g}" for name in self.values]
        rows = []
        for text, *scores in zip(self.completions, *self.values.values(), self.totals, strict=True):
            excerpt_html = escaped(shorten(text, 400))
            cell = Html(
                shorten(repr(text), 80), f"<div style='white-space:pre-wrap'>{excerpt_html}</div>"
            )
            rows.append((*map(as_score, scores), cell))
        yield Table(rows, [*heads, "total", "completion"], right=range(len(heads) + 1))
        if self.errors:
            yield "Failed:"
            yield from map(str, self.errors)


def score(
    rewards: RewardFunction | Sequence[RewardFunction],
    completions: Sequence[Completion],
    rows: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    *,
    prompts: Sequence[Any] | None = None,
    completion_ids: Sequence[Sequence[int]] | None = None,
    tokenizer: Any = None,
    weights: Mapping[str, float] | None = None,
    trainer_state: Any = None,
    on_error: Literal["raise", "record"] = "raise",
) -> Scores:
    """Score completions with reward functions, sync or async, as trl 1.15 calls them.

    All rewards get the same lists, as in the trainer: a change that one reward makes is visible to
    the next one. The lists are copies, so your own data does not change.

    Args:
        rewards: One or more reward functions.
        completions: Strings or chat messages. If the prompts are chat messages, strings become
            messages, as TRL makes them.
        rows: The data row of each completion, or one row for all (a group). The rewards get its
            columns, and `prompt` as `prompts`.
        prompts: The prompts, if the rows have none.
        completion_ids: Token ids, for rewards that count tokens.
        tokenizer: Makes `completion_ids` from the completions if these are not given.
        weights: Weights by name. Rewards that are not named keep their own weight (1.0 for a plain
            function).
        trainer_state: For rewards that read the training progress. Without it, plain functions get
            the state of the first step.
        on_error: `"raise"` stops at the first reward that fails and names the row. `"record"`
            scores the rest and lists the failures in `errors`.

    Raises:
        RewardError: A reward raised, or returned something that TRL cannot use, and `on_error` is
            `"raise"`.
        ValueError: Two rewards of the same name, a reward that is not a function, or rows that do
            not fit the completions.
        EnvironmentProblem: A reward cannot work on this machine, such as a judge without its
            server. It is raised for both values of `on_error`.

    >>> from grpo_nb.rewards import correctness, xml_tags
    >>> score([correctness(), xml_tags()], ["<answer>7</answer>", "7"], {"answer": "7"}).totals
    (2.5, 0.0)
    """
    if on_error not in ("raise", "record"):
        raise ValueError(f"on_error = {on_error!r} must be 'raise' or 'record'.")
    require("gn.score(rewards, completions, rows)", rewards=rewards, completions=completions)
    rewards = base.reward_list(rewards)
    weights = base.changed_weights(base.weights_by_name(rewards), weights or {})
    batch = make_batch(
        completions,
        rows,
        prompts=prompts,
        completion_ids=completion_ids,
        tokenizer=tokenizer,
        trainer_state=trainer_state,
    ).copied()
    texts = tuple(completion_text(completion) for completion in batch.completions)
    values: dict[str, tuple[float, ...]] = {}
    errors: list[RewardError] = []
    # TRL runs the sync rewards first, then awaits the async ones.
    for reward in sorted(rewards, key=is_async):
        name = reward_name(reward)
        try:
            values[name] = _finite_floats(call_reward(reward, batch), len(batch))
        except EnvironmentProblem:
            # A judge without its server would fail on each row as well, only more slowly.
            raise
        except Exception as error:
            values[name], failures = _score_rows(reward, batch, texts, error)
            if on_error == "raise":
                raise failures[0] from failures[0].__cause__
            errors += failures
    in_order = {name: values[name] for name in weights}
    return Scores(completions=texts, values=in_order, weights=weights, errors=tuple(errors))


def _finite_floats(output: Sequence[Any], count: int) -> tuple[float, ...]:
    """Return the scores of a batch as floats, and refuse NaN and infinity.

    TRL takes both without a warning, and then no total or advantage of the group is a number.
    """
    scores = to_floats(output, count)
    for value, score in zip(output, scores, strict=True):
        if value is not None and not math.isfinite(score):
            raise ValueError(
                f"a score is {value!r}; it must be a finite number, or None for no score"
            )
    return tuple(scores)


def _score_rows(
    reward: RewardFunction, batch: Batch, texts: Sequence[str], batch_error: Exception
) -> tuple[tuple[float, ...], list[RewardError]]:
    """Score each row of a failed batch on its own, to name the rows that fail. They score NaN."""
    name = reward_name(reward)
    scores: list[float] = []
    failures: list[RewardError] = []
    for place, text in enumerate(texts):
        try:
            scores += _finite_floats(call_reward(reward, batch.select([place])), 1)
        except Exception as error:
            scores.append(math.nan)
            failures.append(RewardError(name, place, in_line(text, 160), error))
    if not failures:
        return (math.nan,) * len(batch), [RewardError(name, None, "", batch_error)]
    return tuple(scores), failures


def group_advantages(
    totals: Sequence[float | None], num_generations: int, *, scale_rewards: ScaleRewards = "group"
) -> list[float]:
    """Return the advantage of each completion within its group, by the formula of trl 1.15.

    The advantage is (total - mean of the group) / (std + 1e-4), with Bessel's correction. `"group"`
    takes the std of the group, `"batch"` that of all totals (arXiv:2508.08221), and `"none"` does
    not divide (Dr. GRPO, arXiv:2503.20783). NaN and None are left out of mean and std and get the
    advantage 0. The numbers are computed in float64; TRL uses float32.

    Args:
        totals: Weighted totals, the completions of a group next to each other.
        num_generations: Size of a group.
        scale_rewards: As in `GRPOConfig`; True is `"group"` and False is `"none"`.

    Raises:
        ValueError: Totals that cannot be divided into groups, or an unknown `scale_rewards`.

    >>> [round(advantage, 3) for advantage in group_advantages([2.0, 0.0, 0.0, 0.0], 4)]
    [1.5, -0.5, -0.5, -0.5]
    """
    scale = scale_rewards
    if isinstance(scale_rewards, bool):
        scale = "group" if scale_rewards else "none"
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale_rewards = {scale_rewards!r} must be 'group', 'batch' or 'none'.")
    if num_generations < 1 or not totals or len(totals) % num_generations:
        raise ValueError(
            f"{len(totals)} totals cannot be divided into groups of "
            f"num_generations = {num_generations}."
        )
    # Imported here, because importing the package must not load it.
    import numpy as np

    # A None becomes NaN.
    groups = np.array(totals, dtype=float).reshape(-1, num_generations)
    # numpy warns about a group without numbers, and about infinite totals.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        advantages = groups - np.nanmean(groups, axis=1, keepdims=True)
        if scale == "group":
            advantages /= np.nanstd(groups, axis=1, ddof=1, keepdims=True) + _EPSILON
        elif scale == "batch":
            advantages /= np.nanstd(groups, ddof=1) + _EPSILON
    # A completion without a score changes nothing, and an infinite advantage becomes the largest
    # float32, as with torch.nan_to_num in TRL.
    limited = np.nan_to_num(advantages, nan=0.0).clip(-FLOAT32_MAX, FLOAT32_MAX)
    return limited.ravel().tolist()


def reweight(scores: Scores, weights: Mapping[str, float]) -> Scores:
    """Return the same scores with other weights. No reward is called again.

    Raises:
        ValueError: A name that is not a reward of `scores`, or a weight that is not finite.

    >>> from grpo_nb.rewards import correctness
    >>> scores = score(correctness(), ["<answer>7</answer>"], {"answer": "7"})
    >>> reweight(scores, {"correctness": 5.0}).totals
    (5.0,)
    """
    return dataclasses.replace(scores, weights=base.changed_weights(scores.weights, weights))
