"""The training figure, from rows: of one run, or of several over each other.

Three sizes for three ranks: what is trained for (the reward) is largest, then what tells learning from cheating (KL, held-out
score, length), then six small cards with what goes wrong first. A card or panel of something that was not measured says so.
"""

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator, NullLocator

from grpo_nb.core.tables import Html, escaped
from grpo_nb.core.words import displayable
from grpo_nb.runs.alert import Alert, worst_first
from grpo_nb.runs.rise import describe
from grpo_nb.runs.rows import ACCURACY, HIGH, LOW, Row

# Okabe and Ito's palette: told apart with any colour vision, and with the line styles also in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_INK, _SOFT, _GROUND, _ALARM = "#333333", "#666666", "#F6F6F6", "#C62828"
# Severity in colour and in shape.
_MARKS = {
    "critical": (_ALARM, "v"),
    "warning": ("#B26A00", "D"),
    "info": ("#546E7A", "o"),
    "withdrawn": ("#9E9E9E", "1"),
}
_LISTED = 3
# Half a panel is some 450 pixels wide: with two points a bin there is about one for each.
BINS = 256
TOTAL, EACH, KL, HOLDOUT, LENGTHS = "Total reward", "Each reward", "KL", "Held-out accuracy", "Completion length"


def _percent(value: float, _: Any = None) -> str:
    return f"{100 * value:.0f} %"


class Measure(NamedTuple):
    """What a panel or a card shows."""

    metric: str
    unit: str = ""
    colour: int = 0
    written: Callable[[float], str] = "{:.3g}".format
    rules: str = "no rule"
    """How the names of the rules begin that speak about it: their alerts are marked here, too."""


MEASURES = {
    TOTAL: Measure("reward", "weighted sum", rules=""),
    EACH: Measure("rewards/", "mean score, unweighted", rules="constant_reward|dominating_reward|form_only"),
    KL: Measure("kl", "nats", 2, rules="kl"),
    HOLDOUT: Measure(ACCURACY, "", 3, _percent, "holdout"),
    LENGTHS: Measure("completions/mean_length", "tokens, mean", 5, rules="length"),
    "Groups without spread": Measure("frac_reward_zero_std", "", 0, _percent, "no_spread"),
    "Cut at the limit": Measure("completions/clipped_ratio", "", 0, _percent, "truncation"),
    "Gradient norm": Measure("grad_norm", rules="gradient"),
    "Entropy": Measure("entropy", written="{:.2g}".format),
    "Learning rate": Measure("learning_rate", written="{:.2g}".format),
    "Seconds per step": Measure("step_time", rules="slow_steps"),
}
_CARDS = list(MEASURES)[5:]
# Twelve columns; right of the single rewards there is room for their labels.
_TOP, _MIDDLE = [TOTAL] * 6 + [EACH] * 4 + ["."] * 2, [KL] * 4 + [HOLDOUT] * 4 + [LENGTHS] * 4
_MOSAIC = [_TOP, _MIDDLE, [title for title in _CARDS for _ in range(2)]]
_ROWS, _BETWEEN = (2.15, 1.35, 0.55), 0.87
_WIDTH, _HEAD, _FOOT, _LINE = 10.0, 0.36, 0.49, 0.19  # inches; the foot grows by a line for each that it has
_DRAWN = sum(_ROWS) + 2 * _BETWEEN
_LEFT, _RIGHT = 0.062, 0.975
_TENTHS = RendererAgg(1, 1, 720)
"""Measures texts in tenths of points."""


def curve(rows: Sequence[Row], metric: str) -> pandas.Series:
    """The values of a metric by step, of the rows that have it; those that are NaN or infinite are among them."""
    known = {row["step"]: row[metric] for row in rows if isinstance(row.get(metric), (int, float))}
    return pandas.Series(known, dtype=float)


def _finite(values: pandas.Series) -> pandas.Series:
    return values[numpy.isfinite(values)]


