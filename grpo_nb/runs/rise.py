"""Did the reward of a run rise, by more than the luck of its prompts and draws? A test over steps, not a ratio of a few.

And the sentence about a run that is said everywhere, which goes by that test.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.statistics import rise_p_value
from grpo_nb.runs.rows import Row, mean, series

_LAST = 10
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
    def claim(self) -> str:
        """What all sentences about a run begin with, so that none says another thing."""
        if self.steps < 2:
            return (
                f"The reward of the only step is {self.first:.2f}"
                if self.steps
                else "No step has a reward"
            )
        many = f" {self.steps // 3}" if self.steps >= 6 else ""
        means = f"from {self.first:.2f} (first{many} of {self.steps} steps) to {self.last:.2f} (last{many})"
        if self.is_clear:
            return f"The reward rose {means}"
        return (
            f"The reward {'did not rise clearly: it ' if self.steps >= _FEWEST else ''}went {means}"
        )

    @property
    def sentence(self) -> str:
        """In words, also what it means where it did not rise."""
        if self.is_clear:
            one_in = 10 ** math.floor(-math.log10(max(self.p_value, 1e-9)))
            return f"{self.claim}; of models that learn nothing, 1 in {one_in:,} or fewer would look so."
        if self.steps < _FEWEST:
            return f"{self.claim}. Whether it rose cannot be told from {self.steps} steps: train at least {_FEWEST}."
        lacked = "run.plot() and run.alerts say what it lacked; more steps, or an easier task, make a rise clearer"
        return f"{self.claim}, as {self.p_value:.0%} of models that learn nothing would show: {lacked}."

    def __repr__(self) -> str:
        return self.sentence


def reward_rise(rows: Sequence[Mapping[str, Any]], metric: str = "reward") -> Rise:
    """Test whether a metric rises over the steps of a run: the Mann-Kendall test, one-sided.

    Each step of a model that learns nothing samples other prompts and completions, so that all
    orders of its means have the same probability.

    Args:
        rows: Of a run; steps at which the metric was not measured are left out.
        metric: By its name in the rows.

    >>> reward_rise([{"step": i, "reward": value} for i, value in enumerate([0.2, 0.4, 0.3, 0.9, 1.1, 1.2, 1.4], 1)]).is_clear
    True
    """
    values = [value for value in series(rows, metric) if math.isfinite(value)]
    third = max(1, len(values) // 3)
    p_value = rise_p_value(values) if len(values) >= _FEWEST else 1.0
    return Rise(mean(values[:third]), mean(values[-third:]), p_value, len(values))


def describe(rows: Sequence[Row], reference: str = "the reference model") -> str:
    """One sentence about a run so far: what `reward_rise` finds, and of the last steps KL and what is cut at the limit.

    Args:
        rows: Of the run.
        reference: What its KL is measured to, in words.
    """
    if not rows:
        return "No step has been logged yet."
    rise, paid = reward_rise(rows), [row for row in rows if "reward" in row]
    if not rise.steps:
        return f"{rise.claim}: it was NaN, None or infinite. gn.check_rewards(rewards, task) says where from."
    broken = len(paid) - rise.steps
    # Of a short run so few that the mean does not reach over both of its ends.
    last = paid[-min(_LAST, max(1, rise.steps // 3)) :]
    kl, clipped = mean(series(last, "kl")), mean(series(last, "completions/clipped_ratio"))
    text = rise.claim + (f"; NaN or infinite in {broken} more" if broken else "")
    text += "; KL not measured" if math.isnan(kl) else f"; KL to {reference} {kl:.3f}"
    if not math.isnan(clipped):
        text += f"; {clipped:.0%} of completions cut at the length limit{f' (last {len(last)})' * (len(last) > 1)}"
    return text + "."
