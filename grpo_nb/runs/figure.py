"""The training figure, from rows: of one run, or of several over each other.

Three sizes for three ranks: what is trained for (the reward) is largest, then what tells learning from cheating (KL, held-out
score, length), then six small cards with what goes wrong first. A card or panel of something that was not measured says so.
"""

import io
import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grpo_nb.core.tables import Html, escaped
from grpo_nb.core.words import displayable
from grpo_nb.runs.alert import Alert, worst_first
from grpo_nb.runs.rise import describe
from grpo_nb.runs.rows import ACCURACY, Row

# Okabe and Ito's palette: told apart with any colour vision, and with the line styles also in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_INK, _SOFT, _GROUND, _ALARM = "#333333", "#666666", "#F6F6F6", "#C62828"
# Severity in colour and in shape; the worst are drawn last.
_MARKS = {"withdrawn": ("#999", "1"), "info": ("#546E7A", "o"), "warning": ("#B26A00", "D"), "critical": (_ALARM, "v")}
_LISTED = 3
# Half a panel is some 450 pixels wide: with two points a stretch there is about one for each.
_STRETCHES = 256
TOTAL, EACH, KL, HOLDOUT, LENGTHS = "Total reward", "Each reward", "KL", "Held-out accuracy", "Completion length"
CALLS, _SCHEDULE = "Calls per completion", "Learning rate"


# Panel -> its metric, its unit or how its value is written, and how the names of the rules begin that speak about it, for their
# alerts are marked here, too.
PANELS = {
    TOTAL: ("reward", "weighted sum", ""),
    EACH: ("rewards/", "mean score, unweighted", "constant_reward|dominating_reward|form_only"),
    KL: ("kl", "nats", "kl"),
    HOLDOUT: (ACCURACY, "share", "holdout"),
    LENGTHS: ("completions/mean_length", "tokens, mean", "length"),
    "Groups without spread": ("frac_reward_zero_std", "{:.0%}", "no_spread"),
    "Cut at the limit": ("completions/clipped_ratio", "{:.0%}", "truncation"),
    "Gradient norm": ("grad_norm", "{:.3g}", "gradient"),
    "Entropy": ("entropy", "{:.2g}", "collapse"),
    _SCHEDULE: ("learning_rate", "{:.2g}", "no rule"),
    "Seconds per step": ("step_time", "{:.3g}", "slow_steps"),
    CALLS: ("tools/call_frequency", "{:.2f}", "tools"),
}
_CARDS = list(PANELS)[5:]
_MIDDLE = (KL, HOLDOUT, LENGTHS)
# Twelve columns; right of the single rewards there is room for their labels.
_MOSAIC = [
    [TOTAL] * 6 + [EACH] * 4 + ["."] * 2,
    [title for title in _MIDDLE for _ in range(4)],
    [title for title in _CARDS[:6] for _ in range(2)],
]
# Calls take the place of what the settings say, where there are tools.
_WITH_CALLS = [*_MOSAIC[:2], [CALLS if title == _SCHEDULE else title for title in _MOSAIC[2]]]
_ROWS, _BETWEEN = (2.15, 1.35, 0.55), 0.87
# In inches: what is above the panels, what they take together, and below them; the foot grows by a line for each that it has.
_WIDTH, _HEAD, _DRAWN, _FOOT, _LINE = 10.0, 0.36, sum(_ROWS) + 2 * _BETWEEN, 0.49, 0.19
_LEFT, _RIGHT = 0.062, 0.975
_TENTHS = RendererAgg(1, 1, 720)
"""Measures texts in tenths of points."""


def curve(rows: Sequence[Row], metric: str) -> pandas.Series:
    """The values of a metric by step, of the rows that have it; those that are NaN or infinite are among them."""
    known = {row["step"]: row[metric] for row in rows if isinstance(row.get(metric), (int, float))}
    return pandas.Series(known, dtype=float)


