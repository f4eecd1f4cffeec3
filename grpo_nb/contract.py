"""Whether a reward function keeps TRL's contract: arguments, what it returns, side effects, repeatability, time."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.config import did_you_mean
from grpo_nb.deadlines import run_in_thread, run_with_deadline
from grpo_nb.findings import Finding, find_non_numbers
from grpo_nb.reward_calls import Batch, RewardFunction, call_reward, excerpt, reward_name, to_floats
from grpo_nb.rewards.base import completion_text

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
    is_sequence: bool = True


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
        needs = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.POSITIONAL_ONLY)
        if needs and (p.name not in passed or p.kind is p.POSITIONAL_ONLY):
            findings.append(
                Finding(
                    severity="critical",
                    reward=name,
                    kind="argument nobody passes",
                    what=f"it needs {p.name!r}, but a trainer passes {', '.join(passed)}{did_you_mean(p.name, passed)}",
                    effect="every call fails, the training stops at its first step",
                    fix="rename the argument, or add a column of that name to the data",
                )
            )
        elif p.default is not p.empty and p.name not in passed and p.kind is not p.POSITIONAL_ONLY:
            nearest = did_you_mean(p.name, TRL_ARGUMENTS)
            if "did you mean" in nearest and _is_misspelling(p.name, TRL_ARGUMENTS):
                findings.append(
                    Finding(
                        severity="warning",
                        reward=name,
                        kind="argument nobody passes",
                        what=f"{p.name!r} always has its default {p.default!r}: nobody passes it{nearest}",
                        effect="the reward never sees what it waits for",
                        fix="rename the argument",
                    )
                )
    missing = [argument for argument in passed if argument not in named]
    if missing and not takes_all:
        findings.append(
            Finding(
                severity="critical",
                reward=name,
                kind="arguments refused",
                what=f"it has no **kwargs, but is also called with {', '.join(missing)}",
                effect="every call fails, the training stops at its first step",
                fix="end its signature with **kwargs",
            )
        )
    return findings


def _is_misspelling(name: str, known: Sequence[str]) -> bool:
    import difflib

    return bool(difflib.get_close_matches(name, known, n=1, cutoff=0.85))


def check_contract(caller: Caller, batch: Batch) -> tuple[list[Finding], bool]:
    """Call a reward on harmless completions in every way a trainer might, and compare.

    Returns:
        The findings, and whether it can be called at all.
    """
    name, findings = caller.name, []

    def add(severity: str, kind: str, what: str, effect: str, fix: str, example: str = "") -> None:
        findings.append(
            Finding(severity=severity, reward=name, kind=kind, what=what, effect=effect, fix=fix, example=example)
        )

    first = caller.call(batch)
    if first.scores is None:
        findings.append(_failure(caller, batch, first))
        return findings, False
    if first.is_changed:
        add(
            "critical",
            "changes its inputs",
            "after the call the completions or columns it was given are different",
            "the next reward and the log see the changed text, so scores depend on the order of the rewards",
            "work on a copy: text = completion[0]['content'], never assign into completions or columns",
        )
    if first.printed:
        add(
            "note",
            "prints",
            f"it prints {len(first.printed):,} characters a call, beginning {excerpt(first.printed, 50)}",
            "thousands of lines in the notebook, which then becomes slow",
            "use log_extra or look at the completions log",
        )
    findings += _check_values(name, batch, first)
    again = caller.call(batch)
    is_same = _agree(first.scores, again.scores)
    if not is_same:
        worst = _largest_difference(first, again, batch)
        add(
            "warning",
            "not repeatable",
            f"the same completions got other scores on a second call: {worst[0]}",
            "the difference is noise in every advantage, or a memory of earlier calls that nobody asked for",
            "no random numbers and no globals that calls change; seed from the text if a draw is needed",
            worst[1],
        )
    else:
        findings += _check_neighbours(caller, batch, first)
        findings += _check_thread(caller, batch, first)
    try:
        pickle.dumps(caller.reward)
    except Exception as error:  # pickling runs code of the reward's own, which may raise anything
        add(
            "note",
            "cannot be pickled",
            f"pickle says {type(error).__name__}: {str(error)[:120]}",
            "one process on one GPU works; a trainer in several processes that are spawned does not",
            "define it with def at the top level of a module or cell",
        )
    if name == "<lambda>":
        add(
            "warning",
            "no name",
            "its __name__ is '<lambda>'",
            "its curve is called rewards/<lambda>/mean",
            "define it with def",
        )
    each = min(first.seconds, again.seconds) / len(batch)
    if each > _SLOW_SECONDS:
        add(
            "note",
            "slow",
            f"it takes {each:.2g} s a completion",
            f"a step of 64 completions waits {64 * each:.0f} s for it",
            "score in a batch, or cache what does not depend on the completion",
        )
    return findings, True


def _failure(caller: Caller, batch: Batch, outcome: Outcome) -> Finding:
    """The finding for a reward that fails on ordinary completions, with the completion that does it."""
    example, error = "", outcome.error
    if not outcome.is_late:
        for i in range(len(batch)):
            alone = caller.call(batch.select([i]))
            if alone.error is not None:
                example, error = excerpt(completion_text(batch.completions[i])), alone.error
                break
    if isinstance(error, (TypeError, ValueError, OverflowError)) and outcome.raw:
        kind, fix = "cannot be read", "return a list of one float (or None) per completion"
    else:
        kind, fix = "raises", "handle this completion: no text that a model can write may raise"
    if outcome.is_late:
        kind, fix = "too slow to check", "make it faster; a hung call stops the training for ever"
    return Finding(
        severity="critical",
        reward=caller.name,
        kind=kind,
        what=f"{type(error).__name__}: {str(error)[:250]}",
        example=example,
        effect="the training stops at its first step",
        fix=fix,
    )


def _check_values(name: str, batch: Batch, outcome: Outcome) -> list[Finding]:
    findings = []
    kinds = {type(value).__name__ for value in outcome.raw if value is not None} - {"float", "int"}
    if kinds:
        findings.append(
            Finding(
                severity="note",
                reward=name,
                kind="type of the scores",
                what=f"scores are {', '.join(sorted(kinds))}, which TRL turns into float32",
                effect="none in TRL; other trainers and JSON files may refuse them",
                fix="return [float(score), ...]",
            )
        )
    texts = [completion_text(completion) for completion in batch.completions]
    return findings + find_non_numbers(name, list(zip(outcome.scores or (), outcome.raw, strict=True)), texts)


def _check_neighbours(caller: Caller, batch: Batch, first: Outcome) -> list[Finding]:
    order = list(range(len(batch)))[::-1]
    turned = caller.call(batch.select(order))
    if turned.scores is not None and not _agree(first.scores, turned.scores[::-1]):
        what, example = _largest_difference(first, Outcome(turned.scores[::-1]), batch)
        return [
            Finding(
                severity="critical",
                reward=caller.name,
                kind="depends on the order",
                example=example,
                what=f"the same completions in reverse order got other scores: {what}",
                effect="a completion is paid for its place in the batch, or for another one's answer",
                fix="pair each completion with its own row: zip(completions, answer, strict=True), never answer[0]",
            )
        ]
    alone = [caller.call(batch.select([i])).scores for i in range(len(batch))]
    alone_scores = [scores[0] if scores else math.nan for scores in alone]
    if not _agree(first.scores, alone_scores):
        what, example = _largest_difference(first, Outcome(alone_scores), batch)
        return [
            Finding(
                severity="warning",
                reward=caller.name,
                kind="depends on neighbours",
                example=example,
                what=f"a completion alone got another score than among others: {what}",
                effect="the score depends on what else is in the batch, which changes with batch size and processes",
                fix="score each completion for itself, unless comparing within a group is what you want",
            )
        ]
    return []


def _check_thread(caller: Caller, batch: Batch, first: Outcome) -> list[Finding]:
    # Harmless completions that were quick a moment ago; four times the limit says it hangs there.
    threaded = caller.call(batch, seconds=4 * caller.seconds, in_thread=True)
    if _agree(first.scores, threaded.scores):
        return []
    what = (
        f"{type(threaded.error).__name__}: {str(threaded.error)[:200]}"
        if threaded.error is not None
        else _largest_difference(first, threaded, batch)[0]
    )
    return [
        Finding(
            severity="warning",
            reward=caller.name,
            kind="fails in a thread",
            what=f"off the main thread: {what}",
            effect="none in TRL's own loop; wrong or missing scores in a thread pool, a server or an async trainer",
            fix="no signal.alarm and no event loop of the main thread; for maths use grpo_nb.rewards.maths",
        )
    ]


def _agree(a: Sequence[float] | None, b: Sequence[float] | None) -> bool:
    if a is None or b is None or len(a) != len(b):
        return False
    # Batched floating point sums differ in the last digits.
    return all(
        (math.isnan(x) and math.isnan(y)) or math.isclose(x, y, rel_tol=1e-3, abs_tol=1e-4)
        for x, y in zip(a, b, strict=True)
    )


def _largest_difference(a: Outcome, b: Outcome, batch: Batch) -> tuple[str, str]:
    if b.scores is None:
        return f"{type(b.error).__name__}: {str(b.error)[:200]}", ""
    pairs = list(enumerate(zip(a.scores or (), b.scores, strict=True)))
    i, (x, y) = max(pairs, key=lambda pair: _difference(*pair[1]))
    return f"{x:.4g} and {y:.4g}", excerpt(completion_text(batch.completions[i]))


def _difference(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return 0.0 if math.isnan(x) and math.isnan(y) else math.inf
    return 0.0 if x == y else abs(x - y)
