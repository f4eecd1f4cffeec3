"""A bar for what takes a while: tqdm's, and in a notebook as text in place, so that a saved page keeps its last state."""

from __future__ import annotations

import io
from typing import Any


def is_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, where a figure can be shown."""
    from IPython import get_ipython

    return type(get_ipython()).__name__ in ("ZMQInteractiveShell", "Shell")  # Shell: Google Colab


def progress_bar(total: int | None = None, **options: Any) -> Any:
    """Return a tqdm bar that goes away when it is done.

    tqdm's own bar for notebooks is a widget, whose state is not saved with the page: it stands at 0 % for ever.

    Args:
        total: What it counts up to; None if that is not known.
        options: Further ones of tqdm: `desc`, `unit`, `unit_scale`.
    """
    from tqdm import tqdm

    place = {"file": _Output(), "ncols": 100} if is_notebook() else {}
    return tqdm(total=total, leave=False, **place, **options)


class _Output(io.TextIOBase):
    """One output of a cell, replaced with each line that is drawn into it; what is cleared becomes an empty line."""

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, text: str) -> int:
        from IPython.display import display

        line = text.replace("\r", "").rstrip()
        if text.strip("\n"):
            content = {"text/plain": line}
            if self._handle is None:
                self._handle = display(content, raw=True, display_id=True)
            else:
                self._handle.update(content, raw=True)
        return len(text)
