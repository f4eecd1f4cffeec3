"""What the views with a layout of their own share, first of all templates that escape everything for HTML.

Needs no ipywidgets: a view is HTML that a saved page holds too. The widgets around such views are in `grpo_nb.core.panels`.
"""

import functools
import traceback
from collections.abc import Sequence
from importlib import resources
from typing import Any

from grpo_nb.core.markdown import fence, plain, span
from grpo_nb.core.words import displayable, shorten


@functools.cache
def _environment(kind: str = "jinja") -> Any:
    import jinja2
    from markupsafe import Markup

    escaped = {"jinja": displayable, "md": plain}.get(kind, str)
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("grpo_nb", "."), autoescape=kind == "jinja", keep_trailing_newline=escaped is str,
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        # Autoescape makes text safe for HTML; a lone surrogate or NUL, which a model may write, no notebook can hold.
        finalize=lambda value: value if isinstance(value, Markup) else escaped(str(value)),
    )  # fmt: skip
    made.filters["span"] = lambda text: Markup(span(text))
    made.filters["fence"] = lambda text, language="": Markup(fence(text, language))
    return made


def render(template: str, **values: Any) -> str:
    """Return a template of a room filled in. Everything is escaped, but what the template itself marks as `safe`.

    Args:
        template: As `lab/templates/scores.jinja`, under the package's folder. A template takes headings and lines of code
            from `core/templates/parts.jinja`. In one whose name ends in `.md.jinja`, values are made plain Markdown, or with
            the filters `span` and `fence` code; what macros of it return would be escaped again. In a template of a program
            or of settings (`.py.jinja`, `.sh.jinja`, `.yaml.jinja`) values stand as they are: whoever fills it in quotes them.
        values: Every name the template uses; one that is missing raises.
    """
    kind = template.split(".")[1]  # `md`, `py`; `jinja` of a view, which has no other ending
    return _environment(kind).get_template(template).render(values)


def part(name: str, *values: Any, **more: Any) -> str:
    """Return a macro of `core/templates/parts.jinja` filled in."""
    return str(
        getattr(_environment().get_template("core/templates/parts.jinja").module, name)(
            *values, **more
        )
    )


def style(*sheets: str) -> str:
    """Return the panels' style sheet, with those of a room (as `runs/viewer.css`) behind it."""
    files = [resources.files("grpo_nb") / sheet for sheet in ("core/panels.css", *sheets)]
    return "\n".join(["<style>", *(file.read_text("utf-8").strip() for file in files), "</style>"])


def title(text: str) -> str:
    """Return the title of a panel."""
    return part("title", text)


def code_line(line: str, label: str = "the same in code") -> str:
    """Return the line of code that stands under a view."""
    return part("code_line", line, label)


def last_lines(error: BaseException, limit: int = 12) -> str:
    """Return the end of an error's traceback."""
    return displayable("\n".join("".join(traceback.format_exception(error)).splitlines()[-limit:]))


def errors_view(errors: Sequence[BaseException]) -> str:
    """Return what failed, with the end of its traceback. Empty without errors."""
    return "".join(
        part("error", type(e).__name__, shorten(str(e), 600), last_lines(e)) for e in errors
    )


def page(name: str, parts: Sequence[tuple[str, Sequence[str]]], *sheets: str) -> str:
    """Return a panel that can only be read, for pages that show no widgets.

    Args:
        name: Its title.
        parts: Headings, and the views (HTML) under each; what has no view is left out.
        sheets: Style sheets as for `style`.
    """
    return part(
        "page",
        style(*sheets),
        name,
        [(heading, "".join(views)) for heading, views in parts if any(views)],
    )
