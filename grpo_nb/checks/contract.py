"""Whether a reward function keeps TRL's contract: arguments, what it returns, side effects, repeatability, time."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.checks.catalogue import Finding, found
from grpo_nb.core import excerpt, run_in_thread, run_with_deadline
from grpo_nb.rewards import Batch, RewardFunction, call_reward, completion_text, reward_name, to_floats
from grpo_nb.settings import did_you_mean

# What trl 1.15 passes besides the columns; `environments` only where there are some.
TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_SLOW_SECONDS = 0.05
_CHUNK = 32


@dataclass
class Outcome:
    """What one call gave: scores, or why there are none."""

    scores: list[float] | None = None
    raw: list[Any] = field(default_factory=list)
    error: Exception | None = None
    is_late: bool = False
    seconds: float = 0.0
    printed: str = ""
    is_changed: bool = False


@dataclass
class Caller:
    """Calls one reward under a time limit and keeps count. After two late calls it makes no more."""

    reward: RewardFunction
    seconds: float
    late: int = 0
    calls: int = 0
    completions: int = 0

    @property
    def name(self) -> str:
        """The reward's name."""
        return reward_name(self.reward)

    @property
    def is_given_up(self) -> bool:
        """Whether two calls were late."""
        return self.late >= 2

    def call(self, batch: Batch, *, seconds: float | None = None, in_thread: bool = False) -> Outcome:
        """Call the reward once, on a copy of the batch. What it prints is caught."""
        self.calls += 1
        self.completions += len(batch)
        outcome, own, seen = Outcome(), batch.copy(), io.StringIO()
        run = run_in_thread if in_thread else run_with_deadline
        start = time.perf_counter()
        try:
            with contextlib.redirect_stdout(seen):
                outcome.raw = run(lambda: call_reward(self.reward, own), seconds or self.seconds)
            outcome.scores = to_floats(outcome.raw, len(batch))
        except TimeoutError as error:
            outcome.is_late = time.perf_counter() - start >= (seconds or self.seconds)
            self.late += outcome.is_late
            outcome.error = error
        except Exception as error:
            outcome.error = error
        outcome.seconds = time.perf_counter() - start
        outcome.printed = seen.getvalue()
        outcome.is_changed = own.completions != batch.completions or dict(own.columns) != dict(batch.columns)
        outcome.is_changed |= isinstance(batch.prompts, list) and own.prompts != batch.prompts
        return outcome

    def each(self, batch: Batch) -> Iterator[tuple[int, Outcome]]:
        """Call in chunks, and one by one where a chunk fails, so that a failure has its completion. Stops when given up."""
        for start in range(0, len(batch), _CHUNK):
            indexes = list(range(start, min(start + _CHUNK, len(batch))))
            if self.is_given_up:
                return
            outcome = self.call(batch.select(indexes))
            if outcome.scores is not None:
                for i, value, raw in zip(indexes, outcome.scores, outcome.raw, strict=True):
                    yield i, Outcome([value], [raw], seconds=outcome.seconds / len(indexes))
                continue
            for i in indexes:
                if self.is_given_up:
                    return
                yield i, self.call(batch.select([i]))


def check_arguments(reward: RewardFunction, columns: Sequence[str]) -> list[Finding]:
    """Compare the signature with what TRL passes: its own arguments and every data column, by name."""
    name = reward_name(reward)
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: calling it will tell
        return []
    passed = [*TRL_ARGUMENTS, *columns]
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    findings = []
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.default is p.empty and (p.name not in passed or p.kind is p.POSITIONAL_ONLY):
            what = f"it needs {p.name!r}, but a trainer passes {', '.join(passed)}{did_you_mean(p.name, passed)}"
            findings.append(found("argument nobody passes", name, what))
        elif (
            p.default is not p.empty
            and p.name not in passed
            and p.kind is not p.POSITIONAL_ONLY
            and difflib.get_close_matches(p.name, TRL_ARGUMENTS, n=1, cutoff=0.85)
        ):
            nearest = did_you_mean(p.name, TRL_ARGUMENTS)
            what = f"{p.name!r} always has its default {p.default!r}: nobody passes it{nearest}"
            findings.append(found("argument nobody passes (optional)", name, what))
    missing = [argument for argument in passed if argument not in named]
    if missing and not takes_all:
        what = f"it has no **kwargs, but is also called with {', '.join(missing)}"
        findings.append(found("arguments refused", name, what))
    return findings


