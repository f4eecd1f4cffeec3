"""Training curves: one figure from rows, and the same figure live, updated in place."""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_nb.metrics import Row, describe, reward_names, reward_series, series

# Okabe and Ito's palette: told apart with any colour vision, and with the line styles also in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_INK, _PALE = "#333333", "#BBBBBB"


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` measured values at each position; NaN where none of them was measured."""
    means = []
    for end in range(1, len(values) + 1):
        known = [v for v in values[max(0, end - window) : end] if not math.isnan(v)]
        means.append(sum(known) / len(known) if known else math.nan)
    return means


def weights_of_run(info: Mapping[str, Any]) -> dict[str, float]:
    """The weight of each reward from a run's `run.json`."""
    return {reward["name"]: reward["weight"] for reward in info["rewards"]}


def training_figure(
    rows: Sequence[Row], weights: Mapping[str, float] | None = None, beta: float | None = None
) -> Figure:
    """Draw reward with spread, each reward, KL, and completion length with the clipped share, over the steps.

    Pale and thin are the logged values, strong their trailing mean. The sentence below says the same in words.

    Args:
        rows: As in `Run.rows`, any of the metrics may be missing.
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL; with 0 the panel says that KL is not measured.
    """
    rows = [row for row in rows if "reward" in row]
    figure = Figure(figsize=(10, 6.4), facecolor="white")
    # Fixed margins: a layout engine doubles the time of each redraw.
    figure.subplots_adjust(left=0.085, right=0.87, top=0.955, bottom=0.145, wspace=0.24, hspace=0.16)
    axes = figure.subplots(2, 2, sharex=True)
    (total, each), (kl, length) = axes
    steps = [row["step"] for row in rows]
    # Until then a mean over half the run would hide the start.
    window = max(1, min(10, len(rows) // 4))

    _style(total, "Total reward", "weighted sum")
    _style(each, "Each reward", "mean score, unweighted")
    _style(kl, "KL to the starting model", "nats per token")
    _style(length, "Completion length", "tokens, mean")
    if rows:
        _draw_total(total, steps, rows, window)
        _draw_each(each, steps, rows, window, weights or {})
        _draw_kl(kl, steps, rows, window, beta)
        _draw_length(length, steps, rows, window)
        last = max(steps[-1], 2)
        for axis in axes.flat:
            axis.set_xlim(1, last)
            axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in (kl, length):
        axis.set_xlabel("optimizer step", color=_INK)
    smoothing = f"Strong lines are the mean of the last {window} steps, pale lines each step." if window > 1 else ""
    figure.text(0.5, 0.052, describe(rows), fontsize=10, color=_INK, ha="center", va="center")
    figure.text(0.5, 0.018, smoothing, fontsize=8.5, color="#666666", ha="center", va="center")
    return figure


def _style(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axis.set_ylabel(unit, color=_INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#EEEEEE")
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK)


def _line(
    axis: Axes, steps: Sequence[float], values: Sequence[float], window: int, colour: str, style: str = "-"
) -> float:
    """Draw values and their trailing mean; return the mean's last value."""
    means = trailing_mean(values, window)
    if window > 1:
        axis.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
    marker = "o" if len(steps) == 1 else None
    axis.plot(steps, means, color=colour, linewidth=2, linestyle=style, marker=marker)
    return means[-1]


def _draw_total(axis: Axes, steps: Sequence[float], rows: Sequence[Row], window: int) -> None:
    rewards, spread = series(rows, "reward"), series(rows, "reward_std")
    low = [r - s for r, s in zip(rewards, spread, strict=True)]
    high = [r + s for r, s in zip(rewards, spread, strict=True)]
    axis.fill_between(steps, low, high, color=_COLOURS[0], alpha=0.12, linewidth=0)
    _line(axis, steps, rewards, window, _COLOURS[0])
    axis.text(
        0.99, 0.03, "band: one standard deviation", transform=axis.transAxes, ha="right", fontsize=8, color="#666666"
    )


def _draw_each(
    axis: Axes, steps: Sequence[float], rows: Sequence[Row], window: int, weights: Mapping[str, float]
) -> None:
    ends = []
    for i, name in enumerate(reward_names(rows)):
        colour = _COLOURS[i % len(_COLOURS)]
        end = _line(axis, steps, reward_series(rows, name), window, colour, _STYLES[i % len(_STYLES)])
        label = f"{name} x{weights[name]:g}" if name in weights else name
        ends.append((end, label, colour))
    # Direct labels at the right, moved apart where lines end close together.
    bottom, top = axis.get_ylim()
    gap, at = 0.085 * (top - bottom), -math.inf
    for end, label, colour in sorted(ends, key=lambda item: (math.isnan(item[0]), item[0])):
        at = max(at + gap, bottom if math.isnan(end) else end)
        axis.annotate(
            label, (1.0, at), xycoords=axis.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points",
            color=colour, fontsize=9, va="center", annotation_clip=False,
        )  # fmt: skip


def _draw_kl(axis: Axes, steps: Sequence[float], rows: Sequence[Row], window: int, beta: float | None) -> None:
    values = series(rows, "kl")
    if all(map(math.isnan, values)):
        why = "not measured (beta = 0)" if beta == 0 else "not measured"
        axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color="#666666", fontsize=12)
        axis.set_yticks([])
        return
    _line(axis, steps, values, window, _COLOURS[2])
    axis.set_ylim(bottom=0)


def _draw_length(axis: Axes, steps: Sequence[float], rows: Sequence[Row], window: int) -> None:
    lengths = series(rows, "completions/mean_length")
    if all(map(math.isnan, lengths)):
        lengths = series(rows, "completion_length")
    _line(axis, steps, lengths, window, _COLOURS[0])
    axis.set_ylim(bottom=0)
    axis.yaxis.label.set_color(_COLOURS[0])
    clipped = [100 * v for v in series(rows, "completions/clipped_ratio")]
    if all(map(math.isnan, clipped)):
        return
    share = axis.twinx()
    _line(share, steps, clipped, window, _COLOURS[1], "--")
    share.set_ylim(0, 100)
    share.set_ylabel("% cut at the limit (dashed)", color=_COLOURS[1])
    share.spines[["top", "left"]].set_visible(False)
    share.tick_params(colors=_INK)


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

    It never clears other output and takes at most `share` of the time: after a redraw of 0.3 s, the next one waits
    until 0.3 / share seconds have passed. The first rows and the last are always drawn.
    """

    def __init__(self, weights: Mapping[str, float], beta: float, *, share: float = 0.02) -> None:
        self._weights, self._beta, self._share = weights, beta, share
        self._handle: Any = None
        self._next = 0.0
        self._drawn = 0
        self.seconds = 0.0
        """Time spent on drawing so far."""

    def update(self, rows: Sequence[Row], *, is_last: bool = False) -> bool:
        """Redraw if it is due; say whether it was."""
        now = time.perf_counter()
        if not rows or (len(rows) == self._drawn and not is_last) or (now < self._next and not is_last):
            return False
        data, metadata = figure_bundle(training_figure(rows, self._weights, self._beta), describe(rows))
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, metadata=metadata, raw=True, display_id=True)
        else:
            self._handle.update(data, metadata=metadata, raw=True)
        took = time.perf_counter() - now
        self.seconds += took
        # The first figure also pays for matplotlib's fonts; waiting fifty times that would leave the cell bare.
        self._next = now + took + (0 if self._drawn == 0 else took / self._share)
        self._drawn = len(rows)
        return True


def is_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, where a figure can be shown."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and type(shell).__name__ in ("ZMQInteractiveShell", "Shell")  # Shell: Google Colab
