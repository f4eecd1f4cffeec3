"""One row of a log under one set of names, whatever generation it is of, and the statistics that rules compute from rows."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

LARGEST = 1e30
"""Beyond what bfloat16 and float32 training can hold with any sense; treated as infinite."""
_SPREAD_FLOOR = 1e-6
"""Below this, the spread of equal float32 rewards is rounding."""

Facts = dict[str, float]
"""One row under one set of names, as `facts_of` gives it."""

# Fact -> the metric's names, of either generation of TRL and of Unsloth, the preferred one last.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "reward": ("reward",),
    "no_spread": ("frac_reward_zero_std",),
    "kl": ("kl",),
    "grad_norm": ("grad_norm",),
    "spread": ("reward_std",),
    "length": ("completion_length", "completions/mean_length"),
    "longest": ("completions/max_length",),
    "clipped": ("completions/clipped_ratio",),
    "step_time": ("step_time",),
    "entropy": ("entropy",),
    "ratio_clipped": ("clip_ratio", "clip_ratio/region_mean"),
}
_SHARES = ("no_spread", "clipped", "ratio_clipped")


def number(value: Any) -> float | None:
    """The value as a float if it is a number at all; NaN and infinity are numbers here."""
    # numpy's and torch's scalars have item(); they come from users' own metrics. Of several numbers it raises.
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in their order, from 1; equal values share the mean of their places.

    >>> ranks([3, 1, 3])
    [2.5, 1.0, 2.5]
    """
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + 1 + bisect_right(ordered, value)) / 2 for value in values]


def rank_shift(before: Sequence[float], after: Sequence[float]) -> float:
    """How much higher `after` is than `before`, as the z of the Mann-Whitney test; 0 where it cannot be said.

    Ranks, because rewards and KL have outliers that turn a comparison of means around. Corrected for ties, of which
    rewards have many. scipy's own test would load numpy, and takes ten times as long for so few numbers.

    >>> rank_shift([1, 2, 3, 4], [5, 6, 7, 8]) > 2
    True
    >>> rank_shift([1, 1, 1], [1, 1, 1])
    0.0
    """
    n, m, pooled = len(before), len(after), [*before, *after]
    total = n + m
    if n < 2 or m < 2:
        return 0.0
    tied = sum(count**3 - count for count in Counter(pooled).values())
    variance = n * m / 12 * (total + 1 - tied / (total * (total - 1)))
    return (sum(ranks(pooled)[n:]) - m * (total + 1) / 2) / math.sqrt(variance) if variance > 1e-9 else 0.0


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
    return (fmean(shares) if shares else None), (commonest / len(texts) if len(groups) > 1 and texts else None)


def _plain(completion: Any) -> str:
    if isinstance(completion, (list, tuple)) and completion and isinstance(completion[-1], Mapping):
        completion = completion[-1].get("content")
    return " ".join(str(completion).split())


def values_of(rows: Iterable[Facts], fact: str) -> list[float]:
    """The values of a fact, of the rows that have it."""
    return [row[fact] for row in rows if fact in row]


def facts_of(finite: Mapping[str, float]) -> Facts:
    """The facts of a row, whatever generation its names are of: finite numbers only, and no key for what was not measured.

    `rewards/name` is the mean score of a reward, `spreads/name` its spread. `no_spread` is the share of the step's groups whose
    completions all have the same reward; a lower bound where TRL did not log it. Where texts are known, two are added:
    `duplicates` is the share of completions that repeat another of their group (0 if all differ, 1 if all are the same),
    `same_answer` that of the step's most common text, which is not known with fewer than two prompts.
    """
    facts = {fact: finite[name] for fact, names in _NAMES.items() for name in names if name in finite}
    spreads: Facts = {}
    for key, value in finite.items():
        if key.startswith("rewards/") and key.endswith("/std"):
            spreads[f"spreads/{key.removeprefix('rewards/').removesuffix('/std')}"] = value
        elif key.startswith("rewards/"):
            facts[key.removesuffix("/mean")] = value
    # `reward_std` was the mean spread within groups before January 2026 and is that of the whole batch since: zero means
    # the same in both, that no group had spread.
    known = [finite["reward_std"]] if "reward_std" in finite else list(spreads.values())
    if known:
        facts.setdefault("no_spread", float(all(abs(spread) <= _SPREAD_FLOOR for spread in known)))
    facts |= {share: min(1.0, max(0.0, facts[share])) for share in _SHARES if share in facts}
    return facts | spreads