def thinned(values: pandas.Series) -> pandas.Series:
    """The lowest and the highest of each of some 256 stretches, and the last: quick to draw, and no spike is lost."""
    stretches = values.groupby(numpy.arange(len(values)) // (1 + len(values) // _STRETCHES))
    return values[sorted({*stretches.idxmin(), *stretches.idxmax(), values.index[-1]})]


def window_of(rows: Sequence[Row]) -> int:
    """Over how many rows the strong lines are a mean: few at the start, which a long mean would hide."""
    return max(1, min(10, len(rows) // 4), len(rows) // 50)


def training_figure(
    rows: Sequence[Row], weights: Mapping[str, float] | None = None, beta: float | None = None,
    reference: str = "the reference model", *, alerts: Sequence[Alert] = (), chosen: float | None = None,
) -> Figure:  # fmt: skip
    """Draw reward with spread, each reward, KL, held-out score and length over the steps, and six signals of trouble.

    The figure's label is the sentence about the run, for whoever does not see it. Pale and thin are the logged values, strong
    is their trailing mean.

    Args:
        rows: As in `Run.rows`; any of the metrics may be missing.
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL; with 0 its panel says that KL is not measured.
        reference: What the KL is measured to.
        alerts: As in `Run.alerts`, marked where they came; the most severe, and among equals the latest, are written below.
        chosen: A step that a line marks in every panel.

    >>> figure = training_figure([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
    >>> figure.axes[0].get_title(loc="left")
    'Total reward'
    """
    if beta == 0:  # with it Unsloth logs a KL of exact zeros, which nobody measured
        rows = [{key: value for key, value in row.items() if key != "kl"} for row in rows]
    marked, window = worst_first(sorted(alerts, key=lambda alert: -alert.step)), window_of(rows)
    figure = Figure(facecolor="white", label=describe(rows, reference))
    mosaic = _WITH_CALLS if any(PANELS[CALLS][0] in row for row in rows) else _MOSAIC
    axes: dict[str, Axes] = figure.subplot_mosaic(mosaic, height_ratios=_ROWS)
    _write_foot(figure, marked, window)
    first, last = (rows[0]["step"], rows[-1]["step"]) if rows else (1, 1)
    for title, axis in axes.items():
        metric, unit, rules = PANELS[title]
        axis.set_xlim(min(1, first), max(last, first + 1))
        if title in _CARDS:
            _draw_card(axis, title, curve(rows, metric), unit, window)
        else:
            unit = f"to {reference}, nats" if title == KL else unit
            missing = f"not measured{' (beta = 0)' * (title == KL and beta == 0)}"
            _draw_panel(axis, title, rows, window, unit, missing)
        if title == EACH:
            _label_ends(axis, weights or {})
        _mark_alerts(axis, [alert for alert in marked if re.match(rules, alert.rule)])
        if chosen is not None:
            axis.axvline(chosen, color=_INK, linewidth=1.1, gid="chosen")
    return figure


def _frame(axis: Axes, title: str, unit: str) -> None:
    """Give a panel the look that all share: its title at the left, its unit at the right, lines behind the data, no frame."""
    # The unit beside the axis would stand in the numbers of a small KL.
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=_INK, y=1, pad=5)
    _note(axis, unit)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.grid(axis="y", color="#EEEEEE")
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=8.5, length=2.5)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(4))


def _draw_panel(axis: Axes, title: str, rows: Sequence[Row], window: int, unit: str, missing: str) -> None:
    """Draw the curves of a panel, or say why there are none; those of single rewards bear their names."""
    _frame(axis, title, unit)
    keys = [PANELS[title][0]]
    if title == EACH:
        keys = dict.fromkeys(key for row in rows for key in row if key.startswith("rewards/") and key.endswith("/mean"))
    if title == TOTAL:
        _draw_spread(axis, rows)
    curves = {key: curve(rows, key) for key in keys}
    if broken := _mark_broken(axis, curves.values()):
        _note(axis, broken, _ALARM)
    curves = {key: _finite(values) for key, values in curves.items() if len(_finite(values))}
    if not curves:
        axis.set(xticks=[], yticks=[], facecolor=_GROUND)
        axis.spines[:].set_visible(False)
        _write(axis, 0.5, 0.5, broken or missing, 10.5, ha="center")
        return
    first = 0 if title == EACH else list(PANELS).index(title)
    for i, (key, values) in enumerate(curves.items()):
        how = {"linestyle": _STYLES[i % len(_STYLES)], "gid": key}
        end = _line(axis, values, 1 if title == HOLDOUT else window, first + i, **how)
    if title == HOLDOUT:
        _note(axis, f"{end:.0%}", COLOURS[first], fontsize=10, fontweight="bold")
        axis.yaxis.set_major_formatter(PercentFormatter(1, 0))
        axis.set_ylim(0, 1.02)
    if title in _MIDDLE:
        axis.set_xlabel("optimizer step", color=_INK, fontsize=8.5)
        if axis.dataLim.y0 >= 0:
            axis.set_ylim(bottom=0)


