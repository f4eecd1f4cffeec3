"""The parts of a comparison's card: sentences, table, notes and figure.

The card escapes all text that a model, a user or a data set wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core.palette import BLUE, GREY
from grpo_nb.core.statistics import MIN_QUESTIONS, NO_DIFFERENCE, PairedResult
from grpo_nb.core.tables import RichText, Table, notes
from grpo_nb.evaluation.results import MEASURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grpo_nb.evaluation.comparison import Comparison

STYLES = {"before": (GREY, "none", -0.2), "after": (BLUE, BLUE, 0.2)}
"""Colour, fill of the mark, and distance from the middle of the line, as a part of its height.

In greyscale, hollow and filled marks distinguish the models."""

LINE_INCHES = 0.42
"""Height of one line, which shows one measure of both models."""


def measures_sentence(comparison: Comparison) -> str:
    """Return the three measures before and after, each with its own verdict."""
    # A function may call an answer correct that is not in the format.
    needs_both = ", which needs both" if comparison.after.grader.reads_slot else ""
    return (
        f"The answers themselves: {_measure_in_words(comparison, 'anywhere')}. "
        f"In the format: {_measure_in_words(comparison, 'in_format')}. "
        f"Correct{needs_both}: {_measure_in_words(comparison, 'accuracy')}."
    )


def _measure_in_words(comparison: Comparison, measure: str) -> str:
    """Return a measure before and after, with its own verdict."""
    test = comparison.tests[measure]
    if test is None:
        return "not measured"
    shares = [f"{100 * side.share_of(measure):.0f} %" for side in comparison.sides.values()]
    return f"{' to '.join(shares)} ({_verdict_of(test)})"


def _verdict_of(test: PairedResult) -> str:
    """Return the verdict of a test, with the p-value of a difference that is shown."""
    if test.verdict == NO_DIFFERENCE:
        return NO_DIFFERENCE
    p_value = "p < 0.001" if test.p_value < 0.001 else f"p = {test.p_value:.3f}"
    return f"{test.verdict}, {p_value}"


def power_sentence(test: PairedResult) -> str:
    """Return a sentence on the differences that a test can detect."""
    if test.detectable_difference is None:
        return (
            f"With fewer than {MIN_QUESTIONS} questions no difference is claimed, however large "
            "it is. Ask more questions."
        )
    return (
        f"With {test.questions} questions, this test detects a true change of "
        f"{100 * test.detectable_difference:.0f} points in the share of correct answers 80 % of "
        "the time."
    )


def comparison_table(comparison: Comparison) -> Table:
    """Return the measures of each model, with the change and p-value of the three tested ones."""
    tests = {MEASURES[name].label: test for name, test in comparison.tests.items()}
    rows = []
    for label, value_before in comparison.before.table_rows.items():
        # pass@k, lengths and truncation have no test, so their last two cells are empty.
        test = tests.get(label)
        cells = ["", ""]
        if test is not None:
            cells = [f"{100 * test.difference:+.1f} points", _verdict_of(test)]
        rows.append([label, value_before, comparison.after.table_rows[label], *cells])
    number_columns = (1, 2, 3)
    return Table(
        rows,
        head=["", comparison.before.label, comparison.after.label, "change", "verdict, p-value"],
        right=number_columns,
        narrow=number_columns,
    )


def comparison_notes(comparison: Comparison) -> RichText:
    """Return the notes below the table. HTML folds those that only explain its numbers."""
    # Both evaluations have the same conditions, so `after` can speak for both.
    after = comparison.after
    counts = ", ".join(f"{count} {name}" for name, count in comparison.change_counts.items())
    majority = comparison.majority
    facts = [
        after.conditions_in_words,
        f"Questions: {counts}. comparison.transcripts() has the answers.",
        "" if majority is None else majority.sentence,
        after.contamination_sentence,
    ]
    explanations = [
        "In brackets: 95 % interval, the range in which the true share probably lies.",
        "p: how often two equally good models show such a change, or a larger one, by chance. "
        "0.05 is once in 20 comparisons.",
    ]
    power = power_sentence(comparison.accuracy_test)
    if comparison.verdict == NO_DIFFERENCE:
        # Not folded, so that nobody takes "no difference shown" for "equally good".
        facts.append(power)
    else:
        explanations.append(power)
    explanations.append(after.anywhere_sentence)
    for side in comparison.sides.values():
        model_id = f" Model {side.model_id}." if side.model_id else ""
        explanations.append(f"{side.label}: {side.description}{model_id}")
    return notes(facts, explanations)


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw one line for each tested measure, with both shares and their intervals."""
    # Imported here, so that the numbers of a comparison load no matplotlib.
    from matplotlib.figure import Figure

    from grpo_nb.runs.figure import style_axes

    measures = [name for name, test in comparison.tests.items() if test]
    figure = Figure(
        # Title, axis and legend need 0.75 inches.
        figsize=(8.0, 0.75 + LINE_INCHES * len(measures)),
        layout="constrained",
        facecolor="none",
    )
    axes = figure.subplots()
    style_axes(
        axes,
        f"Share of answers, {comparison.after.question_count} questions, 95 % intervals",
        grid="x",
    )
    for line, measure in enumerate(measures):
        for name, side in comparison.sides.items():
            share = side.share_of(measure)
            low, high = side.interval_of(measure)
            colour, fill, offset = STYLES[name]
            y = line + offset
            axes.hlines(y, low, high, color=colour)
            axes.plot(share, y, "o", color=colour, markerfacecolor=fill)
            axes.text(high, y, f"  {share:.0%}", color=colour, va="center")
    axes.set(
        yticks=range(len(measures)),
        yticklabels=[MEASURES[measure].label for measure in measures],
        # As in the table, the first measure is at the top.
        ylim=(len(measures) - 0.5, -0.5),
        # Marks at 0 % and 100 % are not cut, and the shares are written to the right.
        xlim=(-0.02, 1.09),
        frame_on=False,
    )
    axes.xaxis.set_major_formatter("{x:.0%}")
    # Each line has the same two marks.
    figure.legend(
        axes.lines[:2],
        STYLES,
        loc="outside lower left",
        ncols=2,
        frameon=False,
        labelcolor="linecolor",
    )
    return figure
