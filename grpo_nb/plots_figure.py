"""The training figure: its panels, drawn from `grpo_nb.plots_curves.Curves`, and drawn again on the same axes.

Three sizes for three ranks: what is trained for (the reward) is largest, then what tells learning from cheating (KL, held-out
score, length), then six small cards with what goes wrong first. A card or panel of something that was not measured says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from grpo_nb.plots_curves import LENGTH, SPREAD_HIGH, SPREAD_LOW, Curve, Curves, alert_places

# Okabe and Ito's palette: told apart with any colour vision, and with the line styles also in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_INK, _SOFT, _GRID, _CARD_GROUND = "#333333", "#666666", "#EEEEEE", "#F6F6F6"
# Severity in colour and in shape.
_MARKS = {"critical": ("#C62828", "v"), "warning": ("#B26A00", "D"), "info": ("#546E7A", "o")}
_ALARM = _MARKS["critical"][0]
_LISTED = 3
_WIDTH, _FOOT = 10.0, 0.62
TOTAL, EACH, KL, HOLDOUT, LENGTHS = (
    "Total reward", "Each reward", "KL to the starting model", "Held-out accuracy", "Completion length",
)  # fmt: skip
_PLACES = {  # inches from the left and the top: x, y, width, height
    TOTAL: (0.62, 0.36, 4.25, 2.15),
    EACH: (5.45, 0.36, 3.05, 2.15),
    KL: (0.62, 3.08, 2.45, 1.35),
    HOLDOUT: (3.82, 3.08, 2.45, 1.35),
    LENGTHS: (7.02, 3.08, 2.45, 1.35),
}
_UNITS = {
    TOTAL: "weighted sum", EACH: "mean score, unweighted", KL: "nats", HOLDOUT: "% correct",
    LENGTHS: "tokens, mean",
}  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


_CARDS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("frac_reward_zero_std", "Groups without spread", _percent),
    ("completions/clipped_ratio", "Cut at the limit", _percent),
    ("grad_norm", "Gradient norm", lambda value: f"{value:.3g}"),
    ("entropy", "Entropy", lambda value: f"{value:.3g}"),
    ("learning_rate", "Learning rate", lambda value: f"{value:.2g}"),
    ("step_time", "Seconds per step", lambda value: f"{value:.3g}"),
)
_SHARES = ("frac_reward_zero_std", "completions/clipped_ratio")
_CARD_TOP, _CARD_HEIGHT, _CARD_WIDTH, _CARD_STEP = 5.3, 0.55, 1.3, 1.53
_RULE_PLACES = {
    "kl": KL, "holdout": HOLDOUT, "length": LENGTHS, "constant_reward": EACH, "dominating_reward": EACH,
    "fighting_rewards": EACH, "form_only": EACH, "truncation": "completions/clipped_ratio", "gradient": "grad_norm",
    "no_spread": "frac_reward_zero_std", "slow_steps": "step_time",
}  # fmt: skip
"""Where an alert is marked besides the reward, by the beginning of its rule's name."""


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _said_of_broken(curve: Curve) -> str:
    return f"NaN at {curve.broken_count} step{'s' * (curve.broken_count > 1)}"


