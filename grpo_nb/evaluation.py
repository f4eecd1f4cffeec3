"""Held-out evaluation: one model, or two on the same questions, with intervals, whatever form the model is in.

The verdict never says more than the data shows: "better" and "worse" need an exact test below 0.05, a bootstrap interval of
the difference that excludes zero, and ten questions. Everything else is "no difference shown", with what would have been.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import Settings
from grpo_nb.contamination import Contamination, find_contamination, trained_questions
from grpo_nb.data import Source, Task
from grpo_nb.evaluation_files import folder_of
from grpo_nb.evaluation_result import UNKNOWN_TRAINING
from grpo_nb.evaluation_result import Comparison as Comparison
from grpo_nb.evaluation_result import Evaluation as Evaluation
from grpo_nb.evaluation_statistics import paired_result, share_interval
from grpo_nb.evaluation_subjects import (
    BASE,
    Decoding,
    Subject,
    model_of,
    name_of,
    open_subject,
    run_of,
    tokenizer_of_run,
)
from grpo_nb.formats import AnswerFormat
from grpo_nb.heldout_sets import HeldOut, load_holdout
from grpo_nb.holdout import Judge, read_answers, same_as_gold
from grpo_nb.metrics import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo_nb.reward_calls import RewardFunction

Questions = Task | HeldOut | Source
# What stands second in `compare` is a model if it is a text, but for the name of a file of questions.
_DATA_FILES = (".csv", ".json", ".jsonl", ".parquet")
_DEFAULT_LENGTH = 48
# Of GRPOConfig, the arguments that change what is drawn and have no field in Settings.
_SAMPLING_EXTRA = ("min_p", "repetition_penalty")


def evaluate(
    subject: Any,
    tokenizer: PreTrainedTokenizerBase | Questions | None = None,
    task: Questions | None = None,
    *,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    samples: int = 1,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    label: str | None = None,
    allow_contaminated: bool = False,
    report: Callable[[str], None] | None = None,
) -> Evaluation:
    """Have a model answer held-out questions and score the answers: `evaluate(run, task)`, `evaluate(model, tokenizer, task)`.

    Args:
        subject: A run or its folder (its adapter), `"base"` (with `run`), a model folder such as a merged export, a .gguf file,
            the name of a model, `(model, tokenizer)`, or a model, as it is, with its tokenizer after it.
        tokenizer: Of a model in memory. Otherwise the task may stand here.
        task: Its `holdout` is asked and its `format` read: a task, or a set from `load_holdout`. What that takes, such as rows
            or a file of yours, is asked in the format of the run. The questions stored with the run if not given.
        run: The run it belongs to: for `"base"`, and for the tokenizer, settings and training questions of a model folder.
        rewards: Their means are reported too.
        samples: Answers to each question. One is the likeliest (greedy); several are drawn, for pass@k.
        temperature: Of drawing; that of the settings if there are several samples, else 0.
        max_completion_length: Tokens; that of the settings if not given, and 48 without any.
        settings: For length and sampling; those of the run if not given.
        seed: Of drawing; that of the settings if not given.
        label: Shown in the result.
        allow_contaminated: Go on when held-out questions were trained on. The result says how many.
        report: Called with one line per stage.

    Raises:
        ValueError: A held-out question was trained on, there are no questions, or numbers that cannot work.
        FileNotFoundError: No such folder, file or run.
        EnvironmentProblem: A GGUF file and no llama.cpp.

    Example, which takes half a minute on a CPU:

        gn.evaluate("exports/my-model", task, run=run, samples=8).pass_at
    """
    if _is_questions(tokenizer):
        task, tokenizer = tokenizer, None
    if tokenizer is not None:
        subject, label = (subject, tokenizer), label or "model"
    run = run or run_of(subject)
    asked = _Questions.of(task, run)
    decoding = _decoding(settings or (run.settings if run else None), samples, temperature, max_completion_length, seed)
    contamination = asked.contamination(_runs(run, subject), allow_contaminated)
    shared = tokenizer_of_run(run) if run is not None and not isinstance(subject, tuple) else None
    with open_subject(subject, run=run, tokenizer=shared, report=report) as opened:
        opened = dataclasses.replace(opened, label=label or opened.label)
        return _answer(opened, asked, decoding, _listed(rewards), contamination)


def compare(
    before: Any,
    after: Any = None,
    task: Questions | None = None,
    *,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    samples: int = 1,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    labels: tuple[str, str] | None = None,
    allow_contaminated: bool = False,
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare two models on the same held-out questions: `compare(run, task)`, or `compare(before, after, task)`.

    The same prompts, chat template and way of decoding for both. A run alone is compared with the model it started from, its
    adapter off and on, and the result is kept as the run's own, for its summary and model card. Any other comparison that a run
    belongs to is kept beside it, in `comparison/<one>-vs-<other>`.

    Args:
        before: What `evaluate` takes as subject; alone, a run.
        after: The other one. The task may stand here for a run alone.
        task: As in `evaluate`; the questions stored with the run if not given.
        run: The run they belong to, if neither is one: for `"base"`, and tokenizer, settings, training questions, folder.
        rewards, samples, temperature, max_completion_length, settings, seed, allow_contaminated, report: As in `evaluate`.
        labels: Names of the two in tables.

    Raises:
        ValueError: A held-out question was trained on, one model alone that is no run, or numbers that cannot work.
        FileNotFoundError: No such folder, file or run.
        EnvironmentProblem: A GGUF file and no llama.cpp.
    """
    if _is_questions(after) and (not isinstance(after, (str, Path)) or Path(after).suffix.lower() in _DATA_FILES):
        task, after = after, None
    run = run or run_of(before, after)
    is_of_the_run = after is None
    if is_of_the_run:
        alone = run_of(before)
        if alone is None:
            raise ValueError(
                f"{before!r:.80} alone is no run, so there is nothing to compare it with. Name the other one: "
                "gn.compare(before, after, task)."
            )
        before, after, run, labels = BASE, alone, alone, labels or ("before", "after")
    asked = _Questions.of(task, run)
    decoding = _decoding(settings or (run.settings if run else None), samples, temperature, max_completion_length, seed)
    contamination = asked.contamination(_runs(run, before, after), allow_contaminated)
    labels = labels or _distinct(name_of(before, run), name_of(after, run))
    shared = tokenizer_of_run(run) if run is not None else None
    if is_of_the_run and run is not None:
        model_of(run, report)  # loaded once for both, and kept
    results, notes = [], []
    for subject, label in zip((before, after), labels, strict=True):
        with open_subject(subject, run=run, tokenizer=shared, report=report) as opened:
            opened = dataclasses.replace(opened, label=label)
            results.append(_answer(opened, asked, decoding, _listed(rewards), contamination))
            shared = shared if shared is not None else opened.tokenizer
            notes += [opened.note] if opened.note else []
    if is_of_the_run and run is not None and (run.path / "reference").is_dir():
        notes.append(
            "This run went on from an adapter that was trained before. 'before' is the model without any adapter, so the "
            "difference is that of both trainings, and the questions of the earlier one were not looked at."
        )
    if contamination is None:
        notes.append(UNKNOWN_TRAINING)
    notes += [result.cut_sentence for result in results if result.cut_sentence]
    comparison = dataclasses.replace(
        _paired(*results), task_name=asked.name, other_set=asked.other_than(run), notes=tuple(notes)
    )
    return comparison if run is None else _kept(comparison, run, labels, is_of_the_run)


