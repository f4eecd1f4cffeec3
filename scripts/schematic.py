"""Draw the schematic pictures of the README and the notebooks into docs/.

    PYTHONPATH=. python scripts/schematic.py

grpo.png shows one GRPO step, tree.png a group as a tree, loss.png the loss, hacking.png two
trainings, quickstart_result.png and evaluate.png a result by measure, your_data.png one by label,
judge.png one by check, algorithms.png a comparison of losses, and rounding.png a weight that is
saved. The text is grey and the background transparent, so that light and dark pages can show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_nb.core import palette

ROOT = Path(__file__).resolve().parent.parent
GREY = "#767676"
BLUE = "#d5e4f5"
UP = "#bfe5cd"
DOWN = "#f5cbb5"
NEUTRAL = "#e2e2e2"


class Row(NamedTuple):
    """One completion in the picture, with the numbers of a group of four."""

    completion: str
    reward: str
    advantage: str
    effect: str
    colour: str


ROWS = [
    Row("Canberra.", "1.5", "+1.22", "pushed up", UP),
    Row("Canberra, which…", "1.0", "0.00", "no push", NEUTRAL),
    Row("Canberra, also…", "1.0", "0.00", "no push", NEUTRAL),
    Row("Sydney.", "0.5", "\N{MINUS SIGN}1.22", "pushed down", DOWN),
]
COLUMNS = {"completion": 4.9, "reward": 6.5, "advantage": 7.7, "effect": 9.2}


class Branch(NamedTuple):
    """A beginning that several completions share, with the sum of their advantages."""

    x: float
    y: float
    words: str
    texts: int
    sum_of_advantages: float
    probability: str = ""


# The eight completions of notebooks/01_grpo_by_hand, with the seed that it was executed with.
THE = Branch(0.6, 2.5, "The", 8, 0.0)
CAPITAL = Branch(2.9, 3.3, "capital of Australia is", 7, 1.37)
CLAIM = Branch(2.9, 0.6, "proud claim of ...", 1, -1.37)
CANBERRA = Branch(5.7, 4.3, "Canberra", 5, 3.26, "0.66")
SYDNEY = Branch(5.7, 2.0, "Sydney", 2, -1.89, "0.31")
FULL_STOP = Branch(8.4, 5.0, "full stop", 2, 2.31, "0.51")
COMMA = Branch(8.4, 3.5, "comma", 3, 0.95, "0.47")
TREE = {
    THE: [CAPITAL, CLAIM],
    CAPITAL: [CANBERRA, SYDNEY],
    CANBERRA: [FULL_STOP, COMMA],
}


def put_box(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Write a text in a rounded box."""
    box = {"boxstyle": "round,pad=0.4", "facecolor": colour, "edgecolor": "none"}
    axes.text(x, y, text, ha="center", va="center", color="black", bbox=box)


def put_arrow(axes: Axes, tail: tuple[float, float], tip: tuple[float, float]) -> None:
    """Draw a straight arrow."""
    axes.annotate("", tip, tail, arrowprops={"arrowstyle": "->", "color": GREY})


