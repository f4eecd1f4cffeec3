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
    if isinstance(held, (str, re.Pattern)):
        yield getattr(held, "pattern", held)
    elif isinstance(held, dict):
        yield from texts_in([*held, *held.values()], depth)
    elif isinstance(held, (list, tuple, set, frozenset)) and depth:
        for part in list(held)[:100]:
            yield from texts_in(part, depth - 1)
    elif isinstance(held, types.CodeType):
        yield from texts_in([*held.co_varnames[: held.co_argcount], *held.co_consts], depth)
    elif isinstance(held, functools.partial):
        yield from texts_in([held.func, held.args, held.keywords], depth)
    elif isinstance(held, types.FunctionType):
        used = {}
        with contextlib.suppress(ValueError):  # a variable of the closure that has no value yet
            closure = inspect.getclosurevars(held)
            used = {**closure.nonlocals, **closure.globals}
        yield from texts_in([held.__code__, held.__defaults__, *used.values()], depth)
    elif depth >= 4 and hasattr(held, "__dict__") and not isinstance(held, (type, types.ModuleType)):
        call = [vars(type(held)).get("__call__")]
        shared = [part for part in vars(type(held)).values() if isinstance(part, (str, list, tuple, set, frozenset))]
        yield from texts_in([*call, *shared, *vars(held).values()], depth)


def phrases_of(reward: Any, limit: int = 40) -> list[str]:
    """Return the short texts that a reward holds, and the words of its patterns."""
    phrases: dict[str, None] = {}
    for text in texts_in(reward):
        if 1 < len(text) < 60:
            phrases.setdefault(text)
        if re.search(r"[\\|()\[\]*+?]", text):
            phrases |= dict.fromkeys(re.findall(r"[A-Za-z][A-Za-z ,:']{2,40}", re.sub(r"\\.", " ", text)))
    return list(phrases)[:limit]
