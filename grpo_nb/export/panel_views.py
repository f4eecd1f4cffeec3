"""The export panel's views as HTML. Everything that a user, a model or a path holds is escaped here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core import escaped as said
from grpo_nb.core import heading, style
from grpo_nb.runs import Run

if TYPE_CHECKING:
    from grpo_nb.export.plan import PlannedExport
    from grpo_nb.export.result import Export

PANEL_STYLE = """<style>
.gn-lab .gn-facts { margin: 8px 0 0; display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; }
.gn-lab.gn-lab .gn-facts dt { color: var(--gn-soft); font-weight: 400; white-space: nowrap; width: auto; float: none; }
.gn-lab.gn-lab .gn-facts dd { margin: 0; overflow-wrap: anywhere; width: auto; }
.gn-lab .gn-formats { margin: 4px 0 6px; overflow: visible; flex: none; }
.gn-lab.gn-export .gn-code { align-items: flex-start; }
.gn-lab.gn-export .gn-code pre { max-height: 130px; }
.gn-lab .gn-formats .widget-checkbox { width: auto; margin: 0; height: 24px; line-height: 24px; min-height: 0; }
.gn-lab .gn-plan td { max-width: 420px; }
.gn-lab .gn-plan td:last-child { min-width: 150px; overflow-wrap: anywhere; }
.gn-lab .gn-plan code { white-space: nowrap; }
.gn-lab .gn-stages { margin: 8px 0 0; padding: 0; list-style: none; }
.gn-lab .gn-stages li { padding: 1px 0; display: grid; grid-template-columns: 64px 1fr; }
.gn-lab .gn-result { border-top: 1px solid var(--gn-line); padding: 10px 0 6px; }
.gn-lab .gn-result:first-child { border-top: none; padding-top: 2px; }
.gn-lab .gn-result .gn-name { font-weight: 600; margin-right: 8px; }
.gn-lab .gn-result p { margin: 4px 0; overflow-wrap: anywhere; }
.gn-lab .gn-result summary { cursor: pointer; padding: 2px 0; }
</style>"""
LABELS = {
    "merged": "Merged model: transformers, vLLM",
    "adapter": "Adapter alone: peft, vLLM, another training",
    "q8_0": "GGUF, 8 bit: llama.cpp, Ollama, LM Studio",
    "f16": "GGUF, 16 bit",
    "q4_k_m": "GGUF, 4 bit: needs llama.cpp's quantizer",
}


@dataclass
class Outcome:
    """What came of one format: an export, or why there is none."""

    format: str
    export: Export | None = None
    problem: str = ""


def title() -> str:
    """Return the style sheets and the title of the panel."""
    return f'{style()}{PANEL_STYLE}<div class="gn-title" role="heading" aria-level="2">Export</div>'


def page(parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a panel that can only be read, for pages that show no widgets, from headings and the views under each."""
    shown = "".join(
        f'<div class="gn-panel" style="margin:6px 0">{heading(name)}{"".join(held)}</div>'
        for name, held in parts
        if any(held)
    )
    return f'<div class="gn-lab gn-export">{title()}{shown}</div>'


def run_label(run: Run) -> str:
    """Return a run on one line of a list."""
    return f"{run.name}: {run.status}, {_steps(run)}"


def _steps(run: Run) -> str:
    rows = run.rows
    return f"{int(rows[-1]['step'])} steps" if rows else "no step yet"


def run_view(run: Run | None, root: str) -> str:
    """Return what is known of the run that was picked."""
    if run is None:
        return (
            f'<p class="gn-soft">There is no run in {said(root)}. Train one, or say where they are: '
            "<code>gn.export.ExportPanel(run_root=...)</code>.</p>"
        )
    comparison = run.comparison
    measured = comparison.sentence if comparison else "not measured: gn.compare(run, task) before you export"
    facts = [("State", run.status_sentence), ("Base model", run.settings.model), ("Held-out", measured)]
    made = list(dict.fromkeys(entry.path for entry in run.exports))
    facts += [("Exports so far", ", ".join(made[-4:]))] if made else []
    return '<dl class="gn-facts">' + "".join(f"<dt>{said(a)}</dt><dd>{said(b)}</dd>" for a, b in facts) + "</dl>"


