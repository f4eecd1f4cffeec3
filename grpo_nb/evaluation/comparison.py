"""What an evaluation and a comparison know, whether a difference is shown, how they say it, and how they are kept.

Numbers come from `rows`; nothing here asks a model. Everything that a model, a user or a data set wrote is escaped.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.groups import Estimate, estimate, in_groups
from grpo_nb.core.files import staged_folder, write_json
from grpo_nb.core.tables import Html, Table, as_written, bold, escaped, html_of, text_of
from grpo_nb.core.words import displayable
from grpo_nb.evaluation.statistics import FEWEST_QUESTIONS, PairedResult, pass_at_k, share_interval
from grpo_nb.tasks.answers import answers_of, is_same_answer
from grpo_nb.tasks.questions import Contamination

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

UNKNOWN_TRAINING = "Which questions were trained on is not known, so it was not looked whether these are among them."
# From this share on, answers that were cut are said beside the accuracy, which is partly that of the length limit.
_CUT = 0.1
# Answers that a comparison shows by itself.
_EXAMPLES = 3
# The share of the questions from which one answer is frequent enough to be held against.
_OFTEN = 0.2
# Before the name of a reward, in the columns of transcripts.parquet.
_REWARD_COLUMN = "reward/"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How a model does on held-out questions. Shares are 0 to 1, lengths in tokens."""

    label: str
    accuracy: float
    """Share of right answers; with several samples of each question also called pass@1."""
    interval: tuple[float, float]
    """95 % Wilson interval of the accuracy, by questions."""
    format_share: float
    mean_length: float
    cut_share: float
    rows: Sequence[Mapping[str, Any]]
    """Per completion: `question`, `answer`, `completion`, `given`, `is_correct`, `is_formatted`, `tokens`, `is_cut`, `sample`,
    and `rewards` by name where rewards were given. The samples of a question stand next to each other.

    `given` is what the rewards would read: the answer slot, if nothing follows it."""
    samples: int = 1
    """Completions of each question."""
    decoding: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"temperature": 0.0})
    """How they were drawn; temperature 0 is greedy."""
    subject: str = ""
    """What was asked: which model, from where, with which chat template."""
    contamination: Contamination | None = None
    """Questions that were trained on; None if the training questions are not known."""
    folder: str = ""
    """Of a model on disk that other programs can load too."""
    reward_ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Lowest and highest score of the rewards that say so."""
    judged_by: str = ""
    """What is right, in words; empty where that is what the run's own `correctness()` pays, or no run is."""

    @classmethod
    def of(cls, label: str, rows: Sequence[Mapping[str, Any]], samples: int = 1, **more: Any) -> Evaluation:
        """Return what answers amount to."""

        columns = ("is_correct", "is_formatted", "tokens", "is_cut")
        accuracy, *others = (sum(row[column] for row in rows) / len(rows) for column in columns)
        made = cls(label, accuracy, (0.0, 1.0), *others, rows, samples, **more)
        return dataclasses.replace(made, interval=share_interval(made.shares, samples))

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
        for k in (*(2**i for i in range(self.samples.bit_length()) if 2**i < self.samples), self.samples):
            each = [pass_at_k(self.samples, sum(r["is_correct"] for r in group), k) for group in self.groups]
            found[k] = (sum(each) / len(each), share_interval(each, self.samples))
        return found

    @property
    def notes(self) -> list[str]:
        """What to know before reading the numbers."""
        known = self.contamination
        trained_on = UNKNOWN_TRAINING if known is None else known.sentence if known.count else ""
        return [note for note in (trained_on, cut_sentence(self)) if note]

    @property
    def rewards(self) -> dict[str, Estimate]:
        """The mean of each reward, unweighted, with its 95 % interval over questions."""
        names = self.rows[0].get("rewards", {})
        scores = {name: [[row["rewards"][name] for row in group] for group in self.groups] for name in names}
        return {name: estimate(groups, self.reward_ranges.get(name)) for name, groups in scores.items()}

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the rows, fit for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name != "rows"},
            "questions": self.questions,
            "pass_at": {k: {"value": value, "interval": interval} for k, (value, interval) in self.pass_at.items()},
            "rewards": {
                name: {"mean": e.mean if math.isfinite(e.mean) else None, "interval": e.interval}
                for name, e in self.rewards.items()
            },
            "contamination": self.contamination.to_dict() if self.contamination else None,
        }

    @property
    def table(self) -> pandas.DataFrame:
        """`rows` as a table, with a column `reward/<name>` for each reward."""
        import pandas

        # pyarrow cannot hold a lone surrogate, which a model can write.
        flat = pandas.json_normalize(self.rows, sep="/").map(lambda v: displayable(v) if isinstance(v, str) else v)
        return flat.rename(columns=lambda name: name.replace("rewards/", _REWARD_COLUMN, 1))

    def numbers(self) -> list[tuple[str, str]]:
        """Return each measure with its value as the tables show them."""
        shares = {"accuracy (95 % interval)": (self.accuracy, self.interval)}
        shares |= {f"pass@{k}": share for k, share in self.pass_at.items() if k > 1}
        return [
            *((name, f"{value:.1%} ({low:.1%} to {high:.1%})") for name, (value, (low, high)) in shares.items()),
            *((f"reward {name}", str(e)) for name, e in self.rewards.items()),
            ("in the format", f"{self.format_share:.1%}"),
            ("mean length, tokens", f"{self.mean_length:.1f}"),
            ("cut at the limit", f"{self.cut_share:.1%}"),
        ]

    @property
    def drawn(self) -> str:
        """How the answers were drawn, in words."""
        if not self.decoding["temperature"]:
            return "the likeliest answer to each"
        several = f"{self.samples} samples" if self.samples > 1 else "one sample"
        return f"{several} of each at temperature {self.decoding['temperature']:g}"

    @property
    def judged(self) -> str:
        """Who says what is right, behind a comma, where that is said."""
        return f", right is {self.judged_by}" if self.judged_by else ""

    @property
    def sampled(self) -> str:
        """`drawn` behind a comma, where answers were drawn at random, and `judged`."""
        return (f", {self.drawn}" if self.decoding["temperature"] else "") + self.judged

    def __repr__(self) -> str:
        low, high = self.interval
        passed = "".join(f", pass@{k} {value:.1%}" for k, (value, _) in self.pass_at.items() if k > 1)
        rewards = "".join(f", {name} {e.mean:.2f}" for name, e in self.rewards.items())
        notes = "".join(f". {note.removesuffix('.')}" for note in self.notes)
        return (
            f"{self.label}: accuracy {self.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}, n = {self.questions}"
            f"{self.sampled}){passed}, in format {self.format_share:.1%}, mean length {self.mean_length:.1f} tokens, "
            f"cut {self.cut_share:.1%}{rewards}{notes}"
        )

    def _repr_html_(self) -> str:
        asked = f"{self.questions} questions, {self.drawn}{self.judged}. {self.subject}"
        return html_of([Table(self.numbers(), head=("", self.label), right=(1,)), asked, *self.notes])