def check_contract(caller: Caller, batch: Batch) -> tuple[list[Finding], bool]:
    """Call a reward on harmless completions in every way a trainer might, and compare.

    Returns:
        The findings, and whether it can be called at all.
    """
    name, first = caller.name, caller.call(batch)
    if first.scores is None:
        return [_failure(caller, batch, first)], False
    findings = []
    if first.is_changed:
        what = "after the call the completions or columns it was given are different"
        findings.append(found("changes its inputs", name, what))
    if first.printed:
        what = f"it prints {len(first.printed):,} characters a call, beginning {excerpt(first.printed, 50)}"
        findings.append(found("prints", name, what))
    kinds = {type(value).__name__ for value in first.raw if value is not None} - {"float", "int"}
    if kinds:
        what = f"scores are {', '.join(sorted(kinds))}, which TRL turns into float32"
        findings.append(found("type of the scores", name, what))
    again = caller.call(batch)
    if not _agree(first, again):
        what, worst = _largest_difference(first, again, batch)
        what = f"the same completions got other scores on a second call: {what}"
        findings.append(found("not repeatable", name, what, worst))
    else:
        findings += _check_neighbours(caller, batch, first)
        # Harmless completions that were quick a moment ago; four times the limit says it hangs there.
        threaded = caller.call(batch, seconds=4 * caller.seconds, in_thread=True)
        if not _agree(first, threaded):
            what = f"off the main thread: {_largest_difference(first, threaded, batch)[0]}"
            findings.append(found("fails in a thread", name, what))
    try:
        pickle.dumps(caller.reward)
    except Exception as error:  # pickling runs code of the reward's own, which may raise anything
        what = f"pickle says {type(error).__name__}: {str(error)[:120]}"
        findings.append(found("cannot be pickled", name, what))
    if name == "<lambda>":
        findings.append(found("no name", name, "its __name__ is '<lambda>'"))
    each = min(first.seconds, again.seconds) / len(batch)
    if each > _SLOW_SECONDS:
        waits = f"a step of 64 completions waits {64 * each:.0f} s for it"
        findings.append(found("slow", name, f"it takes {each:.2g} s a completion", effect=waits))
    return findings, True


def _failure(caller: Caller, batch: Batch, outcome: Outcome) -> Finding:
    """The finding for a reward that fails on ordinary completions, with the completion that does it."""
    tried, error = [], outcome.error
    if not outcome.is_late:
        for i in range(len(batch)):
            alone = caller.call(batch.select([i]))
            if alone.error is not None:
                tried, error = [completion_text(batch.completions[i])], alone.error
                break
    kind = "raises (at once)"
    if outcome.is_late:
        kind = "too slow to check"
    elif isinstance(error, (TypeError, ValueError, OverflowError)) and outcome.raw:
        kind = "cannot be read"
    return found(kind, caller.name, f"{type(error).__name__}: {str(error)[:250]}", tried)


def _check_neighbours(caller: Caller, batch: Batch, first: Outcome) -> list[Finding]:
    turned = caller.call(batch.select(range(len(batch))[::-1]))
    if turned.scores is not None:
        turned.scores.reverse()
        if not _agree(first, turned):
            what, worst = _largest_difference(first, turned, batch)
            what = f"the same completions in reverse order got other scores: {what}"
            return [found("depends on the order", caller.name, what, worst)]
    each = [caller.call(batch.select([i])).scores for i in range(len(batch))]
    alone = Outcome([scores[0] if scores else math.nan for scores in each])
    if _agree(first, alone):
        return []
    what, worst = _largest_difference(first, alone, batch)
    what = f"a completion alone got another score than among others: {what}"
    return [found("depends on neighbours", caller.name, what, worst)]


def _is_same(x: float, y: float) -> bool:
    # Batched floating point sums differ in the last digits.
    return (math.isnan(x) and math.isnan(y)) or math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-4)


def _agree(a: Outcome, b: Outcome) -> bool:
    return a.scores is not None and b.scores is not None and all(map(_is_same, a.scores, b.scores))


def _largest_difference(a: Outcome, b: Outcome, batch: Batch) -> tuple[str, list[str]]:
    """How two calls that do not agree differ most, in words, and on which completion."""
    if a.scores is None or b.scores is None:
        return f"{type(b.error).__name__}: {str(b.error)[:200]}", []
    pairs = [(i, x, y) for i, (x, y) in enumerate(zip(a.scores, b.scores, strict=True)) if not _is_same(x, y)]
    i, x, y = max(pairs, key=lambda pair: math.inf if math.isnan(pair[1] - pair[2]) else abs(pair[1] - pair[2]))
    return f"{x:.4g} and {y:.4g}", [completion_text(batch.completions[i])]
