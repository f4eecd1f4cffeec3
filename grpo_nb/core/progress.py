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

    options.setdefault("leave", False)
    if is_notebook():
        options["file"] = CellOutput()
        options["ncols"] = _NOTEBOOK_COLUMNS
    return tqdm(total=total, **options)


class CellOutput(io.TextIOBase):
    """Output of the running notebook cell that is updated in place.

    As the `file` of a tqdm bar, it shows the last state of the bar. When tqdm clears the bar, the
    output is an empty line.
    """

    _handle: Any = None

    def show(self, data: dict[str, Any], **options: Any) -> None:
        """Show a MIME bundle in place of the previous one."""
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True, **options)
        else:
            self._handle.update(data, raw=True, **options)

    def write(self, text: str) -> int:
        if text.strip("\n"):
            # tqdm starts each state with a carriage return, which is not needed here.
            self.show({"text/plain": text.strip()})
        return len(text)
