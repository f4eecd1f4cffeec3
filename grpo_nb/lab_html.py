"""The reward lab's views as HTML. Everything that a model, a user or a data set wrote is escaped here."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_nb.findings import RewardReport
from grpo_nb.lab import WHOLE_TEXT, ProbeTable, Span, last_lines, spans, where
from grpo_nb.lab_style import STYLE
from grpo_nb.reward_calls import RewardError, displayable, excerpt, shorten
from grpo_nb.scoring import Scores


def said(text: Any) -> str:
    """Return a text that can stand in HTML: escaped, without characters that no page can hold."""
    return html.escape(displayable(str(text)))


def number(value: float) -> str:
    """Return a score as the tables show it; `none` where there is no score."""
    return "none" if math.isnan(value) else f"{value:.4g}"


def code(line: str, label: str = "the same in code") -> str:
    """Return the line of code that stands under a view."""
    return f'<div class="gn-code"><span>{said(label)}</span><pre>{said(line)}</pre></div>'


def heading(text: str, explanation: str = "") -> str:
    """Return the heading of a section, with one sentence about it."""
    soft = f' <span class="gn-soft">{said(explanation)}</span>' if explanation else ""
    return f'<div class="gn-head" role="heading" aria-level="3">{said(text)}{soft}</div>'


def title() -> str:
    """Return the style sheet and the title of the lab."""
    return f'{STYLE}<div class="gn-title" role="heading" aria-level="2">Reward lab</div>'


def snapshot(parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a lab that can only be read, for pages that show no widgets, from headings and the views under each."""
    shown = []
    for name, views in parts:
        content = "".join(views)
        if content:
            shown.append(f'<div class="gn-panel" style="margin:6px 0">{heading(name) if name else ""}{content}</div>')
    how = '<div class="gn-soft">As it stood when its cell was run. Run the notebook to use it.</div>'
    return f'<div class="gn-lab">{title()}{how}{"".join(shown)}</div>'


def row_view(question: str, gold: str, prompt: str, is_model_text: bool) -> str:
    """Return question, gold answer and prompt of the row."""
    how = (
        "The prompt, as the model sees it"
        if is_model_text
        else "The prompt, turn by turn (give a tokenizer to see it as the model does)"
    )
    asked = f'<div class="gn-label">Question</div><pre class="gn-question">{said(question)}</pre>' if question else ""
    return (
        f'{asked}<div class="gn-label">Gold answer</div><pre class="gn-gold">{said(gold)}</pre>'
        f'<div class="gn-label">{said(how)}</div><pre class="gn-box gn-prompt">{said(prompt)}</pre>'
    )


def push(advantage: float) -> str:
    """Return in words what training makes of a completion with this advantage.

    >>> push(0.7), push(-0.7), push(0.0)
    ('more likely', 'less likely', 'not moved')
    """
    return "not moved" if abs(advantage) < 1e-9 else ("more likely" if advantage > 0 else "less likely")


def scores_view(scores: Scores, advantages: Sequence[float]) -> str:
    """Return the table of every reward, total and advantage, a line for each completion."""
    heads = "".join(
        f'<th class="gn-number" title="{said(name)}">{said(name)}<br><span class="gn-soft">&times; {weight:g}</span></th>'
        for name, weight in scores.weights.items()
    )
    lines = []
    for i, (values, total, advantage) in enumerate(zip(scores, scores.totals, advantages, strict=True)):
        failed = _failed(scores, i)
        cells = "".join(
            f'<td class="gn-number" data-reward="{said(name)}">{"failed" if name in failed else number(value)}</td>'
            for name, value in values.items()
        )
        moved = "unknown" if failed else push(advantage)
        way = {"more likely": " gn-up", "less likely": " gn-down"}.get(moved, "")
        shown = "none" if failed else f"{advantage:+.3f}"
        text = " ".join(scores.completions[i].split()) or "(empty)"
        lines.append(
            f'<tr data-completion="{i + 1}"><td>{i + 1}</td><td class="gn-short" title="{said(shorten(text, 400))}">'
            f'{said(text[:90])}</td>{cells}<td class="gn-number gn-strong gn-total">{number(total)}</td>'
            f'<td class="gn-number gn-advantage">{shown}</td><td class="gn-push{way}">{moved}</td></tr>'
        )  # fmt: skip
    return (
        '<div class="gn-scroll"><table class="gn-scores"><thead><tr><th>#</th><th class="gn-short">Completion</th>'
        f'{heads}<th class="gn-number">Total</th><th class="gn-number">Advantage</th><th>In training</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{_group_note(scores)}"
    )


