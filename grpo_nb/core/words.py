"""Texts for messages: shorten, escape, check a value and suggest the nearest known name."""

import difflib
import math
import numbers
import re
from collections.abc import Collection, Iterable
from typing import Any

# Control characters except tab and newline. A carriage return is matched unless a newline follows:
# alone, it makes a terminal write over the line.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


def shorten(text: str, limit: int) -> str:
    """Return a text, or its first `limit` characters and a note of its full length."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text):,} characters)"


def format_score(value: float) -> str:
    """Return a score as tables show it; `none` for NaN, which means that there is no score."""
    return "none" if math.isnan(value) else f"{value:.4g}"


def displayable(text: str) -> str:
    """Return a text with the characters escaped that a notebook or terminal cannot show.

    A notebook with a lone surrogate cannot be saved. Some renderers end a text at NUL. A terminal
    executes the characters after ESC.
    """
    without_surrogates = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", without_surrogates)


def short_repr(value: Any, limit: int = 60) -> str:
    """Return the `repr` of a value as one line, shortened.

    >>> short_repr("two\\nlines"), short_repr([1] * 100, 10)
    ("'two\\\\nlines'", '[1, 1, 1, ... (300 characters)')
    """
    lines = [line.strip() for line in repr(value).splitlines()]
    return shorten(" ".join(lines), limit)


def require_number(
    name: str,
    value: Any,
    minimum: float,
    maximum: float = math.inf,
    *,
    whole: bool = False,
) -> None:
    """Check that an argument is a finite number between two bounds, both included.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        minimum: Smallest value allowed.
        maximum: Largest value allowed.
        whole: True if the number must be whole.

    Raises:
        ValueError: The value is no such number, or is out of bounds.

    >>> require_number("rate", math.inf, 0)
    Traceback (most recent call last):
    ValueError: rate = inf must be a finite number of at least 0.
    """
    allowed_type = numbers.Integral if whole else numbers.Real
    # bool is a subclass of int, but True is no count.
    is_number = isinstance(value, allowed_type) and not isinstance(value, bool)
    if not (is_number and minimum <= value <= maximum and value < math.inf):
        kind = "whole" if whole else "finite"
        limits = f"of at least {minimum}"
        if maximum < math.inf:
            limits = f"between {minimum} and {maximum}"
        raise ValueError(f"{name} = {short_repr(value)} must be a {kind} number {limits}.")


def require_whole_number(
    name: str,
    value: Any,
    minimum: float,
    maximum: float = math.inf,
) -> None:
    """Check that an argument is a whole number between two bounds, as `require_number` does.

    >>> require_whole_number("steps", 0, 1)
    Traceback (most recent call last):
    ValueError: steps = 0 must be a whole number of at least 1.
    """
    require_number(name, value, minimum, maximum, whole=True)


def require_choice(name: str, value: Any, known: Collection[Any]) -> None:
    """Check that a value is one of the known ones.

    Raises:
        ValueError: The value is unknown. The message names the nearest choice, or all of them.

    >>> require_choice("loss_type", "grpo", ("grpo", "dapo"))
    """
    # A list, unlike a set or dict, can also be searched for a value that has no hash.
    if value not in list(known):
        raise ValueError(f"{name} = {value!r:.80} is unknown{did_you_mean(value, known)}")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `"; did you mean 'x'?"` for the most similar known name, else a list of all names.

    >>> did_you_mean("colunms", ["columns", "kind"]), did_you_mean("xyz", ["columns", "kind"])
    ("; did you mean 'columns'?", '; choose from: columns, kind')
    """
    names = sorted(map(str, known))
    name_by_folded = {known_name.casefold(): known_name for known_name in names}
    matches = difflib.get_close_matches(str(name).casefold(), name_by_folded, n=1, cutoff=0.5)
    if matches:
        return f"; did you mean {name_by_folded[matches[0]]!r}?"
    return f"; choose from: {shorten(', '.join(names), 600)}"