def cut_sentence(*sides: Evaluation) -> str:
    """That answers were cut at the limit, where it were many; else empty."""
    if not (cut := [side for side in sides if side.cut_share >= _CUT]):
        return ""
    shares = " and ".join(f"{side.cut_share:.0%} of the answers of {side.label!r}" for side in cut)
    limit = cut[0].decoding.get("max_completion_length")
    return (
        f"{shares} were cut at {f'{limit} tokens' if limit else 'the limit'}, and what they would have said is not known: "
        "with a larger max_completion_length they could end."
    )


def frequent_answer(golds: Sequence[str]) -> str:
    """The most frequent of these answers, where few come again and again: labels, ratings; else empty."""
    answers = answers_of(golds)
    if answers.floor is not None:
        return answers.floor[0]
    # Labels may be too rare to be known as such; what comes again and again is a floor all the same.
    counts = Counter(golds)
    label, count = counts.most_common(1)[0]
    is_rare = count < max(3, _OFTEN * len(golds)) or (answers.kind == "number" and len(golds) < 2 * len(counts))
    return "" if is_rare else label


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(PairedResult):
    """Two evaluations on the same questions, their paired difference (after minus before), and what it shows."""

    before: Evaluation
    after: Evaluation
    task_name: str = ""
    other_set: str = ""
    """The name of the questions, where they are not those that were held out for the run."""
    frequent: str = ""
    """The most frequent answer of the task, where few come again and again."""
    notes: tuple[str, ...] = ()
    """What to know before reading it: another tokenizer, training questions that are not known."""
    path: Path | None = dataclasses.field(default=None, compare=False)
    """Folder it was saved in."""

    @property
    def changed(self) -> dict[str, int]:
        """Questions by what became of them: `gained`, `lost`, `both right`, `both wrong`; with samples also `equal`."""
        counts = Counter({"gained": 0, "lost": 0, "both right": 0, "both wrong": 0})
        for a, b in zip(self.before.shares, self.after.shares, strict=True):
            equal = {0.0: "both wrong", 1.0: "both right"}.get(a, "equal")
            counts["gained" if b > a else "lost" if b < a else equal] += 1
        return dict(counts)

    @property
    def sentence(self) -> str:
        """The result in words, with what it could not have seen and what spoils it."""
        low, high = self.interval
        p_value = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"
        shares = ", ".join(
            f"{e.accuracy:.1%} {e.label if e.label in ('before', 'after') else f'({e.label})'}"
            for e in (self.before, self.after)
        )
        which = f" of {self.other_set}" if self.other_set else ""
        unseen = f" {self.disagreement}" if self.disagreement else ""
        unseen += f" {self.power_sentence}" if self.verdict == "no difference shown" else ""
        spoilt = f" {self.contamination.sentence}" if self.contamination and self.contamination.count else ""
        return (
            f"{self.verdict}: accuracy {shares} on "
            f"{self.questions} questions{which}{self.after.sampled} (difference {100 * self.difference:+.1f} points, "
            f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}, {p_value}).{unseen}{spoilt}"
        )

    @property
    def floor_sentence(self) -> str:
        """What the most frequent answer alone would get on these questions; empty where none comes again and again."""
        if not self.frequent:
            return ""
        golds = [group[0]["answer"] for group in self.after.groups]
        share = sum(is_same_answer(self.frequent, gold) for gold in golds) / len(golds)
        low, high = self.after.interval
        stands = "above" if low > share else "below" if high < share else "not clear of"
        return (
            f"Always answering {self.frequent!r} would get {share:.1%}: {self.after.label!r} with {self.after.accuracy:.1%} "
            f"is {stands} that floor."
        )

    @property
    def words(self) -> str:
        """What the figure shows."""
        return f"Held-out comparison. {self.sentence} Questions: {_counted(self.changed)}."

    @property
    def power_sentence(self) -> str:
        """What this comparison could have seen."""
        if self.smallest is None:
            few = "So few questions show nothing"
            if self.questions < FEWEST_QUESTIONS:
                few = f"Under {FEWEST_QUESTIONS} questions no difference is claimed"
            return f"{few}, however large it is: ask more."
        return (
            f"A true difference of {100 * self.smallest:.0f} points or more is shown by so many questions four times in five"
            + ("; a smaller one may be there, unseen." if self.verdict == "no difference shown" else ".")
        )

    @property
    def contamination(self) -> Contamination | None:
        """Questions that were trained on; None if the training questions are not known."""
        return self.after.contamination or self.before.contamination

    @property
    def labels(self) -> tuple[str, str]:
        """The names of the two."""
        return self.before.label, self.after.label

    def transcripts(self) -> pandas.DataFrame:
        """Return every completion of both models side by side: of questions whose verdict changed first, then of other texts.

        Columns: `change` of the question (`gained`, `lost`, `same`), `question`, the gold `answer`, and of each model the
        completion (`before`, `after`) and what it is (`before_is`, `after_is`: `right`, `wrong`, `no answer`).
        """
        import pandas

        rows = []
        for first, second in zip(self.before.groups, self.after.groups, strict=True):
            more = sum(row["is_correct"] for row in second) - sum(row["is_correct"] for row in first)
            change = "gained" if more > 0 else "lost" if more < 0 else "same"
            is_same_text = [row["completion"] for row in first] == [row["completion"] for row in second]
            for a, b in zip(first, second, strict=True):
                told = (a["question"], a["answer"], a["completion"], _verdict_of(a), b["completion"], _verdict_of(b))
                rows.append(((change == "same", is_same_text), (change, *map(displayable, map(str, told)))))
        rows.sort(key=lambda row: row[0])
        columns = ["change", "question", "answer", "before", "before_is", "after", "after_is"]
        return pandas.DataFrame([row for _, row in rows], columns=columns)

    def plot(self) -> Figure:
        """Draw both accuracies and the difference with their intervals, and what became of the questions."""
        from grpo_nb.evaluation.figure import comparison_figure

        return comparison_figure(self)

    def save(self, folder: str | Path) -> Comparison:
        """Write numbers, every answer (parquet), table and figure; return self with the `path`.

        All are written beside their places before the first is put there, so that a full disk leaves those of an earlier
        comparison as they were.
        """
        import pandas

        from grpo_nb.runs.figure import png

        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        with staged_folder(folder / "files") as staged:
            sides = [side.table.assign(model=side.label) for side in (self.before, self.after)]
            pandas.concat(sides, ignore_index=True).to_parquet(staged / "transcripts.parquet", index=False)
            columns = ["measure", *self.labels]
            pandas.DataFrame(self.numbers(), columns=columns).to_csv(staged / "table.csv", index=False)
            (staged / "comparison.png").write_bytes(png(self.plot(), dpi=120))
            (staged / "comparison.txt").write_text(f"{self.words}\n", "utf-8")
            # Last, for it is what says that there is a comparison.
            write_json(staged / "comparison.json", self.to_dict())
            for file in sorted(staged.iterdir(), key=lambda file: file.name == "comparison.json"):
                file.replace(folder / file.name)
        return dataclasses.replace(self, path=folder)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, fit for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name != "path"},
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "verdict": self.verdict,
            "sentence": self.sentence,
            "changed": self.changed,
            "contamination": self.contamination.to_dict() if self.contamination else None,
        }

    def numbers(self) -> list[tuple[str, str, str]]:
        """Return each measure with both values as the tables show them."""
        both = zip(self.before.numbers(), self.after.numbers(), strict=True)
        return [(name, a, b) for (name, a), (_, b) in both]

    def __repr__(self) -> str:
        numbers = Table(self.numbers(), head=("", *self.labels), right=(1, 2))
        power = "" if self.verdict == "no difference shown" else self.power_sentence
        counted = f"questions: {_counted(self.changed)}"
        return text_of([numbers, counted, self.sentence, self.floor_sentence, power, *self.notes])

    def _repr_html_(self) -> str:
        from grpo_nb.evaluation.figure import comparison_figure
        from grpo_nb.runs.figure import png

        picture = base64.b64encode(png(comparison_figure(self, has_words=False))).decode()
        image = f'<img alt="{escaped(self.words)}" src="data:image/png;base64,{picture}" style="max-width:100%;width:860px">'
        few = self.transcripts().head(_EXAMPLES)
        return html_of([
            bold(self.sentence),
            Table(self.numbers(), head=("", *self.labels), right=(1, 2)),
            f"Questions: {_counted({name: count for name, count in self.changed.items() if count})}.",
            "" if self.verdict == "no difference shown" else self.power_sentence,
            self.floor_sentence,
            *self.notes,
            Html("", image),
            f"{len(few)} of {len(self.after.rows)} answers, changed ones first; transcripts() has all:",
            Table([list(map(as_written, row)) for row in few.itertuples(index=False)], head=list(few.columns)),
        ])  # fmt: skip


