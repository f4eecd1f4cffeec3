"""Compare groups of runs over several seeds, with intervals, in one table and one figure.

One run of each of two settings shows a difference that another seed reverses. Here runs are
grouped by the setting that differs on purpose, and paired by seed. Two runs of one seed share the
initial LoRA and the order of the prompts, so pairing removes the part of the noise that comes
from these.

The notebook a1_algorithms and benchmarks/algorithms.py use this module. It is not part of the
package.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import permutation_test, trim_mean

from grpo_nb.core.palette import INK
from grpo_nb.core.tables import Part, ReprMixin, Table, bold
from grpo_nb.core.words import short_repr
from grpo_nb.runs.figure import COLOURS, figure_html
from grpo_nb.runs.rows import metric_values
from grpo_nb.runs.run_folder import Run, open_run

NO_DIFFERENCE = "no difference shown"
SIGNIFICANCE = 0.05
RESAMPLES = 5_000
"""Bootstrap samples of an interval."""
CURVE_RESAMPLES = 500
"""Bootstrap samples of a band; fewer, because there is an interval at each step."""
SIGN_FLIPS = 2**14
"""Sign flips of the test. With up to 14 seeds these are all there are."""
DETECTABLE_ERRORS = 2.8
"""Standard errors that a two-sided test at 5 % detects 80 % of the time: 1.96 + 0.84."""
REWARD_STEPS = 10
"""Steps at the end whose mean reward is the score of a run that was not compared."""

GRID = "#80808040"
FIGURE_WIDTH = 10.0
ROW_HEIGHT = 0.34
LINE_STYLES = ("-", "--", "-.", ":")


class Interval(NamedTuple):
    """Ends of a 95 % interval."""

    low: float
    high: float


class Band(NamedTuple):
    """Interquartile mean at each step, with the ends of its interval."""

    low: list[float]
    middle: list[float]
    high: list[float]


@dataclass(frozen=True)
class Difference:
    """Difference between a group of runs and the first group, over the seeds that both have."""

    seeds: int
    value: float
    """Difference of the interquartile means."""
    interval: Interval
    """95 % percentile bootstrap over paired seeds."""
    p_value: float
    """p-value of the sign-flip test, corrected for the number of compared groups (Holm)."""
    smallest: float
    """Minimum detectable difference: the smallest that would be shown 80 % of the time."""

    @property
    def verdict(self) -> str:
        """`higher`, `lower` or `no difference shown`. Interval and test must agree."""
        is_zero_inside = self.interval.low <= 0 <= self.interval.high
        if self.p_value >= SIGNIFICANCE or is_zero_inside:
            return NO_DIFFERENCE
        return "higher" if self.value > 0 else "lower"


@dataclass(frozen=True, repr=False)
class SeedScores(ReprMixin):
    """Scores of several groups of runs, by seed. Shows itself as a figure and a table.

    Means are interquartile means (IQM): the mean of the middle half, which one lucky or collapsed seed
    does not move. Intervals are 95 % percentile bootstraps over seeds, stratified by task
    (arXiv:2108.13264). With ten seeds they are a little too narrow, so a difference counts as shown only
    if an exact test shows it as well.

    >>> scores = SeedScores(
    ...     {"a": dict(enumerate([1, 2, 3, 4, 5, 6])), "b": dict(enumerate([3, 4, 5, 6, 7, 9]))}
    ... )
    >>> scores.differences["b"].verdict, scores.differences["b"].p_value
    ('higher', 0.03125)
    """

    scores: Mapping[str, Mapping[Any, float]]
    """Scores by group, and by seed or (task, seed). The first group is the reference."""
    measure: str = "score"
    """Name of the scores."""
    curves: Mapping[str, Mapping[Any, Sequence[float]]] = field(default_factory=dict)
    """One value for each step, by group and seed; empty if no curves are drawn."""
    curve: str = "reward"
    """Name of the curves."""

    def __post_init__(self) -> None:
        if not self.scores:
            raise ValueError("there are no groups of runs to compare")
        short = [repr(name) for name, scores in self.scores.items() if len(scores) < 2]
        if short:
            raise ValueError(
                f"an interval needs at least two seeds for each group, and {', '.join(short)} has "
                "fewer. Train with other seeds: gn.preset(seed=1)."
            )

    @property
    def reference(self) -> str:
        """Name of the first group."""
        return next(iter(self.scores))

    @functools.cached_property
    def means(self) -> dict[str, tuple[float, Interval]]:
        """Interquartile mean of each group, with its interval."""
        means = {}
        for name, scores in self.scores.items():
            seeds = list(scores)
            values = _column(scores, seeds)
            resampled = interquartile_mean(values[_resampled(seeds)])
            means[name] = (float(interquartile_mean(values)), _interval(resampled))
        return means

    @functools.cached_property
    def differences(self) -> dict[str, Difference]:
        """Difference of each other group to the first."""
        others = [name for name in self.scores if name != self.reference]
        uncorrected = {name: self._difference(self.reference, name) for name in others}
        # Holm (Scandinavian Journal of Statistics 6, 1979): the smallest p-value is multiplied by the
        # number of tests, the next by one less, and no corrected value is below an earlier one.
        corrected = {}
        largest = 0.0
        by_p_value = sorted(others, key=lambda name: uncorrected[name].p_value)
        for rank, name in enumerate(by_p_value):
            p_value = (len(others) - rank) * uncorrected[name].p_value
            largest = max(largest, min(1.0, p_value))
            corrected[name] = dataclasses.replace(uncorrected[name], p_value=largest)
        return {name: corrected[name] for name in others}

    def _difference(self, first: str, second: str) -> Difference:
        seeds = [seed for seed in self.scores[first] if seed in self.scores[second]]
        if len(seeds) < 2:
            raise ValueError(
                f"{first!r} and {second!r} share {len(seeds)} seeds, and a paired comparison "
                "needs at least two. Train both with the same seeds."
            )
        before = _column(self.scores[first], seeds)
        after = _column(self.scores[second], seeds)
        picks = _resampled(seeds)
        resampled = interquartile_mean(after[picks]) - interquartile_mean(before[picks])
        return Difference(
            seeds=len(seeds),
            value=float(interquartile_mean(after) - interquartile_mean(before)),
            interval=_interval(resampled),
            p_value=sign_flip_p_value(after - before),
            smallest=DETECTABLE_ERRORS * float(resampled.std(ddof=1)),
        )

    @property
    def sentence(self) -> str:
        """The verdicts in words."""
        phrases = {
            "higher": f"higher than {self.reference}",
            "lower": f"lower than {self.reference}",
            NO_DIFFERENCE: f"no difference to {self.reference} shown",
        }
        parts = []
        for verdict, phrase in phrases.items():
            names = [name for name, one in self.differences.items() if one.verdict == verdict]
            if names:
                parts.append(f"{phrase}: {', '.join(names)}")
        measure = self.measure[:1].upper() + self.measure[1:]
        return f"{measure}; {'; '.join(parts) or 'one group'}."

    def plot(self) -> Figure:
        """Draw every seed, the means with their intervals, the differences, and the curves."""
        lengths = [len(curve) for curves in self.curves.values() for curve in curves.values()]
        window = max(1, min(lengths, default=1) // 8)
        bands = {name: _band(curves, window) for name, curves in self.curves.items()}
        title = f"{self.curve}, mean of the last {window} steps" if window > 1 else self.curve
        return seeds_figure(self, bands, title)

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        yield figure_html(
            self.plot(), f"Every seed, the means and the differences. {self.sentence}"
        )
        rows = []
        for name, (value, interval) in self.means.items():
            row = [
                name,
                len(self.scores[name]),
                f"{value:.3f} ({interval.low:.3f} to {interval.high:.3f})",
            ]
            difference = self.differences.get(name)
            if difference is None:
                row += ["", "", "", ""]
            else:
                low, high = difference.interval
                row += [
                    f"{difference.value:+.3f} ({low:+.3f} to {high:+.3f})",
                    f"{difference.p_value:.4f}",
                    f"{difference.smallest:.3f}",
                    difference.verdict,
                ]
            rows.append(row)
        head = [
            "group",
            "seeds",
            f"{self.measure}, IQM",
            f"minus {self.reference}, paired",
            "p",
            "minimum detectable",
            "verdict",
        ]
        yield Table(rows, head=head, right=(1, 4, 5))


def by_seed(
    runs: Iterable[Run | str | Path], by: str | Callable[[Run], Any], *, first: str | None = None
) -> SeedScores:
    """Group runs by a setting and pair them by seed.

    The score is the held-out accuracy after training if every run has a comparison (`gn.compare(run)`),
    else the mean reward of its last 10 steps; `measure` names it.

    Args:
        runs: Runs, or their paths or names. Runs of one group may differ in seed and task only.
        by: Name of a setting, or of an argument in its `extra`, such as "loss_type"; or a function that
            returns the name of a run's group.
        first: Name of the reference group; by default the group of the first run.

    Raises:
        ValueError: No run has this setting, a group has a seed twice, or a group has fewer than two seeds.
        FileNotFoundError: There is no run at a path.
    """
    opened = [open_run(run) for run in runs]
    # A run whose `extra` lacks the argument has the default, and belongs to the group "default".
    if not callable(by) and not any(by in _settings_of(run) for run in opened):
        raise ValueError(
            f"by = {by!r} is not a setting of any of these runs. gn.runs.side_by_side shows the "
            "settings that differ."
        )
    are_compared = all(run.comparison for run in opened)
    task_names = {run.info.get("task", {}).get("name") for run in opened}
    scores: dict[str, dict[Any, float]] = {}
    curves: dict[str, dict[Any, Sequence[float]]] = {}
    for run in opened:
        group = str(by(run)) if callable(by) else str(_settings_of(run).get(by, "default"))
        seed = run.settings.seed
        key = seed if len(task_names) == 1 else (run.info.get("task", {}).get("name"), seed)
        if key in scores.setdefault(group, {}):
            raise ValueError(
                f"{run.name!r} is a second run with seed {seed} in the group {group!r}. "
                "Leave one out, or "
                'use a function: by=lambda run: f"{run.settings.loss_type} {run.settings.beta}".'
            )
        rewards = [row.get("reward", math.nan) for row in run.rows]
        if are_compared:
            scores[group][key] = run.comparison.after.accuracy
        else:
            scores[group][key] = metric_values(run.rows[-REWARD_STEPS:], "reward").mean()
        curves.setdefault(group, {})[key] = rewards
    if first is not None and first not in scores:
        raise ValueError(
            f"first = {short_repr(first)} is not a group; the groups are {', '.join(scores)}"
        )
    names = sorted(scores, key=lambda name: name != first) if first is not None else list(scores)
    measure = (
        "held-out accuracy" if are_compared else f"mean reward of the last {REWARD_STEPS} steps"
    )
    return SeedScores(
        scores={name: scores[name] for name in names},
        measure=measure,
        curves={name: curves[name] for name in names},
    )


def _settings_of(run: Run) -> dict[str, Any]:
    settings = run.info["settings"]
    return {**settings, **settings.get("extra", {})}


def _column(scores: Mapping[Any, float], seeds: Sequence[Any]) -> Any:
    return numpy.asarray([scores[seed] for seed in seeds], float)


def interquartile_mean(values: Any) -> Any:
    """Return the mean of the middle half along the last axis."""
    return trim_mean(values, 0.25, axis=-1)


def _resampled(keys: Sequence[Any]) -> Any:
    """Return positions in `keys`, sampled with replacement within each task: (resamples, keys)."""
    generator = numpy.random.default_rng(0)
    tasks = [key[0] if isinstance(key, tuple) else None for key in keys]
    parts = []
    for task in dict.fromkeys(tasks):
        positions = numpy.asarray([i for i, other in enumerate(tasks) if other == task])
        picks = generator.integers(len(positions), size=(RESAMPLES, len(positions)))
        parts.append(positions[picks])
    return numpy.concatenate(parts, axis=1)


def _interval(resampled: Any) -> Interval:
    low, high = numpy.quantile(resampled, [0.025, 0.975])
    return Interval(float(low), float(high))


def sign_flip_p_value(changes: Any) -> float:
    """Return the share of all sign flips whose mean is at least as far from zero (Fisher, 1935)."""
    result = permutation_test(
        (changes,),
        numpy.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=SIGN_FLIPS,
        rng=0,
    )
    return min(float(result.pvalue), 1.0)


def _band(curves: Mapping[Any, Sequence[float]], window: int) -> Band:
    """Return the interquartile mean of the trailing means at each step, with its interval."""
    length = min(len(curve) for curve in curves.values())
    by_step = pandas.DataFrame([list(curve)[:length] for curve in curves.values()]).T
    smoothed = by_step.rolling(window, 1).mean().to_numpy()
    picks = _resampled(list(curves))[:CURVE_RESAMPLES]
    resampled = interquartile_mean(smoothed[:, picks])
    low, high = numpy.quantile(resampled, [0.025, 0.975], axis=1)
    return Band(low.tolist(), interquartile_mean(smoothed).tolist(), high.tolist())


def seeds_figure(scores: SeedScores, bands: Mapping[str, Band], curve_title: str) -> Figure:
    """Draw groups of runs: curves above, scores at the left, differences at the right.

    Args:
        scores: The scores to draw.
        bands: Band of each group; empty if there are no curves. With more groups than colours the bands
            could not be told apart, and are left out.
        curve_title: Title of the curves.
    """
    names = list(scores.scores)
    has_colours = len(names) <= len(COLOURS)
    colours = {}
    for index, name in enumerate(names):
        colours[name] = COLOURS[index] if has_colours else COLOURS[0]
    has_bands = bool(bands) and has_colours
    rows_height = ROW_HEIGHT * len(names) + 1.0
    bands_height = 2.6 if has_bands else 0.0
    figure = Figure(figsize=(FIGURE_WIDTH, rows_height + bands_height), layout="constrained")
    figure.patch.set_alpha(0.0)
    if has_bands:
        grid = figure.add_gridspec(2, 2, height_ratios=[bands_height, rows_height])
        _draw_bands(figure.add_subplot(grid[0, :]), curve_title, bands, colours)
    else:
        grid = figure.add_gridspec(1, 2)
    left = figure.add_subplot(grid[-1, 0])
    right = figure.add_subplot(grid[-1, 1])
    _draw_scores(left, scores, colours)
    _draw_differences(right, scores, colours)
    figure.supxlabel(
        "Dots: seeds. Diamonds: interquartile means. Bars and bands: 95 % intervals. "
        "Hollow: no difference shown.",
        fontsize=10,
        color=INK,
    )
    return figure


def _draw_scores(axes: Axes, scores: SeedScores, colours: Mapping[str, str]) -> None:
    """Draw each seed as a dot, and each mean with its interval."""
    _style(axes, scores.measure, grid="x")
    names = list(scores.scores)
    for place, name in enumerate(names):
        colour = colours[name]
        values = list(scores.scores[name].values())
        middle, interval = scores.means[name]
        places = [place] * len(values)
        axes.plot(values, places, "o", color=colour, alpha=0.4, markersize=4, markeredgewidth=0)
        axes.plot(interval, [place, place], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.plot([middle], [place], "D", color=colour, markersize=6)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.set_yticks(range(len(names)), names, parse_math=False)


def _draw_differences(axes: Axes, scores: SeedScores, colours: Mapping[str, str]) -> None:
    """Draw the difference of each group to the reference, with its verdict."""
    _style(axes, f"minus {scores.reference}, paired", grid="x")
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, name in enumerate(scores.scores):
        difference = scores.differences.get(name)
        verdict = "reference"
        if difference is not None:
            verdict = difference.verdict
            is_shown = verdict != NO_DIFFERENCE
            colour = colours[name] if is_shown else INK
            fill = colour if is_shown else "none"
            interval = difference.interval
            axes.plot(interval, [place, place], color=colour, linewidth=2.5, solid_capstyle="butt")
            axes.plot([difference.value], [place], "D", color=colour, markerfacecolor=fill)
        axes.annotate(
            verdict,
            (1.0, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            color=INK,
            annotation_clip=False,
        )
    axes.set_ylim(len(scores.scores) - 0.5, -0.6)
    axes.set_yticks([])


def _draw_bands(
    axes: Axes, title: str, bands: Mapping[str, Band], colours: Mapping[str, str]
) -> None:
    """Draw the mean of each step with its interval."""
    _style(axes, title, grid="y")
    for (name, band), style in zip(bands.items(), itertools.cycle(LINE_STYLES), strict=False):
        steps = range(1, len(band.middle) + 1)
        axes.fill_between(steps, band.low, band.high, color=colours[name], alpha=0.15, linewidth=0)
        axes.plot(steps, band.middle, color=colours[name], linewidth=2, linestyle=style, label=name)
    axes.set_xlabel("sampling", fontsize=10, color=INK)
    axes.legend(
        frameon=False,
        fontsize=10,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        labelcolor="linecolor",
    )


def _style(axes: Axes, title: str, grid: str) -> None:
    """Set the title, and ink that is readable on white and on dark pages."""
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold", parse_math=False)
    axes.patch.set_alpha(0.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=10, length=0)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
