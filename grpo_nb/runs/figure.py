"""Draw the curves of one run, once or live in a cell, or of several runs in one figure.

A panel of something that was not measured is left out. Background and ink work on light and dark
pages.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from grpo_nb.core.palette import COLOURS, INK
from grpo_nb.core.progress import CellOutput
from grpo_nb.core.tables import RichText, escaped
from grpo_nb.core.words import displayable, require_choice
from grpo_nb.runs.measures import ACCURACY_KEY, HOLDOUT_MEASURES
from grpo_nb.runs.outcome import describe_run
from grpo_nb.runs.rows import MEAN_LENGTH_KEY, MetricRow, finite_values

if TYPE_CHECKING:
    from grpo_nb.runs.run_folder import Run

#: Styles that tell curves apart without colour.
LINE_STYLES = ("-", "--", "-.", ":")
#: Characters of a line below the panels.
CAPTION_LINE_CHARACTERS = 125
#: Longest name of a reward next to a panel.
REWARD_NAME_CHARACTERS = 18
#: Longest name of a run next to a panel. Automatic names have 26 characters.
RUN_NAME_CHARACTERS = 26

WIDTH_INCHES = 10.4
PANEL_INCHES = 2.7
#: Height that the caption below the panels adds to the figure. It usually has two lines.
CAPTION_INCHES = 0.7
PANELS_PER_ROW = 3
#: Distance between neighbouring labels of lines, as a share of the panel's height; less if many
#: labels must fit.
LABEL_DISTANCE = 0.08
#: Pixels per inch of an image. More pixels are sharper, and take longer to draw.
IMAGE_DPI = 120
#: Pause between two drawings during a training. A drawing takes a fraction of a second.
REDRAW_SECONDS = 30


class CurvePanel(NamedTuple):
    """One panel of the figure."""

    title: str
    subtitle: str
    """Unit of the values, or how they are drawn."""
    is_share: bool = False
    """True if the values lie between 0 and 1, and are written in percent."""
    is_smoothed: bool = True
    """True if the strong line is a trailing mean. Held-out scores are few, and each is a mean over
    questions already."""


TOTAL_PANEL = CurvePanel("Total reward", "weighted; strong: trailing mean")
EACH_REWARD_PANEL = CurvePanel("Each reward", "mean, unweighted")
HOLDOUT_PANEL = CurvePanel(
    "Held-out questions", "share, 95 % interval", is_share=True, is_smoothed=False
)
KL_PANEL = CurvePanel("KL", "nats")
#: Further panels, by the key of the metric that they show.
OTHER_PANELS = {
    "kl": KL_PANEL,
    MEAN_LENGTH_KEY: CurvePanel("Completion length", "tokens, mean"),
    "completions/clipped_ratio": CurvePanel("Truncated", "share of completions", is_share=True),
    "frac_reward_zero_std": CurvePanel("No learning signal", "share of groups", is_share=True),
    "entropy": CurvePanel("Entropy", "nats"),
    "grad_norm": CurvePanel("Gradient norm", "before clipping"),
    "step_time": CurvePanel("Time per step", "seconds"),
    "tools/call_frequency": CurvePanel("Tool calls", "per completion"),
}
#: Panels of several runs, which have a curve for each run, by the key of their metric.
PANELS_OF_RUNS = {
    "reward": TOTAL_PANEL,
    ACCURACY_KEY: HOLDOUT_PANEL._replace(subtitle="share correct"),
    "kl": KL_PANEL,
}


class Curve(NamedTuple):
    """One curve of a panel.

    A curve without values is not drawn, but keeps its place in the order of colours. So each of
    several runs has one colour in all panels.
    """

    label: str
    """Text next to the panel; empty if the title says enough."""
    values: pandas.Series
    """Finite numbers by step."""
    band: Sequence[pandas.Series] = ()
    """Lower and upper ends of the 95 % intervals by step; empty without intervals."""


def _smoothing_window(value_count: int) -> int:
    """Return the number of values of the trailing mean.

    It is small in a short run, because a long mean would hide the start.
    """
    # A quarter of the values, at most 10; in runs of more than 500 values, a fiftieth.
    return max(1, min(10, value_count // 4), value_count // 50)


def figure_of_run(run: Run, panels: Literal["main", "all"] = "main") -> Figure:
    """Draw the curves of a run, with one sentence about it below.

    Thin pale lines are the logged values, strong lines their trailing mean.

    Args:
        run: The run. Any metric may be missing in its rows; the panel is then left out.
        panels: "main" draws total reward, each reward and held-out scores; "all" also draws
            `OTHER_PANELS`.

    Raises:
        ValueError: `panels` is neither "main" nor "all".
    """
    require_choice("panels", panels, ("main", "all"))
    rows = run.rows
    curves = {
        TOTAL_PANEL: [Curve("", finite_values(rows, "reward"))],
        EACH_REWARD_PANEL: _reward_curves(rows, run.weights),
        HOLDOUT_PANEL: _holdout_curves(rows),
    }
    if panels == "all":
        for metric, panel in OTHER_PANELS.items():
            curves[panel] = [Curve("", finite_values(rows, metric))]
    return _draw_panels(curves, describe_run(rows, run.reference))


def _reward_curves(rows: Sequence[MetricRow], weights: Mapping[str, float]) -> list[Curve]:
    """Return the mean score of each reward, with name and weight."""
    # One reward alone would repeat the total.
    if len(weights) == 1:
        return []
    curves = []
    for name, weight in weights.items():
        label = f"{_short_name(name, REWARD_NAME_CHARACTERS)} x{weight:g}"
        curves.append(Curve(label, finite_values(rows, f"rewards/{name}/mean")))
    return curves


def _short_name(name: str, longest: int) -> str:
    """Cut a long name in the middle, because names often differ at their end."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[:half]}\u2026{name[-half:]}"


