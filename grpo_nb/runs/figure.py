"""The training figure, from rows: of one run, or of several over each other.

Three sizes for three ranks: what is trained for (the reward) is largest, then what tells learning from cheating (KL, held-out
score, length), then six small cards with what goes wrong first. A card or panel of something that was not measured says so.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
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
_INK, _SOFT, _GROUND = "#333333", "#666666", "#F6F6F6"
# Severity in colour and in shape.
_MARKS = {"critical": ("#C62828", "v"), "warning": ("#B26A00", "D"), "info": ("#546E7A", "o"),
          "withdrawn": ("#9E9E9E", "1")}  # fmt: skip
_ALARM = _MARKS["critical"][0]
_LISTED = 3
# Half a panel is some 450 pixels wide: with two points a bin there is about one for each.
BINS = 256
TOTAL, EACH, KL, HOLDOUT, LENGTHS = "Total reward", "Each reward", "KL", "Held-out accuracy", "Completion length"


class Measure(NamedTuple):
    """What a panel or a card shows."""

    metric: str
    unit: str = ""
    colour: int = 0
    written: Callable[[float], str] = "{:.3g}".format
    rules: tuple[str, ...] = ()
    """Beginnings of the names of the rules that speak about it: their alerts are marked here, too."""
    is_share: bool = False


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


PANELS = {
    TOTAL: Measure("reward", "weighted sum"),
    EACH: Measure("rewards/", "mean score, unweighted", rules=("constant_reward", "dominating_reward", "form_only")),
    KL: Measure("kl", "nats", 2, rules=("kl",)),
    HOLDOUT: Measure(ACCURACY, "", 3, _percent, ("holdout",)),
    LENGTHS: Measure("completions/mean_length", "tokens, mean", 5, rules=("length",)),
}
CARDS = {
    "Groups without spread": Measure("frac_reward_zero_std", "", 0, _percent, ("no_spread",), True),
    "Cut at the limit": Measure("completions/clipped_ratio", "", 0, _percent, ("truncation",), True),
    "Gradient norm": Measure("grad_norm", rules=("gradient",)),
    "Entropy": Measure("entropy", written="{:.2g}".format),
    "Learning rate": Measure("learning_rate", written="{:.2g}".format),
    "Seconds per step": Measure("step_time", rules=("slow_steps",)),
}
# Twelve columns; right of the single rewards there is room for their labels.
_MOSAIC = [
    [TOTAL] * 6 + [EACH] * 4 + ["."] * 2,
    [KL] * 4 + [HOLDOUT] * 4 + [LENGTHS] * 4,
    [title for title in CARDS for _ in range(2)],
]
_ROWS, _BETWEEN = (2.15, 1.35, 0.55), 0.87
_WIDTH, _HEAD, _FOOT, _LINE = 10.0, 0.36, 0.49, 0.19  # inches; the foot grows by a line for each that it has
_DRAWN = sum(_ROWS) + 2 * _BETWEEN
_LEFT, _RIGHT = 0.062, 0.975
_TENTHS = RendererAgg(1, 1, 720)
"""Measures texts in tenths of points."""


class Curve(NamedTuple):
    """The numbers of a metric over a run."""

    steps: numpy.ndarray
    values: numpy.ndarray
    broken: list[float]
    """The steps whose value was NaN or infinite."""

    @classmethod
    def of(cls, rows: Sequence[Row], metric: str) -> Curve:
        """Read a metric off rows that may lack it."""
        known = [(row["step"], row[metric]) for row in rows if isinstance(row.get(metric), (int, float))]
        finite = [(step, value) for step, value in known if math.isfinite(value)]
        steps, values = numpy.array(finite, dtype=float).reshape(-1, 2).T
        return cls(steps, values, [step for step, value in known if not math.isfinite(value)])

    def means(self, window: int) -> numpy.ndarray:
        """At each step the mean of the last `window` values."""
        sums, ends = numpy.concatenate([[0.0], numpy.cumsum(self.values)]), numpy.arange(1, len(self.values) + 1)
        begins = numpy.maximum(0, ends - window)
        return (sums[ends] - sums[begins]) / (ends - begins)


def extremes(values: numpy.ndarray) -> numpy.ndarray:
    """Where the lowest and the highest of each of at most `BINS` stretches are: what is drawn is bounded, and no spike lost.

    >>> len(extremes(numpy.arange(100_000.0))) <= 2 * BINS, list(extremes(numpy.array([3.0, 1.0, 2.0])))
    (True, [0, 1, 2])
    """
    width = -(-len(values) // BINS)
    stretches = numpy.pad(values, (0, -len(values) % width), mode="edge").reshape(-1, width)
    begins = numpy.arange(0, len(values), width)
    return numpy.unique([begins + stretches.argmin(axis=1), begins + stretches.argmax(axis=1)])


def window_of(rows: Sequence[Row]) -> int:
    """Over how many rows the strong lines are a mean: few at the start, which a long mean would hide."""
    return max(1, min(10, len(rows) // 4), len(rows) // 50)


def training_figure(
    rows: Sequence[Row],
    weights: Mapping[str, float] | None = None,
    beta: float | None = None,
    reference: str = "the reference model",
    *,
    alerts: Sequence[Alert] = (),
    chosen: float | None = None,
) -> Figure:
    """Draw reward with spread, each reward, KL, held-out score and length over the steps, and six signals of trouble.

    Pale and thin are the logged values, of a long run the extremes of equally long stretches; strong is their trailing mean.

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
    figure = Figure(facecolor="white")
    axes: dict[str, Axes] = figure.subplot_mosaic(_MOSAIC, height_ratios=_ROWS)
    _write_foot(figure, describe(rows, reference), marked, window)
    kl_unit, kl_missing = f"to {reference}, nats", f"not measured{' (beta = 0)' * (beta == 0)}"
    _draw_total(axes[TOTAL], rows, window)
    _draw_each(axes[EACH], rows, window, weights or {})
    _draw_panel(axes[KL], KL, Curve.of(rows, "kl"), window, kl_unit, kl_missing)
    _draw_panel(axes[LENGTHS], LENGTHS, Curve.of(rows, PANELS[LENGTHS].metric), window, PANELS[LENGTHS].unit)
    _draw_holdout(axes[HOLDOUT], rows)
    for title, measure in CARDS.items():
        _draw_card(axes[title], title, measure, Curve.of(rows, measure.metric), window)
    first, last = (rows[0]["step"], rows[-1]["step"]) if rows else (1, 1)
    for axis in axes.values():
        axis.set_xlim(min(1, first), max(last, first + 1))
        if chosen is not None:
            axis.axvline(chosen, color=_INK, linewidth=1.1, gid="chosen")
    _mark_alerts(axes, marked)
    return figure


