"""Call a reward with probes as TRL does, and check that it keeps TRL's contract.

A reward accepts TRL's arguments, gives the same completion the same score, and leaves its inputs
unchanged. It returns scores for any text, in time, and never executes the text.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grpo_nb.checks.probes import EvalTrap, Probe
from grpo_nb.checks.report import Finding, make_finding
from grpo_nb.checks.rows import RowSample
from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.core.words import format_score
from grpo_nb.rewards.base import RewardFunction, reward_name
from grpo_nb.scoring.scores import (
    TRL_KEYWORDS,
    Batch,
    UnusableOutputError,
    call_reward,
    make_batch,
)

if TYPE_CHECKING:
    import pandas

HANG_FACTOR = 4
"""A call is stopped after this multiple of `seconds_per_call`: after 8 s by default.

A parser with its own limit of 5 s ends by then, and a first call can import a library.
"""

TOTAL_TIME_FACTOR = 10
"""All calls together may take this multiple of `seconds_per_call`: 20 s by default.

A reward that takes 0.2 s per completion is then tried with the answers of four rows and the most
usual loopholes, because these come first.
"""

SIDE_EFFECTS = {
    "changes its inputs": "the completions or columns are different after a call",
    "runs the answer as code": "the reward executed the answer as Python code",
}
"""Observation for each side effect of a call, by kind of finding."""


@dataclass(frozen=True)
class CallResult:
    """Result of one call: scores, or why there are none."""

    scores: list[float] | None = None
    """One score per probe, NaN if the reward returned None."""
    error: BaseException | None = None
    failure_kind: str = ""
    """Kind of the finding about this call; empty if it returned scores in time."""


@dataclass(eq=False)
class ProbeRunner:
    """Calls one reward under a time limit, and keeps its scores and failures."""

    reward: RewardFunction
    row_sample: RowSample
    seconds_per_call: float
    results: dict[Probe, CallResult] = field(default_factory=dict)
    """Result of each probe that was tried alone."""
    completion_count: int = 0
    seconds_used: float = 0.0
    """Time of all calls except the first, which may load a library. Infinite after a hang."""
    side_effects: dict[str, str] = field(default_factory=dict)
    """Completion of the first call with a side effect, by kind of finding."""

    @property
    def name(self) -> str:
        """Name of the reward."""
        return reward_name(self.reward)

    @property
    def is_too_slow_or_hung(self) -> bool:
        """True if the reward is not called again."""
        return self.seconds_used > TOTAL_TIME_FACTOR * self.seconds_per_call

    @property
    def scores(self) -> dict[Probe, float]:
        """Score of each probe whose call succeeded, NaN if the reward returned None."""
        return {
            probe: result.scores[0]
            for probe, result in self.results.items()
            if not result.failure_kind
        }

    def run(self, probes: Iterable[Probe]) -> None:
        """Try all new probes one by one, until the reward turns out to be too slow."""
        for probe in probes:
            # Two steps may write the same probe, and each call may cost money.
            if probe not in self.results and not self.is_too_slow_or_hung:
                self.results[probe] = self.call([probe])

    def call(self, probes: Sequence[Probe]) -> CallResult:
        """Call the reward once with these probes, and note the time and side effects."""
        limit = HANG_FACTOR * self.seconds_per_call
        batch = self.make_batch(probes)
        # TRL passes the same lists to the next reward. They are compared as text, because columns
        # may hold arrays. An environment is meant to change.
        inputs = [values for name, values in batch.items() if name != "environments"]
        inputs_before = repr(inputs)
        executions_before = EvalTrap.count
        start = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # prints would fill the notebook
                scores = run_with_deadline(lambda: call_reward(self.reward, batch), limit)
            result = CallResult(scores)
        except UnusableOutputError as error:
            result = CallResult(error=error, failure_kind="breaks the contract")
        # SystemExit is caught too, because exit() in a reward would end the check and the cell.
        except (Exception, SystemExit) as error:
            result = CallResult(error=error, failure_kind="raises")
        duration = time.perf_counter() - start
        if self.completion_count > 0:
            self.seconds_used += duration
        self.completion_count += len(probes)
        # Off the main thread a call cannot be stopped. It then returns scores, but late.
        if duration >= limit:
            late = TimeoutError(f"no score after {limit:g} s")
            result = CallResult(error=late, failure_kind="hangs")
            self.seconds_used = math.inf  # it is not called again
        if repr(inputs) != inputs_before:
            self.side_effects.setdefault("changes its inputs", probes[0].text)
        if EvalTrap.count > executions_before:
            self.side_effects.setdefault("runs the answer as code", probes[0].text)
        return result

    def make_batch(self, probes: Sequence[Probe]) -> Batch:
        """Return the arguments of a call with these probes, each with the columns of its row."""
        texts = [probe.text for probe in probes]
        tokenizer = self.row_sample.tokenizer
        token_ids = None
        if tokenizer is None:
            # One id per word, because only the number of ids matters.
            token_ids = [[0] * len(text.split()) for text in texts]
        columns = [self.row_sample.rows[probe.row_index].columns for probe in probes]
        return make_batch(texts, columns, completion_ids=token_ids, tokenizer=tokenizer)

    def table(self) -> pandas.DataFrame:
        """Return the probes with a score: the fields of `Probe`, and `score` (NaN for None)."""
        import pandas

        # The columns hold objects, because pandas refuses a lone surrogate in a column of texts.
        table = pandas.DataFrame(list(self.scores), columns=Probe._fields, dtype=object)
        return table.assign(score=pandas.Series(self.scores.values(), dtype=float))


# ---- The contract ----


def find_signature_fault(runner: ProbeRunner) -> list[Finding]:
    """Report a reward that does not accept TRL's arguments and all data columns by name."""
    # The reward is not called, because its own code could raise a TypeError too.
    batch = runner.make_batch([Probe("prose", "", "", row_index=0, layout="")])
    arguments = dict.fromkeys([*batch, *TRL_KEYWORDS])
    try:
        inspect.signature(runner.reward).bind(**arguments)
    except TypeError as error:
        observation = f"{error}. A trainer passes {', '.join(arguments)}"
        return [make_finding("breaks the contract", runner.name, observation)]
    return []


