"""The training figure: its panels, drawn from `grpo_nb.runs.curves.Curves`, and drawn again on the same axes.

Three sizes for three ranks: what is trained for (the reward) is largest, then what tells learning from cheating (KL, held-out
score, length), then six small cards with what goes wrong first. A card or panel of something that was not measured says so.
"""

from __future__ import annotations

import io
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator, NullLocator

from grpo_nb.core.tables import Html, escaped
from grpo_nb.core.words import displayable
from grpo_nb.runs.alert import Alert, worst_first
from grpo_nb.runs.best import ACCURACY, HIGH, LOW
from grpo_nb.runs.curves import LENGTH, SPREAD_HIGH, SPREAD_LOW, Curve, Curves

# Okabe and Ito's palette: told apart with any colour vision, and with the line styles also in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_INK, _SOFT, _GRID, _CARD_GROUND = "#333333", "#666666", "#EEEEEE", "#F6F6F6"
# Severity in colour and in shape.
_MARKS = {"critical": ("#C62828", "v"), "warning": ("#B26A00", "D"), "info": ("#546E7A", "o"),
          "withdrawn": ("#9E9E9E", "1")}  # fmt: skip
_ALARM = _MARKS["critical"][0]
_LISTED = 3
TOTAL, EACH, KL, HOLDOUT, LENGTHS = (
    "Total reward", "Each reward", "KL to the starting model", "Held-out accuracy", "Completion length",
)  # fmt: skip
_UNITS = {
    TOTAL: "weighted sum", EACH: "mean score, unweighted", KL: "nats", HOLDOUT: "", LENGTHS: "tokens, mean",
}  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


# Metric -> its card's title, and how its value is written.
_CARDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "frac_reward_zero_std": ("Groups without spread", _percent),
    "completions/clipped_ratio": ("Cut at the limit", _percent),
    "grad_norm": ("Gradient norm", "{:.3g}".format),
    "entropy": ("Entropy", "{:.2g}".format),
    "learning_rate": ("Learning rate", "{:.2g}".format),
    "step_time": ("Seconds per step", "{:.3g}".format),
}
_SHARES = ("frac_reward_zero_std", "completions/clipped_ratio")
# Twelve columns; right of the single rewards there is room for their labels.
_MOSAIC = [
    [TOTAL] * 6 + [EACH] * 4 + ["."] * 2,
    [KL] * 4 + [HOLDOUT] * 4 + [LENGTHS] * 4,
    [key for key in _CARDS for _ in range(2)],
]
_ROWS, _BETWEEN = (2.15, 1.35, 0.55), 0.87
_WIDTH, _HEAD, _FOOT, _LINE = 10.0, 0.36, 0.72, 0.19  # inches; the foot has two lines, and more where more is said
_DRAWN = sum(_ROWS) + 2 * _BETWEEN
_LEFT, _RIGHT = 0.062, 0.985
_TENTHS = RendererAgg(1, 1, 720)
"""Measures texts in tenths of points."""
_RULE_PLACES = {
    "kl": KL, "holdout": HOLDOUT, "length": LENGTHS, "constant_reward": EACH, "dominating_reward": EACH,
    "form_only": EACH, "truncation": "completions/clipped_ratio", "gradient": "grad_norm",
    "no_spread": "frac_reward_zero_std", "slow_steps": "step_time",
}  # fmt: skip
"""Where an alert is marked besides the reward, by the beginning of its rule's name."""


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


def _said_of_broken(curve: Curve) -> str:
    return f"NaN at {len(curve.broken)} step{'s' * (len(curve.broken) > 1)}"