# Panels.


def _frame(axis: Axes, title: str, unit: str, size: float = 10) -> None:
    """Give a panel the look that all share: its title at the left, its unit at the right, lines behind the data, no frame."""
    # Places of their own for titles and labels: to find them, matplotlib measures every text of the panel at each draw.
    # The unit beside the axis would stand in the numbers of a small KL.
    axis.set_title(title, loc="left", fontsize=size, fontweight="bold", color=_INK, y=1, pad=5)
    axis.set_title(unit, loc="right", fontsize=8, color=_SOFT, y=1, pad=5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.grid(axis="y", color="#EEEEEE")
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=8.5, length=2.5)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(4))


def _is_missing(axis: Axes, curves: Sequence[Curve], why: str = "not measured") -> bool:
    """Say in a panel that there is nothing to draw, and which values are no numbers."""
    broken = sorted({step for curve in curves for step in curve.broken})
    is_drawn = any(len(curve.values) for curve in curves)
    if broken:
        why = _mark_broken(axis, broken)
        axis.set_title(why, loc="right", fontsize=8, color=_ALARM, y=1, pad=5)
    if not is_drawn:
        axis.set(xticks=[], yticks=[], facecolor=_GROUND)
        axis.spines[:].set_visible(False)
        _write(axis, 0.5, 0.5, why, 10.5, ha="center", va="center")
    return not is_drawn


def _draw_panel(axis: Axes, title: str, curve: Curve, window: int, unit: str, why: str = "not measured") -> None:
    _frame(axis, title, unit)
    if not _is_missing(axis, [curve], why):
        _line(axis, curve, window, PANELS[title].colour)
        _set_limits(axis, min(0.0, *curve.values), max(curve.values))
        _label_steps(axis)


