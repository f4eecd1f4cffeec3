"""The figure of a comparison: both accuracies and their difference, with intervals."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Not typed: a comparison draws itself with this file, which therefore knows it only by its attributes.
Compared = Any
# Okabe and Ito's palette, as in the training figure; marks tell the same in grey.
_BEFORE, _AFTER, _GAINED, _LOST = "#777777", "#0072B2", "#009E73", "#D55E00"
_INK, _SOFT, _GRID = "#333333", "#666666", "#EEEEEE"


def comparison_figure(comparison: Compared) -> Figure:
    """Draw a comparison with 95 % intervals."""
    figure = Figure(figsize=(10.0, 2.4), facecolor="white", layout="constrained")
    accuracy, difference = figure.subplots(1, 2)
    _prepare(accuracy, "Accuracy", f"{comparison.result.questions} questions, 95 % intervals")
    for place, side, colour, marker in ((1, comparison.before, _BEFORE, "s"), (0, comparison.after, _AFTER, "o")):
        _draw_interval(accuracy, place, side.interval, side.accuracy, colour, marker)
        _write(accuracy, f"{side.accuracy:.1%}", (side.accuracy, place), 8)
    accuracy.set_yticks([1, 0], [comparison.before.label, comparison.after.label])
    accuracy.set_ylim(-0.6, 1.7)
    accuracy.set_xlim(0, 1)
    accuracy.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    _prepare(difference, "Difference", "percentage points, 95 % interval")
    ends, value = [100 * end for end in comparison.result.interval], 100 * comparison.result.difference
    difference.axvline(0, color=_INK, linewidth=1)
    colour = {"better": _GAINED, "worse": _LOST}.get(comparison.verdict, _BEFORE)
    _draw_interval(difference, 0, ends, value, colour, "D")
    _write(difference, f"{value:+.1f}: {comparison.verdict}", (value, 0), 9)
    reach = 1.3 * max(5.0, *map(abs, ends))
    difference.set_xlim(-reach, reach)
    difference.set_ylim(-1, 1)
    difference.set_yticks([])
    difference.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def _prepare(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK)
    axis.set_title(unit, loc="right", fontsize=8, color=_SOFT)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color=_GRID)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=9, length=2.5)
    axis.tick_params(axis="y", length=0)


def _draw_interval(axis: Axes, place: float, ends: Any, value: float, colour: str, marker: str) -> None:
    axis.plot(ends, [place, place], color=colour, linewidth=3, solid_capstyle="round", alpha=0.55)
    axis.plot([value], [place], marker, color=colour, markersize=8, zorder=3, clip_on=False)


def _write(axis: Axes, text: str, at: tuple[float, float], above: float) -> None:
    """Write so many points above a place, on white, for it may stand on a line."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    look = {"fontsize": 9.5, "fontweight": "bold", "color": _INK, "ha": "center", "annotation_clip": False}
    axis.annotate(text, at, xytext=(0, above), textcoords="offset points", bbox=box, **look)
