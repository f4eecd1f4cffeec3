"""What one reward refuses, pays and cannot bear, judged by its own controls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from grpo_nb.checks.catalogue import Finding, found
from grpo_nb.checks.contract import Caller
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


def judge(caller: Caller, results: Results, role: Role, golds: Sequence[str]) -> Iterator[Finding]:
    """Find what is wrong with one reward on its own, but for its time.

    Args:
        caller: Of the reward.
        results: What it gave for every probe.
        role: What it was seen to do on the controls.
        golds: The gold answer of each row.
    """
    name, rows = caller.name, range(len(golds))
    yield from _find_failures(name, results)
    yield from _find_constants(caller, results, rows)
    if role.kind == TELLS:
        yield from _find_refusals(name, results, role, golds)
        yield from _find_payments(name, results, role, golds)
    else:
        yield from _find_inversion(name, results, rows)
        yield from _find_other_format(name, results, rows, role)
    if role.kind == FORM:
        yield from _judge_form(name, results, role)
    yield from _judge_length(name, results)


def _find_failures(name: str, results: Results) -> Iterator[Finding]:
    """Each kind of error with its shortest completion, and the scores that are no numbers."""
    errors: dict[str, list[Probe]] = {}
    for probe, outcome in results.outcomes.items():
        if outcome.error is not None and not outcome.is_late:
            errors.setdefault(type(outcome.error).__name__, []).append(probe)
    for kind, probes in errors.items():
        ordinary = [probe for probe in probes if not probe.is_long and probe.kind != "lone surrogate"]
        probe = min(ordinary or probes, key=lambda p: len(p.text))
        count = f"{len(probes)} of {len(results.outcomes)} completions ({probe.kind})"
        what = f"{kind} on {count}: {str(results.outcomes[probe].error)[:200]}"
        yield found("raises" if ordinary else "raises (never in training)", name, what, [probe.text])
    for kind, is_such in (("NaN score", math.isnan), ("infinite score", math.isinf)):
        # A None is no opinion, and nothing to report.
        bad = [p.text for p, score in results.scored if is_such(score) and results.outcomes[p].raw[0] is not None]
        if bad:
            yield found(kind, name, f"on {len(bad)} of {len(results.scored)} completions of the probes", bad)


def check_time(caller: Caller, results: Results, batch_of: Callable[[Sequence[Probe]], Batch]) -> Iterator[Finding]:
    """Look at the time of the hostile completions; what was stopped gets a second, longer chance to end."""
    late = [probe for probe, outcome in results.outcomes.items() if outcome.is_late]
    seconds, slowest = max(results.seconds, key=lambda pair: pair[0], default=(0.0, None))
    if short := [probe for probe in late if not probe.is_long]:
        probe = min(short, key=lambda p: len(p.text))
        again = caller.call(batch_of([probe]), seconds=4 * caller.seconds)
        said = f"had not ended after {4 * caller.seconds:g} s" if again.is_late else f"took {again.seconds:.1f} s"
        kind = "hangs" if again.is_late else "slow on hostile text (stopped)"
        yield found(kind, caller.name, f"one completion of {_described(probe)} {said}", [probe.text])
    elif slowest is not None and seconds > 0.5 * caller.seconds:
        what = f"one completion of {_described(slowest)} took {seconds:.1f} s"
        yield found("slow on hostile text", caller.name, what, [slowest.text])
    elif late:
        what = f"{_described(late[0])} take more than {caller.seconds:g} s, 4,000 do not"
        yield found("slow on very long text", caller.name, what)


def _described(probe: Probe) -> str:
    return f"{len(probe.text):,} characters ({probe.kind})"


def _find_constants(caller: Caller, results: Results, rows: Sequence[int]) -> Iterator[Finding]:
    """Scores that are missing, all the same, or outside what the reward declares."""
    name, known, scored = caller.name, results.finite(), results.scored
    if scored and all(math.isnan(score) for _, score in scored):
        yield found("no score", name, f"no score for any of {len(scored)} completions")
        return
    if len(known) > 1 and max(known) == min(known):
        what = f"{known[0]:g} for every one of {len(known)} completions, right, wrong and nonsense"
        yield found("constant", name, what)
    declared = getattr(caller.reward, "range", None)
    if isinstance(declared, tuple) and len(declared) == 2 and known:
        low, high = declared
        outside = [p.text for p, s in scored if not math.isnan(s) and not low - 1e-6 <= s <= high + 1e-6]
        if outside:
            what = f"scores from {min(known):g} to {max(known):g}, though it says {low:g} to {high:g}"
            yield found("outside its range", name, what, outside)
    unscored = sum(bool(results.scores("right", row)) and math.isnan(results.best("right", row)) for row in rows)
    if 0 < unscored < len(rows):
        yield found("rows without score", name, f"None for the right answer on {unscored} of {len(rows)} rows")


def _find_refusals(name: str, results: Results, role: Role, golds: Sequence[str]) -> Iterator[Finding]:
    own, rows = f"right{role.layout}", range(len(golds))
    refused = [row for row in rows if row not in role.pairs and not math.isnan(results.best(own, row))]
    if refused:
        what = f"on {len(refused)} of {len(rows)} rows gold gets no more than a wrong one ({golds[refused[0]]!r})"
        yield found(REFUSED, name, what, results.example(own, refused[0]))
    told = {
        layout: any(results.best(f"right{layout}", row) > sum(role.pairs[row]) / 2 for row in role.pairs)
        for layout in LAYOUTS
    }
    for kind, how in _REFUSALS.items():
        key, what = f"{REFUSED} ({kind})", f"the right answer is refused {how}"
        if kind.startswith("right"):
            layout = kind.removeprefix("right")
            if role.layout != layout and not told[layout]:
                yield found(key, name, what, results.example(kind, min(role.pairs)))
            continue
        probed = f"lines{role.layout}" if kind == "lines" else kind
        pairs = [pair for row in role.pairs for pair in results.scores(probed, row)]
        lost = [probe.text for probe, score in pairs if not is_paid(role, probe, score)]
        # The layout itself may be what is refused, and that has been said above.
        if lost and (told[""] or probed != kind):
            yield found(key, name, f"{what} ({len(lost)} of {len(pairs)} tries)", lost)


def _find_payments(name: str, results: Results, role: Role, golds: Sequence[str]) -> Iterator[Finding]:
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
        yield found(family, name, what, [probe.text for probe in paid], **milder)


def _find_inversion(name: str, results: Results, rows: Sequence[int]) -> Iterator[Finding]:
    # Without a wrong answer that was scored, nothing is lower than it.
    lowest = {row: min((score for _, score in results.scores("wrong", row)), default=-math.inf) for row in rows}
    if len(rows) > 1 and all(results.best("right", row) < lowest[row] - results.epsilon for row in rows):
        what = f"the right answer gets less than every wrong one on {len(rows)} rows"
        yield found("upside down", name, what, results.example("right", rows[0]))


def _find_other_format(name: str, results: Results, rows: Sequence[int], role: Role) -> Iterator[Finding]:
    """A reward that does not tell right from wrong in the task's format may do so in another."""
    epsilon = results.epsilon
    elsewhere = [pair for pair in results.scored if pair[0].kind in ("elsewhere right", "elsewhere wrong")]

    def is_told(label: str, row: int) -> bool:
        right, wrong = (results.best(f"elsewhere {kind}", row, label) for kind in ("right", "wrong"))
        return right - wrong > epsilon

    labels = dict.fromkeys(probe.detail for probe, _ in elsewhere)
    if telling := [label for label in labels if all(is_told(label, row) for row in rows)]:
        what = f"it sees no answer in the format of the task, but does so in: {', '.join(telling)}"
        first = next(probe.text for probe, _ in elsewhere if probe.detail == telling[0])
        yield found("another format", name, what, [first])
        return
    shown = [s for row in rows for layout in LAYOUTS for _, s in results.scores(f"right{layout}", row)]
    plain = [results.best(kind, row) for kind in ("prose", "elsewhere plain") for row in rows]
    by_length = [score for _, score in results.scores("length", rows[0])]
    if role.kind != OTHER or not shown or not by_length:
        return
    is_flat = max(shown) - min([*shown, *plain]) <= epsilon and max(by_length) - min(by_length) <= epsilon
    score, probe = max(((s, p) for p, s in elsewhere if not math.isnan(s)), key=lambda pair: pair[0], default=(0, None))
    if is_flat and probe is not None and score > max(shown) + epsilon:
        what = "the format of the task earns nothing, another one does"
        yield found("another format (form)", name, what, [probe.text])


