"""What a reward makes of form: the format of the task, other formats, damaged ones, and length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from grpo_nb.findings import Finding
from grpo_nb.probing import LAYOUTS, OTHER, Results, Role
from grpo_nb.reward_calls import excerpt


def find_other_format(name: str, results: Results, rows: Sequence[int], role: Role) -> list[Finding]:
    """A reward that does not tell right from wrong in the task's format may do so in another."""
    epsilon = 1e-3 * max(1e-3, results.spread())
    labels = list(dict.fromkeys(p.detail for p, _ in results.outcomes if p.kind == "elsewhere right"))
    telling = []
    for label in labels:

        def best(kind: str, row: int, label: str = label) -> float:
            known = [s for p, s in results.scores(f"elsewhere {kind}", row) if p.detail == label and not math.isnan(s)]
            return max(known, default=math.nan)

        if all(best("right", row) - best("wrong", row) > epsilon for row in rows):
            telling.append(label)
    if telling:
        example = next(p for p, _ in results.outcomes if p.kind == "elsewhere right" and p.detail == telling[0])
        return [
            Finding(
                severity="critical",
                reward=name,
                kind="another format",
                what=f"it sees no answer in the format of the task, but does so in: {', '.join(telling)}",
                example=excerpt(example.text),
                effect="being right is never paid in the format that the prompt asks for",
                fix="give task and reward the same format",
            )
        ]
    shown = [s for row in rows for layout in LAYOUTS for _, s in results.scores(f"right{layout}", row)]
    plain = [results.best("prose", row) for row in rows]
    plain += [results.best("elsewhere plain", row) for row in rows]
    other = [
        (s, p) for p, o in results.outcomes if p.kind in ("elsewhere right", "elsewhere wrong") for s in o.scores or ()
    ]
    by_length = [s for _, s in results.scores("length", rows[0])]
    is_flat = (
        shown
        and by_length
        and max(shown) - min([*shown, *plain]) <= epsilon
        and max(by_length) - min(by_length) <= epsilon
    )
    if is_flat and other and role.kind == OTHER:
        score, probe = max(other, key=lambda pair: pair[0])
        if score > max(shown) + epsilon:
            return [
                Finding(
                    severity="warning",
                    reward=name,
                    kind="another format",
                    example=excerpt(probe.text),
                    what="the format of the task earns nothing, another one does",
                    fix="give task and reward the same format",
                    effect="the model is drawn to a format that the prompt does not ask for, or never sees this reward",
                )
            ]
    return []


def judge_form(name: str, results: Results, role: Role, rows: Sequence[int]) -> list[Finding]:
    findings = []

    def is_formed(kind: str, row: int) -> bool:
        half = (results.best(f"right{role.layout}", row) + results.best("prose", row)) / 2
        return not results.best(kind, row) <= half

    def add(severity: str, what: str, effect: str, fix: str, kind: str, label: str = "format refused") -> None:
        example = next((excerpt(p.text) for p, _ in results.scores(kind, rows[0])), "")
        findings.append(
            Finding(severity=severity, reward=name, kind=label, what=what, effect=effect, fix=fix, example=example)
        )

    never = "the reward stays 0 for completions that do what the prompt asks"
    if not is_formed("right", rows[0]):
        if is_formed("right, newline", rows[0]):
            add(
                "warning",
                "the format is paid only with a newline at the very end, which the prompt does not ask for",
                "models stop after the last tag: the reward stays 0",
                "use \\s* at the end, or strip the completion",
                "right",
            )
        else:
            add(
                "critical",
                "the layout that the prompt shows, with line breaks, is refused; the same on one line is paid",
                never,
                "add re.DOTALL, and \\s* between the tags",
                "right",
            )
    elif not is_formed("right, newline", rows[0]):
        add(
            "warning",
            "a newline after the last tag loses it all",
            "the score depends on how a model stops",
            "use \\s* at the end, or strip the completion",
            "right, newline",
        )
    lines = f"lines{role.layout}"
    if not is_formed(lines, rows[0]):
        add(
            "critical", "reasoning over several lines is refused; on one line it is paid", never, "add re.DOTALL", lines
        )
    top = results.best(f"right{role.layout}", rows[0])
    # Only what earns as much as the real thing: partial credit is what such a reward is for.
    lax = [
        kind
        for kind in ("unclosed", "tags in prose", "tags only", "repeated", "trailing text")
        if results.best(kind, rows[0]) >= top - 1e-9
    ]
    if lax:
        add(
            "note",
            f"in full for damaged formats too: {', '.join(lax)}",
            "none where another reward asks for more",
            "match the whole completion, each tag once, if you want it strict",
            lax[0],
            "lenient",
        )
    return findings


def judge_length(name: str, results: Results, role: Role) -> list[Finding]:
    series = [(int(p.detail), o.scores[0]) for p, o in results.outcomes if p.kind == "length" and o.scores]
    scores = [score for _, score in sorted(series)]
    if len(scores) < 4 or any(math.isnan(score) for score in scores):
        return []
    steps = [b - a for a, b in itertools.pairwise(scores)]
    rises = scores[-1] - scores[0]
    if all(step > 0 for step in steps) and steps[-1] > 0.2 * rises and rises > 1e-3:
        return [
            Finding(
                severity="note",
                reward=name,
                kind="grows with length",
                what=f"at equal content, {series[0][0]} to {series[-1][0]} words raise it {scores[0]:.3g} to {scores[-1]:.3g}, "
                "without end",
                effect="completions grow up to max_completion_length",
                fix="a target or a maximum instead",
            )
        ]
    return []