class TrainingFigure:
    """The figure, made once and drawn again as often as there is something new: making axes costs more than drawing on them.

    Args:
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL; with 0 its panel says that KL is not measured.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, beta: float | None = None) -> None:
        self.of(weights, beta)
        self.figure = Figure(figsize=(_WIDTH, _DRAWN), facecolor="white")
        self._axes: dict[str, Axes] = self.figure.subplot_mosaic(_MOSAIC, height_ratios=_ROWS)
        self.figure.subplots_adjust(_LEFT, right=_RIGHT, wspace=1.7)  # in mean widths
        for title, axis in self._axes.items():
            if title in _CARDS:
                _make_card(axis)
            else:
                _make_panel(axis, title)

    def of(self, weights: Mapping[str, float] | None, beta: float | None) -> TrainingFigure:
        """The same axes for another run, which `draw` draws in place of the one before."""
        self._weights, self._beta = dict(weights or {}), beta
        return self

    def draw(self, curves: Curves, alerts: Sequence[Alert] = (), *, chosen: float | None = None) -> Figure:
        """Draw what is known now in place of what was drawn before; what is drawn is bounded, whatever the run's length.

        Args:
            curves: What was logged.
            alerts: Marked where they came; the most severe, and among equals the latest, are written below.
            chosen: A step that a line marks in every panel.
        """
        axes = self._axes.values()
        before = [artist for axis in axes for artist in (*axis.lines, *axis.collections, *axis.texts)]
        for artist in (*self.figure.texts, *before):
            artist.remove()
        marked = worst_first(sorted(alerts, key=lambda alert: -alert.step))
        for key, (title, _) in _CARDS.items():
            _write(self._axes[key], 0, 1.62, title, 8.5, va="center")
        if curves.rows:
            self._draw_total(curves)
            self._draw_each(curves)
            self._draw_one(KL, curves["kl"], curves.window, 2, f"not measured{' (beta = 0)' * (self._beta == 0)}")
            self._draw_holdout(curves)
            self._draw_one(LENGTHS, curves[LENGTH], curves.window, 5)
            for key in _CARDS:
                self._draw_card(key, curves[key], curves.window)
            for axis in axes:
                axis.set_xlim(min(1, curves.first), max(curves.last, curves.first + 1))
                if chosen is not None:
                    axis.axvline(chosen, color=_INK, linewidth=1.1, gid="chosen")
            self._mark_alerts(marked)
        self._write_foot(curves, marked)
        return self.figure

    # Panels.

    def _is_missing(self, panel: str, curve: Curve, why: str = "not measured") -> bool:
        """Say in the panel that there is nothing to draw, or which of its values are no numbers."""
        axis, is_drawn = self._axes[panel], len(curve) > 0
        axis.yaxis.set_visible(is_drawn)
        axis.xaxis.set_visible(is_drawn)
        axis.spines[["left", "bottom"]].set_visible(is_drawn)
        axis.patch.set_facecolor("white" if is_drawn else _CARD_GROUND)
        if curve.broken:
            _mark_broken(axis, curve)
            _write(axis, 0.01, 0.03, _said_of_broken(curve), 8, _ALARM)
        elif not is_drawn:
            _write(axis, 0.5, 0.5, why, 10.5, ha="center", va="center")
        return not is_drawn

    def _draw_total(self, curves: Curves) -> None:
        axis, reward = self._axes[TOTAL], curves["reward"]
        if self._is_missing(TOTAL, reward):
            return
        low, high = reward.limits
        has_spread = len(curves[SPREAD_LOW]) > 0
        if has_spread:
            xs, lows = curves[SPREAD_LOW].means(1)
            _, highs = curves[SPREAD_HIGH].means(1)
            axis.fill_between(xs, lows, highs, color=COLOURS[0], alpha=0.12, linewidth=0)
            low, high = min(low, *lows), max(high, *highs)
        _line(axis, reward, curves.window, 0)
        said = "band: one standard deviation" if has_spread else "spread not measured"
        _write(axis, 0.99, 0.03, said, 8, ha="right")
        _set_limits(axis, low, high)

    def _draw_each(self, curves: Curves) -> None:
        axis = self._axes[EACH]
        known = {name: curve for name, curve in curves.rewards.items() if len(curve)}
        broken = next((curve for curve in curves.rewards.values() if curve.broken), Curve())
        if self._is_missing(EACH, next(iter(known.values()), broken)):
            return
        _mark_broken(axis, broken)
        lows, highs = zip(*(curve.limits for curve in known.values()), strict=True)
        _set_limits(axis, min(lows), max(highs))
        ends, room = [], 72 * _WIDTH * (_RIGHT - axis.get_position().x1) - 5
        for i, (name, curve) in enumerate(known.items()):
            weight = f" x{self._weights[name]:g}" if name in self._weights else ""
            end = _line(axis, curve, curves.window, i, linestyle=_STYLES[i % len(_STYLES)])
            labels = (f"{_cut(name, limit)}{weight}" for limit in range(19, 3, -1))
            ends.append((end, next(label for label in labels if _width(label, 9) < room), COLOURS[i % len(COLOURS)]))
        _label_ends(axis, ends)

    def _draw_one(self, panel: str, curve: Curve, window: int, colour: int, why: str = "not measured") -> None:
        if not self._is_missing(panel, curve, why):
            _line(self._axes[panel], curve, window, colour)
            _set_limits(self._axes[panel], *curve.limits, is_from_zero=True)

    def _draw_holdout(self, curves: Curves) -> None:
        axis, curve = self._axes[HOLDOUT], curves[ACCURACY]
        if self._is_missing(HOLDOUT, curve, "not measured during training"):
            return
        last = _line(axis, curve, 1, 3, scale=100, dots=60, markersize=4)
        _write(axis, 1, 1.055, _percent(last), 10, COLOURS[3], fontweight="bold", ha="right")
        axis.set_ylim(0, 102)
        if len(curve) < 2:
            return
        step, value = curve.highest
        ends = [100 * curves[name].at(step) for name in (LOW, HIGH)]
        axis.plot([step, step], ends, color=COLOURS[3], linewidth=1.2, alpha=0.6)
        axis.plot([step], [100 * value], "*", color=COLOURS[3], markersize=10, gid="best", clip_on=False)
        _write(axis, 0.99, 0.03, f"star: best, {_percent(value)} at step {step:.0f}", 8, ha="right")

    def _draw_card(self, key: str, curve: Curve, window: int) -> None:
        axis, (_, shown) = self._axes[key], _CARDS[key]
        _mark_broken(axis, curve)
        if not len(curve):
            said = _said_of_broken(curve) if curve.broken else "not measured"
            _write(axis, 0, 1.24, said, 9.5, va="center")
            return
        end = _line(axis, curve, window, 0, linewidth=1.4)
        low, high = (0.0, 1.0) if key in _SHARES else curve.limits
        _set_limits(axis, low, high, is_from_zero=True)
        _write(axis, 0, 1.24, shown(end), 11, _INK, fontweight="bold", va="center")
        if curve.broken:
            _write(axis, 1, 1.22, _said_of_broken(curve), 7, _ALARM, ha="right", va="center")
        elif key not in _SHARES and shown(high) != shown(end):
            _write(axis, 1, 1.22, f"up to {shown(high)}", 7, ha="right", va="center")

    # Marks and words.

    def _mark_alerts(self, marked: Sequence[Alert]) -> None:
        places: dict[tuple[str, str], list[float]] = defaultdict(list)
        numbered: dict[str, list[tuple[float, int]]] = defaultdict(list)
        # A hundred marks on one edge tell no more; the most severe ones come first.
        for number, alert in enumerate(marked[:100], 1):
            about = next((place for start, place in _RULE_PLACES.items() if alert.rule.startswith(start)), TOTAL)
            for title in {TOTAL, about}:
                places[title, alert.kind].append(alert.step)
                if number <= _LISTED and title not in _CARDS:
                    _number_alert(self._axes[title], number, alert, numbered[title])
        for (title, kind), steps in places.items():
            _mark(self._axes[title], steps, 1.0, *_MARKS[kind], 4.5 if title in _CARDS else 6)

    def _write_foot(self, curves: Curves, marked: Sequence[Alert]) -> None:
        said = [(curves.sentence, 10, _INK)]
        for number, alert in enumerate(marked[:_LISTED], 1):
            told = f"{number}  {alert.standing}, step {alert.step}: {_cut(alert.message, 110)}"
            said.append((told, 9, _MARKS[alert.kind][0]))
        if len(marked) > _LISTED:
            said.append((f"and {len(marked) - _LISTED} more in run.alerts", 8.5, _SOFT))
        lines = [(line, size, colour) for text, size, colour in said for line in _wrapped(text, size)]
        height, top = _HEAD + _DRAWN + _FOOT + _LINE * (len(lines) - 1), _HEAD + _DRAWN + 0.27
        self.figure.set_figheight(height)
        # matplotlib counts what lies between in mean heights.
        between = len(_ROWS) * _BETWEEN / sum(_ROWS)
        self.figure.subplots_adjust(bottom=1 - (_HEAD + _DRAWN) / height, top=1 - _HEAD / height, hspace=between)
        if curves.window > 1:
            width = max(curves[key].width for key in ("reward", "kl"))
            pale = "each step" if width == 1 else f"the extremes of every {width} steps"
            told = f"Strong lines and bold numbers are the mean of the last {curves.window} steps, pale lines {pale}."
            lines.append((told, 8.5, _SOFT))
        for i, (text, size, colour) in enumerate(lines):
            place = (_LEFT, 1 - (top + _LINE * i) / height)
            self.figure.text(*place, text, fontsize=size, color=colour, va="center", parse_math=False)


def _line(
    axis: Axes,
    curve: Curve,
    window: int,
    number: int,
    *,
    scale: float = 1,
    pale: float = 0.4,
    dots: int = 1,
    **style: Any,
) -> float:
    """Draw values pale and their trailing mean strong, with a dot at each where there are few; return the last mean."""
    colour, (at, means) = COLOURS[number % len(COLOURS)], curve.means(window)
    if window > 1:
        steps, values = curve.points()
        axis.plot(steps, scale * values, color=colour, alpha=pale, linewidth=0.7)
    marker = "o" if len(at) <= dots else None
    axis.plot(at, scale * means, color=colour, marker=marker, **{"linewidth": 2, **style})
    return means[-1]


def _write(axis: Axes, x: float, y: float, text: str, size: float, colour: str = _SOFT, **options: Any) -> None:
    """Write at a place that is given in shares of the panel."""
    axis.text(x, y, text, transform=axis.transAxes, fontsize=size, color=colour, **options)


def _note(axis: Axes, at: tuple[float, float], text: str, offset: tuple[float, float], **options: Any) -> None:
    """Write a text of the user's some points beside a place whose one coordinate is a value, the other 0 to 1."""
    axis.annotate(text, at, xytext=offset, textcoords="offset points", parse_math=False, **options)


