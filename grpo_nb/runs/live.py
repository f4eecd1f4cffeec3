"""Training curves: one figure from rows, and the same figure live, updated in place."""

from __future__ import annotations

import base64
import functools
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from grpo_nb.core.progress import CellOutput
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.curves import Curves
from grpo_nb.runs.figure import TrainingFigure
from grpo_nb.runs.rows import Row


def training_figure(
    rows: Sequence[Row],
    weights: Mapping[str, float] | None = None,
    beta: float | None = None,
    *,
    alerts: Sequence[Alert] = (),
) -> Figure:
    """Draw reward with spread, each reward, KL, held-out score and length over the steps, and six signals of trouble.

    Pale and thin are the logged values, strong their trailing mean. Of a run of more than 256 rows the pale lines are the
    extremes of equally long stretches, so that no spike is lost. What was not measured is said to be so. The sentence below
    says the same in words.

    Args:
        rows: As in `Run.rows`, any of the metrics may be missing. `stage` marks where a stage begins.
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL; with 0 the panel says that KL is not measured.
        alerts: As in `Run.alerts`, marked where they came; the most severe are written below.

    >>> figure = training_figure([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
    >>> figure.axes[0].get_title(loc="left")
    'Total reward'
    """
    return TrainingFigure(weights, beta).draw(Curves(rows, beta=beta), alerts)


def figure_for_a_file(
    rows: Sequence[Row], weights: Mapping[str, float], beta: float, alerts: Sequence[Alert]
) -> Figure:
    """`training_figure` for those who write it away at once: the next one is drawn on the same axes, whatever run it is of."""
    return _kept_axes().of(weights, beta).draw(Curves(rows, beta=beta), alerts)


@functools.cache
def _kept_axes() -> TrainingFigure:
    return TrainingFigure()


def png(figure: Figure, dpi: int = 100) -> bytes:
    """Render a figure without touching pyplot's state."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def figure_bundle(figure: Figure, text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The display data of a figure with its alternative text: (data, metadata), for `display(..., raw=True)`."""
    data = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": text}
    return data, {"image/png": {"alt": f"Training curves. {text}"}}


class LivePlot:
    """The training figure in a notebook cell, updated in place through one display handle.

    It never clears other output. The first rows and the last are always drawn; in between, a redraw of 0.1 s waits until
    0.1 / share seconds have passed since the one before, so that all of them take at most that share of the time. What a
    redraw costs does not grow with the run: only the rows that are new are read, and curves are bounded.

    Args:
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL.
        share: Of the time that redraws may take; half a percent is not felt.
            With steps of 8 s on a CPU, every fourth to eighth is drawn.
    """

    def __init__(self, weights: Mapping[str, float], beta: float, *, share: float = 0.005) -> None:
        self._weights, self._beta, self._share = weights, beta, share
        self._figure: TrainingFigure | None = None
        self._curves = Curves(beta=beta)
        self._output = CellOutput()
        self._next = 0.0
        self._shown: tuple[int, int] = (0, 0)
        self.seconds = 0.0
        """Time spent on drawing so far, the first figure included."""
        self.draws = 0
        """How often it was drawn."""

    def update(self, rows: Sequence[Row], *, alerts: Sequence[Alert] = (), is_last: bool = False) -> bool:
        """Redraw if it is due; say whether it was.

        Args:
            rows: All rows so far. Those taken in before are not read again.
            alerts: All alerts so far.
            is_last: Draw in any case.
        """
        now = time.perf_counter()
        known = self._curves.rows
        if known and (len(rows) < len(known) or rows[len(known) - 1] is not known[-1]):  # it went back to a checkpoint
            self._curves = Curves(beta=self._beta)
        for row in rows[len(self._curves.rows) :]:
            self._curves.add(row)
        state = (len(rows), len(alerts))
        if not rows or (not is_last and (state == self._shown or now < self._next)):
            return False
        self._figure = self._figure or TrainingFigure(self._weights, self._beta)
        data, metadata = figure_bundle(self._figure.draw(self._curves, alerts), self._curves.sentence)
        self._output.show(data, metadata=metadata)
        took = time.perf_counter() - now
        self.seconds += took
        # The first figure also pays for matplotlib's fonts; waiting two hundred times that would leave the cell bare.
        self._next = now + took + (0 if self.draws == 0 else took / self._share)
        self.draws += 1
        self._shown = state
        return True
