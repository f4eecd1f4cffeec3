"""One list of parts, shown as text and as HTML, whatever stands in it."""

from grpo_nb.core.tables import Html, Shown, Table, bold, code

HOSTILE = "<script>alert(1)</script>\x00\ud800 & 'quoted'"


class Report(Shown):
    def _parts(self):
        yield bold("Two rows")
        rows = [("a", 1.5, code("x = 1")), ("long name", "22", HOSTILE)]
        yield Table(rows, ("name", "value", "line"), right=(1,), wide=(2,))
        yield from ("", HOSTILE, Html("a bar", "<svg></svg>"), Html("", "<i>seen alone</i>"))


def test_text_has_aligned_columns_and_html_escapes_what_was_written_by_others() -> None:
    lines, page = repr(Report()).splitlines(), Report()._repr_html_()
    assert lines[:3] == ["Two rows", "name       value  line", "a          1.5    x = 1"]
    assert (
        lines[3].startswith("long name  22     <script>")
        and "\x00" not in lines[3]
        and "\\ud800" in lines[3]
    )
    assert lines[-1] == "a bar" and len(lines) == 6
    page.encode("utf-8")
    assert "<script>" not in page and page.count("&lt;script&gt;") == 2 and "\x00" not in page
    assert (
        "<b>Two rows</b></div>" in page and "<code>x = 1</code>" in page and "<svg></svg>" in page
    )
    assert "<i>seen alone</i>" in page and page.count("<div") == 5 and page.count("<tr>") == 3