def _verdict_of(row: Mapping[str, Any]) -> str:
    return "right" if row["is_correct"] else "wrong" if row["given"] is not None else "no answer"


def _counted(changed: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in changed.items())


def open_comparison(folder: str | Path) -> Comparison:
    """Read a saved comparison, with every answer: a run's own is in its `comparison/`.

    Args:
        folder: From `Comparison.save` or `Comparison.path`, or of a run.

    Raises:
        FileNotFoundError: There is none.

    >>> open_comparison("runs/first").transcripts()  # doctest: +SKIP
    """
    import pandas

    folder = Path(folder).expanduser()
    folder = folder / "comparison" if (folder / "run.json").is_file() else folder
    if not (folder / "comparison.json").is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} holds no comparison (comparison.json): gn.compare(run, task) makes one."
        )
    saved = json.loads((folder / "comparison.json").read_text("utf-8"))
    answers = pandas.read_parquet(folder / "transcripts.parquet").astype(object)
    rows = [_row(row) for row in answers.where(answers.notna(), None).to_dict("records")]
    half = len(rows) // 2  # as many of each, the first one's first
    sides = {"before": rows[:half], "after": rows[half:]}
    read = {side: _read(Evaluation, {**saved[side], "rows": of_side}) for side, of_side in sides.items()}
    return _read(Comparison, {**saved, **read, "path": folder})


def _read(kind: type, saved: Mapping[str, Any]) -> Any:
    """A dataclass from the JSON of its fields, which has lists for tuples."""
    values = {field.name: saved[field.name] for field in dataclasses.fields(kind) if field.name in saved}
    values |= {name: tuple(values[name]) for name in ("interval", "notes") if name in values}
    if kind is Evaluation:
        found = values["contamination"]
        values["contamination"] = Contamination(**found) if found else None
        values["reward_ranges"] = {name: tuple(ends) for name, ends in values["reward_ranges"].items()}
    return kind(**values)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of an evaluation from one of its table."""
    made, scores = {}, {}
    for name, value in row.items():
        if name.startswith(_REWARD_COLUMN):
            scores[name.removeprefix(_REWARD_COLUMN)] = math.nan if value is None else value
        elif name != "model":
            made[name] = value
    return made | ({"rewards": scores} if scores else {})