def draw_step() -> Figure:
    """Return the picture of one step: question, model, four completions, advantages, update."""
    figure = Figure(figsize=(10, 3.4), facecolor="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(0, 5.3))
    axes.axis("off")
    put_box(axes, 0.9, 2.5, "What is the\ncapital of\nAustralia?", BLUE)
    put_box(axes, 2.85, 2.5, "model", BLUE)
    put_arrow(axes, (1.65, 2.5), (2.4, 2.5))
    for column, x in COLUMNS.items():
        axes.text(x, 5, column, ha="center", va="center", color=GREY)
    spread = "mean 1.0, std 0.41"
    axes.text(COLUMNS["reward"], 4.62, spread, ha="center", va="center", color=GREY, fontsize=8)
    for y, row in zip((4, 3, 2, 1), ROWS, strict=True):
        put_arrow(axes, (3.3, 2.5), (3.95, y))
        for column, x in COLUMNS.items():
            put_box(axes, x, y, getattr(row, column), row.colour)
    back = {"arrowstyle": "->", "color": GREY, "connectionstyle": "angle,angleA=0,angleB=90"}
    text = "change the weights a little, then sample again"
    axes.annotate(text, (2.85, 2.1), (4.2, 0.15), arrowprops=back, color=GREY)
    return figure


def put_branch(axes: Axes, branch: Branch) -> None:
    """Write a branch: its words, how many of the eight texts pass it, and the sum."""
    colour = NEUTRAL
    if branch.sum_of_advantages:
        colour = UP if branch.sum_of_advantages > 0 else DOWN
    if branch in TREE[CANBERRA]:
        # The reader predicts which of the two wins.
        colour = BLUE
    total = f"{branch.sum_of_advantages:+.2f}" if branch.sum_of_advantages else "0"
    total = total.replace("-", "\N{MINUS SIGN}")
    put_box(axes, branch.x, branch.y, f"{branch.words}\n{branch.texts} of 8,  {total}", colour)


def draw_tree() -> Figure:
    """Return the picture of a group as a tree: where its texts part, and what each branch gets."""
    figure = Figure(figsize=(10, 3.6), facecolor="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9.3), ylim=(0, 5.6))
    axes.axis("off")
    for branch, continuations in TREE.items():
        for next_branch in continuations:
            tail = (branch.x, branch.y)
            tip = (next_branch.x, next_branch.y)
            axes.plot(*zip(tail, tip, strict=True), color=GREY, linewidth=1, zorder=0)
            middle_x = (branch.x + next_branch.x) / 2
            middle_y = (branch.y + next_branch.y) / 2
            above_the_line = middle_y + 0.12
            axes.text(middle_x, above_the_line, next_branch.probability, color=GREY, ha="center")
    for branch in (THE, CLAIM, CAPITAL, CANBERRA, SYDNEY, FULL_STOP, COMMA):
        put_branch(axes, branch)
    return figure


def draw_loss() -> Figure:
    """Return two plots: the clipped gain of a token, and the cost of the KL term."""
    figure = Figure(figsize=(8, 2.9), facecolor="none", layout="constrained")
    gain, cost = figure.subplots(1, 2)
    ratio = numpy.linspace(0.5, 1.5, 101)
    gain.plot(ratio, numpy.minimum(ratio, 1.2), color=palette.BLUE)
    gain.plot(ratio, -numpy.maximum(ratio, 0.8), color=palette.VERMILION)
    gain.text(0.52, 0.85, "A = +1", color=palette.BLUE)
    gain.text(0.52, -0.55, "A = \N{MINUS SIGN}1", color=palette.VERMILION)
    flat = "flat: no push"
    gain.text(1.35, 1.27, flat, ha="center", va="bottom", color=palette.BLUE, fontsize=8.5)
    gain.text(0.65, -0.87, flat, ha="center", va="top", color=palette.VERMILION, fontsize=8.5)
    gain.set_ylim(top=1.55)
    gain.set(title="Clipping", xlabel="ratio \N{GREEK SMALL LETTER RHO}", ylabel="gain of a token")
    difference = numpy.linspace(-1.5, 1.5, 101)
    cost.plot(difference, numpy.exp(difference) - difference - 1, color=palette.GREEN)
    cost.set(title="KL term", xlabel=r"$d = \log\,p_{ref} - \log\,p$", ylabel="cost of a token")
    for axes in (gain, cost):
        make_grey(axes)
    return figure


class Change(NamedTuple):
    """A number before and after a training, and the look of its line."""

    before: float
    after: float
    training: str
    colour: str
    style: str


# The numbers of notebooks/02_rewards, as it was executed.
REWARDS = [
    Change(3.12, 6.25, "with loopholes", palette.VERMILION, "--"),
    Change(0.62, 3.19, "sound", palette.BLUE, "-"),
]
RIGHT_ANYWHERE = [
    Change(58.3, 11.9, "with loopholes", palette.VERMILION, "--"),
    Change(58.3, 83.3, "sound", palette.BLUE, "-"),
]


def draw_hacking() -> Figure:
    """Return two plots: the rewards of two trainings, and their held-out answers."""
    figure = Figure(figsize=(8, 2.9), facecolor="none", layout="constrained")
    reward, answers = figure.subplots(1, 2)
    reward.set(title="Total reward: both rise", ylim=(0, 7.2))
    reward.set_xticks([0, 1], ["first 5 steps", "last 5 steps"])
    draw_changes(reward, REWARDS, "{:.2f}")
    answers.set(title="Held out, correct anywhere: one falls", ylim=(0, 100))
    answers.set_xticks([0, 1], ["before training", "after training"])
    answers.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"])
    draw_changes(answers, RIGHT_ANYWHERE, "{:.0f} %")
    return figure


def draw_changes(axes: Axes, changes: list[Change], number: str) -> None:
    """Draw one line for each training, with its numbers and its name."""
    for change in changes:
        ends = [change.before, change.after]
        axes.plot([0, 1], ends, change.style, color=change.colour, marker="o", linewidth=2)
        before = number.format(change.before)
        after = f"{number.format(change.after)}  {change.training}"
        axes.text(-0.05, change.before, before, ha="right", va="center", color=change.colour)
        axes.text(1.05, change.after, after, ha="left", va="center", color=change.colour)
    axes.set_xlim(-0.35, 1.95)
    make_grey(axes)


class Result(NamedTuple):
    """A kind of held-out answers, and how many of them are good for each of the `SERIES`."""

    name: str
    answers: int
    good: tuple[int, ...]


SERIES = (("before", palette.GREY), ("after", palette.BLUE), ("more rows", palette.GREEN))
# The numbers of notebooks/03_your_data, as it was executed.
LABELS = [
    Result("all remarks", 42, (23, 33, 38)),
    Result("negative", 15, (7, 15, 13)),
    Result("positive", 18, (16, 18, 16)),
    Result("neutral", 9, (0, 0, 9)),
]
# The numbers of notebooks/00_quickstart, as it was executed.
QUICKSTART = [
    Result("correct", 96, (9, 77)),
    Result("in the format", 96, (16, 96)),
    Result("correct anywhere", 96, (53, 77)),
]
# The numbers of notebooks/05_evaluate, as it was executed.
MEASURES = [
    Result("correct", 96, (9, 67)),
    Result("in the format", 96, (16, 96)),
    Result("correct anywhere", 96, (53, 67)),
]
# The checks of notebooks/08_judge on its eight held-out answers, as it was executed.
CHECKS = [
    Result("all four checks", 32, (2, 16)),
    Result("one sentence", 8, (0, 6)),
    Result("5 to 18 words", 8, (0, 5)),
    Result("words of the note", 8, (0, 3)),
    Result("what it is about", 8, (2, 2)),
]


def draw_results(results: list[Result], title: str) -> Figure:
    """Return bars with the share of good answers of each kind, a bar for each of the series."""
    figure = Figure(figsize=(8, 2.7), facecolor="none", layout="constrained")
    axes = figure.subplots()
    bars = len(results[0].good)
    width = 0.8 / bars
    for number, (name, colour) in enumerate(SERIES[:bars]):
        offset = (number - (bars - 1) / 2) * width
        name_place = offset * bars / 2  # names are wider than one of three bars
        axes.text(name_place, 1.15, name, ha="center", color=colour)
        for place, result in enumerate(results):
            good = result.good[number]
            share = good / result.answers
            axes.bar(place + offset, share, width=0.95 * width, color=colour)
            axes.text(place + offset, share + 0.02, good, ha="center", va="bottom", color=colour)
    axes.set_xticks(
        range(len(results)), [f"{result.name}\n(of {result.answers})" for result in results]
    )
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set(title=title, ylim=(0, 1.3))
    make_grey(axes)
    return figure


def draw_rounding() -> Figure:
    """Return the numbers near 0.1 in two dtypes, and a weight that a training changes a little."""
    weight = 0.10009765625
    changed = weight + 0.0001
    figure = Figure(figsize=(8, 2), facecolor="none", layout="constrained")
    axes = figure.subplots()
    # Between 1/16 and 1/8, bfloat16 has 2**7 numbers and float16 2**10.
    for height, spacing in ((1, 2**-11), (0, 2**-14)):
        numbers = weight + spacing * numpy.arange(-12, 13)
        axes.plot(numbers, numpy.full(25, height), "|", markersize=14, color=GREY)
        nearest = weight + spacing * round((changed - weight) / spacing)
        axes.plot(nearest, height, "o", color=palette.BLUE)
        # To the right of the dot, and below the marks: no line crosses the word.
        axes.annotate("saved", (nearest + 4e-6, height - 0.28), va="top", color=palette.BLUE)
    axes.axvline(weight, linestyle=":", color=GREY)
    axes.axvline(changed, color=palette.VERMILION)
    axes.text(weight - 4e-6, 1.75, "base weight", ha="right", color=GREY)
    axes.text(changed + 4e-6, 1.75, "base weight + 0.0001", color=palette.VERMILION)
    axes.set_yticks([0, 1], ["float16", "bfloat16"])
    axes.set(
        xlim=(weight - 5.5e-4, weight + 5.5e-4), ylim=(-0.8, 2.1), xlabel="value of the weight"
    )
    make_grey(axes)
    return figure


class Difference(NamedTuple):
    """A difference of the held-out accuracy from GRPO, with its 95 % interval."""

    loss: str
    value: float
    low: float
    high: float
    is_shown: bool = False


# The numbers of notebooks/a1_algorithms, as it was executed.
USED_ONCE = [
    Difference("filtered prompts", 0.042, 0.021, 0.065, is_shown=True),
    Difference("DAPO", 0.014, -0.017, 0.061),
    Difference("not scaled", -0.005, -0.025, 0.017),
    Difference("Dr. GRPO", 0.024, 0.003, 0.038),
]
USED_EIGHT_TIMES = [
    Difference("clip-higher", -0.031, -0.050, 0.025),
    Difference("GSPO", 0.020, -0.021, 0.092),
    Difference("CISPO", -0.174, -0.249, -0.069, is_shown=True),
    Difference("SAPO", -0.133, -0.184, -0.077, is_shown=True),
]


def draw_algorithms() -> Figure:
    """Return two plots: losses compared with GRPO, batches used once and eight times."""
    figure = Figure(figsize=(8, 2.5), facecolor="none", layout="constrained")
    once, eight_times = figure.subplots(1, 2, sharex=True)
    draw_differences(once, USED_ONCE, "each batch used once")
    draw_differences(eight_times, USED_EIGHT_TIMES, "each batch used eight times")
    figure.supxlabel("held-out accuracy minus that of GRPO", color=GREY, fontsize=10)
    return figure


def draw_differences(axes: Axes, differences: list[Difference], title: str) -> None:
    """Draw one interval for each loss; a hollow point is a difference that is not shown."""
    axes.axvline(0, color=GREY, linewidth=1)
    for place, difference in enumerate(differences):
        better_or_worse = palette.BLUE if difference.value > 0 else palette.VERMILION
        colour = better_or_worse if difference.is_shown else GREY
        axes.plot([difference.low, difference.high], [place, place], color=colour, linewidth=2)
        fill = colour if difference.is_shown else "none"
        axes.plot(difference.value, place, "D", color=colour, markerfacecolor=fill)
    axes.set_yticks(range(len(differences)), [difference.loss for difference in differences])
    axes.set(title=title, xlim=(-0.26, 0.1), ylim=(len(differences) - 0.5, -0.5))
    make_grey(axes)


def make_grey(axes: Axes) -> None:
    """Remove the background and two spines, and colour the rest of the axes grey."""
    axes.set_facecolor("none")
    axes.tick_params(colors=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(GREY)


if __name__ == "__main__":
    draw_step().savefig(ROOT / "docs/grpo.png", dpi=160)
    draw_tree().savefig(ROOT / "docs/tree.png", dpi=160)
    draw_loss().savefig(ROOT / "docs/loss.png", dpi=160)
    draw_hacking().savefig(ROOT / "docs/hacking.png", dpi=160)
    quickstart = draw_results(QUICKSTART, "Good answers to 96 held-out sums")
    quickstart.savefig(ROOT / "docs/quickstart_result.png", dpi=160)
    labels = draw_results(LABELS, "Right answers to held-out remarks")
    labels.savefig(ROOT / "docs/your_data.png", dpi=160)
    measures = draw_results(MEASURES, "One training, 96 held-out questions")
    measures.savefig(ROOT / "docs/evaluate.png", dpi=160)
    checks = draw_results(CHECKS, "Checks passed by eight held-out summaries")
    checks.savefig(ROOT / "docs/judge.png", dpi=160)
    draw_rounding().savefig(ROOT / "docs/rounding.png", dpi=160)
    draw_algorithms().savefig(ROOT / "docs/algorithms.png", dpi=160)
