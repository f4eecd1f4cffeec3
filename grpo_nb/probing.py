"""What a reward makes of the probes: its role on the controls, and the findings that follow.

Every judgement is relative to the reward's own controls. "Paid" means more than half way from the best wrong answer to the
right one in the same words and format, so that length shaping and partial credit do not look like holes, and a reward that
does not look at the answer at all is not blamed for paying a wrong one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.contract import Caller, Outcome
from grpo_nb.findings import Finding
from grpo_nb.probes import Probe
from grpo_nb.reward_calls import excerpt

TELLS = "tells right from wrong"
FORM = "pays for form, whatever the answer"
OTHER = "depends neither on the answer nor on the format"
_LAYOUTS = ("", ", newline", ", one line", ", slot only")
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


@dataclass
class Results:
    """What one reward gave for every probe."""

    outcomes: list[tuple[Probe, Outcome]] = field(default_factory=list)

    def scores(self, kind: str, row: int) -> list[tuple[Probe, float]]:
        """The scored probes of a kind on a row."""
        return [(p, o.scores[0]) for p, o in self.outcomes if p.kind == kind and p.row == row and o.scores]

    def best(self, kind: str, row: int) -> float:
        """The highest score of a kind on a row; NaN if there is none."""
        known = [score for _, score in self.scores(kind, row) if not math.isnan(score)]
        return max(known, default=math.nan)

    @property
    def finite(self) -> list[float]:
        """All scores that are numbers."""
        return [o.scores[0] for _, o in self.outcomes if o.scores and math.isfinite(o.scores[0])]

    def spread(self, *, is_realistic: bool = True) -> float:
        """Highest minus lowest score, over texts of a length that a trainer samples."""
        known = [
            o.scores[0]
            for p, o in self.outcomes
            if o.scores and math.isfinite(o.scores[0]) and not (is_realistic and p.is_long)
        ]
        return max(known, default=0.0) - min(known, default=0.0)


@dataclass(frozen=True)
class Role:
    """What a reward was seen to do on the controls."""

    kind: str
    layout: str = ""
    """The layout of a completion in which it does so best."""
    rows: tuple[int, ...] = ()
    """For `TELLS`: the rows on which it does."""
    thresholds: dict[int, float] = field(default_factory=dict)
    """For `TELLS`, per row: half way between the best wrong answer and the right one."""
    tops: dict[int, float] = field(default_factory=dict)
    """For `TELLS`, per row: the score of the right answer."""
    gap: float = 0.0
    """For `TELLS`: the mean of right minus best wrong."""

    @property
    def sentence(self) -> str:
        """The role in words."""
        return self.kind


def find_role(results: Results, rows: Sequence[int]) -> Role:
    """Say what a reward does on the controls: whether right beats every wrong answer in the same words."""
    epsilon = 1e-3 * max(1e-3, results.spread())
    best = Role(OTHER)
    for layout in _LAYOUTS:
        telling, thresholds, tops, gaps = [], {}, {}, []
        for row in rows:
            right, wrong = results.best(f"right{layout}", row), results.best(f"wrong{layout}", row)
            if math.isnan(right):
                continue
            wrong = min(results.finite, default=0.0) if math.isnan(wrong) else wrong
            if right - wrong > epsilon:
                telling.append(row)
                thresholds[row], tops[row] = (right + wrong) / 2, right
                gaps.append(right - wrong)
        if len(telling) * 2 >= len(rows) and len(telling) > len(best.rows):
            best = Role(TELLS, layout, tuple(telling), thresholds, tops, sum(gaps) / len(gaps))
    if best.kind == TELLS:
        return best
    for layout in _LAYOUTS[:3]:
        if all(results.best(f"right{layout}", row) - results.best("prose", row) > epsilon for row in rows):
            score = sum(results.best(f"right{layout}", row) for row in rows)
            if best.kind != FORM or score > sum(results.best(f"right{best.layout}", row) for row in rows) + epsilon:
                best = Role(FORM, layout)
    return best


def judge(caller: Caller, results: Results, role: Role, rows: Sequence[int], golds: Sequence[str]) -> list[Finding]:
    """Return the findings of one reward on its own."""
    findings = [*_failures(caller.name, results), *_constants(caller, results, rows)]
    if role.kind == TELLS:
        findings += _refusals(caller.name, results, role, rows, golds)
        findings += _payments(caller.name, results, role, golds)
    else:
        findings += _inverted(caller.name, results, rows)
        findings += _elsewhere(caller.name, results, rows, role)
    if role.kind == FORM:
        findings += _form(caller.name, results, role, rows)
    findings += _length(caller.name, results, role)
    return findings


def is_paid(role: Role, probe: Probe, score: float) -> bool:
    """Say whether a telling reward takes this completion for right."""
    if probe.row not in role.thresholds:
        return False
    if probe.kind == "off by one":
        # Near answers may earn part of the score, where closeness means something; but not as good as all of it.
        return score > role.tops[probe.row] - 0.1 * 2 * (role.tops[probe.row] - role.thresholds[probe.row])
    return score > role.thresholds[probe.row]


def shortest(probes: Iterable[Probe]) -> str:
    """The shortest completion, shown as a literal."""
    return excerpt(min((probe.text for probe in probes), key=len))


def _failures(name: str, results: Results) -> list[Finding]:
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
    for label, test, severity in (("NaN score", math.isnan, "warning"), ("infinite score", math.isinf, "critical")):
        bad = [p for p, o in results.outcomes if o.scores and o.raw and o.raw[0] is not None and test(o.scores[0])]
        if bad:
            findings.append(
                Finding(
                    severity=severity,
                    reward=name,
                    kind=label,
                    what=f"on {len(bad)} completions ({bad[0].kind})",
                    example=shortest(bad),
                    effect="advantages of the whole group become 0 or NaN"
                    if severity == "critical"
                    else "TRL leaves the completion out of the sum, as if it had not been judged",
                    fix="return None where there is no opinion, 0.0 where nothing was earned",
                )
            )
    return findings


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


def _constants(caller: Caller, results: Results, rows: Sequence[int]) -> list[Finding]:
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


def _refusals(name: str, results: Results, role: Role, rows: Sequence[int], golds: Sequence[str]) -> list[Finding]:
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
        layout: [r for r in role.rows if results.best(f"right{layout}", r) > role.thresholds[r]] for layout in _LAYOUTS
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


def _payments(name: str, results: Results, role: Role, golds: Sequence[str]) -> list[Finding]:
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


def _inverted(name: str, results: Results, rows: Sequence[int]) -> list[Finding]:
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


def _elsewhere(name: str, results: Results, rows: Sequence[int], role: Role) -> list[Finding]:
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
    shown = [s for row in rows for layout in _LAYOUTS for _, s in results.scores(f"right{layout}", row)]
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


def _form(name: str, results: Results, role: Role, rows: Sequence[int]) -> list[Finding]:
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


def _length(name: str, results: Results, role: Role) -> list[Finding]:
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
