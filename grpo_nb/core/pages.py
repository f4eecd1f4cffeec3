"""Fill in templates of HTML, Markdown and programs. Values are escaped, except in programs.

The resulting views need no ipywidgets, so a saved notebook shows them too. In a live notebook, the
widgets of `grpo_nb.core.panels` show them.
"""

import functools
import html
import re
import traceback
from collections.abc import Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from grpo_nb.core.words import displayable, shorten

_MACROS_TEMPLATE = "core/templates/macros.jinja"
_MESSAGE_CHARACTERS = 600

# Characters with a meaning inside a line, for CommonMark or for the mathematics of the Hub. An
# underscore has a meaning only at the edge of a word.
_SPECIAL_CHARACTERS = re.compile(r"([\\`*{}\[\]#!|~$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# Characters that make a line a list, a rule or a table. A `>` starts no quotation, because it
# becomes `&gt;`.
_LINE_START = re.compile(r"^(\d*)([-+=.):])")
_FENCE_TICKS = 3


def markdown_text(text: object) -> str:
    r"""Return a text as one line of Markdown in which every character stands for itself.

    >>> markdown_text("a|b *c* <script>"), markdown_text("> 5")
    ('a\\|b \\*c\\* &lt;script&gt;', '&gt; 5')
    """
    line = " ".join(str(text).split())
    line = _SPECIAL_CHARACTERS.sub(r"\\\1", line)
    line = _LINE_START.sub(r"\1\\\2", line)
    return html.escape(line, quote=False)


def code_span(text: object) -> Markup:
    """Return a text as a code span of Markdown; in a table, use `code_cell`.

    >>> print(code_span("x | y"), code_span("a `b` c"))
    `x | y` `` a `b` c ``
    """
    line = " ".join(str(text).split())
    ticks = "`" * (_longest_ticks(line) + 1)
    padding = " " if "`" in line or not line else ""
    return Markup(f"{ticks}{padding}{line}{padding}{ticks}")


def code_cell(text: object) -> Markup:
    r"""Return a text as a code span in a table of Markdown, where a bare pipe would end the cell.

    >>> print(code_cell("x | y"))
    `x \| y`
    """
    return code_span(text).replace("|", r"\|")


def code_block(text: str, language: str = "") -> Markup:
    """Return a text as a block of code in Markdown.

    >>> print(code_block("x = 1", "python"))
    ```python
    x = 1
    ```
    """
    ticks = "`" * max(_FENCE_TICKS, _longest_ticks(text) + 1)
    return Markup(f"{ticks}{language}\n{text.rstrip()}\n{ticks}")


def _longest_ticks(text: str) -> int:
    """Return the length of the longest run of backticks. A longer run encloses the text."""
    lengths = [len(run) for run in re.findall("`+", text)]
    return max(lengths, default=0)


# How a value is escaped in each language of a template. HTML values are then escaped by Jinja too,
# which keeps lone surrogates and NUL: a model can write them, and no notebook can hold them. Values
# in programs are not escaped.
_ESCAPE_BY_LANGUAGE = {"html": displayable, "md": markdown_text, "py": str, "yaml": str}


@functools.cache
def _environment(language: str) -> Any:
    import jinja2

    escape = _ESCAPE_BY_LANGUAGE[language]

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else escape(str(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grpo_nb", "."),
        autoescape=language == "html",
        # Keep the final newline in generated files, such as programs.
        keep_trailing_newline=language not in ("html", "md"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
    )
    # These filters return Markup, so `finalize` does not escape their results again.
    environment.filters.update(code_span=code_span, code_cell=code_cell, code_block=code_block)
    return environment


def render(template: str, **values: Any) -> str:
    """Return a template filled in with values.

    The template's name decides how values are escaped:

    - `*.jinja`: HTML. Everything is escaped except what the template marks as `safe`. Headings come
      from the macros in `core/templates/macros.jinja`.
    - `*.md.jinja`: Markdown. Values become plain text, or code with the filters `code_span`,
      `code_cell` (in a table) and `code_block`. Do not use macros there: their output would be
      escaped again.
    - `*.py.jinja`, `*.yaml.jinja`: values are not escaped. The caller quotes them.

    Args:
        template: Path below the package's folder, such as `lab/templates/scores.jinja`.
        values: A value for every name that the template uses; a missing name raises.
    """
    # The part after the first dot: `md`, `py`, `yaml`, or `jinja` for HTML.
    language = template.split(".")[1].replace("jinja", "html")
    return _environment(language).get_template(template).render(values)


def render_macro(name: str, *values: Any) -> str:
    """Return the HTML of a macro of `core/templates/macros.jinja`, called with the values."""
    macros = _environment("html").get_template(_MACROS_TEMPLATE).module
    return str(getattr(macros, name)(*values))


def style_tag(*sheets: str) -> str:
    """Return a style tag with the panels' sheet and then others, such as `runs/viewer.css`."""
    package = resources.files("grpo_nb")
    texts = [(package / sheet).read_text("utf-8") for sheet in ("core/panels.css", *sheets)]
    return f"<style>\n{''.join(texts)}</style>"


def errors_view(errors: Sequence[BaseException]) -> str:
    """Return the HTML of each error with its traceback; an empty string without errors."""
    views = []
    for error in errors:
        message = shorten(str(error), _MESSAGE_CHARACTERS)
        # The traceback of the cause shows the line of the user's own code, such as a reward.
        trace = "".join(traceback.format_exception(error.__cause__ or error))
        views.append(render_macro("error", type(error).__name__, message, trace))
    return "".join(views)
