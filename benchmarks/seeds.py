"""Many runs by seed: what can be told apart, with intervals, in one table and one figure. Not part of the package.

One run of each of two settings shows a difference that another seed turns round. Here runs are grouped by what differs on
purpose, and paired by seed, which takes away the luck that both shared: the start of the LoRA and the order of the prompts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import permutation_test, trim_mean

from grpo_nb.core.tables import Part, Shown, Table, bold
from grpo_nb.core.words import in_line
from grpo_nb.runs.figure import COLOURS, figure_html
from grpo_nb.runs.rows import mean, series
from grpo_nb.runs.run_folder import Run, open_run

_INK, _SOFT, _GRID = "#333333", "#666666", "#EEEEEE"
_WIDTH = 10.0
_LAST, _RESAMPLES, _FLIPS = 10, 5_000, 2**14
_WORTH_SHOWING = 0.05
# (1.96 + 0.84) standard errors: what a test at 5 % shows four times in five.
_DETECTABLE = 2.8


@dataclass(frozen=True)
class Difference:
    """One group of runs minus another, on the seeds that both have."""

    seeds: int
    value: float
    """Of the interquartile means."""
    interval: tuple[float, float]
    """95 %: percentile bootstrap over seeds, in pairs."""
    p_value: float
    """Of the test that flips the signs of the differences by seed, all ways up to 14 seeds and 16,384 random ones of more;
    corrected by Holm for the number of groups that are compared."""
    smallest: float
    """The smallest true difference that would have been seen four times in five: 2.8 standard errors of the bootstrap."""

    @property
    def verdict(self) -> str:
        """`higher`, `lower` or `not told apart`: interval and corrected test must agree."""
        low, high = self.interval
        if self.p_value >= _WORTH_SHOWING or low <= 0 <= high:
            return "not told apart"
        return "higher" if self.value > 0 else "lower"


@dataclass(frozen=True, repr=False)
class SeedScores(Shown):
    """Scores of several groups of runs, by seed. Shows itself as a figure and a table.

    Means are interquartile means (IQM): the mean of the middle half, which one lucky or collapsed seed does not move. Intervals
    are 95 % percentile bootstraps over seeds, stratified by task where there are several (arXiv:2108.13264). With ten
    seeds they are a little too narrow, so no difference is called one that an exact test does not show, too.

    >>> scores = SeedScores({"a": dict(enumerate([1, 2, 3, 4, 5, 6])), "b": dict(enumerate([3, 4, 5, 6, 7, 9]))})
    >>> scores.differences["b"].verdict, scores.differences["b"].p_value
    ('higher', 0.03125)
    """

    scores: Mapping[str, Mapping[Any, float]]
    """Group -> seed, or (task, seed) -> score. The others are compared with the first group."""
    measure: str = "score"
    """What the scores are."""
    curves: Mapping[str, Mapping[Any, Sequence[float]]] = field(default_factory=dict)
    """Group -> seed -> a value for each step, where there are curves to draw."""
    curve: str = "reward"
    """What the curves are."""

    def __post_init__(self) -> None:
        short = [name for name, scores in self.scores.items() if len(scores) < 2]
        if not self.scores or short:
            raise ValueError(
                f"an interval by seed needs two seeds or more of each group, and there are fewer of "
                f"{', '.join(map(repr, short)) or 'all'}: train them with other seeds, gn.preset(seed=1)."
            )

    @functools.cached_property
    def means(self) -> dict[str, tuple[float, tuple[float, float]]]:
        """Group -> its interquartile mean, and the interval of that."""
        columns = {name: _column(scores, list(scores)) for name, scores in self.scores.items()}
        drawn = {
            name: _iqm(values[_resampled(list(self.scores[name]))])
            for name, values in columns.items()
        }
        return {
            name: (float(_iqm(values)), _middle(drawn[name])) for name, values in columns.items()
        }

    @functools.cached_property
    def differences(self) -> dict[str, Difference]:
        """Group -> how it differs from the first one."""
        first, *others = self.scores
        raw = {name: self._difference(first, name) for name in others}
        # Holm, Scandinavian Journal of Statistics 6, 1979: the smallest p times their number, the next times one less, ...
        worst, corrected = 0.0, {}
        for rank, name in enumerate(sorted(raw, key=lambda name: raw[name].p_value)):
            worst = max(worst, min(1.0, (len(raw) - rank) * raw[name].p_value))
            corrected[name] = worst
        return {
            name: dataclasses.replace(one, p_value=corrected[name]) for name, one in raw.items()
        }

    def _difference(self, first: str, second: str) -> Difference:
        keys = [key for key in self.scores[first] if key in self.scores[second]]
        if len(keys) < 2:
            raise ValueError(
                f"{first!r} and {second!r} share {len(keys)} seeds, and pairs need two or more: train both with the same ones."
            )
        a, b = (_column(self.scores[name], keys) for name in (first, second))
        picks = _resampled(keys)
        drawn = _iqm(b[picks]) - _iqm(a[picks])
        return Difference(
            len(keys),
            float(_iqm(b) - _iqm(a)),
            _middle(drawn),
            _sign_flips(b - a),
            _DETECTABLE * float(drawn.std(ddof=1)),
        )

    @property
    def table(self) -> pandas.DataFrame:
        """One row a group: seeds, IQM with interval, difference to the first with interval, p, smallest to be seen, verdict."""
        rows = []
        for name, (value, (low, high)) in self.means.items():
            row = {
                "group": name,
                "seeds": len(self.scores[name]),
                "mean": value,
                "low": low,
                "high": high,
            }
            if (one := self.differences.get(name)) is not None:
                row |= {
                    "difference": one.value, "from": one.interval[0], "to": one.interval[1], "p": one.p_value,
                    "smallest seen": one.smallest, "verdict": one.verdict,
                }  # fmt: skip
            rows.append(row)
        return pandas.DataFrame(rows)

    @property
    def sentence(self) -> str:
        """Which groups differ from the first, in words."""
        first, told = next(iter(self.scores)), {}
        for name, one in self.differences.items():
            told.setdefault(one.verdict, []).append(name)
        words = {"higher": "than", "lower": "than", "not told apart": "from"}
        parts = [
            f"{said} {word} {first}: {', '.join(told[said])}"
            for said, word in words.items()
            if said in told
        ]
        return (
            f"{self.measure[:1].upper()}{self.measure[1:]}; "
            + "; ".join(parts or ["one group"])
            + "."
        )

    def plot(self) -> Figure:
        """Every seed as a dot and the means with intervals, beside the differences by pairs; above them the curves, if any."""
        window = max(
            1,
            min((len(one) for curves in self.curves.values() for one in curves.values()), default=1)
            // 8,
        )
        bands = {name: _band(curves, window) for name, curves in self.curves.items()}
        curve = f"{self.curve}, mean of the last {window} steps" if window > 1 else self.curve
        return seeds_figure(self.scores, self.means, self.differences, self.measure, bands, curve)

    def _parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        yield figure_html(
            self.plot(),
            "plot() draws every seed, the means with their intervals, and the differences.",
        )
        rows = []
        for name, (value, (low, high)) in self.means.items():
            row = [name, len(self.scores[name]), f"{value:.3g} ({low:.3g} to {high:.3g})"]
            if (one := self.differences.get(name)) is not None:
                row += [
                    f"{one.value:+.2g} ({one.interval[0]:+.2g} to {one.interval[1]:+.2g})",
                    f"{one.p_value:.2g}",
                ]
                row += [f"{one.smallest:.2g}", one.verdict]
            rows.append(row + [""] * (7 - len(row)))
        first = next(iter(self.scores))
        head = [
            "group",
            "seeds",
            f"{self.measure}, IQM",
            f"minus {first}, in pairs",
            "p",
            "would have shown",
            "",
        ]
        yield Table(rows, head=head, right=(1, 4, 5), narrow=(0, 1, 2, 3, 4, 5))


def by_seed(
    runs: Iterable[Run | str | Path], by: str | Callable[[Run], Any], *, first: str | None = None
) -> SeedScores:
    """Group runs by a setting and pair them by seed: which setting is better, and could a difference have been seen?

    The score is the held-out accuracy after training where every run was compared (`gn.compare(run)`), else the mean reward of
    its last 10 steps, and `measure` says which. Curves are drawn of the steps that all runs have.

    Args:
        runs: Runs, their paths or names, or what `gn.runs.list` gave. Those of one group differ in seed and task alone.
        by: A setting or a name in its `extra`, such as "loss_type"; or a function of a run that gives the name of its group.
        first: The group that the others are compared with; by default that of the first run.

    Raises:
        ValueError: A setting that no run has, one seed twice in a group, or fewer than two seeds.
        FileNotFoundError: There is no run at a path.
    """
    opened = [open_run(run) for run in runs]
    # In `extra` of one run, and in another left at its default: that one is of the group "default".
    if not callable(by) and not any(by in _told(run) for run in opened):
        raise ValueError(
            f"by = {by!r} is no setting that any of these runs has: gn.runs.side_by_side names what differs."
        )
    are_compared = all(run.comparison for run in opened)
    tasks = {run.info.get("task", {}).get("name") for run in opened}
    scores: dict[str, dict[Any, float]] = {}
    curves: dict[str, dict[Any, Sequence[float]]] = {}
    for run in opened:
        group = _group_of(run, by)
        seed = run.settings.seed
        key = seed if len(tasks) == 1 else (run.info.get("task", {}).get("name"), seed)
        if key in scores.setdefault(group, {}):
            raise ValueError(
                f"{run.name!r} is a second run with seed {seed} of {group!r}: leave one out, or give a function of a run "
                'as by that tells them apart: by=lambda run: f"{run.settings.loss_type} {run.settings.beta}".'
            )
        rewards = series(run.rows, "reward")
        scores[group][key] = (
            run.comparison.after.accuracy if are_compared else mean(rewards[-_LAST:])
        )
        curves.setdefault(group, {})[key] = rewards
    if first is not None and first not in scores:
        raise ValueError(f"first = {in_line(first)} is none of the groups: {', '.join(scores)}.")
    ordered = sorted(scores, key=lambda name: name != first) if first is not None else list(scores)
    measure = "held-out accuracy" if are_compared else f"mean reward of the last {_LAST} steps"
    return SeedScores(
        {name: scores[name] for name in ordered}, measure, {name: curves[name] for name in ordered}
    )


def _group_of(run: Run, by: str | Callable[[Run], Any]) -> str:
    return str(by(run)) if callable(by) else str(_told(run).get(by, "default"))


def _told(run: Run) -> dict[str, Any]:
    settings = run.info["settings"]
    return {**settings, **settings.get("extra", {})}


def _column(scores: Mapping[Any, float], keys: Sequence[Any]) -> Any:
    return numpy.asarray([scores[key] for key in keys], float)


def _iqm(values: Any) -> Any:
    """The mean of the middle half along the last axis."""
    return trim_mean(values, 0.25, axis=-1)


def _resampled(keys: Sequence[Any]) -> Any:
    """Places of `keys`, drawn again and again with repetition, within each task: (resamples, keys)."""
    draw, task = (
        numpy.random.default_rng(0),
        [key[0] if isinstance(key, tuple) else None for key in keys],
    )
    parts = []
    for stratum in dict.fromkeys(task):
        places = numpy.asarray([i for i, one in enumerate(task) if one == stratum])
        parts.append(places[draw.integers(len(places), size=(_RESAMPLES, len(places)))])
    return numpy.concatenate(parts, axis=1)


def _middle(drawn: Any) -> tuple[float, float]:
    low, high = numpy.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _sign_flips(change: Any) -> float:
    """The share of all ways to flip the signs whose mean is as far from zero as the one seen (Fisher, 1935)."""
    # Of random ones the one observed is counted too, so that p is never 0.
    found = permutation_test(
        (change,), numpy.sum, permutation_type="samples", vectorized=True, n_resamples=_FLIPS, rng=0
    )
    return min(float(found.pvalue), 1.0)


def _band(
    curves: Mapping[Any, Sequence[float]], window: int
) -> tuple[list[float], list[float], list[float]]:
    """The interquartile mean of the trailing means at each step, and its interval: low, middle, high."""
    length = min(map(len, curves.values()))
    steps = pandas.DataFrame([list(curve)[:length] for curve in curves.values()]).T
    values = steps.rolling(window, 1).mean().to_numpy()
    drawn = _iqm(values[:, _resampled(list(curves))[:500]])
    low, high = numpy.quantile(drawn, [0.025, 0.975], axis=1)
    return low.tolist(), _iqm(values).tolist(), high.tolist()


def seeds_figure(
    scores: Mapping[str, Mapping[Any, float]],
    means: Mapping[str, tuple[float, tuple[float, float]]],
    differences: Mapping[str, Any],
    measure: str,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    curve: str,
) -> Figure:
    """Draw groups of runs: each seed a dot with the mean and its interval, and the differences to the first group.

    Args:
        scores: Group -> seed -> score.
        means: Group -> mean, (low, high).
        differences: Group, but for the first -> `Difference`.
        measure: What the scores are.
        bands: Group -> low, mean and high at each step; empty if there are no curves. More than there are colours cannot be
            told apart, and are left out.
        curve: What the curves are.
    """
    bands = bands if len(bands) <= len(COLOURS) else {}
    rows, head = 0.34 * len(scores) + 1.25, 2.9 if bands else 0.0
    figure = Figure(figsize=(_WIDTH, rows + head), facecolor="white")
    grid = figure.add_gridspec(
        2 if bands else 1, 2, height_ratios=[head - 0.5, rows - 0.85] if bands else None
    )
    left, right = (figure.add_subplot(grid[-1, column]) for column in (0, 1))
    names, beside = (
        list(scores),
        {"xycoords": right.get_yaxis_transform(), "va": "center", "fontsize": 8.5},
    )
    colours = dict(zip(names, COLOURS, strict=False)) if len(names) <= len(COLOURS) else {}
    for at, name in enumerate(names):
        colour = colours.get(name, COLOURS[0])
        values, (middle, ends) = list(scores[name].values()), means[name]
        left.plot(
            values,
            [at] * len(values),
            "o",
            color=colour,
            alpha=0.3,
            markersize=4,
            markeredgewidth=0,
        )
        left.plot(ends, [at, at], color=colour, linewidth=2.5, solid_capstyle="butt")
        left.plot([middle], [at], "D", color=colour, markersize=6)
        if (one := differences.get(name)) is None:
            right.annotate("what the others are compared with", (0.0, at), color=_SOFT, **beside)
            continue
        is_told = one.verdict != "not told apart"
        line, fill, ink = (colour, colour, _INK) if is_told else (_SOFT, "white", _SOFT)
        right.plot(one.interval, [at, at], color=line, linewidth=2.5, solid_capstyle="butt")
        right.plot([one.value], [at], "D", color=line, markerfacecolor=fill, markersize=6)
        right.annotate(
            one.verdict,
            (1.0, at),
            (6, 0),
            textcoords="offset points",
            color=ink,
            annotation_clip=False,
            **beside,
        )
    right.axvline(0, color=_INK, linewidth=0.9)
    for axis, title in ((left, measure), (right, f"minus {names[0]}, in pairs")):
        _prepare(axis, title, grid="x")
        axis.set_ylim(len(names) - 0.5, -0.6)
        axis.tick_params(colors=_INK, labelsize=9, length=0)
        axis.set_yticks(
            range(len(names)), [name for name in names] if axis is left else [], parse_math=False
        )
    said = "Dots are seeds, diamonds interquartile means, bars and bands their 95 % intervals; grey is not told apart."
    figure.text(0.2, 0.02, said, fontsize=8.5, color=_SOFT)
    if bands:
        _draw_bands(figure.add_subplot(grid[0, :]), curve, bands, colours)
    figure.subplots_adjust(
        0.2, 0.6 / (rows + head), 0.86, 1 - 0.32 / (rows + head), wspace=0.08, hspace=0.35
    )
    return figure


def _draw_bands(
    axis: Axes,
    curve: str,
    bands: Mapping[str, Sequence[Sequence[float]]],
    colours: Mapping[str, str],
) -> None:
    """The mean of each step with its interval."""
    _prepare(axis, curve, grid="y")
    for (name, (low, middle, high)), style in zip(
        bands.items(), itertools.cycle(("-", "--", "-.", ":")), strict=False
    ):
        steps = range(1, len(middle) + 1)
        axis.fill_between(steps, low, high, color=colours[name], alpha=0.13, linewidth=0)
        axis.plot(steps, middle, color=colours[name], linewidth=2, linestyle=style, label=name)
    axis.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1, 0.5))


def _prepare(axis: Axes, title: str, grid: str) -> None:
    axis.set_title(title, loc="left", color=_INK, fontsize=10, fontweight="bold", parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=grid, color=_GRID)
    axis.set_axisbelow(True)
