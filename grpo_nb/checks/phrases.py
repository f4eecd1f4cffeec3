"""Texts that a reward's own code holds: one that looks for certain phrases seems to look at nothing until it is shown them."""

import contextlib
import functools
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any


def texts_in(held: Any, depth: int = 5) -> Iterator[str]:
    """The texts of a function's code, defaults, closure and globals, and of the attributes of a reward that is an object."""
    parts = []
    if isinstance(held, (str, re.Pattern)):
        yield getattr(held, "pattern", held)
    elif isinstance(held, (list, tuple, set, frozenset)):
        parts = [*held]
    elif isinstance(held, dict):
        parts = [*held, *held.values()]
    elif isinstance(held, types.CodeType):
        parts = [*held.co_varnames[: held.co_argcount + held.co_kwonlyargcount], *held.co_consts]
    elif isinstance(held, functools.partial):
        parts = [held.func, held.args, held.keywords]
    elif isinstance(held, types.FunctionType):
        with contextlib.suppress(ValueError):  # a variable of the closure that has no value yet
            used = inspect.getclosurevars(held)
            parts = [held.__code__, held.__defaults__, *used.nonlocals.values(), *used.globals.values()]
    elif depth >= 4 and hasattr(held, "__dict__") and not isinstance(held, (type, types.ModuleType)):
        shared = [part for part in vars(type(held)).values() if isinstance(part, (str, list, tuple, set, frozenset))]
        parts = [vars(type(held)).get("__call__"), *shared, *vars(held).values()]
    for part in parts[:100] if depth else ():
        yield from texts_in(part, depth - 1)


def phrases_of(reward: Any, limit: int = 40) -> list[str]:
    """Return the short texts that a reward holds, and the words of its patterns."""
    phrases: dict[str, None] = {}
    for text in texts_in(reward):
        if 1 < len(text) < 60:
            phrases.setdefault(text)
        if re.search(r"[\\|()\[\]*+?]", text):
            phrases |= dict.fromkeys(re.findall(r"[A-Za-z][A-Za-z ,:']{2,40}", re.sub(r"\\.", " ", text)))
    return list(phrases)[:limit]
