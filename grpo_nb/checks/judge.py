"""What one reward refuses, pays and cannot bear, judged by its own controls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from grpo_nb.checks.catalogue import Finding, found
from grpo_nb.checks.contract import Caller, Outcome
from grpo_nb.checks.probes import REFUSED, Probe
from grpo_nb.checks.roles import FORM, LAYOUTS, OTHER, TELLS, Results, Role, is_paid
from grpo_nb.rewards import Batch

# What must not be paid, by family of probes.
PAID = {
    "several answers": "an answer slot with more than one answer is paid like the right answer",
    "contains the answer": "a wrong answer that contains the right one is paid",
    "answer outside the slot": "the right answer is paid where it is only mentioned, while the slot holds a wrong one",
    "retracted": "a right answer is paid though a second, wrong one follows",
    "paid for nothing": "a completion without any answer is paid like the right one",
    "judge persuaded": "a note that tells the judge to give full marks is paid",
    "length pays": "a wrong answer after many words is paid like the right one",
    "near miss": "an answer that is off by one is paid",
}
# How the right answer was given, by the control or the kind of probe.
_REFUSALS = {
    "right": "in the layout that the prompt shows",
    "right, newline": "with a newline at the end",
    "right, one line": "without line breaks between the tags",
    "lines": "with reasoning over several lines",
    "unicode": "with letters beyond ASCII in the reasoning",
    "other number": "with another number in the reasoning",
    "gold in reasoning": "with the answer in the reasoning too",
    "white space": "with spaces around the answer",
    "number form": "in another form of the same number",
}


def judge(caller: Caller, results: Results, role: Role, golds: Sequence[str]) -> list[Finding]:
    """Return the findings of one reward on its own, but for those of time.

    Args:
        caller: Of the reward.
        results: What it gave for every probe.
        role: What it was seen to do on the controls.
        golds: The gold answer of each row.
    """
    name, rows = caller.name, range(len(golds))
    findings = [*_find_failures(name, results), *_find_constants(caller, results, rows)]
    if role.kind == TELLS:
        findings += [*_find_refusals(name, results, role, golds), *_find_payments(name, results, role, golds)]
    else:
        findings += [*_find_inversion(name, results, rows), *_find_other_format(name, results, rows, role)]
    if role.kind == FORM:
        findings += _judge_form(name, results, role)
    return findings + _judge_length(name, results)


def _find_failures(name: str, results: Results) -> list[Finding]:
    """Each kind of error with its shortest completion, and the scores that are no numbers."""
    findings: list[Finding] = []
    errors: dict[str, list[tuple[Probe, Outcome]]] = {}
    for probe, outcome in results.outcomes.items():
        if outcome.error is not None and not outcome.is_late:
            errors.setdefault(type(outcome.error).__name__, []).append((probe, outcome))
    for kind, seen in errors.items():
        ordinary = [pair for pair in seen if not pair[0].is_long and pair[0].kind != "lone surrogate"]
        probe, outcome = min(ordinary or seen, key=lambda pair: len(pair[0].text))
        what = (
            f"{kind} on {len(seen)} of {len(results.outcomes)} completions ({probe.kind}): {str(outcome.error)[:200]}"
        )
        findings.append(found("raises" if ordinary else "raises (never in training)", name, what, [probe.text]))
    for kind, is_such in (("NaN score", math.isnan), ("infinite score", math.isinf)):
        # A None is no opinion, and nothing to report.
        bad = [p.text for p, score in results.scored if is_such(score) and results.outcomes[p].raw[0] is not None]
        if bad:
            what = f"on {len(bad)} of {len(results.scored)} completions of the probes"
            findings.append(found(kind, name, what, bad))
    return findings


def check_time(caller: Caller, results: Results, batch_of: Callable[[Sequence[Probe]], Batch]) -> list[Finding]:
    """Look at the time of the hostile completions; what was stopped gets a second, longer chance to end."""
    late = [probe for probe, outcome in results.outcomes.items() if outcome.is_late]
    if short := [probe for probe in late if not probe.is_long]:
        probe = min(short, key=lambda p: len(p.text))
        again = caller.call(batch_of([probe]), seconds=4 * caller.seconds)
        said = f"had not ended after {4 * caller.seconds:g} s" if again.is_late else f"took {again.seconds:.1f} s"
        what = f"one completion of {len(probe.text):,} characters ({probe.kind}) {said}"
        kind = "hangs" if again.is_late else "slow on hostile text (stopped)"
        return [found(kind, caller.name, what, [probe.text])]
    seconds, probe = max(results.seconds, key=lambda pair: pair[0], default=(0.0, None))
    if probe is not None and seconds > 0.5 * caller.seconds:
        what = f"one completion of {len(probe.text):,} characters ({probe.kind}) took {seconds:.1f} s"
        return [found("slow on hostile text", caller.name, what, [probe.text])]
    if late:
        of = f"{len(late[0].text):,} characters ({late[0].kind})"
        return [found("slow on very long text", caller.name, f"{of} take more than {caller.seconds:g} s, 4,000 do not")]
    return []


def _find_constants(caller: Caller, results: Results, rows: Sequence[int]) -> list[Finding]:
    """Scores that are missing, all the same, or outside what the reward declares."""
    name, findings, known, scored = caller.name, [], results.finite(), results.scored
    if scored and all(math.isnan(score) for _, score in scored):
        return [found("no score", name, f"no score for any of {len(scored)} completions")]
    if len(known) > 1 and max(known) == min(known):
        what = f"{known[0]:g} for every one of {len(known)} completions, right, wrong and nonsense"
        findings.append(found("constant", name, what))
    declared = getattr(caller.reward, "range", None)
    if isinstance(declared, tuple) and len(declared) == 2 and known:
        low, high = declared
        outside = [p.text for p, s in scored if not math.isnan(s) and not low - 1e-6 <= s <= high + 1e-6]
        if outside:
            what = f"scores from {min(known):g} to {max(known):g}, though it says {low:g} to {high:g}"
            findings.append(found("outside its range", name, what, outside))
    unscored = [row for row in rows if results.scores("right", row) and math.isnan(results.best("right", row))]
    if unscored and len(unscored) < len(rows):
        what = f"None for the right answer on {len(unscored)} of {len(rows)} rows"
        findings.append(found("rows without score", name, what))
    return findings


def _find_refusals(name: str, results: Results, role: Role, golds: Sequence[str]) -> list[Finding]:
    findings = []
    own, rows = f"right{role.layout}", range(len(golds))
    refused = [row for row in rows if row not in role.pairs and not math.isnan(results.best(own, row))]
    if refused:
        what = f"on {len(refused)} of {len(rows)} rows gold gets no more than a wrong one ({golds[refused[0]]!r})"
        findings.append(found(REFUSED, name, what, results.texts(own, refused[0])[:1]))
    told = {
        layout: any(results.best(f"right{layout}", row) > sum(role.pairs[row]) / 2 for row in role.pairs)
        for layout in LAYOUTS
    }
    for kind, how in _REFUSALS.items():
        key, what = f"{REFUSED} ({kind})", f"the right answer is refused {how}"
        if kind.startswith("right"):
            layout = kind.removeprefix("right")
            if role.layout != layout and not told[layout]:
                findings.append(found(key, name, what, results.texts(kind, min(role.pairs))[:1]))
            continue
        probed = f"lines{role.layout}" if kind == "lines" else kind
        pairs = [pair for row in role.pairs for pair in results.scores(probed, row)]
        lost = [probe.text for probe, score in pairs if not is_paid(role, probe, score)]
        # The layout itself may be what is refused, and that has been said above.
        if lost and (told[""] or probed != kind):
            findings.append(found(key, name, f"{what} ({len(lost)} of {len(pairs)} tries)", lost))
    return findings


def _find_payments(name: str, results: Results, role: Role, golds: Sequence[str]) -> list[Finding]:
    findings = []
    for family, what in PAID.items():
        pairs = [(p, score) for p, score in results.scored if p.family == family and p.row in role.pairs]
        paid = [probe for probe, score in pairs if is_paid(role, probe, score)]
        if not paid:
            continue
        seen, milder = {probe.kind for probe in paid}, {}
        if family == "several answers":
            # A reward that reads the first or the last of several answers is lax, but a guess still has to be right there.
            is_open = "every candidate" in seen or any({k, f"{k}, gold first"} <= seen for k in ("hedge", "equation"))
            milder = {} if is_open else {"severity": "warning"}
        elif family == "retracted" or seen == {"gold after wrong slot"}:
            milder = {"severity": "warning"}
        elif family == "near miss" and all(len(golds[probe.row]) > 2 for probe in paid):
            milder = {"severity": "note"}
        if milder:
            milder["effect"] = "a habit that is paid"
        what = f"{what} ({', '.join(sorted(seen))}; {len(paid)} of {len(pairs)} tries)"
        findings.append(found(family, name, what, [probe.text for probe in paid], **milder))
    return findings


def _find_inversion(name: str, results: Results, rows: Sequence[int]) -> list[Finding]:
    for row in rows:
        wrong = [score for _, score in results.scores("wrong", row)]
        if not wrong or not results.best("right", row) < min(wrong) - results.epsilon:
            return []
    what = f"the right answer gets less than every wrong one on {len(rows)} rows"
    return [found("upside down", name, what, results.texts("right", rows[0])[:1])] if len(rows) > 1 else []


def _find_other_format(name: str, results: Results, rows: Sequence[int], role: Role) -> list[Finding]:
    """A reward that does not tell right from wrong in the task's format may do so in another."""
    epsilon = results.epsilon
    elsewhere = [pair for pair in results.scored if pair[0].kind in ("elsewhere right", "elsewhere wrong")]

    def best(kind: str, label: str, row: int) -> float:
        scores = [s for p, s in elsewhere if (p.kind, p.detail, p.row) == (f"elsewhere {kind}", label, row)]
        return max((score for score in scores if not math.isnan(score)), default=math.nan)

    labels = list(dict.fromkeys(probe.detail for probe, _ in elsewhere))
    telling = [
        label for label in labels if all(best("right", label, r) - best("wrong", label, r) > epsilon for r in rows)
    ]
    if telling:
        what = f"it sees no answer in the format of the task, but does so in: {', '.join(telling)}"
        first = next(probe.text for probe, _ in elsewhere if probe.detail == telling[0])
        return [found("another format", name, what, [first])]
    shown = [s for row in rows for layout in LAYOUTS for _, s in results.scores(f"right{layout}", row)]
    plain = [results.best(kind, row) for kind in ("prose", "elsewhere plain") for row in rows]
    by_length = [score for _, score in results.scores("length", rows[0])]
    if role.kind != OTHER or not shown or not by_length:
        return []
    is_flat = max(shown) - min([*shown, *plain]) <= epsilon and max(by_length) - min(by_length) <= epsilon
    score, probe = max(((s, p) for p, s in elsewhere if not math.isnan(s)), key=lambda pair: pair[0], default=(0, None))
    if not is_flat or probe is None or not score > max(shown) + epsilon:
        return []
    what = "the format of the task earns nothing, another one does"
    return [found("another format (form)", name, what, [probe.text])]


