"""Text of others in Markdown, so that it can only ever be read as text: lines, code spans, and fences that nothing closes."""

import html
import re

# What CommonMark, and the Hub's mathematics, give a meaning to inside a line; underscores only at the edge of a word.
_MEANINGFUL = re.compile(r"([\\`*{}\[\]#!|~$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# What makes a heading, a list, a quotation or a rule of a line that begins with it.
_BEGINNING = re.compile(r"^(\d*)([-+=>.):])")


def plain(text: object) -> str:
    r"""Return text on one line, in which no character means anything to Markdown or HTML.

    >>> plain("a|b *c* <script>")
    'a\\|b \\*c\\* &lt;script&gt;'
    """
    marked = _MEANINGFUL.sub(r"\\\1", " ".join(str(text).split()))
    return html.escape(_BEGINNING.sub(r"\1\\\2", marked), quote=False)


def span(text: object) -> str:
    r"""Return text as a code span, also inside a table: as many backticks around it as it needs, pipes escaped.

    >>> span("x | y"), span("a `b` c")
    ('`x \\| y`', '`` a `b` c ``')
    """
    shown = " ".join(str(text).split()).replace("|", r"\|")
    ticks = _longer_than_inside(shown, 1)
    pad = " " if "`" in shown or not shown else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def fence(text: str, language: str = "") -> str:
    """Return text as a block of code, between fences longer than any inside.

    >>> fence("x = 1", "python").splitlines()
    ['```python', 'x = 1', '```']
    """
    ticks = _longer_than_inside(text, 3)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _longer_than_inside(text: str, least: int) -> str:
    return "`" * max(least, *(1 + len(run) for run in re.findall("`+", text)), 0)
