"""The reward lab: rewards tried by hand on completions, in a widget whose every view is a plain function.

Not here: the checks that the machine makes (`checks`), and the viewer of a run (`runs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core import lazy_names
from grpo_nb.lab.numbers import probe_row, prompt_text, sample_group
from grpo_nb.lab.views import errors_view, number, push

# Until runs and export take them from core: these, and what `former` holds.
from grpo_nb.core import code_line as code  # isort: skip
from grpo_nb.core import escaped as said  # isort: skip
from grpo_nb.core import heading as html_heading, style  # isort: skip

if TYPE_CHECKING:
    from grpo_nb.core import above, button, label, line, view
    from grpo_nb.lab.former import heading, panel, weight_box
    from grpo_nb.lab.snippets import name_in
    from grpo_nb.lab.widget import RewardLab

STYLE = style()

__all__ = [
    "STYLE",
    "RewardLab",
    "above",
    "button",
    "code",
    "errors_view",
    "heading",
    "html_heading",
    "label",
    "line",
    "name_in",
    "number",
    "panel",
    "probe_row",
    "prompt_text",
    "push",
    "said",
    "sample_group",
    "view",
    "weight_box",
]

__getattr__ = lazy_names(
    __name__,
    {
        "controls": ("above", "button", "line", "view"),
        "former": ("heading", "label", "panel", "weight_box"),
        "snippets": ("name_in",),
        "widget": ("RewardLab",),
    },
)
