"""What the health rules remember of a run: its last rows, its first rows, and a few tallies. Never more, however long it is."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.config import Settings

WINDOW = 50
"""Rows kept. Enough for a trend in a noisy reward; a rule sees at most this far back, besides the start."""
START = 20
"""Rows of the start that are kept to compare with: as many as a trend needs that is no accident."""
RECENT = 20
"""Rows that count as "now"."""
LEAST = 10
"""No rule but the one for NaN speaks before this many rows."""
CLEAR = 3.0
"""The z at which a shift counts as real: looked at after every step, 2 would be reached by accident in most runs."""
_LARGEST = 1e30
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
_HOLDOUT = ("holdout/accuracy", "eval_reward")
_MEANINGFUL_NAN = ("/std", "reward_std")
"""The spread of a single completion is NaN by definition."""
# The names that the main reward has in published notebooks. A weight above all others decides before any name.
_MAIN_WORDS = ("correct", "accura", "answer", "succe", "solve", "exact", "pass")


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


def _number(value: Any) -> float | None:
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


class History:
    """The rows so far, as far as any rule looks: the last `WINDOW`, the first `START`, and tallies of the whole.

    Args:
        weights: Weight by reward name, where known.
        settings: The run's settings, where known: advice then names the values to write.
    """

    def __init__(self, *, weights: Mapping[str, float] | None = None, settings: Settings | None = None) -> None:
        self.weights = dict(weights) if weights else None
        self.settings = settings
        self.count = 0
        self.last_step = 0
        self.max_steps: float | None = None
        self.window: deque[Facts] = deque(maxlen=WINDOW)
        self.start: list[Facts] = []
        # name -> [number of values, their sum, least, greatest], over the whole run
        self.tallies: dict[str, list[float]] = {}
        self.best: float | None = None
        """Highest mean reward over `RECENT` rows so far."""
        self.best_at = 0
        """After how many rows that was."""
        self.has_risen = False
        """Whether the reward was ever clearly above its start."""
        self.bad_now: list[str] = []
        self.bad_counts: dict[str, int] = {}
        self.holdout: dict[str, list[list[float]]] = {}
        self.names: list[str] = []
        """The rewards' names."""
        self._main: str | None = None
        self._main_of = 0
        self._shifts: dict[tuple[str, str], float] = {}

    def add(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> bool:
        """Take in one row of a log. Returns whether it was one of training; an evaluation's or a summary's is not."""
        numbers = {key: n for key, value in row.items() if isinstance(key, str) and (n := _number(value)) is not None}
        finite = {key: n for key, n in numbers.items() if abs(n) <= _LARGEST}
        self._shifts.clear()
        self._note_bad([key for key in numbers if key not in finite])
        step = finite.get("step")
        self.max_steps = finite.get("max_steps", self.max_steps)
        self.last_step = int(step) if step is not None else self.last_step + ("reward" in numbers)
        for key in _HOLDOUT:
            if key in finite:
                self._note_holdout(key, finite[key])
        if "reward" not in numbers:
            return False
        facts = self._facts(finite)
        if completions is not None:
            size = self.settings.num_generations if self.settings else None
            facts.duplicates, facts.same_answer = duplicate_shares(completions, size)
        self.count += 1
        self.window.append(facts)
        if len(self.start) < WINDOW:
            self.start.append(facts)
        self._tally(facts)
        return True

    def _facts(self, finite: Mapping[str, float]) -> Facts:
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
        if self._is_unmeasured_kl(found["kl"]):
            found["kl"] = None
        zero_std = found.pop("zero_std")
        if zero_std is None:
            zero_std = _spread_missing(found["reward_std"], spreads)
        for share in ("clipped", "ratio_clipped"):
            found[share] = _share(found[share])
        return Facts(step=self.last_step, no_spread=_share(zero_std), rewards=rewards, spreads=spreads, **found)

    def _is_unmeasured_kl(self, kl: float | None) -> bool:
        # With beta = 0 Unsloth logs exact zeros for ever. Before the first update the true KL is 0 too, and says nothing.
        if self.settings is not None and self.settings.beta == 0:
            return True
        return kl == 0 and "kl" not in self.tallies

    def _note_bad(self, keys: list[str]) -> None:
        self.bad_now = [key for key in keys if not key.endswith(_MEANINGFUL_NAN)]
        for key in self.bad_now:
            self.bad_counts[key] = self.bad_counts.get(key, 0) + 1

    def _note_holdout(self, key: str, value: float) -> None:
        points = self.holdout.setdefault(key, [])
        points.append([self.last_step, value, self.mean("reward", RECENT) or 0.0 if self.count else 0.0])
        if len(points) > WINDOW:  # thin the middle: start, end and course stay
            del points[1:-1:2]

    def _tally(self, facts: Facts) -> None:
        self.names += [name for name in facts.rewards if name not in self.names]
        named = {f"rewards/{name}": value for name, value in facts.rewards.items()}
        named |= {name: getattr(facts, name) for name in ("reward", "no_spread", "clipped", "kl")}
        for name, value in named.items():
            if value is None:
                continue
            tally = self.tallies.setdefault(name, [0, 0.0, value, value])
            tally[0] += 1
            tally[1] += value
            tally[2], tally[3] = min(tally[2], value), max(tally[3], value)
        if self.count >= LEAST:
            now = self.mean("reward", RECENT)
            if now is not None and len(self.values("reward", RECENT)) >= LEAST:
                if self.best is None or now > self.best:
                    self.best, self.best_at = now, self.count
        if not self.has_risen and self.count >= RECENT:
            self.has_risen = self.risen("reward") >= CLEAR

    # What rules ask.

    def values(self, fact: str, last: int = WINDOW) -> list[float]:
        """The measured values of a fact in the last rows. `rewards/name` is the mean score of that reward."""
        return _values(list(self.window)[-last:] if last < WINDOW else self.window, fact)

    def start_values(self, fact: str) -> list[float]:
        """The measured values of a fact in the first rows; at most half of all rows, so that "now" is not among them."""
        return _values(self.start[: min(START, max(2, self.count // 2))], fact)

    def mean(self, fact: str, last: int = WINDOW) -> float | None:
        """Mean of a fact over the last rows; None if it was not measured."""
        values = self.values(fact, last)
        return mean(values) if values else None

    def median(self, fact: str, last: int = WINDOW) -> float | None:
        """Median of a fact over the last rows; None if it was not measured."""
        values = self.values(fact, last)
        return statistics.median(values) if values else None

    def share(self, fact: str) -> float | None:
        """Mean of a fact over the whole run."""
        tally = self.tallies.get(fact)
        return tally[1] / tally[0] if tally else None

    def extent(self, fact: str) -> tuple[float, float] | None:
        """Least and greatest value of a fact over the whole run."""
        tally = self.tallies.get(fact)
        return (tally[2], tally[3]) if tally else None

    def times_measured(self, fact: str) -> int:
        """In how many rows a fact was measured, over the whole run."""
        return int(self.tallies[fact][0]) if fact in self.tallies else 0

    @property
    def main(self) -> str | None:
        """The reward the run is about: the one with the largest weight, else the only one named like it, else None."""
        if self._main_of != len(self.names):
            self._main, self._main_of = self._find_main(), len(self.names)
        return self._main

    def _find_main(self) -> str | None:
        names = self.names
        if self.weights:
            ranked = sorted(((w, n) for n, w in self.weights.items() if n in names), reverse=True)
            if ranked and (len(ranked) == 1 or ranked[0][0] > ranked[1][0]):
                return ranked[0][1]
        if len(names) == 1:
            return names[0]
        for word in _MAIN_WORDS:
            matching = [name for name in names if word in name.lower()]
            if len(matching) == 1:
                return matching[0]
        return None

    def weight(self, name: str) -> float:
        """The weight of a reward; 1, TRL's default, where it is not known."""
        return self.weights.get(name, 1.0) if self.weights else 1.0

    def risen(self, fact: str) -> float:
        """How far the last rows lie above the first, as a z."""
        return self._cached("risen", fact, lambda: rank_shift(self.start_values(fact), self.values(fact, self._recent)))

    def risen_slowly(self, fact: str) -> float:
        """The same over `WINDOW` rows on both sides, which finds what is small beside the noise; 0 before there are so many."""
        if self.count < 2 * WINDOW:
            return 0.0
        return self._cached("slowly", fact, lambda: rank_shift(_values(self.start, fact), self.values(fact)))

    def rising(self, fact: str) -> float:
        """How far the second half of the window lies above its first half, as a z."""

        def compare() -> float:
            values = self.values(fact)
            return rank_shift(values[: len(values) // 2], values[len(values) // 2 :])

        return self._cached("rising", fact, compare)

    @property
    def _recent(self) -> int:
        return max(2, min(RECENT, self.count // 2))

    def _cached(self, kind: str, fact: str, compute: Callable[[], float]) -> float:
        key = (kind, fact)
        if key not in self._shifts:
            self._shifts[key] = compute()
        return self._shifts[key]

    @property
    def is_learning(self) -> bool:
        """Whether the total reward, or any reward that counts, has risen since the start or is rising now.

        At z = 2.3, one accident in a hundred: this only ever softens alerts, so it may be easy to satisfy.
        """
        facts = ["reward", *(f"rewards/{name}" for name in self.names if self.weight(name) > 0)]
        return any(max(self.risen(fact), self.rising(fact), self.risen_slowly(fact)) >= 2.3 for fact in facts)

    @property
    def has_lost(self) -> bool:
        """Whether the reward has clearly lost half of what it had gained, or is clearly below its start."""
        start, now = self.start_values("reward"), self.mean("reward", RECENT)
        if self.count < 2 * RECENT or not start or now is None or self.best is None:
            return False
        began = mean(start)
        if self.has_risen and self.best > began:
            return now <= (self.best + began) / 2 and self.rising("reward") <= -CLEAR
        return self.risen("reward") <= -CLEAR

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which `load_state_dict` takes back."""
        plain = ("count", "last_step", "max_steps", "tallies", "best", "best_at", "has_risen", "bad_counts", "holdout")
        return {
            **{name: getattr(self, name) for name in plain},
            "window": [dataclasses.asdict(facts) for facts in self.window],
            "start": [dataclasses.asdict(facts) for facts in self.start],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for name in ("count", "last_step", "max_steps", "best", "best_at", "has_risen"):
            setattr(self, name, state[name])
        self.tallies = {name: list(tally) for name, tally in state["tallies"].items()}
        self.bad_counts = dict(state["bad_counts"])
        self.holdout = {name: [list(point) for point in points] for name, points in state["holdout"].items()}
        self.window = deque((Facts(**facts) for facts in state["window"]), maxlen=WINDOW)
        self.start = [Facts(**facts) for facts in state["start"]]
        self.names = [key.removeprefix("rewards/") for key in self.tallies if key.startswith("rewards/")]
        self._main_of = 0
        self._shifts.clear()


def _values(rows: Iterable[Facts], fact: str) -> list[float]:
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