def _draw_total(axis: Axes, rows: Sequence[Row], window: int) -> None:
    reward, spread = Curve.of(rows, "reward"), Curve.of(rows, "reward_std")
    _, at, of_spread = numpy.intersect1d(reward.steps, spread.steps, return_indices=True)
    has_spread = len(at) > 0
    _frame(axis, TOTAL, f"weighted sum; {'band: one standard deviation' if has_spread else 'spread not measured'}", 11)
    if _is_missing(axis, [reward]):
        return
    low, high = min(reward.values), max(reward.values)
    if has_spread:
        width = -(-len(at) // BINS)
        picked = slice(width - 1, None, width)
        means, half = (
            Curve(at, values, []).means(width)[picked] for values in (reward.values[at], spread.values[of_spread])
        )
        axis.fill_between(
            reward.steps[at][picked], means - half, means + half, color=COLOURS[0], alpha=0.12, linewidth=0
        )
        low, high = min(low, *(means - half)), max(high, *(means + half))
    _line(axis, reward, window, 0)
    _set_limits(axis, low, high)


def _draw_each(axis: Axes, rows: Sequence[Row], window: int, weights: Mapping[str, float]) -> None:
    _frame(axis, EACH, PANELS[EACH].unit, 11)
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("rewards/") and key.endswith("/mean"))
    curves = {key[8:-5]: Curve.of(rows, key) for key in keys}
    if _is_missing(axis, list(curves.values())):
        return
    ends, room = [], 72 * _WIDTH * (_RIGHT - axis.get_position().x1) - 5
    drawn = {name: curve for name, curve in curves.items() if len(curve.values)}
    for i, (name, curve) in enumerate(drawn.items()):
        weight = f" x{weights[name]:g}" if name in weights else ""
        labels = [f"{_cut(name, limit)}{weight}" for limit in range(19, 3, -1)]
        end = _line(axis, curve, window, i, linestyle=_STYLES[i % len(_STYLES)])
        label = next((label for label in labels if _width(label, 9) < room), labels[-1])
        ends.append((end, label, COLOURS[i % len(COLOURS)]))
    _set_limits(axis, min(min(c.values) for c in drawn.values()), max(max(c.values) for c in drawn.values()))
    _label_ends(axis, ends)


def _draw_holdout(axis: Axes, rows: Sequence[Row]) -> None:
    curve, measure = Curve.of(rows, ACCURACY), PANELS[HOLDOUT]
    _frame(axis, HOLDOUT, "")
    if _is_missing(axis, [curve], "not measured during training"):
        return
    colour, few = COLOURS[measure.colour], "o" if len(curve.values) <= 60 else None
    last = _line(axis, curve, 1, measure.colour, marker=few, markersize=4)
    axis.set_title(_percent(last), loc="right", fontsize=10, color=colour, fontweight="bold", y=1, pad=5)
    axis.yaxis.set_major_formatter(lambda value, _: _percent(value))
    axis.set_ylim(0, 1.02)
    best = int(curve.values.argmax())
    step, value = curve.steps[best], curve.values[best]
    row = next(row for row in rows if row["step"] == step)
    if {LOW, HIGH} <= set(row):
        axis.plot([step, step], [row[LOW], row[HIGH]], color=colour, linewidth=1.2, alpha=0.6)
    axis.plot([step], [value], "*", color=colour, markersize=10, gid="best", clip_on=False)
    _label_steps(axis, f"; star: best, {_percent(value)} at step {step:.0f}" if len(curve.values) > 1 else "")


def _draw_card(axis: Axes, title: str, measure: Measure, curve: Curve, window: int) -> None:
    axis.spines[:].set_visible(False)
    axis.xaxis.set_major_locator(NullLocator())
    axis.yaxis.set_major_locator(NullLocator())
    axis.patch.set_facecolor(_GROUND)
    _write(axis, 0, 1.62, title, 8.5, va="center")
    broken = _mark_broken(axis, curve.broken)
    if not len(curve.values):
        _write(axis, 0, 1.24, broken or "not measured", 9.5, va="center")
        return
    shown, high = measure.written, max(curve.values)
    end = _line(axis, curve, window, measure.colour, linewidth=1.4)
    _set_limits(axis, min(0.0, *curve.values), 1.0 if measure.is_share else high)
    _write(axis, 0, 1.24, shown(end), 11, _INK, fontweight="bold", va="center")
    if broken:
        _write(axis, 0, -0.14, broken, 7, _ALARM, va="top")
    elif not measure.is_share and shown(high) != shown(end):
        _write(axis, 0, -0.14, f"up to {shown(high)}", 7, va="top")


