"""Tables and short reports as plain text and as HTML, and `escaped`, which makes anybody's text safe for HTML.

An object that shows itself inherits `Shown` and gives its parts once: sentences, lists and tables, in order. Views with a
layout of their own are templates (jinja2) in their room.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.text import displayable

_CELL = "text-align:left;vertical-align:top;padding:0.3em 0.7em"


@dataclass(frozen=True)
class Cell:
    """A cell, or a sentence, that is more than plain text."""

    text: str
    """As plain text shows it."""
    html: str = ""
    """As HTML shows it, already escaped; by default the text, escaped."""
    style: str = ""
    """CSS of the cell."""


def escaped(text: Any) -> str:
    """Return a text as HTML that every notebook can hold, whatever a model or a user wrote."""
    return html.escape(displayable(str(text)))


def bold(text: Any) -> Cell:
    """A cell or sentence in bold letters."""
    return Cell(str(text), f"<b>{escaped(text)}</b>")


def code(text: Any) -> Cell:
    """A cell or sentence that is code."""
    return Cell(str(text), f"<code>{escaped(text)}</code>")


def verdict(is_good: bool, text: Any) -> Cell:
    """A cell or sentence that is a result in words, and on a panel in its colours for good and bad."""
    return Cell(str(text), f'<span class="gn-{"pass" if is_good else "fail"}">{escaped(text)}</span>')


def as_written(text: str) -> Cell:
    """A cell that shows a text of somebody else's with its line breaks; as plain text on one line, as Python writes it."""
    return Cell(repr(text), f"<pre style='margin:0;white-space:pre-wrap'>{escaped(text)}</pre>")


@dataclass(frozen=True)
class Table:
    """Rows under an optional head. A column may be right-aligned (numbers), kept on one line, or wide and broken anywhere.

    Plain text does not pad what is wide: after one long sentence, every row would be as long.
    """

    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    right: Sequence[int] = ()
    narrow: Sequence[int] = ()
    wide: Sequence[int] = ()

    def text(self) -> str:
        """The table as lines with aligned columns."""
        lines = [[_plain(cell) for cell in row] for row in ([self.head] if self.head else []) + list(self.rows)]
        widths = [0 if i in self.wide else max(map(len, column)) for i, column in enumerate(zip(*lines, strict=True))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if i in self.right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in lines
        )

    def html(self) -> str:
        """The table as HTML, with styles that notebooks do not overrule."""
        head = "".join(f"<th style='{self._style(i)}'>{escaped(title)}</th>" for i, title in enumerate(self.head))
        rows = ("".join(self._html_cell(i, cell) for i, cell in enumerate(row)) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"

    def _html_cell(self, column: int, cell: Any) -> str:
        style = self._style(column) + (f";{cell.style}" if isinstance(cell, Cell) and cell.style else "")
        return f"<td style='{style}'>{_html(cell)}</td>"

    def _style(self, column: int) -> str:
        style = _CELL.replace("left", "right", 1) if column in self.right else _CELL
        if column in self.narrow:
            style += ";white-space:nowrap"
        if column in self.wide:
            style += ";white-space:normal;overflow-wrap:anywhere;min-width:16em"
        return style


@dataclass(frozen=True)
class Listing:
    """Points under each other."""

    points: Sequence[Any]

    def text(self) -> str:
        """One line a point."""
        return "\n".join(f"- {_plain(point)}" for point in self.points)

    def html(self) -> str:
        """An unordered list."""
        return f"<ul>{''.join(f'<li>{_html(point)}</li>' for point in self.points)}</ul>"


@dataclass(frozen=True)
class Drawn:
    """A part that only HTML can show, as a bar or a picture; plain text leaves it out or says it in words."""

    markup: str
    """HTML in which everything is escaped already."""
    words: str = ""

    def text(self) -> str:
        """The words."""
        return self.words

    def html(self) -> str:
        """The markup."""
        return self.markup


Part = str | Cell | Table | Listing | Drawn


class Shown(ABC):
    """Base of what shows itself: gives `_parts`, and has `repr` and a notebook's HTML from them."""

    @abstractmethod
    def _parts(self) -> Iterable[Part]:
        """What is shown, in order."""

    def __repr__(self) -> str:
        return text_of(self._parts())

    def _repr_html_(self) -> str:
        return html_of(self._parts())


def text_of(parts: Iterable[Part]) -> str:
    """Return parts as plain text, one below the other."""
    texts = (part.text() if isinstance(part, (Table, Listing, Drawn)) else _plain(part) for part in parts)
    return "\n".join(text for text in texts if text)


def html_of(parts: Iterable[Part]) -> str:
    """Return parts as HTML, sentences as paragraphs."""
    kept = (part for part in parts if part)
    return "".join(p.html() if isinstance(p, (Table, Listing, Drawn)) else f"<p>{_html(p)}</p>" for p in kept)


def facts(values: Mapping[str, Any]) -> Table:
    """Return a table of names and values."""
    return Table([(name, value) for name, value in values.items()], narrow=(0,))


def _plain(cell: Any) -> str:
    return displayable(cell.text if isinstance(cell, Cell) else str(cell))


def _html(cell: Any) -> str:
    return (cell.html or escaped(cell.text)) if isinstance(cell, Cell) else escaped(cell)