def _draw_spread(axis: Axes, rows: Sequence[Row]) -> None:
    """Add the band of one standard deviation to the total reward, where both were measured."""
    reward, half = _finite(curve(rows, "reward")), _finite(curve(rows, "reward_std"))
    width = 1 + len(reward) // _STRETCHES
    low, high = ((reward + sign * half).dropna().rolling(width).mean()[width - 1 :: width] for sign in (-1, 1))
    if len(low):
        _note(axis, "weighted sum; band: one standard deviation")
        axis.fill_between(low.index, low, high, color=COLOURS[0], alpha=0.12, linewidth=0)


def _draw_card(axis: Axes, title: str, values: pandas.Series, written: str, window: int) -> None:
    """Draw a small curve, with the number that it ends at above it, and below how high it was, or that it was no number."""
    broken, values = _mark_broken(axis, [values]), _finite(values)
    axis.set(xticks=[], yticks=[], facecolor=_GROUND)
    axis.spines[:].set_visible(False)
    _write(axis, 0, 1.62, title, 8.5)
    if values.empty:
        _write(axis, 0, 1.24, broken or "not measured", 9.5)
        return
    end, high = written.format(_line(axis, values, window, 0, linewidth=1.4)), written.format(values.max())
    axis.set_ylim(min(0.0, values.min()), 1 if "%" in written else None)
    _write(axis, 0, 1.24, end, 11, _INK, fontweight="bold")
    _write(axis, 0, -0.26, broken or f"up to {high}" * (high != end), 7, _ALARM if broken else _SOFT)


def _finite(values: pandas.Series) -> pandas.Series:
    return values[numpy.isfinite(values)]


def _line(axis: Axes, values: pandas.Series, window: int, number: int, pale: float = 0.4, **style: Any) -> float:
    """Draw values pale and their trailing mean strong, with dots where there are few; return the last mean."""
    colour, means = COLOURS[number % len(COLOURS)], values.rolling(window, 1).mean()
    if window > 1:
        axis.plot(thinned(values), color=colour, alpha=pale, linewidth=0.7)
    dots = {"marker": "o", "markersize": 4} if len(means) == 1 or (window == 1 and len(means) <= 60) else {}
    axis.plot(thinned(means), color=colour, **{"linewidth": 2, **dots, **style})
    return means.iloc[-1]


# Marks and words.


def _note(axis: Axes, text: str, colour: str = _SOFT, **options: Any) -> None:
    """Write at the right above a panel, in place of what stood there."""
    # A place of its own: to find one, matplotlib measures every text of the panel at each draw.
    axis.set_title(text, loc="right", color=colour, y=1, pad=5, **{"fontsize": 8, **options})


def _write(axis: Axes, x: float, y: float, text: str, size: float, colour: str = _SOFT, **options: Any) -> None:
    """Write at a place that is given in shares of the panel."""
    axis.text(x, y, text, transform=axis.transAxes, fontsize=size, color=colour, va="center", **options)


def _fitting(text: str, size: float, room: float) -> float:
    """The size at which a text takes at most this room, in points: a smaller one where it is wide."""
    # At few dots an inch letters are drawn up to 3 % wider.
    width = 0.103 * _TENTHS.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]
    return size * min(1, room / width)


