"""Draw the schematic pictures of the README and the first notebooks into docs/.

    PYTHONPATH=. python scripts/schematic.py

grpo.png shows one GRPO step, tree.png a group as a tree, loss.png the loss, hacking.png two
trainings, your_data.png a result by label and judge.png a result by check. The text is grey and the
background transparent, so that light and dark pages can show it.
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
    """A kind of held-out answers, and how many of them are good before and after the training."""

    name: str
    answers: int
    before: int
    after: int


# The numbers of notebooks/03_your_data, as it was executed.
LABELS = [
    Result("all remarks", 42, 19, 27),
    Result("negative", 12, 6, 12),
    Result("positive", 15, 13, 15),
    Result("neutral", 15, 0, 0),
]
# The checks of notebooks/08_judge on its eight held-out answers, as it was executed.
CHECKS = [
    Result("all four checks", 32, 2, 16),
    Result("one sentence", 8, 0, 6),
    Result("5 to 18 words", 8, 0, 5),
    Result("words of the note", 8, 0, 3),
    Result("what it is about", 8, 2, 2),
]


def draw_results(results: list[Result], title: str) -> Figure:
    """Return bars with the share of good answers of each kind, before and after a training."""
    figure = Figure(figsize=(8, 2.7), facecolor="none", layout="constrained")
    axes = figure.subplots()
    for place, result in enumerate(results):
        draw_bar(axes, place - 0.2, result.before, result.answers, palette.GREY)
        draw_bar(axes, place + 0.2, result.after, result.answers, palette.BLUE)
    axes.text(-0.2, 1.08, "before", ha="center", color=palette.GREY)
    axes.text(0.2, 1.08, "after", ha="center", color=palette.BLUE)
    axes.set_xticks(range(len(results)), [result.name for result in results])
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set(title=title, ylim=(0, 1.2))
    make_grey(axes)
    return figure


def draw_bar(axes: Axes, x: float, good: int, answers: int, colour: str) -> None:
    """Draw the share of good answers as a bar, with the two counts above it."""
    share = good / answers
    axes.bar(x, share, width=0.38, color=colour)
    axes.text(x, share + 0.03, f"{good} of {answers}", ha="center", va="bottom", color=colour)


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
    labels = draw_results(LABELS, "Right answers to held-out remarks")
    labels.savefig(ROOT / "docs/your_data.png", dpi=160)
    checks = draw_results(CHECKS, "Checks passed by eight held-out summaries")
    checks.savefig(ROOT / "docs/judge.png", dpi=160)
