"""What the health rules remember of a run: its last rows, its first rows, and a few tallies. Never more, however long it is."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpo_nb.config import Settings
from grpo_nb.health_facts import LARGEST, Facts, duplicate_shares, facts_of, mean, number, rank_shift, values_of

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
_HOLDOUT = ("holdout/accuracy", "eval_reward")
_MEANINGFUL_NAN = ("/std", "reward_std")
"""The spread of a single completion is NaN by definition."""
# The names that the main reward has in published notebooks. A weight above all others decides before any name.
_MAIN_WORDS = ("correct", "accura", "answer", "succe", "solve", "exact", "pass")


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
        self.best_mark: float | None = None
        self.best_at = 0
        """After how many rows the last clear new best came."""
        self.has_risen = False
        """Whether the reward was ever clearly above its start."""
        self.bad_now: list[str] = []
        self.bad_counts: dict[str, int] = {}
        self.holdout: dict[str, list[list[float]]] = {}
        self.names: list[str] = []
        """The rewards' names."""
        self._main: str | None = None
        self._main_of = 0
        self._cache: dict[tuple[str, Any], Any] = {}

    def add(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> bool:
        """Take in one row of a log. Returns whether it was one of training; an evaluation's or a summary's is not."""
        numbers = {key: n for key, value in row.items() if isinstance(key, str) and (n := number(value)) is not None}
        finite = {key: n for key, n in numbers.items() if abs(n) <= LARGEST}
        self._cache.clear()
        self._note_bad([key for key in numbers if key not in finite])
        step = finite.get("step")
        self.max_steps = finite.get("max_steps", self.max_steps)
        self.last_step = int(step) if step is not None else self.last_step + ("reward" in numbers)
        for key in _HOLDOUT:
            if key in finite:
                self._note_holdout(key, finite[key])
        if "reward" not in numbers:
            return False
        facts = facts_of(finite, self.last_step)
        if self._is_unmeasured_kl(facts.kl):
            facts.kl = None
        if completions is not None:
            size = self.settings.num_generations if self.settings else None
            facts.duplicates, facts.same_answer = duplicate_shares(completions, size)
        self.count += 1
        self.window.append(facts)
        self._cache.clear()
        if len(self.start) < WINDOW:
            self.start.append(facts)
        self._tally(facts)
        return True

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
            is_known = now is not None and len(self.values("reward", RECENT)) >= LEAST
            low, high = self.extent("reward") or (0.0, 0.0)
            # A new best by accident, which noise brings for ever, is none: it must be 2 % of the range above the last.
            if is_known and (self.best_mark is None or now > self.best_mark + 0.02 * (high - low)):
                self.best_mark, self.best_at = now, self.count
            if is_known and (self.best is None or now > self.best):
                self.best = now
        if not self.has_risen and self.count >= RECENT:
            self.has_risen = self.risen("reward") >= CLEAR

    # What rules ask.

    def values(self, fact: str, last: int = WINDOW) -> list[float]:
        """The measured values of a fact in the last rows. `rewards/name` is the mean score of that reward."""
        if last < WINDOW:
            return (
                self.values(fact)[-last:] if self._is_everywhere(fact) else values_of(list(self.window)[-last:], fact)
            )
        return self._cached("values", fact, lambda: values_of(self.window, fact))

    def _is_everywhere(self, fact: str) -> bool:
        return len(self.values(fact)) == len(self.window)

    def start_values(self, fact: str) -> list[float]:
        """The measured values of a fact in the first rows; at most half of all rows, so that "now" is not among them."""
        return self._cached("start", fact, lambda: values_of(self.start[: min(START, max(2, self.count // 2))], fact))

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
        return self._cached("slowly", fact, lambda: rank_shift(values_of(self.start, fact), self.values(fact)))

    def rising(self, fact: str) -> float:
        """How far the second half of the window lies above its first half, as a z."""

        def compare() -> float:
            values = self.values(fact)
            return rank_shift(values[: len(values) // 2], values[len(values) // 2 :])

        return self._cached("rising", fact, compare)

    @property
    def _recent(self) -> int:
        return max(2, min(RECENT, self.count // 2))

    def _cached(self, kind: str, fact: str, compute: Callable[[], Any]) -> Any:
        # Many rules ask for the same; each row empties it.
        key = (kind, fact)
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    @property
    def is_learning(self) -> bool:
        """Whether the total reward, or any reward that counts, has risen since the start or is rising now.

        At z = 2.3, one accident in a hundred: this only ever softens alerts, so it may be easy to satisfy.
        """
        facts = ["reward", *(f"rewards/{name}" for name in self.names if self.weight(name) > 0)]
        shifts = (self.risen, self.rising, self.risen_slowly)
        return self._cached("is_learning", "", lambda: any(shift(fact) >= 2.3 for fact in facts for shift in shifts))

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
        plain = (
            "count",
            "last_step",
            "max_steps",
            "tallies",
            "best",
            "best_mark",
            "best_at",
            "has_risen",
            "bad_counts",
            "holdout",
        )
        return {
            **{name: getattr(self, name) for name in plain},
            "window": [dataclasses.asdict(facts) for facts in self.window],
            "start": [dataclasses.asdict(facts) for facts in self.start],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for name in ("count", "last_step", "max_steps", "best", "best_mark", "best_at", "has_risen"):
            setattr(self, name, state[name])
        self.tallies = {name: list(tally) for name, tally in state["tallies"].items()}
        self.bad_counts = dict(state["bad_counts"])
        self.holdout = {name: [list(point) for point in points] for name, points in state["holdout"].items()}
        self.window = deque((Facts(**facts) for facts in state["window"]), maxlen=WINDOW)
        self.start = [Facts(**facts) for facts in state["start"]]
        self.names = [key.removeprefix("rewards/") for key in self.tallies if key.startswith("rewards/")]
        self._main_of = 0
        self._cache.clear()