def _failed(scores: Scores, number: int) -> list[str]:
    """The rewards that failed on a completion."""
    return [error.reward for error in scores.errors if error.row in (None, number)]


def _group_note(scores: Scores) -> str:
    known = [total for total in scores.totals if not math.isnan(total)]
    if scores.errors:
        text = (
            "A reward failed, and a trainer would stop there. Totals and advantages are those of the other completions, "
            "as if they were the whole group."
        )
    elif len(scores) == 1:
        text = "One completion has nothing to be compared with: its advantage is 0. Add another, or sample a group."
    elif len(known) < 2:
        text = "Fewer than two completions have a total, so nothing can be compared."
    elif max(known) - min(known) < 1e-9:
        text = "All totals are equal: every advantage is 0, and GRPO learns nothing from this group."
    else:
        return (
            '<div class="gn-soft gn-small">Total = sum of score &times; weight. Advantage = (total - mean of the '
            "group) / (standard deviation of the group + 0.0001).</div>"
        )
    return f'<div class="gn-note">{said(text)}</div>'


def errors_view(errors: Sequence[BaseException]) -> str:
    """Return what failed: which reward, on which completion, an excerpt, and the end of its traceback. Empty without errors."""
    return "".join(f'<div class="gn-errors" role="alert">{_error(error)}</div>' for error in errors)


def _error(error: BaseException) -> str:
    trace = f'<pre class="gn-box">{said(last_lines(error))}</pre>'
    if not isinstance(error, RewardError):
        return f"<b>{said(type(error).__name__)}</b>: {said(shorten(str(error), 600))}{trace}"
    cause = error.__cause__
    on = (
        "on all completions together, though on none of them alone" if error.row is None
        else f"on completion {error.row + 1}: <code>{said(error.excerpt)}</code>"
    )  # fmt: skip
    return (
        f"<b>The reward {said(error.reward)} failed</b> {on}<br>"
        f"{said(type(cause).__name__)}: {said(shorten(str(cause), 300))}{trace}"
        "<span class='gn-soft'>Its total is unknown, so there is none. Mend the reward in the next cell, then: "
        "<code>lab.update(rewards)</code></span>"
    )


def cards_view(
    scores: Scores, advantages: Sequence[float], rewards: Mapping[str, Callable[..., Any]], chosen: str | None
) -> str:
    """Return a card for each completion: its text with the parts marked that earned something, and what each reward gave."""
    cards = []
    for i, text in enumerate(scores.completions):
        moved = "" if _failed(scores, i) else f", {push(advantages[i])}"
        marks, lines = [], []
        for name, reward in rewards.items():
            score = scores.values[name][i]
            part = scores.weights[name] * score
            marks += [(span, part, name) for span in spans(reward, text) if chosen in (None, name)]
            earned = f"{number(score)} &times; {scores.weights[name]:g} = {number(part)}"
            if math.isnan(score):
                earned = "failed" if name in _failed(scores, i) else "none: no opinion"
            place = f"<span class='gn-soft'>({said(where(reward, text))})</span>"
            lines.append(f"<li><b>{said(name)}</b> {earned} {place}</li>")
        is_whole = chosen is not None and any(span.what == WHOLE_TEXT for span, _, _ in marks)
        shown = [mark for mark in marks if is_whole or mark[0].what != WHOLE_TEXT]
        cards.append(
            f'<div class="gn-card" data-completion="{i + 1}"><b>Completion {i + 1}</b> '
            f"<span class='gn-soft'>total {number(scores.totals[i])}{moved}</span>"
            f'<pre class="gn-box">{marked(text, shown) or "(empty)"}</pre>'
            f"<ul>{''.join(lines)}</ul></div>"
        )
    return f'<div class="gn-cards">{"".join(cards)}</div>'


