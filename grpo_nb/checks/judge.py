"""What one reward refuses, pays and cannot bear, judged by its own controls."""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from grpo_nb.checks.catalogue import COMPUTES, Finding, found
from grpo_nb.checks.contract import Caller
from grpo_nb.checks.failures import BatchOf, wrong_shape
from grpo_nb.checks.probes import BARE, IN_WORDS, LAYOUTS, MORE, REFUSED, Probe
from grpo_nb.checks.roles import (
    BY_DEGREES,
    FORM,
    OTHER,
    TELLS,
    WHOLE,
    Results,
    Role,
    bare_and_shown,
    gain,
    is_paid,
    share_of,
)
from grpo_nb.checks.sample import Sample
from grpo_nb.core.words import as_score, in_line
from grpo_nb.rewards.answers import gold_answers
from grpo_nb.rewards.code import code_tests

# What must not be paid, by family of probes.
PAID = {
    "several answers": "an answer slot with more than one answer is paid like the right answer",
    "contains the answer": "a wrong answer that contains the right one is paid",
    "answer outside the slot": "the right answer is paid where it is only mentioned, while the slot holds a wrong one",
    "retracted": "a right answer is paid though a second, wrong one follows",
    "paid for nothing": "a completion without any answer is paid like the right one",
    "judge persuaded": "a note that tells the judge to give full marks is paid",
    "length pays": "a wrong answer after many words is paid like the right one",
    "near miss": "an answer that is nearly right is paid like the right one",
    "other numbers": "an answer with other numbers than its row gives is paid like the right one",
    "phrase pays": "a wrong answer is paid for words that the reward looks for",
}
_DAMAGED = ("unclosed", "tags in prose", "tags only", "repeated", "trailing text")
_CHANGED = {"a letter changed", "a digit changed"}
_NUMBERS = {"off by one", "decimals"}
_PART = 0.1
"""Of what being right adds: less is not worth the trouble of learning to cheat."""
_BY_DEGREES = {"several answers", "contains the answer", "near miss"}
"""What earns a part of every reward that pays by degrees, and is told of it in other words."""
_HEDGES = ("hedge", "hedge, gold first", "equation", "equation, gold first")
_COMPUTED = {"code", "long number", "exponent", "power tower", "power tower in Python"}
"""Hostile completions that take long only where they are run or computed."""
_MAY_EARN = {"paid for nothing", "length pays", "near miss"}
# How the right answer was given, by the layout or the kind of probe.
_LAYOUTS = {
    "": "in the layout that the prompt shows",
    ", newline": "with a newline at the end",
    ", one line": "without line breaks between the tags",
}
# A strict format may want the line breaks that the prompt shows, and one that counts words notices other words.
_OF_FORM = {"", ", newline", "lines", "unicode"}
_REFUSALS = {
    "lines": "with reasoning over several lines",
    "unicode": "with letters beyond ASCII in the reasoning",
    "other number": "with another number in the reasoning",
    "gold in reasoning": "with the answer in the reasoning too",
    "white space": "with spaces around the answer",
    "number form": "in another form of the same number",
}


def judge(caller: Caller, results: Results, role: Role, sample: Sample, columns: Sequence[str]) -> Iterator[Finding]:
    """Find what is wrong with one reward on its own, but for its time.

    Args:
        caller: Of the reward.
        results: What it gave for every probe.
        role: What it was seen to do on the controls.
        sample: The rows, with their gold answers.
        columns: Those that the reward reads beside the answer.
    """
    name, rows, golds = caller.name, sample.tried, sample.golds
    if role.said == WHOLE:
        # How it pays in the format says nothing of how it will once it reads the slot.
        yield from _find_other_format(name, results, rows, role)
        return
    for column in columns:
        unlisted, lost = _find_unlisted(name, results, sample, column)
        if unlisted is None:
            continue
        yield unlisted
        # What it gives on these rows says no more of it.
        results = Results({probe: outcome for probe, outcome in results.outcomes.items() if probe.row not in lost})
        role = replace(role, pairs={row: pair for row, pair in role.pairs.items() if row not in lost})
        if not role.pairs:
            return
    if role.kind == TELLS:
        yield from _find_payments(name, results, role, golds)
        yield from _find_more_refusals(name, results, role)
        if role.said == BY_DEGREES:
            yield from _find_likeness(name, results, role)
    else:
        yield from _find_inversion(name, results, rows)
        yield from _find_other_format(name, results, rows, role)
    yield from _find_refusals(name, results, role, golds)
    yield from _judge_growth(name, results)


