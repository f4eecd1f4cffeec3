"""Two models on the same questions: the tested difference in each measure, shown and saved.

A verdict of `better` or `worse` needs at least ten questions, and a p-value below 0.05 in an exact
test. Otherwise it is "no difference shown". The card escapes all text that a model, a user or a
data set wrote.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import staged_file, write_json
from grpo_nb.core.statistics import MIN_QUESTIONS, NO_DIFFERENCE, PairedResult, paired_result
from grpo_nb.core.tables import Part, ReprMixin, RichText, Table, bold, html_of, notes
from grpo_nb.evaluation.results import MEASURES, Evaluation
from grpo_nb.runs.outcome import MajorityBaseline
from grpo_nb.tasks.contamination import Contamination

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MIN_MAJORITY_SHARE = 0.2
"""Smallest share of questions with the same gold answer that makes this answer a baseline."""

MIN_MAJORITY_COUNT = 3
"""Smallest number of questions with the same gold answer that makes this answer a baseline."""

QUESTION_CHANGES = ("lost", "gained", "equal", "both wrong", "both right")
"""Changes of a question, in the order of `Comparison.transcripts`."""


@dataclass(frozen=True, repr=False)
class Comparison(ReprMixin):
    """Two evaluations on the same questions, and the paired difference, after minus before."""

    before: Evaluation
    """The model compared with. For a run, the model that it started from."""
    after: Evaluation

    def __post_init__(self) -> None:
        if self.before.samples != self.after.samples:
            raise ValueError(
                f"{self.before.label!r} gave {self.before.samples} answers to each question, and "
                f"{self.after.label!r} gave {self.after.samples}, so they cannot be compared. Ask "
                "both models with the same samples=..."
            )
        questions_before = [row["question"] for row in self.before.rows]
        questions_after = [row["question"] for row in self.after.rows]
        if questions_before != questions_after:
            raise ValueError(
                f"{self.before.label!r} and {self.after.label!r} are not answers to the same "
                "questions, so they cannot be compared. Ask both models the same questions: "
                "gn.compare(run_or_model, against=other, task=task)."
            )

    @property
    def sides(self) -> dict[str, Evaluation]:
        """The evaluations in the order of the tables."""
        return {"before": self.before, "after": self.after}

    @functools.cached_property
    def results(self) -> dict[str, PairedResult | None]:
        """Paired test of `accuracy`, `in_format` and `anywhere`, None if it was not measured."""
        results = {}
        for measure in MEASURES:
            before = self.before.shares_of(measure)
            after = self.after.shares_of(measure)
            results[measure] = None
            # Without a value on both sides there is no difference, not even 0.
            if before is not None and after is not None:
                results[measure] = paired_result(before, after, self.after.samples)
        return results

    @property
    def result(self) -> PairedResult:
        """Paired test of the correct answers."""
        return self.results["accuracy"]

    @property
    def verdict(self) -> str:
        """Verdict on correct answers: `better`, `worse` or `no difference shown`."""
        return self.result.verdict

    @property
    def anywhere_verdict(self) -> str | None:
        """Verdict on correct answers anywhere in the completion, None if not measured."""
        result = self.results["anywhere"]
        return None if result is None else result.verdict

    @property
    def contamination(self) -> Contamination | None:
        """Number of questions that were trained on, None if it is unknown whether there are any."""
        return self.after.contamination

    @property
    def change_counts(self) -> dict[str, int]:
        """Number of questions per change: `gained`, `lost`, `both right` or `both wrong`.

        With several samples, a question whose share of correct answers stays the same,
        strictly between 0 and 1, is `equal`.
        """
        # The four usual changes are listed even if their count is 0; `equal` only if it occurs.
        usual = dict.fromkeys(("gained", "lost", "both right", "both wrong"), 0)
        return usual | Counter(self._question_changes())

    def _question_changes(self) -> Iterator[str]:
        """Yield the change of each question."""
        shares_before = self.before.shares_of("accuracy")
        shares_after = self.after.shares_of("accuracy")
        for before, after in zip(shares_before, shares_after, strict=True):
            if after > before:
                yield "gained"
            elif after < before:
                yield "lost"
            elif after == 0:
                yield "both wrong"
            elif after == 1:
                yield "both right"
            else:
                yield "equal"

    @property
    def majority(self) -> MajorityBaseline | None:
        """Majority-class baseline next to the accuracy, None if no gold answer repeats often.

        None also if a function decides what is correct and scored no gold answer above a wrong one.
        """
        # Each question counts once, however many samples it has.
        golds = [row["answer"] for row in self.after.rows[:: self.after.samples]]
        answer, count = Counter(golds).most_common(1)[0]
        is_frequent = count >= max(MIN_MAJORITY_COUNT, MIN_MAJORITY_SHARE * len(golds))
        if not is_frequent or self.after.unproven_grader_name:
            return None
        share = count / len(golds)
        # The baseline is a fixed share, so it is compared with the interval of the accuracy.
        is_above = self.after.interval[0] > share
        position = "is above" if is_above else "is not clearly above"
        sentence = (
            f"Always answering {answer!r:.60} would get {share:.1%} right: the accuracy of "
            f"{self.after.accuracy:.1%} {position} this majority-class baseline."
        )
        return MajorityBaseline(
            answer=answer,
            share=share,
            is_beaten=is_above,
            sentence=sentence,
        )

    @property
    def headline(self) -> str:
        """Verdict, and what changed: the format, the answers, or both."""
        verdict = self.verdict
        if verdict == NO_DIFFERENCE:
            return "No difference shown in correct answers."
        headline = f"{verdict.capitalize()}: {self._what_changed()}."
        # More answers in the format can hide that fewer answers are right.
        if {verdict, self.anywhere_verdict} == {"better", "worse"}:
            headline += f" {self.anywhere_verdict.capitalize()}: the answers."
        return headline

    def _what_changed(self) -> str:
        """Return in words which measures have the same verdict as the correct answers."""
        if self.after.unproven_grader_name:
            return f"the score of {self.after.unproven_grader_name}()"
        anywhere = self.results["anywhere"]
        if anywhere is None:
            # Nobody knows how much of the change is the format.
            return "correct answers"
        has_answers = anywhere.verdict == self.verdict
        has_format = self.results["in_format"].verdict == self.verdict
        if has_answers and has_format:
            if anywhere.difference / self.result.difference < 0.5:
                return "mostly the format, but also the answers"
            return "the answers and the format"
        if has_answers:
            return "the answers"
        if has_format:
            return "the format"
        # Neither measure alone changed clearly. The share that is right and in the format did.
        return "right answers in the format"

    @property
    def sentence(self) -> str:
        """Result in words: what changed, the measures, what counts as correct, contamination."""
        result = self.result
        low, high = result.interval
        sentences = [
            self.headline,
            _measures_sentence(self),
            f"The share of correct answers changed by {100 * result.difference:+.1f} points on "
            f"{result.questions} questions (95 % interval {100 * low:+.1f} to {100 * high:+.1f}).",
        ]
        if self.verdict == NO_DIFFERENCE:
            sentences.append(_power_sentence(result))
        sentences.append(f"Counted as correct: {self.after.correctness_rule}.")
        if self.contamination is not None and self.contamination.trained_count:
            sentences.append(self.contamination.sentence)
        return " ".join(sentences)

    def transcripts(self) -> pandas.DataFrame:
        """Return every completion of the models side by side, those of changed questions first.

        Columns: `change` of the question (`lost`, `gained`, `equal`, `both wrong`, `both right`),
        `question`, and the gold `answer`. For each model, its completion (`before`, `after`), the
        grade (`before_grade`: `right`, `wrong` or `no answer`), `before_in_format`, and
        `before_anywhere`: True if the last candidate is correct, None if not measured.
        """
        import pandas

        changes = pandas.Series(list(self._question_changes())).repeat(self.after.samples)
        table = pandas.DataFrame(self.after.rows)[["question", "answer"]]
        # The order of the categories sorts lost questions to the top.
        table.insert(0, "change", pandas.Categorical(changes, QUESTION_CHANGES, ordered=True))
        for name, side in self.sides.items():
            answers = pandas.DataFrame(side.rows)
            table[name] = answers["completion"]
            table[f"{name}_grade"] = [
                _grade_in_words(row, side.is_gold_compared) for row in side.rows
            ]
            table[f"{name}_in_format"] = answers["is_formatted"]
            table[f"{name}_anywhere"] = answers["is_correct_anywhere"]
        return table.sort_values("change", kind="stable", ignore_index=True)

    def plot(self) -> Figure:
        """Draw the three measures of each model with their intervals."""
        # Imported here, so that numbers do not load matplotlib.
        from grpo_nb.evaluation.figure import comparison_figure

        return comparison_figure(self)

    def save(self, folder: str | Path) -> None:
        """Write the numbers (comparison.json) and `transcripts()` (parquet) into a folder.

        The numbers are written last, because their file marks a complete comparison.
        """
        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        # `to_dict` can fail, so it is called before a file is replaced.
        numbers = self.to_dict()
        with staged_file(folder / "transcripts.parquet") as file:
            self.transcripts().to_parquet(file, index=False)
        write_json(folder / "comparison.json", numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, fit for JSON."""
        tests = dict.fromkeys(self.results)
        for measure, result in self.results.items():
            if result is not None:
                tests[measure] = dataclasses.asdict(result) | {"verdict": result.verdict}
        majority = self.majority
        contamination = self.contamination
        return {
            "sentence": self.sentence,
            "verdict": self.verdict,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "tests": tests,
            "majority": None if majority is None else dataclasses.asdict(majority),
            "contamination": None if contamination is None else dataclasses.asdict(contamination),
        }

    def _shown_parts(self) -> Iterator[Part]:
        """Yield the parts of the card, from the verdict to the notes below the table."""
        yield bold(self.headline)
        yield _measures_sentence(self)
        yield _table(self)
        yield _notes(self)

    def _repr_html_(self) -> str:
        """Return the card as a page, with the figure."""
        # Imported here, so that the numbers of a comparison load no matplotlib.
        from grpo_nb.runs.figure import figure_html

        figure = figure_html(self.plot(), f"Held-out comparison. {self.sentence}")
        return html_of([*self._shown_parts(), figure])


