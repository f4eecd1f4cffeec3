"""The figure of a comparison: three measures of each model, with 95 % intervals."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpo_nb.core.palette import BLUE, GREY, INK
from grpo_nb.evaluation.results import MEASURES

MARKERS = {"before": (GREY, "s"), "after": (BLUE, "o")}
"""Colour and marker of each model. The markers tell the models apart in grey."""

LINE_INCHES = 0.42
"""Height of the line of one model."""

SPACE_FOR_LABEL = 0.025
"""Distance of a number from the end of its interval, as a share of the axis."""


def comparison_figure(comparison: Any) -> Figure:
    """Draw the measures of each model. A measure that was not taken is left out.

    Args:
        comparison: A `Comparison`.
    """
    measures = [name for name, result in comparison.results.items() if result is not None]
    lines = len(measures) * len(MARKERS)
    height = 1.0 + LINE_INCHES * lines
    figure = Figure(figsize=(8.0, height), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    labels = []
    for measure in measures:
        for name, side in comparison.sides.items():
            place = len(labels)
            labels.append(f"{MEASURES[measure].label}: {side.label}")
            share = side.share_of(measure)
            interval = side.interval_of(measure)
            colour, marker = MARKERS[name]
            # The interval is the message, so it is drawn thick. The share is a point on it.
            axes.hlines(place, *interval, color=colour, linewidth=3, alpha=0.55)
            axes.plot(share, place, marker, color=colour, markersize=8, clip_on=False)
            axes.text(
                interval[1] + SPACE_FOR_LABEL,
                place,
                f"{share:.0%}",
                va="center",
                color=INK,
            )
    axes.set_yticks(range(len(labels)), labels)
    # As in the table, the first measure is at the top.
    axes.invert_yaxis()
    # Beyond 100 % there is space for the number next to an interval that ends there.
    axes.set_xlim(0, 1.12)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    title = f"Share of answers, {comparison.result.questions} questions, 95 % intervals"
    axes.set_title(title, color=INK, fontsize=10)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.25)
    axes.tick_params(colors=INK, labelsize=9)
    return figure
