"""Base class and controls of the kit's widgets.

They use only the core ipywidgets that versions 7.7 and 8 share.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ipywidgets as widgets

from grpo_nb.core import pages
from grpo_nb.core.tables import escaped
from grpo_nb.core.words import displayable


class Panel(widgets.VBox):
    """Base class of widgets that show the errors of their own callbacks.

    A subclass puts `_header()` and `_error_view` among its children. A saved notebook shows a panel
    without a kernel. For that, a subclass sets `_static_views` to pairs of a heading and a view,
    and the page shows the views that are not empty.
    """

    panel_title: str = ""
    """Title above the panel."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("gn-panel")
        self._error_view = empty_view()
        self._open_blocks = 0
        self._static_views: Sequence[tuple[str, widgets.HTML]] = ()

    @contextlib.contextmanager
    def showing_errors(self) -> Iterator[None]:
        """Catch the errors of the block and show them in the panel.

        Without this, a notebook loses a callback's error or hides it in a log. Blocks can be
        nested. The outermost block clears the errors shown before.
        """
        if self._open_blocks == 0:
            self._error_view.value = ""
        self._open_blocks += 1
        try:
            yield
        except Exception as error:
            self._error_view.value += pages.error_view(error)
        finally:
            self._open_blocks -= 1

    # ipywidgets 7 shows a widget through `_ipython_display_`, and 8 through `_repr_mimebundle_`.
    # Setting the first to None makes version 7 use the second too.
    _ipython_display_ = None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the widget and, for pages that cannot show it, its current views as HTML."""
        shown = [(heading, html.value) for heading, html in self._static_views if html.value]
        return {
            "text/plain": repr(self),
            "text/html": pages.render_macro("page", pages.style_tag(), self.panel_title, shown),
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self.model_id,
            },
        }

    def _header(self) -> widgets.HTML:
        """Return the title together with the style sheet of the views."""
        return widgets.HTML(pages.style_tag() + pages.render_macro("title", self.panel_title))


def as_callback(callback: Callable[..., None]) -> Callable[..., None]:
    """Make a panel's method a callback that ignores the event and shows errors in the panel."""

    @functools.wraps(callback)
    def run(self: Any, *_: Any) -> None:
        with self.showing_errors():
            callback(self)

    return run


def control_description(text: str) -> str:
    """Return a user's text in the form that a control's description needs."""
    # ipywidgets 7 inserts descriptions as HTML, and 8 as text, in which `&lt;` would be visible.
    is_html = widgets.__version__.startswith("7.")
    return escaped(text) if is_html else displayable(text)


def empty_view() -> widgets.HTML:
    """Return an empty view as wide as the panel."""
    return widgets.HTML(layout={"width": "auto", "max_width": "100%"})


def with_label_above(control: Any, width: str) -> Any:
    """Put a control's label above it, and return the control."""
    control.layout = widgets.Layout(width=width, max_width="100%")
    control.style.description_width = "initial"
    control.add_class("gn-above")
    return control


def wrapping_hbox(controls: Sequence[widgets.Widget]) -> widgets.HBox:
    """Return controls side by side, wrapped to further lines on a narrow page."""
    return widgets.HBox(list(controls), layout={"flex_flow": "row wrap", "align_items": "flex-end"})


def section(
    name: str, explanation: str, *children: widgets.Widget, flex: str = "0 0 auto"
) -> widgets.VBox:
    """Return a framed part of a panel with a heading."""
    heading = widgets.HTML(pages.render_macro("heading", name, explanation))
    # Without the minimum width of 0, a wide table inside would widen the whole panel.
    layout = {"margin": "4px 2px", "flex": flex, "min_width": "0"}
    box = widgets.VBox([heading, *children], layout=layout)
    box.add_class("gn-section")
    return box


def button(text: str, style: str = "") -> widgets.Button:
    """Return a button as wide as its text."""
    return widgets.Button(description=text, button_style=style, layout={"width": "auto"})
