"""What an evaluation and a comparison know, and how they say it. Numbers come from `rows`; nothing here asks a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.baseline_numbers import Estimate, estimate, in_groups
from grpo_nb.contamination import Contamination
from grpo_nb.evaluation_statistics import FEWEST_QUESTIONS, LEVEL, pass_at_k, share_interval
from grpo_nb.evaluation_transcripts import Only, Transcripts, sorted_pairs

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Verdict = Literal["better", "worse", "no difference shown"]
UNKNOWN_TRAINING = "Which questions were trained on is not known, so it was not looked whether these are among them."
# From this share on, answers that were cut are said beside the accuracy, which is partly that of the length limit.
_CUT = 0.1


@dataclass(frozen=True)
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
    rows: Sequence[Mapping[str, Any]] = dataclasses.field(repr=False)
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
    reward_ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict, repr=False)
    """Lowest and highest score of the rewards that say so."""
    tokens_per_second: float | None = dataclasses.field(default=None, compare=False)

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
        ks = sorted({1, self.samples, *(2**i for i in range(1, 20) if 2**i < self.samples)})
        found = {}
        for k in ks:
            each = [pass_at_k(self.samples, sum(r["is_correct"] for r in group), k) for group in self.groups]
            found[k] = (sum(each) / len(each), share_interval(each, self.samples))
        return found

    @property
    def cut_sentence(self) -> str:
        """That answers were cut at the limit, where it were many; else empty."""
        if self.cut_share < _CUT:
            return ""
        limit = self.decoding.get("max_completion_length")
        at = f"at {limit} tokens" if limit else "at the limit"
        return (
            f"{self.cut_share:.0%} of the answers of {self.label!r} were cut {at}, and what they would have said is not known: "
            "with a larger max_completion_length they could end."
        )

    @property
    def notes(self) -> list[str]:
        """What to know before reading the numbers."""
        known = self.contamination
        trained_on = UNKNOWN_TRAINING if known is None else known.sentence if known.count else ""
        return [note for note in (trained_on, self.cut_sentence) if note]

    @property
    def rewards(self) -> dict[str, Estimate]:
        """The mean of each reward, unweighted, with its 95 % interval over questions."""
        names = self.rows[0].get("rewards", {}) if self.rows else {}
        return {
            name: estimate(
                [[row["rewards"][name] for row in group] for group in self.groups], self.reward_ranges.get(name)
            )
            for name in names
        }

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the rows, fit for JSON."""
        names = (
            "label", "accuracy", "format_share", "mean_length", "cut_share", "samples", "subject", "questions", "folder"
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "interval": list(self.interval),
            "decoding": dict(self.decoding),
            "pass_at": {str(k): {"value": value, "interval": list(i)} for k, (value, i) in self.pass_at.items()},
            "rewards": {
                name: {
                    "mean": e.mean if math.isfinite(e.mean) else None,
                    "interval": list(e.interval) if e.interval else None,
                }
                for name, e in self.rewards.items()
            },
            "contamination": self.contamination.to_dict() if self.contamination else None,
            "reward_ranges": {name: list(ends) for name, ends in self.reward_ranges.items()},
            "tokens_per_second": self.tokens_per_second,
        }

    @property
    def table(self) -> pandas.DataFrame:
        """`rows` as a table, with a column `reward/<name>` for each reward."""
        import pandas

        from grpo_nb.reward_calls import displayable

        flat = []
        for row in self.rows:
            # pyarrow cannot hold a lone surrogate, which a model can write.
            plain = {k: displayable(v) if isinstance(v, str) else v for k, v in row.items() if k != "rewards"}
            flat.append(plain | {f"reward/{name}": score for name, score in row.get("rewards", {}).items()})
        return pandas.DataFrame(flat)

    def numbers(self) -> list[tuple[str, str]]:
        """Return each measure with its value as the tables show them."""
        low, high = self.interval
        said = [("accuracy (95 % interval)", f"{self.accuracy:.1%} ({low:.1%} to {high:.1%})")]
        said += [
            (f"pass@{k}", f"{value:.1%} ({i[0]:.1%} to {i[1]:.1%})") for k, (value, i) in self.pass_at.items() if k > 1
        ]
        said += [(f"reward {name}", str(e)) for name, e in self.rewards.items()]
        return [
            *said,
            ("in the format", f"{self.format_share:.1%}"),
            ("mean length, tokens", f"{self.mean_length:.1f}"),
            ("cut at the limit", f"{self.cut_share:.1%}"),
        ]

    @property
    def drawn(self) -> str:
        """How the answers were drawn, in words."""
        temperature = self.decoding.get("temperature", 0.0)
        if not temperature:
            return "the likeliest answer to each"
        several = f"{self.samples} samples" if self.samples > 1 else "one sample"
        return f"{several} of each at temperature {temperature:g}"

    def __repr__(self) -> str:
        low, high = self.interval
        passed = "".join(f", pass@{k} {value:.1%}" for k, (value, _) in self.pass_at.items() if k > 1)
        rewards = "".join(f", {name} {e.mean:.2f}" for name, e in self.rewards.items())
        notes = "".join(f". {note.removesuffix('.')}" for note in self.notes)
        sampled = f", {self.drawn}" if self.decoding.get("temperature") else ""
        return (
            f"{self.label}: accuracy {self.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}, n = {self.questions}"
            f"{sampled}){passed}, in format {self.format_share:.1%}, mean length {self.mean_length:.1f} tokens, "
            f"cut {self.cut_share:.1%}{rewards}{notes}"
        )

    def _repr_html_(self) -> str:
        from grpo_nb.evaluation_html import evaluation_view

        return evaluation_view(self)


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the same questions, their paired difference, and what it shows."""

    before: Evaluation
    after: Evaluation
    difference: float
    """Accuracy after minus before."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the difference, questions resampled in pairs."""
    p_value: float
    """The chance of changes at least this uneven if neither model were better (`test` says how it is computed)."""
    test: str = "exact McNemar"
    smallest: float | None = None
    """The smallest difference that this comparison would have shown four times in five; None if it could show none."""
    task_name: str = ""
    other_set: str = ""
    """The name of the questions, where they are not those that were held out for the run."""
    notes: tuple[str, ...] = ()
    """What to know before reading it: another tokenizer, training questions that are not known."""
    path: Path | None = dataclasses.field(default=None, compare=False)
    """Folder it was saved in."""

    @property
    def questions(self) -> int:
        """How many were asked."""
        return self.after.questions

    @property
    def changed(self) -> dict[str, int]:
        """Questions by what became of them: `gained`, `lost`, `both right`, `both wrong`; with samples also `equal`."""
        counts = {"gained": 0, "lost": 0, "both right": 0, "both wrong": 0}
        for a, b in zip(self.before.shares, self.after.shares, strict=True):
            equal = {0.0: "both wrong", 1.0: "both right"}.get(a, "equal")
            kind = "gained" if b > a else "lost" if b < a else equal
            counts[kind] = counts.get(kind, 0) + 1
        return counts

    @property
    def verdict(self) -> Verdict:
        """`better`, `worse` or `no difference shown`, of the second."""
        low, high = self.interval
        if self.questions < FEWEST_QUESTIONS or self.p_value >= 1 - LEVEL:
            return "no difference shown"
        return "better" if low > 0 else "worse" if high < 0 else "no difference shown"

    @property
    def sentence(self) -> str:
        """The result in words, with what it could not have seen and what spoils it."""
        low, high = self.interval
        p_value = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"
        shares = ", ".join(
            f"{e.accuracy:.1%} {e.label if e.label in ('before', 'after') else f'({e.label})'}"
            for e in (self.before, self.after)
        )
        sampled = f", {self.after.drawn}" if self.after.decoding.get("temperature") else ""
        which = f" of {self.other_set}" if self.other_set else ""
        said = [
            f"{self.verdict}: accuracy {shares} on "
            f"{self.questions} questions{which}{sampled} (difference {100 * self.difference:+.1f} points, 95 % interval "
            f"{100 * low:+.1f} to {100 * high:+.1f}, {p_value})."
        ]
        if self.verdict == "no difference shown":
            said.append(self.power_sentence)
        if self.contamination and self.contamination.count:
            said.append(self.contamination.sentence)
        return " ".join(said)

    @property
    def elsewhere(self) -> str | None:
        """The line to type for the same in lm-evaluation-harness, where one of the two is a model folder."""
        from grpo_nb.evaluation_harness import harness_command

        folder = self.after.folder or self.before.folder
        if not folder:
            return None
        own = f'gn.write_harness_task(task, "harness", tokenizer).command("{folder}")'
        return harness_command(folder, self.task_name) or own

    @property
    def power_sentence(self) -> str:
        """What this comparison could have seen."""
        if self.smallest is None:
            few = self.questions < FEWEST_QUESTIONS
            why = (
                f"Under {FEWEST_QUESTIONS} questions no difference is claimed"
                if few
                else "So few questions show nothing"
            )
            return f"{why}, however large it is: ask more."
        return (
            f"A true difference of {100 * self.smallest:.0f} points or more is shown by so many questions four times in five"
            + ("; a smaller one may be there, unseen." if self.verdict == "no difference shown" else ".")
        )

    @property
    def contamination(self) -> Contamination | None:
        """Questions that were trained on; None if the training questions are not known."""
        return self.after.contamination or self.before.contamination

    def transcripts(self, count: int | None = 3, *, search: str | None = None, only: Only | None = None) -> Transcripts:
        """Return questions with both answers side by side, those whose verdict changed first, then those whose text did.

        It shows itself with a field to search in, which also works in a page made by nbconvert.

        Args:
            count: How many at most; None for all.
            search: Only those with this text in question, gold answer or a completion, whatever the case.
            only: `"changed"` verdicts, or of these those `"gained"` or `"lost"`, or the `"same"`.

        Raises:
            ValueError: An unknown `only`.
        """
        chosen = sorted_pairs(self.before.groups, self.after.groups, search=search, only=only)
        labels = (self.before.label, self.after.label)
        return Transcripts(tuple(chosen[:count]), labels=labels, matching=len(chosen))

    def plot(self) -> Figure:
        """Draw both accuracies and the difference with their intervals, and what became of the questions."""
        from grpo_nb.evaluation_figure import comparison_figure

        return comparison_figure(self)

    def save(self, folder: str | Path) -> Comparison:
        """Write numbers, transcripts (parquet, and a page to search in), table and figure; return self with the `path`."""
        from grpo_nb.evaluation_files import save_comparison

        return dataclasses.replace(self, path=save_comparison(self, Path(folder)))

    def to_dict(self) -> dict[str, Any]:
        """The numbers, fit for JSON."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "difference": self.difference,
            "interval": list(self.interval),
            "p_value": self.p_value,
            "test": self.test,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "questions": self.questions,
            "smallest_difference": self.smallest,
            "changed": self.changed,
            "task": self.task_name,
            "other_set": self.other_set,
            "elsewhere": self.elsewhere,
            "contamination": self.contamination.to_dict() if self.contamination else None,
            "notes": list(self.notes),
        }

    def numbers(self) -> list[tuple[str, str, str]]:
        """Return each measure with both values as the tables show them."""
        both = zip(self.before.numbers(), self.after.numbers(), strict=True)
        return [(name, a, b) for (name, a), (_, b) in both]

    def __repr__(self) -> str:
        rows = [("", self.before.label, self.after.label), *self.numbers()]
        first, *others = (max(len(row[i]) for row in rows) + 2 for i in range(3))
        lines = [f"{name:{first}}{a:>{others[0]}}{b:>{others[1]}}" for name, a, b in rows]
        changed = ", ".join(f"{count} {name}" for name, count in self.changed.items())
        power = [] if self.verdict == "no difference shown" else [self.power_sentence]
        elsewhere = [f"In lm-evaluation-harness: {self.elsewhere}"] if self.elsewhere else []
        return "\n".join([*lines, f"questions: {changed}", self.sentence, *power, *self.notes, *elsewhere])

    def _repr_html_(self) -> str:
        from grpo_nb.evaluation_html import comparison_view

        return comparison_view(self)
