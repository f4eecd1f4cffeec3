"""Evaluations, comparisons and transcripts as HTML, in the style of the reward lab. Everything that a model, a user or a data
set wrote is escaped here. The only script is the search field's, a fixed line without any data in it; where a page runs no
scripts the field does nothing and all transcripts stay.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.evaluation_transcripts import Transcript, Transcripts, verdict_of
from grpo_nb.lab_html import code, said
from grpo_nb.lab_style import STYLE
from grpo_nb.metrics import shown_path
from grpo_nb.reward_calls import shorten

if TYPE_CHECKING:
    from grpo_nb.evaluation_result import Comparison, Evaluation

# A notebook that holds thousands of answers opens slowly; the parquet file has them all.
_SHOWN, _LONGEST = 200, 6000

_OWN_STYLE = """<style>
.gn-eval { max-width: 980px; }
.gn-eval .gn-numbers { width: auto; min-width: min(560px, 100%); }
.gn-eval .gn-numbers th, .gn-eval .gn-numbers td { max-width: none; }
.gn-eval.gn-lab .gn-numbers tbody th { text-align: left; font-weight: 500; vertical-align: top; }
.gn-eval .gn-result { font-size: 14px; font-weight: 600; margin: 2px 0 8px; }
.gn-eval details { border: 1px solid var(--gn-line); border-radius: 6px; margin: 6px 0; padding: 0 10px; }
.gn-eval summary { cursor: pointer; padding: 6px 0; display: flex; gap: 10px; align-items: baseline; }
.gn-eval summary .gn-asked { min-width: 0; flex: 1; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.gn-eval details[open] summary .gn-asked { white-space: pre-wrap; overflow-wrap: anywhere; }
.gn-eval .gn-badge { flex: none; min-width: 82px; font-weight: 600; }
.gn-eval .gn-gold { flex: none; max-width: 40%; overflow-wrap: anywhere; }
.gn-eval .gn-sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 10px;
  padding: 0 0 10px; }
.gn-eval .gn-sides > div { min-width: 0; }
.gn-eval pre.gn-box { margin: 3px 0 6px; }
.gn-eval input[type=search] { width: min(420px, 100%); height: 30px; padding: 3px 9px; margin: 2px 0 4px; font: inherit;
  color: inherit; background: transparent; border: 1px solid var(--gn-soft); border-radius: 5px; box-sizing: border-box; }
.gn-eval .gn-found { margin-left: 8px; }
</style>"""

_SEARCH = (
    "const all=this.closest('.gn-eval'),q=this.value.toLowerCase();let n=0;"
    "all.querySelectorAll('details').forEach(d=>{d.hidden=!d.textContent.toLowerCase().includes(q);n+=!d.hidden});"
    "all.querySelector('.gn-found').textContent=n+' shown'"
)
_BADGES = {"gained": ("gn-pass", "now right"), "lost": ("gn-fail", "now wrong")}


def _standing(body: str) -> str:
    return f'{STYLE}{_OWN_STYLE}<div class="gn-lab gn-eval">{body}</div>'


def _numbers(rows: Sequence[tuple[str, ...]], heads: Sequence[str]) -> str:
    head = "".join(f'<th scope="col" class="gn-number">{said(label)}</th>' for label in heads)
    body = "".join(
        f'<tr><th scope="row">{said(name)}</th>'
        + "".join(f'<td class="gn-number">{said(v)}</td>' for v in values)
        + "</tr>"
        for name, *values in rows
    )
    return f'<table class="gn-numbers"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<div class="gn-note">{said(note)}</div>' for note in notes)


def evaluation_view(evaluation: Evaluation) -> str:
    """Return the numbers of one model."""
    about = f"{evaluation.questions} questions, {evaluation.drawn}. {evaluation.subject}"
    return _standing(
        _numbers(evaluation.numbers(), [evaluation.label])
        + f'<p class="gn-soft">{said(about)}</p>{_notes(evaluation.notes)}'
    )


def comparison_view(comparison: Comparison) -> str:
    """Return the result in words, both models' numbers, and three transcripts, changed ones first."""
    kind = {"better": "gn-pass", "worse": "gn-fail"}.get(comparison.verdict, "")
    changed = ", ".join(f"{count} {name}" for name, count in comparison.changed.items() if count)
    power = "" if comparison.verdict == "no difference shown" else f" {comparison.power_sentence}"
    verdict, _, rest = comparison.sentence.partition(":")
    shown = comparison.transcripts()
    first = "changed answers first" if comparison.questions > 1 else "with both answers"
    saved = f" All of them: {shown_path(comparison.path / 'transcripts.html')}" if comparison.path else ""
    return _standing(
        f'<p class="gn-result"><span class="{kind}">{said(verdict)}</span>:{said(rest)}</p>'
        f"{_numbers(comparison.numbers(), [comparison.before.label, comparison.after.label])}"
        f'<p class="gn-soft">Questions: {said(changed)}.{said(power)}</p>{_notes(comparison.notes)}'
        f"{_figure(comparison)}{code(comparison.elsewhere, 'in lm-evaluation-harness') if comparison.elsewhere else ''}"
        f'<p class="gn-soft">{_count(len(shown))} of {comparison.questions} questions, {first}:{said(saved)}</p>'
        + "".join(transcript_view(item, shown.labels, is_open=True) for item in shown)
    )