def _kept(comparison: Comparison, run: Run, labels: tuple[str, str], is_of_the_run: bool) -> Comparison:
    """Save a comparison in the run's folder; where that cannot be written, the answers are not lost with it."""
    try:
        comparison = comparison.save(folder_of(run, labels, is_of_the_run))
        if is_of_the_run:
            from grpo_nb.model_card import write_model_card

            write_model_card(run)
    except OSError as error:
        note = (
            f"This could not be saved in the run's folder ({error}), so its summary and model card do not say it. "
            "comparison.save('a folder') writes it elsewhere."
        )
        return dataclasses.replace(comparison, notes=(*comparison.notes, note))
    return comparison


@dataclasses.dataclass(frozen=True)
class _Questions:
    """What is asked: the rows, where their answers stand, and who judges them."""

    name: str
    rows: list[dict[str, Any]]
    format: AnswerFormat
    judge: Judge
    train: Any
    """The training part of the same task, if there is one."""
    is_fixed_format: bool
    """The task was made for a tokenizer, or not; a set of `load_holdout` never is."""

    @classmethod
    def of(cls, task: Questions | None, run: Run | None) -> _Questions:
        if task is None and run is None:
            raise ValueError("which questions? Give a task, gn.load_holdout(...), or a run, which has its own.")
        if task is not None and not isinstance(task, (Task, HeldOut)):
            task = load_holdout(task, format=AnswerFormat(**run.info["task"]["format"]) if run is not None else None)
        if task is None:
            format = AnswerFormat(**run.info["task"]["format"])
            found = cls(run.info["task"]["name"], run.holdout(), format, same_as_gold, None, True)
        elif isinstance(task, HeldOut):
            found = cls(task.name, list(task.holdout), task.format, task.judge, None, False)
        else:
            found = cls(task.name, list(task.holdout), task.format, same_as_gold, task.train, True)
        if not found.rows:
            raise ValueError("there are no held-out questions to ask.")
        return found

    def other_than(self, run: Run | None) -> str:
        """The name of the set if its questions are not those held out for the run; a result on them is not the run's own."""
        if run is None or not (run.path / "holdout.jsonl").is_file():
            return ""
        own = {row["question"] for row in run.holdout()}
        is_own = all(row["question"] in own for row in self.rows)
        return "" if is_own else self.name or "other questions"

    def contamination(self, runs: Sequence[Run], is_allowed: bool) -> Contamination | None:
        trained = trained_questions(self.train, runs)
        if trained is None:
            return None
        found = find_contamination([row["question"] for row in self.rows], trained)
        if not is_allowed:
            found.require_none()
        return found


