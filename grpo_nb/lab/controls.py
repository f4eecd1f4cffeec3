"""Controls of the reward lab: the form of one completion, the weights, and how they are heard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ipywidgets as widgets

from grpo_nb.core.panels import Panel, above, button, label


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


class WeightBoxes(widgets.HBox):
    """A number box for the weight of each reward, side by side.

    Args:
        changed: Called after a weight was moved.
    """

    def __init__(self, changed: Callable[..., None]) -> None:
        super().__init__(layout={"flex_flow": "row wrap", "align_items": "flex-end"})
        self._changed = changed
        self.boxes: dict[str, widgets.FloatText] = {}

    def show(self, weights: Mapping[str, float]) -> None:
        """Show other rewards."""
        self.boxes = {}
        for name, weight in weights.items():
            box = widgets.FloatText(weight, step=0.1, description=label(name))
            self.boxes[name] = above(box, "130px")
            box.observe(self._changed, "value")
        self.children = list(self.boxes.values())


class WeighedPanel(Panel):
    """A panel with a box for the weight of each reward."""

    def __init__(self) -> None:
        super().__init__()
        self._weights = WeightBoxes(lambda change: self._is_quiet or self._reweigh(change))

    def _on_change(self, control: widgets.Widget, callback: Callable[..., object]) -> None:
        """Have a callback answer to each new value of a control, but for what is changed `_quietly`."""
        control.observe(lambda change: self._is_quiet or callback(change), "value")

    @contextlib.contextmanager
    def _working(self, pressed: widgets.Button, said: str) -> Iterator[None]:
        """Shut the button that was pressed while its work lasts, and say so on it."""
        before, pressed.disabled, pressed.description = pressed.description, True, said
        try:
            yield
        finally:
            pressed.disabled, pressed.description = False, before

    def _reweigh(self, _: Any = None) -> None:
        """Show what the weights that are shown now make of the scores."""
        raise NotImplementedError

    @property
    def weights(self) -> dict[str, float]:
        """The weights shown, by reward."""
        return {name: box.value for name, box in self._weights.boxes.items()}

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        boxes = self._weights.boxes
        for name, weight in weights.items():
            if name not in boxes:
                raise ValueError(f"weights names {name!r}, but the rewards are {list(boxes)}.")
            boxes[name].value = weight
