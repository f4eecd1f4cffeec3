"""What is said to a user: texts shortened and made fit for a notebook, arguments refused in one line that names the value."""

import difflib
import math
import numbers
import re
from collections.abc import Iterable
from typing import Any

# Control characters but for tabs and the ends of lines; a return alone writes over what stands in its line.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


class EnvironmentProblem(RuntimeError):
    """This machine or its installation is in the way: what, why, and what to type next."""


def excerpt(text: str, limit: int = 160) -> str:
    """Return a text as a literal that can be shown anywhere: control characters and lone surrogates escaped, shortened."""
    return shorten(repr(text).encode("utf-8", "backslashreplace").decode(), limit)


def shorten(text: str, limit: int) -> str:
    """Return a text up to a limit, and how long it is where it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def as_score(value: float) -> str:
    """Return a score as tables show it; `none` where there is no score."""
    return "none" if math.isnan(value) else f"{value:.4g}"


def displayable(text: str) -> str:
    """Return a text that every notebook can hold and every renderer shows to its end."""
    # A lone surrogate cannot be encoded, so a notebook that holds one cannot be saved; NUL ends some renderers' strings, and a
    # terminal obeys what begins with ESC.
    shown = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", shown)


def in_line(value: Any, limit: int = 60) -> str:
    """Return a value as one short line, whatever it is.

    >>> in_line("two\\nlines"), in_line([1] * 100, 10)
    ("'two\\\\nlines'", '[1, 1, 1, ... (300 characters)')
    """
    return shorten(" ".join(repr(value).split()), limit)


def require_number(
    name: str,
    value: Any,
    least: float,
    most: float = math.inf,
    *,
    is_whole: bool = True,
    why: str = "",
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
    if isinstance(value, bool) or not isinstance(
        value, numbers.Integral if is_whole else numbers.Real
    ):
        raise TypeError(
            f"{name} = {in_line(value)} must be a {'whole ' if is_whole else ''}number{why}."
        )
    if not (least <= value <= most and value < math.inf):
        bounds = f"at least {least}" if most == math.inf else f"between {least} and {most}"
        raise ValueError(f"{name} = {in_line(value)} must be {bounds}{why}.")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, or as many of them as can be read."""
    known = sorted(map(str, known))
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return (
        f"; did you mean {nearest[0]!r}?"
        if nearest
        else f"; known: {shorten(', '.join(known), 600)}"
    )
