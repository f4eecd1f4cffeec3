"""Held-out evaluation, before and after: the same prompts, template and greedy decoding, with intervals.

The verdict never says more than the data shows: "better" and "worse" need an exact McNemar test below 0.05 and a bootstrap
interval of the difference that excludes zero; everything else is "no difference shown".
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.data import Task
from grpo_nb.formats import AnswerFormat
from grpo_nb.holdout import read_answers
from grpo_nb.metrics import Run, write_json

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LEVEL = 0.95


@dataclass(frozen=True)
class Evaluation:
    """How a model does on held-out questions. Shares are 0 to 1, lengths in tokens."""

    label: str
    accuracy: float
    interval: tuple[float, float]
    """95 % Wilson interval of the accuracy."""
    format_share: float
    mean_length: float
    cut_share: float
    rows: Sequence[Mapping[str, Any]] = dataclasses.field(repr=False)
    """Per question: `question`, `answer`, `completion`, `given`, `is_correct`, `is_formatted`, `tokens`, `is_cut`.

    `given` is what the rewards would read: the answer slot, if nothing follows it."""

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the rows."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "rows"}

    @property
    def table(self) -> pandas.DataFrame:
        """`rows` as a table."""
        import pandas

        return pandas.DataFrame(list(self.rows))

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"{self.label}: accuracy {self.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}, n = {len(self.rows)}), "
            f"in format {self.format_share:.1%}, mean length {self.mean_length:.1f} tokens, cut {self.cut_share:.1%}"
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>"


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    *,
    max_completion_length: int = 48,
    label: str = "model",
) -> Evaluation:
    """Answer every held-out question greedily and score the answers.

    Args:
        model: As it is, with its adapter on or off.
        tokenizer: Its tokenizer.
        task: Its `holdout` is asked, its `format` read.
        max_completion_length: Tokens; the one of training makes the numbers comparable.
        label: Shown in the result.
    """
    return _evaluate(model, tokenizer, list(task.holdout), task.format, max_completion_length, label)


def _evaluate(
    model: Any, tokenizer: Any, questions: list[dict[str, Any]], format: AnswerFormat, limit: int, label: str
) -> Evaluation:
    from scipy.stats import binomtest
    from tqdm.auto import tqdm

    from grpo_nb.rollout import generate

    with tqdm(total=len(questions), desc=f"held-out, {label}", unit="question", leave=False) as bar:
        completions = generate(
            model,
            tokenizer,
            [row["prompt"] for row in questions],
            max_completion_length=limit,
            progress=lambda done: bar.update(done - bar.n),
        )
    rows = read_answers(questions, completions, format)
    count, correct = len(rows), sum(row["is_correct"] for row in rows)
    interval = binomtest(correct, count).proportion_ci(_LEVEL, method="wilson")
    return Evaluation(
        label=label,
        accuracy=correct / count,
        interval=(float(interval.low), float(interval.high)),
        format_share=sum(row["is_formatted"] for row in rows) / count,
        mean_length=sum(row["tokens"] for row in rows) / count,
        cut_share=sum(row["is_cut"] for row in rows) / count,
        rows=rows,
    )


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
    """Exact McNemar test: the chance of a split of the changed answers at least this uneven if nothing had changed."""

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference shown`."""
        low, high = self.interval
        if self.p_value < 1 - _LEVEL and low > 0:
            return "better"
        if self.p_value < 1 - _LEVEL and high < 0:
            return "worse"
        return "no difference shown"

    @property
    def sentence(self) -> str:
        """The result in words."""
        low, high = self.interval
        p_value = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"
        return (
            f"{self.verdict}: accuracy {self.before.accuracy:.1%} before, {self.after.accuracy:.1%} after on "
            f"{len(self.after.rows)} questions (difference {100 * self.difference:+.1f} points, 95 % interval "
            f"{100 * low:+.1f} to {100 * high:+.1f}, {p_value})."
        )

    def transcripts(self, count: int = 3) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The first `count` pairs of rows, those whose verdict changed first."""
        pairs = list(zip(self.before.rows, self.after.rows, strict=True))
        return sorted(pairs, key=lambda pair: pair[0]["is_correct"] == pair[1]["is_correct"])[:count]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, fit for JSON."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "difference": self.difference,
            "interval": list(self.interval),
            "p_value": self.p_value,
            "verdict": self.verdict,
            "sentence": self.sentence,
        }

    def _numbers(self) -> list[tuple[str, str, str]]:
        def accuracy(e: Evaluation) -> str:
            return f"{e.accuracy:.1%} ({e.interval[0]:.1%} to {e.interval[1]:.1%})"

        rows = [("accuracy (95 % interval)", accuracy)]
        rows += [
            ("in the format", lambda e: f"{e.format_share:.1%}"),
            ("mean length, tokens", lambda e: f"{e.mean_length:.1f}"),
            ("cut at the limit", lambda e: f"{e.cut_share:.1%}"),
        ]
        return [(name, of(self.before), of(self.after)) for name, of in rows]

    def __repr__(self) -> str:
        lines = [f"{'':26}{'before':>24}{'after':>24}"]
        lines += [f"{name:26}{a:>24}{b:>24}" for name, a, b in self._numbers()]
        return "\n".join([*lines, self.sentence])

    def _repr_html_(self) -> str:
        cell = "style='text-align:left;vertical-align:top;white-space:pre-wrap;font-family:monospace'"
        numbers = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{a}</td><td>{b}</td></tr>"
            for name, a, b in self._numbers()
        )

        def shown(row: Mapping[str, Any]) -> str:
            mark = "right" if row["is_correct"] else "wrong" if row["given"] is not None else "no answer"
            return f"<td {cell}>{html.escape(row['completion'])}\n<b>[{mark}]</b></td>"

        turns = "".join(
            f"<tr><td style='text-align:left;vertical-align:top'>{html.escape(a['question'])}<br>"
            f"gold: <b>{html.escape(a['answer'])}</b></td>{shown(a)}{shown(b)}</tr>"
            for a, b in self.transcripts()
        )
        head = "<thead><tr><th></th><th>before</th><th>after</th></tr></thead>"
        return (
            f"<p><b>{html.escape(self.sentence)}</b></p><table>{head}{numbers}</table>"
            f"<p>Three questions, changed answers first:</p><table>{head}{turns}</table>"
        )


def compare(run: Run, task: Task | None = None) -> Comparison:
    """Compare the starting model and the trained one on the held-out questions, and save the result in the run.

    The same prompts, template and greedy decoding; the starting model is the trained one with its adapter switched off.

    Args:
        run: From `train`, or from `open_run`, whose model is then loaded from its adapter.
        task: The task whose `holdout` is asked; the one stored with the run if not given.

    Raises:
        ValueError: A held-out question is also in the task's training part.
    """
    if task is not None:
        shared = {row["question"] for row in task.train} & {row["question"] for row in task.holdout}
        if shared:
            raise ValueError(
                f"{len(shared)} held-out questions are also in the training part, for example {sorted(shared)[0]!r}: "
                "a score on them measures memory. Make the task with load_task, which keeps them apart."
            )
    model, tokenizer = _model_of(run)
    format = task.format if task is not None else AnswerFormat(**run.info["task"]["format"])
    questions = list(task.holdout) if task is not None else run.holdout()
    limit = run.settings.max_completion_length
    with model.disable_adapter():
        before = _evaluate(model, tokenizer, questions, format, limit, "before")
    after = _evaluate(model, tokenizer, questions, format, limit, "after")
    comparison = _paired(before, after)
    _save(run, comparison)
    return comparison


def _paired(before: Evaluation, after: Evaluation) -> Comparison:
    import numpy
    from scipy.stats import binomtest, bootstrap

    change = numpy.array(
        [b["is_correct"] - a["is_correct"] for a, b in zip(before.rows, after.rows, strict=True)], float
    )
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    p_value = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    if numpy.ptp(change) == 0:  # nothing to resample; the test above carries the verdict
        interval = (float(change[0]), float(change[0]))
    else:
        result = bootstrap((change,), numpy.mean, confidence_level=_LEVEL, method="percentile", rng=0)
        interval = (float(result.confidence_interval.low), float(result.confidence_interval.high))
    return Comparison(before, after, float(change.mean()), interval, float(p_value))


def _model_of(run: Run) -> tuple[Any, Any]:
    if run.model is None:
        from grpo_nb.models import load_adapter, load_model

        run.model, run.tokenizer = load_model(run.settings)
        load_adapter(run.model, run.adapter_path)
    return run.model, run.tokenizer


def _save(run: Run, comparison: Comparison) -> None:
    import pandas

    folder = run.path / "comparison"
    folder.mkdir(exist_ok=True)
    write_json(folder / "comparison.json", comparison.to_dict())
    tables = [pandas.DataFrame(list(e.rows)).assign(model=e.label) for e in (comparison.before, comparison.after)]
    pandas.concat(tables).to_parquet(folder / "transcripts.parquet", index=False)
    from grpo_nb.model_card import write_model_card

    write_model_card(run)
