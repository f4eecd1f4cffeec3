"""The run viewer: a widget that shows the groups that `Run.step` returns.

The viewer uses only widgets that ipywidgets 7.7 to 8 have. Callbacks run on the kernel's main
thread between cells, so the viewer does not react during a training in the same kernel. Opened in
another notebook, it reacts during the training.
"""

from pathlib import Path

import ipywidgets as widgets

from grpo_nb.core.panels import Panel, as_callback, empty_view, section, with_label_above
from grpo_nb.runs.run_folder import Run, open_run


class RunViewer(Panel):
    """Widget that shows the completions of a step of a finished, crashed or running run.

    Only the file of the step that is shown is read. The newest step of the run is shown first; run
    the cell again for the steps that a training has written since. `run.plot()` has the curves.

    Args:
        run: A run from `train` or `open_run`, or the path of its folder.

    Raises:
        FileNotFoundError: There is no run at that path, or it has no completions yet.

    >>> RunViewer("runs/first")  # doctest: +SKIP
    """

    def __init__(self, run: Run | str | Path) -> None:
        super().__init__()
        self.run = open_run(run)
        self.panel_title = f"Run {self.run.name}: {self.run.status}"
        steps = self.run.steps
        if not steps:
            raise FileNotFoundError(f"the run {self.run.name!r} has no completions yet.")
        # Without continuous updates, because each step that is passed would read a file.
        slider = widgets.SelectionSlider(
            options=steps, value=steps[-1], description="Step", continuous_update=False
        )
        self._slider = with_label_above(slider, "340px")
        self._step_view = empty_view()
        self.children = [
            self._header(),
            self._error_view,
            self._slider,
            section(
                "The step",
                "its groups, as run.step(number) shows them, with the best completions first",
                self._step_view,
            ),
        ]
        # `Panel` draws this view where no widget can be shown.
        self._static_views = [("The step", self._step_view)]
        self._slider.observe(self._show_step, "value")
        self._show_step()

    def __repr__(self) -> str:
        return f"RunViewer of {self.run.name}: step {self._slider.value}"

    @as_callback
    def _show_step(self) -> None:
        """Show the groups of the chosen step; only the first one is unfolded."""
        groups = self.run.step(self._slider.value)
        self._step_view.value = groups._repr_html_()
