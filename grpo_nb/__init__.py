"""grpo_nb: teach a language model with GRPO on one GPU or a plain CPU, in a notebook, with evidence at every step.

Importing this package loads nothing heavy and starts no process. What `gn.` offers stands in one list, `__init__.pyi`, which
this loader, `dir(gn)` and editors read; the rest lives in its room (`gn.tasks.xml`, `gn.sandbox.run_untrusted`). Names are
looked up when they are used, in the order that keeps Unsloth ahead of trl and transformers, which it patches while they load.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = (
    "core", "machine", "settings", "tasks", "models", "generation", "sandbox", "rewards", "checks", "lab", "runs", "health",
    "evaluation", "training", "export", "scaleout",
)  # fmt: skip


@functools.cache
def _offered() -> dict[str, str]:
    """Public name -> the room it is in, from the stub; a room is in none."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_offered())
    if name in _ROOMS:
        return importlib.import_module(f"grpo_nb.{name}")
    if name.startswith("_") or name not in _offered():
        raise AttributeError(f"module 'grpo_nb' has no attribute {name!r}{'' if name.startswith('_') else _hint(name)}")
    return getattr(importlib.import_module(f"grpo_nb.{_offered()[name]}"), name)


def __dir__() -> list[str]:
    return [*sorted(_offered()), "__version__"]


def _hint(name: str) -> str:
    """Where a name is to be found, or which one may have been meant."""
    import difflib

    known = {offered: f"gn.{offered}" for offered in _offered()}
    for room in _ROOMS:
        for inside in importlib.import_module(f"grpo_nb.{room}").__all__:
            known.setdefault(inside, f"gn.{room}.{inside}")
    if name in known:
        return f": it is {known[name]}"
    near = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {known[near[0]]}?" if near else ""
