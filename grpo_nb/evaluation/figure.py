"""The figure of a comparison: both accuracies and their difference with intervals, and what became of the questions."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Not typed: a comparison draws itself with this file, which therefore knows it only by its attributes.
Compared = Any
# Okabe and Ito's palette, as in the training figure; marks and hatches tell the same in grey.
_BEFORE, _AFTER, _GAINED, _LOST, _KEPT, _WRONG = "#777777", "#0072B2", "#009E73", "#D55E00", "#BBBBBB", "#E4E4E4"
_INK, _SOFT, _GRID = "#333333", "#666666", "#EEEEEE"
_WIDTH, _HEIGHT = 10.0, 3.7
_WHITE = {"facecolor": "white", "edgecolor": "none"}
_FOOT = 0.17  # share of the height that the words below take


def comparison_figure(comparison: Compared, *, has_words: bool = True) -> Figure:
    """Draw a comparison with 95 % intervals, and below it the sentence that says the same, if it stands by itself."""
    cut = 0.0 if has_words else _FOOT
    figure = Figure(figsize=(_WIDTH, _HEIGHT * (1 - cut)), facecolor="white")
    places = ((0.155, 0.48, 0.335, 0.39), (0.575, 0.48, 0.385, 0.39), (0.155, 0.225, 0.805, 0.075))
    accuracy, difference, changed = (
        figure.add_axes((x, (y - cut) / (1 - cut), width, height / (1 - cut))) for x, y, width, height in places
    )
    _draw_accuracy(accuracy, comparison)
    _draw_difference(difference, comparison)
    _draw_changed(changed, comparison)
    foot = textwrap.wrap(comparison.sentence, 136, max_lines=2, placeholder="...") if has_words else ()
    for line, text in enumerate(foot):
        figure.text(0.02, 0.12 - 0.055 * line, text, fontsize=9, color=_INK, va="center", parse_math=False)
    return figure


def _prepare(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK, pad=8)
    axis.set_title(unit, loc="right", fontsize=8, color=_SOFT, pad=8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("#999999")
    axis.grid(axis="x", color=_GRID)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=8.5, length=2.5)
    axis.tick_params(axis="y", length=0)


def _write(axis: Axes, text: str, at: tuple[float, float], above: float, **options: Any) -> None:
    """Write so many points above a place, or below it."""
    look = {"fontsize": 9.5, "color": _INK, "ha": "center", **options}
    axis.annotate(text, at, xytext=(0, above), textcoords="offset points", **look)


def _draw_interval(axis: Axes, place: float, ends: tuple[float, float], value: float, colour: str, marker: str) -> None:
    axis.plot(ends, [place, place], color=colour, linewidth=3, solid_capstyle="round", alpha=0.55)
    axis.plot([value], [place], marker, color=colour, markersize=8, zorder=3, clip_on=False)


def _short(label: str) -> str:
    """Cut from the middle, for what tells two exports apart stands at the end."""
    return label if len(label) <= 17 else f"{label[:8]}...{label[-6:]}"


def _draw_accuracy(axis: Axes, comparison: Compared) -> None:
    _prepare(axis, "Accuracy", f"{comparison.questions} questions, 95 % intervals")
    pairs = ((1, comparison.before, _BEFORE, "s"), (0, comparison.after, _AFTER, "o"))
    for place, side, colour, marker in pairs:
        _draw_interval(axis, place, side.interval, side.accuracy, colour, marker)
        _write(axis, f"{side.accuracy:.1%}", (side.accuracy, place), 8, fontweight="bold", annotation_clip=False)
        for k, (value, _) in side.pass_at.items():
            if k == side.samples > 1:
                axis.plot([value], [place], "|", color=colour, markersize=13, markeredgewidth=2, zorder=3)
                soft = {"fontsize": 8, "color": _SOFT, "annotation_clip": False}
                _write(axis, f"pass@{k} {value:.0%}", (value, place), -14, **soft)
    axis.set_yticks([1, 0], [_short(comparison.before.label), _short(comparison.after.label)], fontsize=9.5)
    axis.set_ylim(-0.6, 1.6)
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _draw_difference(axis: Axes, comparison: Compared) -> None:
    _prepare(axis, "Difference", "percentage points, 95 % interval")
    low, high = (100 * end for end in comparison.interval)
    value = 100 * comparison.difference
    colour = {"better": _GAINED, "worse": _LOST}.get(comparison.verdict, _BEFORE)
    axis.axvline(0, color=_INK, linewidth=1)
    _draw_interval(axis, 0, (low, high), value, colour, "D")
    # On white, for with no difference they stand on the line at zero.
    _write(axis, f"{value:+.1f}", (value, 0), 9, fontweight="bold", bbox={**_WHITE, "pad": 1.0})
    _write(axis, comparison.verdict, (value, 0), -20, bbox={**_WHITE, "pad": 1.5})
    reach = max(abs(low), abs(high), 5.0) * 1.15
    axis.set_xlim(min(low, 0) - 0.15 * reach, max(high, 0) + 0.15 * reach)
    if comparison.verdict == "no difference shown":
        axis.set_xlim(-reach, reach)
    axis.set_ylim(-1, 1)
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _draw_changed(axis: Axes, comparison: Compared) -> None:
    """One bar of all questions, in the order gained, kept, wrong, lost; each part with its number if there is room."""
    axis.set_title("What became of the questions", loc="left", fontsize=10.5, fontweight="bold", color=_INK, pad=5)
    axis.set_axis_off()
    looks = {
        "gained": (_GAINED, "", "white"), "both right": (_KEPT, "", _INK), "equal": (_GRID, "..", _INK),
        "both wrong": (_WRONG, "", _INK), "lost": (_LOST, "////", _INK),
    }  # fmt: skip
    total, left = comparison.questions, 0.0
    for name, (colour, hatch, ink) in looks.items():
        count = comparison.changed.get(name, 0)
        if not count:
            continue
        share = count / total
        axis.barh([0], [share], left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=1, height=1)
        text = f"{count} {name}" if share > 0.09 else str(count)
        box = {**_WHITE, "pad": 1.2} if hatch else None
        if share > 0.03:
            axis.text(left + share / 2, 0, text, ha="center", va="center", fontsize=8.5, color=ink, bbox=box)
        left += share
    axis.set_xlim(0, 1)
    axis.set_ylim(-0.5, 0.5)
