"""Find the controls and texts of a widget as a user does: by their labels, and as shown."""

import html
import re
from typing import Any


def widgets_in(widget: Any) -> list[Any]:
    """Return a widget and all widgets inside it."""
    found = [widget]
    for child in getattr(widget, "children", ()):
        found += widgets_in(child)
    return found


def control(lab: Any, label: str) -> Any:
    """Return the only control with this label."""
    (found,) = [one for one in widgets_in(lab) if getattr(one, "description", None) == label]
    return found


def has_control(lab: Any, label: str) -> bool:
    """Return whether a control has this label."""
    return any(getattr(one, "description", None) == label for one in widgets_in(lab))


def click(lab: Any, label: str) -> None:
    """Click a button."""
    control(lab, label).click()


def remove_completion(lab: Any, number: int) -> Any:
    """Return the remove button of a completion."""
    tooltip = f"Remove completion {number}"
    (found,) = [one for one in widgets_in(lab) if getattr(one, "tooltip", None) == tooltip]
    return found


def html_views(lab: Any) -> list[str]:
    """Return the HTML of every view."""
    return [one.value for one in widgets_in(lab) if type(one).__name__ == "HTML"]


def page_html(lab: Any) -> str:
    """Return the HTML that a page without a kernel shows."""
    return lab._repr_mimebundle_()["text/html"]


def text_of(lab: Any) -> str:
    """Return everything that the lab shows, as text."""
    return html.unescape(re.sub(r"<[^>]*>", " ", " ".join(html_views(lab))))


def shown_scores(lab: Any) -> list[list[str]]:
    """Return the numbers in the table of scores, line by line."""
    lines = re.findall(r"<tr data-completion=.*?</tr>", "".join(html_views(lab)), re.DOTALL)
    cells = [re.findall(r'<td class="gn-number[^>]*>(.*?)</td>', line) for line in lines]
    return [[html.unescape(cell) for cell in line] for line in cells]