def _label_ends(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names (end of the line, name, colour) at the right, moved apart where lines end close together."""
    bottom, top = axis.get_ylim()
    ends.sort()
    apart = 0.085 * (top - bottom)
    places = list(itertools.accumulate((end for end, *_ in ends), lambda last, end: max(end, last + apart)))
    over = max(0.0, places[-1] - top)  # back up from the lower edge
    right = {"xycoords": axis.get_yaxis_transform(), "va": "center", "annotation_clip": False}
    for place, (_, label, colour) in zip(places, ends, strict=True):
        _note(axis, (1.0, place - over), label, (5, 0), color=colour, fontsize=9, **right)


def _mark(axis: Axes, at: Sequence[float], height: float, colour: str, shape: str, size: float) -> None:
    edge = axis.get_xaxis_transform()
    axis.plot(at, [height] * len(at), shape, color=colour, markersize=size, clip_on=False, transform=edge)


def _mark_broken(axis: Axes, curve: Curve) -> None:
    if curve.broken:
        _mark(axis, curve.broken[:3], 0.0, _ALARM, "x", 6)


def _number_alert(axis: Axes, number: int, alert: Alert, others: list[tuple[float, int]]) -> None:
    at, (colour, _) = alert.step, _MARKS[alert.kind]
    first, last = axis.get_xlim()
    is_late = at > first + 0.93 * (last - first)
    # Side by side, 1 and 2 would read as 12: a number goes below those of its neighbours.
    near = {row for place, row in others if abs(place - at) < 0.08 * (last - first)}
    row = next(row for row in itertools.count() if row not in near)
    others.append((at, row))
    axis.axvline(at, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.9)
    edge = {"xycoords": axis.get_xaxis_transform(), "va": "center", "ha": "right" if is_late else "left"}
    offset = (-5 if is_late else 5, -7 - 11 * row)
    _note(axis, (at, 1), str(number), offset, color=colour, fontsize=8.5, fontweight="bold", **edge)


def _prepare(axis: Axes, title: str, unit: str = "", *, fontsize: float = 10, **place: float) -> None:
    """Give a panel the look that all share: its title at the left, its unit at the right, lines behind the data, no frame."""
    axis.set_title(title, loc="left", fontsize=fontsize, fontweight="bold", color=_INK, **place)
    axis.set_title(unit, loc="right", fontsize=8, color=_SOFT, **place)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.grid(axis="y", color=_GRID)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, labelsize=8.5, length=2.5)


def _make_panel(axis: Axes, title: str) -> None:
    # Places of their own for titles and labels: to find them, matplotlib measures every text of the panel at each draw.
    # The unit beside the axis would stand in the numbers of a small KL.
    _prepare(axis, title, _UNITS[title], fontsize=11 if title in (TOTAL, EACH) else 10, y=1, pad=5)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(4))
    if title == HOLDOUT:
        axis.yaxis.set_major_formatter("{x:.0f} %")  # beside the title stands the last value
    if title in (KL, HOLDOUT, LENGTHS):
        axis.set_xlabel("optimizer step", color=_INK, fontsize=8.5)
        axis.xaxis.set_label_coords(0.5, -0.18)


def _make_card(axis: Axes) -> None:
    axis.spines[:].set_visible(False)
    axis.xaxis.set_major_locator(NullLocator())
    axis.yaxis.set_major_locator(NullLocator())
    axis.patch.set_facecolor(_CARD_GROUND)


def _set_limits(axis: Axes, low: float, high: float, is_from_zero: bool = False) -> None:
    """Set limits ourselves: autoscaling would look at all artists again, the marks included."""
    low = min(low, 0.0) if is_from_zero else low
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.5
    axis.set_ylim(low if is_from_zero and low == 0 else low - room, high + room)


def drawn(figure: Figure, words: str) -> Html:
    """Return a figure as a part of what shows itself, with these words in its place for those who do not see it."""
    picture = io.StringIO()
    figure.savefig(picture, format="svg", bbox_inches="tight")
    markup = picture.getvalue()[picture.getvalue().index("<svg") :]
    return Html(words, markup.replace("<svg", f'<svg role="img" aria-label="{escaped(words)}"', 1))


def overlay(runs: Mapping[str, Curves]) -> Figure:
    """Draw the reward, KL, held-out accuracy and length of several runs in one figure, a colour and a line style each.

    Args:
        runs: Name -> curves.
    """
    figure = Figure(figsize=(_WIDTH, 5.4), facecolor="white")
    measures = {TOTAL: "reward", KL: "kl", HOLDOUT: "holdout/accuracy", LENGTHS: LENGTH}
    axes = figure.subplots(2, 2).flat
    for axis, (title, key) in zip(axes, measures.items(), strict=True):
        _make_panel(axis, title)
        for i, (name, curves) in enumerate(runs.items()):
            style = {"linestyle": _STYLES[i // len(COLOURS) % len(_STYLES)], "markersize": 4, "label": name}
            if len(curves[key]):
                window, scale = (1, 100) if title == HOLDOUT else (curves.window, 1)
                _line(axis, curves[key], window, i, scale=scale, pale=0.25, dots=11, **style)
        if not axis.lines:
            _write(axis, 0.5, 0.5, "not measured", 10, ha="center", va="center")
        if title == HOLDOUT:
            axis.set_ylim(0, 102)
    handles, labels = axes[0].get_legend_handles_labels()
    labels = [_cut(label, 40) for label in labels]
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.05, 1), ncols=min(4, len(labels) or 1), frameon=False
    )
    rows = -(-len(labels) // 4)
    figure.subplots_adjust(0.062, 0.09, 0.985, 0.9 - 0.045 * rows, hspace=0.48, wspace=0.16)
    return figure
