"""The controls of the reward lab and how they are laid out; what they do is connected by `grpo_nb.widgets.RewardLab`.

Core ipywidgets that 7.7 and 8 share: tabs are named with `set_title`, each control has its label in words, rows wrap on a
narrow page.
"""

from __future__ import annotations

import contextlib
import functools
import html
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ipywidgets as widgets

from grpo_nb import lab_html as views
from grpo_nb.config import Settings
from grpo_nb.reward_calls import displayable

# ipywidgets 7 writes descriptions into the page as HTML, 8 as text: escaped here for 8 too, they would show twice escaped.
_DESCRIPTIONS_ARE_HTML = int(widgets.__version__.split(".")[0]) < 8
EVERY_REWARD = "every reward"
_WRAPPED = {"flex_flow": "row wrap", "align_items": "flex-end"}
_NO_MODEL = (
    '<span class="gn-soft gn-why">Sampling is off: the lab was given no model. Write completions yourself, or make it '
    "with <code>gn.RewardLab(rewards, task, model, tokenizer)</code>.</span>"
)


class LabControls(widgets.VBox):
    """Every control and view of the lab, in its place, still without function.

    Args:
        rows: How many rows there are to choose from.
        settings: For what the sampling controls begin with.
        has_model: Whether there is something to sample from.
    """

    def __init__(self, *, rows: int, settings: Settings, has_model: bool) -> None:
        super().__init__()
        self.add_class("gn-lab")
        self._status, self._errors = view(), view()
        self._status.add_class("gn-status")
        self._is_quiet = False
        row, completions = self._lay_out_row(rows), self._lay_out_completions(settings, has_model)
        self.children = [
            widgets.HTML(views.title()),
            widgets.HBox([row, completions], layout={"flex_flow": "row wrap", "align_items": "stretch"}),
            self._status,
            self._errors,
            self._lay_out_scores(),
            self._lay_out_marks(),
        ]
        self._pictured = [
            ("The row", [self._row_view]),
            ("", [self._errors]),
            ("Scores", [self._table, self._table_code]),
            ("Where it came from", [self._cards]),
        ]

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Change several controls without scoring after each."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    # ipywidgets 7 shows a widget through this method, 8 through the other one: the other one will do for both.
    _ipython_display_ = None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the widget, and for pages that cannot show one, as on GitHub, its views as they are now."""
        shown = {"text/plain": repr(self), "text/html": self._snapshot()}
        if self.comm is not None:
            view_of_widget = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
            shown["application/vnd.jupyter.widget-view+json"] = view_of_widget
        return shown

    def _snapshot(self) -> str:
        """Return what the lab shows, as HTML that needs no kernel."""
        return views.snapshot([(name, [shown.value for shown in panel]) for name, panel in self._pictured])

    def _add_tabs(self, tabs: Sequence[tuple[str, widgets.Widget]]) -> None:
        shown = widgets.Tab(layout={"margin": "6px 2px"})
        shown.children = [tab for _, tab in tabs]
        for number, (title, _) in enumerate(tabs):
            shown.set_title(number, title)
        self.children = [*self.children, shown]

    def _lay_out_row(self, rows: int) -> widgets.VBox:
        limits = f"Row, 0 to {rows - 1}"
        self._row = above(widgets.BoundedIntText(min=0, max=rows - 1, description=limits), "150px")
        self._row_view, self._row_code = view(), view()
        head = heading("The row", "training rows of the task")
        return panel([head, self._row, self._row_view, self._row_code], flex="1 1 350px")

    def _lay_out_completions(self, settings: Settings, has_model: bool) -> widgets.VBox:
        # Not a flex box, which would squeeze eight completions into its height instead of scrolling.
        self._entries = widgets.VBox(layout={"max_height": "500px", "display": "block"})
        self._entries.add_class("gn-entries")
        self._add_button, self._example_button = button("Add a completion"), button("Right and wrong example")
        size, length = settings.num_generations, settings.max_completion_length
        self._size = above(widgets.BoundedIntText(size, min=1, max=256, description="Group size"), "100px")
        self._temperature = above(
            widgets.BoundedFloatText(settings.temperature, min=0.0, max=5.0, step=0.1, description="Temperature"), "100px"
        )  # fmt: skip
        self._length = above(
            widgets.BoundedIntText(length, min=1, max=32_768, description="Longest, in tokens"), "130px"
        )
        self._sample_button, self._sample_code = button("Sample a group", "primary"), view()
        sampling = [self._size, self._temperature, self._length, self._sample_button]
        if not has_model:
            for control in sampling:
                control.disabled = True
            self._sample_code.value = _NO_MODEL
        head = heading("Completions", "one group, scored as you leave a box")
        buttons = line([self._add_button, self._example_button])
        return panel([head, self._entries, buttons, line(sampling), self._sample_code], flex="1 1 420px")

    def _lay_out_scores(self) -> widgets.VBox:
        self._weights_box = widgets.HBox(layout=_WRAPPED)
        self._reset_button, self._score_button = button("Reset weights"), button("Score again")
        self._table, self._table_code, self._weights_code = view(), view(), view()
        head = heading("Scores", "move a weight: totals and advantages follow, no reward is called again")
        weights = line([self._weights_box, self._reset_button, self._score_button])
        return panel([head, weights, self._table, self._table_code, self._weights_code])

    def _lay_out_marks(self) -> widgets.VBox:
        self._marked = above(widgets.Dropdown(options=[EVERY_REWARD], description="Mark what counted for"), "240px")
        self._cards, self._cards_code = view(), view()
        head = heading("Where it came from", "the parts of the text that each reward looked at")
        return panel([head, self._marked, self._cards, self._cards_code])


def in_panel(callback: Callable[..., None]) -> Callable[..., None]:
    """Make a method a callback that shows in the lab what it raises: a notebook loses that, or writes it into a log."""

    @functools.wraps(callback)
    def run(self: Any, *_: Any) -> None:
        with self.showing_errors():
            callback(self)

    return run


def label(text: str) -> str:
    """Return a text of the user's that can be a control's description."""
    return html.escape(displayable(text)) if _DESCRIPTIONS_ARE_HTML else displayable(text)


def view() -> widgets.HTML:
    """Return an empty view over the full width."""
    return widgets.HTML(layout={"width": "auto", "max_width": "100%"})


def heading(text: str, explanation: str) -> widgets.HTML:
    """Return the heading of a panel."""
    return widgets.HTML(views.heading(text, explanation))


def above(control: Any, width: str) -> Any:
    """Return the control with its label above it."""
    control.layout = widgets.Layout(width=width, max_width="100%")
    control.style.description_width = "initial"
    control.add_class("gn-above")
    return control


def line(controls: Sequence[widgets.Widget]) -> widgets.HBox:
    """Return controls side by side, on more lines where the page is narrow."""
    return widgets.HBox(list(controls), layout=_WRAPPED)


def panel(children: Sequence[widgets.Widget], flex: str = "0 0 auto") -> widgets.VBox:
    """Return a framed part of the lab."""
    framed = widgets.VBox(list(children), layout={"margin": "4px 2px", "flex": flex, "min_width": "0"})
    framed.add_class("gn-panel")
    return framed


def button(text: str, style: str = "") -> widgets.Button:
    """Return a button as wide as its words."""
    return widgets.Button(description=text, button_style=style, layout={"width": "auto"})


class Entry(widgets.VBox):
    """One completion: its text box, which reports a change when it is left, and the button that removes it."""

    def __init__(self) -> None:
        self.box = above(widgets.Textarea(continuous_update=False, rows=4), "100%")
        self.box.add_class("gn-text")
        self.remove = button("Remove")
        self.remove.add_class("gn-remove")
        super().__init__([self.box, self.remove], layout={"overflow": "visible"})
        self.add_class("gn-entry")

    def name(self, number: int, is_alone: bool) -> None:
        """Say which completion it is, from 1; the last one cannot be removed."""
        self.box.description = f"Completion {number}"
        self.remove.tooltip = f"Remove completion {number}"
        self.remove.disabled = is_alone


def weight_box(name: str, weight: float) -> widgets.FloatText:
    """Return a number box for the weight of a reward."""
    return above(widgets.FloatText(weight, step=0.1, description=label(name)), "130px")