class TrainingFigure:
    """The figure, made once and drawn again as often as there is something new: making axes costs more than drawing on them.

    Args:
        weights: Weight of each reward, for the labels.
        beta: Weight of the KL; with 0 its panel says that KL is not measured.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, beta: float | None = None) -> None:
        self._weights, self._beta = dict(weights or {}), beta
        self.figure = Figure(figsize=(_WIDTH, 6.4), facecolor="white")
        self._panels = {title: self._make_panel(title) for title in _PLACES}
        self._cards = {key: self._make_card(title) for key, title, _ in _CARDS}
        self._drawn: list[Any] = []
        self._height = 0.0
        self.points = 0
        """Points handed to matplotlib by the last `draw`."""

    def _make_panel(self, title: str) -> Axes:
        axis = self.figure.add_axes((0, 0, 1, 1))
        *_, height = _PLACES[title]
        size = 11 if title in (TOTAL, EACH) else 10
        # Places of their own for titles and labels: to find them, matplotlib measures every text of the panel at each draw.
        axis.set_title(title, loc="left", fontsize=size, fontweight="bold", color=_INK, y=1 + 0.07 / height, pad=0)
        # Beside the axis it would stand in the numbers of a small KL.
        axis.set_title(_UNITS[title], loc="right", fontsize=8, color=_SOFT, y=1 + 0.07 / height, pad=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#999999")
        axis.grid(axis="y", color=_GRID)
        axis.set_axisbelow(True)
        axis.tick_params(colors=_INK, labelsize=8.5, length=2.5)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(4))
        if title in (KL, HOLDOUT, LENGTHS):
            axis.set_xlabel("optimizer step", color=_INK, fontsize=8.5)
            axis.xaxis.set_label_coords(0.5, -0.24 / height)
        return axis

    def _make_card(self, title: str) -> Axes:
        axis = self.figure.add_axes((0, 0, 1, 1))
        axis.text(0, 1.62, title, transform=axis.transAxes, fontsize=8.5, color=_SOFT, va="center")
        axis.spines[:].set_visible(False)
        axis.xaxis.set_major_locator(NullLocator())
        axis.yaxis.set_major_locator(NullLocator())
        axis.patch.set_facecolor(_CARD_GROUND)
        return axis

    def draw(self, curves: Curves, alerts: Sequence[Mapping[str, Any]] = ()) -> Figure:
        """Draw what is known now in place of what was drawn before; the work is bounded, whatever the run's length."""
        for artist in self._drawn:
            artist.remove()
        self._drawn, self.points = [], 0
        marked = alert_places(alerts, curves)
        self._lay_out(len(marked))
        if curves.count:
            self._draw_total(curves)
            self._draw_each(curves)
            self._draw_kl(curves)
            self._draw_holdout(curves)
            self._draw_length(curves)
            for key, _, shown in _CARDS:
                self._draw_card(self._cards[key], curves, key, shown)
            for axis in (*self._panels.values(), *self._cards.values()):
                axis.set_xlim(min(1, curves.first), max(curves.last, curves.first + 1))
            self._mark_stages(curves)
            self._mark_alerts(marked)
        self._write_foot(curves, marked)
        return self.figure

    def _keep(self, *artists: Any) -> None:
        self._drawn += artists

    def _lay_out(self, alerts: int) -> None:
        lines = min(alerts, _LISTED) + (alerts > _LISTED)
        height = _CARD_TOP + _CARD_HEIGHT + _FOOT + 0.1 + 0.19 * lines
        if height == self._height:
            return
        self._height = height
        self.figure.set_size_inches(_WIDTH, height)
        places = dict(zip(self._panels.values(), _PLACES.values(), strict=True))
        for i, axis in enumerate(self._cards.values()):
            places[axis] = (0.62 + i * _CARD_STEP, _CARD_TOP, _CARD_WIDTH, _CARD_HEIGHT)
        for axis, (x, y, width, tall) in places.items():
            axis.set_position((x / _WIDTH, 1 - (y + tall) / height, width / _WIDTH, tall / height))

    # Lines.

    def _line(self, axis: Axes, curve: Curve, window: int, colour: str, style: str = "-", width: float = 2) -> float:
        """Draw values pale and their trailing mean strong; return the mean's last value."""
        xs, ys = curve.points()
        means_at, means = curve.means(window)
        self.points += len(xs) + len(means)
        if window > 1:
            self._keep(*axis.plot(xs, ys, color=colour, alpha=0.4, linewidth=0.7))
        marker = "o" if len(means) == 1 else None
        self._keep(*axis.plot(means_at, means, color=colour, linewidth=width, linestyle=style, marker=marker))
        return means[-1]

    def _say(self, axis: Axes, text: str) -> None:
        self._keep(
            axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=_SOFT, fontsize=10.5)
        )

    def _is_missing(self, panel: str, curve: Curve, why: str = "not measured") -> bool:
        """Say in the panel that there is nothing to draw, or which of its values are no numbers."""
        axis, is_drawn = self._panels[panel], len(curve) > 0
        axis.yaxis.set_visible(is_drawn)
        axis.xaxis.set_visible(is_drawn)
        axis.spines[["left", "bottom"]].set_visible(is_drawn)
        axis.patch.set_facecolor("white" if is_drawn else _CARD_GROUND)
        if curve.broken_count:
            self._mark_broken(axis, curve)
            self._keep(
                axis.text(0.01, 0.03, _said_of_broken(curve), transform=axis.transAxes, fontsize=8, color=_ALARM)
            )
        elif not is_drawn:
            self._say(axis, why)
        return not is_drawn

    def _mark_broken(self, axis: Axes, curve: Curve) -> None:
        self._keep(
            *axis.plot(
                curve.broken, [0.0] * len(curve.broken), "x", color=_ALARM, markersize=6, clip_on=False,
                transform=axis.get_xaxis_transform(),
            )
        )  # fmt: skip

    @staticmethod
    def _set_limits(axis: Axes, low: float, high: float, is_from_zero: bool = False) -> None:
        """Set limits ourselves: autoscaling would look at all artists again, the marks included."""
        low = min(low, 0.0) if is_from_zero else low
        room = (high - low) * 0.06 or abs(high) * 0.1 or 0.5
        axis.set_ylim(low if is_from_zero and low == 0 else low - room, high + room)

    # Panels.

    def _draw_total(self, curves: Curves) -> None:
        axis, reward = self._panels[TOTAL], curves["reward"]
        if self._is_missing(TOTAL, reward):
            return
        low, high = reward.limits
        below, above = curves[SPREAD_LOW], curves[SPREAD_HIGH]
        if len(below):
            xs, lows = below.means(1)
            _, highs = above.means(1)
            self.points += len(xs)
            self._keep(axis.fill_between(xs, lows, highs, color=COLOURS[0], alpha=0.12, linewidth=0))
            low, high = min(low, *lows), max(high, *highs)
        self._line(axis, reward, curves.window, COLOURS[0])
        said = "band: one standard deviation" if len(below) else "spread not measured"
        self._keep(axis.text(0.99, 0.03, said, transform=axis.transAxes, ha="right", fontsize=8, color=_SOFT))
        self._set_limits(axis, low, high)

    def _draw_each(self, curves: Curves) -> None:
        axis = self._panels[EACH]
        known = [name for name in curves.rewards if len(curves.reward(name))]
        broken = next((c for c in map(curves.reward, curves.rewards) if c.broken_count), Curve())
        if self._is_missing(EACH, curves.reward(known[0]) if known else broken):
            return
        if broken.broken_count:
            self._mark_broken(axis, broken)
        lows, highs = zip(*(curves.reward(name).limits for name in known), strict=True)
        self._set_limits(axis, min(lows), max(highs))
        ends = []
        for i, name in enumerate(known):
            colour = COLOURS[i % len(COLOURS)]
            end = self._line(axis, curves.reward(name), curves.window, colour, _STYLES[i % len(_STYLES)])
            weight = f" x{self._weights[name]:g}" if name in self._weights else ""
            ends.append((end, f"{_cut(name, 19)}{weight}", colour))
        # Direct labels at the right, moved apart where lines end close together, and back up from the lower edge.
        bottom, top = axis.get_ylim()
        gap = 0.085 * (top - bottom)
        ends.sort()
        places = [end for end, _, _ in ends]
        for i in range(1, len(places)):
            places[i] = max(places[i], places[i - 1] + gap)
        over = max(0.0, places[-1] - top)
        places = [place - over for place in places]
        for at, (_, label, colour) in zip(places, ends, strict=True):
            self._keep(
                axis.annotate(
                    label, (1.0, at), xycoords=axis.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points",
                    color=colour, fontsize=9, va="center", annotation_clip=False, parse_math=False,
                )
            )  # fmt: skip

    def _draw_kl(self, curves: Curves) -> None:
        why = "not measured (beta = 0)" if self._beta == 0 else "not measured"
        if not self._is_missing(KL, curves["kl"], why):
            self._line(self._panels[KL], curves["kl"], curves.window, COLOURS[2])
            self._set_limits(self._panels[KL], *curves["kl"].limits, is_from_zero=True)

    def _draw_holdout(self, curves: Curves) -> None:
        curve, axis = curves["holdout/accuracy"], self._panels[HOLDOUT]
        if self._is_missing(HOLDOUT, curve, "not measured during training"):
            return
        xs, ys = curve.means(1)
        self.points += len(xs)
        marker = "o" if len(xs) <= 60 else None
        last = axis.text(
            1, 1.055, f"{100 * ys[-1]:.0f} %", transform=axis.transAxes, fontsize=10, fontweight="bold", color=COLOURS[3],
            ha="right",
        )  # fmt: skip
        self._keep(
            last, *axis.plot(xs, [100 * y for y in ys], color=COLOURS[3], linewidth=2, marker=marker, markersize=4)
        )
        axis.set_ylim(0, 102)

    def _draw_length(self, curves: Curves) -> None:
        if not self._is_missing(LENGTHS, curves[LENGTH]):
            self._line(self._panels[LENGTHS], curves[LENGTH], curves.window, COLOURS[5])
            self._set_limits(self._panels[LENGTHS], *curves[LENGTH].limits, is_from_zero=True)

    def _draw_card(self, axis: Axes, curves: Curves, key: str, shown: Callable[[float], str]) -> None:
        curve = curves[key]
        if curve.broken_count:
            self._mark_broken(axis, curve)
        if not len(curve):
            said = _said_of_broken(curve) if curve.broken_count else "not measured"
            self._keep(axis.text(0, 1.24, said, transform=axis.transAxes, fontsize=9.5, color=_SOFT, va="center"))
            return
        end = self._line(axis, curve, curves.window, COLOURS[0], width=1.4)
        low, high = (0.0, 1.0) if key in _SHARES else curve.limits
        self._set_limits(axis, low, high, is_from_zero=True)
        self._keep(
            axis.text(
                0, 1.24, shown(end), transform=axis.transAxes, fontsize=11, fontweight="bold", color=_INK, va="center"
            )
        )
        if (key not in _SHARES and shown(high) != shown(end)) or curve.broken_count:
            said, colour = (_said_of_broken(curve), _ALARM) if curve.broken_count else (f"up to {shown(high)}", _SOFT)
            self._keep(
                axis.text(1, 1.22, said, transform=axis.transAxes, fontsize=7, color=colour, ha="right", va="center")
            )

    # Marks and words.

    def _mark_stages(self, curves: Curves) -> None:
        for i, (at, name) in enumerate(curves.stages[:40]):
            if i > 0:
                for axis in (*self._panels.values(), *self._cards.values()):
                    self._keep(axis.axvline(at, color="#999999", linewidth=0.9, linestyle=(0, (1, 2))))
            axis = self._panels[TOTAL]
            label = f"stage {name}" if isinstance(name, (int, float)) else _cut(str(name), 20)
            self._keep(
                axis.annotate(
                    label, (at, 1), xycoords=axis.get_xaxis_transform(), xytext=(3, -13), textcoords="offset points",
                    fontsize=8, color=_SOFT, va="top", parse_math=False,
                )
            )  # fmt: skip

    def _mark_alerts(self, marked: Sequence[tuple[float, str, Mapping[str, Any]]]) -> None:
        places: dict[tuple[Axes, str], list[float]] = {}
        numbered: dict[Axes, list[tuple[float, int]]] = {}
        # A hundred marks on one edge tell no more; the most severe ones come first.
        for number, (at, severity, alert) in enumerate(marked[:100], 1):
            known = severity if severity in _MARKS else "info"
            rule = str(alert.get("rule", ""))
            about = next((place for start, place in _RULE_PLACES.items() if rule.startswith(start)), TOTAL)
            for axis in {self._panels[TOTAL], self._panels.get(about) or self._cards[about]}:
                places.setdefault((axis, known), []).append(at)
                if number <= _LISTED and axis in self._panels.values():
                    self._number_alert(axis, number, at, _MARKS[known][0], numbered.setdefault(axis, []))
        for (axis, severity), marks in places.items():
            colour, shape = _MARKS[severity]
            size = 6 if axis in self._panels.values() else 4.5
            self._keep(
                *axis.plot(
                    marks, [1.0] * len(marks), shape, color=colour, markersize=size, clip_on=False,
                    transform=axis.get_xaxis_transform(),
                )
            )  # fmt: skip

    def _number_alert(self, axis: Axes, number: int, at: float, colour: str, others: list[tuple[float, int]]) -> None:
        first, last = axis.get_xlim()
        is_late = at > first + 0.93 * (last - first)
        # Side by side, 1 and 2 would read as 12: a number goes below those of its neighbours.
        near = {row for place, row in others if abs(place - at) < 0.08 * (last - first)}
        row = next(row for row in range(len(others) + 1) if row not in near)
        others.append((at, row))
        self._keep(
            axis.axvline(at, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.9),
            axis.annotate(
                str(number), (at, 1), xycoords=axis.get_xaxis_transform(), xytext=(-5 if is_late else 5, -7 - 11 * row),
                color=colour, textcoords="offset points", fontsize=8.5, fontweight="bold", va="center",
                ha="right" if is_late else "left",
            ),
        )  # fmt: skip

    def _write_foot(self, curves: Curves, marked: Sequence[tuple[float, str, Mapping[str, Any]]]) -> None:
        height, window = self._height, curves.window
        at = _CARD_TOP + _CARD_HEIGHT + 0.27

        def write(text: str, size: float, colour: str, down: float) -> None:
            nonlocal at
            place = (0.062, 1 - at / height)
            self._keep(self.figure.text(*place, text, fontsize=size, color=colour, va="center", parse_math=False))
            at += down

        write(curves.sentence, 10, _INK, 0.19)
        for number, (_, severity, alert) in enumerate(marked[:_LISTED], 1):
            message = _cut(str(alert.get("message", alert.get("rule", ""))), 118)
            line = f"{number}  {severity}, step {alert['step']:.0f}: {message}"
            write(line, 9, _MARKS.get(severity, _MARKS["info"])[0], 0.19)
        if len(marked) > _LISTED:
            write(f"and {len(marked) - _LISTED} more in alerts.jsonl", 8.5, _SOFT, 0.19)
        if window > 1:
            said = f"Strong lines and bold numbers are the mean of the last {window} steps, pale lines "
            width = max((curves[key].width for key in ("reward", "kl")), default=1)
            write(said + ("each step." if width == 1 else f"the extremes of every {width} steps."), 8.5, _SOFT, 0.19)
