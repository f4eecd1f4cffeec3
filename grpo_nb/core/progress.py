"""A bar for what takes a while: tqdm's, and in a notebook as text in place, so that a saved page keeps its last state."""

import io
from typing import Any


def is_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, where a figure can be shown."""
    from IPython import get_ipython

    return type(get_ipython()).__name__ in ("ZMQInteractiveShell", "Shell")  # Shell: Google Colab


def progress_bar(total: int | None = None, **options: Any) -> Any:
    """Return a tqdm bar that goes away when it is done, unless `leave=True`.

    tqdm's own bar for notebooks is a widget, whose state is not saved with the page: it stands at 0 % for ever.

    Args:
        total: What it counts up to; None if that is not known.
        options: Further ones of tqdm: `desc`, `unit`, `unit_scale`.
    """
    from tqdm import tqdm

    place = {"file": CellOutput(), "ncols": 100} if is_notebook() else {}
    return tqdm(total=total, **{"leave": False, **place, **options})


class CellOutput(io.TextIOBase):
    """One output of a notebook's cell: shown by the cell that is running, and then updated in place.

    Written to, as by a bar, it shows the last line; what is cleared becomes an empty one.
    """

    _handle: Any = None

    def show(self, data: dict[str, Any], **options: Any) -> None:
        """Show a bundle of MIME types in place of what was shown before."""
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True, **options)
        else:
            self._handle.update(data, raw=True, **options)

    def write(self, text: str) -> int:
        if text.strip("\n"):
            self.show({"text/plain": text.replace("\r", "").rstrip()})
        return len(text)
