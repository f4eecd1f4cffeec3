"""The words and the card of a comparison: what improved, by how much, how sure, and who judged.

Everything that a model, a user or a data set wrote is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_nb.core.statistics import FEWEST_QUESTIONS, PairedResult
from grpo_nb.core.tables import Html, Part, Table, as_written, bold, escaped
from grpo_nb.evaluation.results import MEASURES

if TYPE_CHECKING:
    import pandas

    from grpo_nb.evaluation.comparison import Comparison

NO_DIFFERENCE = "no difference shown"

EXAMPLES = 3
"""Answers that the card shows."""


def headline(comparison: Comparison) -> str:
    """Return the verdict, and what changed: the format, the answers, or both."""
    verdict = comparison.verdict
    if verdict == NO_DIFFERENCE:
        return "No difference shown in correct answers."
    in_format = comparison.results["format"]
    anywhere = comparison.results["anywhere"]
    has_format = in_format is not None and in_format.verdict == verdict
    if anywhere is None:
        # Without this measure, nobody knows how much of the change is the format.
        changed = "correct answers (format and answer were not measured apart)"
        if comparison.after.unproven_judge:
            changed = f"the score of {comparison.after.unproven_judge}()"
        elif not has_format:
            changed = "the answers"
        return f"{verdict.capitalize()}: {changed}."
    if {verdict, anywhere.verdict} == {"better", "worse"}:
        opposite = anywhere.verdict.capitalize()
        return f"{verdict.capitalize()}: the format. {opposite}: the answers."
    has_answers = anywhere.verdict == verdict
    # If both changed, the answers are named only if they make at least half of the change.
    is_half = anywhere.difference / comparison.result.difference >= 0.5
    if has_answers and not has_format:
        changed = "the answers"
    elif has_answers and is_half:
        changed = "the answers and the format"
    elif has_format:
        changed = "the format"
    else:  # neither measure alone shows a difference
        changed = "right answers in the format"
    return f"{verdict.capitalize()}: {changed}."


def sentence(comparison: Comparison) -> str:
    """Return the result in words: what changed, the three measures, the judge, what spoils it."""
    result = comparison.result
    low, high = result.interval
    sentences = [
        headline(comparison),
        measures_sentence(comparison),
        f"The share of correct answers changed by {100 * result.difference:+.1f} points on "
        f"{result.questions} questions (95 % interval {100 * low:+.1f} to {100 * high:+.1f}).",
        _base_sentence(comparison),
    ]
    if comparison.verdict == NO_DIFFERENCE:
        sentences.append(power_sentence(comparison))
    sentences.append(f"Counted as correct: {comparison.after.judged_by}.")
    contamination = comparison.contamination
    if contamination and contamination.count:
        sentences.append(contamination.sentence)
    return " ".join(sentence for sentence in sentences if sentence)


def measures_sentence(comparison: Comparison) -> str:
    """Return the three measures before and after, each with its own verdict."""
    # A function may call an answer correct that is not in the format.
    needs_both = ", which needs both" if comparison.after.compares_gold else ""
    return (
        f"The answers themselves: {_change(comparison, 'anywhere')}. "
        f"In the format: {_change(comparison, 'format')}. "
        f"Correct{needs_both}: {_change(comparison, 'correct')}."
    )


def _base_sentence(comparison: Comparison) -> str:
    if comparison.base is None:
        return ""
    return (
        f"The base model has {comparison.base.accuracy:.1%}. This run started from a trained "
        "adapter, and the verdict is about this run alone."
    )


def _change(comparison: Comparison, measure: str) -> str:
    """Return a measure before and after, with its own verdict."""
    result = comparison.results[measure]
    if result is None:
        return "not measured"
    before = _whole_percent(comparison.before.share_of(measure))
    after = _whole_percent(comparison.after.share_of(measure))
    verdict = result.verdict
    if verdict != NO_DIFFERENCE:
        verdict = f"{verdict}, {_p_value(result)}"
    return f"{before} to {after} ({verdict})"


def _whole_percent(share: float) -> str:
    """Return a share in whole percent, with one decimal where rounding would give 0 % or 100 %."""
    is_near_an_end = 0 < share < 0.005 or 0.995 <= share < 1
    return f"{100 * share:.1f} %" if is_near_an_end else f"{100 * share:.0f} %"


def _p_value(result: PairedResult) -> str:
    return "p < 0.001" if result.p_value < 0.001 else f"p = {result.p_value:.3f}"


def power_sentence(comparison: Comparison) -> str:
    """Return a sentence on the differences that this comparison can detect."""
    result = comparison.result
    if result.smallest is None:
        return (
            f"With fewer than {FEWEST_QUESTIONS} questions no difference is claimed, however large "
            "it is. Ask more questions."
        )
    smaller = ""
    if comparison.verdict == NO_DIFFERENCE:
        smaller = " A smaller one may exist without being seen."
    return (
        f"With {result.questions} questions, this test detects a true difference of "
        f"{100 * result.smallest:.0f} points 80 % of the time.{smaller}"
    )


def certainty(result: PairedResult | None) -> str:
    """Return whether a difference is shown, with its p-value.

    >>> from grpo_nb.core.statistics import paired_result
    >>> certainty(paired_result([0.0] * 40, [1.0] * 10 + [0.0] * 30))
    'shown (p = 0.002)'
    """
    if result is None:
        return ""
    if result.verdict != NO_DIFFERENCE:
        return f"shown ({_p_value(result)})"
    if result.difference == 0:
        return "no change"
    if result.questions < FEWEST_QUESTIONS:
        return "too few questions to tell"
    return f"not shown ({_p_value(result)})"


def parts(comparison: Comparison) -> Iterator[Part]:
    """Yield the parts of the card, from the verdict to the small print."""
    yield bold(headline(comparison))
    yield measures_sentence(comparison)
    yield _table(comparison)
    yield f"{comparison.after.asked} Counted as correct: {comparison.after.judged_by}."
    yield _base_sentence(comparison)
    yield _questions_sentence(comparison)
    majority = comparison.majority
    yield "" if majority is None else majority.sentence
    sides = comparison.columns.values()
    unique_notes = dict.fromkeys(note for side in sides for note in side.notes)
    yield from unique_notes
    encoded = base64.b64encode(picture(comparison)).decode()
    alt = escaped(f"Held-out comparison. {sentence(comparison)}")
    yield Html(
        "",
        f'<img alt="{alt}" src="data:image/png;base64,{encoded}" '
        'style="max-width:100%;width:720px">',
    )
    examples = comparison.transcripts().head(EXAMPLES)
    caption = (
        f"{len(examples)} of {len(comparison.after.rows)} answers; comparison.transcripts() has "
        "all, changed ones first:"
    )
    yield Html("", escaped(caption) + _example_table(comparison, examples).html())
    yield _small_print(comparison)


def picture(comparison: Comparison) -> bytes:
    """Return the figure as a PNG file."""
    # Imported here, so that the numbers of a comparison load no matplotlib.
    from grpo_nb.runs.figure import png

    return png(comparison.plot(), dpi=120)


def _table(comparison: Comparison) -> Table:
    """Return the measures of each model, and for the first three the change and how sure it is."""
    sides = list(comparison.columns.values())
    results = {MEASURES[name].label: result for name, result in comparison.results.items()}
    rows = []
    for numbers in zip(*(side.numbers for side in sides), strict=True):
        name = numbers[0][0]
        result = results.get(name)
        change = "" if result is None else f"{100 * result.difference:+.1f} points"
        values = [value for _, value in numbers]
        rows.append([name, *values, change, certainty(result)])
    head = ["", *(side.label for side in sides), "change", "how sure"]
    number_columns = range(1, len(sides) + 2)
    return Table(rows, head=head, right=number_columns, narrow=number_columns)


def _questions_sentence(comparison: Comparison) -> str:
    """Return what became of the questions."""
    counts = ", ".join(f"{count} {name}" for name, count in comparison.changed.items())
    return f"Questions: {counts}."


def _example_table(comparison: Comparison, examples: pandas.DataFrame) -> Table:
    """Return some transcripts, with the three judgements of a completion in one cell."""
    rows = []
    for example in examples.to_dict("records"):
        cells = [example["change"], example["question"], example["answer"]]
        for name in comparison.columns:
            judgement = example[f"{name}_is"]
            judgement += (
                ", in the format" if example[f"{name}_in_format"] else ", not in the format"
            )
            if example[f"{name}_is"] != "right" and example[f"{name}_anywhere"]:
                judgement += ", correct answer anywhere"
            cells += [example[name], judgement]
        rows.append([as_written(str(cell)) for cell in cells])
    head = ["change", "question", "answer"]
    for name in comparison.columns:
        head += [name, f"{name}_is"]
    return Table(rows, head=head)


def _small_print(comparison: Comparison) -> Html:
    """Return how the numbers were made, with the ids of the models."""
    lines = [
        "In brackets: 95 % interval, the range in which the true share probably lies.",
        "p: how often two equally good models show such a change, or a larger one, by chance. "
        "0.05 is once in 20 comparisons.",
        power_sentence(comparison),
        comparison.after.anywhere_sentence,
    ]
    for side in comparison.columns.values():
        model_id = f" Model {side.model_id}." if side.model_id else ""
        lines.append(f"{side.label}: {side.subject}{model_id}")
    words = "\n".join(line for line in lines if line)
    markup = "<br>".join(escaped(line) for line in lines if line)
    return Html(words, f"<small>{markup}</small>")
