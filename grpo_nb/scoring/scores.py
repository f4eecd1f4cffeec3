"""Reward functions outside a trainer: what TRL would make of these completions, as a table, without training.

`score` calls each reward as `GRPOTrainer._calculate_rewards` of trl 1.15 does, `group_advantages` is that trainer's
formula, and `reweight` answers "what if this reward weighed more". Not covered: reward models given to TRL as
torch modules or Hub ids, and `multi_objective_aggregation="normalize_then_sum"`, whose advantages do not follow from
the totals.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.core.argument_types import require
from grpo_nb.core.tables import Html, Part, Shown, Table, escaped
from grpo_nb.core.words import EnvironmentProblem, as_score, displayable, in_line, shorten
from grpo_nb.rewards import base
from grpo_nb.rewards.async_rewards import is_async
from grpo_nb.rewards.base import Completion, RewardFunction, completion_text, reward_name
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


@dataclass(frozen=True, kw_only=True, repr=False)
class Scores(Shown):
    """What each reward says of each completion, and the totals GRPO would work on. Shows itself as a table."""

    completions: tuple[str, ...]
    """The text of each completion."""
    values: Mapping[str, tuple[float, ...]]
    """Each reward's scores by name, unweighted; NaN where it gave None, or failed."""
    weights: Mapping[str, float]
    errors: tuple[RewardError, ...] = ()
    """With `on_error="record"`: what failed, with its row."""

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def totals(self) -> tuple[float, ...]:
        """Weighted sum for each completion, without the rewards that gave None.

        NaN where every reward gave None, which TRL leaves out of its group, and where a reward failed, as nobody knows then.
        """
        failed = {error.row for error in self.errors}
        weighed = (
            [self.weights[name] * score for score in scores] for name, scores in self.values.items()
        )
        totals = []
        for i, row in enumerate(zip(*weighed, strict=True)):
            known = [part for part in row if not math.isnan(part)]
            totals.append(sum(known) if known and not failed & {i, None} else math.nan)
        return tuple(totals)

    def advantages(
        self, num_generations: int | None = None, *, scale_rewards: ScaleRewards = "group"
    ) -> list[float]:
        """Return `group_advantages` of the totals; all completions are one group if `num_generations` is not given."""
        return group_advantages(
            self.totals, num_generations or len(self), scale_rewards=scale_rewards
        )

    @property
    def table(self) -> pandas.DataFrame:
        """One row per completion: its text, each reward's score, the total."""
        import pandas

        # pyarrow cannot hold a lone surrogate.
        rows = zip(
            map(displayable, self.completions), *self.values.values(), self.totals, strict=True
        )
        return pandas.DataFrame(list(rows), columns=["completion", *self.values, "total"])

    def _parts(self) -> Iterator[Part]:
        heads = [f"{name} x {self.weights[name]:g}" for name in self.values]
        rows = [
            (
                *map(as_score, row),
                Html(
                    shorten(repr(text), 80),
                    f"<div style='white-space:pre-wrap'>{escaped(shorten(text, 400))}</div>",
                ),
            )
            for text, *row in zip(self.completions, *self.values.values(), self.totals, strict=True)
        ]
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
    """Score completions with reward functions as trl 1.15 calls them, sync or async, without a trainer.

    All rewards see the same lists, as in the trainer: what one of them changes, the next one sees. They are copies, so nothing
    of yours changes.

    Args:
        rewards: One or more reward functions.
        completions: Strings or chat messages. Where the prompts are chat messages, strings become messages, as TRL makes them.
        rows: The data row of each completion, or one row for all (a group). The rewards get its columns, and `prompt` as
            `prompts`.
        prompts: If the rows hold none.
        completion_ids: Token ids, for rewards that count tokens; or pass `tokenizer`. None where neither is given.
        tokenizer: Makes `completion_ids` from the completions.
        weights: By name; those the rewards carry (1.0 for a plain function) where not given.
        trainer_state: For rewards that look at training progress. Without it plain functions see the first step.
        on_error: `"raise"` stops at the first reward that fails and says on which row. `"record"` scores what can be scored and
            lists what failed in `errors`.

    Raises:
        RewardError: A reward raised, or returned what TRL cannot take (only with `on_error="raise"`).
        ValueError: Two rewards of the same name, a reward that is no function, or rows that do not fit the completions.

    >>> from grpo_nb.rewards import correctness, xml_tags
    >>> score([correctness(), xml_tags()], ["<answer>7</answer>", "7"], {"answer": "7"}).totals
    (2.5, 0.0)
    """
    if on_error not in ("raise", "record"):
        raise ValueError(f"on_error = {on_error!r} must be 'raise' or 'record'.")
    require("gn.score(rewards, completions, rows)", rewards=rewards, completions=completions)
    rewards = base.reward_list(rewards)
    weights = base.changed_weights(base.weights_by_name(rewards), weights or {})
    ids = {"completion_ids": completion_ids, "tokenizer": tokenizer}
    batch = copy.deepcopy(
        make_batch(completions, rows, prompts=prompts, trainer_state=trainer_state, **ids)
    )
    texts = tuple(map(completion_text, batch.completions))
    values: dict[str, tuple[float, ...]] = {}
    errors: list[RewardError] = []
    # TRL runs the sync rewards first, then awaits the async ones.
    for reward in sorted(rewards, key=is_async):
        name = reward_name(reward)
        try:
            values[name] = _finite_floats(call_reward(reward, batch), len(batch))
        except (
            EnvironmentProblem
        ):  # a judge without its server: row by row it would only take longer
            raise
        except Exception as error:
            values[name], failures = _score_rows(reward, batch, texts, error)
            if on_error == "raise":
                raise failures[0] from failures[0].__cause__
            errors += failures
    in_order = {name: values[name] for name in weights}
    return Scores(completions=texts, values=in_order, weights=weights, errors=tuple(errors))