def _figure(comparison: Comparison) -> str:
    from grpo_nb.evaluation_figure import alternative_text, comparison_figure
    from grpo_nb.plots import png

    picture = base64.b64encode(png(comparison_figure(comparison, has_words=False))).decode()
    alternative = said(alternative_text(comparison))
    return f'<img alt="{alternative}" src="data:image/png;base64,{picture}" style="max-width:100%;width:860px">'


def _count(number: int) -> str:
    return {1: "One", 2: "Two", 3: "Three"}.get(number, str(number))


def transcripts_page(transcripts: Transcripts, limit: int = _SHOWN) -> str:
    """Return transcripts with a field that searches in them."""
    shown = transcripts.items[:limit]
    left = transcripts.matching - len(shown)
    more = f'<p class="gn-soft">{left} more: transcripts(count=None, search="...").</p>' if left > 0 else ""
    items = "".join(transcript_view(item, transcripts.labels, is_open=i == 0) for i, item in enumerate(shown))
    return _standing(
        '<label>Search in questions and answers<br><input type="search" aria-label="Search in questions and answers" '
        f'oninput="{said(_SEARCH)}"></label><span class="gn-soft gn-found" role="status">{len(shown)} shown</span>{items}{more}'
    )


def transcript_view(item: Transcript, labels: Sequence[str], *, is_open: bool) -> str:
    """Return one question to be unfolded: what became of it, the gold answer, and both models' completions."""
    right = item.before["right"], item.after["right"]
    several = len(item.before["samples"]) > 1
    style, word = _BADGES.get(item.change, ("gn-soft", "still right" if right[0] else "still wrong"))
    if several:
        word = f"{right[0]} → {right[1]} of {len(item.before['samples'])}"
    sides = "".join(
        f'<div><span class="gn-soft">{said(label)}</span>{"".join(map(_completion, side["samples"]))}</div>'
        for label, side in zip(labels, item, strict=True)
    )
    return (
        f'<details{" open" if is_open else ""}><summary><span class="gn-badge {style}">{said(word)}</span>'
        f'<span class="gn-asked">{said(shorten(str(item.before["question"]), _LONGEST))}</span>'
        f'<span class="gn-gold"><span class="gn-soft">gold:</span> <b>{said(item.before["answer"])}</b></span></summary>'
        f'<div class="gn-sides">{sides}</div></details>'
    )


def _completion(row: Mapping[str, Any]) -> str:
    verdict = verdict_of(row)
    style = "gn-pass" if row["is_correct"] else "gn-fail"
    cut = ", cut at the limit" if row["is_cut"] else ""
    text = said(shorten(row["completion"], _LONGEST)) or "(empty)"
    return (
        f'<pre class="gn-box">{text}</pre><div class="gn-small"><span class="{style}">[{verdict}]</span> '
        f'<span class="gn-soft">{row["tokens"]} tokens{cut}</span></div>'
    )
