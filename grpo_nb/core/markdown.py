"""Put texts of models and users into Markdown so that they are always shown as plain text."""

import html
import re

# Characters with a meaning inside a line, for CommonMark or for the mathematics of the Hub. An
# underscore has a meaning only at the edge of a word.
_SPECIAL = re.compile(r"([\\`*{}\[\]#!|~$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# Characters that start a list, a rule or a table. A `>` starts no quotation, because it becomes
# `&gt;`.
_LINE_START = re.compile(r"^(\d*)([-+=.):])")
_FENCE_TICKS = 3


def plain(text: object) -> str:
    r"""Return a text on one line, in which no character means anything to Markdown or HTML.

    >>> plain("a|b *c* <script>"), plain("> 5")
    ('a\\|b \\*c\\* &lt;script&gt;', '&gt; 5')
    """
    line = _on_one_line(text)
    line = _SPECIAL.sub(r"\\\1", line)
    line = _LINE_START.sub(r"\1\\\2", line)
    return html.escape(line, quote=False)


def span(text: object) -> str:
    r"""Return a text as a code span, which can also be in a table.

    >>> span("x | y"), span("a `b` c")
    ('`x \\| y`', '`` a `b` c ``')
    """
    # A pipe would end the cell of a table.
    line = _on_one_line(text)
    line = line.replace("|", r"\|")
    ticks = "`" * (_longest_ticks(line) + 1)
    padding = " " if "`" in line or not line else ""
    return f"{ticks}{padding}{line}{padding}{ticks}"


def fence(text: str, language: str = "") -> str:
    """Return a text as a block of code.

    >>> fence("x = 1", "python").splitlines()
    ['```python', 'x = 1', '```']
    """
    ticks = "`" * max(_FENCE_TICKS, _longest_ticks(text) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _on_one_line(text: object) -> str:
    return " ".join(str(text).split())


def _longest_ticks(text: str) -> int:
    """Return the length of the longest run of backticks, which must not close a span or a fence."""
    lengths = [len(run) for run in re.findall("`+", text)]
    return max(lengths, default=0)
