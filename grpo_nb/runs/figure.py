"""Draw the curves of one run, once or live in a cell, and those of several runs in one figure.

By default a figure has three panels: the total reward, each reward, and the held-out scores. A
panel of something that was not measured is left out. Background and ink work on light and dark
pages.
"""

import base64
import dataclasses
import io
import itertools
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from grpo_nb.core.palette import COLOURS, INK
from grpo_nb.core.progress import CellOutput
from grpo_nb.core.tables import Html, escaped
from grpo_nb.core.words import displayable, require_choice
from grpo_nb.runs.outcome import describe_run
from grpo_nb.runs.rows import ACCURACY, HOLDOUT_MEASURES, MEAN_LENGTH, Row

#: With line styles, curves can be told apart without colour too.
LINE_STYLES = ("-", "--", "-.", ":")
#: Characters of a line below the panels.
CAPTION_LINE_CHARACTERS = 125
#: Most characters of a text below the panels, which can take several lines.
MAX_CAPTION_CHARACTERS = 600
#: Most characters of the name of a reward next to a panel.
MAX_REWARD_NAME = 20
#: Most characters of the name of a run next to a panel. Automatic names have 26 characters.
MAX_RUN_NAME = 26

WIDTH_INCHES = 10.0
PANEL_INCHES = 2.7
CAPTION_LINE_INCHES = 0.2
PANELS_PER_ROW = 3
#: Largest distance between the labels of lines, as a share of the panel's height.
LABEL_DISTANCE = 0.13


@dataclass(frozen=True)
class CurvePanel:
    """One panel of the figure.

    Attributes:
        title: The title of the panel.
        metric: The key of the metric in a row. `EACH_REWARD` has none: it draws a metric of each
            reward.
        unit: The unit, written under the title.
        is_share: True if the values lie between 0 and 1, and are written in percent.
    """

    title: str
    metric: str
    unit: str
    is_share: bool = False


TOTAL = CurvePanel("Total reward", "reward", "weighted sum")
EACH_REWARD = CurvePanel("Each reward", "", "mean, unweighted")
HOLDOUT = CurvePanel("Held-out questions", ACCURACY, "share, 95 % interval", is_share=True)
HOLDOUT_ACCURACY = dataclasses.replace(HOLDOUT, unit="share correct")
KL = CurvePanel("KL", "kl", "nats")
OTHER_PANELS = (
    KL,
    CurvePanel("Completion length", MEAN_LENGTH, "tokens, mean"),
    CurvePanel("Truncated", "completions/clipped_ratio", "share of completions", is_share=True),
    CurvePanel("No learning signal", "frac_reward_zero_std", "share of groups", is_share=True),
    CurvePanel("Entropy", "entropy", "nats"),
    CurvePanel("Gradient norm", "grad_norm", "before clipping"),
    CurvePanel("Time per step", "step_time", "seconds"),
    CurvePanel("Tool calls", "tools/call_frequency", "per completion"),
)


def curve_table(rows: Sequence[Row]) -> pandas.DataFrame:
    """Return the finite numbers of the rows by step, a column for each metric that has one."""
    columns = {}
    for key in dict.fromkeys(itertools.chain.from_iterable(rows)):
        values = [row.get(key) for row in rows]
        numbers = [value if isinstance(value, (int, float)) else None for value in values]
        # Rewards have any name, but pandas takes no lone surrogates.
        columns[displayable(key)] = numbers
    table = pandas.DataFrame(columns, index=[row["step"] for row in rows], dtype=float)
    # An axis cannot show an infinite value.
    return table.where(numpy.isfinite(table)).dropna(axis="columns", how="all")


