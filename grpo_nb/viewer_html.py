"""The run viewer's views as HTML and SVG, which need no JavaScript. Everything that a model, a user or a data set wrote is
escaped here. Colours and pieces are those of the reward lab.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_nb.lab_html import STYLE, code, heading, number, push, said
from grpo_nb.metrics import Run, read_rows
from grpo_nb.plots_curves import Curve, Curves, alert_places
from grpo_nb.reward_calls import shorten
from grpo_nb.viewer import Change, GroupScores, StepGroups, change_since_start, logged_steps, read_step

_LONGEST = 20_000
_WIDE, _TALL, _TOP, _LEFT, _FOOT = 320, 150, 12, 34, 18
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("", "6 3", "6 2 1 2", "1.5 2")
_SEVERITIES = {"critical": ("#C62828", "0,8 -5,0 5,0"), "warning": ("#B26A00", "0,8 -4,4 0,0 4,4")}
_INFO = ("#607D8B", "-3,1 3,1 3,7 -3,7")

VIEWER_STYLE = """<style>
.gn-lab .gn-curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(205px, 1fr)); gap: 6px 14px; }
.gn-lab .gn-curves figure { margin: 0; min-width: 0; }
.gn-lab .gn-curves figcaption { font-weight: 600; font-size: 12.5px; }
.gn-lab .gn-curves svg { width: 100%; height: auto; display: block; overflow: visible; }
.gn-lab .gn-curves svg text { fill: currentColor; font-size: 9.5px; opacity: .85; font-family: inherit; }
.gn-lab .gn-key { font-size: 11.5px; display: flex; flex-wrap: wrap; gap: 0 12px; }
.gn-lab .gn-missing { background: rgba(128,128,128,.09); border-radius: 4px; height: 110px; display: flex; align-items: center;
  justify-content: center; color: var(--jp-ui-font-color2, inherit); }
