"""Tables and short reports as plain text and as HTML, and `escaped`, which makes anybody's text safe for HTML.

An object that shows itself inherits `Shown` and gives its parts once, in order: sentences, tables, and what is more than words.
Views with a layout of their own are templates (jinja2) in their room.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.words import displayable

_CELL = "text-align:left;vertical-align:top;padding:0.3em 0.7em"


@dataclass(frozen=True)
class Html:
    """A sentence, a cell or a picture that is more than plain text."""

    words: str
    """As plain text shows it; what has none is shown by HTML alone."""
    markup: str = ""
    """As HTML shows it, with everything escaped already; by default the words, escaped."""


def escaped(text: Any) -> str:
    """Return a text as HTML that every notebook can hold, whatever a model or a user wrote."""
    return html.escape(displayable(str(text)))


def bold(text: Any) -> Html:
    """A cell or sentence in bold letters."""
    return Html(str(text), f"<b>{escaped(text)}</b>")


def code(text: Any) -> Html:
    """A cell or sentence that is code."""
    return Html(str(text), f"<code>{escaped(text)}</code>")


def verdict(is_good: bool, text: Any) -> Html:
    """A cell or sentence that is a result in words, and on a panel in its colours for good and bad."""
    return Html(
        str(text), f'<span class="gn-{"pass" if is_good else "fail"}">{escaped(text)}</span>'
    )


def as_written(text: str) -> Html:
    """A cell that shows a text of somebody else's with its line breaks; as plain text on one line, as Python writes it."""
    return Html(repr(text), f"<pre style='margin:0;white-space:pre-wrap'>{escaped(text)}</pre>")


@dataclass(frozen=True)
class Table:
    """Rows under an optional head. In HTML a column may be right-aligned (numbers), on one line, or wide and broken anywhere.

    Plain text does not pad what is wide: after one long sentence, every row would be as long.
    """

    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    right: Sequence[int] = ()
    narrow: Sequence[int] = ()
    wide: Sequence[int] = ()

    def text(self) -> str:
        """The table as lines with aligned columns."""
        lines = [
            [_words(cell) for cell in row]
            for row in ([self.head] if self.head else []) + list(self.rows)
        ]
        widths = [
            0 if i in self.wide else max(map(len, column))
            for i, column in enumerate(zip(*lines, strict=True))
        ]
        padded = (
            [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
        )
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def html(self) -> str:
        """The table as HTML, with styles that notebooks do not overrule."""
        head = "".join(
            f"<th style='{self._style(i)}'>{escaped(title)}</th>"
            for i, title in enumerate(self.head)
        )
        rows = (
            "".join(f"<td style='{self._style(i)}'>{_markup(c)}</td>" for i, c in enumerate(r))
            for r in self.rows
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"

    def _style(self, column: int) -> str:
        style = _CELL.replace("left", "right", 1) if column in self.right else _CELL
        if column in self.narrow:
            style += ";white-space:nowrap"
        if column in self.wide:
            style += ";white-space:normal;overflow-wrap:anywhere;min-width:16em"
        return style


Part = str | Html | Table


class Shown:
    """Base of what shows itself: gives `_parts`, and has `repr` and a notebook's HTML from them."""

    def _parts(self) -> Iterable[Part]:
        """What is shown, in order."""

    def __repr__(self) -> str:
        return text_of(self._parts())

    def _repr_html_(self) -> str:
        return html_of(self._parts())


def text_of(parts: Iterable[Part]) -> str:
    """Return parts as plain text, one below the other."""
    return "\n".join(text for text in map(_words, parts) if text)


def html_of(parts: Iterable[Part]) -> str:
    """Return parts as HTML, one below the other."""
    # No paragraphs: they may not hold the tables and pictures that a part can be.
    return "".join(
        f"<div style='margin:0.6em 0'>{shown}</div>" for shown in map(_markup, parts) if shown
    )


def _words(part: Any) -> str:
    if isinstance(part, Table):
        return part.text()
    return displayable(part.words if isinstance(part, Html) else str(part))


def _markup(part: Any) -> str:
    if isinstance(part, Table):
        return part.html()
    return (part.markup or escaped(part.words)) if isinstance(part, Html) else escaped(part)