def _judge_form(name: str, results: Results, role: Role) -> list[Finding]:
    findings = []
    top, lines = results.best(f"right{role.layout}", 0), f"lines{role.layout}"
    half = (top + results.best("prose", 0)) / 2
    is_formed = {kind: not results.best(kind, 0) <= half for kind in ("right", "right, newline", lines)}

    def add(key: str, what: str, tried: str) -> None:
        findings.append(found(key, name, what, results.texts(tried, 0)[:1]))

    if not is_formed["right"] and is_formed["right, newline"]:
        what = "the format is paid only with a newline at the very end, which the prompt does not ask for"
        add("format refused (newline wanted)", what, "right")
    elif not is_formed["right"]:
        what = "the layout that the prompt shows, with line breaks, is refused; the same on one line is paid"
        add("format refused (layout)", what, "right")
    elif not is_formed["right, newline"]:
        add("format refused (newline)", "a newline after the last tag loses it all", "right, newline")
    if not is_formed[lines]:
        add("format refused (lines)", "reasoning over several lines is refused; on one line it is paid", lines)
    # Only what earns as much as the real thing: partial credit is what such a reward is for.
    damaged = ("unclosed", "tags in prose", "tags only", "repeated", "trailing text")
    if lax := [kind for kind in damaged if results.best(kind, 0) >= top - 1e-9]:
        add("lenient", f"in full for damaged formats too: {', '.join(lax)}", lax[0])
    return findings


def _judge_length(name: str, results: Results) -> list[Finding]:
    series = sorted((int(probe.detail), score) for probe, score in results.scores("length", 0))
    scores = [score for _, score in series]
    if len(scores) < 4 or any(math.isnan(score) for score in scores):
        return []
    steps, rise = [b - a for a, b in itertools.pairwise(scores)], scores[-1] - scores[0]
    if not (all(step > 0 for step in steps) and steps[-1] > 0.2 * rise and rise > 1e-3):
        return []
    of, raised = f"{series[0][0]} to {series[-1][0]} words", f"{scores[0]:.3g} to {scores[-1]:.3g}"
    return [found("grows with length", name, f"at equal content, {of} raise it {raised}, without end")]
