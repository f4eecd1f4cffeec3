"""What the health rules remember of a run: its last rows, its first rows, and a few tallies. Never more, however long it is."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from grpo_nb.health.facts import LARGEST, Facts, duplicate_shares, facts_of, number, rank_shift, values_of
from grpo_nb.runs.alert import Alert, Severity
from grpo_nb.settings.settings import Settings

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
NEW_BEST = 1.64
"""The z at which the window counts as better than the best before: of rewards that stand still, one in twenty."""
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
        ranges: The least and the most that a reward can pay, by its name, where known.
    """

    def __init__(
        self, weights: Mapping[str, float], settings: Settings | None, ranges: Mapping[str, Sequence[float]]
    ) -> None:
        self.weights, self.settings, self.ranges = dict(weights), settings, dict(ranges)
        self.count = 0
        """Rows with a reward so far."""
        self.unrewarded = 0
        """Rows of training since the last one with a reward."""
        self.longest_gap = 0
        """The most rows of training without a reward between two that have one: a batch may be used several times."""
        self.last_step = 0
        self.max_steps: float | None = None
        self.window: deque[Facts] = deque(maxlen=WINDOW)
        self.start: list[Facts] = []
        # fact -> [number of values, their sum, least, greatest], over the whole run
        self.tallies: dict[str, list[float]] = {}
        self.best: list[float] = []
        """The rewards of those `RECENT` rows in a line that have the highest mean."""
        self._mark: list[float] = []
        self.best_at = 0
        """After how many rows the last clear new best came."""
        self.best_length: float | None = None
        """The mean length of completions then."""
        self.risen_at: int | None = None
        """After how many rows the reward was clearly above its start for the first time."""
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
            # An evaluation's row and the summary at the end have no reward by right.
            self.unrewarded += not any(str(key).startswith(("eval_", "train_")) for key in row)
            return False
        if self.count:
            self.longest_gap = max(self.longest_gap, self.unrewarded)
        self.unrewarded = 0
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
        recent = self.values("reward", RECENT)
        if len(recent) >= LEAST:
            if not self.best or fmean(recent) > fmean(self.best):
                self.best = recent
            # What is higher by accident, which noise brings for ever, is no new best.
            if not self._mark or rank_shift(self._mark, self.values("reward")) >= NEW_BEST:
                self._mark, self.best_at, self.best_length = self.values("reward"), self.count, self.mean("length")
        if self.risen_at is None and self.count >= RECENT and self.risen("reward") >= CLEAR:
            self.risen_at = self.count

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

    def possible(self, fact: str) -> tuple[float, float] | None:
        """The least and the most that a reward, or the total, can be; None where that is not known, whatever was seen."""
        if fact != "reward":
            return self.ranges.get(fact.removeprefix("rewards/"))
        if not self.names or any(name not in self.ranges for name in self.names):
            return None
        ends = [sorted(self.weight(name) * end for end in self.ranges[name]) for name in self.names]
        return sum(low for low, _ in ends), sum(high for _, high in ends)

    def _shifts(self, *shifts: Callable[[str], float]) -> bool:
        """Whether the total or any reward that counts has shifted up.

        At z = 2.3, one accident in a hundred: this only ever softens alerts, so it may be easy to satisfy.
        """
        facts = ["reward", *(f"rewards/{name}" for name in self.names if self.weight(name) > 0)]
        return any(shift(fact) >= 2.3 for fact in facts for shift in shifts)

    @property
    def has_gained(self) -> bool:
        """Whether the total, or any reward that counts, lies above its start."""
        return self._cached(lambda: self._shifts(self.risen, self.risen_slowly), "gained")

    @property
    def is_learning(self) -> bool:
        """Whether a reward rises now; or has risen, and the window was at a new best just now. It ends when the rise ends."""
        is_new = self.count - self.best_at <= RECENT
        return self._cached(lambda: self._shifts(self.rising) or (is_new and self.has_gained), "is_learning")

    @property
    def has_lost(self) -> bool:
        """Whether the reward has clearly lost half of what it had gained, or is clearly below its start."""
        start, recent = self.start_values("reward"), self.values("reward", RECENT)
        if self.count < 2 * LEAST or not start or not recent or not self.best:
            return False
        began, best = fmean(start), fmean(self.best)
        if self.risen_at is not None and best > began:
            return fmean(recent) <= (best + began) / 2 and rank_shift(self.best, recent) <= -CLEAR
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
        """An alert of the last row, to which its `Rule` gives the name; its evidence begins with what it is about."""
        advice = advice[0].upper() + advice[1:]
        return Alert(rule="", severity=severity, step=self.last_step, message=message, advice=advice, **more)
