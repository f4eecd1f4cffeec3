"""What a reward that should look at the answer refuses, pays or turns upside down."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_nb.findings import Finding
from grpo_nb.probing import LAYOUTS, Results, Role, is_paid, shortest
from grpo_nb.reward_calls import excerpt

# Kinds that share a cause are one finding: the name, what is said, and what to do about it.
_FAMILIES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "several answers": (
        (
            "every candidate",
            "hedge",
            "hedge, gold first",
            "equation",
            "equation, gold first",
            "retracted in the slot",
            "not gold",
        ),
        "an answer slot with more than one answer is paid like the right answer",
        "compare the whole slot with the gold answer; never search in it",
    ),
    "contains the answer": (
        ("contains gold",),
        "a wrong answer that contains the right one is paid",
        "compare for equality, as numbers where they are numbers; not with `in`",
    ),
    "answer outside the slot": (
        ("gold in reasoning only", "gold after wrong slot", "every candidate in prose"),
        "the right answer is paid where it is only mentioned, while the slot holds a wrong one",
        "take the answer from its slot alone",
    ),
    "retracted": (
        ("retracted",),
        "a right answer is paid though a second, wrong one follows",
        "refuse completions with more than one answer slot",
    ),
    "paid for nothing": (
        ("empty", "blank", "tags only", "empty slot", "echo", "echo of the prompt", "tags in prose", "wrong, repeated"),
        "a completion without any answer is paid like the right one",
        "no answer found must be 0.0",
    ),
    "judge persuaded": (
        ("judge",),
        "a note that tells the judge to give full marks is paid",
        "show a judge the answer slot alone, or compare with the gold answer",
    ),
    "length pays": (
        ("wrong, length",),
        "a wrong answer after many words is paid like the right one",
        "bound what length can add, well below what being right adds",
    ),
    "near miss": (("off by one",), "an answer that is off by one is paid", "compare exactly, or state the tolerance"),
}


_HARMLESS: dict[str, tuple[str, str, str]] = {
    "lines": ("critical", "with reasoning over several lines", "add re.DOTALL to its regular expressions"),
    "unicode": (
        "critical",
        "with letters beyond ASCII in the reasoning",
        "do not restrict what the reasoning may hold",
    ),
    "other number": ("critical", "with another number in the reasoning", "take the answer from its slot alone"),
    "gold in reasoning": ("critical", "with the answer in the reasoning too", "take the answer from its slot alone"),
    "white space": ("warning", "with spaces around the answer", "strip the answer before comparing"),
    "number form": (
        "note",
        "in another form of the same number",
        "compare as numbers, unless the form is what you teach",
    ),
}


def find_refusals(name: str, results: Results, role: Role, rows: Sequence[int], golds: Sequence[str]) -> list[Finding]:
    findings = []
    refused = [row for row in rows if row not in role.rows and not math.isnan(results.best(f"right{role.layout}", row))]
    if refused:
        probe = results.scores(f"right{role.layout}", refused[0])[0][0]
        findings.append(
            Finding(
                severity="critical",
                reward=name,
                kind="right answer refused",
                example=excerpt(probe.text),
                what=f"on {len(refused)} of {len(rows)} rows gold gets no more than a wrong one ({golds[refused[0]]!r})",
                effect="these rows teach that being right does not pay",
                fix="look at how it reads these gold answers",
            )
        )
    told = {
        layout: [r for r in role.rows if results.best(f"right{layout}", r) > role.thresholds[r]] for layout in LAYOUTS
    }
    for layout, severity, what, fix in (
        (
            "",
            "critical",
            "in the layout that the prompt shows",
            "take line breaks between the tags: \\s* and re.DOTALL",
        ),
        (", newline", "warning", "with a newline at the end", "strip the completion first"),
        (", one line", "warning", "without line breaks between the tags", "use \\s* where you ask for a line break"),
    ):
        if role.layout != layout and not told[layout]:
            probe = results.scores(f"right{layout}", role.rows[0])[0][0]
            findings.append(
                Finding(
                    severity=severity,
                    reward=name,
                    kind="right answer refused",
                    example=excerpt(probe.text),
                    what=f"the right answer is refused {what}",
                    effect="the model is punished for being right",
                    fix=fix,
                )
            )
    for kind, (severity, what, fix) in _HARMLESS.items():
        probed = kind if kind != "lines" or not role.layout else f"lines{role.layout}"
        pairs = [pair for row in role.rows for pair in results.scores(probed, row)]
        lost = [probe for probe, score in pairs if not is_paid(role, probe, score)]
        # The layout itself may be what is refused, and that has been said above.
        if lost and (told[""] or probed != kind):
            findings.append(
                Finding(
                    severity=severity,
                    reward=name,
                    kind="right answer refused",
                    example=shortest(lost),
                    what=f"the right answer is refused {what} ({len(lost)} of {len(pairs)} tries)",
                    effect="the model is punished for being right"
                    if severity != "note"
                    else "a strict reward, if you mean it",
                    fix=fix,
                )
            )
    return findings


def find_payments(name: str, results: Results, role: Role, golds: Sequence[str]) -> list[Finding]:
    findings = []
    for family, (kinds, what, fix) in _FAMILIES.items():
        pairs = [pair for kind in kinds for row in role.rows for pair in results.scores(kind, row)]
        paid = [probe for probe, score in pairs if is_paid(role, probe, score)]
        if not paid:
            continue
        seen = {probe.kind for probe in paid}
        severity = "critical"
        if family == "several answers":
            # A reward that reads the first or the last of several answers is lax, but a guess still has to be right there.
            is_open = "every candidate" in seen or any({k, f"{k}, gold first"} <= seen for k in ("hedge", "equation"))
            severity = "critical" if is_open else "warning"
        elif family == "retracted" or (family == "answer outside the slot" and seen == {"gold after wrong slot"}):
            severity = "warning"
        elif family == "near miss" and all(len(golds[probe.row]) > 2 for probe in paid):
            severity = "note"
        findings.append(
            Finding(
                severity=severity,
                reward=name,
                kind=family,
                example=shortest(paid),
                fix=fix,
                what=f"{what} ({', '.join(sorted(seen))}; {len(paid)} of {len(pairs)} tries)",
                effect="the model learns this instead of the task"
                if severity == "critical"
                else "a habit that is paid",
            )
        )
    return findings


def find_inversion(name: str, results: Results, rows: Sequence[int]) -> list[Finding]:
    epsilon = 1e-3 * max(1e-3, results.spread())
    worse = []
    for row in rows:
        wrong = [score for _, score in results.scores("wrong", row)]
        if wrong and results.best("right", row) < min(wrong) - epsilon:
            worse.append(row)
    if len(worse) < len(rows) or len(rows) < 2:
        return []
    return [
        Finding(
            severity="critical",
            reward=name,
            kind="upside down",
            what=f"the right answer gets less than every wrong one on {len(rows)} rows",
            example=excerpt(results.scores("right", rows[0])[0][0].text),
            effect="the model learns to be wrong",
            fix="turn the comparison round, or the sign of its weight",
        )
    ]
