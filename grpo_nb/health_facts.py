"""One row of a log under one set of names, whatever generation it is of, and the statistics that rules compute from rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST = 1e30
"""Beyond what bfloat16 and float32 training can hold with any sense; treated as infinite."""
_SPREAD_FLOOR = 1e-6
"""Below this, the spread of equal float32 rewards is rounding."""

# Fact -> the metric's names, of either generation of TRL and of Unsloth, the preferred one first.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "reward": ("reward",),
    "reward_std": ("reward_std",),
    "zero_std": ("frac_reward_zero_std",),
    "kl": ("kl",),
    "grad_norm": ("grad_norm",),
    "loss": ("loss",),
    "length": ("completions/mean_length", "completion_length"),
    "clipped": ("completions/clipped_ratio",),
    "step_time": ("step_time",),
    "entropy": ("entropy",),
    "ratio_clipped": ("clip_ratio/region_mean", "clip_ratio"),
    "learning_rate": ("learning_rate",),
}


@dataclass(kw_only=True, slots=True)
class Facts:
    """One row under one set of names: finite numbers only, None for what was not measured."""

    step: int
    reward: float | None = None
    reward_std: float | None = None
    no_spread: float | None = None
    """Share of the step's groups whose completions all have the same reward; a lower bound where TRL did not log it."""
    kl: float | None = None
    grad_norm: float | None = None
    loss: float | None = None
    length: float | None = None
    clipped: float | None = None
    step_time: float | None = None
    entropy: float | None = None
    ratio_clipped: float | None = None
    learning_rate: float | None = None
    duplicates: float | None = None
    """Share of completions that repeat another of their group: 0 if all differ, 1 if all are the same."""
    same_answer: float | None = None
    """Share of all completions that are the step's most common text; None with fewer than two prompts."""
    rewards: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, float] = field(default_factory=dict)


def number(value: Any) -> float | None:
    """The value as a float if it is a number at all; NaN and infinity are numbers here."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        # numpy's and torch's scalars have item(); they come from users' own metrics.
        item = getattr(value, "item", None)
        if not callable(item) or getattr(value, "size", None) != 1:
            return None
        value = item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _share(value: float | None) -> float | None:
    return None if value is None else min(1.0, max(0.0, value))


def mean(values: Sequence[float]) -> float:
    """Mean of at least one number."""
    return math.fsum(values) / len(values)


def rank_shift(before: Sequence[float], after: Sequence[float]) -> float:
    """How much higher `after` is than `before`, as the z of the Mann-Whitney test; 0 where it cannot be said.

    Ranks, because rewards and KL have outliers that turn a comparison of means around. Corrected for ties, of which
    rewards have many.

    >>> rank_shift([1, 2, 3, 4], [5, 6, 7, 8]) > 2
    True
    >>> rank_shift([1, 1, 1], [1, 1, 1])
    0.0
    """
    n, m = len(before), len(after)
    total = n + m
    if n < 2 or m < 2:
        return 0.0
    pooled = sorted([(value, 0) for value in before] + [(value, 1) for value in after])
    rank_sum, tied, position = 0.0, 0, 0
    while position < total:
        end = position
        while end < total and pooled[end][0] == pooled[position][0]:
            end += 1
        rank = (position + 1 + end) / 2
        rank_sum += rank * sum(side for _, side in pooled[position:end])
        tied += (end - position) ** 3 - (end - position)
        position = end
    variance = n * m / 12 * (total + 1 - tied / (total * (total - 1)))
    return (rank_sum - m * (total + 1) / 2) / math.sqrt(variance) if variance > 1e-9 else 0.0


def duplicate_shares(completions: Iterable[Any], group_size: int | None) -> tuple[float | None, float | None]:
    """How alike the completions of a step are: within their groups, and across different prompts.

    Args:
        completions: Texts or chat messages, groups one after the other; or one list of texts per group.
        group_size: `num_generations`. Without it, or if it does not divide the batch, the batch counts as one group.

    >>> duplicate_shares(["a", "a ", "b", "c"], 2)
    (0.5, 0.5)
    """
    items = list(completions)
    if items and all(isinstance(i, (list, tuple)) and all(isinstance(t, str) for t in i) for i in items):
        groups = [[_plain(text) for text in group] for group in items]
    else:
        texts = [_plain(item) for item in items]
        size = group_size if group_size and len(texts) % group_size == 0 else len(texts)
        groups = [texts[i : i + size] for i in range(0, len(texts), size or 1)]
    shares = [(len(group) - len(set(group))) / (len(group) - 1) for group in groups if len(group) > 1]
    texts = [text for group in groups for text in group]
    commonest = max(Counter(texts).values(), default=0)
    return (mean(shares) if shares else None), (commonest / len(texts) if len(groups) > 1 and texts else None)


def _plain(completion: Any) -> str:
    if isinstance(completion, (list, tuple)) and completion and isinstance(completion[-1], Mapping):
        completion = completion[-1].get("content")
    return " ".join(str(completion).split())


def values_of(rows: Iterable[Facts], fact: str) -> list[float]:
    if fact.startswith("rewards/"):
        name = fact.removeprefix("rewards/")
        return [row.rewards[name] for row in rows if name in row.rewards]
    if fact.startswith("spreads/"):
        name = fact.removeprefix("spreads/")
        return [row.spreads[name] for row in rows if name in row.spreads]
    return [value for row in rows if (value := getattr(row, fact)) is not None]


def _spread_missing(reward_std: float | None, spreads: Mapping[str, float]) -> float | None:
    """1 where no group can have had spread, 0 where one had, None where nothing is known.

    `reward_std` was the mean spread within groups before January 2026 and is that of the whole batch since: zero means
    the same in both.
    """
    if reward_std is not None:
        return float(abs(reward_std) <= _SPREAD_FLOOR)
    return float(all(abs(value) <= _SPREAD_FLOOR for value in spreads.values())) if spreads else None


def facts_of(finite: Mapping[str, float], step: int) -> Facts:
    """The facts of a row, whatever generation its names are of."""
    found: dict[str, Any] = {}
    for fact, names in _NAMES.items():
        found[fact] = next((finite[name] for name in names if name in finite), None)
    rewards: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for key, value in finite.items():
        if key.startswith("rewards/"):
            name = key.removeprefix("rewards/")
            if name.endswith("/std"):
                spreads[name.removesuffix("/std")] = value
            else:
                rewards[name.removesuffix("/mean")] = value
    zero_std = found.pop("zero_std")
    if zero_std is None:
        zero_std = _spread_missing(found["reward_std"], spreads)
    for share in ("clipped", "ratio_clipped"):
        found[share] = _share(found[share])
    return Facts(step=step, no_spread=_share(zero_std), rewards=rewards, spreads=spreads, **found)
