"""The run viewer: a widget that shows the groups of a step. The same can be had from `Run.step`.

Core ipywidgets, 7.7 to 8. Callbacks run on the kernel's main thread between cells: during a
training in the same kernel nothing here answers, from another notebook everything does.
"""

from pathlib import Path
from typing import ClassVar

import ipywidgets as widgets

from grpo_nb.core.pages import macro, style
from grpo_nb.core.panels import Panel, above, button, in_panel, line, section, view
from grpo_nb.runs.groups import render_view
from grpo_nb.runs.run_folder import Run, open_run

#: Option of the slider before the first step is recorded. A slider cannot hold None.
_NO_STEP = ("none yet", -1)


class RunViewer(Panel):
    """Widget that shows the completions of a step of a finished, crashed or running run.

    Only the file of the step that is shown is read. The curves are in `run.plot()`.

    Args:
        run: A run from `train` or `open_run`, or the path of its folder.

    Raises:
        FileNotFoundError: There is no run at that path.

    >>> RunViewer("runs/first")  # doctest: +SKIP
    """

    panel_sheets: ClassVar[tuple[str, ...]] = ("runs/viewer.css",)

    def __init__(self, run: Run | str | Path) -> None:
        super().__init__()
        self.run = open_run(run)
        self._title = view()
        self._step_view = view()
        self._refresh_button = button(
            "Read again", tooltip="Read what a running training has written since"
        )
        self._slider = above(
            widgets.SelectionSlider(options=[_NO_STEP], description="Step"), "340px"
        )
        self._slider.continuous_update = False
        self.children = [
            widgets.HTML(style(*self.panel_sheets)),
            line([self._title, self._refresh_button]),
            self._errors,
            self._slider,
            section(
                "The step",
                "its groups, completions in the order of their advantages",
                self._step_view,
            ),
        ]
        # `Panel` draws this view where no widget can be shown.
        self._static_views = (("The step", [self._step_view]),)
        self._refresh_button.on_click(self.refresh)
        self._slider.observe(self._pick_step, "value")
        self.refresh()

    @property
    def step(self) -> int | None:
        """Step that is shown; None if the run has no completions yet."""
        return self._slider.value if self._slider.value >= 0 else None

    @in_panel
    def refresh(self) -> None:
        """Read what a running training has written since, and show its newest step."""
        steps = self.run.steps
        self.panel_title = f"Run {self.run.name}: {self.run.status}"
        self._title.value = macro("title", self.panel_title)
        options = [(str(step), step) for step in steps] or [_NO_STEP]
        # Each of these assignments would draw a step.
        self._slider.unobserve(self._pick_step, "value")
        self._slider.options = options
        self._slider.index = len(options) - 1
        self._slider.observe(self._pick_step, "value")
        self._pick_step()

    def __repr__(self) -> str:
        return f"RunViewer of {self.run.name} ({self.run.status}): step {self.step}"

    @in_panel
    def _pick_step(self) -> None:
        """Show the groups of the chosen step, folded."""
        groups = self.run.step(self.step) if self.step is not None else None
        self._step_view.value = render_view("step", step=groups, run_step=self.step)
