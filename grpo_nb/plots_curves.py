"""The curves of a run in bounded space: rows are taken in one at a time, and a curve never holds more than `BINS` bins.

A bin keeps the lowest and the highest value with their steps, so that a spike of one step is still there after ten thousand.
Taking in a row and handing out what is drawn cost the same at any length of the run. Nothing here draws.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.metrics import Row, describe

# Half a panel is some 450 pixels wide: with two points a bin there is about one for each.
BINS = 256
_HEAD, _TAIL = 13, 10
LENGTH, SPREAD_LOW, SPREAD_HIGH = "length", "reward - spread", "reward + spread"
_DRAWN = (
    "reward", "kl", "completions/clipped_ratio", "frac_reward_zero_std", "grad_norm", "entropy", "learning_rate", "step_time",
    "holdout/accuracy",
)  # fmt: skip


class _Bin:
    __slots__ = ("count", "first", "high", "high_at", "last", "low", "low_at", "total")

    def __init__(self, x: float, value: float) -> None:
        self.first = self.last = self.low_at = self.high_at = x
        self.low = self.high = self.total = value
        self.count = 1

    def take(self, other: _Bin) -> None:
        """Take in a later bin."""
        self.last = other.last
        if other.low < self.low:
            self.low, self.low_at = other.low, other.low_at
        if other.high > self.high:
            self.high, self.high_at = other.high, other.high_at
        self.total += other.total
        self.count += other.count


class Curve:
    """One metric over a run of any length, in at most `BINS` bins of equally many values each.

    >>> curve = Curve()
    >>> for step in range(1, 100_001):
    ...     curve.add(step, 9.0 if step == 54_321 else 1.0)
    >>> (54_321, 9.0) in list(zip(*curve.points())), len(curve.points()[0]) <= 2 * BINS
    (True, True)
    """

    def __init__(self) -> None:
        self._bins: list[_Bin] = []
        self.width = 1
        """Values in a full bin."""
        self.count = 0
        """Finite values so far."""
        self.broken: list[float] = []
        """The first steps whose value was NaN or infinite; `broken_count` has how many there were."""
        self.broken_count = 0

    def add(self, x: float, value: float) -> None:
        """Take in the value of a step later than all before."""
        if not math.isfinite(value):
            self.broken_count += 1
            self.broken = [*self.broken, x][:3]
            return
        bins, fresh = self._bins, _Bin(x, value)
        self.count += 1
        if bins and bins[-1].count < self.width:
            bins[-1].take(fresh)
            return
        if len(bins) == BINS:
            # Pairs are merged: this happens once in as many values as there are already.
            for left, right in zip(bins[::2], bins[1::2], strict=True):
                left.take(right)
            self._bins = bins = bins[::2]
            self.width *= 2
        bins.append(fresh)

    def __len__(self) -> int:
        return len(self._bins)

    @property
    def last(self) -> float:
        """The last step that was measured."""
        return self._bins[-1].last

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest value of all."""
        return min(b.low for b in self._bins), max(b.high for b in self._bins)

    def points(self) -> tuple[list[float], list[float]]:
        """Steps and values to draw: each value of a short run, the lowest and highest of each bin of a long one."""
        xs, ys = [], []
        for b in self._bins:
            ends = sorted({(b.low_at, b.low), (b.high_at, b.high)})
            xs += [x for x, _ in ends]
            ys += [y for _, y in ends]
        return xs, ys

    def means(self, window: int) -> tuple[list[float], list[float]]:
        """Steps and the mean of the last `window` values at each, rounded up to whole bins."""
        reach = max(1, math.ceil(window / self.width))
        totals, counts, xs, ys = [0.0], [0], [], []
        for i, b in enumerate(self._bins):
            totals.append(totals[-1] + b.total)
            counts.append(counts[-1] + b.count)
            start = max(0, i + 1 - reach)
            xs.append(b.last)
            ys.append((totals[-1] - totals[start]) / (counts[-1] - counts[start]))
        return xs, ys


