"""The reward lab's views as HTML. The templates and `core` escape all that a model, a user or a data set wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_nb.core.pages import errors_view as any_errors_view
from grpo_nb.core.pages import last_lines, render
from grpo_nb.core.words import as_score, shorten
from grpo_nb.scoring.calls import RewardError
from grpo_nb.scoring.marks import WHOLE_TEXT, Span, spans
from grpo_nb.scoring.scores import Scores


def push(advantage: float) -> str:
    """Return in words what training makes of a completion with this advantage.

    >>> push(0.7), push(-0.7), push(0.0)
    ('more likely', 'less likely', 'not moved')
    """
    return (
        "not moved"
        if abs(advantage) < 1e-9
        else ("more likely" if advantage > 0 else "less likely")
    )


class Mark(NamedTuple):
    """A piece of a completion; with a title where a reward looked."""

    text: str
    kind: str = ""
    title: str = ""


def row_view(question: str, gold: str, has_tokenizer: bool, prompt: str) -> str:
    """Return question, gold answer and prompt of the row."""
    return render(
        "lab/templates/row.jinja",
        question=question,
        gold=gold,
        prompt=prompt,
        has_tokenizer=has_tokenizer,
    )


def scores_view(scores: Scores, advantages: Sequence[float]) -> str:
    """Return the table of every reward, total and advantage, a line for each completion."""
    lines = [
        _line(scores, advantages, i, text=" ".join(text.split()) or "(empty)")
        for i, text in enumerate(scores.completions)
    ]
    values = {
        "scores": scores,
        "lines": lines,
        "note": _group_note(scores),
        "number": as_score,
        "shorten": shorten,
    }
    return render("lab/templates/scores.jinja", **values)


def _line(scores: Scores, advantages: Sequence[float], i: int, **more: Any) -> dict[str, Any]:
    """What the views show of one completion."""
    failed = [error.reward for error in scores.errors if error.row in (None, i)]
    return {
        "scores": {name: given[i] for name, given in scores.values.items()},
        "failed": failed,
        "total": scores.totals[i],
        "advantage": advantages[i],
        "push": "unknown" if failed else push(advantages[i]),
        **more,
    }


def _group_note(scores: Scores) -> str:
    if scores.errors:
        return "A reward failed, and a trainer would stop there. Advantages are those of the other completions."
    if len(scores) == 1:
        return "One completion has nothing to be compared with: its advantage is 0. Add another, or sample a group."
    known = [total for total in scores.totals if not math.isnan(total)]
    if known and max(known) - min(known) < 1e-9:
        return (
            "All totals are equal: every advantage is 0, and GRPO learns nothing from this group."
        )
    return ""


def labels_view(
    texts: Sequence[str], given: Sequence[float | None], labels: Sequence[Any], file: object
) -> str:
    """Return the completion that waits for a score by hand, and how many have one."""
    return render(
        "lab/templates/labels.jinja",
        texts=texts,
        given=given,
        labels=labels,
        file=file,
        number=as_score,
    )


def errors_view(errors: Sequence[BaseException]) -> str:
    """Return what failed: which reward, on which completion, an excerpt, and the end of its traceback. Empty without errors."""
    return "".join(
        _failure(e) if isinstance(e, RewardError) else any_errors_view([e]) for e in errors
    )


def _failure(error: RewardError) -> str:
    cause = error.__cause__ or error
    said = {
        "kind": type(cause).__name__,
        "cause": shorten(str(cause), 300),
        "trace": last_lines(cause),
    }
    return render("lab/templates/failure.jinja", error=error, **said)


def cards_view(
    scores: Scores,
    advantages: Sequence[float],
    rewards: Mapping[str, Callable[..., Any]],
    chosen: str | None,
) -> str:
    """Return a card for each completion: its text with the parts marked that earned something, and what each reward gave."""
    lines = []
    for i, text in enumerate(scores.completions):
        marks = [
            (span, scores.weights[name] * scores.values[name][i], name)
            for name, reward in rewards.items()
            if chosen in (None, name)
            for span in spans(reward, text)
        ]
        shown = [mark for mark in marks if chosen is not None or mark[0].what != WHOLE_TEXT]
        lines.append(_line(scores, advantages, i, text=text, marks=marked(text, shown)))
    return render("lab/templates/cards.jinja", scores=scores, lines=lines, number=as_score)


def marked(text: str, marks: Sequence[tuple[Span, float, str]]) -> list[Mark]:
    """Return a text in pieces, those that a reward looked at with what they earned; of two that overlap the first stays.

    >>> marked("b7", [(Span(1, 2, "answer slot"), 2.0, "correctness")])[1]
    Mark(text='7', kind='gn-earned', title='correctness: answer slot, +2')
    """
    pieces, end = [], 0
    for span, earned, name in sorted(marks, key=lambda mark: (mark[0].start, -abs(mark[1]))):
        if span.start < end or span.end <= span.start:
            continue
        kind = "gn-earned" if earned > 0 else ("gn-lost" if earned < 0 else "gn-nothing")
        title = f"{name}: {span.what}, {'no score' if math.isnan(earned) else f'{earned:+.4g}'}"
        pieces += [Mark(text[end : span.start]), Mark(text[span.start : span.end], kind, title)]
        end = span.end
    return [piece for piece in [*pieces, Mark(text[end:])] if piece.text]
