"""The errors that several rooms raise; what each means to the person who reads it."""

from typing import Any


class EnvironmentProblem(RuntimeError):
    """This machine or its installation is in the way: what, why, and what to type next."""


def check_type(name: str, value: Any, kinds: Any, instead: str) -> None:
    """Refuse a value of another type.

    Args:
        name: Of the argument.
        value: Seen.
        kinds: As `isinstance` takes them.
        instead: What to write, without the full stop.

    Raises:
        TypeError: With all of these.
    """
    if not isinstance(value, kinds):
        raise TypeError(f"{name} = {value!r:.60} is of type {type(value).__name__}: {instead}.")