def _grade_in_words(row: Mapping[str, Any], is_gold_compared: bool) -> str:
    if row["is_correct"]:
        return "right"
    # A function may read an answer outside of the answer slot.
    return "no answer" if is_gold_compared and row["extracted_answer"] is None else "wrong"


def _measures_sentence(comparison: Comparison) -> str:
    """Return the three measures before and after, each with its own verdict."""
    # A function may call an answer correct that is not in the format.
    needs_both = ", which needs both" if comparison.after.is_gold_compared else ""
    return (
        f"The answers themselves: {_measure_in_words(comparison, 'anywhere')}. "
        f"In the format: {_measure_in_words(comparison, 'in_format')}. "
        f"Correct{needs_both}: {_measure_in_words(comparison, 'accuracy')}."
    )


def _measure_in_words(comparison: Comparison, measure: str) -> str:
    """Return a measure before and after, with its own verdict."""
    result = comparison.results[measure]
    if result is None:
        return "not measured"
    before = 100 * comparison.before.share_of(measure)
    after = 100 * comparison.after.share_of(measure)
    return f"{before:.0f} % to {after:.0f} % ({_verdict_of(result)})"


def _verdict_of(result: PairedResult) -> str:
    """Return the verdict of a test, with the p-value of a difference that is shown."""
    if result.verdict == NO_DIFFERENCE:
        return NO_DIFFERENCE
    p_value = "p < 0.001" if result.p_value < 0.001 else f"p = {result.p_value:.3f}"
    return f"{result.verdict}, {p_value}"


