"""What the panels share: errors in words, a page without a kernel; and views that escape everything."""

import jinja2
import pytest

from grpo_nb.core import pages
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
    assert panel.seen == 1 and "KeyError" in panel._errors.value and "<img" not in panel._errors.value
    assert "raise KeyError" in panel._errors.value, "the end of the traceback"
    with panel.showing_errors():
        pass
    assert not panel._errors.value


def test_a_page_that_shows_no_widgets_gets_the_views() -> None:
    panel = Small()
    panel.shown.value = "<b>seen</b>"
    bundle = panel._repr_mimebundle_()
    html = bundle["text/html"]
    assert "<b>seen</b>" in html and "Small &amp; low" in html and ">Found<" in html and ">Empty<" not in html
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id


def test_views_escape_everything_that_is_put_in() -> None:
    whole = pages.page(HOSTILE, [(HOSTILE, ["<i>view</i>"])])
    part = pages.part("heading", HOSTILE, HOSTILE)
    for shown in (pages.code_line(HOSTILE, HOSTILE), part, whole, pages.errors_view([ValueError(HOSTILE)])):
        assert "<img" not in shown and "\0" not in shown and "&lt;img" in shown
        shown.encode()
    assert "<i>view</i>" in whole, "a view is HTML already"


def test_a_markdown_template_makes_every_value_plain_text_or_code(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "# {{ name }}\n{{ name|span }}\n{{ name|fence('sh') }}\n{{ name|safe }}"
    monkeypatch.setattr(jinja2, "PackageLoader", lambda *_: jinja2.DictLoader({"made.md.jinja": template}))
    pages._environment.cache_clear()
    shown = pages.render("made.md.jinja", name="*a* `b` <i>")
    pages._environment.cache_clear()
    assert shown == "# \\*a\\* \\`b\\` &lt;i&gt;\n`` *a* `b` <i> ``\n```sh\n*a* `b` <i>\n```\n*a* `b` <i>"