def _find_unlisted(name: str, results: Results, sample: Sample, column: str) -> tuple[Finding | None, set[int]]:
    """Rows whose right answer is not paid because a column of right answers does not hold it; none of lists of other things."""

    def adds(row: int, right: str, wrong: str) -> float:
        return results.best(right, row) - results.best(wrong, row)

    worth = -math.inf
    for row in sample.tried:
        beside, inside = (adds(row, f"text of a column{where}", "wrong") for where in ("", " in the slot"))
        # An answer is paid in the slot; a word that is looked for, beside a wrong answer too.
        if inside > max(results.epsilon, 2 * beside):
            worth = max(worth, inside)
    rights = {probe.row: probe for probe in results.outcomes if probe.kind in ("right", MORE[0])}
    lists = {row: held for row in rights if isinstance(held := sample.rows[row].get(column), (list, tuple))}
    pairs = {row: MORE if right.kind in MORE else ("right", "wrong") for row, right in rights.items()}
    lost = [
        row
        for row in lists
        if rights[row].detail not in gold_answers(lists[row]) and adds(row, *pairs[row]) <= worth / 2
    ]
    if not lost:
        return None, set()
    right = rights[lost[0]]
    what = (
        f"in {len(lost)} of {len(rights)} rows tried, the column {column!r} does not hold the answer, which is not paid then: "
        f"{right.detail!r} is not in {in_line(lists[lost[0]])}"
    )
    line = f"data[{column!r}] = [[gold, *more] for gold, more in zip(data[{sample.answer!r}], data[{column!r}])]"
    changed = {} if 2 * len(lost) > len(rights) else {"severity": "warning"}
    return found("answer not listed", name, what, [right.text], fix=f"put it there: {line}", **changed), {*lost}


def check_time(caller: Caller, results: Results, batch_of: BatchOf) -> Iterator[Finding]:
    """Look at the time of the hostile completions; what was stopped gets a second, longer chance to end."""
    late = [probe for probe, outcome in results.outcomes.items() if outcome.is_late]
    seconds, slowest = max(results.seconds, key=lambda pair: pair[0], default=(0.0, None))
    own = "slow on hostile text (own limit)" if isinstance(caller.reward, code_tests) else ""
    if short := [probe for probe in late if not probe.is_long]:
        probe = min(short, key=lambda p: len(p.text))
        again = caller.call(batch_of([probe]), seconds=4 * caller.seconds)
        said = f"had not ended after {4 * caller.seconds:g} s" if again.is_late else f"took {again.seconds:.1f} s"
        kind = "hangs" if again.is_late else "slow on hostile text (stopped)"
        fixed = {"fix": COMPUTES} if probe.kind in _COMPUTED and not own else {}
        kind = own or kind
        yield found(kind, caller.name, f"one completion of {_described(probe)} {said}", [probe.text], **fixed)
    elif slowest is not None and seconds > 0.5 * caller.seconds:
        what = f"one completion of {_described(slowest)} took {seconds:.1f} s"
        yield found(own or "slow on hostile text", caller.name, what, [slowest.text])
    elif late:
        what = f"{_described(late[0])} take more than {caller.seconds:g} s, 4,000 do not"
        yield found("slow on very long text", caller.name, what)


def _described(probe: Probe) -> str:
    return f"{len(probe.text):,} characters ({probe.kind})"