class Curves:
    """All curves of a run that are drawn, and where its stages begin.

    Rows may come under either generation of TRL's names, and may lack any key. Where a row's `stage` changes, a boundary
    is kept; where its steps begin anew with it, they are counted on, so that the curves are one line.
    """

    def __init__(self, rows: Iterable[Row] = (), *, beta: float | None = None) -> None:
        self._curves: dict[str, Curve] = {}
        self._beta = beta
        self._head: list[Row] = []
        self._tail: deque[Row] = deque(maxlen=_TAIL)
        self._offsets: dict[Any, float] = {}
        self._stage: Any = None
        self.rewards: list[str] = []
        """Names of the rewards, in the order in which they came."""
        self.stages: list[tuple[float, Any]] = []
        """Where each stage begins, and its name; empty for a run without stages."""
        self.count = 0
        """Rows taken in."""
        self.first = self.last = math.nan
        for row in rows:
            self.add(row)

    def __getitem__(self, key: str) -> Curve:
        """The curve of a metric; one without values where it was not measured."""
        return self._curves[key] if key in self._curves else Curve()

    def reward(self, name: str) -> Curve:
        """The mean score of one reward, unweighted."""
        return self[f"rewards/{name}"]

    def position(self, step: float, stage: Any = None) -> float:
        """Where a step of a stage lies on the axis; without stage that of a run whose steps are never counted anew."""
        return step + self._offsets.get(stage, 0.0)

    def add(self, row: Row) -> None:
        """Take in one logged row."""
        stage = row.get("stage")
        if stage is not None and stage != self._stage:
            is_anew = self.count > 0 and row["step"] + self._offsets.get(self._stage, 0.0) <= self.last
            self._offsets[stage] = self.last if is_anew else self._offsets.get(self._stage, 0.0)
            self._stage = stage
            self.stages.append((self.position(row["step"], stage), stage))
        x = self.position(row["step"], self._stage)
        self.first, self.last, self.count = (x if self.count == 0 else self.first), x, self.count + 1
        if self._beta == 0 and "kl" in row:
            # With beta = 0 Unsloth logs a KL of exact zeros, which nobody measured.
            row = {key: value for key, value in row.items() if key != "kl"}
        if "reward" in row:
            (self._head if len(self._head) < _HEAD else self._tail).append(row)
        for key, value in _drawn(row):
            if key.startswith("rewards/") and (name := key.removeprefix("rewards/")) not in self.rewards:
                self.rewards.append(name)
            self._curves.setdefault(key, Curve()).add(x, value)

    @property
    def window(self) -> int:
        """Over how many rows the strong lines are a mean: few at the start, which a long mean would hide."""
        return max(1, min(10, self.count // 4), self.count // 50)

    @property
    def sentence(self) -> str:
        """`metrics.describe` of all rows, from the first and the last ones that it needs."""
        return describe([*self._head, *self._tail])


def _drawn(row: Row) -> Iterator[tuple[str, float]]:
    for key in _DRAWN:
        if isinstance(row.get(key), (int, float)):
            yield key, float(row[key])
    for key, value in row.items():
        if key.startswith("rewards/") and not key.endswith("/std") and isinstance(value, (int, float)):
            yield key.removesuffix("/mean"), float(value)
    for key in ("completions/mean_length", "completion_length"):
        if isinstance(row.get(key), (int, float)):
            yield LENGTH, float(row[key])
            break
    if isinstance(row.get("reward"), (int, float)) and isinstance(row.get("reward_std"), (int, float)):
        yield SPREAD_LOW, float(row["reward"] - row["reward_std"])
        yield SPREAD_HIGH, float(row["reward"] + row["reward_std"])


class GrowingFile:
    """A file of JSON lines that somebody may still be writing: each `read` gives the lines that are new.

    A last line cut short is left for the next time. If the file has become shorter, as when a run goes back to a checkpoint,
    `read` begins anew and says so.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the new lines, and whether they are to replace all earlier ones."""
        if not self._path.is_file():
            is_anew, self._at = self._at > 0, 0
            return [], is_anew
        is_anew = self._path.stat().st_size < self._at
        with self._path.open("rb") as file:
            file.seek(0 if is_anew else self._at)
            start, data = file.tell(), file.read()
        end = data.rfind(b"\n") + 1
        self._at = start + end
        return [json.loads(line) for line in data[:end].splitlines() if line.strip()], is_anew


def alert_places(alerts: Sequence[Mapping[str, Any]], curves: Curves) -> list[tuple[float, str, Mapping[str, Any]]]:
    """Return place on the axis, severity and alert, the most severe first and among equals the latest first.

    Args:
        alerts: Lines of alerts.jsonl, or `Alert` objects of `grpo_nb.health`.
        curves: For the places of a run with stages.
    """
    order = {"critical": 0, "warning": 1}
    plain = [alert if isinstance(alert, Mapping) else alert.to_dict() for alert in alerts]
    placed = [(curves.position(a["step"], a.get("stage")), str(a.get("severity", "info")), a) for a in plain]
    return sorted(placed, key=lambda item: (order.get(item[1], 2), -item[0]))