def _line(axis: Axes, curve: Curve, window: int, number: int, *, pale: float = 0.4, **style: Any) -> float:
    """Draw values pale and their trailing mean strong, with a dot where there is but one; return the last mean."""
    colour, means = COLOURS[number % len(COLOURS)], curve.means(window)
    if window > 1:
        at = extremes(curve.values)
        axis.plot(curve.steps[at], curve.values[at], color=colour, alpha=pale, linewidth=0.7)
    at = numpy.union1d(extremes(means), [len(means) - 1])
    dot = "o" if len(means) == 1 else None
    axis.plot(curve.steps[at], means[at], color=colour, **{"linewidth": 2, "marker": dot, **style})
    return float(means[-1])


# Marks and words.


def _write(axis: Axes, x: float, y: float, text: str, size: float, colour: str = _SOFT, **options: Any) -> None:
    """Write at a place that is given in shares of the panel."""
    axis.text(x, y, text, transform=axis.transAxes, fontsize=size, color=colour, **options)


def _note(axis: Axes, at: tuple[float, float], text: str, offset: tuple[float, float], **options: Any) -> None:
    """Write a text of the user's some points beside a place whose one coordinate is a value, the other 0 to 1."""
    axis.annotate(text, at, xytext=offset, textcoords="offset points", parse_math=False, va="center", **options)


def _label_steps(axis: Axes, more: str = "") -> None:
    axis.set_xlabel(f"optimizer step{more}", color=_INK, fontsize=8.5)
    axis.xaxis.set_label_coords(0.5, -0.18)


