"""The numbers of a run's curves, in at most `BINS` bins, for `figure` to draw.

A bin shows the lowest and the highest value with their steps, so that a spike of one step is still there after ten thousand.
Taking in a row costs the same at any length of the run, and what is handed out to draw is bounded. Nothing here draws.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

import numpy

from grpo_nb.runs.rise import describe
from grpo_nb.runs.rows import Row

# Half a panel is some 450 pixels wide: with two points a bin there is about one for each.
BINS = 256
LENGTH, SPREAD_LOW, SPREAD_HIGH = "completions/mean_length", "reward - spread", "reward + spread"


class Curve:
    """One metric over a run of any length, in at most `BINS` bins of equally many values each.

    >>> curve = Curve()
    >>> for step in range(1, 100_001):
    ...     curve.add(step, 9.0 if step == 54_321 else 1.0)
    >>> (54_321, 9.0) in list(zip(*curve.points())), len(curve.points()[0]) <= 2 * BINS
    (True, True)
    """

    def __init__(self) -> None:
        self._steps, self._values = array("d"), array("d")
        self.broken: list[float] = []
        """The steps whose value was NaN or infinite."""

    def add(self, step: float, value: float) -> None:
        """Take in the value of a step later than all before."""
        if math.isfinite(value):
            self._steps.append(step)
            self._values.append(value)
        else:
            self.broken.append(step)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def width(self) -> int:
        """Values in a full bin: as few as `BINS` allows, and a power of two, so that bins rarely change as a run grows."""
        return 2 ** max(0, math.ceil(math.log2(max(1, len(self)) / BINS)))

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest value of all."""
        return float(numpy.min(self._values)), float(numpy.max(self._values))

    def points(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Steps and values to draw: each value of a short run, the lowest and highest of each bin of a long one."""
        steps, values, width = numpy.array(self._steps), numpy.array(self._values), self.width
        bins = numpy.pad(values, (0, -len(values) % width), mode="edge").reshape(-1, width)
        begins = numpy.arange(0, len(values), width)
        at = numpy.unique([begins + bins.argmin(axis=1), begins + bins.argmax(axis=1)])
        return steps[at], values[at]

    @property
    def highest(self) -> tuple[float, float]:
        """The first step with the highest value, and that value."""
        at = int(numpy.argmax(self._values))
        return self._steps[at], self._values[at]

    def at(self, step: float) -> float:
        """The value at a step; NaN where there is none."""
        found = numpy.flatnonzero(numpy.array(self._steps) == step)
        return self._values[int(found[0])] if len(found) else math.nan

    def means(self, window: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Steps and the mean of the last `window` values at each, at the end of each bin and over one bin at least."""
        sums = numpy.concatenate([[0.0], numpy.cumsum(self._values)])
        ends = numpy.append(numpy.arange(self.width, len(self), self.width), len(self))
        begins = numpy.maximum(0, ends - max(window, self.width))
        return numpy.array(self._steps)[ends - 1], (sums[ends] - sums[begins]) / (ends - begins)


class Curves:
    """All curves of a run. Rows may come under either generation of TRL's names, and may lack any key."""

    def __init__(self, rows: Iterable[Row] = (), *, beta: float | None = None) -> None:
        self._curves: dict[str, Curve] = {}
        self._beta = beta
        self.rows: list[Row] = []
        """Those taken in."""
        self.first = self.last = math.nan
        for row in rows:
            self.add(row)

    def __getitem__(self, key: str) -> Curve:
        """The curve of a metric; one without values where it was not measured."""
        return self._curves.get(key, Curve())

    @property
    def rewards(self) -> dict[str, Curve]:
        """The mean score of each reward by name, unweighted, in the order in which they came."""
        own = (key for key in self._curves if key.startswith("rewards/"))
        return {key.removeprefix("rewards/"): self._curves[key] for key in own}

    def add(self, row: Row) -> None:
        """Take in one logged row."""
        step = row["step"]
        self.first, self.last = (self.first if self.rows else step), step
        if self._beta == 0 and "kl" in row:
            # With beta = 0 Unsloth logs a KL of exact zeros, which nobody measured.
            row = {key: value for key, value in row.items() if key != "kl"}
        self.rows.append(row)
        for key, value in _drawn(row).items():
            self._curves.setdefault(key, Curve()).add(step, value)

    @property
    def window(self) -> int:
        """Over how many rows the strong lines are a mean: few at the start, which a long mean would hide."""
        return max(1, min(10, len(self.rows) // 4), len(self.rows) // 50)

    @property
    def sentence(self) -> str:
        """`describe` of all rows."""
        return describe(self.rows)


def _drawn(row: Row) -> dict[str, float]:
    numbers = {key: float(value) for key, value in row.items() if isinstance(value, (int, float))}
    scores = {key: value for key, value in numbers.items() if key.startswith("rewards/")}
    drawn = {key: value for key, value in numbers.items() if key not in scores}
    drawn |= {key.removesuffix("/mean"): value for key, value in scores.items() if not key.endswith("/std")}
    if "completion_length" in numbers:
        drawn.setdefault(LENGTH, numbers["completion_length"])
    if "reward" in numbers and "reward_std" in numbers:
        drawn[SPREAD_LOW] = numbers["reward"] - numbers["reward_std"]
        drawn[SPREAD_HIGH] = numbers["reward"] + numbers["reward_std"]
    return drawn
