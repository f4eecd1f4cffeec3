"""Fill in templates of HTML, Markdown and programs. Values are escaped, except in programs.

The resulting views need no ipywidgets, so a saved notebook shows them too. In a live notebook, the
widgets of `grpo_nb.core.panels` show them.
"""

import functools
import html
import re
import traceback
from pathlib import Path
from typing import Any

from markupsafe import Markup

from grpo_nb.core.words import displayable

# Characters with a meaning inside a line, for CommonMark or for the mathematics of the Hub. An
# underscore has a meaning only at the edge of a word.
_SPECIAL_CHARACTERS = re.compile(r"([\\`*{}\[\]#!|~$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def markdown_text(text: object) -> str:
    r"""Return a text as one line of Markdown in which every character stands for itself.

    Templates put no value at the start of a line that could be taken for a list or a rule.

    >>> markdown_text("a|b *c* <script>"), markdown_text("> 5")
    ('a\\|b \\*c\\* &lt;script&gt;', '&gt; 5')
    """
    line = " ".join(str(text).split())
    line = _SPECIAL_CHARACTERS.sub(r"\\\1", line)
    return html.escape(line, quote=False)


def code_span(text: object) -> Markup:
    r"""Return a text as code within a line or a table of Markdown.

    Backticks would need a longer pair around them, and no pair keeps a pipe in a table. So this is
    an HTML element.

    >>> print(code_span("x | y"))
    <code>x \| y</code>
    """
    return Markup(f"<code>{markdown_text(text)}</code>")


def code_block(text: str, language: str = "") -> Markup:
    """Return a text as a block of code in Markdown.

    >>> print(code_block("x = 1", "python"))
    ```python
    x = 1
    ```
    """
    longest_run = max(re.findall("`*", text), key=len)
    # The fence is longer than every run of backticks in the text.
    fence = max("```", longest_run + "`", key=len)
    return Markup(f"{fence}{language}\n{text.rstrip()}\n{fence}")


# Escape function of each template language. Jinja escapes HTML values as well, but keeps lone
# surrogates and NUL. A model can write these characters, and no notebook can store them, so
# `displayable` escapes them. Values in programs are not escaped.
_ESCAPES = {"html": displayable, "md": markdown_text}


@functools.cache
def _environment(language: str) -> Any:
    import jinja2

    escape = _ESCAPES.get(language, str)

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
    environment.filters.update(code_span=code_span, code_block=code_block)
    return environment


def render(template: str, **values: Any) -> str:
    """Return a template filled in with values.

    The template's name decides how values are escaped:

    - `*.jinja`: HTML. Everything is escaped except what the template marks as `safe`. Headings come
      from the macros in `core/templates/macros.jinja`.
    - `*.md.jinja`: Markdown. Values become plain text, or code with the filters `code_span` and
      `code_block`. Do not use macros there: their output would be escaped again.
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
    macros = _environment("html").get_template("core/templates/macros.jinja").module
    return str(getattr(macros, name)(*values))


def style_tag() -> str:
    """Return a style tag with the style sheet of all panels."""
    sheet = Path(__file__).with_name("panels.css").read_text("utf-8")
    return f"<style>\n{sheet}</style>"


def error_view(error: BaseException) -> str:
    """Return an error with its traceback as HTML."""
    # The traceback of the cause shows the line of the user's own code, such as a reward.
    trace = "".join(traceback.format_exception(error.__cause__ or error))
    return render_macro("error", type(error).__name__, str(error), trace)
