"""How a baseline shows itself, as text and in a notebook; everything from models and users is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_nb.baseline_numbers import GROUP_SAID, in_groups
from grpo_nb.reward_calls import displayable, shorten

if TYPE_CHECKING:
    from grpo_nb.baseline_result import Baseline

_SHOWN_GROUPS = 12
_REWARD_HEADS = (
    "reward", "mean, 95 % interval", "lowest to highest", "spread in a group", "groups that differ",
    "a right answer gets", "an empty one gets",
)  # fmt: skip


def _facts(found: Baseline) -> list[tuple[str, str]]:
    count, lengths = len(found.scores), found.lengths
    counts = "; ".join(f"{n} {GROUP_SAID[kind]}" for kind, n in found.counts.items() if n)
    return [
        ("sampled", f"{len(found.groups)} prompts x {found.num_generations} completions, temperature "
         f"{found.settings.temperature:g}, seed {found.seed}"),
        ("groups", f"{counts}"),
        ("total, 95 % interval", f"{found.total}{'' if found.total.interval else ', no interval from groups all alike'}"),
        ("answer can be read", f"{round(found.slot_share * count)} of {count} completions ({found.slot_share:.0%})"),
        ("cut at the limit", f"{sum(found.is_cut)} of {count} completions ({found.cut_share:.0%}), "
         f"limit {found.settings.max_completion_length} tokens"),
        ("length in tokens", ", ".join(f"{name} {value:.0f}" for name, value in lengths.items())),
    ]  # fmt: skip


def _reward_rows(found: Baseline) -> list[tuple[str, ...]]:
    return [
        (
            f"{r.name} x {r.weight:g}", str(r.estimate), f"{_said(r.lowest)} to {_said(r.highest)}", _said(r.spread),
            f"{r.groups_that_differ} of {len(found.groups)}", _said(r.right), _said(r.empty),
        )
        for r in found.rewards
    ]  # fmt: skip


def plain_text(found: Baseline) -> str:
    """Return the sentence, the facts, each reward and the advice as lines of text."""
    lines = [found.sentence, *(f"  {name}: {value}" for name, value in _facts(found))]
    for row in _reward_rows(found):
        lines.append("  " + "; ".join(f"{head} {cell}" for head, cell in zip(_REWARD_HEADS, row, strict=True)))
    lines += [repr(advice) for advice in found.advice] or ["Nothing to change before training."]
    return displayable("\n".join(lines))


def html_page(found: Baseline) -> str:
    """Return the same for a notebook, and the groups with their best and worst completion."""
    facts = _html_table([], [(f"<b>{_escaped(name)}</b>", _escaped(value)) for name, value in _facts(found)])
    cells = [tuple(_escaped(cell).replace(" ", "&nbsp;") for cell in row) for row in _reward_rows(found)]
    rewards = _html_table(_REWARD_HEADS, cells)
    advice = _html_table(
        ("", "what the sample shows", "line to change"),
        [(f"<b>{_escaped(a.kind)}</b>", _escaped(a.what), _code(a.line)) for a in found.advice],
    )  # fmt: skip
    advice = f"<p><b>What to change</b></p>{advice}" if found.advice else "<p>Nothing to change before training.</p>"
    return (
        f"<p><b>{_escaped(found.sentence)}</b></p>{facts}<p><b>Each reward</b></p>{rewards}{advice}"
        f"<p><b>Group by group</b></p>{_group_table(found)}"
    )


def _group_table(found: Baseline) -> str:
    rows = []
    texts = in_groups(found.scores.completions, found.num_generations)
    has_worst = found.counts["differs"] > 0
    for group, completions in list(zip(found.groups, texts, strict=True))[:_SHOWN_GROUPS]:
        order = sorted(range(len(completions)), key=lambda i, t=group.totals: -math.inf if math.isnan(t[i]) else t[i])
        best, worst = order[-1], order[0]
        shown = [_completion(completions[best], group.totals[best])]
        if has_worst:
            differs = group.kind == "differs"
            shown.append(_completion(completions[worst], group.totals[worst]) if differs else "all the same")
        question = f"{_escaped(shorten(group.question, 200))}<br>gold: <b>{_escaped(shorten(group.answer, 80))}</b>"
        rows.append((question, _escaped("differ" if group.kind == "differs" else GROUP_SAID[group.kind]), *shown))
    left = len(found.groups) - len(rows)
    more = f"<p>{left} more groups in <code>.table</code>.</p>" if left else ""
    heads = ("best completion", "worst completion") if has_worst else ("a completion",)
    return _html_table(("prompt", "totals", *heads), rows) + more


def _said(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.2f}"


def _escaped(text: str) -> str:
    return html.escape(displayable(text))


def _code(text: str) -> str:
    style = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;min-width:14em"
    return f"<div style='{style}'>{_escaped(text)}</div>"


def _completion(text: str, total: float) -> str:
    return f"{_code(shorten(text, 300) or '(empty)')}<b>total {_said(total)}</b>"


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    left = "style='text-align:left;vertical-align:top;min-width:5em'"
    head = "".join(f"<th {left}>{_escaped(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td {left}>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if heads else ''}<tbody>{body}</tbody></table>"
