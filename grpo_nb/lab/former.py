"""What the run viewer and the export panel take from here until they stand on `grpo_nb.core.Panel`: then this file goes."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets

from grpo_nb.core import above, label
from grpo_nb.core import heading as html_heading


def heading(text: str, explanation: str) -> widgets.HTML:
    """Return the heading of a panel."""
    return widgets.HTML(html_heading(text, explanation))


def panel(children: Sequence[widgets.Widget]) -> widgets.VBox:
    """Return a framed part of the lab."""
    framed = widgets.VBox(list(children), layout={"margin": "4px 2px", "flex": "0 0 auto", "min_width": "0"})
    framed.add_class("gn-panel")
    return framed


def weight_box(name: str, weight: float) -> widgets.FloatText:
    """Return a number box for the weight of a reward."""
    return above(widgets.FloatText(weight, step=0.1, description=label(name)), "130px")
