"""The run viewer: a widget over a run's folder. What it shows is `Run`'s to compute, and can be had without it.

Core ipywidgets, 7.7 to 8. Callbacks run on the kernel's main thread between cells: during a training in the same kernel
nothing here answers, from another notebook everything does.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as widgets
from IPython import get_ipython

from grpo_nb.core.files import write_text
from grpo_nb.core.pages import code_line, style, title
from grpo_nb.core.panels import Panel, above, button, in_panel, label, line, section
from grpo_nb.core.panels import view as empty_view
from grpo_nb.core.tables import escaped
from grpo_nb.core.words import shorten
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.curves import Curves
from grpo_nb.runs.figure import TrainingFigure
from grpo_nb.runs.groups import GroupScores, StepGroups, standalone, view
from grpo_nb.runs.live import png
from grpo_nb.runs.run import Run, open_run

_NO_ALERT = ("choose an alert", None)
_NO_COMPLETIONS = '<p class="gn-soft">No completions have been recorded yet.</p>'


class RunViewer(Panel):
    """Look into a run, finished, crashed or running: its curves and alerts, any step's completions.

    Reads the file of the step that is shown and no other. Without JavaScript there is `snapshot`.

    Args:
        run: From `train` or `open_run`, or the path of its folder.

    Raises:
        FileNotFoundError: There is no run at that path.

    >>> RunViewer("runs/first")  # doctest: +SKIP
    """

    panel_sheets: ClassVar[tuple[str, ...]] = ("runs/viewer.css",)

    def __init__(self, run: Run | str | Path) -> None:
        super().__init__()
        self.run = open_run(run)
        self._steps: list[int] = []
        self._curves = Curves()
        self._figure: TrainingFigure | None = None
        self.alerts: list[Alert] = []
        """The alerts shown."""
        self.logged: StepGroups | None = None
        """The step shown, as it was logged; None where the run has no completions yet."""
        self._lay_out()
        self.refresh()

    # What a cell can read and set.

    @property
    def step(self) -> int | None:
        """The step shown; setting it goes to that step, or the nearest with completions."""
        return self.logged.step if self.logged is not None else None

    @step.setter
    def step(self, step: int) -> None:
        if not self._steps:
            raise ValueError(f"{self.run.name} has no completions yet, so there is no step to go to.")
        self._slider.value = self._nearest(step)

    @property
    def group(self) -> GroupScores | None:
        """The group shown, as it was logged."""
        return self._group_of(self.logged)

    @in_panel
    def refresh(self) -> None:
        """Read what a running training has written since."""
        beta = self.run.info["settings"]["beta"]
        self._figure = self._figure or TrainingFigure(self.run.weights, beta)
        # All of it, each time: a run that went back to a checkpoint has other rows than before, and may have more of them.
        self._curves, self.alerts = Curves(self.run.rows, beta=beta), self.run.alerts
        was_last = not self._steps or self._slider.value == self._steps[-1]
        self._steps = self.run.steps
        self._title.value = title(f"Run {self.run.name}: {self.run.status}")
        self._no_completions.value = "" if self._steps else _NO_COMPLETIONS
        for control in (self._slider, self._previous, self._next, self._group, self._alert):
            control.disabled = not self._steps
        with self._quietly():
            if self._steps:
                # Upper bound first, or a slider of 0 to 100 refuses steps beyond.
                self._slider.max, self._slider.min = max(self._steps[-1], self._slider.min), self._steps[0]
                self._slider.max = self._steps[-1]
                if was_last:
                    self._slider.value = self._steps[-1]
            said = [label(f"step {alert.step}, {alert.standing}: {alert.rule}") for alert in self.alerts]
            self._alert.options = [_NO_ALERT, *((text, i) for i, text in enumerate(said))]
        self._pick_step()

    def snapshot(self, path: str | Path | None = None) -> Path:
        """Write what is shown as a page that needs no JavaScript, and return its path.

        Args:
            path: `figures/viewer.html` in the run's folder if not given.
        """
        target = Path(path) if path is not None else self.run.path / "figures" / "viewer.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        head = f'<meta charset="utf-8"><title>Run {escaped(self.run.name)}</title>'
        page = f'<!doctype html><html lang="en"><head>{head}</head><body>{self._snapshot()}</body></html>\n'
        write_text(target, page)
        return target

    def __repr__(self) -> str:
        shown = f"step {self.step}" if self.step is not None else "no completions yet"
        return f"RunViewer of {self.run.name} ({self.run.status}): {shown}"

    def _snapshot(self) -> str:
        return standalone("snapshot", run=self.run, step=self.logged, **self._curves_shown())

    # What there is.

    def _lay_out(self) -> None:
        self._title = empty_view()
        self._refresh_button = button("Read again", tooltip="Read what a running training has written since")
        self._slider = widgets.IntSlider(continuous_update=False, description="Step", layout={"width": "340px"})
        self._slider.style.description_width = "40px"
        self._previous, self._next = button("Previous"), button("Next")
        self._alert = above(widgets.Dropdown(options=[_NO_ALERT], description="Go to an alert"), "300px")
        self._group = above(widgets.Dropdown(options=[("-", 0)], description="Group"), "320px")
        self._curves_view, self._curves_code = empty_view(), empty_view()
        self._group_view, self._group_code = empty_view(), empty_view()
        self._no_completions = empty_view()
        self.children = [
            widgets.HTML(style(*self.panel_sheets)),
            line([self._title, self._refresh_button]),
            self._errors,
            section("Curves", "the line marks the step shown, triangles and diamonds the alerts", self._curves_view,
                    self._curves_code),
            line([self._slider, self._previous, self._next, self._group, self._alert]),
            self._no_completions,
            section("The group", "completions in the order of their advantages", self._group_view, self._group_code),
        ]  # fmt: skip
        self._refresh_button.on_click(self.refresh)
        self._previous.on_click(lambda _: self._go(-1))
        self._next.on_click(lambda _: self._go(1))
        self._slider.observe(self._pick_step, "value")
        self._group.observe(self._show_group, "value")
        self._alert.observe(self._go_to_alert, "value")

    # What happens.

    def _nearest(self, step: int) -> int:
        return min(self._steps, key=lambda known: abs(known - step))

    def _go(self, by: int) -> None:
        if self._steps and self.step in self._steps:
            at = self._steps.index(self.step) + by
            self._slider.value = self._steps[min(max(at, 0), len(self._steps) - 1)]

    def _go_to_alert(self, change: Mapping[str, Any]) -> None:
        if not self._is_quiet and change["new"] is not None:
            self.step = self.alerts[change["new"]].step

    @in_panel
    def _pick_step(self) -> None:
        if self._is_quiet:
            return
        if not self._steps:
            self._show_curves()
            return
        nearest = self._nearest(self._slider.value)
        if nearest != self._slider.value:
            self._slider.value = nearest  # comes back here
            return
        if self.logged is None or self.logged.step != nearest:
            self.logged = self.run.step(nearest)
            chosen = self._group.value
            questions = {group.number: shorten(" ".join(group.question.split()), 60) for group in self.logged.groups}
            options = [(label(f"{number}: {question}"), number) for number, question in questions.items()]
            with self._quietly():
                self._group.options = options
                if chosen in questions:
                    self._group.value = chosen
        self._show_curves()
        self._show_group()

    def _curves_shown(self) -> dict[str, Any]:
        """What the view of the curves is given: the figure of `run.plot()` with a line at the step shown."""
        picture = ""
        if self._curves.rows:
            picture = base64.b64encode(png(self._figure.draw(self._curves, self.alerts, chosen=self.step))).decode()
        chosen = f" The line marks step {self.step}." if self.step is not None else ""
        return {"picture": picture, "alt": f"Training curves. {self._curves.sentence}{chosen}", "alerts": self.alerts}

    def _show_curves(self) -> None:
        self._curves_view.value = view("curves", **self._curves_shown())
        self._curves_code.value = code_line(f"{self._name}.plot()")

    @in_panel
    def _show_group(self) -> None:
        if self._is_quiet or self.logged is None or self.group is None:
            return
        name, at = self._name, self.logged.groups.index(self.group)
        self._group_view.value = view("group", group=self.group)
        self._group_code.value = code_line(f"{name}.step({self.step}).groups[{at}]")

    def _group_of(self, step: StepGroups | None) -> GroupScores | None:
        groups = step.groups if step is not None else ()
        return next((group for group in groups if group.number == self._group.value), None)

    @property
    def _name(self) -> str:
        """What the user's notebook calls the run."""
        shell = get_ipython()
        if shell is None:
            return "run"
        names = {id(found): name for name, found in shell.user_ns.items() if not name.startswith("_")}
        return names.get(id(self.run), f"{names.get(id(self), 'viewer')}.run")
