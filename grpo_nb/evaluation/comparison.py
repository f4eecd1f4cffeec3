"""Two models on the same questions: the tested difference in each measure, in words and saved.

A verdict of `better` or `worse` needs at least ten questions, and a p-value below 0.05 in an exact
test. Otherwise it is "no difference shown". `comparison_card` has the parts of the card.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import staged_file, write_json
from grpo_nb.core.statistics import NO_DIFFERENCE, PairedResult, paired_result
from grpo_nb.core.tables import Part, ReprMixin, bold, html_of
from grpo_nb.evaluation.comparison_card import (
    comparison_figure,
    comparison_notes,
    comparison_table,
    measures_sentence,
    power_sentence,
)
from grpo_nb.evaluation.results import MEASURES, Evaluation
from grpo_nb.runs.run_info import MajorityBaseline
from grpo_nb.tasks.contamination import Contamination
from grpo_nb.tasks.read_rows import Row

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MIN_MAJORITY_SHARE = 0.2
"""Smallest share of questions with the same gold answer that makes this answer a baseline."""

MIN_MAJORITY_COUNT = 3
"""Smallest number of questions with the same gold answer that makes this answer a baseline."""

MIN_ANSWERS_PART = 0.5
"""Part of a gain that the answers must make up, so that it is not "mostly the format"."""

QUESTION_CHANGES = ("lost", "gained", "equal", "both wrong", "both right")
"""Changes of a question, in the order of `Comparison.transcripts`."""


@dataclass(frozen=True, repr=False)
class Comparison(ReprMixin):
    """Two evaluations on the same questions, and the paired difference, after minus before."""

    before: Evaluation
    """The model compared with. For a run, the model that it started from."""
    after: Evaluation

    def __post_init__(self) -> None:
        # `gn.compare` asks both models alike, but the two evaluations may have been made apart.
        for condition, value_before in self.before.conditions.items():
            value_after = self.after.conditions[condition]
            if value_before != value_after:
                raise ValueError(
                    f"{self.before.label!r} and {self.after.label!r} have different {condition}: "
                    f"{value_before!r:.60} and {value_after!r:.60}. Their difference would not be "
                    "that of the models alone. Ask both models in the same way: "
                    "gn.compare(run_or_model, against=other, task=task)."
                )

    @property
    def sides(self) -> dict[str, Evaluation]:
        """The evaluations in the order of the tables."""
        return {"before": self.before, "after": self.after}

    @functools.cached_property
    def tests(self) -> dict[str, PairedResult | None]:
        """Paired test of `accuracy`, `in_format` and `anywhere`, None if it was not measured."""
        tests = dict.fromkeys(MEASURES)
        for measure in MEASURES:
            shares = [side.shares_of(measure) for side in self.sides.values()]
            # Without a value on both sides there is no difference, not even 0.
            if None not in shares:
                tests[measure] = paired_result(*shares, self.after.samples)
        return tests

    @property
    def accuracy_test(self) -> PairedResult:
        """Paired test of the correct answers."""
        return self.tests["accuracy"]

    @property
    def verdict(self) -> str:
        """Verdict on correct answers: `better`, `worse` or `no difference shown`."""
        return self.accuracy_test.verdict

    @property
    def anywhere_verdict(self) -> str | None:
        """Verdict on correct answers anywhere in the completion, None if not measured."""
        test = self.tests["anywhere"]
        return test and test.verdict

    @property
    def contamination(self) -> Contamination | None:
        """Number of questions that were trained on, None if it is unknown whether there are any."""
        # Both evaluations have the same number, which is one of their `conditions`.
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

    def _question_changes(self) -> list[str]:
        """Return the change of each question."""
        shares_before = self.before.shares_of("accuracy")
        shares_after = self.after.shares_of("accuracy")
        return list(map(_change_in_words, shares_before, shares_after))

    @property
    def majority(self) -> MajorityBaseline | None:
        """Majority-class baseline next to the accuracy, None if no gold answer repeats often.

        None also if a function decides what is correct and scored no gold answer above a wrong one.
        """
        # Each question counts once, however many samples it has.
        golds = Counter(row["answer"] for row in self.after.rows[:: self.after.samples])
        answer, count = golds.most_common(1)[0]
        share = count / self.after.question_count
        if count < MIN_MAJORITY_COUNT or share < MIN_MAJORITY_SHARE:
            return None
        if not self.after.grader.tells_gold_from_wrong:
            return None
        # The baseline is a fixed share, so it is compared with the interval of the accuracy.
        is_beaten = self.after.interval_of("accuracy")[0] > share
        position = "is above" if is_beaten else "is not clearly above"
        sentence = (
            f"Always answering {answer!r:.60} would get {share:.1%} right: the accuracy of "
            f"{self.after.accuracy:.1%} {position} this majority-class baseline."
        )
        return MajorityBaseline(answer, share, is_beaten, sentence)

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
        grader = self.after.grader
        # If wrong answers score as high as gold ones, a better score is no better answer.
        if not grader.tells_gold_from_wrong:
            return f"the score of {grader.name}()"
        anywhere = self.tests["anywhere"]
        if anywhere is None:
            # Nobody knows how much of the change is the format.
            return "correct answers"
        has_answers = anywhere.verdict == self.verdict
        has_format = self.tests["in_format"].verdict == self.verdict
        if has_answers and has_format:
            # `anywhere` also counts right answers outside of the format. So its change is that of
            # the answers, and the rest of the change in correct answers is the format.
            if anywhere.difference / self.accuracy_test.difference < MIN_ANSWERS_PART:
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
        test = self.accuracy_test
        low, high = test.interval
        sentences = [
            self.headline,
            measures_sentence(self),
            f"The share of correct answers changed by {100 * test.difference:+.1f} points on "
            f"{test.questions} questions (95 % interval {100 * low:+.1f} to {100 * high:+.1f}).",
        ]
        if self.verdict == NO_DIFFERENCE:
            sentences.append(power_sentence(test))
        sentences.append(f"Counted as correct: {self.after.grader.correctness_rule}.")
        if self.contamination is not None and self.contamination.trained_count:
            sentences.append(self.contamination.sentence)
        return " ".join(sentences)

    def transcripts(self) -> pandas.DataFrame:
        """Return every completion of the models side by side, those of changed questions first.

        Columns: `change` of the question (`lost`, `gained`, `equal`, `both wrong`, `both right`),
        `question`, and the gold `answer`. For each model, its completion (`before`, `after`), the
        grade (`before_grade`: `right`, `wrong` or `no answer`), `before_in_format`, and
        `before_anywhere`: True if the last answer is correct, None if not measured.
        """
        import pandas

        changes = pandas.Series(self._question_changes()).repeat(self.after.samples)
        table = pandas.DataFrame(self.after.rows)[["question", "answer"]]
        # The order of the categories sorts lost questions to the top.
        table.insert(0, "change", pandas.Categorical(changes, QUESTION_CHANGES, ordered=True))
        for name, side in self.sides.items():
            answers = pandas.DataFrame(side.rows)
            table[name] = answers["completion"]
            table[f"{name}_grade"] = [_grade_in_words(row, side) for row in side.rows]
            table[f"{name}_in_format"] = answers["is_formatted"]
            table[f"{name}_anywhere"] = answers["is_correct_anywhere"]
        return table.sort_values("change", kind="stable", ignore_index=True)

    def plot(self) -> Figure:
        """Draw the three measures of each model with their intervals."""
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
        tests = {}
        for measure, test in self.tests.items():
            # A measure that was not tested is None, which is null in the file.
            tests[measure] = test and {**vars(test), "verdict": test.verdict}
        return {
            "sentence": self.sentence,
            "verdict": self.verdict,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "tests": tests,
            "majority": self.majority and dataclasses.asdict(self.majority),
            "contamination": self.contamination and dataclasses.asdict(self.contamination),
        }

    def _shown_parts(self) -> list[Part]:
        """Return the parts of the card, from the verdict to the notes below the table."""
        return [
            bold(self.headline),
            measures_sentence(self),
            comparison_table(self),
            comparison_notes(self),
        ]

    def _repr_html_(self) -> str:
        """Return the card as a page, with the figure."""
        # Imported here, so that the numbers of a comparison load no matplotlib.
        from grpo_nb.runs.figure import figure_html

        figure = figure_html(self.plot(), f"Held-out comparison. {self.sentence}")
        return html_of([*self._shown_parts(), figure])


def _change_in_words(before: float, after: float) -> str:
    """Return the change of a question, given its share of correct answers before and after."""
    if before != after:
        return "gained" if after > before else "lost"
    return {0: "both wrong", 1: "both right"}.get(after, "equal")


def _grade_in_words(row: Row, side: Evaluation) -> str:
    """Return the grade of a row of an evaluation."""
    if row["is_correct"]:
        return "right"
    # A function may read an answer outside of the answer slot.
    if side.grader.reads_slot and row["extracted_answer"] is None:
        return "no answer"
    return "wrong"
