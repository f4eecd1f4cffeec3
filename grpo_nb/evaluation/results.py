"""What an evaluation and a comparison know, how they say it, and how they are kept.

Numbers come from `rows`; nothing here asks a model. Everything that a model, a user or a data set wrote is escaped.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.groups import Estimate, estimate, in_groups
from grpo_nb.core.files import refuse_links, write_bytes, write_json
from grpo_nb.core.statistics import (
    FEWEST_QUESTIONS,
    PairedResult,
    paired_result,
    pass_at_k,
    share_interval,
)
from grpo_nb.core.tables import Html, Part, Shown, Table, as_written, bold, escaped
from grpo_nb.core.words import displayable
from grpo_nb.runs.outcome import MajorityBaseline
from grpo_nb.runs.rows import parse_json, reading
from grpo_nb.tasks.contamination import Contamination

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# From this share on, answers that were cut are said beside the accuracy, which is partly that of the length limit.
_CUT = 0.1
# The share of the questions from which one answer is frequent enough to be held against.
_OFTEN = 0.2
# Before the name of a reward, in rows and their tables.
REWARD = "reward/"
_STORED = (
    "label",
    "samples",
    "decoding",
    "subject",
    "judged_by",
    "anywhere_note",
    "compares_gold",
    "model_id",
    "remarks",
    "unproven_judge",
    "majority_share",
)
_MEASURED = (
    "accuracy", "interval", "format_share", "format_interval", "anywhere_share", "anywhere_interval",
    "mean_length", "cut_share", "questions",
)  # fmt: skip
_COLUMNS = {"correct": "is_correct", "format": "is_formatted", "anywhere": "is_anywhere"}
"""The three measures, and their columns in `Evaluation.rows`."""
_ROWS = {
    "correct": "correct (95 % interval)",
    "format": "in the format (95 % interval)",
    "anywhere": "correct answer anywhere in the completion (95 % interval)",
}
"""The three measures, as the tables name them."""
_MOST_OF_THE_GAIN = 0.5
"""From this part of the change in correct answers on, the answers themselves are named as what changed."""
# What became of a question, in the order of `transcripts`.
_CHANGES = ("lost", "gained", "equal", "both wrong", "both right")


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """How a model does on held-out questions. Shares are 0 to 1, lengths in tokens."""

    label: str
    rows: Sequence[Mapping[str, Any]]
    """Per completion: `question`, `answer`, `completion`, `given`, `is_correct`, `is_formatted`, `is_anywhere`, `tokens`,
    `is_cut`, and `reward/<name>` of each reward. The samples of a question stand next to each other.

    `given` is what the rewards would read: the answer slot, if nothing follows it."""
    samples: int = 1
    """Completions of each question."""
    decoding: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"temperature": 0.0})
    """How they were drawn; temperature 0 is greedy."""
    subject: str = ""
    """What was asked: which model, from where, with which chat template."""
    judged_by: str = ""
    """What is right, in words."""
    contamination: Contamination | None = None
    """Questions that were trained on; None if the training questions are not known."""
    anywhere_note: str = ""
    """How the correct answer is found anywhere in a completion, or why that is not measured."""
    compares_gold: bool = True
    """False if a function decides what is correct, which need not look at the gold answers."""
    model_id: str | None = None
    """Hash of the adapter that was asked (`Run.model_id`); empty for other models, None if not kept."""
    remarks: Sequence[str] = ()
    """Remarks about the function that decides which answers are correct."""
    unproven_judge: str = ""
    """Name of the judge, if it is a function that did not score a gold answer above a wrong one."""
    majority_share: float | None = None
    """Share of questions on which the most frequent gold answer is correct; None if none repeats."""

    def _mean(self, column: str) -> float:
        return sum(row[column] for row in self.rows) / len(self.rows)

    def shares_of(self, measure: str) -> list[float] | None:
        """Return each question's share of samples with a measure: `correct`, `format` or `anywhere`; None if not measured."""
        column = _COLUMNS[measure]
        if any(row.get(column) is None for row in self.rows):
            return None
        return [sum(row[column] for row in group) / self.samples for group in self.groups]

    @property
    def accuracy(self) -> float:
        """Share of correct answers: right, and in the format. With several samples also called pass@1."""
        return self._mean("is_correct")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the accuracy, by questions."""
        return share_interval(self.shares, self.samples)

    @property
    def format_share(self) -> float:
        """Share of answers in the exact format."""
        return self._mean("is_formatted")

    @property
    def format_interval(self) -> tuple[float, float] | None:
        """95 % Wilson interval of `format_share`, by questions."""
        return self.interval_of("format")

    @property
    def anywhere_share(self) -> float | None:
        """Share of completions whose last candidate is the correct answer, in the format or not; None if not measured."""
        return self.share_of("anywhere")

    @property
    def anywhere_interval(self) -> tuple[float, float] | None:
        """95 % Wilson interval of `anywhere_share`, by questions; None if not measured."""
        return self.interval_of("anywhere")

    def share_of(self, measure: str) -> float | None:
        """Return the share of completions with a measure: `correct`, `format` or `anywhere`; None if not measured."""
        shares = self.shares_of(measure)
        return None if shares is None else sum(shares) / len(shares)

    def interval_of(self, measure: str) -> tuple[float, float] | None:
        """Return the 95 % Wilson interval of `share_of`; None if not measured."""
        shares = self.shares_of(measure)
        return None if shares is None else share_interval(shares, self.samples)

    @property
    def mean_length(self) -> float:
        """Of answers, in tokens."""
        return self._mean("tokens")

    @property
    def cut_share(self) -> float:
        """Share of answers that were cut at the length limit."""
        return self._mean("is_cut")

    @property
    def questions(self) -> int:
        """How many were asked."""
        return len(self.rows) // self.samples

    @property
    def groups(self) -> list[Sequence[Mapping[str, Any]]]:
        """The rows of each question."""
        return in_groups(self.rows, self.samples)

    @property
    def shares(self) -> list[float]:
        """For each question the share of its samples that are right."""
        return [sum(row["is_correct"] for row in group) / self.samples for group in self.groups]

    @property
    def pass_at(self) -> dict[int, tuple[float, tuple[float, float]]]:
        """pass@k with its 95 % interval, for k = 1, 2, 4, ... up to `samples`: the unbiased estimator."""
        found = {}
        for k in sorted({*(2**i for i in range(self.samples.bit_length())), self.samples}):
            each = [
                pass_at_k(self.samples, sum(row["is_correct"] for row in group), k)
                for group in self.groups
            ]
            found[k] = (sum(each) / len(each), share_interval(each, self.samples))
        return found

    @property
    def rewards(self) -> dict[str, Estimate]:
        """The mean of each reward, unweighted, with its 95 % interval over questions."""
        columns = [column for column in self.rows[0] if column.startswith(REWARD)]
        scores = {
            column: [[row[column] for row in group] for group in self.groups] for column in columns
        }
        return {column.removeprefix(REWARD): estimate(groups) for column, groups in scores.items()}

    @property
    def notes(self) -> list[str]:
        """What to know before reading the numbers."""
        known, cut = self.contamination, self.cut_share
        unknown = "Which questions were trained on is not known, so it was not looked whether these are among them."
        notes = [unknown if known is None else known.sentence if known.count else ""]
        notes += self.remarks
        if cut >= _CUT:
            remedy = "with a larger max_completion_length they could end."
            notes.append(
                f"{cut:.0%} of the answers of {self.label!r} were cut at the length limit: {remedy}"
            )
        return list(filter(None, notes))

    @property
    def drawn(self) -> str:
        """How answers were drawn at random, behind a comma; empty for the likeliest answer to each question."""
        if not self.decoding["temperature"]:
            return ""
        return f", {self.samples} drawn for each at temperature {self.decoding['temperature']:g}"

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """Each measure with its value as the tables show them."""
        rows = []
        for measure, name in _ROWS.items():
            rows.append((name, _with_interval(self.share_of(measure), self.interval_of(measure))))
        for k, (share, interval) in self.pass_at.items():
            if k > 1:
                rows.append((f"pass@{k}", _with_interval(share, interval)))
        for name, mean in self.rewards.items():
            rows.append((f"reward {name}", str(mean)))
        rows.append(("mean length, tokens", f"{self.mean_length:.1f}"))
        rows.append(("cut at the limit", f"{self.cut_share:.1%}"))
        return rows

    @property
    def anywhere_sentence(self) -> str:
        """How a correct answer is found anywhere in a completion, in a sentence."""
        note = self.anywhere_note or "not measured when this was evaluated"
        return f"Correct answer anywhere in the completion: {note}."

    @property
    def table(self) -> pandas.DataFrame:
        """`rows` as a table."""
        import pandas

        # pyarrow cannot hold a lone surrogate, which a model can write.
        return pandas.DataFrame(self.rows).map(
            lambda value: displayable(value) if isinstance(value, str) else value
        )

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the rows, fit for JSON."""
        kept = {name: getattr(self, name) for name in (*_STORED, *_MEASURED)}
        return kept | {"contamination": self.contamination and self.contamination.to_dict()}

    def _parts(self) -> Iterator[Part]:
        yield Table(self.numbers, head=("", self.label), right=(1,))
        yield f"{self.questions} questions{self.drawn}. Right is {self.judged_by}. {self.subject}"
        yield self.anywhere_sentence
        yield from self.notes


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two evaluations on the same questions, their paired difference (after minus before), and what it shows."""

    before: Evaluation
    """The first model; of a run its start."""
    after: Evaluation
    path: Path | None = dataclasses.field(default=None, compare=False)
    """Folder it was saved in."""
    base: Evaluation | None = None
    """The base model, where a run started from a trained adapter, so that `before` is not the base model."""

    @property
    def columns(self) -> list[Evaluation]:
        """The evaluations in the order of the tables: the base model, if it is another one, then before and after."""
        return [side for side in (self.base, self.before, self.after) if side is not None]

    @functools.cached_property
    def results(self) -> dict[str, PairedResult | None]:
        """The paired test of each measure, `correct`, `format` and `anywhere`; None if it was not measured."""
        results = {}
        for measure in _COLUMNS:
            before, after = self.before.shares_of(measure), self.after.shares_of(measure)
            is_measured = before is not None and after is not None
            results[measure] = (
                paired_result(before, after, self.before.samples) if is_measured else None
            )
        return results

    @property
    def result(self) -> PairedResult:
        """Difference in correct answers, interval, p value, and the smallest difference that would have been shown."""
        return self.results["correct"]

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference shown`, by the exact test."""
        return self.result.verdict

    @property
    def answers_verdict(self) -> str | None:
        """The verdict about correct answers anywhere in the completion; None if not measured."""
        result = self.results["anywhere"]
        return None if result is None else result.verdict

    @property
    def contamination(self) -> Contamination | None:
        """Questions that were trained on; None if the training questions are not known."""
        return self.after.contamination

    @property
    def changed(self) -> dict[str, int]:
        """Questions by what became of them: `gained`, `lost`, `both right`, `both wrong`; with samples also `equal`."""
        counts = Counter(map(_change, self.before.shares, self.after.shares))
        return dict.fromkeys(("gained", "lost", "both right", "both wrong"), 0) | counts

    @property
    def known_before(self) -> int | None:
        """Gained questions whose correct answer was in the text before, outside of the format; None if not measured."""
        anywhere = self.before.shares_of("anywhere")
        if anywhere is None:
            return None
        known = 0
        for before, after, share in zip(
            self.before.shares, self.after.shares, anywhere, strict=True
        ):
            known += after > before and share > before
        return known

    @property
    def headline(self) -> str:
        """The verdict, and what changed: the format, the answers, or both."""
        if self.verdict == "no difference shown":
            return "No difference shown in correct answers."
        in_format, anywhere = self.results["format"], self.results["anywhere"]
        has_format = in_format is not None and in_format.verdict == self.verdict
        if anywhere is None:
            return f"{self.verdict.capitalize()}: {self._changed_without_answers(has_format)}."
        if {self.verdict, anywhere.verdict} == {"better", "worse"}:
            opposite = anywhere.verdict.capitalize()
            return f"{self.verdict.capitalize()}: the format. {opposite}: the answers."
        has_answers = anywhere.verdict == self.verdict
        part = anywhere.difference / self.result.difference
        if has_answers and not has_format:
            changed = "the answers"
        elif has_answers and part >= _MOST_OF_THE_GAIN:
            changed = "the answers and the format"
        elif has_format:
            changed = "the format"
        else:
            changed = "right answers in the format"
        return f"{self.verdict.capitalize()}: {changed}."

    def _changed_without_answers(self, has_format: bool) -> str:
        """Return what changed, where the answers cannot be told apart from their format."""
        if self.after.unproven_judge:
            return f"the score of {self.after.unproven_judge}()"
        return (
            "the answers or the format, which are one number here" if has_format else "the answers"
        )

    @property
    def sentence(self) -> str:
        """The result in words: what changed, the three measures, what was not visible, and what spoils it."""
        result = self.result
        low, high = result.interval
        shares = ", ".join(
            f"{side.accuracy:.1%} {side.label}" for side in (self.before, self.after)
        )
        parts = [
            self.headline,
            f"The answers themselves: {self._change_in_words('anywhere')}.",
            f"In the format: {self._change_in_words('format')}.",
            f"Correct: {shares} on {result.questions} questions{self.after.drawn} (difference "
            f"{100 * result.difference:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}, "
            f"{_p_in_words(result.p_value)}).",
        ]
        if self.base is not None:
            parts.append(
                f"The base model has {self.base.accuracy:.1%}. This run started from a trained adapter, "
                "and the verdict is about this run alone."
            )
        if self.verdict == "no difference shown":
            parts.append(self.power_sentence)
        parts.append(f"Right is {self.after.judged_by}.")
        if self.contamination and self.contamination.count:
            parts.append(self.contamination.sentence)
        return " ".join(parts)

    def _change_in_words(self, measure: str) -> str:
        result = self.results[measure]
        if result is None:
            return "not measured"
        before, after = self.before.share_of(measure), self.after.share_of(measure)
        shown = result.verdict
        if shown != "no difference shown":
            shown = f"{shown}, {_p_in_words(result.p_value)}"
        return f"{_percent(before)} to {_percent(after)} ({shown})"

    @property
    def power_sentence(self) -> str:
        """What this comparison could have seen."""
        if self.result.smallest is None:
            return f"Under {FEWEST_QUESTIONS} questions no difference is claimed, however large it is: ask more."
        unseen = (
            "; a smaller one may be there, unseen" if self.verdict == "no difference shown" else ""
        )
        points = f"{100 * self.result.smallest:.0f} points"
        return f"A true difference of {points} or more is shown by so many questions four times in five{unseen}."

    @property
    def majority(self) -> MajorityBaseline | None:
        """The most frequent gold answer compared with the accuracy; None where no answer comes again and again.

        Where a function decides what is correct, it has scored that answer at every question. None if
        it does not look at the answer.
        """
        golds = [group[0]["answer"] for group in self.after.groups]
        frequent = frequent_answer(golds)
        if frequent is None:
            return None
        share = self.after.majority_share
        if share is None and self.after.compares_gold:
            share = golds.count(frequent) / len(golds)
        if share is None:
            return None
        low, high = self.after.interval
        position = "not clear of"
        if low > share:
            position = "above"
        elif high < share:
            position = "below"
        sentence = (
            f"Always answering {frequent!r:.60} would get {share:.1%}: {self.after.label!r} with "
            f"{self.after.accuracy:.1%} is {position} that floor."
        )
        return MajorityBaseline(
            answer=frequent, share=share, is_cleared=low > share, sentence=sentence
        )

    @property
    def floor_sentence(self) -> str:
        """What the most frequent answer alone would get on these questions; empty where none comes again and again."""
        return self.majority.sentence if self.majority is not None else ""

    def transcripts(self) -> pandas.DataFrame:
        """Return every completion of the models side by side, those of questions that changed first.

        Columns: `change` of the question (`lost`, `gained`, `equal`, `both wrong`, `both right`), `question`, the gold
        `answer`, and of each model the completion (`before`, `after`) and its verdict (`before_is`, `after_is`: `right`,
        `wrong`, `no answer`). Then, for each model, if the completion is in the format (`before_in_format`) and if the
        correct answer is its last candidate, in the format or not (`before_anywhere`; None if not measured). The columns of
        `base` come first, where the run started from a trained adapter.
        """
        import pandas

        changes = map(_change, self.before.shares, self.after.shares)
        each = [change for change in changes for _ in range(self.after.samples)]
        columns = {"change": pandas.Categorical(each, _CHANGES, ordered=True)}
        columns |= self.after.table[["question", "answer"]].items()
        for name, side in self._named_sides():
            judged = [_judged(row, has_slot=side.compares_gold) for row in side.rows]
            columns |= {name: side.table["completion"], f"{name}_is": judged}
        for name, side in self._named_sides():
            columns[f"{name}_in_format"] = [row.get("is_formatted") for row in side.rows]
            columns[f"{name}_anywhere"] = [row.get("is_anywhere") for row in side.rows]
        return pandas.DataFrame(columns).sort_values("change", kind="stable", ignore_index=True)

    def _named_sides(self) -> list[tuple[str, Evaluation]]:
        sides = [("before", self.before), ("after", self.after)]
        return sides if self.base is None else [("base", self.base), *sides]

    def plot(self) -> Figure:
        """Draw both accuracies and the difference with their intervals."""
        # Here, so that numbers load no matplotlib.
        from grpo_nb.evaluation.figure import comparison_figure

        return comparison_figure(self)

    def _picture(self) -> bytes:
        from grpo_nb.runs.figure import png

        return png(self.plot(), dpi=120)

    def save(self, folder: str | Path) -> Comparison:
        """Write numbers, every answer (parquet) and figure; return self with the `path`.

        Each file is put in its place whole, and none before all are made; the numbers are last, for they say that there is a
        comparison.
        """
        import pandas

        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        # The base model comes last, so that a reader of two models finds them where they always were.
        tables = [side.table for side in (self.before, self.after, self.base) if side is not None]
        answers = pandas.concat(tables, ignore_index=True).to_parquet(index=False)
        figure, numbers = self._picture(), self.to_dict()
        write_bytes(folder / "transcripts.parquet", answers)
        write_bytes(folder / "comparison.png", figure)
        write_json(folder / "comparison.json", numbers)
        return dataclasses.replace(self, path=folder)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, fit for JSON."""
        numbers = {"before": self.before.to_dict(), "after": self.after.to_dict()}
        numbers["base"] = None if self.base is None else self.base.to_dict()
        numbers |= dataclasses.asdict(self.result)
        for name in ("verdict", "sentence", "changed"):
            numbers[name] = getattr(self, name)
        numbers["known_before"] = self.known_before
        tests = {}
        for measure, result in self.results.items():
            tests[measure] = result and {**dataclasses.asdict(result), "verdict": result.verdict}
        numbers["tests"] = tests
        numbers["majority"] = self.majority and dataclasses.asdict(self.majority)
        numbers["contamination"] = self.contamination and self.contamination.to_dict()
        return numbers

    def _parts(self) -> Iterator[Part]:
        yield bold(self.sentence)
        rows = [
            (names[0][0], *(value for _, value in names))
            for names in zip(*self._numbers(), strict=True)
        ]
        head = ("", *(side.label for side in self.columns))
        yield Table(rows, head=head, right=range(1, len(head)))
        yield self.after.anywhere_sentence
        yield (
            "Questions: "
            + ", ".join(f"{count} {name}" for name, count in self.changed.items())
            + "."
        )
        if self.known_before and self.changed["gained"]:
            yield (
                f"Of the {self.changed['gained']} gained, {self.known_before} had the correct answer before, "
                "outside of the format."
            )
        yield self.power_sentence if self.verdict != "no difference shown" else ""
        yield self.floor_sentence
        yield from dict.fromkeys([side.subject for side in self.columns])
        yield from dict.fromkeys(note for side in self.columns for note in side.notes)
        picture, alt = (
            base64.b64encode(self._picture()).decode(),
            escaped(f"Held-out comparison. {self.sentence}"),
        )
        yield Html(
            "",
            f'<img alt="{alt}" src="data:image/png;base64,{picture}" style="max-width:100%;width:860px">',
        )
        few = self.transcripts().head(3)
        yield f"{len(few)} of {len(self.after.rows)} answers; comparison.transcripts() has all, changed ones first:"
        yield Html("", self._examples(few).html())

    def _numbers(self) -> list[list[tuple[str, str]]]:
        return [side.numbers for side in self.columns]

    def _examples(self, few: pandas.DataFrame) -> Table:
        """Return some transcripts as a table, the three judgements of a completion in one cell."""
        rows = []
        for entry in few.to_dict("records"):
            cells = [entry["change"], entry["question"], entry["answer"]]
            for name, _ in self._named_sides():
                judgements = [entry[f"{name}_is"]]
                judgements.append(
                    "in the format" if entry[f"{name}_in_format"] else "not in the format"
                )
                if entry[f"{name}_is"] != "right" and entry[f"{name}_anywhere"]:
                    judgements.append("correct answer anywhere")
                cells += [entry[name], ", ".join(judgements)]
            rows.append([as_written(str(cell)) for cell in cells])
        head = ["change", "question", "answer"]
        for name, _ in self._named_sides():
            head += [name, f"{name}_is"]
        return Table(rows, head=head)


def frequent_answer(golds: Sequence[str]) -> str | None:
    """Return the most frequent gold answer; None if it is not frequent enough to be a baseline.

    >>> frequent_answer(["yes", "no", "yes", "yes"]), frequent_answer(["1", "2", "3"])
    ('yes', None)
    """
    answer, count = Counter(golds).most_common(1)[0]
    return answer if count >= max(3, _OFTEN * len(golds)) else None


def _percent(share: float) -> str:
    """Return a share in whole percent; one decimal where that would read as nothing or all."""
    is_near_an_end = 0 < share < 0.005 or 0.995 <= share < 1
    return f"{100 * share:.1f} %" if is_near_an_end else f"{100 * share:.0f} %"


def _p_in_words(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _with_interval(share: float | None, interval: tuple[float, float] | None) -> str:
    if share is None or interval is None:
        return "not measured"
    low, high = interval
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def _change(before: float, after: float) -> str:
    if before != after:
        return "gained" if after > before else "lost"
    return {0.0: "both wrong", 1.0: "both right"}.get(before, "equal")


def _judged(row: Mapping[str, Any], has_slot: bool) -> str:
    if row["is_correct"]:
        return "right"
    # A function may read an answer that does not stand in the slot.
    return "no answer" if has_slot and row["given"] is None else "wrong"


def open_comparison(folder: str | Path) -> Comparison:
    """Read a saved comparison, with every answer: a run's own is in its `comparison/`.

    Args:
        folder: From `Comparison.save` or `Comparison.path`, or of a run.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, or holds a symbolic link.

    >>> open_comparison("runs/first").transcripts()  # doctest: +SKIP
    """
    import pandas

    folder = Path(folder).expanduser()
    folder = folder / "comparison" if (folder / "run.json").is_file() else folder
    refuse_links(folder)
    with reading(folder / "comparison.json"):
        saved = parse_json((folder / "comparison.json").read_text("utf-8"))
        answers = pandas.read_parquet(folder / "transcripts.parquet").astype(object)
        rows = answers.where(answers.notna(), None).to_dict("records")
        names = ["before", "after"]
        if saved.get("base"):
            names.append("base")
        count = len(rows) // len(names)  # as many of each
        sides = {}
        for place, name in enumerate(names):
            sides[name] = _evaluation(saved[name], rows[place * count : (place + 1) * count])
        return Comparison(**sides, path=folder)


def _evaluation(saved: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
    found = saved["contamination"] and Contamination(**saved["contamination"])
    # A comparison of an earlier version has fewer fields.
    stored = {name: saved[name] for name in _STORED if name in saved}
    return Evaluation(rows=rows, contamination=found, **stored)
