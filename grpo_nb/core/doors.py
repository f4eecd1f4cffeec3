"""The doors of the rooms: which names they offer, and how what is heavy stays behind them until it is asked for."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

_OF_EVERY_FILE = ("TYPE_CHECKING", "annotations", "open_door")


def open_door(
    door: MutableMapping[str, Any], files: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a room's `__getattr__`, `__dir__` and `__all__`: the names that its door imports, and those of heavy files.

    Heavy files load torch, trl, matplotlib or ipywidgets while they are imported; one is imported when one of its names is
    asked for. Nothing is remembered in the door: what a test puts in the place of a file's name is what all others get.

    Args:
        door: The `globals()` of the door, after its imports.
        files: Heavy file of the room -> the names that the door offers of it.

    Raises:
        ValueError: A name is also a file's. Python binds a file to its package when it is imported, and would hide the name.
    """
    room, files = door["__name__"], files or {}
    file_of = {name: file for file, names in files.items() for name in names}
    if hidden := sorted(file_of.keys() & files.keys()):
        raise ValueError(
            f"{room}: {', '.join(hidden)} is the name of a file and of something in its door. Rename the file."
        )
    imported = {
        name for name, value in door.items()
        if not name.startswith("_") and name not in _OF_EVERY_FILE and not isinstance(value, types.ModuleType)
    }  # fmt: skip
    offered = sorted(imported | file_of.keys())

    def find(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{room}.{file_of[name]}"), name)

    return find, lambda: offered, offered
