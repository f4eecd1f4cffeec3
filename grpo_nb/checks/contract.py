"""Check that a reward keeps TRL's contract.

It must accept TRL's arguments, give the same completion the same score, leave its inputs unchanged,
and return scores for any text, in time, without executing it.
"""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_nb.checks.calling import Caller, ProbeRunner
from grpo_nb.checks.findings import Finding, make_finding
from grpo_nb.checks.probes import Probe
from grpo_nb.rewards.base import completion_text

TRL_ARGUMENTS = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)
"""Arguments that trl 1.15 passes besides the data columns.

See `GRPOTrainer._calculate_rewards`.
"""

HANG_FACTOR = 4
"""A late call is repeated with four times the limit.

A parser with a time limit of its own ends then, a hung one does not.
"""


def check_signature(caller: Caller, row: Mapping[str, Any]) -> list[Finding]:
    """Report a reward that does not accept TRL's arguments and all data columns by name."""
    columns = [name for name in row if name not in ("prompt", "completion", "completion_ids")]
    try:
        signature = inspect.signature(caller.reward)
    except ValueError:  # a builtin without a signature: the first call will show whether it works
        return []
    try:
        signature.bind(**dict.fromkeys(TRL_ARGUMENTS), **dict.fromkeys(columns))
    except TypeError as error:
        what = f"{error}. A trainer passes {', '.join([*TRL_ARGUMENTS, *columns])}"
        return [make_finding("breaks the contract", caller.name, what)]
    return []


def check_steadiness(runner: ProbeRunner, probes: Sequence[Probe]) -> list[Finding]:
    """Report a reward that scores the same completion differently in another batch or order."""
    if not probes:
        return []
    caller = runner.caller
    batch = runner.make_batch(probes)
    indexes = list(range(len(probes)))
    scores_alone = []
    for index in indexes:
        result = caller.call(batch.select([index]))
        if result.scores is None or caller.is_given_up:
            return []  # a failure or a slow reward, which is reported elsewhere
        scores_alone.append(result.scores[0])

    orders = [
        ("together", indexes),
        ("together again", indexes),
        ("together in reverse order", indexes[::-1]),
    ]
    for way, order in orders:
        result = caller.call(batch.select(order))
        if result.is_late:
            continue
        if result.scores is None:
            what = f"alone, each completion gets a score; {way}: {result.error!r:.200}"
            return [make_finding("unsteady", caller.name, what)]
        for index, score in zip(order, result.scores, strict=True):
            alone = scores_alone[index]
            if not _is_same_score(score, alone):
                what = f"the same completion gets {alone:.4g} alone and {score:.4g} {way}"
                return [make_finding("unsteady", caller.name, what, [probes[index].text])]
    return []


def check_execution(runner: ProbeRunner, probes: Iterable[Probe]) -> list[Finding]:
    """Try hostile probes, and report a reward that executes an answer as code."""
    executed = runner.run_one_by_one(probes)
    if executed is None:
        return []
    what = "the reward executed the answer as Python code"
    return [make_finding("runs the answer as code", runner.caller.name, what, [executed.text])]


def find_failures(runner: ProbeRunner) -> list[Finding]:
    """Report a reward that changed its inputs, hung, raised, or did not return scores."""
    findings = [*_find_changed_inputs(runner.caller), *_find_hang(runner.caller)]
    unreadable = []
    raised = []
    for probe, result in runner.failures.items():
        if result.is_late:
            continue
        if result.is_unreadable:
            unreadable.append(probe)
        else:
            raised.append(probe)
    for kind, probes in (("breaks the contract", unreadable), ("raises", raised)):
        if probes:
            shortest = min(probes, key=lambda probe: len(probe.text))
            error = runner.failures[shortest].error
            error_text = f"{type(error).__name__}: {error!s:.200}"
            what = f"{len(probes)} of {len(runner.scores)} completions failed with {error_text}"
            findings.append(make_finding(kind, runner.caller.name, what, [shortest.text]))
    return findings


def _find_changed_inputs(caller: Caller) -> list[Finding]:
    if caller.changed_input is None:
        return []
    what = "the completions or columns are different after a call"
    return [make_finding("changes its inputs", caller.name, what, [caller.changed_input])]


def _find_hang(caller: Caller) -> list[Finding]:
    if caller.smallest_late_batch is None:
        return []
    one_completion = caller.smallest_late_batch.select([0])
    limit = HANG_FACTOR * caller.seconds
    if not caller.call(one_completion, limit).is_late:
        return []
    text = completion_text(one_completion.completions[0])
    what = f"a completion of {len(text):,} characters had no score after {limit:g} s"
    return [make_finding("hangs", caller.name, what, [text])]


def _is_same_score(score: float, other: float) -> bool:
    if math.isnan(score) and math.isnan(other):
        return True
    # Sums over a batch in floating point differ in the last digits.
    return math.isclose(score, other, rel_tol=1e-3, abs_tol=1e-4)
