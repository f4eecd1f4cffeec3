"""What a user gives for an argument, looked at where it is given: one line that names the argument and the value."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

from grpo_nb.core.text import shorten


def in_line(value: Any, limit: int = 60) -> str:
    """Return a value as one short line, whatever it is.

    >>> in_line("two\\nlines"), in_line([1] * 100, 10)
    ("'two\\\\nlines'", '[1, 1, 1, ...')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def require_number(
    name: str, value: Any, least: float, most: float = math.inf, *, is_whole: bool = True, why: str = ""
) -> None:
    """Refuse what is no finite number between two bounds, both included.

    Args:
        name: Of the argument.
        value: What was given for it.
        least, most: The bounds.
        is_whole: Whether only whole numbers will do.
        why: Said behind it, such as what another value would mean.

    Raises:
        TypeError: No number, or none that is whole.
        ValueError: Not finite, or outside of the bounds.

    >>> require_number("steps", 0, 1)
    Traceback (most recent call last):
    ValueError: steps = 0 must be at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral if is_whole else numbers.Real):
        raise TypeError(f"{name} = {in_line(value)} must be a {'whole ' if is_whole else ''}number{why}.")
    if not (least <= value <= most and value < math.inf):
        bounds = f"at least {least}" if most == math.inf else f"between {least} and {most}"
        raise ValueError(f"{name} = {in_line(value)} must be {bounds}{why}.")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, or as many of them as can be read."""
    known = sorted(map(str, known))
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known: {shorten(', '.join(known), 600)}"