.gn-lab td.gn-text { max-width: none; padding-top: 0; white-space: normal; }
.gn-lab td.gn-text pre.gn-box { max-height: 130px; }
.gn-lab .gn-group th, .gn-lab .gn-group td { padding-left: 6px; padding-right: 6px; }
.gn-lab tr.gn-numbers td { border-bottom: none; padding-bottom: 3px; }
.gn-lab .gn-alert-list { margin: 6px 0 0; padding-left: 18px; font-size: 12.5px; }
.gn-lab .gn-two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 10px; }
.gn-lab .gn-critical { color: var(--jp-error-color0, #c62828); font-weight: 600; }
.gn-lab .gn-warning { color: var(--jp-warn-color0, #b26a00); font-weight: 600; }
.gn-lab summary { cursor: pointer; font-weight: 600; padding: 3px 0; overflow-wrap: anywhere; }
</style>"""

NO_COMPLETIONS = '<p class="gn-soft">No completions have been recorded yet.</p>'


def title_view(run: Run) -> str:
    """Return name and state of the run."""
    return f'<div class="gn-title" role="heading" aria-level="2">Run {said(run.name)}: {said(run.status)}</div>'


def standalone(body: str) -> str:
    """Return a view with the style it needs, so that it can stand by itself."""
    return f'{STYLE}{VIEWER_STYLE}<div class="gn-lab" style="font-size:13px;line-height:1.45">{body}</div>'


# Curves.


def curves_view(curves: Curves, alerts: Sequence[Mapping[str, Any]], step: int | None, beta: float | None) -> str:
    """Return reward, each reward, KL and held-out score as small pictures, with alerts and the step chosen."""
    if not curves.count:
        return '<p class="gn-soft">No step has been logged yet.</p>'
    marks = alert_places(alerts, curves)
    each = [(name, curves.reward(name)) for name in curves.rewards]
    kl = "not measured (beta = 0)" if beta == 0 else "not measured"
    pictures = [
        _picture("Total reward", [("total", curves["reward"])], curves, marks, step),
        _picture("Each reward, unweighted", each, curves, marks, step),
        _picture("KL to the starting model", [("KL", curves["kl"])], curves, marks, step, missing=kl, colour=2),
        _picture(
            "Held-out accuracy", [("accuracy", curves["holdout/accuracy"])], curves, marks, step, colour=3,
            missing="not measured during training",
        ),
    ]  # fmt: skip
    return f'<div class="gn-curves">{"".join(pictures)}</div><div>{said(curves.sentence)}</div>{alerts_view(alerts)}'


def _picture(
    title: str,
    lines: Sequence[tuple[str, Curve]],
    curves: Curves,
    marks: Sequence[tuple[float, str, Mapping[str, Any]]],
    step: int | None,
    *,
    missing: str = "not measured",
    colour: int = 0,
) -> str:
    known = [(name, curve) for name, curve in lines if len(curve)]
    caption = f"<figcaption>{said(title)}</figcaption>"
    if not known:
        return f'<figure>{caption}<div class="gn-missing">{said(missing)}</div></figure>'
    limits = [curve.limits for _, curve in known]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    span_x, span_y = max(curves.last - curves.first, 1.0), (high - low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        down = _TOP + (high - y) / span_y * (_TALL - _TOP - _FOOT) if high > low else (_TALL - _FOOT + _TOP) / 2
        return _LEFT + (x - curves.first) / span_x * (_WIDE - _LEFT - 8), down

    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDE - 8}" y1="{y}" y2="{y}" stroke="currentColor" opacity=".15"/>'
        for y in (_TOP, _TALL - _FOOT)
    ]
    for y, value in {_TOP: high, _TALL - _FOOT: low}.items():
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 3}" text-anchor="end">{value:.3g}</text>')
    for x, anchor, value in ((_LEFT, "start", curves.first), (_WIDE - 8, "end", curves.last)):
        parts.append(f'<text x="{x}" y="{_TALL - 6}" text-anchor="{anchor}">step {value:.0f}</text>')
    for at, _ in curves.stages[1:40]:
        x, _ = place(at, low)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_TALL - _FOOT}" stroke="currentColor" '
                     'stroke-dasharray="1 2" opacity=".5"/>')  # fmt: skip
    for i, (_, curve) in enumerate(known, colour):
        drawn = [place(x, y) for x, y in zip(*curve.points(), strict=True)]
        means = [place(x, y) for x, y in zip(*curve.means(curves.window), strict=True)]
        parts.append(_polyline(drawn, _COLOURS[i % 6], 0.8, 0.4, ""))
        parts.append(_polyline(means, _COLOURS[i % 6], 2, 1, _DASHES[(i - colour) % 4]))
        if len(means) == 1:
            parts.append(f'<circle cx="{means[0][0]:.1f}" cy="{means[0][1]:.1f}" r="3" fill="{_COLOURS[i % 6]}"/>')
    if step is not None:
        x, _ = place(curves.position(step), low)
        parts.append(f'<line class="gn-chosen" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{_TALL - _FOOT}" '
                     'stroke="currentColor" stroke-width="1.3"/>')  # fmt: skip
    for at, severity, alert in reversed(marks[:100]):
        paint, shape = _SEVERITIES.get(severity, _INFO)
        tip = said(f"{severity}, step {alert['step']:.0f}: {alert.get('message', alert.get('rule', ''))}")
        parts.append(f'<polygon class="gn-mark" points="{shape}" transform="translate({place(at, low)[0]:.1f},0)" '
                     f'fill="{paint}"><title>{tip}</title></polygon>')  # fmt: skip
    ends = "".join(
        f'<span><svg width="20" height="8" style="display:inline;width:20px" aria-hidden="true"><line x1="0" x2="20" y1="4" '
        f'y2="4" stroke="{_COLOURS[i % 6]}" stroke-width="2" stroke-dasharray="{_DASHES[i % 4]}"/></svg> {said(name)}</span>'
        for i, (name, _) in enumerate(known)
    )
    words = f"{title}: " + "; ".join(
        f"{name} from {c.means(1)[1][0]:.3g} to {c.means(1)[1][-1]:.3g}" for name, c in known
    )
    key = f'<div class="gn-key">{ends}</div>' if len(lines) > 1 else ""
    broken = sum(curve.broken_count for _, curve in known)
    note = f'<div class="gn-critical">NaN at {broken} steps</div>' if broken else ""
    return (
        f'<figure>{caption}<svg viewBox="0 0 {_WIDE} {_TALL}" role="img" aria-label="{said(words)}">{"".join(parts)}</svg>'
        f"{key}{note}</figure>"
    )


def _polyline(points: Sequence[tuple[float, float]], colour: str, width: float, opacity: float, dash: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}" '
        f'stroke-dasharray="{dash}" stroke-linejoin="round"/>'
    )


def alerts_view(alerts: Sequence[Mapping[str, Any]]) -> str:
    """Return the alerts of the run in words, the latest first."""
    if not alerts:
        return '<div class="gn-soft">No alert so far.</div>'
    plain = [alert if isinstance(alert, Mapping) else alert.to_dict() for alert in alerts]
    lines = "".join(
        f'<li><span class="gn-{said(alert.get("severity", "info"))}">{said(alert.get("severity", "info"))}</span>, '
        f"step {alert['step']:.0f}: {said(shorten(str(alert.get('message', alert.get('rule', ''))), 400))}"
        + (f" <span class='gn-soft'>{said(shorten(str(alert['advice']), 400))}</span>" if alert.get("advice") else "")
        + "</li>"
        for alert in plain[:-21:-1]
    )
    more = f'<div class="gn-soft">and {len(plain) - 20} earlier ones in alerts.jsonl</div>' if len(plain) > 20 else ""
    return f'<ul class="gn-alert-list">{lines}</ul>{more}'


# Groups.


def group_view(group: GroupScores) -> str:
    """Return the completions of a group in the order of their advantages, with everything that led to them."""
    if group.was is not None:
        return rescored_view(group)
    heads = "".join(
        f'<th class="gn-number">{said(name)}<br><span class="gn-soft">&times; {weight:g}</span></th>'
        for name, weight in group.scores.weights.items()
    )
    totals, lines = group.scores.totals, []
    for i in group.order:
        cells = "".join(
            f'<td class="gn-number" data-reward="{said(name)}">{number(values[i])}</td>'
            for name, values in group.scores.values.items()
        )
        lines.append(
            f'<tr class="gn-numbers" data-completion="{i}"><td>{i}</td>{cells}'
            f'<td class="gn-number gn-strong gn-total">{number(totals[i])}</td>'
            f'<td class="gn-number gn-advantage">{group.advantages[i]:+.3f}</td><td class="gn-push">'
            f"{push(group.advantages[i])}</td></tr>{_text_row(group.scores.completions[i], len(group.scores.values) + 4)}"
        )
    note = (
        "" if group.has_spread
        else '<div class="gn-note">All totals are equal: every advantage is 0, and GRPO learned nothing from this group.</div>'
    )  # fmt: skip
    return (
        f'{_prompt(group)}{note}<div class="gn-scroll" style="max-height:640px"><table class="gn-group"><thead><tr>'
        f"<th>#</th>{heads}"
        '<th class="gn-number">Total</th><th class="gn-number">Advantage</th><th>In training</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _text_row(text: str, columns: int) -> str:
    return (
        f'<tr><td class="gn-text" colspan="{columns}"><pre class="gn-box">'
        f"{said(shorten(text, _LONGEST)) or '(empty)'}</pre></td></tr>"
    )


def _prompt(group: GroupScores) -> str:
    return (
        f'<div><b>Question</b><pre class="gn-question">{said(shorten(group.question, _LONGEST))}</pre></div>'
        f'<details><summary class="gn-soft">The whole prompt</summary><pre class="gn-box gn-prompt">'
        f"{said(shorten(group.prompt, _LONGEST))}</pre></details>"
    )


def rescored_view(group: GroupScores) -> str:
    """Return a group under other weights beside what was logged: totals, advantages and order, was and would be."""
    was = group.was
    if was is None:
        return group_view(group)
    before = {i: place for place, i in enumerate(was.order, 1)}
    totals, old_totals, lines = group.scores.totals, was.scores.totals, []
    for place, i in enumerate(group.order, 1):
        old, new = push(was.advantages[i]), push(group.advantages[i])
        moved = said(new) if old == new else f'<span class="gn-strong">{said(old)} &rarr; {said(new)}</span>'
        text = " ".join(group.scores.completions[i].split()) or "(empty)"
        lines.append(
            f'<tr data-completion="{i}"><td>{i}</td><td class="gn-number gn-place">{_arrow(str(before[i]), str(place))}</td>'
            f'<td class="gn-number gn-total">{_arrow(number(old_totals[i]), number(totals[i]))}</td>'
            f'<td class="gn-number gn-advantage">{_arrow(f"{was.advantages[i]:+.3f}", f"{group.advantages[i]:+.3f}")}</td>'
            f'<td class="gn-push">{moved}</td><td class="gn-short" title="{said(shorten(text, 400))}">{said(text[:90])}</td>'
            "</tr>"
        )
    note = (
        "" if group.has_spread
        else '<div class="gn-note">With these weights all totals are equal: GRPO would learn nothing from this group.</div>'
    )  # fmt: skip
    return (
        f'{note}<div class="gn-scroll"><table class="gn-rescored"><thead><tr><th>#</th><th class="gn-number">Place</th>'
        '<th class="gn-number">Total</th><th class="gn-number">Advantage</th><th>In training</th><th>Completion</th></tr>'
        "</thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _arrow(old: str, new: str) -> str:
    if old == new:
        return new
    return f'<span class="gn-soft">{old} &rarr;</span> <span class="gn-strong">{new}</span>'


def whatif_note(step: StepGroups) -> str:
    """Return what the re-scoring is, and what it is not."""
    how = {"group": "their group", "batch": "the whole step"}.get(str(step.scale_rewards))
    scaled = (
        f"divided by the standard deviation of {how}" if how else "not divided by a standard deviation"
    ) + f" (scale_rewards={step.scale_rewards!r})"
    doubt = (
        "" if step.is_reproduced
        else '<div class="gn-note">The advantages that were logged do not follow from the logged scores and weights by TRL\'s '
        "formula, so compare the columns with care: weights may have changed during the run, or rewards were normalized "
        "before they were summed.</div>"
    )  # fmt: skip
    return (
        '<div class="gn-note"><b>Re-scored, not re-trained.</b> The completions are the ones that were sampled; trained with '
        "these weights from the start, the model would have written others. Advantages: total minus the mean of its group, "
        f"{said(scaled)}.</div>{doubt}"
    )


def step_view(step: StepGroups) -> str:
    """Return all groups of a step, each to be unfolded."""
    word = "group is" if step.without_spread == 1 else "groups are"
    spread = f"{step.without_spread} of {len(step.groups)} {word} without spread."
    groups = "".join(
        f"<details{' open' if i == 0 else ''}><summary>Group {group.number}: "
        f"{said(shorten(' '.join(group.question.split()), 100))} "
        f'<span class="gn-soft">mean total {number(group.mean_total)}</span></summary>{group_view(group)}</details>'
        for i, group in enumerate(step.groups)
    )
    note = whatif_note(step) if step.is_rescored else ""
    return f"{heading(f'Step {step.step} of {step.run}', spread)}{note}{groups}"


# Then and now.


def change_view(change: Change | None) -> str:
    """Return a group beside an earlier one: mean scores, and the first completion of each."""
    if change is None:
        return (
            '<p class="gn-soft">This is the first step with completions: there is nothing earlier to compare with.</p>'
        )
    heads = f'<th class="gn-number">step {change.early_step}</th><th class="gn-number">step {change.step}</th>'
    lines = "".join(
        f'<tr><td>{said(name)}</td><td class="gn-number">{number(old)}</td><td class="gn-number">{number(new)}</td>'
        f'<td class="gn-number gn-strong">{number(new - old) if math.isnan(new - old) else f"{new - old:+.3g}"}</td></tr>'
        for name, (old, new) in change.means.items()
    )
    which = (
        f"The same prompt, first sampled at step {change.early_step}." if change.is_same_prompt
        else f"This prompt was not sampled in the first {change.searched} steps, so another one stands in: group "
        f"{change.early.number} of step {change.early_step}. Part of the difference may be the question's."
    )  # fmt: skip
    kind = "gn-soft" if change.is_same_prompt else "gn-note"
    cards = "".join(
        f'<div class="gn-card"><b>Step {step}</b> <span class="gn-soft">the first of its {len(group.scores)} completions, '
        f"total {number(group.scores.totals[0])}</span>"
        + ("" if change.is_same_prompt else f'<pre class="gn-soft">{said(shorten(group.question, 600))}</pre>')
        + '<pre class="gn-box" style="margin-top:5px">'
        + f"{said(shorten(group.scores.completions[0], _LONGEST)) or '(empty)'}</pre></div>"
        for step, group in ((change.early_step, change.early), (change.step, change.now))
    )
    return (
        f'<div class="{kind}">{said(which)}</div><table class="gn-change" style="width:auto"><thead><tr>'
        "<th>Mean of the group</th>"
        f'{heads}<th class="gn-number">change</th></tr></thead><tbody>{lines}</tbody></table>'
        f'<div class="gn-two">{cards}</div>'
    )


def snapshot(run: Run, step: int | None = None) -> str:
    """Return a page of a run that needs no JavaScript: curves with alerts, a step's groups to unfold, then and now.

    Args:
        run: From `train` or `open_run`.
        step: With completions; the last one if not given.
    """
    curves = Curves(run.rows, beta=run.info["settings"]["beta"])
    steps = logged_steps(run)
    step = step if step is not None or not steps else steps[-1]
    alerts = read_rows(run.path / "alerts.jsonl")
    return snapshot_view(run, curves, alerts, read_step(run, step) if step is not None else None)


def snapshot_view(run: Run, curves: Curves, alerts: Sequence[Mapping[str, Any]], chosen: StepGroups | None) -> str:
    """Return the page from what is read already."""
    parts = [
        title_view(run),
        curves_view(curves, alerts, chosen.step if chosen else None, run.info["settings"]["beta"]),
        code("run.plot()"),
    ]
    if chosen is None:
        parts.append(NO_COMPLETIONS)
    else:
        change = change_since_start(run, chosen.step, chosen.groups[0].number)
        parts += [step_view(chosen), code(f"run.step({chosen.step})"), heading("Since the start"), change_view(change)]
    return standalone("".join(parts))
