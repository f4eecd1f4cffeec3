"""Text of others in Markdown, so that it can only ever be read as text: cells, code spans, and fences that nothing closes."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

# What CommonMark, and the Hub's mathematics, give a meaning to inside a line; underscores only at the edge of a word.
_MEANINGFUL = re.compile(r"([\\`*{}\[\]#!|~$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# What makes a heading, a list, a quotation or a rule of a line that begins with it.
_BEGINNING = re.compile(r"^(\d*)([-+=>.):])")
_RUNS = re.compile(r"`+")


def plain(text: object) -> str:
    r"""Return text on one line, in which no character means anything to Markdown or HTML.

    >>> plain("a|b *c* <script>")
    'a\\|b \\*c\\* &lt;script&gt;'
    """
    marked = _BEGINNING.sub(r"\1\\\2", _MEANINGFUL.sub(r"\\\1", _on_one_line(text)))
    return html.escape(marked, quote=False)


def span(text: object) -> str:
    r"""Return text as a code span, also inside a table: as many backticks around it as it needs, pipes escaped.

    >>> span("x | y"), span("a `b` c")
    ('`x \\| y`', '`` a `b` c ``')
    """
    shown = _on_one_line(text).replace("|", r"\|")
    longest = max((len(run) for run in _RUNS.findall(shown)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if longest or not shown.strip() else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def fence(text: str, language: str = "") -> str:
    """Return text as a block of code, between fences longer than any inside.

    >>> fence("x = 1", "python").splitlines()
    ['```python', 'x = 1', '```']
    """
    ticks = "`" * max(3, 1 + max((len(run) for run in _RUNS.findall(text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are escaped already.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _on_one_line(text: object) -> str:
    return " ".join(str(text).split())
