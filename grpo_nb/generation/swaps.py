"""Functions of other libraries replaced for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from contextlib import ContextDecorator
from typing import Any


class Swap(ContextDecorator):
    """Within the block, `mapping[key]` is what `made_of` gives for what stood there.

    Blocks may lie inside of each other and in several threads at a time: the first one puts the new value in, and the last
    one that is left, whichever it is, puts the old one back.
    """

    def __init__(self, mapping: MutableMapping[str, Any], key: str, made_of: Callable[[Any], Any]) -> None:
        self._mapping, self._key, self._made_of = mapping, key, made_of
        self._lock, self._depth, self._stock = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._stock = self._mapping[self._key]
                self._mapping[self._key] = self._made_of(self._stock)
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._mapping[self._key], self._stock = self._stock, None
