"""Did the reward of a run rise, by more than the luck of its prompts and draws? A test over steps, not a ratio of a few.

And the sentence about a run that is said everywhere, which goes by that test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.runs.rows import Row, mean, series

_FIRST, _LAST = 3, 10
LEVEL = 0.01
"""One run in a hundred that learns nothing would be called a rise."""
_FEWEST = 5
"""Of four steps in any order, every 24th would rise all the way: no order could be below `LEVEL`."""


@dataclass(frozen=True)
class Rise:
    """What the rewards of a run say, step by step."""

    first: float
    """Mean of the first third of the steps."""
    last: float
    """Mean of the last third."""
    p_value: float
    """How often steps of a model that learns nothing would be in so rising an order; 1 where there is nothing to order."""
    steps: int

    @property
    def is_clear(self) -> bool:
        """Whether luck is ruled out at `LEVEL`."""
        return self.p_value < LEVEL

    @property
    def sentence(self) -> str:
        """In words, also what it means where it did not rise."""
        means = f"from {self.first:.2f} (first third of {self.steps} steps) to {self.last:.2f} (last third)"
        if self.is_clear:
            return f"The reward rose {means}; of models that learn nothing, {_share(self.p_value)} would look so."
        if self.steps < _FEWEST:
            return f"Whether the reward rose cannot be told from {self.steps} steps: train at least {_FEWEST}."
        return (
            f"The reward did not rise clearly: it went {means}, as {_share(self.p_value)} of models that learn nothing would "
            "show. The run is kept with its curves, completions and adapter: run.plot() and run.alerts say what it lacked, "
            "run.completions() what was paid for. More steps, or an easier task, make a rise clearer."
        )

    def __repr__(self) -> str:
        return self.sentence


def reward_rise(rows: Sequence[Mapping[str, Any]], metric: str = "reward") -> Rise:
    """Test whether a metric rises over the steps of a run: the Mann-Kendall test, one-sided.

    Of a model that stands still, each step draws other prompts and completions, so that all orders of its means have the same
    probability. Kendall's tau counts the pairs of steps that are in rising order (Kendall 1938; Mann 1945); exact for up
    to some thirty steps without ties, by the normal approximation beyond.

    Args:
        rows: Of a run; steps at which the metric was not measured are left out.
        metric: By its name in the rows.

    >>> reward_rise([{"step": i, "reward": value} for i, value in enumerate([0.2, 0.4, 0.3, 0.9, 1.1, 1.2, 1.4], 1)]).is_clear
    True
    """
    values = [value for value in series(rows, metric) if math.isfinite(value)]
    if not values:
        return Rise(math.nan, math.nan, 1.0, 0)
    third = max(1, len(values) // 3)
    first, last = math.fsum(values[:third]) / third, math.fsum(values[-third:]) / third
    return Rise(first, last, _p_value(rows, metric, "greater"), len(values))


def _p_value(rows: Sequence[Mapping[str, Any]], metric: str, alternative: str) -> float:
    """Of the Mann-Kendall test on the steps that measured a metric; 1 where there is nothing to order."""
    from scipy.stats import kendalltau

    pairs = zip(series(rows, "step"), series(rows, metric), strict=True)
    found = [pair for pair in pairs if math.isfinite(pair[1])]
    p_value = kendalltau(*zip(*found, strict=True), alternative=alternative).pvalue if len(found) >= _FEWEST else 1.0
    return 1.0 if math.isnan(p_value) else float(p_value)


def describe(rows: Sequence[Row]) -> str:
    """One sentence about a run so far: reward then and now, KL, and what is cut at the length limit.

    Of a long run only the first and the last rows are looked at, for it is said again at every redraw. That the reward rose
    or fell is said only where the test of `reward_rise` shows it on these rows.
    """
    ends = [list(itertools.islice((r for r in way if "reward" in r), _FIRST + _LAST)) for way in (rows, reversed(rows))]
    begin, end = ends[0], ends[1][::-1]
    if not rows:
        return "No step has been logged yet."
    if not begin:
        return (
            f"None of the {len(rows)} steps logged has a reward: each was NaN, None or infinite for every completion, so that "
            "nothing was learnt. gn.check_rewards(rewards, task) says which reward does that."
        )
    # One window for all that is said, and none that reaches over both ends of a short run.
    first, last = (_FIRST, _LAST) if len(begin) >= _FIRST + _LAST else (max(1, len(begin) // 3),) * 2
    if len(begin) == 1:
        text = f"Step {begin[0]['step']:.0f}: reward {series(begin, 'reward')[0]:.2f}"
    else:
        before, now = mean(series(begin[:first], "reward")), mean(series(end[-last:], "reward"))
        looked_at = [*{id(row): row for row in (*begin, *end)}.values()]
        verb = "went"
        if not math.isfinite(before + now):
            verb = "is NaN or infinite in some steps: it went"
        elif _p_value(looked_at, "reward", "greater") < LEVEL:
            verb = "rose"
        elif _p_value(looked_at, "reward", "less") < LEVEL:
            verb = "fell"
        then, here = f"{before:.2f}", f"{now:.2f}"
        steps, ends = (f"first {first} steps", f"last {last}") if first > 1 else ("first step", "last step")
        text = f"Reward {verb} from {then} ({steps}) to {here} ({ends})"
        if then == here and verb == "went":
            text = f"Reward stayed at {here} ({steps} and {ends})"
    kl = mean(series(end[-last:], "kl"))
    text += f"; KL to the starting model {kl:.3f}" if not math.isnan(kl) else "; KL not measured"
    clipped = mean(series(end[-last:], "completions/clipped_ratio"))
    if not math.isnan(clipped):
        text += f"; {clipped:.0%} of completions cut at the length limit" + f" (last {last})" * (len(begin) > 1)
    return text + "."


def _share(p_value: float) -> str:
    return (
        f"{p_value:.0%}" if p_value >= 0.01 else f"1 in {10 ** math.floor(-math.log10(max(p_value, 1e-9))):,} or fewer"
    )
