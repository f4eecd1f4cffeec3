"""The result of asking one model: three measures with intervals, and every answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_nb.core.statistics import share_interval
from grpo_nb.core.tables import Part, ReprMixin, Table, notes
from grpo_nb.runs.measures import HOLDOUT_MEASURES, percent_text
from grpo_nb.scoring.advantages import split_into_groups
from grpo_nb.scoring.grader import Grader
from grpo_nb.tasks.contamination import Contamination
from grpo_nb.tasks.read_rows import Row

Interval = tuple[float, float]

MEASURES = {measure.name: measure for measure in HOLDOUT_MEASURES}
"""The three measures by name: `accuracy`, `in_format` and `anywhere`."""


@dataclass(frozen=True, repr=False)
class Evaluation(ReprMixin):
    """Answers of one model to held-out questions. Shares are from 0 to 1, lengths in tokens."""

    label: str
    rows: Sequence[Row]
    """One row per completion: `question`, `answer`, `completion`, `extracted_answer`,
    `is_correct`, `is_formatted`, `is_correct_anywhere`, `tokens` and `is_truncated`.
    `extracted_answer` is the answer that rewards would read. The samples of a question are next to
    each other."""
    grader: Grader
    """The reward that decided which answers are correct."""
    samples: int = 1
    """Completions per question."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy decoding."""
    description: str = ""
    """Description of the model: where it is from, and with which chat template it was asked."""
    contamination: Contamination | None = None
    """Number of questions that were trained on, None if it is unknown whether there are any."""
    model_id: str | None = None
    """Name of the adapter from `Run.adapter_id`; empty for other models; None if unknown."""

    @property
    def conditions(self) -> dict[str, Any]:
        """Conditions that two evaluations must share, so that only the models differ."""
        return {
            "questions": [row["question"] for row in self.rows],
            "numbers of samples": self.samples,
            "temperatures": self.temperature,
            "graders": self.grader.correctness_rule,
            "numbers of trained questions": self.contamination and self.contamination.trained_count,
        }

    @property
    def question_count(self) -> int:
        """Number of questions."""
        return len(self.rows) // self.samples

    def shares_of(self, measure: str) -> list[float] | None:
        """Return the share of each question's samples that pass a measure, None if not measured.

        Args:
            measure: `accuracy`, `in_format` or `anywhere`.
        """
        column = MEASURES[measure].column
        grades = [row[column] for row in self.rows]
        # If some rows are not measured, the share of the others would be about fewer questions than
        # the accuracy.
        if None in grades:
            return None
        return [fmean(group) for group in split_into_groups(grades, self.samples)]

    def share_of(self, measure: str) -> float | None:
        """Return the share of completions that pass a measure, None if it was not measured."""
        shares = self.shares_of(measure)
        return None if shares is None else fmean(shares)

    def interval_of(self, measure: str) -> Interval | None:
        """Return the 95 % Wilson interval of `share_of`. The questions are the sampling units."""
        shares = self.shares_of(measure)
        return None if shares is None else share_interval(shares, self.samples)

    @property
    def accuracy(self) -> float:
        """Share of correct answers, which is pass@1 if there are several samples.

        A correct answer is right and in the format, unless a function decides what is correct.
        """
        return self.share_of("accuracy")

    @property
    def truncated_share(self) -> float:
        """Share of answers that were truncated at the length limit."""
        return fmean(row["is_truncated"] for row in self.rows)

    @property
    def pass_at_samples(self) -> tuple[float, Interval]:
        """pass@k for k = `samples`, with its 95 % interval. pass@1 is the accuracy."""
        # A question is passed if at least one of its samples is correct.
        shares = [float(share > 0) for share in self.shares_of("accuracy")]
        return fmean(shares), share_interval(shares, self.samples)

    @property
    def contamination_sentence(self) -> str:
        """Sentence on contamination, empty if it was checked and there is none."""
        if self.contamination is None:
            return (
                "Not all training questions are known, so some of these questions may have been "
                "trained on."
            )
        return self.contamination.sentence if self.contamination.trained_count else ""

    @property
    def table_rows(self) -> dict[str, str]:
        """Label and value of each measure, as tables show them."""
        rows = {}
        for name, measure in MEASURES.items():
            rows[measure.label] = percent_text(self.share_of(name), self.interval_of(name))
        # pass@1 is the accuracy, which has a row already.
        if self.samples > 1:
            rows[f"pass@{self.samples}"] = percent_text(*self.pass_at_samples)
        mean_length = fmean(row["tokens"] for row in self.rows)
        rows["mean length, tokens"] = f"{mean_length:.1f}"
        rows["truncated at the length limit"] = f"{self.truncated_share:.1%}"
        return rows

    @property
    def conditions_in_words(self) -> str:
        """Number of questions, kind of decoding, and what counts as correct."""
        questions = "1 question" if self.question_count == 1 else f"{self.question_count} questions"
        answers = "one greedy answer to each"
        if self.samples > 1:
            answers = f"{self.samples} answers to each, sampled at temperature {self.temperature:g}"
        return f"{questions}, {answers}. Counted as correct: {self.grader.correctness_rule}."

    @property
    def anywhere_sentence(self) -> str:
        """Explanation of how a correct answer is found anywhere in a completion."""
        return f"Correct answer anywhere in the completion: {self.grader.last_answer_rule}."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the measures of this model for comparison.json."""
        numbers = vars(self) | {
            "correctness_rule": self.grader.correctness_rule,
            "anywhere_rule": self.grader.last_answer_rule,
            "is_graded_by_slot": self.grader.reads_slot,
        }
        # The completions have a file of their own, and `Comparison` adds the contamination.
        del numbers["grader"], numbers["rows"], numbers["contamination"]
        for name in MEASURES:
            numbers[name] = self.share_of(name)
            numbers[f"{name}_interval"] = self.interval_of(name)
        return numbers

    def _shown_parts(self) -> list[Part]:
        table = Table([*self.table_rows.items()], head=("(95 % interval)", self.label), right=(1,))
        facts = [
            f"{self.conditions_in_words} {self.description}",
            self.contamination_sentence,
        ]
        return [table, notes(facts, [self.anywhere_sentence])]
