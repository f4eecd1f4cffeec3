"""What the kit's widgets share: a base class, and controls with their labels in words.

Core ipywidgets that 7.7 and 8 share.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import ipywidgets as widgets

from grpo_nb.core import pages
from grpo_nb.core.tables import escaped
from grpo_nb.core.words import displayable


class Panel(widgets.VBox):
    """A widget of the kit: says in words what its callbacks raise, and can be read on a page without a kernel.

    A subclass sets `_pictured`, the views that a page without widgets shows under their headings.
    """

    panel_title: str = ""
    panel_sheets: ClassVar[tuple[str, ...]] = ()
    """Style sheets of its room, as `runs/viewer.css`."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("gn-lab")
        self._errors = view()
        self._failures: list[BaseException] = []
        self._depth = 0
        self._is_quiet = False
        self._pictured: Sequence[tuple[str, Sequence[widgets.HTML]]] = ()

    @contextlib.contextmanager
    def showing_errors(self) -> Iterator[None]:
        """Show in the panel what is raised inside: a notebook loses what a callback raises, or writes it into a log.

        Used inside itself, what was raised before stays: only the outermost begins anew.
        """
        if not self._depth:
            self._failures = []
        self._depth += 1
        try:
            yield
        except Exception as error:
            self._failures.append(error)
        finally:
            self._depth -= 1
            self._show_failures()

    def _show_failures(self) -> None:
        self._errors.value = pages.errors_view(self._failures)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Change several controls without an answer to each."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    # ipywidgets 7 shows a widget through this method, 8 through the other one: the other one will do for both.
    _ipython_display_ = None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the widget, and for pages that cannot show one, as on GitHub, its views as they are now."""
        view_of_widget = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        shown = {"text/plain": repr(self), "text/html": self._snapshot()}
        return shown | {"application/vnd.jupyter.widget-view+json": view_of_widget}

    def _snapshot(self) -> str:
        """Return what the panel shows, as HTML that needs no kernel."""
        parts = [(name, [shown.value for shown in views]) for name, views in self._pictured]
        return pages.page(self.panel_title, parts, *self.panel_sheets)

    def _header(self) -> widgets.HTML:
        """The title, and the style sheets that the views need."""
        return widgets.HTML(pages.style(*self.panel_sheets) + pages.title(self.panel_title))


def in_panel(callback: Callable[..., None]) -> Callable[..., None]:
    """Make a method a callback, which takes no event, and whose errors the panel shows (`showing_errors`)."""

    def run(self: Any, *_: Any) -> None:
        with self.showing_errors():
            callback(self)

    return run


def label(text: str) -> str:
    """Return a text of the user's that can be a control's description."""
    # ipywidgets 7 writes descriptions into the page as HTML, 8 as text: escaped for 8 too, they would show twice escaped.
    return escaped(text) if widgets.__version__.startswith("7.") else displayable(text)


def view() -> widgets.HTML:
    """Return an empty view over the full width."""
    return widgets.HTML(layout={"width": "auto", "max_width": "100%"})


def above(control: Any, width: str) -> Any:
    """Return the control with its label above it."""
    control.layout = widgets.Layout(width=width, max_width="100%")
    control.style.description_width = "initial"
    control.add_class("gn-above")
    return control


def line(controls: Sequence[widgets.Widget]) -> widgets.HBox:
    """Return controls side by side, on more lines where the page is narrow."""
    return widgets.HBox(list(controls), layout={"flex_flow": "row wrap", "align_items": "flex-end"})


def section(
    name: str, explanation: str, *children: widgets.Widget, flex: str = "0 0 auto"
) -> widgets.VBox:
    """Return a framed part of a panel under its heading."""
    head = widgets.HTML(pages.part("heading", name, explanation))
    framed = widgets.VBox(
        [head, *children], layout={"margin": "4px 2px", "flex": flex, "min_width": "0"}
    )
    framed.add_class("gn-panel")
    return framed


def button(text: str, style: str = "", tooltip: str = "") -> widgets.Button:
    """Return a button as wide as its words."""
    return widgets.Button(
        description=text, button_style=style, tooltip=tooltip, layout={"width": "auto"}
    )
