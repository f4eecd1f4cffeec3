"""Code of the user's own, in a notebook or a file beside it: which it is, and what a function of it uses from outside."""

from __future__ import annotations

import dis
import sys
import types
from pathlib import PurePath


def is_own_module(module: str | None) -> bool:
    """Whether a module is the user's own: a notebook, or a file that is neither of the kit nor installed."""
    top = (module or "__main__").partition(".")[0]
    if top == "__main__":
        return True
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & set(PurePath(file).parts)


def globals_used(code: types.CodeType) -> set[str]:
    """The names that a function looks up outside of itself, also in the functions and loops inside of it."""
    used = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            used |= globals_used(held)
    return used
