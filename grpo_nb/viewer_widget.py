"""The run viewer: a widget over a run's folder. What it shows is computed by `grpo_nb.viewer`, and can be had without it.

Core ipywidgets, 7.7 to 8. Callbacks run on the kernel's main thread between cells: during a training in the same kernel
nothing here answers, from another notebook everything does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython import get_ipython

from grpo_nb import viewer_html as views
from grpo_nb.lab_code import name_in
from grpo_nb.lab_controls import above, button, heading, label, line, panel, view, weight_box
from grpo_nb.lab_html import STYLE, code, errors_view, said
from grpo_nb.metrics import Run, open_run
from grpo_nb.plots_curves import Curves, GrowingFile
from grpo_nb.reward_calls import shorten
from grpo_nb.viewer import Change, GroupScores, StepGroups, change_since_start, logged_steps, read_step

_NO_ALERT = ("choose an alert", None)


def _in_panel(callback: Callable[..., None]) -> Callable[..., None]:
    """Show in the viewer what a callback raises, a damaged file for example: a notebook loses it, or writes it into a log."""

    @functools.wraps(callback)
    def run(self: RunViewer, *_: Any) -> None:
        self._errors.value = ""
        try:
            callback(self)
        except Exception as error:
            self._errors.value = errors_view([error])

    return run


class RunViewer(widgets.VBox):
    """Look into a run, finished, crashed or running: its curves and alerts, any step's completions, then and now, what if.

    Reads the file of the step that is shown and no other. Without JavaScript there is `snapshot`.

    Args:
        run: From `train` or `open_run`, or the path of its folder.

    Raises:
        FileNotFoundError: There is no run at that path.

    >>> RunViewer("runs/first")  # doctest: +SKIP
    """

    def __init__(self, run: Run | str | Path) -> None:
        super().__init__()
        self.run = run if isinstance(run, Run) else open_run(run)
        self.add_class("gn-lab")
        self._given = run
        self._is_quiet = True
        self._steps: list[int] = []
        self._curves, self._beta = Curves(), self.run.info["settings"]["beta"]
        self._rows_file = GrowingFile(self.run.path / "metrics.jsonl")
        self._alerts_file = GrowingFile(self.run.path / "alerts.jsonl")
        self.alerts: list[dict[str, Any]] = []
        """The alerts shown."""
        self.logged: StepGroups | None = None
        """The step shown, as it was logged; None where the run has no completions yet."""
        self.rescored: StepGroups | None = None
        """The step shown, under the weights shown."""
        self.change: Change | None = None
        """The group shown beside its start."""
        self._weight_boxes: dict[str, widgets.FloatText] = {}
        self._lay_out()
        self._connect()
        self._is_quiet = False
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
        self._slider.value = min(self._steps, key=lambda known: abs(known - step))

    @property
    def group(self) -> GroupScores | None:
        """The group shown, as it was logged."""
        return self._group_of(self.logged)

    @property
    def weights(self) -> dict[str, float]:
        """The weights of "what if"."""
        return {name: box.value for name, box in self._weight_boxes.items()}

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            if name not in self._weight_boxes:
                raise ValueError(f"weights names {name!r}, but the rewards are {list(self._weight_boxes)}.")
            self._weight_boxes[name].value = weight

    def refresh(self, _: Any = None) -> None:
        """Read what a running training has written since."""
        self._read()
        self._pick_step()

    def snapshot(self, path: str | Path | None = None) -> Path:
        """Write what is shown as a page that needs no JavaScript, and return its path.

        Args:
            path: `figures/viewer.html` in the run's folder if not given.
        """
        target = Path(path) if path is not None else self.run.path / "figures" / "viewer.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        body = views.snapshot_view(self.run, self._curves, self.alerts, self.logged)
        head = f'<meta charset="utf-8"><title>Run {said(self.run.name)}</title>'
        target.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n', "utf-8")
        return target

    def __repr__(self) -> str:
        shown = f"step {self.step}" if self.step is not None else "no completions yet"
        return f"RunViewer of {self.run.name} ({self.run.status}): {shown}"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        # ipywidgets 8 only; 7 displays itself in another way. A page without JavaScript takes the HTML.
        bundle = super()._repr_mimebundle_(**options)
        return {**bundle, "text/html": views.snapshot_view(self.run, self._curves, self.alerts, self.logged)}

    # What there is.

    def _lay_out(self) -> None:
        self._title, self._errors = view(), view()
        self._refresh_button = button("Read again")
        self._refresh_button.tooltip = "Read what a running training has written since"
        self._slider = widgets.IntSlider(continuous_update=False, description="Step", layout={"width": "340px"})
        self._slider.style.description_width = "40px"
        self._previous, self._next = button("Previous"), button("Next")
        self._alert = above(widgets.Dropdown(options=[_NO_ALERT], description="Go to an alert"), "300px")
        self._group = above(widgets.Dropdown(options=[("-", 0)], description="Group"), "320px")
        self._curves_view, self._group_view, self._group_code = view(), view(), view()
        self._curves_code, self._change_view, self._change_code = view(), view(), view()
        self._weights_box = widgets.HBox(layout={"flex_flow": "row wrap", "align_items": "flex-end"})
        self._reset_button = button("Weights of the run")
        self._whatif_note, self._whatif_view, self._whatif_code = view(), view(), view()
        self._no_completions = view()
        curves = [heading("Curves", "the line marks the step shown, triangles and diamonds the alerts")]
        group = [heading("The group", "completions in the order of their advantages")]
        change = [heading("Since the start", "the same prompt, when it was sampled first and now")]
        what_if = [heading("What if", "move a weight: this step's totals, advantages and order follow")]
        self._step_panels = [
            panel([*group, self._group_view, self._group_code]),
            panel([*change, self._change_view, self._change_code]),
            panel([*what_if, self._whatif_note, line([self._weights_box, self._reset_button]), self._whatif_view,
                   self._whatif_code]),
        ]  # fmt: skip
        self.children = [
            widgets.HTML(STYLE + views.VIEWER_STYLE),
            line([self._title, self._refresh_button]),
            self._errors,
            panel([*curves, self._curves_view, self._curves_code]),
            line([self._slider, self._previous, self._next, self._group, self._alert]),
            self._no_completions,
            *self._step_panels,
        ]

    def _connect(self) -> None:
        self._refresh_button.on_click(self.refresh)
        self._previous.on_click(lambda _: self._go(-1))
        self._next.on_click(lambda _: self._go(1))
        self._reset_button.on_click(self._reset_weights)
        self._slider.observe(self._pick_step, "value")
        self._group.observe(self._show_group, "value")
        self._alert.observe(self._go_to_alert, "value")

    # What happens.

    @_in_panel
    def _read(self) -> None:
        rows, is_anew = self._rows_file.read()
        if is_anew or not self._curves.count:
            self._curves = Curves(beta=self._beta)
        for row in rows:
            self._curves.add(row)
        alerts, is_anew = self._alerts_file.read()
        self.alerts = alerts if is_anew else [*self.alerts, *alerts]
        was_last = not self._steps or self._slider.value == self._steps[-1]
        self._steps = logged_steps(self.run)
        self._title.value = views.title_view(self.run)
        self._no_completions.value = "" if self._steps else views.NO_COMPLETIONS
        for control in (self._slider, self._previous, self._next, self._group, self._alert):
            control.disabled = not self._steps
        self._is_quiet = True
        try:
            if self._steps:
                # Upper bound first, or a slider of 0 to 100 refuses steps beyond.
                self._slider.max, self._slider.min = max(self._steps[-1], self._slider.min), self._steps[0]
                self._slider.max = self._steps[-1]
                if was_last:
                    self._slider.value = self._steps[-1]
            self._alert.options = [_NO_ALERT, *((_said_of(a), i) for i, a in enumerate(self.alerts))]
        finally:
            self._is_quiet = False

    def _go(self, by: int) -> None:
        if self._steps and self.step in self._steps:
            at = self._steps.index(self.step) + by
            self._slider.value = self._steps[min(max(at, 0), len(self._steps) - 1)]

    def _go_to_alert(self, change: Mapping[str, Any]) -> None:
        if not self._is_quiet and change["new"] is not None:
            self.step = int(self.alerts[change["new"]]["step"])

    @_in_panel
    def _pick_step(self) -> None:
        if self._is_quiet:
            return
        if not self._steps:
            self._show_curves()
            return
        nearest = min(self._steps, key=lambda known: abs(known - self._slider.value))
        if nearest != self._slider.value:
            self._slider.value = nearest  # comes back here
            return
        if self.logged is None or self.logged.step != nearest:
            self.logged = read_step(self.run, nearest)
            chosen = self._group.value
            options = [(_group_name(group), group.number) for group in self.logged.groups]
            self._is_quiet = True
            try:
                self._group.options = options
                if chosen in dict(options).values():
                    self._group.value = chosen
                if list(self._weight_boxes) != list(self.logged.weights):
                    self._show_weights(self.logged.weights)
            finally:
                self._is_quiet = False
        self._show_curves()
        self._show_group()

    def _show_curves(self) -> None:
        self._curves_view.value = views.curves_view(self._curves, self.alerts, self.step, self._beta)
        self._curves_code.value = code(f"{self._name}.plot()")

    @_in_panel
    def _show_group(self) -> None:
        if self._is_quiet or self.logged is None or self.group is None:
            return
        number, name = self.group.number, self._name
        at = [group.number for group in self.logged.groups].index(number)
        self._group_view.value = views.group_view(self.group)
        self._group_code.value = code(f"{name}.step({self.step}).groups[{at}]")
        self._show_what_if()
        self.change = change_since_start(self.run, self.logged.step, at)
        self._change_view.value = views.change_view(self.change)
        self._change_code.value = code(
            f"from grpo_nb.viewer import change_since_start; change_since_start({name}, {self.step}, {at})"
        )

    def _show_weights(self, weights: Mapping[str, float]) -> None:
        self._weight_boxes = {name: weight_box(name, weight) for name, weight in weights.items()}
        for box in self._weight_boxes.values():
            box.observe(self._show_what_if, "value")
        self._weights_box.children = list(self._weight_boxes.values())

    def _reset_weights(self, _: Any = None) -> None:
        if self.logged is not None:
            self.weights = self.logged.weights

    @_in_panel
    def _show_what_if(self) -> None:
        if self._is_quiet or self.logged is None:
            return
        self.rescored = self.logged.reweighted(self.weights)
        before, after = self.logged.without_spread, self.rescored.without_spread
        spread = (
            f'<div class="gn-soft">Groups of this step without spread: {before} of {len(self.logged.groups)} as trained, '
            f"{after} with these weights.</div>"
        )
        self._whatif_note.value = views.whatif_note(self.logged)
        self._whatif_view.value = views.rescored_view(self._group_of(self.rescored)) + spread
        moved = {name: weight for name, weight in self.weights.items() if weight != self.logged.weights[name]}
        self._whatif_code.value = code(f"{self._name}.step({self.step}).reweighted({moved!r})")

    def _group_of(self, step: StepGroups | None) -> GroupScores | None:
        groups = step.groups if step is not None else ()
        return next((group for group in groups if group.number == self._group.value), None)

    @property
    def _name(self) -> str:
        """What the user's notebook calls the run."""
        shell = get_ipython()
        names: Mapping[str, Any] = shell.user_ns if shell is not None else {}
        if shell is None:
            return "run"
        return name_in(names, self.run, f"{name_in(names, self, 'viewer')}.run")


def _group_name(group: GroupScores) -> str:
    return label(f"{group.number}: {shorten(' '.join(group.question.split()), 60)}")


def _said_of(alert: Mapping[str, Any]) -> str:
    return label(f"step {alert['step']:.0f}, {alert.get('severity', 'info')}: {alert.get('rule', '')}")
