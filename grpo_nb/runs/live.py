"""The training figure in a notebook cell, drawn again while the run goes on."""

import base64
import time
from collections.abc import Mapping, Sequence

from grpo_nb.core.progress import CellOutput
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.figure import png, training_figure
from grpo_nb.runs.rows import Row


class LivePlot:
    """The training figure in a notebook cell, updated in place through one display handle. It never clears other output.

    The first rows and the last are always drawn; in between, a redraw waits until all of them take at most a share of the time.

    Args:
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL.
        reference: What it is measured to.
        share: Of the time that redraws may take: one of 0.3 s then comes every 30 s.
    """

    def __init__(
        self, weights: Mapping[str, float], beta: float, reference: str = "the reference model", *, share: float = 0.01
    ) -> None:
        self._told, self._share, self._output, self._next = (weights, beta, reference), share, CellOutput(), 0.0
        self.seconds, self.draws = 0.0, 0
        """Time spent on drawing so far, and how often it was drawn."""

    def update(self, rows: Sequence[Row], *, alerts: Sequence[Alert] = (), is_last: bool = False) -> bool:
        """Redraw if it is due; say whether it was.

        Args:
            rows: All rows so far.
            alerts: All alerts so far.
            is_last: Draw in any case.
        """
        now = time.perf_counter()
        if not rows or (not is_last and now < self._next):
            return False
        figure = training_figure(rows, *self._told, alerts=alerts)
        shown = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": figure.get_label()}
        self._output.show(shown, metadata={"image/png": {"alt": f"Training curves. {figure.get_label()}"}})
        took = time.perf_counter() - now
        # The first figure also pays for matplotlib's fonts; waiting for that would leave the cell bare.
        self._next = now + took + (took / self._share if self.draws else 0)
        self.seconds, self.draws = self.seconds + took, self.draws + 1
        return True