def _finite_floats(output: Sequence[Any], count: int) -> tuple[float, ...]:
    """The scores of a batch; what TRL would take without a word and every total and advantage would suffer from is an error."""
    scores = to_floats(output, count)
    for value, score in zip(output, scores, strict=True):
        if value is not None and not math.isfinite(score):
            raise ValueError(
                f"a score is {value!r}; it must be a finite number, or None where there is no score"
            )
    return tuple(scores)


def _score_rows(
    reward: RewardFunction, batch: Batch, texts: Sequence[str], batch_error: Exception
) -> tuple[tuple[float, ...], list[RewardError]]:
    """After a batch has failed: each row on its own, to name the one that did it. Scores NaN where it fails."""
    name, scores, failures = reward_name(reward), [], []
    for i in range(len(batch)):
        alone = batch.select([i])
        try:
            scores += _finite_floats(call_reward(reward, alone), 1)
        except Exception as error:
            scores.append(math.nan)
            failures.append(RewardError(name, i, in_line(texts[i], 160), error))
    if not failures:
        return (math.nan,) * len(batch), [RewardError(name, None, "", batch_error)]
    return tuple(scores), failures


def group_advantages(
    totals: Sequence[float | None], num_generations: int, *, scale_rewards: ScaleRewards = "group"
) -> list[float]:
    """Return the advantage of each completion within its group, by the formula of trl 1.15.

    (total - mean of its group) / (std + 1e-4), with Bessel's correction. `"group"` takes the std of the group, `"batch"`
    that of all totals (arXiv:2508.08221), `"none"` does not divide (Dr. GRPO, arXiv:2503.20783). NaN and None totals are
    left out of mean and std, and get 0. Computed in float64, where TRL uses float32.

    Args:
        totals: Weighted totals, the completions of a group next to each other.
        num_generations: Size of a group.
        scale_rewards: As in `GRPOConfig`, where True is `"group"` and False is `"none"`.

    Raises:
        ValueError: Totals that do not divide into groups, or an unknown `scale_rewards`.

    >>> [round(advantage, 3) for advantage in group_advantages([2.0, 0.0, 0.0, 0.0], 4)]
    [1.5, -0.5, -0.5, -0.5]
    """
    scale = {True: "group", False: "none"}.get(scale_rewards, scale_rewards)  # type: ignore[call-overload]
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale_rewards = {scale_rewards!r} must be 'group', 'batch' or 'none'.")
    values = [math.nan if total is None else float(total) for total in totals]
    if num_generations < 1 or not values or len(values) % num_generations:
        raise ValueError(
            f"{len(values)} totals cannot be divided into groups of num_generations = {num_generations}."
        )
    advantages = []
    batch_std = _std(values)
    for start in range(0, len(values), num_generations):
        group = values[start : start + num_generations]
        mean = _mean([value for value in group if not math.isnan(value)])
        std = _std(group) if scale == "group" else batch_std
        scaled = [
            (value - mean) / (std + 1e-4) if scale != "none" else value - mean for value in group
        ]
        # torch.nan_to_num: an unscorable completion moves nothing, an infinite advantage becomes the largest float32.
        advantages += [
            0.0 if math.isnan(a) else min(max(a, -FLOAT32_MAX), FLOAT32_MAX) for a in scaled
        ]
    return advantages


def _mean(known: Sequence[float]) -> float:
    # sum, not fsum, which raises for inf - inf where a tensor has NaN.
    return sum(known) / len(known) if known else math.nan


def _std(values: Sequence[float]) -> float:
    """As trl's `nanstd`: NaN for fewer than two values, so that their advantage becomes 0, which it is for one alone."""
    known = [value for value in values if not math.isnan(value)]
    mean = _mean(known)
    squares = sum((value - mean) ** 2 for value in known)
    return math.sqrt(squares / (len(known) - 1)) if len(known) > 1 else math.nan


def reweight(scores: Scores, weights: Mapping[str, float]) -> Scores:
    """Return the same scores under other weights: what the totals and advantages would have been. Nothing is called again.

    Raises:
        ValueError: A name that is no reward of `scores`, or a weight that is not finite.

    >>> from grpo_nb.rewards import correctness
    >>> reweight(score(correctness(), ["<answer>7</answer>"], {"answer": "7"}), {"correctness": 5.0}).totals
    (5.0,)
    """
    return dataclasses.replace(scores, weights=base.changed_weights(scores.weights, weights))
