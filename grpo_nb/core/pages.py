"""HTML and Markdown from templates in which every value is escaped.

These views need no ipywidgets, so a saved notebook page shows them too. The widgets that show them
in a live notebook are in `grpo_nb.core.panels`.
"""

import functools
import traceback
from collections.abc import Sequence
from importlib import resources
from typing import Any

from grpo_nb.core.markdown import fence, plain, span
from grpo_nb.core.words import displayable, shorten

_PARTS_TEMPLATE = "core/templates/parts.jinja"
_MESSAGE_CHARACTERS = 600

# What makes a value safe, by the kind of template. Jinja's autoescape covers HTML. It leaves lone
# surrogates and NUL, which a model can write and no notebook can hold, so `displayable` runs first.
_MAKE_SAFE = {"jinja": displayable, "md": plain}


@functools.cache
def _environment(kind: str = "jinja") -> Any:
    import jinja2
    from markupsafe import Markup

    make_safe = _MAKE_SAFE.get(kind, str)

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else make_safe(str(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grpo_nb", "."),
        autoescape=kind == "jinja",
        # Keep the final newline in generated files, such as programs.
        keep_trailing_newline=kind not in _MAKE_SAFE,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
    )
    # Markup keeps `finalize` from escaping the result of these filters again.
    environment.filters["span"] = lambda text: Markup(span(text))
    environment.filters["fence"] = lambda text, language="": Markup(fence(text, language))
    return environment


def render(template: str, **values: Any) -> str:
    """Return a template filled in with values.

    The template's name decides how values are escaped:

    - `*.jinja`: HTML. Everything is escaped except what the template marks as `safe`. Headings and
      lines of code come from the macros in `core/templates/parts.jinja`.
    - `*.md.jinja`: Markdown. Values become plain text, or code with the filters `span` and `fence`.
      Do not use macros there: what they return would be escaped again.
    - `*.py.jinja`, `*.sh.jinja`, `*.yaml.jinja`: values are not escaped. The caller quotes them.

    Args:
        template: Path below the package's folder, such as `lab/templates/scores.jinja`.
        values: Every name that the template uses; a missing one raises.
    """
    # The part after the first dot: `md`, `py`, or `jinja` for HTML.
    kind = template.split(".")[1]
    return _environment(kind).get_template(template).render(values)


def part(name: str, *values: Any, **more: Any) -> str:
    """Return the result of a macro of `core/templates/parts.jinja`."""
    macros = _environment().get_template(_PARTS_TEMPLATE).module
    macro = getattr(macros, name)
    return str(macro(*values, **more))


def style(*sheets: str) -> str:
    """Return the panels' style sheet, followed by others, such as `runs/viewer.css`."""
    lines = ["<style>"]
    for sheet in ("core/panels.css", *sheets):
        file = resources.files("grpo_nb") / sheet
        lines.append(file.read_text("utf-8").strip())
    lines.append("</style>")
    return "\n".join(lines)


def title(text: str) -> str:
    """Return the title of a panel."""
    return part("title", text)


def code_line(line: str, label: str = "the same in code") -> str:
    """Return the line of code that is shown below a view."""
    return part("code_line", line, label)


def last_lines(error: BaseException, limit: int = 12) -> str:
    """Return the last lines of an error's traceback."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return displayable("\n".join(lines[-limit:]))


def errors_view(errors: Sequence[BaseException]) -> str:
    """Return each error with the end of its traceback; empty without errors."""
    views = []
    for error in errors:
        message = shorten(str(error), _MESSAGE_CHARACTERS)
        views.append(part("error", type(error).__name__, message, last_lines(error)))
    return "".join(views)


def page(name: str, parts: Sequence[tuple[str, Sequence[str]]], *sheets: str) -> str:
    """Return a read-only panel for pages that show no widgets.

    Args:
        name: Title of the panel.
        parts: Headings, each with the views (HTML) below it. A heading without views is left out.
        sheets: Style sheets, as for `style`.
    """
    sections = [(heading, "".join(views)) for heading, views in parts if any(views)]
    return part("page", style(*sheets), name, sections)
