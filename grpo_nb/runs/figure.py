"""The training figure, from rows: of one run, live in a cell or once, or of several over each other.

Three sizes for three ranks: what is trained for (the reward) is largest, then what tells learning from cheating (KL, held-out
score, length), then six small cards with what goes wrong first. A card or panel of something that was not measured says so.
"""

import base64
import io
import itertools
import re
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from matplotlib.transforms import Bbox, BboxTransform, Transform

from grpo_nb.core.palette import COLOURS, GRID, INK, SOFT_INK
from grpo_nb.core.progress import CellOutput
from grpo_nb.core.tables import Html, escaped
from grpo_nb.core.words import displayable
from grpo_nb.runs.alert import Alert, worst_first
from grpo_nb.runs.rise import describe
from grpo_nb.runs.rows import ACCURACY, Row

_HELDOUT = ("#5F6B7A", "#A0522D")
"""Colours of format and answers anywhere in the held-out panel."""
# With the line styles, curves are told apart also in grey.
_STYLES = ("-", "--", "-.", ":")
_GROUND = "#F6F6F6"
_ALARM = "#C62828"
# Severity in colour and in shape; the worst are drawn last.
_MARKS = {
    "withdrawn": ("#999", "1"),
    "info": ("#546E7A", "o"),
    "warning": ("#B26A00", "D"),
    "critical": (_ALARM, "v"),
}
# Half a panel is some 450 pixels wide: with two points a stretch there is about one for each.
_STRETCHES = 256
TOTAL, EACH, KL, HOLDOUT, LENGTHS = (
    "Total reward",
    "Each reward",
    "KL",
    "Held-out accuracy",
    "Completion length",
)
CALLS, _SCHEDULE = "Calls per completion", "Learning rate"


# Panel -> its metric, its unit or how its value is written, and how the names of the rules begin that speak about it, for their
# alerts are marked here, too.
PANELS = {
    TOTAL: ("reward", "weighted sum", ""),
    EACH: ("rewards/", "mean score, unweighted", "constant_reward|form_only"),
    KL: ("kl", "nats", "kl"),
    HOLDOUT: (ACCURACY, "share", "holdout"),
    LENGTHS: ("completions/mean_length", "tokens, mean", "length"),
    "Groups without spread": ("frac_reward_zero_std", "{:.0%}", "no_spread"),
    "Cut at the limit": ("completions/clipped_ratio", "{:.0%}", "truncation"),
    "Gradient norm": ("grad_norm", "{:.3g}", "gradient"),
    "Entropy": ("entropy", "{:.2g}", "collapse"),
    _SCHEDULE: ("learning_rate", "{:.2g}", "no rule"),
    "Seconds per step": ("step_time", "{:.3g}", "no rule"),
    CALLS: ("tools/call_frequency", "{:.2f}", "tools"),
}
_CARDS = list(PANELS)[5:]
_MIDDLE = (KL, HOLDOUT, LENGTHS)
# Twelve columns; right of the single rewards there is room for their labels. All cards are on one axis: making axes takes time.
_STRIP = "cards"
_MOSAIC = [
    [TOTAL] * 6 + [EACH] * 4 + ["."] * 2,
    [title for title in _MIDDLE for _ in range(4)],
    [_STRIP] * 12,
]
_ROWS, _BETWEEN = (2.15, 1.35, 0.55), 0.87
# In inches: what is above the panels, what they take together, and below them; the foot grows by a line for each that it has.
_WIDTH, _HEAD, _DRAWN, _FOOT, _LINE = 10.0, 0.36, sum(_ROWS) + 2 * _BETWEEN, 0.49, 0.19
_LEFT, _RIGHT = 0.062, 0.975
_CARD = 0.69
"""Width of a card, in distances from one to the next."""
_TENTHS = RendererAgg(1, 1, 720)
"""Measures texts in tenths of points."""


def curve(rows: Sequence[Row], metric: str) -> tuple[pandas.Series, list[int]]:
    """The values of a metric by step, of the rows that have it, and the steps at which it was NaN or infinite."""
    known = [row for row in rows if row.get(metric) is not None]
    steps = numpy.array([row["step"] for row in known], dtype=int)
    values = numpy.array([row[metric] for row in known], dtype=float)
    is_number = numpy.isfinite(values)
    return pandas.Series(values[is_number], steps[is_number]), list(steps[~is_number])