def _holdout_curves(rows: Sequence[MetricRow]) -> list[Curve]:
    """Return the held-out measures with their 95 % intervals and their last values."""
    curves = []
    for measure in HOLDOUT_MEASURES:
        values = finite_values(rows, measure.row_key)
        if len(values):
            label = f"{measure.label} {values.iloc[-1]:.0%}"
            # An interval can be missing, hence `reindex`. Another program may have logged an
            # impossible one, hence `clip`.
            band = [
                finite_values(rows, key).reindex(values.index).clip(0, 1)
                for key in measure.interval_keys
            ]
            curves.append(Curve(label, values, band))
    return curves


def _draw_panels(curves: Mapping[CurvePanel, Sequence[Curve]], caption: str = "") -> Figure:
    """Draw the panels that have a curve, in the order of `curves`.

    Args:
        curves: The curves of each panel.
        caption: Text below the panels.
    """
    shown = {}
    for panel, panel_curves in curves.items():
        if any(len(curve.values) for curve in panel_curves):
            shown[panel] = panel_curves
    row_count = math.ceil(len(shown) / PANELS_PER_ROW)
    column_count = min(PANELS_PER_ROW, len(shown))
    height = PANEL_INCHES * row_count + CAPTION_INCHES
    figure = Figure((WIDTH_INCHES, height), facecolor="none", layout="constrained")
    # matplotlib does not wrap text at words.
    wrapped_caption = textwrap.fill(caption, CAPTION_LINE_CHARACTERS)
    # `supxlabel`, because the layout reserves space for it.
    figure.supxlabel(wrapped_caption, x=0.012, ha="left", fontsize=10, color=INK, parse_math=False)
    for number, (panel, panel_curves) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(row_count, column_count, number, facecolor="none", xmargin=0)
        # The subtitle is written between the title and the axes.
        style_axes(axes, panel.title, pad=20)
        axes.text(0, 1.05, panel.subtitle, transform=axes.transAxes, color=INK)
        axes.set_xlabel("optimizer step", color=INK)
        axes.locator_params(axis="x", nbins=3, integer=True)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10,000 as 10k
        # matplotlib's own format can write a factor, such as 1e-5, over the unit.
        axes.yaxis.set_major_formatter("{x:.0%}" if panel.is_share else "{x:.6g}")
        labels = {}
        for curve_number, curve in enumerate(panel_curves):
            if len(curve.values):
                window = _smoothing_window(len(curve.values)) if panel.is_smoothed else 1
                line = _draw_curve(axes, curve, curve_number, window)
                labels[line] = curve.label
        # Shares always have the same axis, so that panels and runs can be compared.
        if panel.is_share:
            axes.set_ylim(0, 1.02)
        _label_lines(axes, labels)
    return figure