def smoothing_window(row_count: int) -> int:
    """Return the number of rows of the trailing mean.

    It is small in a short run, because a long mean would hide the start.
    """
    # From 500 rows on, a fiftieth of the steps smooths better than ten rows.
    return max(1, min(10, row_count // 4), row_count // 50)


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve of a panel.

    Attributes:
        values: The values by step. A missing value would break the line, so none is missing.
        label: Text next to the panel; empty if the title says enough.
        number: Number of the curve, which decides colour and line style.
        window: Number of rows of the trailing mean; 1 draws the values alone.
        band: Lower and upper ends of the 95 % intervals by step.
    """

    values: pandas.Series
    label: str = ""
    number: int = 0
    window: int = 1
    band: pandas.DataFrame | None = None


def training_figure(run: Any, panels: Literal["main", "all"] = "main") -> Figure:
    """Draw the curves of a run, with one sentence about it below.

    Thin pale lines are the logged values, strong lines their trailing mean. The figure's label is
    the sentence, as the alternative text of the image.

    Args:
        run: The run. Any metric may be missing in its rows; the panel is then left out.
        panels: "main" draws total reward, each reward and held-out scores; "all" also KL, length,
            truncation, learning signal, entropy, gradient, time and tool calls.

    Raises:
        ValueError: `panels` is neither "main" nor "all".
    """
    require_choice("panels", panels, ("main", "all"))
    rows = run.rows
    table = curve_table(rows)
    curves = {
        TOTAL: _metric_curves(TOTAL, table),
        EACH_REWARD: _reward_curves(table, run.weights),
        HOLDOUT: _holdout_curves(table),
    }
    if panels == "all":
        for panel in OTHER_PANELS:
            curves[panel] = _metric_curves(panel, table)
    sentence = describe_run(rows, run.reference)
    caption = sentence
    window = smoothing_window(len(rows))
    if window > 1:
        caption += (
            f" Strong lines: mean of the last {window} logged steps. Pale lines: each logged step."
        )
    figure = _draw_panels(curves, caption)
    figure.set_label(sentence)
    return figure


def _metric_curves(
    panel: CurvePanel, table: pandas.DataFrame, label: str = "", number: int = 0
) -> list[Curve]:
    """Return the curve of a metric; empty if it was not measured."""
    if panel.metric not in table:
        return []
    # Held-out scores are few, and each is a mean over questions already.
    window = 1 if panel is HOLDOUT_ACCURACY else smoothing_window(len(table))
    return [Curve(table[panel.metric].dropna(), label, number, window)]


def _reward_curves(table: pandas.DataFrame, weights: Mapping[str, float]) -> list[Curve]:
    """Return the mean score of each measured reward, with name and weight."""
    metrics = [name for name in table if name.startswith("rewards/") and name.endswith("/mean")]
    # With one reward this panel would repeat the total.
    if len(metrics) == 1:
        return []
    curves = []
    for number, metric in enumerate(metrics):
        name = metric.removeprefix("rewards/").removesuffix("/mean")
        label = _one_line(name, MAX_REWARD_NAME)
        if name in weights:
            label += f" x{weights[name]:g}"
        curves.append(Curve(table[metric].dropna(), label, number, smoothing_window(len(table))))
    return curves


def _holdout_curves(table: pandas.DataFrame) -> list[Curve]:
    """Return the held-out measures with their 95 % intervals and their last values."""
    curves = []
    for number, measure in enumerate(HOLDOUT_MEASURES):
        if measure.key in table:
            values = table[measure.key].dropna()
            label = f"{measure.label} {values.iloc[-1]:.0%}"
            # Another program may have logged a share without its interval, or an impossible one.
            interval = table.reindex(columns=measure.interval_keys)
            band = interval.dropna().clip(0, 1)
            curves.append(Curve(values, label, number, band=band))
    return curves


def _draw_panels(curves: Mapping[CurvePanel, Sequence[Curve]], caption: str = "") -> Figure:
    """Draw the panels that have a curve, in this order.

    Args:
        curves: The curves of each panel.
        caption: Text below the panels.
    """
    shown = [panel for panel in curves if curves[panel]]
    # A run that somebody sends can name anything as its reference.
    text = _one_line(caption, MAX_CAPTION_CHARACTERS)
    # matplotlib does not wrap text at words.
    lines = textwrap.wrap(text, CAPTION_LINE_CHARACTERS, break_on_hyphens=False)
    row_count = math.ceil(len(shown) / PANELS_PER_ROW)
    height = PANEL_INCHES * row_count + CAPTION_LINE_INCHES * (len(lines) + 1.5)
    figure = Figure(figsize=(WIDTH_INCHES, height), facecolor="none", layout="constrained")
    # A label of the whole figure, because the layout keeps its place free.
    label = figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=9, color=INK)
    label.set(linespacing=1.3, parse_math=False)
    column_count = min(PANELS_PER_ROW, len(shown))
    for number, panel in enumerate(shown, 1):
        axis = figure.add_subplot(row_count, column_count, number)
        _style_panel(axis, panel)
        labels = {_draw_curve(axis, curve): curve.label for curve in curves[panel]}
        _label_lines(axis, labels)
        # Shares always have the same axis, so that panels and runs can be compared.
        if panel.is_share:
            axis.set_ylim(0, 1.02)
        # From 0, so that a steady curve does not look restless. Rewards have no natural zero.
        elif panel in OTHER_PANELS:
            axis.set_ylim(bottom=min(0, axis.dataLim.ymin))
    return figure


def _style_panel(axis: Axes, panel: CurvePanel) -> None:
    """Give a panel the look that all share: title and unit above it, grid behind the data."""
    axis.set_facecolor("none")
    axis.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=20)
    axis.text(0, 1.05, panel.unit, transform=axis.transAxes, fontsize=8.5, color=INK)
    axis.set_xlabel("optimizer step", color=INK, fontsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.margins(x=0)
    axis.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axis.tick_params(colors=INK, labelsize=8.5, length=2.5)
    axis.locator_params(axis="x", nbins=3, integer=True)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10,000 as 10k
    axis.yaxis.set_major_formatter("{x:.0%}" if panel.is_share else "{x:.3g}")


def _draw_curve(axis: Axes, curve: Curve) -> Line2D:
    """Draw values pale and thin, their trailing mean strong; return the line of the mean."""
    colour = COLOURS[curve.number % len(COLOURS)]
    values = curve.values
    if curve.window > 1:
        axis.plot(values, color=colour, alpha=0.4, linewidth=0.7)
    if curve.band is not None:
        low, high = curve.band.to_numpy().T
        axis.fill_between(curve.band.index, low, high, color=colour, alpha=0.13, linewidth=0)
    (line,) = axis.plot(
        values.rolling(curve.window, 1).mean(),
        color=colour,
        linestyle=LINE_STYLES[curve.number % len(LINE_STYLES)],
        linewidth=2,
        # Few values have a dot each.
        marker="o" if len(values) <= 12 else None,
        markersize=3.5,
    )
    return line


def _label_lines(axis: Axes, labels: Mapping[Line2D, str]) -> None:
    """Write the label of each line to the right of a panel, the highest line first."""
    # In the order of the ends of the lines, each in a row of its own, so none overlap.
    ordered = sorted(labels, key=lambda line: line.get_ydata()[-1], reverse=True)
    # Many labels come closer, so that the last one is not below the panel.
    distance = min(LABEL_DISTANCE, 1 / max(1, len(ordered) - 1))
    for number, line in enumerate(ordered):
        axis.text(
            1.03,
            1 - distance * number,
            labels[line],
            transform=axis.transAxes,
            va="center",
            fontsize=8.5,
            color=line.get_color(),
            parse_math=False,
        )


def _one_line(text: str, limit: int) -> str:
    """Return a text as one line of at most `limit` characters, without control characters."""
    # The text can be from a run that somebody sent.
    line = displayable(" ".join(text.split()))
    if len(line) <= limit:
        return line
    return f"{line[: limit - 3]}..."


def overlay(runs: Sequence[Any]) -> Figure:
    """Draw several runs in one figure, a colour for each: reward, held-out accuracy and KL."""
    curves: dict[CurvePanel, list[Curve]] = {TOTAL: [], HOLDOUT_ACCURACY: [], KL: []}
    for number, run in enumerate(runs):
        table = curve_table(run.rows)
        label = _one_line(run.name, MAX_RUN_NAME)
        for panel in curves:
            curves[panel] += _metric_curves(panel, table, label, number)
    return _draw_panels(curves)


def png(figure: Figure, dpi: int = 100) -> bytes:
    """Render a figure as PNG, without touching pyplot's state."""
    buffer = io.BytesIO()
    # Level 6, the default, makes the file a tenth smaller and a redraw a tenth slower.
    figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"compress_level": 1})
    return buffer.getvalue()


