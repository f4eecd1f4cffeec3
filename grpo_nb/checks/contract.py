"""Check that a reward keeps TRL's contract.

It must accept TRL's arguments, give the same completion the same score, leave its inputs unchanged,
and return scores for any text, in time, without executing it.
"""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grpo_nb.checks.calling import Caller, ProbeRunner
from grpo_nb.checks.findings import Finding, make_finding
from grpo_nb.checks.probes import Probe
from grpo_nb.rewards.base import completion_text, is_relative
from grpo_nb.scoring.calls import Batch

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


@dataclass(frozen=True)
class Steadiness:
    """Result of calling a reward again with the same completions."""

    finding: Finding | None = None
    probes: Sequence[Probe] = ()
    """Completions that were called again."""
    is_sound_alone: bool = True
    """False if not even a completion in a call of its own always gets the same score."""

    @property
    def is_group_dependent(self) -> bool:
        """True if the scores depend on the other completions of the call, and on nothing else."""
        return self.finding is not None and self.finding.kind == "depends on its group"


def check_steadiness(runner: ProbeRunner, probes: Sequence[Probe]) -> Steadiness:
    """Compare the first scores of some completions with those of later calls.

    They are called one by one twice, together twice, and together in reverse order. If the reward
    is marked with `gn.rewards.relative`, only equal calls are compared.
    """
    if not probes:
        return Steadiness()
    caller = runner.caller
    ranks_group = is_relative(caller.reward)
    batch = runner.make_batch(probes)
    indexes = list(range(len(probes)))
    first = [runner.scores[probe] for probe in probes]
    alone = _score_one_by_one(caller, batch)
    if alone is None:
        return Steadiness(probes=probes)  # a failure or a slow reward, which is reported elsewhere

    together: list[list[float]] = []
    for order in (indexes, indexes, indexes[::-1]):
        result = caller.call(batch.select(order))
        if result.is_late or caller.is_given_up:
            return Steadiness(probes=probes)
        if result.scores is None:
            what = f"alone, each completion gets a score; together: {result.error!r:.200}"
            finding = make_finding("unsteady", caller.name, what, [probes[0].text])
            return Steadiness(finding, probes)
        by_place = dict(zip(order, result.scores, strict=True))
        together.append([by_place[i] for i in indexes])
    alone_again = _score_one_by_one(caller, batch) or alone

    same_call, again, in_reverse = together
    comparisons = [
        Comparison("the same call", same_call, again, is_sound_alone=not ranks_group),
        Comparison("the same call in reverse order", same_call, in_reverse),
    ]
    if not ranks_group:
        # In a call of its own, a reward that ranks completions has nothing to rank.
        comparisons = [
            Comparison("a call of its own", alone, alone_again, is_sound_alone=False),
            *comparisons,
            Comparison("a call with others", alone, same_call, kind="depends on its group"),
            Comparison("a later call", first, alone_again),
        ]
    for comparison in comparisons:
        place = _first_difference(comparison.before, comparison.after)
        if place is not None:
            what = (
                f"the same completion gets {comparison.before[place]:.4g} at first, and "
                f"{comparison.after[place]:.4g} in {comparison.name}"
            )
            finding = make_finding(comparison.kind, caller.name, what, [probes[place].text])
            return Steadiness(finding, probes, comparison.is_sound_alone)
    return Steadiness(probes=probes)


class Comparison(NamedTuple):
    """Scores of the same completions in two calls."""

    name: str
    """The second call, as findings name it."""
    before: Sequence[float]
    after: Sequence[float]
    is_sound_alone: bool = True
    """False if a difference shows that not even scores of single completions mean anything."""
    kind: str = "unsteady"
    """Finding to report if the scores differ."""


def check_state(runner: ProbeRunner, probes: Sequence[Probe]) -> list[Finding]:
    """Compare the first scores of some completions with those after all other calls."""
    caller = runner.caller
    for probe in probes:
        result = caller.call(runner.make_batch([probe, *runner.context.get(probe.row, [])]))
        if result.scores is None or _is_same_score(result.scores[0], runner.scores[probe]):
            continue
        what = (
            f"the same completion gets {runner.scores[probe]:.4g} at first, and "
            f"{result.scores[0]:.4g} after {caller.completions} completions: the reward keeps state"
        )
        return [make_finding("unsteady", caller.name, what, [probe.text])]
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
        scores.append(result.scores[0])
    return scores


def _first_difference(scores: Sequence[float], others: Sequence[float]) -> int | None:
    """Return the first place at which two lists of scores differ."""
    for place, (score, other) in enumerate(zip(scores, others, strict=True)):
        if not _is_same_score(score, other):
            return place
    return None


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
    tried = len(runner.scores) + len(runner.failures)
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
            what = f"{len(probes)} of {tried} completions failed with {error_text}"
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
