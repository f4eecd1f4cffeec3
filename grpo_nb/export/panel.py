"""The export panel: a widget that picks a run and formats, says what they need before, and shows what came of them.

What it does are the calls of `gn.export.plan_export` and the exports themselves, whose lines stand under it. Core ipywidgets,
7.7 to 8. An export runs on the kernel's main thread: the panel shows its stages, and other cells wait until it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from grpo_nb.core import above, button, code_line, label, line, section, shown_path, target_of, view
from grpo_nb.export import panel_views as views
from grpo_nb.export.panel_views import LABELS, Outcome
from grpo_nb.runs import Run, open_run

if TYPE_CHECKING:
    from grpo_nb.export.plan import ExportPlan
    from grpo_nb.export.result import Export

_DTYPES = ("auto", "bfloat16", "float16", "float32")
_NO_RUN = ("no run found", None)


def _in_panel(callback: Callable[..., None]) -> Callable[..., None]:
    """Show in the panel, in words, what a callback raises."""

    @functools.wraps(callback)
    def run(self: ExportPanel, *_: Any) -> None:
        self._status.value = ""
        try:
            callback(self)
        except Exception as error:
            self._status.value = f'<p class="gn-fail">{views.said(_in_words(error))}</p>'

    return run


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        return "stopped by hand; nothing half-made stays."
    return f"{text or type(error).__name__}"


class ExportPanel(widgets.VBox):
    """Export a run: pick it and the formats, see size and checks before, watch the stages, read what was verified.

    Args:
        run: From `train` or `open_run`, or its folder; else it is picked from those in `run_root`.
        run_root: Where runs are.
        path: The folder under which each format gets one of its own; `exports/` and the run's name if not given.

    >>> ExportPanel("runs/first")  # doctest: +SKIP
    """

    def __init__(
        self, run: Run | str | Path | None = None, *, run_root: str | Path = "runs", path: str | Path | None = None
    ) -> None:
        super().__init__()
        self.add_class("gn-lab")
        self.add_class("gn-export")
        self.run_root = Path(run_root)
        self.plan: ExportPlan | None = None
        """What the formats that are chosen need; None where there is no run."""
        self.outcomes: list[Outcome] = []
        """What came of the last exports, in the order of the formats."""
        self._given = None if run is None else run if isinstance(run, Run) else open_run(run)
        self._path = path
        self._stages: list[tuple[str, str]] = []
        self._is_quiet = False
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
        return {outcome.format: outcome.export for outcome in self.outcomes if outcome.export is not None}

    def refresh(self, _: Any = None) -> None:
        """Look for runs again, and plan again."""
        self._find_runs()
        self._show_run()

    def __repr__(self) -> str:
        if self.run is None:
            return f"ExportPanel: no run in {self.run_root}"
        made = ", ".join(f"{o.format} {'verified' if o.export else 'not exported'}" for o in self.outcomes)
        return f"ExportPanel of {self.run.name}: {', '.join(self.formats) or 'no format'} chosen; {made or 'nothing exported'}"

    # As for the reward lab: ipywidgets 7 shows a widget through this method, 8 through the other one.
    _ipython_display_ = None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        parts = [
            ("Run", [self._run_view]), ("Before", [self._plan_view, self._code_view]), ("Progress", [self._stages_view]),
            ("Results", [self._results]),
        ]  # fmt: skip
        page = views.page([(name, [shown.value for shown in held]) for name, held in parts])
        shown: dict[str, Any] = {"text/plain": repr(self), "text/html": page}
        if self.comm is not None:
            own = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
            shown["application/vnd.jupyter.widget-view+json"] = own
        return shown

    # What there is.

    def _lay_out(self) -> None:
        self._runs = above(widgets.Dropdown(options=[_NO_RUN], description="Pick a run"), "420px")
        self._refresh_button = button("Look again")
        self._refresh_button.tooltip = "Look for new runs, and check disk and memory again"
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
        self._stages_view, self._results, self._status = view(), view(), view()
        self.children = [
            widgets.HTML(views.title()),
            section("Run", "what is exported", line([self._runs, self._refresh_button]), self._run_view),
            section("Formats", "each is verified against the trained model before it is kept", formats,
                    line([self._folder, self._dtype, self._replace])),
            section("Before", "what it needs, and what stands in the way", self._plan_view,
                    line([self._export_button, self._progress]), self._status, self._stages_view, self._code_view),
            section("Results", "what was verified", self._results),
        ]  # fmt: skip

    def _connect(self) -> None:
        self._refresh_button.on_click(self.refresh)
        self._export_button.on_click(self._export)
        self._runs.observe(self._pick_run, "value")
        for control in (*self._boxes.values(), self._folder, self._dtype, self._replace):
            control.observe(self._show_plan, "value")

    # What happens.

    def _find_runs(self) -> None:
        found = [] if self._given is None else [self._given]
        if self._given is None and self.run_root.is_dir():
            files = [*self.run_root.glob("*/run.json"), *self.run_root.glob("*/*/run.json")]
            files = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
            found = [open_run(file.parent) for file in files]
        chosen = self.run.path if self.run is not None else None
        options = [(label(_label(run)), run) for run in found] or [_NO_RUN]
        self._is_quiet = True
        try:
            self._runs.options = options
            kept = [run for _, run in options if run is not None and run.path == chosen]
            self._runs.value = kept[0] if kept else options[0][1]
            self._runs.disabled = len(options) == 1
        finally:
            self._is_quiet = False

    def _pick_run(self, _: Any) -> None:
        if not self._is_quiet:
            self._show_run()

    @_in_panel
    def _show_run(self) -> None:
        # First, for a run that cannot be read goes no further, and must not stand above the plan of the one before.
        self._clear_plan()
        self._run_view.value = ""
        self._run_view.value = views.run_view(self.run, str(self.run_root))
        self.outcomes, self._stages = [], []
        self._is_quiet = True
        try:
            if self.run is not None:
                self._folder.value = str(self._path or Path("exports") / self.run.name)
        finally:
            self._is_quiet = False
        self._show_outcomes()
        self._show_plan()

    @_in_panel
    def _show_plan(self) -> None:
        if self._is_quiet:
            return
        self._clear_plan()
        if self.run is None:
            return
        self.plan = plan_formats(self.run, self.formats, self._target, self._dtype.value, self._replace.value)
        self._plan_view.value = views.plan_view(
            self.plan.rows, self.plan.free_disk, self.plan.free_memory, made=self._made_at(self._target)
        )
        self._export_button.disabled = bool(self.plan.problems) or not self.formats
        lines = self._lines()
        self._code_view.value = code_line("\n".join(lines)) if lines else ""

    def _clear_plan(self) -> None:
        self.plan, self._export_button.disabled = None, True
        self._plan_view.value = self._code_view.value = ""

    def _made_at(self, folder: Path) -> set[str]:
        return {name for name, export in self.exports.items() if export.path == folder / name}

    @property
    def _target(self) -> Path:
        return target_of(self._folder.value.strip() or "exports")

    def _lines(self) -> list[str]:
        """The same in code, one line a format."""
        if self.run is None:
            return []
        opened = f"run = gn.open_run({str(shown_path(self.run.path))!r})"
        more = ", overwrite=True" if self._replace.value else ""
        dtype = f", dtype={self._dtype.value!r}" if self._dtype.value != "auto" else ""
        lines, has_merged = [], "merged" in self.formats
        for name in self.formats:
            path = str(self._target / name)
            if name == "merged":
                lines.append(f"merged = gn.export_merged(run, {path!r}{dtype}{more})")
            elif name == "adapter":
                lines.append(f"gn.export.export_adapter(run, {path!r}{more})")
            else:
                of = "merged" if has_merged else "run"
                lines.append(f"gn.export_gguf({of}, {path!r}, quantization={name!r}{more})")
        return [opened, *lines] if lines else []

    @_in_panel
    def _export(self) -> None:
        run, formats = self.run, self.formats
        # A second click that came while the first was at work is told of afterwards, and finds the button shut.
        if run is None or not formats or self._export_button.disabled:
            return
        self.outcomes, self._stages = [], []
        controls = [self._runs, self._refresh_button, self._folder, self._dtype, self._replace, self._export_button]
        controls += self._boxes.values()
        was_disabled = [control.disabled for control in controls]
        for control in controls:
            control.disabled = True
        self._progress.max, self._progress.value, self._progress.layout.visibility = len(formats), 0, "visible"
        try:
            for name in formats:
                self.outcomes.append(self._one(run, name))
                self._progress.value += 1
                self._show_outcomes()
                if self.outcomes[-1].problem.startswith("stopped by hand"):
                    break
        finally:
            for control, before in zip(controls, was_disabled, strict=True):
                control.disabled = before
            self._progress.layout.visibility = "hidden"
        # "Replace what is there" was said of what was there then, not of what has just been made.
        self._is_quiet = True
        self._replace.value = self._replace.value and not self.exports
        self._is_quiet = False
        # Sizes on the disk and targets are others now, and so is the run's list of exports.
        self._run_view.value = views.run_view(run, str(self.run_root))
        self._show_plan()

    def _one(self, run: Run, name: str) -> Outcome:
        self._stage(f"{LABELS[name].partition(':')[0]}: starting")
        outcome = Outcome(name)
        try:
            outcome.export = export_format(
                run, name, self._target / name, merged=self.exports.get("merged"), dtype=self._dtype.value,
                overwrite=self._replace.value, report=lambda text: self._stage(f"{LABELS[name].partition(':')[0]}: {text}"),
            )  # fmt: skip
        except (Exception, KeyboardInterrupt) as error:
            outcome.problem = _in_words(error)
        self._end_stage("done" if outcome.export is not None else "failed")
        return outcome

    def _stage(self, text: str) -> None:
        self._end_stage("done")
        self._stages.append(("now", text))
        self._stages_view.value = views.stages_view(self._stages)

    def _end_stage(self, mark: str) -> None:
        if self._stages and self._stages[-1][0] == "now":
            self._stages[-1] = (mark, self._stages[-1][1])
        self._stages_view.value = views.stages_view(self._stages)

    def _show_outcomes(self) -> None:
        from grpo_nb.export.use import inference_commands

        ways = {name: inference_commands(export)._repr_html_() for name, export in self.exports.items()}
        self._results.value = views.outcomes_view(self.outcomes, ways)
        if not self._stages:
            self._stages_view.value = ""


def _label(run: Run) -> str:
    try:
        return views.run_label(run)
    except (AttributeError, KeyError, OSError, TypeError, ValueError):  # a damaged run must not hide the others
        return f"{run.name}: cannot be read"


def plan_formats(run: Run, formats: Sequence[str], path: Path, dtype: str, overwrite: bool) -> ExportPlan:
    """Plan formats that each get a folder of their own name under `path`, also where it is one alone."""
    from grpo_nb.export.plan import plan_targets

    return plan_targets(run, {name: path / name for name in formats}, dtype=dtype, overwrite=overwrite)


def export_format(
    run: Run,
    name: str,
    path: Path,
    *,
    merged: Export | None,
    dtype: str,
    overwrite: bool,
    report: Callable[[str], None],
) -> Export:
    """Make one format; a GGUF file from the merged model where that was made just before."""
    from grpo_nb.export.merged import export_adapter, export_merged

    if name == "merged":
        return export_merged(run, path, dtype=dtype, overwrite=overwrite, report=report)
    if name == "adapter":
        return export_adapter(run, path, overwrite=overwrite)
    from grpo_nb.export.gguf import export_gguf

    return export_gguf(merged or run, path, quantization=name, overwrite=overwrite, report=report)