def thinned(values: pandas.Series) -> pandas.Series:
    """The lowest and the highest of each of some 256 stretches, and the last: quick to draw, and no spike is lost."""
    if len(values) <= 2 * _STRETCHES:
        return values
    starts = numpy.arange(0, len(values), 1 + len(values) // _STRETCHES)
    ends = [end.reduceat(values.to_numpy(), starts) for end in (numpy.minimum, numpy.maximum)]
    steps = numpy.append(values.index[starts].repeat(2), values.index[-1])
    return pandas.Series(numpy.append(numpy.ravel(ends, "F"), values.iloc[-1]), steps)


def window_of(rows: Sequence[Row]) -> int:
    """Over how many rows the strong lines are a mean: few at the start, which a long mean would hide."""
    return max(1, min(10, len(rows) // 4), len(rows) // 50)


def training_figure(
    rows: Sequence[Row], weights: Mapping[str, float] | None = None, beta: float | None = None,
    reference: str = "the reference model", *, alerts: Sequence[Alert] = (),
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

    >>> figure = training_figure([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
    >>> figure.axes[0].get_title(loc="left")
    'Total reward'
    """
    marked, window = worst_first(sorted(alerts, key=lambda alert: -alert.step)), window_of(rows)
    figure = Figure(facecolor="white", label=describe(rows, reference))
    # Calls take the place of what the settings say, where there are tools.
    hidden = _SCHEDULE if any(PANELS[CALLS][0] in row for row in rows) else CALLS
    cards = [title for title in _CARDS if title != hidden]
    axes: dict[str, Axes] = figure.subplot_mosaic(_MOSAIC, height_ratios=_ROWS)
    _write_foot(figure, marked, window)
    axes[_STRIP].set(xlim=(0, len(cards) - 1 + _CARD), ylim=(0, 1))
    axes[_STRIP].set_axis_off()
    axes[_STRIP].bar(range(len(cards)), 1, _CARD, align="edge", color=_GROUND, zorder=0)
    first, last = (rows[0]["step"], rows[-1]["step"]) if rows else (1, 1)
    span = min(1, first), max(last, first + 1)
    for title, (_, unit, rules) in PANELS.items():
        axis = axes.get(title, axes[_STRIP])
        if title == hidden:
            continue
        if title in cards:
            edge = _draw_card(axis, cards.index(title), title, rows, window, span)
        else:
            axis.set_xlim(*span)
            edge = axis.get_xaxis_transform()
            unit = f"to {reference}, nats" if title == KL else unit
            _draw_panel(
                axis,
                title,
                rows,
                window,
                unit,
                f"not measured{' (beta = 0)' * (title == KL and beta == 0)}",
            )
        if title == EACH:
            _label_ends(axis, weights or {})
        _mark_alerts(axis, [alert for alert in marked if re.match(rules, alert.rule)], edge)
    return figure


def _frame(axis: Axes, title: str, unit: str) -> None:
    """Give a panel the look that all share: its title at the left, its unit at the right, lines behind the data, no frame."""
    # The unit beside the axis would stand in the numbers of a small KL.
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, y=1, pad=5)
    _note(axis, unit)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=8.5, length=2.5)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(4))


def _draw_panel(
    axis: Axes, title: str, rows: Sequence[Row], window: int, unit: str, missing: str
) -> None:
    """Draw the curves of a panel, or say why there are none; those of single rewards bear their names."""
    _frame(axis, title, unit)
    keys = [PANELS[title][0]]
    if title == EACH:
        logged = dict.fromkeys(itertools.chain.from_iterable(rows))
        keys = [key for key in logged if key.startswith("rewards/") and key.endswith("/mean")]
    if title == TOTAL:
        _draw_spread(axis, rows)
    if title == HOLDOUT:
        _draw_heldout(axis, rows)
    found = {key: curve(rows, key) for key in keys}
    no_numbers = sorted({step for _, steps in found.values() for step in steps})
    if broken := _mark_broken(axis, no_numbers, axis.get_xaxis_transform()):
        _note(axis, broken, _ALARM)
    curves = {key: values for key, (values, _) in found.items() if len(values)}
    if not curves:
        axis.set(xticks=[], yticks=[], facecolor=_GROUND)
        axis.spines[:].set_visible(False)
        _write(axis, 0.5, 0.5, broken or missing, 10.5, ha="center", transform=axis.transAxes)
        return
    first = 0 if title == EACH else list(PANELS).index(title)
    for i, (key, values) in enumerate(curves.items()):
        how = {"linestyle": _STYLES[i % len(_STYLES)], "gid": key}
        end = _line(axis, values, 1 if title == HOLDOUT else window, first + i, **how)
    if title == HOLDOUT:
        _note(axis, f"{end:.0%} correct", COLOURS[first], fontsize=10, fontweight="bold")
        axis.yaxis.set_major_formatter(PercentFormatter(1, 0))
        axis.set_ylim(0, 1.02)
    if title in _MIDDLE:
        axis.set_xlabel("optimizer step", color=INK, fontsize=8.5)
        if axis.dataLim.y0 >= 0:
            axis.set_ylim(bottom=0)


def _draw_spread(axis: Axes, rows: Sequence[Row]) -> None:
    """Add the band of one standard deviation to the total reward, where both were measured."""
    (reward, _), (half, _) = curve(rows, "reward"), curve(rows, "reward_std")
    width = 1 + len(reward) // _STRETCHES
    low, high = (
        (reward + sign * half).dropna().rolling(width).mean()[width - 1 :: width]
        for sign in (-1, 1)
    )
    if len(low):
        _note(axis, "weighted sum; band: one standard deviation")
        axis.fill_between(low.index, low, high, color=COLOURS[0], alpha=0.12, linewidth=0)


def _draw_heldout(axis: Axes, rows: Sequence[Row]) -> None:
    """Add to the held-out accuracy its 95 % interval, the format and the answers anywhere, with theirs."""
    measures = [
        (ACCURACY, "holdout", ""),
        ("holdout/in_format", "holdout/in_format", "in the format"),
    ]
    measures.append(("holdout/anywhere", "holdout/anywhere", "correct anywhere"))
    colours = dict(
        zip(
            (name for name, *_ in measures),
            (COLOURS[list(PANELS).index(HOLDOUT)], *_HELDOUT),
            strict=True,
        )
    )
    labelled = []
    for metric, prefix, label in measures:
        separator = "/" if metric == ACCURACY else "_"
        (low, _), (high, _) = (
            curve(rows, f"{prefix}{separator}low"),
            curve(rows, f"{prefix}{separator}high"),
        )
        if len(low) and len(low) == len(high):
            axis.fill_between(low.index, low, high, color=colours[metric], alpha=0.1, linewidth=0)
        values, _ = curve(rows, metric)
        if label and len(values):
            style = "--" if metric.endswith("in_format") else ":"
            axis.plot(thinned(values), color=colours[metric], linewidth=1.4, linestyle=style)
            labelled.append((label, values.iloc[-1], colours[metric]))
    for place, (label, share, colour) in enumerate(labelled):
        # In the corner that a rising curve leaves free.
        text = f"{label} {share:.0%}"
        _write(
            axis, 0.98, 0.08 + 0.13 * place, text, 8, colour, ha="right", transform=axis.transAxes
        )


def _draw_card(
    axis: Axes, left: int, title: str, rows: Sequence[Row], window: int, span: tuple[float, float]
) -> Transform:
    """Draw a small curve, with the number that it ends at above it, and below how high it was, or that it was no number.

    Returns:
        Steps and shares of the card's height -> where they are drawn.
    """
    metric, written, _ = PANELS[title]
    values, no_numbers = curve(rows, metric)
    card = Bbox.from_bounds(left, 0, _CARD, 1)
    edge = BboxTransform(Bbox.from_extents(span[0], 0, span[1], 1), card) + axis.transData
    broken = _mark_broken(axis, no_numbers, edge)
    _write(axis, left, 1.62, title, 8.5)
    if values.empty:
        _write(axis, left, 1.24, broken or "not measured", 9.5)
        return edge
    high, low = values.max(), min(0.0, values.min())
    top = 1.0 if "%" in written else high + 0.05 * (high - low) or 1.0
    drawn = BboxTransform(Bbox.from_extents(span[0], low, span[1], top), card) + axis.transData
    end = written.format(_line(axis, values, window, 0, linewidth=1.4, transform=drawn))
    _write(axis, left, 1.24, end, 11, INK, fontweight="bold")
    most = f"up to {written.format(high)}" * (written.format(high) != end)
    _write(axis, left, -0.26, broken or most, 7, _ALARM if broken else SOFT_INK)
    return edge


def _line(
    axis: Axes, values: pandas.Series, window: int, number: int, pale: float = 0.4, **style: Any
) -> float:
    """Draw values pale and their trailing mean strong, with dots where there are few; return the last mean."""
    means = values.rolling(window, 1).mean()
    style |= {"color": COLOURS[number % len(COLOURS)]}
    if window > 1:
        axis.plot(
            thinned(values),
            **style | {"alpha": pale, "linewidth": 0.7, "linestyle": "-", "gid": None},
        )
    dots = (
        {"marker": "o", "markersize": 4}
        if len(means) == 1 or (window == 1 and len(means) <= 60)
        else {}
    )
    axis.plot(thinned(means), **{"linewidth": 2, **dots, **style})
    return means.iloc[-1]


# Marks and words.


def _note(axis: Axes, text: str, colour: str = SOFT_INK, **options: Any) -> None:
    """Write at the right above a panel, in place of what stood there."""
    # A place of its own: to find one, matplotlib measures every text of the panel at each draw.
    axis.set_title(text, loc="right", color=colour, y=1, pad=5, **{"fontsize": 8, **options})


def _write(
    axis: Axes, x: float, y: float, text: str, size: float, colour: str = SOFT_INK, **options: Any
) -> None:
    axis.text(x, y, text, fontsize=size, color=colour, va="center", **options)


def _fitting(text: str, size: float, room: float) -> float:
    """The size at which a text takes at most this room, in points: a smaller one where it is wide."""
    # At few dots an inch letters are drawn up to 3 % wider.
    width = (
        0.103
        * _TENTHS.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]
    )
    return size * min(1, room / width)


def _label_ends(axis: Axes, weights: Mapping[str, float]) -> None:
    """Write names and weights at the right ends of the lines, moved apart where lines end close together."""
    named = sorted(
        (line for line in axis.lines if line.get_gid()), key=lambda line: line.get_ydata()[-1]
    )
    room, (bottom, top) = 72 * _WIDTH * (_RIGHT - axis.get_position().x1) - 5, axis.get_ylim()
    ends, apart = [line.get_ydata()[-1] for line in named], 0.085 * (top - bottom)
    places = list(itertools.accumulate(ends, lambda last, end: max(end, last + apart)))
    over = max([0.0, *(place - top for place in places)])  # back up from the lower edge
    for place, line in zip(places, named, strict=True):
        name = line.get_gid()[8:-5]
        label = _cut(name, 20) + (f" x{weights[name]:g}" if name in weights else "")
        how = {
            "xycoords": axis.get_yaxis_transform(),
            "textcoords": "offset points",
            "annotation_clip": False,
        }
        how |= {
            "va": "center",
            "fontsize": _fitting(label, 9, room),
            "color": line.get_color(),
            "parse_math": False,
        }
        axis.annotate(label, (1, place - over), (5, 0), **how)


def _mark(
    axis: Axes, at: Sequence[float], height: float, colour: str, shape: str, edge: Transform
) -> None:
    axis.plot(
        at, [height] * len(at), shape, color=colour, markersize=5, clip_on=False, transform=edge
    )


def _mark_broken(axis: Axes, steps: Sequence[int], edge: Transform) -> str:
    """Mark the first steps at which a value was no number, and say in words how many there are."""
    if not steps:
        return ""
    _mark(axis, steps[:3], 0.0, _ALARM, "x", edge)
    return f"NaN at {len(steps)} step{'s' * (len(steps) > 1)}"


def _mark_alerts(axis: Axes, about: Sequence[Alert], edge: Transform) -> None:
    """Mark the alerts that speak about a panel at its upper edge."""
    for kind, (colour, shape) in _MARKS.items():
        if at := [alert.step for alert in about if alert.kind == kind]:
            _mark(axis, at, 1.0, colour, shape, edge)


def _write_foot(figure: Figure, marked: Sequence[Alert], window: int) -> None:
    """Write the lines under the panels, and give the figure the height that they ask for."""
    # A run that somebody sends can name anything as its reference.
    said = [(_cut(figure.get_label(), 600), 10, INK)]
    for alert in marked[:3]:
        said.append(
            (
                f"{alert.standing}, step {alert.step}: {_cut(alert.message, 110)}",
                9,
                _MARKS[alert.kind][0],
            )
        )
    if window > 1:
        said.append(
            (
                f"Strong lines and bold numbers: mean of the last {window} steps; pale lines: each.",
                8.5,
                SOFT_INK,
            )
        )
    lines = [
        (line, *how)
        for text, *how in said
        for line in textwrap.wrap(text, 128, break_on_hyphens=False)
    ]
    height = _HEAD + _DRAWN + _FOOT + _LINE * len(lines)
    figure.set_size_inches(_WIDTH, height)
    # matplotlib counts what lies between in mean heights and widths.
    between = len(_ROWS) * _BETWEEN / sum(_ROWS)
    figure.subplots_adjust(
        _LEFT, 1 - (_HEAD + _DRAWN) / height, _RIGHT, 1 - _HEAD / height, 1.7, between
    )
    for i, (text, size, colour) in enumerate(lines):
        fitting = _fitting(text, size, 72 * _WIDTH * (_RIGHT - _LEFT))
        place = 1 - (_HEAD + _DRAWN + 0.36 + _LINE * i) / height
        figure.text(
            _LEFT, place, text, fontsize=fitting, color=colour, va="center", parse_math=False
        )


def _cut(text: str, limit: int) -> str:
    text = displayable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


# What becomes of a figure.


def png(figure: Figure, dpi: int = 100) -> bytes:
    """Render a figure without touching pyplot's state."""
    buffer = io.BytesIO()
    # 6, the default, is a tenth smaller, and takes a tenth longer with all that a redraw does.
    figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"compress_level": 1})
    return buffer.getvalue()


def drawn(figure: Figure, words: str) -> Html:
    """Return a figure as a part of what shows itself, with these words in its place for those who do not see it."""
    picture = base64.b64encode(png(figure)).decode()
    return Html(words, f'<img alt="{escaped(words)}" src="data:image/png;base64,{picture}">')


class LivePlot:
    """The training figure in a notebook cell, updated in place through one display handle. It never clears other output.

    The first rows and the last are always drawn; in between, a redraw waits until all of them take at most a share of the time.

    Args:
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL.
        reference: What it is measured to.
    """

    def __init__(
        self, weights: Mapping[str, float], beta: float, reference: str = "the reference model"
    ) -> None:
        self._told, self._output = (weights, beta, reference), CellOutput()
        self._next, self._is_drawn = 0.0, False

    def update(
        self, rows: Sequence[Row], *, alerts: Sequence[Alert] = (), is_last: bool = False
    ) -> bool:
        """Redraw if it is due; say whether it was.

        Args:
            rows: All rows so far.
            alerts: All alerts so far.
            is_last: Draw in any case.
        """
        now = time.perf_counter()
        if not rows or (not is_last and now < self._next):
            return False
        figure = training_figure(rows, *self._told, alerts=alerts)
        shown = {
            "image/png": base64.b64encode(png(figure)).decode(),
            "text/plain": figure.get_label(),
        }
        self._output.show(
            shown, metadata={"image/png": {"alt": f"Training curves. {figure.get_label()}"}}
        )
        took = time.perf_counter() - now
        # The first figure also pays for matplotlib's fonts; waiting for that would leave the cell bare.
        # A two-hundredth of the time for redraws: one of 0.3 s then comes every minute.
        self._next = now + took + (200 * took if self._is_drawn else 0)
        self._is_drawn = True
        return True


def overlay(runs: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw the reward, KL, held-out accuracy and length of several runs in one figure, a colour and a line style each.

    Args:
        runs: Name -> rows.
    """
    figure = Figure(figsize=(_WIDTH, 5.4), facecolor="white")
    for axis, title in zip(figure.subplots(2, 2).flat, (TOTAL, KL, HOLDOUT, LENGTHS), strict=True):
        metric, unit, _ = PANELS[title]
        _frame(axis, title, unit)
        for i, rows in enumerate(runs.values()):
            values, look = (
                curve(rows, metric)[0],
                {"linestyle": _STYLES[i // len(COLOURS) % len(_STYLES)]},
            )
            if len(values):
                _line(axis, values, 1 if title == HOLDOUT else window_of(rows), i, 0.25, **look)
            anywhere = curve(rows, "holdout/anywhere")[0] if title == HOLDOUT else ()
            if len(anywhere):
                _note(axis, "share; dotted: correct anywhere in the text")
                colour = COLOURS[i % len(COLOURS)]
                axis.plot(thinned(anywhere), color=colour, linewidth=1.4, linestyle=":")
    how = {"loc": "upper left", "bbox_to_anchor": (0.05, 1), "ncols": 2, "frameon": False}
    handles = []
    for i in range(len(runs)):
        style = _STYLES[i // len(COLOURS) % len(_STYLES)]
        handles.append(Line2D([], [], color=COLOURS[i % len(COLOURS)], linestyle=style))
    # Given as a list: matplotlib leaves a line out whose own label begins with an underscore.
    for text in figure.legend(handles, [_cut(name, 40) for name in runs], **how).get_texts():
        text.set_parse_math(False)  # a name is no formula
    figure.subplots_adjust(
        _LEFT, 0.06, _RIGHT, 0.9 - 0.045 * -(-len(runs) // 2), hspace=0.4, wspace=0.16
    )
    return figure
