"""Progress bars of tqdm that stay readable in a saved notebook."""

import io
from typing import Any

# `ZMQInteractiveShell` is Jupyter's shell, `Shell` is Google Colab's.
_NOTEBOOK_SHELLS = ("ZMQInteractiveShell", "Shell")
_NOTEBOOK_COLUMNS = 100


def is_notebook() -> bool:
    """Return True if the output goes to a notebook, which can show a figure."""
    from IPython import get_ipython

    return type(get_ipython()).__name__ in _NOTEBOOK_SHELLS


def progress_bar(total: int | None = None, **options: Any) -> Any:
    """Return a tqdm bar that disappears when it is done, unless `leave=True`.

    tqdm's own bar for notebooks is a widget, and a saved page shows it at 0 % for ever. This bar is
    text that is updated in place.

    Args:
        total: Number of steps; None if it is not known.
        options: Further options of tqdm, such as `desc`, `unit` and `unit_scale`.
    """
    from tqdm import tqdm

    kwargs: dict[str, Any] = {"leave": False}
    if is_notebook():
        kwargs["file"] = CellOutput()
        kwargs["ncols"] = _NOTEBOOK_COLUMNS
    return tqdm(total=total, **(kwargs | options))


class CellOutput(io.TextIOBase):
    """An output of the running notebook cell that is updated in place.

    As the file of a bar, it shows the last line written. When tqdm clears the bar, the output is an
    empty line.
    """

    _handle: Any = None

    def show(self, data: dict[str, Any], **options: Any) -> None:
        """Show a bundle of MIME types in place of the one shown before."""
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True, **options)
        else:
            self._handle.update(data, raw=True, **options)

    def write(self, text: str) -> int:
        if text.strip("\n"):
            # tqdm starts each state with a carriage return. An output in place does not need it.
            self.show({"text/plain": text.replace("\r", "").rstrip()})
        return len(text)
