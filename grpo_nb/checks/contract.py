"""Whether a reward function keeps TRL's contract: arguments, what it returns, side effects, repeatability, time."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.checks.catalogue import Finding, found
from grpo_nb.checks.groups import in_groups
from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.core.words import did_you_mean, excerpt
from grpo_nb.rewards.base import RewardFunction, completion_text, reward_name
from grpo_nb.rewards.calls import Batch, call_reward, to_floats

# What trl 1.15 passes besides the columns; `environments` only where there are some.
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
UNSTEADY = {"not repeatable", "depends on the order", "depends on neighbours"}
"""Findings after which nobody can say what a completion gets."""
_CHUNK = 32
_MOST_LIMITS = 30
"""How many times the limit of one call a reward may take for all of them."""


@dataclass
class Outcome:
    """What one call gave: scores, or why there are none."""

    scores: list[float] | None = None
    raw: list[Any] | None = None
    """What it returned, as it was; None where it raised."""
    error: BaseException | None = None
    is_late: bool = False
    seconds: float = 0.0
    printed: str = ""
    is_changed: bool = False


@dataclass
class Caller:
    """Calls one reward under a time limit and keeps count. After two late calls, or too long in all, it makes no more."""

    reward: RewardFunction
    seconds: float
    late: int = 0
    calls: int = 0
    completions: int = 0
    spent: float = 0.0
    """Seconds in all calls."""
    per_completion: float = 0.0
    """Seconds that one took in the quickest call."""
    failed_together: list[tuple[int, BaseException]] = field(default_factory=list)
    """Batches that failed though each of their completions alone did not: how many they held, and what was raised."""

    @property
    def name(self) -> str:
        """The reward's name."""
        return reward_name(self.reward)

    @property
    def is_given_up(self) -> bool:
        """Whether two calls were late, or all together took too long."""
        return self.late >= 2 or self.spent > _MOST_LIMITS * self.seconds

    def call(self, batch: Batch, *, seconds: float | None = None) -> Outcome:
        """Call the reward once, on a copy of the batch. What it prints is caught."""
        self.calls += 1
        self.completions += len(batch)
        outcome, own, seen = Outcome(), batch.copy(), io.StringIO()
        limit = seconds or self.seconds
        start = time.perf_counter()
        try:
            with contextlib.redirect_stdout(seen):
                outcome.raw = run_with_deadline(lambda: call_reward(self.reward, own), limit)
            outcome.scores = to_floats(outcome.raw, len(batch))
        except (
            Exception,
            SystemExit,
        ) as error:  # exit() in a reward would end the check, and with it a notebook's cell
            outcome.error = error
        outcome.seconds = time.perf_counter() - start
        self.spent += outcome.seconds
        if outcome.scores is not None:
            self.per_completion = min(self.per_completion or math.inf, outcome.seconds / len(batch))
        outcome.is_late = isinstance(outcome.error, TimeoutError) and outcome.seconds >= limit
        self.late += outcome.is_late
        outcome.printed = seen.getvalue()
        outcome.is_changed = own.completions != batch.completions or dict(own.columns) != dict(batch.columns)
        outcome.is_changed |= isinstance(batch.prompts, list) and own.prompts != batch.prompts
        return outcome

    def each(self, batch: Batch) -> Iterator[tuple[int, Outcome]]:
        """Call in chunks, and one by one where a chunk fails, so that a failure has its completion. Stops when given up."""
        # A slow reward gets as few at a time as it can do in half the limit.
        size = max(1, min(_CHUNK, int(0.5 * self.seconds / max(self.per_completion, 1e-9))))
        for indexes in in_groups(range(len(batch)), size):
            if self.is_given_up:
                return
            outcome = self.call(batch.select(indexes))
            if outcome.scores is None:
                alone = [(i, self.call(batch.select([i]))) for i in indexes if not self.is_given_up]
                all_work = len(alone) == len(indexes) > 1 and all(one.scores is not None for _, one in alone)
                if all_work and not outcome.is_late:
                    self.failed_together.append((len(indexes), outcome.error))
                yield from alone
                continue
            for i, value, raw in zip(indexes, outcome.scores, outcome.raw, strict=True):
                yield i, Outcome([value], [raw], seconds=outcome.seconds / len(indexes))