def marked(text: str, marks: Sequence[tuple[Span, float, str]]) -> str:
    """Return a text with marks around the spans, coloured by what they earned; of two that overlap the first stays.

    >>> marked("<b>7", [(Span(3, 4, "answer slot"), 2.0, "correctness")])
    '&lt;b&gt;<mark class="gn-earned" title="correctness: answer slot, +2">7</mark>'
    """
    parts, end = [], 0
    for span, earned, name in sorted(marks, key=lambda mark: (mark[0].start, -abs(mark[1]))):
        if span.start < end or span.end <= span.start:
            continue
        kind = "gn-earned" if earned > 0 else ("gn-lost" if earned < 0 else "gn-nothing")
        worth = "no score" if math.isnan(earned) else f"{earned:+.4g}"
        title = said(f"{name}: {span.what}, {worth}")
        parts += [
            said(text[end : span.start]),
            f'<mark class="{kind}" title="{title}">{said(text[span.start : span.end])}</mark>',
        ]
        end = span.end
    return "".join([*parts, said(text[end:])])


def probes_view(table: ProbeTable) -> str:
    """Return the probes on the row, failures first, each with its verdict in words."""
    verdict = "gn-fail" if table.summary.startswith("FAIL") or not table.telling else "gn-pass"
    heads = "".join(f'<th class="gn-number">{said(name)}</th>' for name in table.weights)
    lines = []
    for line in table.lines:
        kind = {"fail": "gn-fail", "pass": "gn-pass"}.get(line.verdict[:4], "")
        cells = "".join(f'<td class="gn-number">{number(line.scores[name])}</td>' for name in table.weights)
        lines.append(
            f'<tr><td class="gn-verdict {kind}">{said(line.verdict)}</td><td>{said(line.probe.kind)}</td>'
            f"<td>{'paid' if line.expected == 'pay' else 'not paid'}</td>{cells}"
            f'<td class="gn-number gn-strong">{number(line.total)}</td>'
            f'<td class="gn-short" title="{said(excerpt(line.probe.text, 600))}">'
            f"<code>{said(excerpt(line.probe.text, 90))}</code></td></tr>"
        )
    return (
        f'<p class="{verdict}">{said(table.summary)}</p>'
        '<div class="gn-scroll"><table class="gn-probes"><thead><tr><th>Verdict</th><th>Probe</th><th>Must be</th>'
        f'{heads}<th class="gn-number">Total</th><th>Completion</th></tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def report_view(report: RewardReport) -> str:
    """Return the report of `check_rewards` in a box that scrolls; it escapes what it shows itself."""
    verdict = (
        ("gn-pass", "PASS: nothing critical and no warning.") if report.ok else ("gn-fail", "FAIL: see the findings.")
    )
    return (
        f'<p class="{verdict[0]}">check_rewards on this row: {verdict[1]}</p>'
        f'<div class="gn-scroll gn-report">{report._repr_html_()}</div>'
    )


def cases_view(path: str, cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the cases kept in a file."""
    if not cases:
        return f'<p class="gn-soft">No case is kept in {said(path)} yet.</p>'
    lines = "".join(
        f"<tr><td>{i}</td><td>{said(case.get('label') or '')}</td><td>{said(case['reward'])}</td>"
        f'<td class="gn-number">{"no opinion" if case["expected"] is None else said(case["expected"])}</td>'
        f"<td><code>{said(excerpt(case['completion'], 90))}</code></td></tr>"
        for i, case in enumerate(cases, 1)
    )
    return (
        f'<div class="gn-soft">{len(cases)} kept in {said(path)}</div>'
        '<div class="gn-scroll"><table class="gn-cases"><thead><tr><th>#</th><th>What it shows</th><th>Reward</th>'
        '<th class="gn-number">Must score</th><th>Completion</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def case_results_view(report: RewardReport, count: int) -> str:
    """Return which kept cases the rewards do not meet."""
    failed = [finding for finding in report.findings if finding.kind == "case"]
    if not failed:
        return f'<p class="gn-pass">PASS: all {count} cases are met.</p>'
    lines = "".join(f"<li>{said(f.reward)}: {said(f.what)} <code>{said(f.example)}</code></li>" for f in failed)
    return f'<p class="gn-fail">FAIL: {len(failed)} of {count} cases are not met.</p><ul>{lines}</ul>'
