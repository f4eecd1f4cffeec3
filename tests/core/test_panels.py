"""What the panels share: errors in words, and a page without a kernel."""

from grpo_nb.core.panels import Panel, in_panel, view

HOSTILE = "<img src=x onerror=alert(1)>\udce4\0"


class Small(Panel):
    panel_title = "Small & low"

    def __init__(self) -> None:
        super().__init__()
        self.shown, self.seen = view(), 0
        self._pictured = [("Found", [self.shown]), ("Empty", [view()])]

    @in_panel
    def outer(self) -> None:
        self.inner()
        self.seen += 1

    @in_panel
    def inner(self) -> None:
        raise KeyError(HOSTILE)


def test_a_callback_says_what_failed_and_the_one_around_it_goes_on() -> None:
    panel = Small()
    panel.outer({"name": "value"})
    assert (
        panel.seen == 1 and "KeyError" in panel._errors.value and "<img" not in panel._errors.value
    )
    assert "raise KeyError" in panel._errors.value, "the end of the traceback"
    with panel.showing_errors():
        pass
    assert not panel._errors.value


def test_a_page_that_shows_no_widgets_gets_the_views() -> None:
    panel = Small()
    panel.shown.value = "<b>seen</b>"
    bundle = panel._repr_mimebundle_()
    html = bundle["text/html"]
    assert (
        "<b>seen</b>" in html
        and "Small &amp; low" in html
        and ">Found<" in html
        and ">Empty<" not in html
    )
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id
