"""Calls a reward as TRL does, under a time limit: whether it keeps the contract, and scores the same completion the same."""

import contextlib
import copy
import inspect
import io
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.findings import Finding, found
from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.rewards.base import RewardFunction, completion_text
from grpo_nb.rewards.calls import Batch, call_reward, to_floats

# What trl 1.15 passes besides the columns.
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_CHUNK = 64
_MOST_LIMITS = 30
"""How many times the limit of one call a reward may take for all of them."""


@dataclass
class Outcome:
    """What one call gave: scores, or why there are none."""

    scores: list[float] | None = None
    error: BaseException | None = None
    is_unreadable: bool = False
    """It returned something that is no list of scores."""
    is_late: bool = False


@dataclass
class Caller:
    """Calls one reward under a time limit and keeps count. After two late calls, or too long in all, it makes no more."""

    reward: RewardFunction
    name: str
    seconds: float
    late: int = 0
    late_on: Batch | None = None
    """The smallest batch that a call was late on."""
    completions: int = 0
    spent: float = 0.0
    per_completion: float = 0.0
    """Seconds that one took in the quickest call."""
    changed: str = ""
    """The shortest completion of a call after which completions or columns were different."""

    @property
    def is_given_up(self) -> bool:
        """Whether two calls were late, or all together took too long."""
        return self.late >= 2 or self.spent > _MOST_LIMITS * self.seconds

    def call(self, batch: Batch, seconds: float = 0.0) -> Outcome:
        """Call the reward once, on a copy of the batch. What it prints is caught."""
        outcome, own, limit, raw = Outcome(), copy.deepcopy(batch), seconds or self.seconds, None
        start = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                raw = run_with_deadline(lambda: call_reward(self.reward, own), limit)
            outcome.scores = to_floats(raw, len(batch))
        # exit() in a reward would end the check, and with it a notebook's cell.
        except (Exception, SystemExit) as error:
            outcome.error = error
            outcome.is_unreadable = raw is not None or str(error).startswith("it returned ")
        spent = time.perf_counter() - start
        outcome.is_late = spent >= limit  # stopped, or come back late where nothing stops it
        self.late += outcome.is_late
        if outcome.is_late and (self.late_on is None or len(batch) < len(self.late_on)):
            self.late_on = batch
        self.completions += len(batch)
        self.spent += spent
        if outcome.scores is not None:
            self.per_completion = min(self.per_completion or math.inf, spent / len(batch))
        before, after = (batch.completions, batch.columns), (own.completions, own.columns)
        if not self.changed and not all(map(_is_same, before, after)):
            self.changed = min(map(completion_text, batch.completions), key=len)
        return outcome

    def each(self, batch: Batch) -> Iterator[tuple[int, Outcome]]:
        """Call in chunks, and one by one where a chunk fails, so that a failure has its completion. Stops when given up."""
        left = list(range(len(batch)))
        while left and not self.is_given_up:
            # A slow reward gets as few at a time as it can do in half the limit.
            size = max(1, min(_CHUNK, int(0.5 * self.seconds / max(self.per_completion, 1e-9))))
            chunk, left = left[:size], left[size:]
            together = self.call(batch.select(chunk))
            if together.scores is None and len(chunk) == 1:
                yield chunk[0], together
            elif together.scores is None:
                yield from ((i, self.call(batch.select([i]))) for i in chunk if not self.is_given_up)
            else:
                yield from ((i, Outcome([score])) for i, score in zip(chunk, together.scores, strict=True))


def _is_same(before: Any, after: Any) -> bool:
    try:
        return bool(before == after)
    except (ValueError, TypeError, RuntimeError):  # cells of numpy or torch have no one truth
        return repr(before) == repr(after)


def check_arguments(caller: Caller, row: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the signature with what TRL passes: its own arguments and every data column, by name."""
    columns = [name for name in row if name not in ("prompt", "completion", "completion_ids")]
    with contextlib.suppress(ValueError):  # a builtin without a signature: calling it will tell
        signature = inspect.signature(caller.reward)
        try:
            signature.bind(**dict.fromkeys(TRL_ARGUMENTS), **dict.fromkeys(columns))
        except TypeError as error:
            what = f"{error}; a trainer passes {', '.join([*TRL_ARGUMENTS, *columns])}"
            yield found("breaks the contract", caller.name, what)


def check_steadiness(caller: Caller, batch: Batch) -> Iterator[Finding]:
    """Call a reward on the same completions again, in reverse order and one by one: the scores must not change."""
    each = range(len(batch))
    alone = [caller.call(batch.select([i])).scores for i in each]
    if not all(alone) or caller.is_given_up:
        return
    ways = {"together": each, "together again": each, "together in reverse order": each[::-1]}
    for how, order in ways.items():
        outcome = caller.call(batch.select(order))
        if outcome.scores is None and not outcome.is_late:
            yield found("unsteady", caller.name, f"alone they all score, and {how} there is {outcome.error!r:.200}")
            return
        for i, score in zip(order, outcome.scores or (), strict=False):
            # Batched floating point sums differ in the last digits; two that are NaN agree.
            own = alone[i][0]
            if not math.isclose(score, own, rel_tol=1e-3, abs_tol=1e-4) and not (math.isnan(score) and math.isnan(own)):
                what = f"the same completion gets {own:.4g} alone, and {score:.4g} {how}"
                yield found("unsteady", caller.name, what, [completion_text(batch.completions[i])])
                return
