"""Reports that show themselves as plain text and as HTML, made of sentences and tables.

A class that shows itself inherits `ReprMixin` and yields its parts in order. Views with a layout of
their own are jinja2 templates in their subpackage; `grpo_nb.core.pages` renders them.
"""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.words import displayable

_CELL_STYLE = "text-align:{align};vertical-align:top;padding:0.3em 0.7em;overflow-wrap:break-word"
# Spaces that HTML would drop: those at the start of a line and all but the last of several.
_DROPPED_SPACES = re.compile(r"^ | (?= )", re.MULTILINE)


@dataclass(frozen=True)
class RichText:
    """A sentence, table cell or picture with an HTML form of its own."""

    plain: str
    """Plain-text form; empty for a part that only HTML shows."""
    markup: str = ""
    """HTML form, already escaped; if empty, the escaped plain text is used."""

    def text(self) -> str:
        """Return the plain text, with the characters escaped that a terminal cannot show."""
        return displayable(self.plain)

    def html(self) -> str:
        """Return the HTML form."""
        return self.markup or escaped(self.plain)


def escaped(text: Any) -> str:
    """Return a text from any source as HTML that every notebook can show."""
    return html.escape(displayable(str(text)))


def bold(text: Any) -> RichText:
    """Return a cell or sentence in bold."""
    return RichText(str(text), f"<b>{escaped(text)}</b>")


def code(text: Any) -> RichText:
    """Return a cell or sentence in code font."""
    return RichText(str(text), f"<code>{escaped(text)}</code>")


def verbatim(text: str) -> RichText:
    """Return a cell that keeps a text's line breaks; its plain text is the Python literal."""
    # Not `pre`: on a page that removes styles, `pre` breaks lines inside words.
    markup = _DROPPED_SPACES.sub("&nbsp;", escaped(text.expandtabs(4)))
    return RichText(repr(text), markup.replace("\n", "<br>"))


def notes(facts: Sequence[str], explanations: Sequence[str]) -> RichText:
    """Return the notes below a table, in small print. HTML shows the explanations on a click.

    Args:
        facts: Lines that are always shown. Empty lines are left out.
        explanations: Lines that only explain the table.
    """
    facts = [line for line in facts if line]
    shown = "<br>".join(map(escaped, facts))
    folded = "<br>".join(map(escaped, explanations))
    # Each level has its own `small`, because a `details` inside it would be no valid HTML.
    markup = (
        f"<small>{shown}</small><details><summary><small>How to read this table</small></summary>"
        f"<small>{folded}</small></details>"
    )
    return RichText("\n".join([*facts, *explanations]), markup)


@dataclass(frozen=True)
class Table:
    """Rows of cells below an optional head."""

    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    right: Sequence[int] = ()
    """Columns aligned to the right in HTML, for numbers."""
    narrow: Sequence[int] = ()
    """Columns that HTML never wraps."""
    wide: Sequence[int] = ()
    """Columns that HTML wraps anywhere, and that plain text does not pad with spaces.

    If the column were padded, one long sentence would make every line as long.
    """

    def text(self) -> str:
        """Return the table as lines with aligned columns."""
        rows = [self.head, *self.rows] if self.head else self.rows
        padded_columns = []
        for index, column in enumerate(zip(*rows, strict=True)):
            texts = [_as_part(cell).text() for cell in column]
            width = 0 if index in self.wide else max(map(len, texts))
            padded_columns.append([text.ljust(width) for text in texts])
        lines = zip(*padded_columns, strict=True)
        return "\n".join("  ".join(line).rstrip() for line in lines)

    def html(self) -> str:
        """Return the table as HTML, with inline styles that override those of notebooks."""
        head = ""
        if self.head:
            head = f"<thead>{self._html_row(self.head, 'th')}</thead>"
        body = "".join(self._html_row(row, "td") for row in self.rows)
        return f"<table>{head}<tbody>{body}</tbody></table>"

    def _html_row(self, row: Sequence[Any], tag: str) -> str:
        cells = []
        for index, cell in enumerate(row):
            content = _as_part(cell).html()
            # Pages that remove styles align cells right, except for the content of such a `div`.
            if index not in self.right:
                content = f'<div align="left">{content}</div>'
            style = _CELL_STYLE.format(align="right" if index in self.right else "left")
            if index in self.narrow:
                style += ";white-space:nowrap"
            if index in self.wide:
                style += ";white-space:normal;overflow-wrap:anywhere;min-width:16em"
            cells.append(f"<{tag} style='{style}'>{content}</{tag}>")
        return f"<tr>{''.join(cells)}</tr>"


Part = str | RichText | Table


class ReprMixin:
    """Mixin for objects that show themselves as text and, in a notebook, as HTML."""

    def _shown_parts(self) -> Iterable[Part]:
        """Return the parts to show, in order. Each subclass defines this method."""

    def __repr__(self) -> str:
        texts = [_as_part(part).text() for part in self._shown_parts()]
        return "\n".join(text for text in texts if text)

    def _repr_html_(self) -> str:
        return html_of(self._shown_parts())


def html_of(parts: Iterable[Part]) -> str:
    """Return parts as HTML, one below the other; empty parts are left out."""
    markups = [_as_part(part).html() for part in parts]
    # A paragraph cannot contain a table or a picture, so each part is a `div`.
    return "".join(f"<div style='margin:0.6em 0'>{markup}</div>" for markup in markups if markup)


def _as_part(value: Any) -> RichText | Table:
    """Return a part or cell as an object with the methods `text` and `html`."""
    return value if isinstance(value, (RichText, Table)) else RichText(str(value))