def extremes(values: pandas.Series) -> pandas.Series:
    """The lowest and the highest of each of at most `BINS` stretches, and the last: bounded, and no spike is lost.

    >>> len(extremes(pandas.Series(range(100_000)))) <= 2 * BINS + 1, list(extremes(pandas.Series([3, 1, 2])))
    (True, [3, 1, 2])
    """
    width = -(-len(values) // BINS)
    stretches = numpy.pad(values, (0, -len(values) % width), mode="edge").reshape(-1, width)
    begins = numpy.arange(0, len(values), width)
    picked = [begins + stretches.argmin(axis=1), begins + stretches.argmax(axis=1), [len(values) - 1]]
    return values.iloc[numpy.unique(numpy.concatenate(picked))]


def window_of(rows: Sequence[Row]) -> int:
    """Over how many rows the strong lines are a mean: few at the start, which a long mean would hide."""
    return max(1, min(10, len(rows) // 4), len(rows) // 50)


def training_figure(
    rows: Sequence[Row], weights: Mapping[str, float] | None = None, beta: float | None = None,
    reference: str = "the reference model", *, alerts: Sequence[Alert] = (), chosen: float | None = None,
) -> Figure:  # fmt: skip
    """Draw reward with spread, each reward, KL, held-out score and length over the steps, and six signals of trouble.

    The figure's label is the sentence about the run, for whoever does not see it. Pale and thin are the logged values, of a
    long run the extremes of equally long stretches; strong is their trailing mean.

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
    axes: dict[str, Axes] = figure.subplot_mosaic(_MOSAIC, height_ratios=_ROWS)
    _write_foot(figure, marked, window)
    for title, measure in MEASURES.items():
        if title in _CARDS:
            _draw_card(axes[title], title, curve(rows, measure.metric), window)
        else:
            unit = f"to {reference}, nats" if title == KL else measure.unit
            why = f"not measured{' (beta = 0)' * (title == KL and beta == 0)}"
            _draw_panel(axes[title], title, rows, 1 if title == HOLDOUT else window, unit, why)
    _draw_spread(axes[TOTAL], rows)
    _label_ends(axes[EACH], weights or {})
    _draw_best(axes[HOLDOUT], rows)
    first, last = (rows[0]["step"], rows[-1]["step"]) if rows else (1, 1)
    for axis in axes.values():
        axis.set_xlim(min(1, first), max(last, first + 1))
        if chosen is not None:
            axis.axvline(chosen, color=_INK, linewidth=1.1, gid="chosen")
    _mark_alerts(axes, marked)
    return figure


def _frame(axis: Axes, title: str, unit: str) -> None:
    """Give a panel the look that all share: its title at the left, its unit at the right, lines behind the data, no frame."""
    # Places of their own for titles and labels: to find them, matplotlib measures every text of the panel at each draw.
    # The unit beside the axis would stand in the numbers of a small KL.
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=_INK, y=1, pad=5)
    axis.set_title(unit, loc="right", fontsize=8, color=_SOFT, y=1, pad=5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.grid(axis="y", color="#EEEEEE")
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=8.5, length=2.5)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(4))


def _draw_panel(axis: Axes, title: str, rows: Sequence[Row], window: int, unit: str, why: str) -> None:
    """Draw the curves of a panel, or say why there are none; those of single rewards bear their names."""
    measure = MEASURES[title]
    _frame(axis, title, unit)
    names = {measure.metric: None}
    if title == EACH:
        keys = dict.fromkeys(key for row in rows for key in row if key.startswith("rewards/") and key.endswith("/mean"))
        names = {key: key[8:-5] for key in keys}
    curves = {key: curve(rows, key) for key in names}
    everything = pandas.concat(curves.values()) if curves else pandas.Series(dtype=float)
    finite = _finite(everything)
    if len(finite) < len(everything):
        why = _mark_broken(axis, everything)
        axis.set_title(why, loc="right", fontsize=8, color=_ALARM, y=1, pad=5)
    if finite.empty:
        axis.set(xticks=[], yticks=[], facecolor=_GROUND)
        axis.spines[:].set_visible(False)
        _write(axis, 0.5, 0.5, why, 10.5, ha="center", va="center")
        return
    for i, (key, values) in enumerate(curves.items()):
        _line(axis, values, window, measure.colour + i, linestyle=_STYLES[i % len(_STYLES)], gid=names[key])
    _set_limits(axis, min(finite.min(), 0.0 if title in _MIDDLE else math.inf), finite.max())
    if title in _MIDDLE:
        axis.set_xlabel("optimizer step", color=_INK, fontsize=8.5)
        axis.xaxis.set_label_coords(0.5, -0.18)


def _draw_spread(axis: Axes, rows: Sequence[Row]) -> None:
    """Add the band of one standard deviation to the total reward, where both were measured."""
    reward, half = _finite(curve(rows, "reward")), _finite(curve(rows, "reward_std"))
    width = max(1, -(-len(reward) // BINS))
    ends = [(reward + sign * half).dropna().rolling(width).mean()[width - 1 :: width] for sign in (-1, 1)]
    if len(ends[0]):
        if axis.get_title(loc="right") == MEASURES[TOTAL].unit:  # and not that values are no numbers
            axis.set_title(f"{MEASURES[TOTAL].unit}; band: one standard deviation", loc="right", fontsize=8, y=1, pad=5)
        _set_limits(axis, min(reward.min(), ends[0].min()), max(reward.max(), ends[1].max()))
        axis.fill_between(ends[0].index, *ends, color=COLOURS[0], alpha=0.12, linewidth=0)


def _draw_best(axis: Axes, rows: Sequence[Row]) -> None:
    """Say the last held-out score, and mark the best one with its interval."""
    scored, low, high = (curve(rows, metric) for metric in (ACCURACY, LOW, HIGH))
    if scored.empty:
        return
    colour, best, last = COLOURS[MEASURES[HOLDOUT].colour], scored.idxmax(), _percent(scored.iloc[-1])
    axis.set_title(last, loc="right", fontsize=10, color=colour, fontweight="bold", y=1, pad=5)
    axis.yaxis.set_major_formatter(_percent)
    axis.set_ylim(0, 1.02)
    if best in low and best in high:
        axis.plot([best] * 2, [low[best], high[best]], color=colour, linewidth=1.2, alpha=0.6)
    axis.plot([best], [scored[best]], "*", color=colour, markersize=10, gid="best", clip_on=False)
    axis.set_xlabel(f"optimizer step; star: best, {_percent(scored[best])} at step {best}")


def _draw_card(axis: Axes, title: str, values: pandas.Series, window: int) -> None:
    shown = MEASURES[title].written
    axis.spines[:].set_visible(False)
    axis.xaxis.set_major_locator(NullLocator())
    axis.yaxis.set_major_locator(NullLocator())
    axis.patch.set_facecolor(_GROUND)
    _write(axis, 0, 1.62, title, 8.5, va="center")
    broken, finite, is_share = _mark_broken(axis, values), _finite(values), shown is _percent
    if finite.empty:
        _write(axis, 0, 1.24, broken or "not measured", 9.5, va="center")
        return
    end, high = _line(axis, values, window, 0, linewidth=1.4), finite.max()
    _set_limits(axis, min(0.0, finite.min()), 1.0 if is_share else high)
    _write(axis, 0, 1.24, shown(end), 11, _INK, fontweight="bold", va="center")
    more = "" if is_share or shown(high) == shown(end) else f"up to {shown(high)}"
    _write(axis, 0, -0.14, broken or more, 7, _ALARM if broken else _SOFT, va="top")


def _line(axis: Axes, values: pandas.Series, window: int, number: int, pale: float = 0.4, **style: Any) -> float:
    """Draw values pale and their trailing mean strong, with dots where there are few; return the last mean."""
    values = _finite(values)
    if values.empty:
        return math.nan
    colour, means = COLOURS[number % len(COLOURS)], values.rolling(window, 1).mean()
    if window > 1:
        axis.plot(extremes(values), color=colour, alpha=pale, linewidth=0.7)
    dots = {"marker": "o", "markersize": 4} if len(means) == 1 or (window == 1 and len(means) <= 60) else {}
    axis.plot(extremes(means), color=colour, **{"linewidth": 2, **dots, **style})
    return means.iloc[-1]


def _set_limits(axis: Axes, low: float, high: float) -> None:
    """Set limits ourselves: autoscaling would look at all artists again, the marks included."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.5
    axis.set_ylim(low if low == 0 else low - room, high + room)


# Marks and words.


def _write(axis: Axes, x: float, y: float, text: str, size: float, colour: str = _SOFT, **options: Any) -> None:
    """Write at a place that is given in shares of the panel."""
    axis.text(x, y, text, transform=axis.transAxes, fontsize=size, color=colour, **options)


def _label_ends(axis: Axes, weights: Mapping[str, float]) -> None:
    """Write names and weights at the right ends of the lines, moved apart where lines end close together."""
    named = sorted((line for line in axis.lines if line.get_gid()), key=lambda line: line.get_ydata()[-1])
    room, (bottom, top) = 72 * _WIDTH * (_RIGHT - axis.get_position().x1) - 5, axis.get_ylim()
    ends, apart = [line.get_ydata()[-1] for line in named], 0.085 * (top - bottom)
    places = list(itertools.accumulate(ends, lambda last, end: max(end, last + apart)))
    over = max([0.0, *(place - top for place in places)])  # back up from the lower edge
    for place, line in zip(places, named, strict=True):
        name = line.get_gid()
        label = _cut(name, 20) + (f" x{weights[name]:g}" if name in weights else "")
        size = 9 * min(1, room / _width(label, 9))
        how = {"xycoords": axis.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        how |= {"va": "center", "fontsize": size, "color": line.get_color(), "parse_math": False}
        axis.annotate(label, (1, place - over), (5, 0), **how)


def _mark(axis: Axes, at: Sequence[float], height: float, colour: str, shape: str, size: float) -> None:
    edge = axis.get_xaxis_transform()
    axis.plot(at, [height] * len(at), shape, color=colour, markersize=size, clip_on=False, transform=edge)


def _mark_broken(axis: Axes, values: pandas.Series) -> str:
    """Mark the first values that are no numbers, and say in words how many there are."""
    broken = sorted({*values.index[~numpy.isfinite(values)]})
    if not broken:
        return ""
    _mark(axis, broken[:3], 0.0, _ALARM, "x", 6)
    return f"NaN at {len(broken)} step{'s' * (len(broken) > 1)}"


def _mark_alerts(axes: Mapping[str, Axes], marked: Sequence[Alert]) -> None:
    """Mark alerts at the upper edge, those that are listed also with a line."""
    # A hundred marks on one edge tell no more; the most severe ones come first.
    for number, alert in reversed([*enumerate(marked[:100])]):
        colour, shape = _MARKS[alert.kind]
        for title in (title for title, measure in MEASURES.items() if re.match(measure.rules, alert.rule)):
            _mark(axes[title], [alert.step], 1.0, colour, shape, 4.5 if title in _CARDS else 6)
            if number < _LISTED and title not in _CARDS:
                axes[title].axvline(alert.step, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.9)


def _write_foot(figure: Figure, marked: Sequence[Alert], window: int) -> None:
    """Write the lines under the panels, and give the figure the height that they ask for."""
    told = [f"{alert.standing}, step {alert.step}: {_cut(alert.message, 110)}" for alert in marked[:_LISTED]]
    said = [
        (figure.get_label(), 10, _INK),
        *((text, 9, _MARKS[a.kind][0]) for text, a in zip(told, marked, strict=False)),
    ]
    if len(marked) > _LISTED:
        said.append((f"and {len(marked) - _LISTED} more in run.alerts", 8.5, _SOFT))
    over = (
        f"Strong lines and bold numbers are the mean of the last {window} steps, pale lines each step or its extremes."
    )
    said += [(over, 8.5, _SOFT)] if window > 1 else []
    lines = [(line, size, colour) for text, size, colour in said for line in _wrapped(text, size)]
    height, top = _HEAD + _DRAWN + _FOOT + _LINE * len(lines), _HEAD + _DRAWN + 0.36
    figure.set_size_inches(_WIDTH, height)
    # matplotlib counts what lies between in mean heights and widths.
    between = len(_ROWS) * _BETWEEN / sum(_ROWS)
    figure.subplots_adjust(_LEFT, 1 - (_HEAD + _DRAWN) / height, _RIGHT, 1 - _HEAD / height, 1.7, between)
    for i, (text, size, colour) in enumerate(lines):
        place = (_LEFT, 1 - (top + _LINE * i) / height)
        figure.text(*place, text, fontsize=size, color=colour, va="center", parse_math=False)


def _cut(text: str, limit: int) -> str:
    text = displayable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _width(text: str, size: float) -> float:
    """Of a text, in points: what it takes at most, for at few dots an inch letters are drawn up to 3 % wider."""
    return 0.103 * _TENTHS.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


def _wrapped(text: str, size: float) -> list[str]:
    """A line of the foot in as many lines as the width of the figure asks for; 60 letters fit, whatever they are."""
    lines = [""]
    for piece in re.findall(r"\s*\S{1,40}", text):
        longer = lines[-1] + piece
        if len(longer) > 60 and _width(longer, size) > 72 * _WIDTH * (_RIGHT - _LEFT):
            lines.append(piece.lstrip())
        else:
            lines[-1] = longer
    return lines


# What becomes of a figure.


def png(figure: Figure, dpi: int = 100) -> bytes:
    """Render a figure without touching pyplot's state."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
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
    figure, named = Figure(figsize=(_WIDTH, 5.4), facecolor="white"), {}
    for axis, title in zip(figure.subplots(2, 2).flat, (TOTAL, KL, HOLDOUT, LENGTHS), strict=True):
        measure = MEASURES[title]
        _frame(axis, title, measure.unit)
        for i, (name, rows) in enumerate(runs.items()):
            window, line = 1 if title == HOLDOUT else window_of(rows), _STYLES[i // len(COLOURS) % len(_STYLES)]
            if not math.isnan(_line(axis, curve(rows, measure.metric), window, i, 0.25, linestyle=line)):
                named[_cut(name, 40)] = axis.lines[-1]
        if not axis.lines:
            _write(axis, 0.5, 0.5, "not measured", 10, ha="center", va="center")
        if title == HOLDOUT:
            axis.yaxis.set_major_formatter(_percent)
            axis.set_ylim(0, 1.02)
    columns = max(1, min(4, int(650 // (45 + max((_width(name, 10) for name in named), default=0)))))
    how = {"loc": "upper left", "bbox_to_anchor": (0.05, 1), "ncols": columns, "frameon": False}
    figure.legend(list(named.values()), list(named), **how)
    figure.subplots_adjust(0.062, 0.06, _RIGHT, 0.9 - 0.045 * -(-len(named) // columns), hspace=0.4, wspace=0.16)
    return figure
