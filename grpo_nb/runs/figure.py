"""Draw the curves of a run from its rows: live in a cell, once, or of several runs in one figure.

By default a figure has three panels: the total reward, each reward, and the held-out scores. A
panel of something that was not measured is left out. Background and ink work on light and dark
pages.
"""

import base64
import io
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
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from grpo_nb.core.palette import COLOURS, INK, RED
from grpo_nb.core.progress import CellOutput
from grpo_nb.core.tables import Html, escaped
from grpo_nb.core.words import displayable
from grpo_nb.runs.alert import Alert, worst_first
from grpo_nb.runs.rise import describe
from grpo_nb.runs.rows import ACCURACY, HELDOUT_MEASURES, Row

#: With line styles, curves can be told apart without colour too.
STYLES = ("-", "--", "-.", ":")
#: Colour and marker of an alert by its kind. The most severe are drawn last.
ALERT_MARKS = {
    "withdrawn": ("#808080", "1"),
    "info": ("#6A7F8C", "o"),
    "warning": ("#B26A00", "D"),
    "critical": (RED, "v"),
}
#: Alerts that are written below the panels.
MAX_ALERTS_IN_WORDS = 3
#: A panel is about 300 pixels wide, so more than 512 points cannot be seen.
STRETCHES = 256
#: Characters of a line below the panels, of a reward's name and of a run's name.
FOOT_CHARACTERS = 125
MAX_NAME = 20
MAX_RUN_NAME = 40

WIDTH_INCHES = 10.0
PANEL_INCHES = 2.7
FOOT_LINE_INCHES = 0.2
COLUMNS = 3


@dataclass(frozen=True)
class Panel:
    """One panel of the figure.

    Attributes:
        title: The title of the panel.
        metric: The key of the metric in a row.
        unit: The unit, written under the title.
        rules: Names of the health rules whose alerts are marked in the panel; None marks all
            alerts.
        is_share: True if the values lie between 0 and 1, and are written in percent.
    """

    title: str
    metric: str
    unit: str
    rules: tuple[str, ...] | None = ()
    is_share: bool = False

    def marks(self, alert: Alert) -> bool:
        """Return True if the panel marks this alert."""
        return self.rules is None or alert.rule in self.rules


TOTAL = Panel("Total reward", "reward", "weighted sum", rules=None)
EACH = Panel("Each reward", "rewards/", "mean, unweighted", ("constant_reward", "form_only"))
HOLDOUT = Panel("Held-out questions", ACCURACY, "share, 95 % interval", ("holdout",), is_share=True)
KL = Panel("KL", "kl", "nats", ("kl_drift",))
LENGTH = Panel("Completion length", "completions/mean_length", "tokens, mean", ("length",))
MAIN_PANELS = (TOTAL, EACH, HOLDOUT)
OTHER_PANELS = (
    KL,
    LENGTH,
    Panel(
        "Truncated",
        "completions/clipped_ratio",
        "share of completions",
        ("truncation",),
        is_share=True,
    ),
    Panel(
        "No learning signal",
        "frac_reward_zero_std",
        "share of groups",
        ("no_spread",),
        is_share=True,
    ),
    Panel("Entropy", "entropy", "nats", ("collapse",)),
    Panel("Gradient norm", "grad_norm", "before clipping", ("gradient",)),
    Panel("Learning rate", "learning_rate", ""),
    Panel("Time per step", "step_time", "seconds"),
    Panel("Tool calls", "tools/call_frequency", "per completion", ("tools",)),
)
#: Colour and line style of each held-out measure.
HELDOUT_LOOKS = {
    "correct": (COLOURS[0], "-"),
    "format": (COLOURS[2], "--"),
    "anywhere": (COLOURS[4], ":"),
}


def curve(rows: Sequence[Row], metric: str) -> tuple[pandas.Series, list[int]]:
    """Return the values of a metric by step, and the steps at which it was NaN or infinite."""
    known = [row for row in rows if row.get(metric) is not None]
    steps = numpy.array([row["step"] for row in known], dtype=int)
    values = numpy.array([row[metric] for row in known], dtype=float)
    is_number = numpy.isfinite(values)
    return pandas.Series(values[is_number], steps[is_number]), list(steps[~is_number])


