"""The figure of a comparison: three measures of each model, with 95 % intervals."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpo_nb.core.palette import BLUE, GREY, INK
from grpo_nb.evaluation.results import MEASURES

GRID = "#80808040"

MARKERS = {"before": (GREY, "s"), "after": (BLUE, "o")}
"""Colour and marker of each model. The markers tell the models apart in grey."""

ROW_INCHES = 0.34
"""Height of the line of one model."""

GAP = 0.6
"""Space between two measures, in lines."""

SPACE_FOR_LABEL = 0.025
"""Distance of a number from the end of its interval, as a share of the axis."""


def comparison_figure(comparison: Any) -> Figure:
    """Draw the measures of each model. A measure that was not taken is left out.

    Args:
        comparison: A `Comparison`.
    """
    measures = [name for name, result in comparison.results.items() if result is not None]
    lines = len(measures) * (len(MARKERS) + GAP)
    figure = Figure(
        figsize=(8.0, 1.0 + ROW_INCHES * lines),
        layout="constrained",
        facecolor="none",
    )
    axes = figure.subplots()
    axes.set_facecolor("none")
    place = 0.0
    ticks = {}
    for measure in measures:
        for name, side in comparison.sides.items():
            share = side.share_of(measure)
            colour, marker = MARKERS[name]
            low, high = side.interval_of(measure)
            # The interval is the message, so it is drawn thick. The share is a point on it.
            axes.plot([low, high], [place, place], color=colour, linewidth=3, alpha=0.55)
            axes.plot(share, place, marker, color=colour, markersize=8, zorder=3, clip_on=False)
            axes.text(
                high + SPACE_FOR_LABEL,
                place,
                f"{share:.0%}",
                va="center",
                fontweight="bold",
                color=INK,
            )
            ticks[place] = f"{MEASURES[measure].label}: {side.label}"
            place -= 1.0
        place -= GAP
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(place + 0.9, 0.9)
    # Beyond 100 % there is space for the number next to an interval that ends there.
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    title = f"Share of answers, {comparison.result.questions} questions, 95 % intervals"
    axes.set_title(title, color=INK, fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.grid(axis="x", color=GRID)
    axes.tick_params(colors=INK, labelsize=9)
    return figure