def _label_ends(axis: Axes, weights: Mapping[str, float]) -> None:
    """Write names and weights at the right ends of the lines, moved apart where lines end close together."""
    named = sorted((line for line in axis.lines if line.get_gid()), key=lambda line: line.get_ydata()[-1])
    room, (bottom, top) = 72 * _WIDTH * (_RIGHT - axis.get_position().x1) - 5, axis.get_ylim()
    ends, apart = [line.get_ydata()[-1] for line in named], 0.085 * (top - bottom)
    places = list(itertools.accumulate(ends, lambda last, end: max(end, last + apart)))
    over = max([0.0, *(place - top for place in places)])  # back up from the lower edge
    for place, line in zip(places, named, strict=True):
        name = line.get_gid()[8:-5]
        label = _cut(name, 20) + (f" x{weights[name]:g}" if name in weights else "")
        how = {"xycoords": axis.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        how |= {"va": "center", "fontsize": _fitting(label, 9, room), "color": line.get_color(), "parse_math": False}
        axis.annotate(label, (1, place - over), (5, 0), **how)


def _mark(axis: Axes, at: Sequence[float], height: float, colour: str, shape: str) -> None:
    edge = axis.get_xaxis_transform()
    axis.plot(at, [height] * len(at), shape, color=colour, markersize=5, clip_on=False, transform=edge)


def _mark_broken(axis: Axes, curves: Iterable[pandas.Series]) -> str:
    """Mark the first values that are no numbers, and say in words how many there are."""
    broken = sorted({step for values in curves for step in values.index[~numpy.isfinite(values)]})
    if not broken:
        return ""
    _mark(axis, broken[:3], 0.0, _ALARM, "x")
    return f"NaN at {len(broken)} step{'s' * (len(broken) > 1)}"


def _mark_alerts(axis: Axes, about: Sequence[Alert]) -> None:
    """Mark the alerts that speak about a panel at its upper edge."""
    for kind, (colour, shape) in _MARKS.items():
        if at := [alert.step for alert in about if alert.kind == kind]:
            _mark(axis, at, 1.0, colour, shape)


def _write_foot(figure: Figure, marked: Sequence[Alert], window: int) -> None:
    """Write the lines under the panels, and give the figure the height that they ask for."""
    said = [(figure.get_label(), 10, _INK)]
    for alert in marked[:_LISTED]:
        said.append((f"{alert.standing}, step {alert.step}: {_cut(alert.message, 110)}", 9, _MARKS[alert.kind][0]))
    if len(marked) > _LISTED:
        said.append((f"and {len(marked) - _LISTED} more in run.alerts", 8.5, _SOFT))
    if window > 1:
        said.append((f"Strong lines and bold numbers: mean of the last {window} steps; pale lines: each.", 8.5, _SOFT))
    lines = [(line, *how) for text, *how in said for line in textwrap.wrap(text, 128, break_on_hyphens=False)]
    height = _HEAD + _DRAWN + _FOOT + _LINE * len(lines)
    figure.set_size_inches(_WIDTH, height)
    # matplotlib counts what lies between in mean heights and widths.
    between = len(_ROWS) * _BETWEEN / sum(_ROWS)
    figure.subplots_adjust(_LEFT, 1 - (_HEAD + _DRAWN) / height, _RIGHT, 1 - _HEAD / height, 1.7, between)
    for i, (text, size, colour) in enumerate(lines):
        fitting = _fitting(text, size, 72 * _WIDTH * (_RIGHT - _LEFT))
        place = 1 - (_HEAD + _DRAWN + 0.36 + _LINE * i) / height
        figure.text(_LEFT, place, text, fontsize=fitting, color=colour, va="center", parse_math=False)


def _cut(text: str, limit: int) -> str:
    text = displayable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


# What becomes of a figure.


def png(figure: Figure, dpi: int = 100) -> bytes:
    """Render a figure without touching pyplot's state."""
    buffer = io.BytesIO()
    # 6, the default, is 4 % smaller, and takes a tenth longer with all that a redraw does.
    figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"compress_level": 3})
    return buffer.getvalue()


def drawn(figure: Figure, words: str) -> Html:
    """Return a figure as a part of what shows itself, with these words in its place for those who do not see it."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg", bbox_inches="tight")
    markup = picture.getvalue()[picture.getvalue().index("<svg") :]
    return Html(words, markup.replace("<svg", f'<svg role="img" aria-label="{escaped(words)}"', 1))


def overlay(runs: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw the reward, KL, held-out accuracy and length of several runs in one figure, a colour and a line style each.

    Args:
        runs: Name -> rows.
    """
    figure = Figure(figsize=(_WIDTH, 5.4), facecolor="white")
    for axis, title in zip(figure.subplots(2, 2).flat, (TOTAL, KL, HOLDOUT, LENGTHS), strict=True):
        metric, unit, _ = PANELS[title]
        _frame(axis, title, unit)
        for i, (name, rows) in enumerate(runs.items()):
            values, look = _finite(curve(rows, metric)), {"linestyle": _STYLES[i // len(COLOURS) % len(_STYLES)]}
            if len(values):
                _line(axis, values, 1 if title == HOLDOUT else window_of(rows), i, 0.25, **look)
            axis.plot([], [], color=COLOURS[i % len(COLOURS)], label=_cut(name, 40), **look)
    how = {"loc": "upper left", "bbox_to_anchor": (0.05, 1), "ncols": 2, "frameon": False}
    figure.legend(*figure.axes[0].get_legend_handles_labels(), **how)
    figure.subplots_adjust(_LEFT, 0.06, _RIGHT, 0.9 - 0.045 * -(-len(runs) // 2), hspace=0.4, wspace=0.16)
    return figure
