"""The form of one completion in the reward lab, still without function."""

from __future__ import annotations

import ipywidgets as widgets

from grpo_nb.core.panels import above, button


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