def check_scores(caller: Caller, results: Results, rows: Sequence[int], batch_of: BatchOf) -> Iterator[Finding]:
    """Look for scores that are missing, no numbers, or all the same."""
    name, known, scored = caller.name, results.finite(), results.scored
    unscored = [results.outcomes[probe].raw[0] for probe, score in scored if math.isnan(score)]
    if scored and len(unscored) == len(scored):
        is_none = None in unscored
        what = f"{'None' if is_none else 'NaN'} for each of {len(scored)} completions"
        nan = "look for a division by nought or a mean over nothing, and return 0.0 there"
        yield found("no score", name, what, **({} if is_none else {"fix": nan}))
        return
    for kind, is_such in (("NaN score", math.isnan), ("infinite score", math.isinf)):
        # A None is no opinion, and nothing to report.
        bad = [p.text for p, score in scored if is_such(score) and results.outcomes[p].raw[0] is not None]
        if bad:
            yield found(kind, name, f"on {len(bad)} of {len(scored)} completions of the probes", bad)
    if len(known) > 1 and max(known) == min(known):
        tried = [*results.outcomes]
        # The bare answer is among those elsewhere: what is compared as a whole is paid nowhere else.
        tried = tried[:32] + [probe for probe in tried if probe.kind == "elsewhere right"]
        if mistaken := list(wrong_shape(caller, batch_of(tried), least=2)):
            yield from mistaken
            return
        what = f"{known[0]:g} for every one of {len(known)} completions, right, wrong and nonsense"
        paid = "it pays whatever is written: return a score that depends on the completion"
        yield found("constant", name, what, **({"fix": paid} if known[0] > 0 else {}))
    by_row: dict[int, set[float | None]] = {}
    for probe, score in scored:
        by_row.setdefault(probe.row, set()).add(None if math.isnan(score) else score)
    if len(set.union(*by_row.values()) - {None}) > 1 and all(len(values) == 1 for values in by_row.values()):
        what = f"on each of {len(by_row)} rows the same for every completion, right, wrong and nonsense"
        yield found("constant (of a row)", name, what)
    is_scored = results.rows_scored()
    lost = sum(not one for one in is_scored.values())
    if 0 < lost < len(is_scored):
        row = next(row for row, one in is_scored.items() if not one)
        gold = next(
            probe.detail for probe, _ in results.scored if probe.row == row and probe.kind in ("right", MORE[0])
        )
        what = f"None for the right answer on {lost} of {len(is_scored)} rows, such as {gold!r}"
        yield found("rows without score", name, what)


def _find_refusals(name: str, results: Results, role: Role, golds: Sequence[str]) -> Iterator[Finding]:
    """What a reward for answers does not take for right, or one for form for well formed."""
    own, rows = role.layout, range(len(golds))
    subject, changed = "the right answer", {}
    if role.kind == FORM:
        subject, changed = (
            "the format",
            {"kind": "format refused", "effect": "it stays unpaid where the prompt is obeyed"},
        )
    lost_rows = [row for row in rows if row not in role.pairs and not math.isnan(results.best("right", row, own))]
    if lost_rows and role.kind == TELLS:
        shown = {row: [*results.example("right", row, own), *results.example("wrong", row, own)] for row in lost_rows}
        lost = [(golds[row], results.best("right", row, own), shown[row]) for row in lost_rows]
        yield from _find_lost(name, role, lost, f"{len(rows)} rows")
    for kind, how in {**_LAYOUTS, **_REFUSALS}.items():
        is_layout = kind in _LAYOUTS
        if kind == own or (role.kind == FORM and kind not in _OF_FORM):
            continue
        shown = ("right", kind) if is_layout else (kind, own)
        pairs = [pair for row in role.pairs for pair in results.scores(shown[0], row, shown[1])]
        lost = [probe.text for probe, score in pairs if not is_paid(role, probe, score)]
        # Of a layout all are lost or none; of other forms each counts.
        if lost and (len(lost) == len(pairs) or not is_layout):
            variant = f"right{kind}" if is_layout else kind
            if own == ", newline" and kind == "":
                variant, how = "right, newline wanted", f"{how}, and taken with a newline at the end"
            what = f"{subject} is refused {how} ({len(lost)} of {len(pairs)} tries)"
            yield found(f"{REFUSED} ({variant})", name, what, lost, **changed)
    # Only what earns as much as the real thing: partial credit is what a reward for form is for.
    top = results.best("right", 0, own)
    lax = [kind for kind in _DAMAGED if role.kind == FORM and results.best(kind, 0) >= top - 1e-9]
    if lax:
        what = f"in full for damaged formats too: {', '.join(lax)}"
        yield found("lenient", name, what, results.example(lax[0], 0))


def _find_more_refusals(name: str, results: Results, role: Role) -> Iterator[Finding]:
    """Rows beyond those that are tried in every form, on which being right does not pay."""
    scores = {(probe.kind, probe.row): (score, probe) for probe, score in results.scored if probe.kind in MORE}
    pairs = [
        (scores[right, row], scores[wrong, row]) for right, wrong in [MORE] for kind, row in scores if kind == right
    ]
    # A row without an opinion is told of elsewhere.
    lost = [(gold.detail, right, [gold.text, bad.text]) for (right, gold), (wrong, bad) in pairs if right <= wrong]
    changed = {} if 2 * len(lost) > len(pairs) else {"severity": "warning"}
    yield from _find_lost(name, role, lost, f"{len(pairs)} more rows", **changed)


