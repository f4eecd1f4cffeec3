"""The export panel: a widget that picks a run and formats, says what they need before, and shows what came of them.

What it does are the calls of `gn.export.plan_export` and the exports themselves, whose lines stand under it. Core ipywidgets,
7.7 to 8. An export runs on the kernel's main thread: the panel shows its stages, and other cells wait until it is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as widgets

from grpo_nb.core.files import shown_path, target_of
from grpo_nb.core.pages import code_line, render
from grpo_nb.core.panels import Panel, above, button, in_panel, label, line, section, view
from grpo_nb.core.tables import escaped, facts
from grpo_nb.export.merged import export_adapter, export_merged
from grpo_nb.export.plan import ExportPlan, plan_targets
from grpo_nb.export.result import Export, Report
from grpo_nb.export.use import inference_commands
from grpo_nb.runs.run import Run, open_run

_DTYPES = ("auto", "bfloat16", "float16", "float32")
_NO_RUN = ("no run found", None)
LABELS = {
    "merged": "Merged model: transformers, vLLM",
    "adapter": "Adapter alone: peft, vLLM, another training",
    "q8_0": "GGUF, 8 bit: llama.cpp, Ollama, LM Studio",
    "f16": "GGUF, 16 bit",
    "q4_k_m": "GGUF, 4 bit: needs llama.cpp's quantizer",
}
_STOPPED = "stopped by hand; nothing half-made stays."
_MARKS = {"done": "gn-pass", "now": "gn-strong", "failed": "gn-fail"}


class ExportPanel(Panel):
    """Export a run: pick it and the formats, see size and checks before, watch the stages, read what was verified.

    Args:
        run: From `train` or `open_run`, or its folder; else it is picked from those in `run_root`.
        run_root: Where runs are.
        path: The folder under which each format gets one of its own; `exports/` and the run's name if not given.

    >>> ExportPanel("runs/first")  # doctest: +SKIP
    """

    panel_title = "Export"
    panel_sheets: ClassVar[tuple[str, ...]] = ("export/panel.css",)
    panel_class: ClassVar[str] = "gn-export"

    def __init__(
        self, run: Run | str | Path | None = None, *, run_root: str | Path = "runs", path: str | Path | None = None
    ) -> None:
        super().__init__()
        self.run_root = target_of(run_root)
        self.plan: ExportPlan | None = None
        """What the formats that are chosen need; None where there is no run."""
        self.outcomes: dict[str, Export | str] = {}
        """What came of the last exports, by format: an export, or why there is none."""
        self._given = None if run is None else open_run(run)
        self._path = path
        self._stages: list[tuple[str, str]] = []
        self._lay_out()
        self._connect()
        self.refresh()

    # What a cell can read and set.

    @property
    def run(self) -> Run | None:
        """The run that is picked."""
        return self._runs.value

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that are chosen."""
        return tuple(name for name, box in self._boxes.items() if box.value)

    @formats.setter
    def formats(self, formats: Sequence[str]) -> None:
        unknown = [name for name in formats if name not in self._boxes]
        if unknown:
            raise ValueError(f"formats names {unknown[0]!r}, but there are {list(self._boxes)}.")
        for name, box in self._boxes.items():
            box.value = name in formats

    @property
    def exports(self) -> dict[str, Export]:
        """The exports made here, by format."""
        return {name: outcome for name, outcome in self.outcomes.items() if isinstance(outcome, Export)}

    def refresh(self, _: Any = None) -> None:
        """Look for runs again, and plan again."""
        self._find_runs()
        self._show_run()

    def __repr__(self) -> str:
        if self.run is None:
            return f"ExportPanel: no run in {self.run_root}"
        made = ", ".join(f"{n} {'verified' if n in self.exports else 'not exported'}" for n in self.outcomes)
        return f"ExportPanel of {self.run.name}: {', '.join(self.formats) or 'no format'} chosen; {made or 'nothing exported'}"

    # What there is.

    def _lay_out(self) -> None:
        self._runs = above(widgets.Dropdown(options=[_NO_RUN], description="Pick a run"), "420px")
        self._refresh_button = button("Look again", tooltip="Look for new runs, and check disk and memory again")
        self._folder = above(widgets.Text(continuous_update=False, description="Folder for the exports"), "340px")
        self._dtype = above(widgets.Dropdown(options=_DTYPES, description="Number type of the merged model"), "220px")
        self._replace = widgets.Checkbox(description="Replace what is there", indent=False, layout={"width": "auto"})
        self._boxes = {
            name: widgets.Checkbox(name == "merged", description=text, indent=False, layout={"width": "auto"})
            for name, text in LABELS.items()
        }
        formats = widgets.VBox(list(self._boxes.values()))
        formats.add_class("gn-formats")
        self._export_button = button("Export", "primary")
        self._progress = widgets.IntProgress(min=0, max=1, layout={"width": "220px", "visibility": "hidden"})
        self._run_view, self._plan_view, self._code_view = view(), view(), view()
        self._stages_view, self._results = view(), view()
        self.children = [
            self._header(),
            section("Run", "what is exported", line([self._runs, self._refresh_button]), self._run_view),
            section("Formats", "each is verified against the trained model before it is kept", formats,
                    line([self._folder, self._dtype, self._replace])),
            section("Before", "what it needs, and what stands in the way", self._plan_view,
                    line([self._export_button, self._progress]), self._errors, self._stages_view, self._code_view),
            section("Results", "what was verified", self._results),
        ]  # fmt: skip
        self._pictured = [
            ("Run", [self._run_view]), ("Before", [self._plan_view, self._code_view]), ("Progress", [self._stages_view]),
            ("Results", [self._results]),
        ]  # fmt: skip

    def _connect(self) -> None:
        self._refresh_button.on_click(self.refresh)
        self._export_button.on_click(self._export)
        self._on_change(self._runs, self._show_run)
        for control in (*self._boxes.values(), self._folder, self._dtype, self._replace):
            self._on_change(control, self._show_plan)

    # What happens.

    def _find_runs(self) -> None:
        found = [] if self._given is None else [self._given]
        if self._given is None and self.run_root.is_dir():
            files = [*self.run_root.glob("*/run.json"), *self.run_root.glob("*/*/run.json")]
            files = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
            for file in files:
                with contextlib.suppress(ValueError):  # one that leads out of its folder is not offered
                    found.append(open_run(file.parent))
        chosen = self.run.path if self.run is not None else None
        options = [(label(_label(run)), run) for run in found] or [_NO_RUN]
        with self._quietly():
            self._runs.options = options
            kept = [run for _, run in options if run is not None and run.path == chosen]
            self._runs.value = kept[0] if kept else options[0][1]
            self._runs.disabled = len(options) == 1

    @in_panel
    def _show_run(self) -> None:
        # First, for a run that cannot be read goes no further, and must not stand above the plan of the one before.
        self._clear_plan()
        self._run_view.value = ""
        self._run_view.value = _known_of(self.run, self.run_root)
        self.outcomes, self._stages = {}, []
        with self._quietly():
            if self.run is not None:
                self._folder.value = str(self._path or Path("exports") / self.run.name)
        self._show_outcomes()
        self._show_plan()

    @in_panel
    def _show_plan(self) -> None:
        self._clear_plan()
        if self.run is None:
            return
        targets = {name: self._target / name for name in self.formats}
        self.plan = plan_targets(self.run, targets, dtype=self._dtype.value, overwrite=self._replace.value)
        made = {export.path for export in self.exports.values()}
        said = {row.format: "made just now, see below" for row in self.plan.rows if row.problems and row.target in made}
        table = (
            self.plan.table(said).html().replace("or say overwrite=True", "or tick &quot;Replace what is there&quot;")
        )
        nothing = '<p class="gn-soft">Choose at least one format.</p>'
        self._plan_view.value = f'<div class="gn-scroll gn-plan">{table}</div>' if targets else nothing
        self._export_button.disabled = bool(self.plan.problems) or not targets
        self._code_view.value = code_line("\n".join(self._lines(targets))) if targets else ""

    def _clear_plan(self) -> None:
        self.plan, self._export_button.disabled = None, True
        self._plan_view.value = self._code_view.value = ""

    @property
    def _target(self) -> Path:
        return target_of(self._folder.value.strip() or "exports")

    def _lines(self, targets: dict[str, Path]) -> list[str]:
        """The same in code, one line a format."""
        more = ", overwrite=True" if self._replace.value else ""
        dtype = f", dtype={self._dtype.value!r}" if self._dtype.value != "auto" else ""
        lines = [f"run = gn.open_run({str(shown_path(self.run.path))!r})"]
        for name, path in targets.items():
            if name == "merged":
                lines.append(f"merged = gn.export_merged(run, {str(path)!r}{dtype}{more})")
            elif name == "adapter":
                lines.append(f"gn.export.export_adapter(run, {str(path)!r}{more})")
            else:
                of = "merged" if "merged" in targets else "run"
                lines.append(f"gn.export_gguf({of}, {str(path)!r}, quantization={name!r}{more})")
        return lines

    @in_panel
    def _export(self) -> None:
        run, formats = self.run, self.formats
        # A second click that came while the first was at work is told of afterwards, and finds the button shut.
        if run is None or not formats or self._export_button.disabled:
            return
        self.outcomes, self._stages = {}, []
        controls = [self._runs, self._refresh_button, self._folder, self._dtype, self._replace, self._export_button]
        controls += self._boxes.values()
        was_disabled = [control.disabled for control in controls]
        for control in controls:
            control.disabled = True
        self._progress.max, self._progress.value, self._progress.layout.visibility = len(formats), 0, "visible"
        try:
            for name in formats:
                self.outcomes[name] = self._one(run, name)
                self._progress.value += 1
                self._show_outcomes()
                if self.outcomes[name] == _STOPPED:
                    break
        finally:
            for control, before in zip(controls, was_disabled, strict=True):
                control.disabled = before
            self._progress.layout.visibility = "hidden"
        # "Replace what is there" was said of what was there then, not of what has just been made.
        with self._quietly():
            self._replace.value = self._replace.value and not self.exports
        # Sizes on the disk and targets are others now, and so is the run's list of exports.
        self._run_view.value = _known_of(run, self.run_root)
        self._show_plan()

    def _one(self, run: Run, name: str) -> Export | str:
        said = _name(name)
        self._stage(f"{said}: starting")
        try:
            made: Export | str = export_format(
                run, name, self._target / name, merged=self.exports.get("merged"), dtype=self._dtype.value,
                overwrite=self._replace.value, report=lambda text: self._stage(f"{said}: {text}"),
            )  # fmt: skip
        except KeyboardInterrupt:
            made = _STOPPED
        except Exception as error:
            made = " ".join(str(error).split()) or type(error).__name__
        self._end_stage("done" if isinstance(made, Export) else "failed")
        return made

    def _stage(self, text: str) -> None:
        self._end_stage("done", ("now", text))

    def _end_stage(self, mark: str, *begun: tuple[str, str]) -> None:
        """Mark the stage that is going on, if one is, and show it with what begins now."""
        self._stages = [(mark if now == "now" else now, text) for now, text in self._stages] + list(begun)
        shown = (f'<li><span class="gn-mark {_MARKS[m]}">{m}</span>{escaped(text)}</li>' for m, text in self._stages)
        self._stages_view.value = f'<ul class="gn-stages" aria-live="polite">{"".join(shown)}</ul>'

    def _show_outcomes(self) -> None:
        ways = {name: inference_commands(export)._repr_html_() for name, export in self.exports.items()}
        names = {name: _name(name) for name in LABELS}
        self._results.value = render("export/templates/outcomes.jinja", outcomes=self.outcomes, names=names, ways=ways)
        if not self._stages:
            self._stages_view.value = ""


