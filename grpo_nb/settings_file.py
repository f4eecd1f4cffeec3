"""Plain values as JSON and back, exactly: what a file of settings is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def encode(value: Any, where: str) -> Any:
    """Return JSON values for `value`: tuples, keys that are no strings and infinities become objects with one marked key.

    Args:
        value: Made of None, numbers, strings, lists, tuples and mappings.
        where: Its name, for the error.

    Raises:
        ValueError: Anything else in it.

    >>> encode({"betas": (0.9, 0.99)}, "extra")
    {'betas': {'__tuple__': [0.9, 0.99]}}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is tuple:
        return {"__tuple__": [encode(item, where) for item in value]}
    if type(value) is list:
        return [encode(item, where) for item in value]
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith("__") for key in value):
            return {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
        return {"__mapping__": [[encode(k, where), encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
    raise ValueError(
        f"{where} holds a {type(value).__name__}, which a file of settings has no form for. Write the values it is made of."
    )


def decode(value: Any) -> Any:
    """The inverse of `encode`.

    >>> decode({"betas": {"__tuple__": [0.9, 0.99]}})
    {'betas': (0.9, 0.99)}
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"__float__"}:
        return float(value["__float__"])
    if set(value) == {"__tuple__"}:
        return tuple(decode(item) for item in value["__tuple__"])
    if set(value) == {"__mapping__"}:
        return {decode(key): decode(item) for key, item in value["__mapping__"]}
    return {key: decode(item) for key, item in value.items()}
