"""Check that a reward keeps TRL's contract.

It must accept TRL's arguments, give the same completion the same score, leave its inputs unchanged,
and return scores for any text, in time, without executing it.
"""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_nb.checks.calling import Caller, ProbeRunner
from grpo_nb.checks.findings import Finding, make_finding
from grpo_nb.checks.probes import EvalTrap, Probe
from grpo_nb.rewards.base import completion_text, is_relative
from grpo_nb.scoring.scores import Batch

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

A slow parser with its own time limit ends within this time; a hung one does not.
"""


def check_signature(caller: Caller, row: Mapping[str, Any]) -> list[Finding]:
    """Report a reward that does not accept TRL's arguments and all data columns by name."""
    columns = [name for name in row if name not in ("prompt", "completion", "completion_ids")]
    arguments = dict.fromkeys([*TRL_ARGUMENTS, *columns])
    try:
        inspect.signature(caller.reward).bind(**arguments)
    except TypeError as error:
        what = f"{error}. A trainer passes {', '.join(arguments)}"
        return [make_finding("breaks the contract", caller.name, what)]
    return []


class Comparison(NamedTuple):
    """Scores of the same completions in two calls."""

    kind: str
    """Finding to report if the scores differ."""
    later_call: str
    """Name of the second call in the finding."""
    before: Sequence[float]
    after: Sequence[float]


def find_unsteadiness(runner: ProbeRunner, probes: Sequence[Probe]) -> list[Finding]:
    """Compare the first scores of some completions with those of later calls.

    They are called one by one twice, together, and together in reverse order. If the reward is
    marked with `gn.rewards.relative`, it is called with all of them only: alone, a reward that
    ranks completions has nothing to rank.
    """
    if not probes:
        return []
    caller = runner.caller
    batch = runner.make_batch(probes)
    alone = None
    if not is_relative(caller.reward):
        alone = _score_one_by_one(caller, batch)
        if alone is None:
            return []  # a failure or a slow reward, which is reported elsewhere
    together = caller.call(batch)
    in_reverse = caller.call(batch.select(range(len(probes))[::-1]))
    if together.is_late or in_reverse.is_late:
        return []
    error = together.error or in_reverse.error
    if error is not None and alone is None:
        return []  # a failure, which is reported elsewhere
    if error is not None:
        what = f"alone, each completion gets a score; together: {error!r:.200}"
        return [make_finding("unsteady", caller.name, what, [probes[0].text])]

    in_order = in_reverse.scores[::-1]
    comparisons = [
        Comparison("unsteady", "the same call in reverse order", together.scores, in_order)
    ]
    if alone is not None:
        first = [runner.scores[probe] for probe in probes]
        again = _score_one_by_one(caller, batch) or alone
        group = "depends on its group"
        comparisons = [
            Comparison("unsteady", "a call of its own", alone, again),
            *comparisons,
            Comparison(group, "a call with others", alone, together.scores),
            Comparison("unsteady", "a later call", first, alone),
        ]
    differences = (_compare(caller.name, comparison, probes) for comparison in comparisons)
    return next(filter(None, differences), [])


def find_state(runner: ProbeRunner, probes: Sequence[Probe]) -> list[Finding]:
    """Compare the first scores of some completions with those after all other calls."""
    results = [runner.call_alone(probe) for probe in probes]
    if any(result.scores is None for result in results):
        return []
    before = [runner.scores[probe] for probe in probes]
    after = [result.scores[0] for result in results]
    later_call = "the last call of this check: the reward keeps state"
    return _compare(runner.caller.name, Comparison("unsteady", later_call, before, after), probes)


def _compare(reward: str, comparison: Comparison, probes: Sequence[Probe]) -> list[Finding]:
    """Report the first completion with another score in the second call."""
    for probe, score, other in zip(probes, comparison.before, comparison.after, strict=True):
        # Sums over a batch in floating point differ in the last digits.
        is_close = math.isclose(score, other, rel_tol=1e-3, abs_tol=1e-4)
        if not is_close and not (math.isnan(score) and math.isnan(other)):
            what = (
                f"the same completion gets {score:.4g} at first, and {other:.4g} in "
                f"{comparison.later_call}"
            )
            return [make_finding(comparison.kind, reward, what, [probe.text])]
    return []


def _score_one_by_one(caller: Caller, batch: Batch) -> list[float] | None:
    """Return the scores of completions in calls of their own; None if one fails."""
    scores = []
    for index in range(len(batch)):
        if caller.is_given_up:
            return None
        result = caller.call(batch.select([index]))
        if result.scores is None:
            return None
        scores += result.scores
    return scores


def find_execution(runner: ProbeRunner, probes: Iterable[Probe]) -> list[Finding]:
    """Try hostile probes one by one, and report a reward that executes an answer as code."""
    count_before = EvalTrap.count
    executed: list[str] = []
    for probe in probes:
        runner.run([probe])
        if not executed and EvalTrap.count > count_before:
            executed = [probe.text]
    if not executed:
        return []
    what = "the reward executed the answer as Python code"
    return [make_finding("runs the answer as code", runner.caller.name, what, executed)]


def find_failures(runner: ProbeRunner) -> list[Finding]:
    """Report a reward that changed its inputs, hung, raised, or did not return scores."""
    name = runner.caller.name
    findings = _find_hang(runner.caller)
    changed = runner.caller.changed_input
    if changed is not None:
        what = "the completions or columns are different after a call"
        findings.append(make_finding("changes its inputs", name, what, [changed]))

    tried = len(runner.scores) + len(runner.failures)
    failures = [probe for probe, result in runner.failures.items() if not result.is_late]
    for kind, is_unreadable in (("breaks the contract", True), ("raises", False)):
        probes = [p for p in failures if runner.failures[p].is_unreadable == is_unreadable]
        if probes:
            shortest = min(probes, key=lambda probe: len(probe.text))
            error = runner.failures[shortest].error
            what = (
                f"{len(probes)} of {tried} completions failed with "
                f"{type(error).__name__}: {error!s:.200}"
            )
            findings.append(make_finding(kind, name, what, [shortest.text]))
    return findings


def _find_hang(caller: Caller) -> list[Finding]:
    if not caller.late_batches:
        return []
    one_completion = min(caller.late_batches, key=len).select([0])
    limit = HANG_FACTOR * caller.seconds
    if not caller.call(one_completion, limit).is_late:
        return []
    text = completion_text(one_completion.completions[0])
    what = f"a completion of {len(text):,} characters had no score after {limit:g} s"
    return [make_finding("hangs", caller.name, what, [text])]
