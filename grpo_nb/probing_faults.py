"""What is wrong with a reward whatever its role: errors, scores that are no numbers, constants, time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grpo_nb.contract import Caller, Outcome
from grpo_nb.findings import Finding, find_non_numbers
from grpo_nb.probes import Probe
from grpo_nb.probing import Results, shortest
from grpo_nb.reward_calls import excerpt


def find_failures(name: str, results: Results) -> list[Finding]:
    """Each kind of error with its shortest completion, and the scores that are no numbers."""
    findings: list[Finding] = []
    errors: dict[str, list[tuple[Probe, Outcome]]] = {}
    for probe, outcome in results.outcomes:
        if outcome.error is not None and not outcome.is_late:
            errors.setdefault(type(outcome.error).__name__, []).append((probe, outcome))
    for kind, seen in errors.items():
        ordinary = [pair for pair in seen if not pair[0].is_long and pair[0].kind != "lone surrogate"]
        probe, outcome = min(ordinary or seen, key=lambda pair: len(pair[0].text))
        findings.append(
            Finding(
                severity="critical" if ordinary else "note",
                reward=name,
                kind="raises",
                what=f"{kind} on {len(seen)} of {len(results.outcomes)} completions ({probe.kind}): "
                f"{str(outcome.error)[:200]}",
                example=excerpt(probe.text),
                effect="one such completion stops the training"
                if ordinary
                else "none in training: no model writes this",
                fix="catch what your parsing can raise, by name, and return 0.0",
            )
        )
    scored = [(probe, outcome) for probe, outcome in results.outcomes if outcome.scores and outcome.raw]
    numbers = [(outcome.scores[0], outcome.raw[0]) for _, outcome in scored]
    return findings + find_non_numbers(name, numbers, [probe.text for probe, _ in scored], " of the probes")


def check_time(caller: Caller, results: Results, batch_of: Any) -> list[Finding]:
    """Look at the time of the hostile completions; what was stopped gets a second, longer chance to end."""
    late = [probe for probe, outcome in results.outcomes if outcome.is_late]
    short = [probe for probe in late if not probe.is_long]
    if short:
        probe = min(short, key=lambda p: len(p.text))
        again = caller.call(batch_of([probe]), seconds=4 * caller.seconds)
        ended = not again.is_late
        said = f"took {again.seconds:.1f} s" if ended else f"had not ended after {4 * caller.seconds:g} s"
        return [
            Finding(
                severity="warning" if ended else "critical",
                reward=caller.name,
                kind="slow on hostile text" if ended else "hangs",
                what=f"one completion of {len(probe.text):,} characters ({probe.kind}) {said}",
                example=excerpt(probe.text),
                effect="one such completion stops the training, or makes every step that has one as slow",
                fix="nested repeats such as (a+)+ or (.*)* in a regular expression? Bound them, or limit the time of a parser",
            )
        ]
    timed = [(o.seconds, p) for p, o in results.outcomes if o.scores and not p.is_long]
    seconds, probe = max(timed, key=lambda pair: pair[0], default=(0.0, None))
    if probe is not None and seconds > 0.5 * caller.seconds:
        return [
            Finding(
                severity="warning",
                reward=caller.name,
                kind="slow on hostile text",
                what=f"one completion of {len(probe.text):,} characters ({probe.kind}) took {seconds:.1f} s",
                example=excerpt(probe.text),
                effect="every step that has one is as slow",
                fix="limit its time",
            )
        ]
    if late:
        return [
            Finding(
                severity="note",
                reward=caller.name,
                kind="slow on very long text",
                what=f"{len(late[0].text):,} characters ({late[0].kind}) take more than {caller.seconds:g} s, 4,000 do not",
                effect="none while completions are cut at max_completion_length",
                fix="nothing, or a length limit at its start",
            )
        ]
    return []


def find_constants(caller: Caller, results: Results, rows: Sequence[int]) -> list[Finding]:
    """Scores that are missing, all the same, or outside what the reward declares."""
    scored = [o.scores[0] for _, o in results.outcomes if o.scores]
    if scored and all(math.isnan(score) for score in scored):
        return [
            Finding(
                severity="critical",
                reward=caller.name,
                kind="no score",
                what=f"no score for any of {len(scored)} completions",
                effect="it never counts",
                fix="look at what makes it return None: mostly a column it cannot read",
            )
        ]
    known = results.finite
    findings = []
    if len(known) > 1 and max(known) == min(known):
        findings.append(
            Finding(
                severity="warning",
                reward=caller.name,
                kind="constant",
                what=f"{known[0]:g} for every one of {len(known)} completions, right, wrong and nonsense",
                effect="no influence on any advantage: it is dead weight, or it looks for what your data never has",
                fix="try it on one completion that it must pay, in the exact form of your prompt",
            )
        )
    declared = getattr(caller.reward, "range", None)
    if isinstance(declared, tuple) and len(declared) == 2 and known:
        low, high = declared
        outside = [
            p
            for p, o in results.outcomes
            if o.scores and not math.isnan(o.scores[0]) and not low - 1e-6 <= o.scores[0] <= high + 1e-6
        ]
        if outside:
            findings.append(
                Finding(
                    severity="warning",
                    reward=caller.name,
                    kind="outside its range",
                    example=shortest(outside),
                    what=f"scores from {min(known):g} to {max(known):g}, though it says {low:g} to {high:g}",
                    effect="weights chosen by its range are wrong",
                    fix="correct the range, or the score",
                )
            )
    unscored = [row for row in rows if results.scores("right", row) and math.isnan(results.best("right", row))]
    if unscored and len(unscored) < len(rows):
        findings.append(
            Finding(
                severity="note",
                reward=caller.name,
                kind="rows without score",
                example="",
                what=f"None for the right answer on {len(unscored)} of {len(rows)} rows",
                effect="these rows are not judged by it",
                fix="look at the gold answers of these rows",
            )
        )
    return findings
