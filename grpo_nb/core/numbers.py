"""Numbers that a user gives, looked at where they are given."""

from __future__ import annotations

import math
import numbers
from typing import Any


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
        raise TypeError(f"{name} = {value!r:.60} must be a {'whole ' if is_whole else ''}number{why}.")
    if not (least <= value <= most and value < math.inf):
        bounds = f"at least {least}" if most == math.inf else f"between {least} and {most}"
        raise ValueError(f"{name} = {value!r:.60} must be {bounds}{why}.")
