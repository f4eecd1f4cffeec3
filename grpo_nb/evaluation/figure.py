"""The figure of a comparison: three measures of each model, with 95 % intervals."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpo_nb.core.palette import BLUE, GREY, INK
from grpo_nb.evaluation.results import MEASURES

MARKERS = {"before": (GREY, "s"), "after": (BLUE, "o")}
"""Colour and marker of each model. In greyscale, the markers distinguish the models."""

LINE_INCHES = 0.42
"""Height of one line, which shows one measure of one model."""


def comparison_figure(comparison: Any) -> Figure:
    """Draw the measures of each model, except those without a result.

    Args:
        comparison: A `Comparison`.
    """
    measures = [name for name, result in comparison.results.items() if result is not None]
    height = 1.0 + LINE_INCHES * len(measures) * len(MARKERS)
    figure = Figure(figsize=(8.0, height), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    labels = []
    for measure in measures:
        for name, side in comparison.sides.items():
            share = side.share_of(measure)
            colour, marker = MARKERS[name]
            y = len(labels)
            labels.append(f"{MEASURES[measure].label}: {side.label} {share:.0%}")
            # The interval is the message, so it is drawn thick. The share is a point on it.
            axes.hlines(y, *side.interval_of(measure), color=colour, linewidth=3, alpha=0.55)
            axes.plot(share, y, marker, color=colour, markersize=8, clip_on=False)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    # As in the table, the first measure is at the top.
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    title = f"Share of answers, {comparison.result.questions} questions, 95 % intervals"
    axes.set_title(title, color=INK)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.25)
    axes.tick_params(colors=INK)
    return figure
