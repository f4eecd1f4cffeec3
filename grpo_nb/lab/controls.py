"""The parts of the reward lab that are forms of their own, still without function: an entry, the probes, the cases."""

from __future__ import annotations

import ipywidgets as widgets

from grpo_nb.core.panels import above, button, line, view


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


class ProbesForm(widgets.VBox):
    """The button that runs the probes, and what they found."""

    def __init__(self) -> None:
        self.run_button = button("Run the probes on this row", "primary")
        self.table, self.report_view, self.code = view(), view(), view()
        super().__init__([line([self.run_button]), self.table, self.report_view, self.code])


class CasesForm(widgets.VBox):
    """A completion to keep with the score it must get, and the cases of a file.

    Args:
        path: The file to begin with.
    """

    def __init__(self, path: str) -> None:
        self.reward = above(widgets.Dropdown(options=["-"], description="Reward"), "180px")
        self.completion = above(widgets.Dropdown(options=[("Completion 1", 0)], description="Completion"), "150px")
        self.expected = above(widgets.FloatText(0.0, step=0.1, description="It must score"), "110px")
        no_opinion = "must have no opinion (None)"
        self.none = widgets.Checkbox(False, description=no_opinion, indent=False, layout={"width": "230px"})
        self.label = above(widgets.Text("", description="What the case shows"), "260px")
        self.file = above(widgets.Text(path, description="File"), "220px")
        self.keep_button, self.run_button = button("Keep the case", "primary"), button("Run all cases")
        self.result, self.table, self.code = view(), view(), view()
        what = line([self.reward, self.completion, self.expected, self.none])
        how = line([self.label, self.file, self.keep_button, self.run_button])
        super().__init__([what, how, self.result, self.table, self.code])
        self.none.observe(lambda change: setattr(self.expected, "disabled", change["new"]), "value")