def _judge_form(name: str, results: Results, role: Role) -> Iterator[Finding]:
    top, lines = results.best(f"right{role.layout}", 0), f"lines{role.layout}"
    half = (top + results.best("prose", 0)) / 2
    is_formed = {kind: not results.best(kind, 0) <= half for kind in ("right", "right, newline", lines)}

    def seen(key: str, what: str, tried: str) -> Finding:
        return found(key, name, what, results.example(tried, 0))

    if not is_formed["right"] and is_formed["right, newline"]:
        what = "the format is paid only with a newline at the very end, which the prompt does not ask for"
        yield seen("format refused (newline wanted)", what, "right")
    elif not is_formed["right"]:
        what = "the layout that the prompt shows, with line breaks, is refused; the same on one line is paid"
        yield seen("format refused (layout)", what, "right")
    elif not is_formed["right, newline"]:
        yield seen("format refused (newline)", "a newline after the last tag loses it all", "right, newline")
    if not is_formed[lines]:
        yield seen("format refused (lines)", "reasoning over several lines is refused; on one line it is paid", lines)
    # Only what earns as much as the real thing: partial credit is what such a reward is for.
    damaged = ("unclosed", "tags in prose", "tags only", "repeated", "trailing text")
    if lax := [kind for kind in damaged if results.best(kind, 0) >= top - 1e-9]:
        yield seen("lenient", f"in full for damaged formats too: {', '.join(lax)}", lax[0])


def _judge_length(name: str, results: Results) -> Iterator[Finding]:
    series = sorted((int(probe.detail), score) for probe, score in results.scores("length", 0))
    scores = [score for _, score in series]
    if len(scores) < 4 or any(math.isnan(score) for score in scores):
        return
    steps, rise = [b - a for a, b in itertools.pairwise(scores)], scores[-1] - scores[0]
    if all(step > 0 for step in steps) and steps[-1] > 0.2 * rise and rise > 1e-3:
        of, raised = f"{series[0][0]} to {series[-1][0]} words", f"{scores[0]:.3g} to {scores[-1]:.3g}"
        yield found("grows with length", name, f"at equal content, {of} raise it {raised}, without end")