def _label_ends(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names (end of the line, name, colour) at the right, moved apart where lines end close together."""
    bottom, top = axis.get_ylim()
    ends.sort()
    apart = 0.085 * (top - bottom)
    places = list(itertools.accumulate((end for end, *_ in ends), lambda last, end: max(end, last + apart)))
    over = max(0.0, places[-1] - top)  # back up from the lower edge
    for place, (_, label, colour) in zip(places, ends, strict=True):
        how = {"xycoords": axis.get_yaxis_transform(), "annotation_clip": False}
        _note(axis, (1.0, place - over), label, (5, 0), color=colour, fontsize=9, **how)


def _mark(axis: Axes, at: Sequence[float], height: float, colour: str, shape: str, size: float) -> None:
    edge = axis.get_xaxis_transform()
    axis.plot(at, [height] * len(at), shape, color=colour, markersize=size, clip_on=False, transform=edge)


def _mark_broken(axis: Axes, broken: Sequence[float]) -> str:
    """Mark the first values that are no numbers, and say in words how many there are."""
    if not broken:
        return ""
    _mark(axis, broken[:3], 0.0, _ALARM, "x", 6)
    return f"NaN at {len(broken)} step{'s' * (len(broken) > 1)}"


def _mark_alerts(axes: Mapping[str, Axes], marked: Sequence[Alert]) -> None:
    measures = {**PANELS, **CARDS}
    # A hundred marks on one edge tell no more; the most severe ones come first.
    for number, alert in enumerate(marked[:100], 1):
        colour, shape = _MARKS[alert.kind]
        about = [title for title, measure in measures.items() if measure.rules and alert.rule.startswith(measure.rules)]
        for title in (TOTAL, *about):
            _mark(axes[title], [alert.step], 1.0, colour, shape, 4.5 if title in CARDS else 6)
            if number <= _LISTED and title in PANELS:
                _number_alert(axes[title], number, alert.step, colour)


def _number_alert(axis: Axes, number: int, step: float, colour: str) -> None:
    """Draw a line at an alert's step with its number, each in a row of its own: side by side, 1 and 2 would read as 12."""
    first, last = axis.get_xlim()
    is_late = step > first + 0.93 * (last - first)
    axis.axvline(step, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.9)
    how = {"xycoords": axis.get_xaxis_transform(), "ha": "right" if is_late else "left", "fontweight": "bold"}
    _note(axis, (step, 1), str(number), (-5 if is_late else 5, 4 - 11 * number), color=colour, fontsize=8.5, **how)


def _write_foot(figure: Figure, sentence: str, marked: Sequence[Alert], window: int) -> None:
    """Write the lines under the panels, and give the figure the height that they ask for."""
    said = [(sentence, 10, _INK)]
    for number, alert in enumerate(marked[:_LISTED], 1):
        told = f"{number}  {alert.standing}, step {alert.step}: {_cut(alert.message, 110)}"
        said.append((told, 9, _MARKS[alert.kind][0]))
    if len(marked) > _LISTED:
        said.append((f"and {len(marked) - _LISTED} more in run.alerts", 8.5, _SOFT))
    if window > 1:
        told = f"Strong lines and bold numbers are the mean of the last {window} steps, pale lines each step or its extremes."
        said.append((told, 8.5, _SOFT))
    lines = [(line, size, colour) for text, size, colour in said for line in _wrapped(text, size)]
    height, top = _HEAD + _DRAWN + _FOOT + _LINE * len(lines), _HEAD + _DRAWN + 0.36
    figure.set_size_inches(_WIDTH, height)
    # matplotlib counts what lies between in mean heights and widths.
    between = len(_ROWS) * _BETWEEN / sum(_ROWS)
    figure.subplots_adjust(_LEFT, 1 - (_HEAD + _DRAWN) / height, _RIGHT, 1 - _HEAD / height, 1.7, between)
    for i, (text, size, colour) in enumerate(lines):
        place = (_LEFT, 1 - (top + _LINE * i) / height)
        figure.text(*place, text, fontsize=size, color=colour, va="center", parse_math=False)


def _set_limits(axis: Axes, low: float, high: float) -> None:
    """Set limits ourselves: autoscaling would look at all artists again, the marks included."""
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.5
    axis.set_ylim(low if low == 0 else low - room, high + room)


def _cut(text: str, limit: int) -> str:
    text = displayable(" ".join(text.split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _width(text: str, size: float) -> float:
    """Of a text, in points: what it takes at most, for at few dots an inch letters are drawn up to 3 % wider."""
    return 0.103 * _TENTHS.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


def _wrapped(text: str, size: float) -> list[str]:
    """A line of the foot in as many lines as the width of the figure asks for."""
    lines = [""]
    for piece in re.findall(r"\s*\S{1,40}", text):
        if lines[-1] and _width(lines[-1] + piece, size) > 72 * _WIDTH * (_RIGHT - _LEFT):
            lines.append("")
            piece = piece.lstrip()
        lines[-1] += piece
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
        measure = PANELS[title]
        _frame(axis, title, measure.unit)
        curves = {name: Curve.of(rows, measure.metric) for name, rows in runs.items()}
        if _is_missing(axis, list(curves.values())):
            continue
        for i, (name, curve) in enumerate(curves.items()):
            style = {"linestyle": _STYLES[i // len(COLOURS) % len(_STYLES)], "markersize": 4, "label": name}
            if len(curve.values):
                window = 1 if title == HOLDOUT else window_of(runs[name])
                _line(axis, curve, window, i, pale=0.25, marker="o" if len(curve.values) <= 11 else None, **style)
                named[name] = axis.lines[-1]
        if title == HOLDOUT:
            axis.yaxis.set_major_formatter(lambda value, _: _percent(value))
            axis.set_ylim(0, 1.02)
    labels = [_cut(name, 40) for name in named]
    columns = max(1, min(4, len(labels), int(650 // (45 + max((_width(label, 10) for label in labels), default=0)))))
    place = {"loc": "upper left", "bbox_to_anchor": (0.05, 1), "ncols": columns, "frameon": False}
    figure.legend(list(named.values()), labels, **place)
    figure.subplots_adjust(0.062, 0.06, 0.985, 0.9 - 0.045 * -(-len(labels) // columns), hspace=0.4, wspace=0.16)
    return figure
