"""Doors that leave what is heavy behind them until it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(room: str, files: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a room's door, which imports a file when one of its names is asked for.

    For files that load torch, trl, matplotlib or ipywidgets while they are imported; the rest of a door is imported at once.
    Nothing is remembered in the door: what a test puts in the place of a file's name is what all others get.

    Args:
        room: The door's `__name__`.
        files: File of the room -> the names that the door offers of it.

    Raises:
        ValueError: A name is also a file's. Python binds a file to its package when it is imported, and would hide the name.
    """
    file_of = {name: file for file, names in files.items() for name in names}
    if hidden := sorted(file_of.keys() & files.keys()):
        raise ValueError(
            f"{room}: {', '.join(hidden)} is the name of a file and of something in its door. Rename the file."
        )

    def find(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{room}.{file_of[name]}"), name)

    return find
