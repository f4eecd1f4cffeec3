"""How the reward lab looks: its style sheet, for light and dark pages, with JupyterLab's own colours where there are any."""

from __future__ import annotations

# Colours that must stand out are written out for both grounds: JupyterLab's own soft grey, green and red fall below the
# contrast of 4.5 to 1 that WCAG 2.1 asks of text. The selectors for dark are those of JupyterLab, Colab and VS Code.
STYLE = """<style>
.gn-lab { --gn-soft: #5b5f66; --gn-good: #1a7030; --gn-bad: #b3261e; --gn-line: var(--jp-border-color2, rgba(128,128,128,.35));
  --gn-mono: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace);
  color: var(--jp-ui-font-color1, inherit); font-size: 13px; line-height: 1.45; max-width: 1180px; }
body[data-jp-theme-light="false"] .gn-lab, html[theme="dark"] .gn-lab, body.vscode-dark .gn-lab {
  --gn-soft: #a9aeb6; --gn-good: #63c97a; --gn-bad: #ff8f86; }
.gn-lab .widget-html-content { line-height: 1.45; font-size: 13px; flex: 1 1 0; min-width: 0; width: 100%; }
.gn-lab .gn-title { font-size: 19px; font-weight: 600; margin: 2px 0 0; }
.gn-lab .gn-head { font-size: 14px; font-weight: 600; margin: 0 0 2px; }
.gn-lab .gn-soft { color: var(--gn-soft); }
.gn-lab .gn-head .gn-soft { font-weight: 400; font-size: 12px; margin-left: 4px; }
.gn-lab .gn-label { color: var(--gn-soft); font-size: 12px; margin: 8px 0 2px; }
.gn-lab .gn-panel { border: 1px solid var(--gn-line); border-radius: 6px; padding: 10px 14px 12px; }
.gn-lab .gn-scroll { overflow: auto; max-height: 380px; }
.gn-lab pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; margin: 0; font-size: 12px; line-height: 1.5;
  color: inherit; background: transparent; font-family: var(--gn-mono); }
.gn-lab code { font-family: var(--gn-mono); font-size: 11.5px; color: inherit; background: rgba(128,128,128,.12);
  border-radius: 3px; padding: 0 3px; word-break: normal; overflow-wrap: anywhere; }
.gn-lab pre.gn-box { background: rgba(128,128,128,.09); border-radius: 4px; padding: 6px 8px; overflow: auto;
  max-height: 210px; }
.gn-lab pre.gn-prompt { max-height: 300px; }
.gn-lab .gn-code { display: flex; gap: 8px; align-items: baseline; margin-top: 8px; }
.gn-lab .gn-code span { flex: none; font-size: 11px; color: var(--gn-soft); }
.gn-lab .gn-code pre { flex: 1; min-width: 0; max-height: 60px; overflow: auto; font-size: 11.5px; padding: 3px 7px;
  background: rgba(128,128,128,.09); border-radius: 4px; user-select: all; }
.gn-lab table { border-collapse: collapse; width: 100%; margin: 4px 0; font-size: 13px; color: inherit; table-layout: auto; }
.gn-lab th, .gn-lab td { padding: 5px 8px; vertical-align: top; max-width: 360px; white-space: normal;
  overflow-wrap: break-word; border: 0 solid var(--gn-line); border-bottom-width: 1px; font-size: 13px; }
.gn-lab th { font-weight: 600; vertical-align: bottom; white-space: nowrap; }
.gn-lab th.gn-number { max-width: 170px; overflow: hidden; text-overflow: ellipsis; }
.gn-lab th .gn-soft { font-weight: 400; }
.gn-lab.gn-lab thead th, .gn-lab.gn-lab tbody td { text-align: left; }
.gn-lab.gn-lab tr .gn-number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.gn-lab .gn-short { max-width: 150px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.gn-lab .gn-strong { font-weight: 600; }
.gn-lab .gn-push { white-space: nowrap; }
.gn-lab .gn-up { color: var(--gn-good); }
.gn-lab .gn-down { color: var(--gn-bad); }
.gn-lab .gn-verdict { min-width: 96px; }
.gn-lab .gn-pass { color: var(--gn-good); font-weight: 600; }
.gn-lab .gn-fail { color: var(--gn-bad); font-weight: 600; }
.gn-lab p.gn-pass, .gn-lab p.gn-fail, .gn-lab p.gn-soft { margin: 6px 0; }
.gn-lab .gn-small { font-size: 12px; }
.gn-lab .gn-errors { border-left: 4px solid var(--gn-bad); background: rgba(211,47,47,.09); padding: 8px 12px;
  border-radius: 4px; margin: 4px 0; }
.gn-lab .gn-errors pre { margin: 6px 0; }
.gn-lab .gn-note { border-left: 4px solid var(--jp-warn-color1, #b26a00); background: rgba(245,160,0,.1); padding: 6px 12px;
  border-radius: 4px; margin: 6px 0; }
.gn-lab .gn-cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: 10px;
  margin-top: 6px; }
.gn-lab .gn-card { border: 1px solid var(--gn-line); border-radius: 6px; padding: 8px 10px; min-width: 0; }
.gn-lab .gn-card .gn-box { margin-top: 5px; }
.gn-lab .gn-card ul { margin: 6px 0 0; padding-left: 18px; overflow-wrap: anywhere; }
.gn-lab mark { color: inherit; border-radius: 3px; padding: 1px 2px; background: rgba(120,120,120,.28); }
.gn-lab mark.gn-earned { background: rgba(46,160,67,.33); box-shadow: inset 0 -2px rgba(46,160,67,.9); }
.gn-lab mark.gn-lost { background: rgba(211,47,47,.25); box-shadow: inset 0 -2px rgba(211,47,47,.8); }
.gn-lab mark.gn-nothing { box-shadow: inset 0 -2px rgba(128,128,128,.8); }
.gn-lab .gn-above { display: flex; flex-direction: column; align-items: stretch; height: auto; }
.gn-lab .gn-above > .widget-label { text-align: left; width: auto; max-width: 100%; font-size: 12px; margin: 0;
  overflow: hidden; text-overflow: ellipsis; color: var(--gn-soft); }
.gn-lab .gn-above > input, .gn-lab .gn-above > select { flex: none; height: 28px; margin: 0; }
.gn-lab .widget-checkbox label { display: flex; align-items: center; }
.gn-lab .widget-checkbox input { margin: 0 6px 0 4px; }
.gn-lab textarea { font-family: var(--gn-mono); font-size: 12px; line-height: 1.45; resize: vertical; }
.gn-lab .gn-text > textarea { flex: none; min-height: 84px; max-height: 240px; overflow: auto; margin: 0;
  field-sizing: content; }
.gn-lab .gn-entries { overflow: hidden auto; margin: 0 2px 6px; }
.gn-lab .gn-entry { position: relative; margin: 0 0 6px; }
.gn-lab .gn-entry > .gn-text { margin: 0; }
.gn-lab button.gn-remove { position: absolute; top: 2px; right: 2px; height: 22px; line-height: 22px; font-size: 11px;
  padding: 0 8px; margin: 0; }
.gn-lab button.gn-remove:disabled { visibility: hidden; }
@media (max-width: 860px) {
  .gn-lab .gn-scores th, .gn-lab .gn-scores td { padding: 4px 3px; font-size: 12px; }
  .gn-lab .gn-scores .gn-short { display: none; }
  .gn-lab .gn-code { display: block; }
}
</style>"""