def plan_view(rows: Sequence[PlannedExport], free_disk: int, free_memory: int, made: Collection[str] = ()) -> str:
    """Return what each format will need and what stands in its way; `made` are those that were exported just now."""
    if not rows:
        return '<p class="gn-soft">Choose at least one format.</p>'
    lines = []
    for row in rows:
        kind, verdict = ("gn-fail", "; ".join(row.problems)) if row.problems else ("gn-pass", "ready")
        if row.problems and row.format in made:
            kind, verdict = "gn-soft", "made just now, see below"
        verdict = verdict.replace("or say overwrite=True", 'or tick "Replace what is there"')
        lines.append(
            f"<tr><td>{said(row.format)}</td><td><code>{said(row.target)}</code></td>"
            f'<td class="gn-number">{_size(row.bytes)}</td><td class="gn-number">{_size(row.disk)}</td>'
            f'<td class="gn-number">{_size(row.memory)}</td><td class="{kind}">{said(verdict)}</td></tr>'
        )
    return (
        '<div class="gn-scroll"><table class="gn-plan"><thead><tr><th>Format</th><th>Folder</th>'
        '<th class="gn-number">Size</th><th class="gn-number">Disk needed</th><th class="gn-number">Memory needed</th>'
        f"<th>Check</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<div class="gn-soft">Free here: {_size(free_disk)} of disk, {_size(free_memory)} of memory.</div>'
    )


def stages_view(stages: Sequence[tuple[str, str]]) -> str:
    """Return the stages so far, each `done`, `now` or `failed` in words."""
    kinds = {"done": "gn-pass", "now": "gn-strong", "failed": "gn-fail"}
    lines = "".join(
        f'<li><span class="gn-mark {kinds.get(mark, "")}">{said(mark)}</span>{said(text)}</li>' for mark, text in stages
    )
    return f'<ul class="gn-stages" aria-live="polite">{lines}</ul>'


def outcomes_view(outcomes: Sequence[Outcome], ways: Mapping[str, str]) -> str:
    """Return what came of each format, with its checks and how it is used."""
    if not outcomes:
        return '<p class="gn-soft">Nothing has been exported here yet.</p>'
    return "".join(_outcome(outcome, ways.get(outcome.format, "")) for outcome in outcomes)


def _outcome(outcome: Outcome, ways: str) -> str:
    name = said(LABELS.get(outcome.format, outcome.format).partition(":")[0])
    if outcome.export is None:
        return (
            f'<div class="gn-result"><span class="gn-name">{name}</span><span class="gn-fail">not exported</span>'
            f"<p>{said(outcome.problem)}</p></div>"
        )
    export = outcome.export
    checks = export.verification.get("checks", {})
    lines = "".join(_check(check, ok, export.verification) for check, ok in checks.items())
    table = (
        f"<table><thead><tr><th>Result</th><th>Check</th><th>Measured</th></tr></thead><tbody>{lines}</tbody></table>"
    )
    use = f"<details><summary>How to use it</summary>{ways}</details>" if ways else ""
    return (
        f'<div class="gn-result"><span class="gn-name">{name}</span>'
        f'<span class="gn-pass">verified: {sum(checks.values())} of {len(checks)} checks passed</span>'
        f"<p><code>{said(export.path)}</code></p><p>{said(export.sentence)}</p>"
        f"<details><summary>Checks</summary>{table}</details>{use}</div>"
    )


def _check(name: str, passed: bool, verification: Mapping[str, Any]) -> str:
    kind, word = ("gn-pass", "passed") if passed else ("gn-fail", "failed")
    measured = verification.get("measured", {}).get(name, "")
    return f'<tr><td class="{kind}">{word}</td><td>{said(name)}</td><td>{said(measured)}</td></tr>'


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
