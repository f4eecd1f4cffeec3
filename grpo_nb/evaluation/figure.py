"""The figure of a comparison: three measures of each model and their differences, with intervals."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grpo_nb.core.palette import BLUE, GREEN, GREY, INK, VERMILION

# Not typed: a comparison draws itself with this file, which therefore knows it only by its attributes.
Compared = Any
# The marks show the same as the colours, in grey.
_BEFORE = GREY
_MEASURES = {"correct": "correct", "format": "in the format", "anywhere": "correct anywhere"}
_MARKERS = {"base": (VERMILION, "^"), "before": (_BEFORE, "s"), "after": (BLUE, "o")}
_ROW_INCHES = 0.34
"""Height of the line of one model."""


def comparison_figure(comparison: Compared) -> Figure:
    """Draw correct answers, format and answers anywhere, and their differences, with 95 % intervals.

    A measure that was not taken has no line.
    """
    sides = {"before": comparison.before, "after": comparison.after}
    if comparison.base is not None:
        sides = {"base": comparison.base, **sides}
    measures = [measure for measure, result in comparison.results.items() if result is not None]
    lines = len(measures) * (len(sides) + 0.6)
    figure = Figure(
        figsize=(10.0, 1.0 + _ROW_INCHES * lines), facecolor="none", layout="constrained"
    )
    shares, differences = figure.subplots(1, 2)
    _prepare(shares, "Share of answers", f"{comparison.result.questions} questions, 95 % intervals")
    _prepare(differences, "Difference", "percentage points, 95 % interval")
    differences.axvline(0, color=INK, linewidth=1)

    place = 0.0
    ticks: dict[float, str] = {}
    said: list[tuple[str, float]] = []
    reach = 5.0
    for measure in measures:
        top = place
        for name, side in sides.items():
            colour, marker = _MARKERS[name]
            share = side.share_of(measure)
            if share is not None:
                _draw_interval(shares, place, side.interval_of(measure), share, colour, marker)
                _write(shares, f"{share:.1%}", (share, place), 6, align=_alignment(share))
            ticks[place] = f"{_MEASURES[measure]}: {side.label}"
            place -= 1.0
        result = comparison.results[measure]
        ends = [100 * end for end in result.interval]
        colour = {"better": GREEN, "worse": VERMILION}.get(result.verdict, _BEFORE)
        middle = (top + place + 1.0) / 2
        value = 100 * result.difference
        _draw_interval(differences, middle, ends, value, colour, "D")
        said.append((f"{_MEASURES[measure]} {value:+.1f}: {result.verdict}", middle))
        reach = max(reach, *map(abs, ends))
        place -= 0.6

    shares.set_yticks(list(ticks), list(ticks.values()))
    shares.set_xlim(0, 1)
    shares.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axis in (shares, differences):
        axis.set_ylim(place + 0.9, 0.9)
    limit = 1.2 * reach
    differences.set_xlim(-limit, limit)
    for words, height in said:
        _write(differences, words, (-limit, height), 8, align="left")
    differences.set_yticks([])
    differences.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def _prepare(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    axis.set_title(unit, loc="right", fontsize=8, color=INK)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color=INK, alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=9, length=2.5)
    axis.tick_params(axis="y", length=0)


def _draw_interval(
    axis: Axes, place: float, ends: Any, value: float, colour: str, marker: str
) -> None:
    axis.plot(ends, [place, place], color=colour, linewidth=3, solid_capstyle="round", alpha=0.55)
    axis.plot([value], [place], marker, color=colour, markersize=8, zorder=3, clip_on=False)


def _alignment(share: float) -> str:
    """Return where a number stands beside its mark, so that it stays between 0 and 1."""
    if share < 0.1:
        return "left"
    return "right" if share > 0.9 else "center"


def _write(
    axis: Axes, text: str, at: tuple[float, float], above: float, align: str = "center"
) -> None:
    """Write a text so many points above a place."""
    look = {
        "fontsize": 9.5,
        "fontweight": "bold",
        "color": INK,
        "ha": align,
        "annotation_clip": False,
    }
    axis.annotate(text, at, xytext=(0, above), textcoords="offset points", **look)