def _power_sentence(result: PairedResult) -> str:
    """Return a sentence on the differences that a test can detect."""
    if result.detectable_difference is None:
        return (
            f"With fewer than {MIN_QUESTIONS} questions no difference is claimed, however large "
            "it is. Ask more questions."
        )
    return (
        f"With {result.questions} questions, this test detects a true change of "
        f"{100 * result.detectable_difference:.0f} points in the share of correct answers 80 % of "
        "the time."
    )


def _table(comparison: Comparison) -> Table:
    """Return the measures of each model, with the change and p-value of the three tested ones."""
    before, after = comparison.sides.values()
    # The three tested measures are the first rows of both tables. pass@k, lengths and truncation
    # follow, without a test.
    lines = zip_longest(before.table_rows, after.table_rows, comparison.results.values())
    rows = []
    for (name, value_before), (_, value_after), result in lines:
        cells = ["", ""]
        if result is not None:
            cells = [f"{100 * result.difference:+.1f} points", _verdict_of(result)]
        rows.append([name, value_before, value_after, *cells])
    number_columns = (1, 2, 3)
    return Table(
        rows,
        head=["", before.label, after.label, "change", "verdict, p-value"],
        right=number_columns,
        narrow=number_columns,
    )


def _notes(comparison: Comparison) -> RichText:
    """Return the notes below the table. HTML folds those that only explain its numbers."""
    # Both models are asked the same questions, so `after` can speak for both.
    after = comparison.after
    counts = ", ".join(f"{count} {name}" for name, count in comparison.change_counts.items())
    majority = comparison.majority
    facts = [
        f"{after.asked_sentence} Counted as correct: {after.correctness_rule}.",
        f"Questions: {counts}. comparison.transcripts() has the answers.",
        "" if majority is None else majority.sentence,
        after.contamination_sentence,
    ]
    explanations = [
        "In brackets: 95 % interval, the range in which the true share probably lies.",
        "p: how often two equally good models show such a change, or a larger one, by chance. "
        "0.05 is once in 20 comparisons.",
    ]
    power = _power_sentence(comparison.result)
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