def check_arguments(reward: RewardFunction, columns: Sequence[str]) -> Iterator[Finding]:
    """Compare the signature with what TRL passes: its own arguments and every data column, by name."""
    name = reward_name(reward)
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: calling it will tell
        return
    passed = [*TRL_ARGUMENTS, *columns]
    for p in parameters:
        by_name = p.kind is not p.POSITIONAL_ONLY
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or (by_name and p.name in passed):
            continue
        if p.default is p.empty:
            what = f"it needs {p.name!r}, but a trainer passes {', '.join(passed)}{did_you_mean(p.name, passed)}"
            yield found("argument nobody passes", name, what)
        elif by_name and difflib.get_close_matches(p.name, TRL_ARGUMENTS, n=1, cutoff=0.85):
            nearest = did_you_mean(p.name, TRL_ARGUMENTS)
            what = f"{p.name!r} always has its default {p.default!r}: nobody passes it{nearest}"
            yield found("argument nobody passes (optional)", name, what)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    missing = [argument for argument in passed if argument not in named]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        what = f"it has no **kwargs, but is also called with {', '.join(missing)}"
        yield found("arguments refused", name, what)


def check_contract(caller: Caller, batch: Batch, first: Outcome) -> Iterator[Finding]:
    """Call a reward on harmless completions in every way a trainer might, and compare with the `first` call's scores."""
    name = caller.name
    if first.is_changed:
        what = "after the call the completions or columns it was given are different"
        yield found("changes its inputs", name, what)
    if first.printed:
        what = f"it prints {len(first.printed):,} characters a call, beginning {excerpt(first.printed, 50)}"
        yield found("prints", name, what)
    again = caller.call(batch)
    what, worst = _difference(first, again, batch)
    if again.is_late:
        return
    if what:
        yield found("not repeatable", name, f"the same completions got other scores on a second call: {what}", worst)
    else:
        yield from _check_neighbours(caller, batch, first)


def _check_neighbours(caller: Caller, batch: Batch, first: Outcome) -> Iterator[Finding]:
    turned = caller.call(batch.select(range(len(batch))[::-1]))
    if turned.scores is not None:
        turned.scores.reverse()
        what, worst = _difference(first, turned, batch)
        if what:
            what = f"the same completions in reverse order got other scores: {what}"
            yield found("depends on the order", caller.name, what, worst)
            return
    each = [caller.call(batch.select([i])) for i in range(len(batch))]
    what, worst = _difference(first, Outcome([one.scores[0] if one.scores else math.nan for one in each]), batch)
    if what and not any(one.is_late for one in each):
        what = f"a completion alone got another score than among others: {what}"
        yield found("depends on neighbours", caller.name, what, worst)


def _difference(first: Outcome, other: Outcome, batch: Batch) -> tuple[str, list[str]]:
    """How another call differs most from the first, in words, and on which completion; empty where they agree."""
    if other.scores is None:
        return f"{type(other.error).__name__}: {str(other.error)[:200]}", []
    # Batched floating point sums differ in the last digits; two that are NaN agree.
    pairs = [
        (math.inf if math.isnan(x - y) else abs(x - y), i, f"{x:.4g} and {y:.4g}")
        for i, (x, y) in enumerate(zip(first.scores, other.scores, strict=True))
        if not (math.isnan(x) and math.isnan(y)) and not math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-4)
    ]
    _, i, said = max(pairs, key=lambda pair: pair[0], default=(0.0, None, ""))
    return said, [] if i is None else [completion_text(batch.completions[i])]
