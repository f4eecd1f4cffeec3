"""What the health rules remember of a run: its last rows, its first rows, and a few tallies. Never more, however long it is."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from grpo_nb.health.facts import LARGEST, Facts, duplicate_shares, facts_of, number, rank_shift, values_of
from grpo_nb.runs import Alert, Severity
from grpo_nb.settings import Settings

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
_TALLIED = ("reward", "no_spread", "clipped", "kl")
# What an alert may advise -> the setting, its new value from the old one, and the words where the settings are not known.
_CHANGES: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    "slower": ("learning_rate", lambda old: old / 2, "lower learning_rate"),
    "back and slower": ("learning_rate", lambda old: old / 5, "go back to the last checkpoint and lower learning_rate"),
    "faster": ("learning_rate", lambda old: old * 2, "raise learning_rate"),
    "nearer": ("beta", lambda old: old * 2 or 0.04, "raise beta"),
    "tighter": ("max_grad_norm", lambda old: old / 2, "lower max_grad_norm"),
    "warmer": ("temperature", lambda old: max(old, 1.0), "sample at temperature 1 or above"),
    "larger groups": ("num_generations", lambda old: old * 2, "raise num_generations"),
    "longer": ("max_completion_length", lambda old: old * 2, "raise max_completion_length"),
    "another loss": ("loss_type", lambda old: "dr_grpo", 'choose loss_type "dr_grpo"'),
}


class History:
    """The rows so far, as far as any rule looks: the last `WINDOW`, the first `START`, and tallies of the whole.

    Args:
        weights: Weight by reward name, where known.
        settings: The run's settings, where known: advice then names the values to write.
    """

    def __init__(self, *, weights: Mapping[str, float] | None = None, settings: Settings | None = None) -> None:
        self.weights = dict(weights or {})
        self.settings = settings
        self.count = 0
        self.last_step = 0
        self.max_steps: float | None = None
        self.window: deque[Facts] = deque(maxlen=WINDOW)
        self.start: list[Facts] = []
        # fact -> [number of values, their sum, least, greatest], over the whole run
        self.tallies: dict[str, list[float]] = {}
        self.best: float | None = None
        """Highest mean reward over `RECENT` rows so far."""
        self.best_mark: float | None = None
        self.best_at = 0
        """After how many rows the last clear new best came."""
        self.has_risen = False
        """Whether the reward was ever clearly above its start."""
        self.bad_now: list[str] = []
        self.bad_counts: Counter[str] = Counter()
        self.holdout: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
        """Metric -> step, value, and the mean reward of that time."""
        self.names: list[str] = []
        """The rewards' names."""
        self._cache: dict[tuple[Any, ...], Any] = {}

    def add(self, row: Mapping[str, Any], completions: Iterable[Any] | None = None) -> bool:
        """Take in one row of a log. Returns whether it was one of training; an evaluation's or a summary's is not."""
        numbers = {key: n for key, value in row.items() if isinstance(key, str) and (n := number(value)) is not None}
        finite = {key: n for key, n in numbers.items() if abs(n) <= LARGEST}
        self.bad_now = [key for key in numbers if key not in finite and not key.endswith(_MEANINGFUL_NAN)]
        self.bad_counts.update(self.bad_now)
        step = finite.get("step")
        self.max_steps = finite.get("max_steps", self.max_steps)
        self.last_step = int(step) if step is not None else self.last_step + ("reward" in numbers)
        for key in _HOLDOUT:
            if key in finite:
                points = self.holdout[key]
                points.append((self.last_step, finite[key], self.mean("reward", RECENT) or 0.0))
                if len(points) > WINDOW:  # thin the middle: start, end and course stay
                    del points[1:-1:2]
        if "reward" not in numbers:
            return False
        facts = facts_of(finite)
        # With beta = 0 Unsloth logs exact zeros for ever. Before the first update the true KL is 0 too, and says nothing.
        is_off = self.settings is not None and self.settings.beta == 0
        if is_off or (facts.get("kl") == 0 and "kl" not in self.tallies):
            facts.pop("kl", None)
        if completions is not None:
            shares = duplicate_shares(completions, self.settings.num_generations if self.settings else None)
            named = zip(("duplicates", "same_answer"), shares, strict=True)
            facts |= {name: share for name, share in named if share is not None}
        self.count += 1
        self.window.append(facts)
        self._cache.clear()
        if len(self.start) < WINDOW:
            self.start.append(facts)
        self._tally(facts)
        return True

    def _tally(self, facts: Facts) -> None:
        for fact, value in facts.items():
            if fact in _TALLIED or fact.startswith("rewards/"):
                count, total, low, high = self.tallies.get(fact, (0, 0.0, value, value))
                self.tallies[fact] = [count + 1, total + value, min(low, value), max(high, value)]
        self.names = [fact.removeprefix("rewards/") for fact in self.tallies if fact.startswith("rewards/")]
        if len(self.values("reward", RECENT)) >= LEAST:
            now, (low, high) = self.mean("reward", RECENT), self.extent("reward")
            # A new best by accident, which noise brings for ever, is none: it must be 2 % of the range above the last.
            if self.best_mark is None or now > self.best_mark + 0.02 * (high - low):
                self.best_mark, self.best_at = now, self.count
            self.best = now if self.best is None else max(self.best, now)
        if not self.has_risen and self.count >= RECENT:
            self.has_risen = self.risen("reward") >= CLEAR

    # What rules ask.

    def values(self, fact: str, last: int = WINDOW) -> list[float]:
        """The measured values of a fact in the last rows. `rewards/name` is the mean score of that reward."""
        return self._cached(lambda: values_of(list(self.window)[-last:], fact), "values", fact, last)

    def start_values(self, fact: str) -> list[float]:
        """The measured values of a fact in the first rows; at most half of all rows, so that "now" is not among them."""
        rows = self.start[: min(START, max(2, self.count // 2))]
        return self._cached(lambda: values_of(rows, fact), "start", fact)

    def mean(self, fact: str, last: int = WINDOW) -> float | None:
        """Mean of a fact over the last rows; None if it was not measured."""
        values = self.values(fact, last)
        return fmean(values) if values else None

    def share(self, fact: str) -> float:
        """Mean of a fact over the whole run; 0 if it was not measured."""
        count, total, *_ = self.tallies.get(fact, (1, 0.0))
        return total / count

    def extent(self, fact: str) -> tuple[float, float] | None:
        """Least and greatest value of a fact over the whole run."""
        return tuple(self.tallies[fact][2:]) if fact in self.tallies else None

    def times_measured(self, fact: str) -> int:
        """In how many rows a fact was measured, over the whole run."""
        return int(self.tallies[fact][0]) if fact in self.tallies else 0

    @property
    def main(self) -> str | None:
        """The reward the run is about: the one with the largest weight, else the only one named like it, else None."""
        ranked = sorted(((w, n) for n, w in self.weights.items() if n in self.names), reverse=True)
        if ranked and (len(ranked) == 1 or ranked[0][0] > ranked[1][0]):
            return ranked[0][1]
        matching = [self.names, *([n for n in self.names if word in n.lower()] for word in _MAIN_WORDS)]
        return next((names[0] for names in matching if len(names) == 1), None)

    def weight(self, name: str) -> float:
        """The weight of a reward; 1, TRL's default, where it is not known."""
        return self.weights.get(name, 1.0)

    def risen(self, fact: str) -> float:
        """How far the last rows lie above the first, as a z."""
        recent = max(2, min(RECENT, self.count // 2))
        return self._cached(lambda: rank_shift(self.start_values(fact), self.values(fact, recent)), "risen", fact)

    def risen_slowly(self, fact: str) -> float:
        """The same over `WINDOW` rows on both sides, which finds what is small beside the noise; 0 before there are so many."""
        if self.count < 2 * WINDOW:
            return 0.0
        return self._cached(lambda: rank_shift(values_of(self.start, fact), self.values(fact)), "slowly", fact)

    def rising(self, fact: str) -> float:
        """How far the second half of the window lies above its first half, as a z."""
        values = self.values(fact)
        half = len(values) // 2
        return self._cached(lambda: rank_shift(values[:half], values[half:]), "rising", fact)

    def _cached(self, compute: Callable[[], Any], *key: Any) -> Any:
        # Many rules ask for the same; each row empties it.
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
        return self._cached(lambda: any(shift(fact) >= 2.3 for fact in facts for shift in shifts), "is_learning")

    @property
    def has_lost(self) -> bool:
        """Whether the reward has clearly lost half of what it had gained, or is clearly below its start."""
        start, now = self.start_values("reward"), self.mean("reward", RECENT)
        if self.count < 2 * RECENT or not start or now is None or self.best is None:
            return False
        began = fmean(start)
        if self.has_risen and self.best > began:
            return now <= (self.best + began) / 2 and self.rising("reward") <= -CLEAR
        return self.risen("reward") <= -CLEAR

    # What rules say.

    def softened(self, severity: Severity) -> Severity:
        """The severity, or `info` while the reward rises: a run that learns is not to be changed because of a warning."""
        return "info" if self.is_learning else severity

    def advice(self, change: str) -> str:
        """Name a setting with the value to write, where the run's settings are known."""
        setting, changed, words = _CHANGES[change]
        if self.settings is None:
            return words
        old = getattr(self.settings, setting)
        new = changed(old)
        return words if new == old else f"{words} (settings.replace({setting}={new!r}); it is {old!r} now)"

    def alert(self, severity: Severity, message: str, *, advice: str, **more: Any) -> Alert:
        """An alert of the last row, to which its `Rule` gives the name."""
        advice = advice[0].upper() + advice[1:]
        return Alert(rule="", severity=severity, step=self.last_step, message=message, advice=advice, **more)


class Rule(NamedTuple):
    """A function that yields the alerts of one name, or nothing.

    Where it needs a fact, it is given the values of the last rows, and is not asked before `LEAST` of them were measured.
    """

    name: str
    find: Callable[..., Iterator[Alert]]
    needs: str | None = None
    last: int = WINDOW

    def alerts(self, history: History) -> Iterator[Alert]:
        """What there is to say after the last row."""
        needed = [history.values(self.needs, self.last)] if self.needs else []
        if all(len(values) >= LEAST for values in needed):
            for alert in self.find(history, *needed):
                yield dataclasses.replace(alert, rule=self.name)
