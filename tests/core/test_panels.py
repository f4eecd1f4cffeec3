"""Panels show the errors of their callbacks, and can be read on a page without widgets."""

import re

import pytest

from grpo_nb.core.panels import Panel, as_callback, empty_view

HOSTILE = "<img src=x onerror=alert(1)>\udce4\0"


class SmallPanel(Panel):
    panel_title = "Small & low"

    def __init__(self) -> None:
        super().__init__()
        self.content = empty_view()
        self.outer_calls = 0
        self._static_views = [("Found", self.content), ("Empty", empty_view())]

    @as_callback
    def outer(self) -> None:
        self.inner()
        self.outer_calls += 1

    @as_callback
    def inner(self) -> None:
        raise KeyError(HOSTILE)

    @property
    def shown_errors(self) -> str:
        return self._error_view.value


@pytest.fixture
def failed_panel() -> SmallPanel:
    panel = SmallPanel()
    panel.outer({"name": "value"})
    return panel


def test_callback_around_failed_callback_goes_on(failed_panel: SmallPanel) -> None:
    assert failed_panel.outer_calls == 1


def test_failed_callback_shows_error_with_traceback(failed_panel: SmallPanel) -> None:
    assert "KeyError" in failed_panel.shown_errors
    assert "raise KeyError" in failed_panel.shown_errors


def test_failed_callback_shows_escaped_message(failed_panel: SmallPanel) -> None:
    assert "<img" not in failed_panel.shown_errors


def test_next_callback_clears_errors(failed_panel: SmallPanel) -> None:
    with failed_panel.showing_errors():
        pass
    assert failed_panel.shown_errors == ""


@pytest.fixture
def panel() -> SmallPanel:
    panel = SmallPanel()
    panel.content.value = "<b>seen</b>"
    return panel


@pytest.mark.parametrize("text", ["<b>seen</b>", "Small &amp; low", ">Found<"])
def test_page_without_widgets_shows_title_and_views(text: str, panel: SmallPanel) -> None:
    assert text in panel._repr_mimebundle_()["text/html"]


def test_page_without_styles_keeps_its_hierarchy(panel: SmallPanel) -> None:
    page = panel._repr_mimebundle_()["text/html"]
    elements = re.sub(r' [a-z-]+="[^"]*"', "", page)
    assert "<b><big>Small &amp; low</big></b>" in elements
    assert re.search(r"<hr>\s*<div><div><b>Found</b></div>", elements)


def test_page_without_widgets_leaves_out_empty_views(panel: SmallPanel) -> None:
    assert ">Empty<" not in panel._repr_mimebundle_()["text/html"]


def test_page_with_widgets_gets_the_widget(panel: SmallPanel) -> None:
    widget = panel._repr_mimebundle_()["application/vnd.jupyter.widget-view+json"]
    assert widget["model_id"] == panel.model_id