def base64_png(figure: Figure) -> str:
    """Render a figure as PNG in base64, as HTML and notebooks take an image."""
    return base64.b64encode(png(figure)).decode()


def figure_html(figure: Figure, words: str) -> Html:
    """Return an image whose alt text is `words`; plain-text frontends show `words`."""
    source = f"data:image/png;base64,{base64_png(figure)}"
    return Html(words, f'<img alt="{escaped(words)}" src="{source}" style="max-width:100%">')


class LivePlot:
    """The training figure in a notebook cell, updated in place. It never clears other output.

    The first two updates and the last one are always drawn. In between, each redraw is followed by
    a pause of 200 times its duration, so that redraws take at most a two-hundredth of the time.

    Args:
        run: The run that is shown.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._output = CellOutput()
        self._next_redraw = 0.0
        self._is_drawn = False

    def update(self, is_last: bool = False) -> None:
        """Draw what the run has logged so far, if a redraw is due or the last one is asked for."""
        started = time.perf_counter()
        if not is_last and started < self._next_redraw:
            return
        figure = self._run.plot()
        sentence = figure.get_label()
        data = {"image/png": base64_png(figure), "text/plain": sentence}
        metadata = {"image/png": {"alt": f"Training curves. {sentence}"}}
        self._output.show(data, metadata=metadata)
        seconds = time.perf_counter() - started
        # The first figure also loads matplotlib's fonts, so its time is no measure of a redraw.
        pause = 200 * seconds if self._is_drawn else 0.0
        self._next_redraw = started + seconds + pause
        self._is_drawn = True