def thinned(values: pandas.Series) -> pandas.Series:
    """Return the lowest and highest value of each of some 256 stretches, and the last value.

    The result is quick to draw, and no spike is lost.
    """
    if len(values) <= 2 * STRETCHES:
        return values
    starts = numpy.arange(0, len(values), 1 + len(values) // STRETCHES)
    lowest = numpy.minimum.reduceat(values.to_numpy(), starts)
    highest = numpy.maximum.reduceat(values.to_numpy(), starts)
    pairs = numpy.column_stack([lowest, highest]).ravel()
    steps = numpy.append(values.index[starts].repeat(2), values.index[-1])
    return pandas.Series(numpy.append(pairs, values.iloc[-1]), steps)


def window_of(rows: Sequence[Row]) -> int:
    """Return the number of rows of the trailing mean: few at the start, which it would hide."""
    return max(1, min(10, len(rows) // 4), len(rows) // 50)


def reward_metrics(rows: Sequence[Row]) -> list[str]:
    """Return the keys of the mean score of each reward, in the order of the rows."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if key.startswith("rewards/") and key.endswith("/mean")]


def training_figure(
    rows: Sequence[Row],
    weights: Mapping[str, float] | None = None,
    reference: str = "the reference model",
    *,
    alerts: Sequence[Alert] = (),
    total_range: tuple[float, float] | None = None,
    panels: Literal["main", "all"] = "main",
) -> Figure:
    """Draw the curves of a run, with one sentence about it below.

    Thin pale lines are the logged values, strong lines their trailing mean. The figure's label is
    the sentence, as the alternative text of the image.

    Args:
        rows: Rows as in `Run.rows`. Any metric may be missing; its panel is then left out.
        weights: Weight of each reward by name, for the labels.
        reference: The model that the KL is measured against, in words.
        alerts: Alerts as in `Run.alerts`. They are marked at their step, and the most severe are
            written below.
        total_range: The lowest and highest total reward that is possible, to which the band of
            one standard deviation is clipped; None if it is not known.
        panels: "main" draws total reward, each reward and held-out scores; "all" also KL, length,
            truncation, learning signal, entropy, gradient, learning rate and time.

    Raises:
        ValueError: `panels` is neither "main" nor "all".

    >>> figure = training_figure([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
    >>> figure.axes[0].get_title(loc="left").strip()
    'Total reward'
    """
    if panels not in ("main", "all"):
        raise ValueError(f"panels = {panels!r:.40} must be 'main' or 'all'.")
    candidates = MAIN_PANELS if panels == "main" else MAIN_PANELS + OTHER_PANELS
    shown = [panel for panel in candidates if _is_measured(panel, rows)]
    window = window_of(rows)
    marked = worst_first(sorted(alerts, key=lambda alert: -alert.step))
    sentence = describe(rows, reference)
    foot = _foot_lines(sentence, marked, window)
    figure, axes = _empty_figure(len(shown), foot)
    figure.set_label(sentence)
    for axis, panel in zip(axes, shown, strict=True):
        unit = f"nats, to {_cut(reference, 40)}" if panel is KL else panel.unit
        _frame(axis, panel.title, unit)
        axis.set_xlim(*_step_range(rows))
        if panel is TOTAL:
            _draw_total(axis, rows, window, total_range)
        elif panel is EACH:
            _draw_each_reward(axis, rows, window, weights or {})
        elif panel is HOLDOUT:
            _draw_heldout(axis, rows)
        else:
            _draw_metric(axis, rows, window, panel)
        _mark_alerts(axis, [alert for alert in marked if panel.marks(alert)])
    return figure


def _is_measured(panel: Panel, rows: Sequence[Row]) -> bool:
    """Return True if some row has the panel's metric; a single reward is the total already."""
    if panel is EACH:
        return len(reward_metrics(rows)) > 1
    return any(row.get(panel.metric) is not None for row in rows)


def _empty_figure(
    panel_count: int, foot: Sequence[tuple[str, str]]
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with so many panels and its lines of text below them."""
    columns = min(COLUMNS, max(1, panel_count))
    row_count = -(-panel_count // columns)
    foot_inches = FOOT_LINE_INCHES * (len(foot) + 0.5)
    height = PANEL_INCHES * row_count + foot_inches
    figure = Figure(figsize=(WIDTH_INCHES, height), facecolor="none", layout="constrained")
    share = foot_inches / height
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share), w_pad=0.08, h_pad=0.06)
    axes = _panel_axes(figure, panel_count, columns)
    for number, (text, colour) in enumerate(foot):
        place = (foot_inches - FOOT_LINE_INCHES * (number + 0.5)) / height
        figure.text(0.012, place, text, fontsize=9, color=colour, va="center", parse_math=False)
    return figure, axes


def _panel_axes(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Add axes for `count` panels to a figure, row by row, and return them."""
    if count == 0:
        return []
    grid = figure.subplots(-(-count // columns), columns, squeeze=False).ravel()
    for unused in grid[count:]:
        unused.remove()
    return list(grid[:count])


def _foot_lines(sentence: str, alerts: Sequence[Alert], window: int) -> list[tuple[str, str]]:
    """Return the lines below the panels, each with its colour."""
    # A run that somebody sends can name anything as its reference.
    texts = [(_cut(sentence, 600), INK)]
    for alert in alerts[:MAX_ALERTS_IN_WORDS]:
        colour, _ = ALERT_MARKS[alert.kind]
        message = _cut(alert.message, 110)
        texts.append((f"{alert.standing}, step {alert.step}: {message}", colour))
    if window > 1:
        texts.append(
            (f"Strong lines: mean of the last {window} steps. Pale lines: each step.", INK)
        )
    lines = []
    for text, colour in texts:
        for line in textwrap.wrap(text, FOOT_CHARACTERS, break_on_hyphens=False):
            lines.append((line, colour))
    return lines


def _step_range(rows: Sequence[Row]) -> tuple[float, float]:
    if not rows:
        return 0, 1
    first = rows[0]["step"]
    last = rows[-1]["step"]
    return min(1, first), max(last, first + 1)


def _frame(axis: Axes, title: str, unit: str) -> None:
    """Give a panel the look that all share: title and unit above it, grid behind the data."""
    axis.set_facecolor("none")
    axis.set_title(f"{title}\n", loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=7)
    axis.annotate(
        unit,
        (0, 1),
        (0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
        parse_math=False,
    )
    axis.set_xlabel("optimizer step", color=INK, fontsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8.5, length=2.5)
    axis.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axis.xaxis.set_major_formatter(_step_label)
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))


def _step_label(step: float, position: int | None = None) -> str:
    """Return a step as the axis shows it: 10,000 as 10k, so that labels do not touch."""
    return f"{step / 1000:g}k" if step >= 10_000 else f"{step:g}"


def _draw_total(
    axis: Axes, rows: Sequence[Row], window: int, total_range: tuple[float, float] | None
) -> None:
    """Draw the total reward with a band of one standard deviation over its completions."""
    reward, broken = curve(rows, "reward")
    deviation, _ = curve(rows, "reward_std")
    stretch = 1 + len(reward) // STRETCHES
    lower = (reward - deviation).dropna().rolling(stretch).mean()[stretch - 1 :: stretch]
    upper = (reward + deviation).dropna().rolling(stretch).mean()[stretch - 1 :: stretch]
    if len(lower):
        if total_range is not None:
            lower = lower.clip(lower=total_range[0])
            upper = upper.clip(upper=total_range[1])
        axis.fill_between(lower.index, lower, upper, color=COLOURS[0], alpha=0.15, linewidth=0)
        axis.texts[0].set_text("weighted sum; band: standard deviation")
    _draw_values(axis, reward, window, COLOURS[0])
    _mark_broken(axis, broken)


def _draw_each_reward(
    axis: Axes, rows: Sequence[Row], window: int, weights: Mapping[str, float]
) -> None:
    """Draw the mean score of each reward, with its name and weight at the right end of its line."""
    ends: list[tuple[float, str, str]] = []
    for number, metric in enumerate(reward_metrics(rows)):
        values, broken = curve(rows, metric)
        colour = COLOURS[number % len(COLOURS)]
        style = STYLES[number % len(STYLES)]
        _mark_broken(axis, broken)
        if values.empty:
            continue
        end = _draw_values(axis, values, window, colour, style)
        name = metric.removeprefix("rewards/").removesuffix("/mean")
        label = _cut(name, MAX_NAME)
        if name in weights:
            label += f" x{weights[name]:g}"
        ends.append((end, label, colour))
    _label_ends(axis, ends)


def _draw_heldout(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw the three held-out measures with their 95 % intervals and their last values."""
    ends: list[tuple[float, str, str]] = []
    for measure in reversed(HELDOUT_MEASURES):  # the accuracy lies above the others
        colour, style = HELDOUT_LOOKS[measure.name]
        values, broken = curve(rows, measure.key)
        low, _ = curve(rows, measure.low_key)
        high, _ = curve(rows, measure.high_key)
        if len(low) and len(low) == len(high):
            axis.fill_between(low.index, low, high, color=colour, alpha=0.13, linewidth=0)
        _mark_broken(axis, broken)
        if values.empty:
            continue
        end = _draw_values(axis, values, 1, colour, style)
        ends.append((end, f"{measure.label} {end:.0%}", colour))
    axis.yaxis.set_major_formatter(PercentFormatter(1, 0))
    axis.set_ylim(0, 1.02)
    _label_ends(axis, ends)


def _draw_metric(axis: Axes, rows: Sequence[Row], window: int, panel: Panel) -> None:
    values, broken = curve(rows, panel.metric)
    if len(values):
        _draw_values(axis, values, window, COLOURS[0])
        if panel.is_share:
            axis.yaxis.set_major_formatter(PercentFormatter(1, 0))
            axis.set_ylim(0, 1.02)
        elif values.min() >= 0:
            axis.set_ylim(bottom=0)
    _mark_broken(axis, broken)


def _draw_values(
    axis: Axes, values: pandas.Series, window: int, colour: str, style: str = "-"
) -> float:
    """Draw values pale and thin, their trailing mean strong; return the last mean."""
    if values.empty:
        return float("nan")
    means = values.rolling(window, 1).mean()
    if window > 1:
        axis.plot(thinned(values), color=colour, alpha=0.4, linewidth=0.7)
    has_dots = len(means) == 1 or (window == 1 and len(means) <= 60)
    axis.plot(
        thinned(means),
        color=colour,
        linestyle=style,
        linewidth=2,
        marker="o" if has_dots else None,
        markersize=3.5,
    )
    return float(means.iloc[-1])


def _label_ends(axis: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write labels at the right ends of lines, moved apart where lines end close together.

    Args:
        axis: The panel.
        ends: Last value, label and colour of each line.
    """
    bottom, top = axis.get_ylim()
    distance = 0.1 * (top - bottom)
    ordered = sorted(ends)
    places: list[float] = []
    for end, _, _ in ordered:
        lowest = places[-1] + distance if places else bottom
        places.append(max(end, lowest))
    overhang = max([0.0, *[place - top for place in places]])
    for place, (_, label, colour) in zip(places, ordered, strict=True):
        axis.annotate(
            label,
            (1, place - overhang),
            (5, 0),
            xycoords=axis.get_yaxis_transform(),
            textcoords="offset points",
            annotation_clip=False,
            va="center",
            fontsize=8.5,
            color=colour,
            parse_math=False,
        )


def _mark_broken(axis: Axes, steps: Sequence[int]) -> None:
    """Mark the first steps at which a value was not a number, and write how many there are."""
    if not steps:
        return
    plural = "" if len(steps) == 1 else "s"
    _mark(axis, steps[:3], height=0.0, colour=RED, marker="x")
    axis.set_title(
        f"NaN at {len(steps)} step{plural}\n", loc="right", fontsize=8.5, color=RED, pad=7
    )


def _mark_alerts(axis: Axes, alerts: Sequence[Alert]) -> None:
    """Mark alerts at the upper edge of a panel."""
    for kind, (colour, marker) in ALERT_MARKS.items():
        steps = [alert.step for alert in alerts if alert.kind == kind]
        if steps:
            _mark(axis, steps, height=1.0, colour=colour, marker=marker)


def _mark(axis: Axes, steps: Sequence[int], height: float, colour: str, marker: str) -> None:
    """Draw markers at steps, at a height between 0 (lower edge of the panel) and 1 (upper edge)."""
    axis.plot(
        steps,
        [height] * len(steps),
        marker,
        color=colour,
        markersize=5,
        clip_on=False,
        transform=axis.get_xaxis_transform(),
    )


def _cut(text: str, limit: int) -> str:
    text = displayable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def overlay(runs: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw several runs in one figure, a colour for each: reward, held-out accuracy, KL and length.

    Args:
        runs: The rows of each run by its name.
    """
    all_rows = [row for rows in runs.values() for row in rows]
    shown = [panel for panel in (TOTAL, HOLDOUT, KL, LENGTH) if _is_measured(panel, all_rows)]
    figure = Figure(
        figsize=(WIDTH_INCHES, PANEL_INCHES * -(-len(shown) // 2) + 0.5),
        facecolor="none",
        layout="constrained",
    )
    axes = _panel_axes(figure, len(shown), min(2, len(shown)))
    for axis, panel in zip(axes, shown, strict=True):
        has_anywhere = panel is HOLDOUT and any("holdout/anywhere" in row for row in all_rows)
        _frame(axis, panel.title, f"{panel.unit}; dotted: anywhere" if has_anywhere else panel.unit)
        for number, rows in enumerate(runs.values()):
            colour, style = _look_of_run(number)
            window = 1 if panel is HOLDOUT else window_of(rows)
            _draw_values(axis, curve(rows, panel.metric)[0], window, colour, style)
            anywhere, _ = curve(rows, "holdout/anywhere")
            if panel is HOLDOUT and len(anywhere):
                axis.plot(thinned(anywhere), color=colour, linewidth=1.4, linestyle=":")
        if panel.is_share:
            axis.yaxis.set_major_formatter(PercentFormatter(1, 0))
            axis.set_ylim(0, 1.02)
    handles = []
    for number in range(len(runs)):
        colour, style = _look_of_run(number)
        handles.append(Line2D([], [], color=colour, linestyle=style))
    # Handles and names are given as lists, because matplotlib leaves out names that begin with "_".
    names = [_cut(name, MAX_RUN_NAME) for name in runs]
    legend = figure.legend(
        handles, names, loc="outside upper left", ncols=2, frameon=False, labelcolor=INK
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a run's name is not a formula
    return figure


def _look_of_run(number: int) -> tuple[str, str]:
    """Return colour and line style of a run by its number."""
    return COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]


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
    """Return a figure as HTML with alternative text, or the text where no image is shown."""
    picture = base64_png(figure)
    return Html(words, f'<img alt="{escaped(words)}" src="data:image/png;base64,{picture}">')


class LivePlot:
    """The training figure in a notebook cell, updated in place. It never clears other output.

    The first rows and the last row are always drawn. In between, a redraw waits until all redraws
    together take at most a two-hundredth of the time.

    Args:
        run: The run that is shown; its weights, its reference and the range of its rewards.
    """

    def __init__(self, run: Any) -> None:
        self._weights = run.weights
        self._reference = run.reference
        self._total_range = run.total_range
        self._output = CellOutput()
        self._next_redraw = 0.0
        self._is_drawn = False

    def update(
        self, rows: Sequence[Row], *, alerts: Sequence[Alert] = (), is_last: bool = False
    ) -> None:
        """Redraw the figure if a redraw is due.

        Args:
            rows: All rows so far.
            alerts: All alerts so far.
            is_last: Redraw in any case.
        """
        started = time.perf_counter()
        if not rows or (not is_last and started < self._next_redraw):
            return
        figure = training_figure(
            rows,
            self._weights,
            self._reference,
            alerts=alerts,
            total_range=self._total_range,
        )
        sentence = figure.get_label()
        data = {"image/png": base64_png(figure), "text/plain": sentence}
        self._output.show(data, metadata={"image/png": {"alt": f"Training curves. {sentence}"}})
        seconds = time.perf_counter() - started
        # The first figure also loads matplotlib's fonts, so its time is no measure of a redraw.
        pause = 200 * seconds if self._is_drawn else 0.0
        self._next_redraw = started + seconds + pause
        self._is_drawn = True