def _find_lost(
    name: str, role: Role, lost: Sequence[tuple[str, float, Sequence[str]]], of: str, **changed: str
) -> Iterator[Finding]:
    """Rows on which a wrong answer gets as much as the gold one: neither is paid, or both are.

    Args:
        name: Of the reward.
        role: What it does on the other rows.
        lost: Of each such row the gold answer, its score, and the completions: with it, with the wrong one.
        of: How many rows were tried, in words.
        changed: Fields of the finding that are other than in the catalogue.
    """
    middle = sum(map(sum, role.pairs.values())) / (2 * len(role.pairs))
    for key, is_paid_too, said in (
        (REFUSED, False, "gold gets no more than a wrong one"),
        ("wrong answer paid", True, "a wrong answer gets as much as gold, which is paid"),
    ):
        such = [
            (gold, texts[-1 if is_paid_too else 0]) for gold, score, texts in lost if (score > middle) == is_paid_too
        ]
        if such:
            what = f"on {len(such)} of {of} {said} ({such[0][0]!r})"
            yield found(key, name, what, [text for _, text in such], **changed)


def _find_payments(name: str, results: Results, role: Role, golds: Sequence[str]) -> Iterator[Finding]:
    families = PAID.keys() - (_BY_DEGREES if role.said == BY_DEGREES else ())
    tried = [(p, s) for p, s in results.scored if p.family in families and p.row in role.pairs and not math.isnan(s)]
    for family, what in PAID.items():
        pairs = [(probe, score) for probe, score in tried if probe.family == family]
        paid = [probe for probe, score in pairs if is_paid(role, probe, score)]
        if not paid:
            continue
        seen, milder = {probe.kind for probe in paid}, {}
        if family == "several answers":
            # A reward that reads the first or the last of several answers is lax, but a guess still has to be right there.
            is_open = "every candidate" in seen or any({k, f"{k}, gold first"} <= seen for k in ("hedge", "equation"))
            milder = {} if is_open else {"severity": "warning"}
        elif family == "retracted" or seen == {"gold after wrong slot"} or seen <= _CHANGED:
            milder = {"severity": "warning"}
        elif seen <= _NUMBERS and all(re.fullmatch(r"-?[0-9]{3,}", golds[probe.row]) for probe in paid):
            milder = {"severity": "note"}
        if milder:
            milder["effect"] = "a habit that is paid"
        what = f"{what} ({', '.join(sorted(seen))}; {len(paid)} of {len(pairs)} tries)"
        yield found(family, name, what, [probe.text for probe in paid], **milder)
    # Being close or long may earn a part, and so may giving no answer; what only names the answer must not.
    shares = [(share_of(role, probe, score), probe) for probe, score in tried if not is_paid(role, probe, score)]
    level = max((share for share, probe in shares if probe.family in ("paid for nothing", "length pays")), default=0.0)
    parts = [(share, p) for share, p in shares if p.family not in _MAY_EARN and share > max(level, 0.0) + _PART]
    if parts:
        kinds = ", ".join(sorted({probe.kind for _, probe in parts}))
        what = f"up to {max(share for share, _ in parts):.0%} of what being right adds is paid for: {kinds}"
        yield found("part credit", name, what, [probe.text for _, probe in parts])