def _name(format: str) -> str:
    return LABELS[format].partition(":")[0]


def _label(run: Run) -> str:
    try:
        rows = run.rows
        return f"{run.name}: {run.status}, " + (f"{int(rows[-1]['step'])} steps" if rows else "no step yet")
    except (AttributeError, KeyError, OSError, TypeError, ValueError):  # a damaged run must not hide the others
        return f"{run.name}: cannot be read"


def _known_of(run: Run | None, root: Path) -> str:
    """What is known of the run that was picked, as HTML."""
    if run is None:
        return (
            f'<p class="gn-soft">There is no run in {escaped(root)}. Train one, or say where they are: '
            "<code>gn.export.ExportPanel(run_root=...)</code>.</p>"
        )
    measured = run.comparison.sentence if run.comparison else "not measured: gn.compare(run, task) before you export"
    known = {"State": run.status_sentence, "Base model": run.settings.model, "Held-out": measured}
    if made := list(dict.fromkeys(entry.path for entry in run.exports)):
        known["Exports so far"] = ", ".join(made[-4:])
    return f'<div class="gn-facts">{facts(known).html()}</div>'


def export_format(
    run: Run, name: str, path: Path, *, merged: Export | None, dtype: str, overwrite: bool, report: Report
) -> Export:
    """Make one format; a GGUF file from the merged model where that was made just before."""
    if name == "merged":
        return export_merged(run, path, dtype=dtype, overwrite=overwrite, report=report)
    if name == "adapter":
        return export_adapter(run, path, overwrite=overwrite)
    from grpo_nb.export.gguf import export_gguf

    return export_gguf(merged or run, path, quantization=name, overwrite=overwrite, report=report)