def _runs(*subjects: Any) -> list[Run]:
    """The runs among what is asked, each once: every one of them may have been trained on the questions."""
    found = [run for subject in subjects if subject is not None and (run := run_of(subject)) is not None]
    return list({run.path.absolute(): run for run in found}.values())


def _is_questions(what: Any) -> bool:
    """Whether this is a task, or what one can be made of, and not a tokenizer or another model."""
    return isinstance(what, (Task, HeldOut, str, Path, list)) or hasattr(what, "column_names")


def _listed(rewards: Any) -> list[Any]:
    return [rewards] if callable(rewards) else list(rewards)


def _distinct(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (1)", f"{second} (2)")


def _decoding(
    settings: Settings | None, samples: int, temperature: float | None, limit: int | None, seed: int | None
) -> Decoding:
    if samples < 1:
        raise ValueError(f"samples = {samples!r} must be at least 1.")
    if temperature is None:
        temperature = 0.0 if samples == 1 else (settings.temperature if settings else 1.0)
    if temperature < 0 or (temperature == 0 and samples > 1):
        raise ValueError(
            f"temperature = {temperature!r} with samples = {samples}: several greedy answers are all the same. Write "
            "samples=1, or a temperature above 0."
        )
    if limit is None:
        limit = settings.max_completion_length if settings else _DEFAULT_LENGTH
    if limit < 1:
        raise ValueError(f"max_completion_length = {limit!r} must be at least 1.")
    sampling: dict[str, Any] = {}
    if settings is not None and temperature > 0:
        extra = {name: settings.extra[name] for name in _SAMPLING_EXTRA if name in settings.extra}
        sampling = {"top_p": settings.top_p, "top_k": settings.top_k, **extra}
    if seed is None:
        seed = settings.seed if settings else 0
    return Decoding(max_completion_length=limit, samples=samples, temperature=temperature, sampling=sampling, seed=seed)


def _answer(
    subject: Subject, asked: _Questions, decoding: Decoding, rewards: list[Any], contamination: Contamination | None
) -> Evaluation:
    from tqdm.auto import tqdm

    from grpo_nb.reward_calls import reward_name

    format = asked.format
    if not asked.is_fixed_format and subject.tokenizer is not None:
        format = format.for_template(subject.tokenizer)
    total = len(asked.rows) * decoding.samples
    started = time.perf_counter()
    with tqdm(total=total, desc=f"held-out, {subject.label}", unit="answer", leave=False) as bar:
        completions = subject.ask(
            [row["prompt"] for row in asked.rows], decoding, lambda done: bar.update(done - bar.n)
        )
    seconds = time.perf_counter() - started
    repeated = [row for row in asked.rows for _ in range(decoding.samples)]
    rows = read_answers(repeated, completions, format, asked.judge)
    for number, row in enumerate(rows):
        row["sample"] = number % decoding.samples
    _add_rewards(rows, rewards, completions, repeated)
    evaluation = Evaluation(
        label=subject.label,
        accuracy=sum(row["is_correct"] for row in rows) / total,
        interval=(0.0, 1.0),
        format_share=sum(row["is_formatted"] for row in rows) / total,
        mean_length=sum(row["tokens"] for row in rows) / total,
        cut_share=sum(row["is_cut"] for row in rows) / total,
        rows=rows,
        samples=decoding.samples,
        decoding=decoding.to_dict(),
        subject=" ".join(part for part in (subject.about, subject.note) if part),
        contamination=contamination,
        folder=subject.folder,
        reward_ranges={reward_name(r): tuple(r.range) for r in rewards if getattr(r, "range", None) is not None},
        tokens_per_second=sum(row["tokens"] for row in rows) / seconds if seconds > 0 else None,
    )
    return dataclasses.replace(evaluation, interval=share_interval(evaluation.shares, decoding.samples))


def _add_rewards(
    rows: list[dict[str, Any]], rewards: list[Any], completions: Sequence[Any], data: Sequence[Mapping[str, Any]]
) -> None:
    if not rewards:
        return
    from grpo_nb.scoring import score

    scores = score(rewards, [c.text for c in completions], data, completion_ids=[list(c.ids) for c in completions])
    for row, each in zip(rows, scores, strict=True):
        row["rewards"] = each


def _paired(before: Evaluation, after: Evaluation) -> Comparison:
    found = paired_result(before.shares, after.shares, before.samples)
    return Comparison(
        before, after, found.difference, found.interval, found.p_value, test=found.test, smallest=found.smallest
    )
