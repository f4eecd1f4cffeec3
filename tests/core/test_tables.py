"""Parts of a report as plain text and as HTML, whatever text is in them."""

import re

import pytest

from grpo_nb.core.tables import ReprMixin, RichText, Table, bold, code, verbatim

HOSTILE = "<script>alert(1)</script>\x00\ud800 & 'quoted'"


class Report(ReprMixin):
    def _shown_parts(self):
        yield bold("Two rows")
        rows = [("a", 1.5, code("x = 1")), ("long name", "22", HOSTILE)]
        yield Table(rows, ("name", "value", "line"), right=(1,), wide=(2,))
        yield ""
        yield HOSTILE
        yield RichText("a bar", "<svg></svg>")
        yield RichText("", "<i>only in HTML</i>")


@pytest.fixture
def lines() -> list[str]:
    return repr(Report()).splitlines()


@pytest.fixture
def page() -> str:
    return Report()._repr_html_()


def test_text_has_aligned_columns(lines: list[str]) -> None:
    assert lines[:3] == ["Two rows", "name       value  line", "a          1.5    x = 1"]


def test_text_does_not_pad_wide_columns(lines: list[str]) -> None:
    assert lines[3].startswith("long name  22     <script>")
    assert lines[2].endswith("x = 1")


def test_text_has_control_characters_escaped(lines: list[str]) -> None:
    assert "\\x00\\ud800" in lines[3]
    assert "\x00" not in lines[3]


def test_text_leaves_out_empty_parts(lines: list[str]) -> None:
    assert len(lines) == 6
    assert lines[-1] == "a bar"


def test_html_escapes_texts(page: str) -> None:
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 2


def test_html_can_be_saved(page: str) -> None:
    assert "\x00" not in page
    page.encode("utf-8")


@pytest.mark.parametrize(
    "markup",
    ["<b>Two rows</b></div>", "<code>x = 1</code>", "<svg></svg>", "<i>only in HTML</i>"],
)
def test_html_keeps_markup_of_parts(markup: str, page: str) -> None:
    assert markup in page


def test_html_leaves_out_empty_parts(page: str) -> None:
    assert page.count("<div style=") == 5


def test_html_has_head_and_rows(page: str) -> None:
    assert page.count("<tr>") == 3


def test_html_without_styles_aligns_only_numbers_at_the_right(page: str) -> None:
    elements = re.sub(r" style='[^']*'", "", page)
    assert '<th><div align="left">name</div></th><th>value</th>' in elements
    assert '<td><div align="left">long name</div></td><td>22</td>' in elements


def test_text_as_written_keeps_lines_and_indents_without_styles() -> None:
    shown = verbatim("if a  < b:\n    c\n\n\td").html()
    nbsp = "&nbsp;"
    assert shown == f"if a{nbsp} &lt; b:<br>{3 * nbsp} c<br><br>{3 * nbsp} d"