def _find_likeness(name: str, results: Results, role: Role) -> Iterator[Finding]:
    """What a reward that pays by degrees gives for answers that are none, and whether naming two pays more than choosing."""

    def tried(kinds: Sequence[str]) -> list[tuple[Probe, float]]:
        pairs = [pair for kind in kinds for row in role.pairs for pair in results.scores(kind, row, role.layout)]
        return [(probe, score) for probe, score in pairs if not math.isnan(score)]

    known = {
        what: max(score for _, score in pairs)
        for what, kinds in {
            "for two answers side by side": _HEDGES,
            "for 'not' before the right one": ("not gold",),
            "for the question in the slot": ("question in the slot",),
            "for an empty slot": ("empty slot",),
        }.items()
        if (pairs := tried(kinds))
    }
    known = {said: math.ceil(100 * score - 1e-6) / 100 for said, score in known.items()}
    top = known.get("for two answers side by side", math.nan)
    # An answer that shares a part with the right one earns it; what any answer earns is what most do.
    right, least = max(score for score, _ in role.pairs.values()), min(results.finite())
    wrong = [s for p, s in results.scored if (p.kind, p.layout) in (("wrong", role.layout), (MORE[1], role.layout))]
    floor = statistics.median([score for score in wrong if not math.isnan(score)] or [least])
    floor = math.ceil(100 * floor - 1e-6) / 100
    ups = ", ".join(f"{score:g} {said}" for said, score in known.items())
    what = f"{right:.2g} for the right answer, {floor:g} for a typical unrelated one, up to {ups}"
    hedges = [(probe.text, is_paid(role, probe, score)) for probe, score in tried(_HEDGES)]
    # Two that are as likely as each other are worth half the score together.
    if 2 * sum(paid for _, paid in hedges) > len(hedges):
        above = f"pay from a threshold on, score if score > {top:g} else 0.0, or " if top < 0.95 * right else ""
        fix = f"{above}give it a small weight beside an exact reward such as gn.rewards.exact_text()"
        yield found("pays by likeness (hedges)", name, what, [text for text, _ in hedges], fix=fix)
    elif floor - least > 0.5 * (right - least):
        fix = f"take off what any answer gets, max(0.0, score - {floor:g}), or pair it with an exact reward"
        yield found("pays by likeness (floor)", name, what, fix=fix)
    else:
        yield found("pays by likeness", name, what)


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

    def adds(label: str, row: int) -> float:
        return gain(tuple(results.best(f"elsewhere {kind}", row, detail=label) for kind in ("right", "wrong")))

    labels = dict.fromkeys(probe.detail for probe, _ in elsewhere)
    telling = [label for label in labels if all(adds(label, row) > epsilon for row in rows)]
    if role.said == WHOLE:
        row = max(rows, key=functools.partial(adds, BARE))
        bare, shown = (" and a wrong one ".join(map(as_score, pair)) for pair in bare_and_shown(results, row))
        alike = [label for label in telling if all(adds(label, row) >= adds(BARE, row) - epsilon for row in rows)]
        read = " or ".join(["the whole completion", *(label for label in alike if label != BARE)])
        what = f"the bare answer earns {bare}, in the format of the task the same answer {shown}: it reads {read}, not the slot"
        yield found("another format (whole text)", name, what, results.example("right", row))
        return
    if telling:
        what = f"it sees no answer in the format of the task, but does so in: {', '.join(telling)}"
        first = next(probe.text for probe, _ in elsewhere if probe.detail == telling[0])
        yield found("another format", name, what, [first])
        return
    shown = [s for row in rows for layout in LAYOUTS for _, s in results.scores("right", row, layout)]
    plain = [results.best(kind, row) for kind in ("prose", "elsewhere plain") for row in rows]
    by_length = [score for probe, score in results.scores("length", rows[0]) if probe.detail == IN_WORDS]
    if role.kind != OTHER or not shown or not by_length:
        return
    is_flat = max(shown) - min([*shown, *plain]) <= epsilon and max(by_length) - min(by_length) <= epsilon
    score, probe = max(((s, p) for p, s in elsewhere if not math.isnan(s)), key=lambda pair: pair[0], default=(0, None))
    if is_flat and probe is not None and score > max(shown) + epsilon:
        what = "the format of the task earns nothing, another one does"
        yield found("another format (form)", name, what, [probe.text])


def _judge_growth(name: str, results: Results) -> Iterator[Finding]:
    """Series of right completions that grow: in words, or by ever more of the same."""
    series: dict[str, list[tuple[int, float, str]]] = {}
    for probe, score in results.scores("length", 0):
        series.setdefault(probe.detail, []).append((probe.size, score, probe.text))
    grown = {what: sorted(entries) for what, entries in series.items() if _grows([s for _, s, _ in sorted(entries)])}
    if IN_WORDS in grown:
        (few, low, _), *_, (many, high, _) = grown[IN_WORDS]
        what = f"at equal content, {few} to {many} words raise it {low:.3g} to {high:.3g}, without end"
        yield found("grows with length", name, what)
        return
    # What is worth less than the plain right completion is not repeated for its own sake.
    top = max(results.best("right", 0, layout) for layout in LAYOUTS)
    grown = {what: entries for what, entries in grown.items() if entries[-1][1] > top + results.epsilon}
    if grown:
        said = ", ".join(f"{what}: {entries[0][1]:.3g} to {entries[-1][1]:.3g}" for what, entries in grown.items())
        texts = [entries[0][2] for entries in grown.values()]
        yield found("repetition pays", name, f"ever more of the same raises it without end ({said})", texts)


def _grows(scores: Sequence[float]) -> bool:
    if len(scores) < 3 or any(math.isnan(score) for score in scores):
        return False
    steps, rise = [b - a for a, b in itertools.pairwise(scores)], scores[-1] - scores[0]
    return all(step > 0 for step in steps) and steps[-1] > 0.2 * rise and rise > 1e-3
