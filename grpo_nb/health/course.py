"""The course of a run as the rules ask for it: the last rows, the first ones, the best, and what has shifted since."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import NormalDist, fmean
from typing import Any

from grpo_nb.settings.settings import Settings

# Steps that a rule looks back at most, steps that count as "now", and steps before which only two rules speak.
WINDOW, RECENT, LEAST = 50, 20, 10
# Rows that a mean and either side of a test have at least, however many steps a row stands for: 8 against 8 reach z = 3.4.
AVERAGED, TESTED = 3, 8
# The z at which a shift causes an alert, and at which it softens one. Looked at after every step, 2 would be reached by
# accident in most runs.
CLEAR, LIKELY = 3.0, 2.3
_OLD_NAMES = {"completion_length": "completions/mean_length", "clip_ratio": "clip_ratio/region_mean"}
# The names that the main reward has in published notebooks. A weight above all others decides before any name.
_MAIN_WORDS = ("correct", "accura", "answer", "succe", "solve", "exact", "pass")


def sameness(groups: Iterable[Sequence[str]]) -> dict[str, float]:
    """How alike the completions of a step are, as metrics of its row.

    `completions/duplicates` is the share that repeats another of its group (0 if all differ, 1 if all are the same), and
    `completions/same_answer` that of the step's most common text, which two prompts or more have to have.

    >>> sameness([["a", "a "], ["b", "c"]])
    {'completions/duplicates': 0.5, 'completions/same_answer': 0.5}
    """
    plain = [[" ".join(text.split()) for text in group] for group in groups]
    texts = [text for group in plain for text in group]
    shares = [(len(group) - len(set(group))) / (len(group) - 1) for group in plain if len(group) > 1]
    found = {"completions/duplicates": fmean(shares)} if shares else {}
    same = {"completions/same_answer": max(Counter(texts).values()) / len(texts)} if len(plain) > 1 else {}
    return found | same


def rank_shift(before: Sequence[float], after: Sequence[float]) -> float:
    """How much higher `after` is than `before`, as the z of the Mann-Whitney test with ties; 0 where it cannot be said.

    Ranks, because rewards and KL have outliers that turn a comparison of means around. scipy's own test would load numpy, and
    takes ten times as long for so few numbers.

    >>> rank_shift([1, 2, 3, 4], [5, 6, 7, 8]) > 2
    True
    """
    n, m, counts = len(before), len(after), Counter([*before, *after])
    if min(n, m) < 2:
        return 0.0
    # Of values that are equal the rank is the mean of their places.
    places = accumulate(counts[value] for value in sorted(counts))
    rank = {value: place - (counts[value] - 1) / 2 for value, place in zip(sorted(counts), places, strict=True)}
    tied = sum(count**3 - count for count in counts.values())
    variance = n * m / 12 * (n + m + 1 - tied / ((n + m) * (n + m - 1)))
    shift = sum(rank[value] for value in after) - m * (n + m + 1) / 2
    return shift / math.sqrt(variance) if variance > 1e-9 else 0.0


class Course:
    """The first and the last `WINDOW` rows under one set of names, and a few tallies of the whole.

    `rewards/name` is the mean score of a reward, `rewards/name/std` its spread. A row may be the mean of several steps
    (`logging_steps`), so windows are counted in steps.

    Args:
        weights: By reward name, where known.
        settings: The run's, where known.
        ranges: The least and the most that a reward can pay, by its name, where known.
    """

    def __init__(
        self, weights: Mapping[str, float], settings: Settings | None, ranges: Mapping[str, Sequence[float]]
    ) -> None:
        self.weights, self.settings, self.ranges = weights, settings, ranges
        self.rows: list[dict[str, float]] = []
        self.first_rows: list[dict[str, float]] = []
        # Rows with a reward, the last step, the first and the last step with a reward, and the most steps between two.
        self.count = self.step = self.began_at = self.paid_at = self.longest_silence = 0
        # How many steps a row stands for, and all rows do.
        self.every, self.steps = 1.0, 0
        self.is_silent, self.max_steps = False, math.inf
        # What is NaN or infinite in the last row, and how often it was so far.
        self.bad: list[str] = []
        self.bad_counts: Counter[str] = Counter()
        # The least and the greatest value of each metric so far.
        self.low: dict[str, float] = {}
        self.high: dict[str, float] = {}
        # The names of the rewards that were logged; the keys of the total and of each reward with a weight above 0.
        self.rewards: list[str] = []
        self.paid: list[str] = []
        self.holdout: list[float] = []
        # The rewards of the best block of rows, the row in which it ended, and how many blocks there were.
        self.best: list[float] = []
        self.best_at = self.blocks = 0
        # The steps at which a block had clearly fallen from a height, or risen from a depth; and the last such.
        self.turns: list[int] = []
        self._extreme: list[float] = []
        # Whether a reward rises now; whether one lies above its start; whether half of the gain is lost, or more.
        self.is_learning = self.has_gained = self.has_lost = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one logged row."""
        numbers = {_name(key): float(value) for key, value in row.items() if isinstance(value, (int, float))}
        # Larger numbers are more than what bfloat16 and float32 can hold with any sense.
        facts = {key: value for key, value in numbers.items() if abs(value) <= 1e30}
        # The spread of a single completion is NaN by definition.
        self.bad = [key for key in numbers if key not in facts and not key.endswith(("/std", "reward_std"))]
        self.bad_counts.update(self.bad)
        self.step = int(facts.get("step", self.step + ("reward" in numbers)))
        self.max_steps = facts.get("max_steps", self.max_steps)
        self.holdout += [facts["holdout/accuracy"]] if "holdout/accuracy" in facts else []
        # An evaluation's row and the summary at the end have no reward by right.
        self.is_silent = "reward" not in numbers and not any(key.startswith(("eval_", "train_")) for key in row)
        if "reward" not in facts:
            return
        self.began_at = self.began_at if self.count else self.step
        self.longest_silence = max(self.longest_silence, self.step - (self.paid_at or self.step))
        self.count, self.paid_at = self.count + 1, self.step
        self.every = max(1.0, (self.step - self.began_at) / max(1, self.count - 1))
        self.steps = math.ceil(self.step - self.began_at + self.every)
        self._complete(facts)
        self.rows = [*self.rows[1 - WINDOW :], facts]
        self.first_rows += [facts] if len(self.first_rows) < WINDOW else []
        for key, value in facts.items():
            self.low[key], self.high[key] = min(value, self.low.get(key, value)), max(value, self.high.get(key, value))
        self.rewards = [key[8:] for key in self.high if key.startswith("rewards/") and not key.endswith("/std")]
        self.paid = ["reward", *(f"rewards/{name}" for name in self.rewards if self.weights.get(name, 1.0) > 0)]
        if self.count % self.rows_of(RECENT, TESTED) == 0:
            self.blocks, block = self.blocks + 1, self.last("reward", RECENT, TESTED)
            if fmean(block) > fmean(self.best or [-math.inf]):
                self.best, self.best_at = block, self.count
        if self.count % self.rows_of(LEAST, TESTED) == 0:
            self._turn(self.last("reward", LEAST, TESTED))
        self.is_learning = any(self.rising(key) >= LIKELY for key in self.paid)
        self.has_gained = any(self.risen(key, steps) >= LIKELY for key in self.paid for steps in (WINDOW, RECENT))
        self.has_lost = self._loses(CLEAR, 0.5)

    def _complete(self, facts: dict[str, float]) -> None:
        """Add what older versions of TRL did not log, and take away what nobody measured."""
        if "reward_std" in facts:  # of a group or of the batch: zero means that no group had spread
            facts.setdefault("frac_reward_zero_std", float(abs(facts["reward_std"]) <= 1e-6))
        if facts.get("frac_reward_zero_std") == 1:  # then there is nothing that a gradient could be of
            facts.pop("grad_norm", None)
        facts |= {f"{key}/zero": float(facts[key] <= 1e-12) for key in ("grad_norm", "learning_rate") if key in facts}
        # With beta = 0 Unsloth logs zeros for ever. Before the first update the true KL is 0 too, and says nothing.
        is_off = self.settings is not None and self.settings.beta == 0
        if is_off or (facts.get("kl") == 0 and "kl" not in self.high):
            facts.pop("kl", None)
        length, longest = facts.get("completions/mean_length", 0.0), facts.get("completions/max_length", math.inf)
        limit = longest if longest == self.high.get("completions/max_length") else math.inf
        limit = self.settings.max_completion_length if self.settings else limit
        facts.setdefault("completions/clipped_ratio", float(length >= 0.95 * limit))

    def _turn(self, block: list[float]) -> None:
        """Follow the height, or the depth, that the reward has come to since it last turned."""
        is_up, shift = len(self.turns) % 2 == 1, rank_shift(self._extreme, block)
        if abs(shift) >= CLEAR and is_up == (shift > 0):
            self.turns.append(self.step)
            self._extreme = block
        elif not self._extreme or is_up == (fmean(block) < fmean(self._extreme)):
            self._extreme = block

    def _loses(self, z: float, kept: float) -> bool:
        first, now = self.first("reward", RECENT, TESTED), self.last("reward", RECENT, TESTED)
        has_fallen = rank_shift(first, self.best) >= z and rank_shift(self.best, now) <= -z
        is_back = has_fallen and fmean(now) <= fmean(first) + kept * (fmean(self.best) - fmean(first))
        return is_back or self.risen("reward") <= -z

    @property
    def has_lost_all(self) -> bool:
        """Whether the reward is below its start, or all but a tenth of the gain is lost, by a test of its own: one in ten
        thousand, for as many blocks as the best was chosen from."""
        return self._loses(-NormalDist().inv_cdf(1e-4 / max(1, self.blocks)), 0.1)

    def rows_of(self, steps: int, least: int = AVERAGED) -> int:
        """How many rows stand for so many steps."""
        return max(least, math.ceil(steps / self.every))

    def last(self, key: str, steps: int = RECENT, least: int = AVERAGED) -> list[float]:
        """The measured values of the last steps."""
        return [row[key] for row in self.rows[-self.rows_of(steps, least) :] if key in row]

    def first(self, key: str, steps: int = RECENT, least: int = AVERAGED) -> list[float]:
        """Those of the first steps; at most half of all, so that "now" is not among them."""
        return [row[key] for row in self.first_rows[: min(self.rows_of(steps, least), self.count // 2)] if key in row]

    def mean(self, key: str, steps: int = RECENT) -> float:
        """The mean of the last steps; NaN, which no level is below, where too few were measured."""
        values = self.last(key, steps)
        return fmean(values) if len(values) >= self.rows_of(min(steps, LEAST)) else math.nan

    def risen(self, key: str, steps: int = RECENT) -> float:
        """How far "now" lies above the start, as a z of ranks."""
        now = self.last(key, steps, TESTED)
        return rank_shift(self.first(key, steps, TESTED), now[-max(1, self.count // 2) :])

    def rising(self, key: str) -> float:
        """How far the second half of the last `WINDOW` steps lies above the first half."""
        values = self.last(key, WINDOW, 2 * TESTED)
        return rank_shift(values[: len(values) // 2], values[len(values) // 2 :])

    def is_constant(self, key: str) -> bool:
        """Whether a reward has never been anything but one value, and was measured often enough to say so."""
        is_one = self.high[key] - self.low[key] < 1e-6 and self.high.get(f"{key}/std", 0.0) <= 1e-6
        return is_one and len(self.last(key, WINDOW)) >= self.rows_of(LEAST)

    @property
    def main(self) -> str | None:
        """The reward the run is about: that with the largest weight, else the only one whose name says so, else None."""
        ranked = sorted((self.weights.get(name, 1.0), name) for name in self.rewards)
        if len(ranked) == 1 or (ranked and ranked[-1][0] > ranked[-2][0]):
            return ranked[-1][1]
        named = [name for name in self.rewards if any(word in name.lower() for word in _MAIN_WORDS)]
        return named[0] if len(named) == 1 else None

    def range_of(self, name: str | None) -> tuple[float, float] | None:
        """The least and the most that a reward can pay, or the total for None; None where that is not known.

        Where nobody says it, 0 to 1 is taken of a reward of which no mean and no spread contradicts it.
        """
        if name is None:
            ends = {each: self.range_of(each) for each in self.rewards}
            if not ends or None in ends.values():
                return None
            paid = [sorted(self.weights.get(each, 1.0) * end for end in pair) for each, pair in ends.items()]
            return sum(low for low, _ in paid), sum(high for _, high in paid)
        key = f"rewards/{name}"
        is_share = 0 <= self.low[key] < self.high[key] <= 1 and self.high.get(f"{key}/std", math.inf) <= 0.6
        return tuple(self.ranges[name]) if name in self.ranges else (0.0, 1.0) if is_share else None

    def place(self, name: str | None) -> float:
        """Where the last steps lie in what a reward, or the total, can pay, from 0 to 1; NaN where that is not known."""
        level, ends = self.mean(f"rewards/{name}" if name else "reward", WINDOW), self.range_of(name)
        if ends is None or ends[0] == ends[1]:
            return 0.0 if level <= 0 else math.nan
        return (level - ends[0]) / (ends[1] - ends[0])


def _name(key: str) -> str:
    """Today's name of a metric, whatever generation of TRL wrote it."""
    return key.removesuffix("/mean") if key.startswith("rewards/") else _OLD_NAMES.get(key, key)
