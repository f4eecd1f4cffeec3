"""Two models on the same questions: the difference in each measure, tested, shown and kept.

`better` and `worse` need an exact test below 0.05 and ten questions. Everything else is "no
difference shown".
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import refuse_links, write_bytes, write_json
from grpo_nb.core.statistics import PairedResult, paired_result
from grpo_nb.core.tables import Part, Shown
from grpo_nb.evaluation import comparison_card as card
from grpo_nb.evaluation.judging import frequent_answer
from grpo_nb.evaluation.results import MEASURES, REWARD, STORED_FIELDS, Evaluation
from grpo_nb.runs.outcome import MajorityBaseline
from grpo_nb.runs.rows import parse_json, reading
from grpo_nb.tasks.contamination import Contamination

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

CHANGES = ("lost", "gained", "equal", "both wrong", "both right")
"""Changes of a question, in the order of `Comparison.transcripts`."""


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two evaluations on the same questions, and the paired difference, after minus before."""

    before: Evaluation
    """The model compared with. For a run, the model that it started from."""
    after: Evaluation
    path: Path | None = dataclasses.field(default=None, compare=False)
    """Folder that the comparison was saved in."""
    base: Evaluation | None = None
    """The base model, if a run started from a trained adapter. Then `before` is another model."""

    @property
    def columns(self) -> dict[str, Evaluation]:
        """The evaluations in the order of the tables: `base` if there is one, `before`, `after`."""
        columns = {"base": self.base} if self.base is not None else {}
        return columns | {"before": self.before, "after": self.after}

    @functools.cached_property
    def results(self) -> dict[str, PairedResult | None]:
        """Paired test of `correct`, `format` and `anywhere`, None if it was not measured."""
        results: dict[str, PairedResult | None] = {}
        for measure in MEASURES:
            before = self.before.shares_of(measure)
            after = self.after.shares_of(measure)
            results[measure] = None
            if before is not None and after is not None:
                results[measure] = paired_result(before, after, self.before.samples)
        return results

    @property
    def result(self) -> PairedResult:
        """Paired test of the correct answers."""
        return self.results["correct"]

    @property
    def verdict(self) -> str:
        """Verdict on correct answers: `better`, `worse` or `no difference shown`."""
        return self.result.verdict

    @property
    def answers_verdict(self) -> str | None:
        """Verdict on correct answers anywhere in the completion, None if not measured."""
        result = self.results["anywhere"]
        return None if result is None else result.verdict

    @property
    def contamination(self) -> Contamination | None:
        """Questions that were trained on, None if the training questions are not known."""
        return self.after.contamination

    @property
    def changed(self) -> dict[str, int]:
        """Number of questions `gained`, `lost`, `both right`, or `both wrong`.

        With several samples, a question whose share of correct answers stays between is `equal`.
        """
        counts = Counter(self._changes())
        return dict.fromkeys(("gained", "lost", "both right", "both wrong"), 0) | counts

    def _changes(self) -> Iterator[str]:
        """Yield the change of each question."""
        for before, after in zip(self.before.shares, self.after.shares, strict=True):
            if after > before:
                yield "gained"
            elif after < before:
                yield "lost"
            else:
                yield {0.0: "both wrong", 1.0: "both right"}.get(before, "equal")

    @property
    def majority(self) -> MajorityBaseline | None:
        """Majority-class baseline next to the accuracy, None if no gold answer repeats often.

        If a function decides what is correct, the baseline is the share of questions for which the
        function accepts that answer. None if the function ignores the answers.
        """
        golds = [group[0]["answer"] for group in self.after.groups]
        answer = frequent_answer(golds)
        if answer is None:
            return None
        share = self.after.majority_share
        # Comparisons of earlier versions were stored without this share.
        if share is None and self.after.compares_gold:
            share = golds.count(answer) / len(golds)
        if share is None:
            return None
        low, high = self.after.interval
        position = "is not clearly above"
        if low > share:
            position = "is above"
        elif high < share:
            position = "is below"
        sentence = (
            f"Always answering {answer!r:.60} would get {share:.1%} right: the accuracy of "
            f"{self.after.accuracy:.1%} {position} this majority-class baseline."
        )
        return MajorityBaseline(
            answer=answer, share=share, is_cleared=low > share, sentence=sentence
        )

    @property
    def headline(self) -> str:
        """Verdict, and what changed: the format, the answers, or both."""
        return card.headline(self)

    @property
    def sentence(self) -> str:
        """Result in words: what changed, the three measures, the judge, and what spoils it."""
        return card.sentence(self)

    def transcripts(self) -> pandas.DataFrame:
        """Return every completion of the models side by side, those of changed questions first.

        Columns: `change` of the question (`lost`, `gained`, `equal`, `both wrong`, `both right`),
        `question`, and the gold `answer`. For each model, its completion (`before`, `after`) and
        the judgement (`before_is`: `right`, `wrong` or `no answer`), then `before_in_format`, and
        `before_anywhere` if the correct answer is the last candidate, None if not measured. The
        columns of `base` come first, if the run started from a trained adapter.
        """
        import pandas

        changes = [change for change in self._changes() for _ in range(self.after.samples)]
        columns: dict[str, Any] = {"change": pandas.Categorical(changes, CHANGES, ordered=True)}
        for name in ("question", "answer"):
            columns[name] = self.after.table[name]
        for name, side in self.columns.items():
            columns[name] = side.table["completion"]
            columns[f"{name}_is"] = [_judgement(row, side.compares_gold) for row in side.rows]
        for name, side in self.columns.items():
            columns[f"{name}_in_format"] = [row.get("is_formatted") for row in side.rows]
            columns[f"{name}_anywhere"] = [row.get("is_anywhere") for row in side.rows]
        return pandas.DataFrame(columns).sort_values("change", kind="stable", ignore_index=True)

    def plot(self) -> Figure:
        """Draw the three measures of each model with their intervals."""
        # Imported here, so that numbers do not load matplotlib.
        from grpo_nb.evaluation.figure import comparison_figure

        return comparison_figure(self)

    def save(self, folder: str | Path) -> Comparison:
        """Write the numbers, every answer (parquet) and the figure, and return self with `path`.

        All files are made before the first is written. The numbers come last, because they show
        that there is a complete comparison.
        """
        import pandas

        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        # The base model comes last, where readers of two models expect nothing.
        tables = [self.before.table, self.after.table]
        if self.base is not None:
            tables.append(self.base.table)
        answers = pandas.concat(tables, ignore_index=True).to_parquet(index=False)
        picture = card.picture(self)
        numbers = self.to_dict()
        write_bytes(folder / "transcripts.parquet", answers)
        write_bytes(folder / "comparison.png", picture)
        write_json(folder / "comparison.json", numbers)
        return dataclasses.replace(self, path=folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, fit for JSON."""
        numbers: dict[str, Any] = {"before": self.before.to_dict(), "after": self.after.to_dict()}
        numbers["base"] = self.base and self.base.to_dict()
        numbers |= dataclasses.asdict(self.result)
        for name in ("verdict", "sentence", "changed"):
            numbers[name] = getattr(self, name)
        tests = {}
        for measure, result in self.results.items():
            tests[measure] = result and {**dataclasses.asdict(result), "verdict": result.verdict}
        numbers["tests"] = tests
        numbers["majority"] = self.majority and dataclasses.asdict(self.majority)
        numbers["contamination"] = self.contamination and self.contamination.to_dict()
        return numbers

    def _parts(self) -> Iterator[Part]:
        yield from card.parts(self)


def _judgement(row: Mapping[str, Any], compares_gold: bool) -> str:
    if row["is_correct"]:
        return "right"
    # A function may read an answer outside of the answer slot.
    return "no answer" if compares_gold and row["given"] is None else "wrong"


def open_comparison(folder: str | Path) -> Comparison:
    """Read a saved comparison with every answer.

    Args:
        folder: Folder of `Comparison.save`, or of a run, whose comparison is in its `comparison/`.

    Raises:
        FileNotFoundError: There is no comparison.
        ValueError: The comparison is damaged, or contains a symbolic link.

    >>> open_comparison("runs/first").transcripts()  # doctest: +SKIP
    """
    import pandas

    folder = Path(folder).expanduser()
    if (folder / "run.json").is_file():
        folder = folder / "comparison"
    refuse_links(folder)
    with reading(folder / "comparison.json"):
        saved = parse_json((folder / "comparison.json").read_text("utf-8"))
        answers = pandas.read_parquet(folder / "transcripts.parquet").astype(object)
        for column in answers:
            # A reward without a score is NaN. In other columns, an empty cell is None.
            if not column.startswith(REWARD):
                answers[column] = answers[column].where(answers[column].notna(), None)
        rows = answers.to_dict("records")
        names = ["before", "after"]
        if saved.get("base"):
            names.append("base")
        rows_per_model, rest = divmod(len(rows), len(names))
        if rest:
            raise ValueError(f"{len(rows)} answers cannot belong to {len(names)} models")
        sides = {}
        for place, name in enumerate(names):
            start = place * rows_per_model
            sides[name] = _read_evaluation(saved[name], rows[start : start + rows_per_model])
        return Comparison(**sides, path=folder)


def _read_evaluation(saved: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
    contamination = saved["contamination"] and Contamination(**saved["contamination"])
    # A comparison of an earlier version has fewer fields.
    fields = {name: saved[name] for name in STORED_FIELDS if name in saved}
    return Evaluation(rows=rows, contamination=contamination, **fields)
