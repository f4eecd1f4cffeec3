"""The run viewer: a widget over a run's folder. What it shows is `Run`'s to compute, and can be had without it.

Core ipywidgets, 7.7 to 8. Callbacks run on the kernel's main thread between cells: during a training in the same kernel
nothing here answers, from another notebook everything does.
"""

import base64
from pathlib import Path
from typing import ClassVar

import ipywidgets as widgets

from grpo_nb.core.pages import code_line, style, title
from grpo_nb.core.panels import Panel, above, button, in_panel, line, section
from grpo_nb.core.panels import view as empty_view
from grpo_nb.runs.figure import png
from grpo_nb.runs.groups import StepGroups, view
from grpo_nb.runs.run_folder import Run, open_run

_NO_STEP = ("none yet", -1)  # a slider takes no None


class RunViewer(Panel):
    """Look into a run, finished, crashed or running: its curves and alerts, any step's completions.

    Reads the file of the step that is shown and no other.

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
        self.logged: StepGroups | None = None
        """The step shown, as it was logged; None where the run has no completions yet."""
        self._title, self._curves_view, self._step_view = empty_view(), empty_view(), empty_view()
        self._refresh_button = button(
            "Read again", tooltip="Read what a running training has written since"
        )
        self._slider = above(
            widgets.SelectionSlider(options=[_NO_STEP], description="Step"), "340px"
        )
        self._slider.continuous_update = False
        curves = "triangles and diamonds mark the alerts"
        self.children = [
            widgets.HTML(style(*self.panel_sheets)),
            line([self._title, self._refresh_button]),
            self._errors,
            section("Curves", curves, self._curves_view, widgets.HTML(code_line("run.plot()"))),
            self._slider,
            section(
                "The step",
                "its groups, completions in the order of their advantages",
                self._step_view,
            ),
        ]
        self._pictured = (("Curves", [self._curves_view]), ("The step", [self._step_view]))
        self._refresh_button.on_click(self.refresh)
        self._slider.observe(self._pick_step, "value")
        self.refresh()

    @property
    def step(self) -> int | None:
        """The step shown; setting it goes to that step, or the nearest with completions."""
        return self._slider.value if self._slider.value >= 0 else None

    @step.setter
    def step(self, step: int) -> None:
        self._slider.value = min(
            (known for _, known in self._slider.options), key=lambda known: abs(known - step)
        )

    @in_panel
    def refresh(self) -> None:
        """Read what a running training has written since."""
        shown, was_last = self.step, self._slider.index == len(self._slider.options) - 1
        self.panel_title, steps = f"Run {self.run.name}: {self.run.status}", self.run.steps
        self._title.value = title(self.panel_title)
        with self._quietly():
            self._slider.options = [(str(step), step) for step in steps] or [_NO_STEP]
            self._slider.value = (
                (steps[-1] if was_last or shown not in steps else shown) if steps else -1
            )
        figure = self.run.plot()
        picture, words = (
            base64.b64encode(png(figure)).decode(),
            f"Training curves. {figure.get_label()}",
        )
        self._curves_view.value = view("curves", picture=picture, alt=words, alerts=self.run.alerts)
        self._pick_step()

    def __repr__(self) -> str:
        return f"RunViewer of {self.run.name} ({self.run.status}): step {self.step}"

    @in_panel
    def _pick_step(self) -> None:
        """Show the groups of the step, each to be unfolded."""
        if not self._is_quiet:
            self.logged = self.run.step(self.step) if self.step is not None else None
            self._step_view.value = view("step", step=self.logged, at=self.step)