def find_inconsistency(runner: ProbeRunner, probes: Sequence[Probe]) -> list[Finding]:
    """Report a reward whose score of the same completion changes between calls.

    The completions are scored again one by one, then together, then together in reverse order.
    """
    import numpy

    if not probes or runner.is_too_slow_or_hung:
        return []
    one_by_one = [[probe] for probe in probes]
    scores_of_calls = []
    for call_probes in (*one_by_one, probes, probes[::-1]):
        result = runner.call(call_probes)
        if result.failure_kind:
            kind = "hangs" if result.failure_kind == "hangs" else "inconsistent"
            observation = (
                "the first call returns scores, a later call with the same completions does not: "
                f"{result.error!r:.200}"
            )
            return [make_finding(kind, runner.name, observation, [call_probes[0].text])]
        scores_of_calls += result.scores

    alone, together, in_reverse = numpy.reshape(scores_of_calls, (3, len(probes)))
    first_scores = [runner.results[probe].scores[0] for probe in probes]
    # The kind of finding, the scores of two calls, and the second call in words. Only the first
    # difference is reported.
    comparisons = (
        ("inconsistent", together, in_reverse[::-1], "the same call in reverse"),
        ("depends on its group", alone, together, "a call with others"),
        ("inconsistent", first_scores, alone, "a later call: the reward keeps state"),
    )
    for kind, scores, later_scores, later_call in comparisons:
        # Sums over a batch in floating point differ in the last digits.
        is_same = numpy.isclose(scores, later_scores, rtol=1e-3, atol=1e-4, equal_nan=True)
        if not is_same.all():
            index = int(is_same.argmin())
            observation = (
                f"the same completion gets {format_score(scores[index])} at first, and "
                f"{format_score(later_scores[index])} in {later_call}"
            )
            return [make_finding(kind, runner.name, observation, [probes[index].text])]
    return []


def find_failures(runner: ProbeRunner) -> list[Finding]:
    """Report a reward that hung, had a side effect, raised, or did not return scores."""
    findings = [
        make_finding(kind, runner.name, SIDE_EFFECTS[kind], [text])
        for kind, text in runner.side_effects.items()
    ]
    for kind in ("hangs", "breaks the contract", "raises"):
        failed = [probe for probe, result in runner.results.items() if result.failure_kind == kind]
        if failed:
            shortest = min(failed, key=lambda probe: len(probe.text))
            error = runner.results[shortest].error
            observation = (
                f"{len(failed)} of {len(runner.results)} completions failed with "
                f"{type(error).__name__}: {error!s:.200}"
            )
            findings.append(make_finding(kind, runner.name, observation, [shortest.text]))
    return findings
