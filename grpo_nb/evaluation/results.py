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
from grpo_nb.core.tables import Html, Part, Shown, Table, as_written, bold, escaped
from grpo_nb.core.words import displayable
from grpo_nb.evaluation.statistics import FEWEST_QUESTIONS, PairedResult, paired_result, pass_at_k, share_interval
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
_STORED = ("label", "samples", "decoding", "subject", "judged_by")
_MEASURED = ("accuracy", "interval", "format_share", "mean_length", "cut_share", "questions")
# What became of a question, in the order of `transcripts`.
_CHANGES = ("lost", "gained", "equal", "both wrong", "both right")


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """How a model does on held-out questions. Shares are 0 to 1, lengths in tokens."""

    label: str
    rows: Sequence[Mapping[str, Any]]
    """Per completion: `question`, `answer`, `completion`, `given`, `is_correct`, `is_formatted`, `tokens`, `is_cut`, and
    `reward/<name>` of each reward. The samples of a question stand next to each other.

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

    def _mean(self, column: str) -> float:
        return sum(row[column] for row in self.rows) / len(self.rows)

    @property
    def accuracy(self) -> float:
        """Share of right answers; with several samples of each question also called pass@1."""
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
            each = [pass_at_k(self.samples, sum(row["is_correct"] for row in group), k) for group in self.groups]
            found[k] = (sum(each) / len(each), share_interval(each, self.samples))
        return found

    @property
    def rewards(self) -> dict[str, Estimate]:
        """The mean of each reward, unweighted, with its 95 % interval over questions."""
        columns = [column for column in self.rows[0] if column.startswith(REWARD)]
        scores = {column: [[row[column] for row in group] for group in self.groups] for column in columns}
        return {column.removeprefix(REWARD): estimate(groups) for column, groups in scores.items()}

    @property
    def notes(self) -> list[str]:
        """What to know before reading the numbers."""
        known, cut = self.contamination, self.cut_share
        unknown = "Which questions were trained on is not known, so it was not looked whether these are among them."
        notes = [unknown if known is None else known.sentence if known.count else ""]
        if cut >= _CUT:
            remedy = "with a larger max_completion_length they could end."
            notes.append(f"{cut:.0%} of the answers of {self.label!r} were cut at the length limit: {remedy}")
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
        shares = {"accuracy (95 % interval)": (self.accuracy, self.interval)}
        shares |= {f"pass@{k}": share for k, share in self.pass_at.items() if k > 1}
        return [
            *((name, f"{value:.1%} ({low:.1%} to {high:.1%})") for name, (value, (low, high)) in shares.items()),
            *((f"reward {name}", str(mean)) for name, mean in self.rewards.items()),
            ("in the format", f"{self.format_share:.1%}"),
            ("mean length, tokens", f"{self.mean_length:.1f}"),
            ("cut at the limit", f"{self.cut_share:.1%}"),
        ]

    @property
    def table(self) -> pandas.DataFrame:
        """`rows` as a table."""
        import pandas

        # pyarrow cannot hold a lone surrogate, which a model can write.
        return pandas.DataFrame(self.rows).map(lambda value: displayable(value) if isinstance(value, str) else value)

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the rows, fit for JSON."""
        kept = {name: getattr(self, name) for name in (*_STORED, *_MEASURED)}
        return kept | {"contamination": self.contamination and self.contamination.to_dict()}

    def _parts(self) -> Iterator[Part]:
        yield Table(self.numbers, head=("", self.label), right=(1,))
        yield f"{self.questions} questions{self.drawn}. Right is {self.judged_by}. {self.subject}"
        yield from self.notes


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two evaluations on the same questions, their paired difference (after minus before), and what it shows."""

    before: Evaluation
    after: Evaluation
    path: Path | None = dataclasses.field(default=None, compare=False)
    """Folder it was saved in."""

    @functools.cached_property
    def result(self) -> PairedResult:
        """Difference, interval and p value, and the smallest difference that would have been shown."""
        return paired_result(self.before.shares, self.after.shares, self.before.samples)

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference shown`, by the exact test."""
        return self.result.verdict

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
    def sentence(self) -> str:
        """The result in words, with what it could not have seen and what spoils it."""
        found = self.result
        low, high = found.interval
        p_value = "p < 0.001" if found.p_value < 0.001 else f"p = {found.p_value:.3f}"
        shares = ", ".join(f"{side.accuracy:.1%} {side.label}" for side in (self.before, self.after))
        unseen = f" {self.power_sentence}" if self.verdict == "no difference shown" else ""
        spoilt = f" {self.contamination.sentence}" if self.contamination and self.contamination.count else ""
        return (
            f"{self.verdict}: accuracy {shares} on {found.questions} questions{self.after.drawn} (difference "
            f"{100 * found.difference:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}, {p_value}).{unseen} "
            f"Right is {self.after.judged_by}.{spoilt}"
        )

    @property
    def power_sentence(self) -> str:
        """What this comparison could have seen."""
        if self.result.smallest is None:
            return f"Under {FEWEST_QUESTIONS} questions no difference is claimed, however large it is: ask more."
        unseen = "; a smaller one may be there, unseen" if self.verdict == "no difference shown" else ""
        points = f"{100 * self.result.smallest:.0f} points"
        return f"A true difference of {points} or more is shown by so many questions four times in five{unseen}."

    @property
    def floor_sentence(self) -> str:
        """What the most frequent answer alone would get on these questions; empty where none comes again and again."""
        golds, side = [group[0]["answer"] for group in self.after.groups], self.after
        frequent, count = Counter(golds).most_common(1)[0]
        share, (low, high) = count / len(golds), side.interval
        stands = "above" if low > share else "below" if high < share else "not clear of"
        said = f"Always answering {frequent!r:.60} would get {share:.1%}: {side.label!r} with {side.accuracy:.1%} is {stands}"
        return f"{said} that floor." if count >= max(3, _OFTEN * len(golds)) else ""

    def transcripts(self) -> pandas.DataFrame:
        """Return every completion of both models side by side, those of questions that changed first.

        Columns: `change` of the question (`lost`, `gained`, `equal`, `both wrong`, `both right`), `question`, the gold
        `answer`, and of each model the completion (`before`, `after`) and what it is (`before_is`, `after_is`: `right`,
        `wrong`, `no answer`).
        """
        import pandas

        changes = map(_change, self.before.shares, self.after.shares)
        each = [change for change in changes for _ in range(self.after.samples)]
        columns = {"change": pandas.Categorical(each, _CHANGES, ordered=True)}
        columns |= self.after.table[["question", "answer"]].items()
        for name, side in (("before", self.before), ("after", self.after)):
            columns |= {name: side.table["completion"], f"{name}_is": list(map(_judged, side.rows))}
        return pandas.DataFrame(columns).sort_values("change", kind="stable", ignore_index=True)

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
        answers = pandas.concat([self.before.table, self.after.table], ignore_index=True).to_parquet(index=False)
        figure, numbers = self._picture(), self.to_dict()
        write_bytes(folder / "transcripts.parquet", answers)
        write_bytes(folder / "comparison.png", figure)
        write_json(folder / "comparison.json", numbers)
        return dataclasses.replace(self, path=folder)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, fit for JSON."""
        said = {name: getattr(self, name) for name in ("verdict", "sentence", "changed")}
        sides = {"before": self.before.to_dict(), "after": self.after.to_dict()}
        known = self.contamination and self.contamination.to_dict()
        return sides | dataclasses.asdict(self.result) | said | {"contamination": known}

    def _parts(self) -> Iterator[Part]:
        yield bold(self.sentence)
        both = zip(self.before.numbers, self.after.numbers, strict=True)
        numbers = [(name, before, after) for (name, before), (_, after) in both]
        yield Table(numbers, head=("", self.before.label, self.after.label), right=(1, 2))
        yield "Questions: " + ", ".join(f"{count} {name}" for name, count in self.changed.items()) + "."
        yield self.power_sentence if self.verdict != "no difference shown" else ""
        yield self.floor_sentence
        yield from dict.fromkeys([self.before.subject, self.after.subject, *self.before.notes, *self.after.notes])
        picture, alt = base64.b64encode(self._picture()).decode(), escaped(f"Held-out comparison. {self.sentence}")
        yield Html("", f'<img alt="{alt}" src="data:image/png;base64,{picture}" style="max-width:100%;width:860px">')
        few = self.transcripts().head(3)
        yield f"{len(few)} of {len(self.after.rows)} answers; comparison.transcripts() has all, changed ones first:"
        examples = Table([list(map(as_written, row)) for row in few.itertuples(index=False)], head=list(few.columns))
        yield Html("", examples.html())


def _change(before: float, after: float) -> str:
    if before != after:
        return "gained" if after > before else "lost"
    return {0.0: "both wrong", 1.0: "both right"}.get(before, "equal")


def _judged(row: Mapping[str, Any]) -> str:
    return "right" if row["is_correct"] else "wrong" if row["given"] is not None else "no answer"


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
        half = len(rows) // 2  # as many of each, the first one's first
        sides = [_evaluation(saved["before"], rows[:half]), _evaluation(saved["after"], rows[half:])]
        return Comparison(*sides, path=folder)


def _evaluation(saved: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
    found = saved["contamination"] and Contamination(**saved["contamination"])
    return Evaluation(rows=rows, contamination=found, **{name: saved[name] for name in _STORED})