def style_axes(axes: Axes, title: str, grid: str = "y", pad: float = 6) -> None:
    """Give axes the look that all figures share: title at the left, no box, a pale grid.

    Args:
        axes: The axes.
        title: Title of the axes.
        grid: The axis whose values have grid lines, "x" or "y".
        pad: Distance of the title from the axes, in points.
    """
    axes.set_title(title, loc="left", fontweight="bold", color=INK, pad=pad)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(INK)
    axes.grid(axis=grid, color=INK, alpha=0.25)
    axes.tick_params(colors=INK)


def _draw_curve(axes: Axes, curve: Curve, curve_number: int, window: int) -> Line2D:
    """Draw values pale and thin, their trailing mean strong; return the line of the mean.

    Args:
        axes: The panel.
        curve: The curve.
        curve_number: Number of the curve in its panel, which decides colour and line style.
        window: Number of values of the trailing mean; 1 draws the values alone.
    """
    colour = COLOURS[curve_number % len(COLOURS)]
    values = curve.values
    if window > 1:
        axes.plot(values, color=colour, alpha=0.4, linewidth=0.7)
    if curve.band:
        axes.fill_between(values.index, *curve.band, color=colour, alpha=0.13, linewidth=0)
    (line,) = axes.plot(
        values.rolling(window, min_periods=1).mean(),
        color=colour,
        linestyle=LINE_STYLES[curve_number % len(LINE_STYLES)],
        linewidth=2,
        # Each value gets a dot if there are few.
        marker="o" if len(values) <= 12 else None,
        markersize=3.5,
    )
    return line


def _label_lines(axes: Axes, labels: Mapping[Line2D, str]) -> None:
    """Write the label of each line to the right of its end; move labels that would overlap.

    The lowest label is placed first. Each label keeps `distance` to the one below it, and leaves
    room for those above it.
    """
    low, high = axes.get_ylim()
    ends = {line: (line.get_ydata()[-1] - low) / (high - low) for line in labels}
    # With many labels the distance shrinks, so that all of them fit.
    distance = min(LABEL_DISTANCE, 1 / len(labels))
    height = -math.inf
    labels_above = len(labels)
    for line in sorted(ends, key=ends.get):
        labels_above -= 1
        lowest = height + distance
        # The 0.5 leaves room for the upper half of this label.
        highest = 1 - distance * (labels_above + 0.5)
        height = min(highest, max(ends[line], lowest))
        axes.text(
            1.03,
            height,
            # The names in a file can hold any character.
            displayable(labels[line]),
            transform=axes.transAxes,
            va="center",
            color=line.get_color(),
            parse_math=False,
        )


def figure_of_runs(runs: Sequence[Run]) -> Figure:
    """Draw several runs in one figure, a line for each: reward, held-out accuracy and KL."""
    # Each file of rows is read once.
    named_rows = [(_short_name(run.name, RUN_NAME_CHARACTERS), run.rows) for run in runs]
    curves = {}
    for metric, panel in PANELS_OF_RUNS.items():
        curves[panel] = [Curve(name, finite_values(rows, metric)) for name, rows in named_rows]
    return _draw_panels(curves)


def base64_png(figure: Figure) -> str:
    """Render a figure as PNG in base64, as HTML and notebooks embed images."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=IMAGE_DPI)
    return base64.b64encode(buffer.getvalue()).decode()


def figure_html(figure: Figure, alt_text: str) -> RichText:
    """Return a figure as an image. Plain-text frontends show `alt_text`."""
    source = f"data:image/png;base64,{base64_png(figure)}"
    return RichText(
        alt_text, f'<img alt="{escaped(alt_text)}" src="{source}" style="max-width:100%">'
    )


class LivePlot:
    """The training figure in a notebook cell, updated in place. It never clears other output.

    Between two updates at least `REDRAW_SECONDS` pass. The last update is always drawn.

    Args:
        run: The run that is shown.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._output = CellOutput()
        self._next_redraw = 0.0

    def update(self, is_last: bool = False) -> None:
        """Draw what the run has logged so far, if a redraw is due or `is_last` is True."""
        now = time.monotonic()
        if not is_last and now < self._next_redraw:
            return
        self._next_redraw = now + REDRAW_SECONDS
        sentence = self._run.sentence
        data = {"image/png": base64_png(self._run.plot()), "text/plain": sentence}
        metadata = {"image/png": {"alt": f"Training curves. {sentence}"}}
        self._output.show(data, metadata=metadata)
