"""Held-out evaluation: one model, or two on the same questions, with intervals, whatever form the model is in.

The verdict never says more than the data shows: "better" and "worse" need an exact test below 0.05, a bootstrap interval of
the difference that excludes zero, and ten questions. Everything else is "no difference shown", with what would have been.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.core.progress import progress_bar
from grpo_nb.core.words import in_line, require_number
from grpo_nb.evaluation.comparison import UNKNOWN_TRAINING, Comparison, Evaluation, cut_sentence, frequent_answer
from grpo_nb.evaluation.heldout import HeldOut, chosen, load_holdout, read_answers
from grpo_nb.evaluation.statistics import paired_result
from grpo_nb.evaluation.subjects import (
    BASE,
    Decoding,
    Located,
    Subject,
    located,
    name_of,
    open_subject,
    require_adapter,
)
from grpo_nb.models.match import require_same_settings
from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import Reward, RewardFunction, range_of, reward_list, reward_name, weights_by_name
from grpo_nb.rewards.judging import answer_reward, judge_in_words
from grpo_nb.rewards.record import rebuilt
from grpo_nb.rewards.scores import score
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.run import Run, trained_questions
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.contamination import Contamination, find_contamination
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.read_rows import Source
from grpo_nb.tasks.task import Task

Questions = Task | HeldOut | Source
# What stands second in `compare` is a model if it is a text, but for the name of a file of questions.
_DATA_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_DEFAULT_LENGTH = 48


def evaluate(
    subject: Any,
    task: Questions | None = None,
    *,
    tokenizer: Any = None,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    limit: int | None = None,
    samples: int = 1,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    label: str | None = None,
    allow_contaminated: bool = False,
    report: Callable[[str], None] | None = None,
) -> Evaluation:
    """Have a model answer held-out questions and score the answers.

    Args:
        subject: A run or its folder (its adapter), `"base"` (with `run`), a model folder such as a merged export, a .gguf file,
            the name of a model, or `(model, tokenizer)` as they are.
        task: Its `holdout` is asked and its `format` read: a task, or a set from `load_holdout`. What that takes, such as rows
            or a file of yours, is asked in the format of the run. The questions stored with the run if not given.
        tokenizer: Of a model in memory that stands alone.
        run: The run it belongs to: for `"base"`, and for the tokenizer, settings and training questions of a model folder.
        rewards: Their means are reported too; one for the answer among them says what is right. Else that is the run's own
            reward for the answer, or the gold answer as `correctness` reads it.
        limit: How many of the questions, always the same; all if not given.
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

    >>> answered = gn.evaluate((model, tokenizer), task, max_completion_length=8)
    >>> 0.0 <= answered.accuracy <= 1.0
    True
    """
    how = _How(rewards, limit, samples, temperature, max_completion_length, settings, seed, allow_contaminated, report)
    (found,), run = located([subject if tokenizer is None else (subject, tokenizer)], run)
    (result,), _ = _Asked(task, run, how).of_each([found], [label or name_of(found)])
    return result


def compare(
    before: Any,
    after: Any = None,
    task: Questions | None = None,
    *,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    limit: int | None = None,
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
    adapter off and on, and the result on all of its own questions is kept in its folder, for its summary and model card. Any
    other comparison is kept where you say, with `.save(folder)`.

    Args:
        before: What `evaluate` takes as subject; alone, a run.
        after: The other one. The task may stand here for a run alone.
        task: As in `evaluate`; the questions stored with the run if not given.
        run: The run they belong to, if neither is one: for `"base"`, and tokenizer, settings, training questions, folder.
        rewards, limit, samples, temperature, max_completion_length, settings, seed, allow_contaminated, report: As in
            `evaluate`.
        labels: Names of the two in tables.

    Raises:
        ValueError: A held-out question was trained on, one model alone that is no run, or numbers that cannot work.
        FileNotFoundError: No such folder, file or run.
        EnvironmentProblem: A GGUF file and no llama.cpp.

    >>> comparison = gn.compare(run, max_completion_length=8)
    >>> comparison.verdict in ("better", "worse", "no difference shown")
    True
    """
    how = _How(rewards, limit, samples, temperature, max_completion_length, settings, seed, allow_contaminated, report)
    if labels is not None and (isinstance(labels, str) or len(labels) != 2):
        raise ValueError(f"labels = {in_line(labels)} must be two texts.")
    if task is None and _is_questions(after):
        task, after = after, None
    is_of_the_run = after is None
    found, run = located([before] if is_of_the_run else [before, after], run)
    if is_of_the_run:
        if not isinstance(found[0], Run):
            raise ValueError(
                f"{before!r:.80} alone is no run, so there is nothing to compare it with. Name the other one: "
                "gn.compare(before, after, task)."
            )
        found, run = located([BASE, found[0]])
    asked = _Asked(task, run, how)
    labels = labels or (("before", "after") if is_of_the_run else _distinct(*map(name_of, found)))
    results, notes = asked.of_each(found, labels)
    if is_of_the_run and (run.path / "reference").is_dir():
        notes.append(
            "This run went on from an adapter that was trained before. 'before' is the model without any adapter, so the "
            "difference is that of both trainings, and the questions of the earlier one were not looked at."
        )
    if is_of_the_run and not asked.other_set and (best := run.best) is not None and run.settings.keep == "best":
        notes.append(
            f"This adapter is the best of {best.scores} by its score on some of these questions, so its accuracy here is a "
            "little higher than on new ones."
        )
    if results[0].contamination is None:
        notes.append(UNKNOWN_TRAINING)
    notes += filter(None, [cut_sentence(*results)])
    more = {"task_name": asked.name, "other_set": asked.other_set, "frequent": asked.frequent}
    comparison = _paired(*results, notes=tuple(notes), **more)
    return _kept(comparison, run) if is_of_the_run and _is_the_runs_own(comparison, run) else comparison


def _is_the_runs_own(comparison: Comparison, run: Run) -> bool:
    """Whether this is what a run's summary and card are to show: all of its questions, whole answers, the likeliest ones.

    Drawn answers are shown as long as there is nothing better.
    """
    now, is_drawn_there = comparison.after.decoding, True
    with contextlib.suppress(ValueError, LookupError, AttributeError):  # damaged, or of another version
        is_drawn_there = run.comparison is None or run.comparison.after.decoding["temperature"] > 0
    is_whole = comparison.questions >= len(run.holdout) and not comparison.other_set
    is_whole = is_whole and now["max_completion_length"] >= run.settings.max_completion_length
    return is_whole and (is_drawn_there or not now["temperature"])


def _kept(comparison: Comparison, run: Run) -> Comparison:
    """Save a run's own comparison in its folder; where that cannot be written, the answers are not lost with it."""
    try:
        comparison = comparison.save(run.path / "comparison")
        write_model_card(run)
    except OSError as error:
        note = (
            f"This could not be saved in the run's folder ({error}), so its summary and model card do not say it. "
            "comparison.save('a folder') writes it elsewhere."
        )
        return dataclasses.replace(comparison, notes=(*comparison.notes, note))
    return comparison


@dataclasses.dataclass(frozen=True)
class _How:
    """How questions are asked: what `evaluate` and `compare` have in common, looked at before anything is loaded."""

    rewards: Any
    limit: int | None
    samples: int
    temperature: float | None
    max_completion_length: int | None
    settings: Settings | None
    seed: int | None
    allow_contaminated: bool
    report: Callable[[str], None] | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", reward_list(self.rewards, least=0))
        weights_by_name(self.rewards)
        require_number("samples", self.samples, 1, 10_000)
        for name, least, most in (
            ("limit", 1, 2**32),
            ("max_completion_length", 1, 2**20),
            ("temperature", 0, 100),
            ("seed", 0, 2**32 - 1),
        ):
            if (value := getattr(self, name)) is not None:
                require_number(name, value, least, most, is_whole=name != "temperature")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"temperature = {self.temperature!r} with samples = {self.samples}: several greedy answers are all the same. "
                "Write samples=1, or a temperature above 0."
            )
        if not isinstance(self.allow_contaminated, bool):  # "no" would be true
            raise TypeError(f"allow_contaminated = {in_line(self.allow_contaminated)} must be True or False.")

    def decoding(self, run: Run | None, task: Task | HeldOut | None) -> Decoding:
        """By what was said, else by the settings given or the run's, else by what serves a short answer."""
        settings = self.settings
        if settings is not None and run is not None and run.model is not None:
            require_same_settings(run.model, run.tokenizer, settings)
        settings = settings or (run and run.settings)
        temperature, limit, seed = self.temperature, self.max_completion_length, self.seed
        if temperature is None:
            temperature = 0.0 if self.samples == 1 else (settings.temperature if settings else 1.0)
        return Decoding(
            max_completion_length=limit or (settings.max_completion_length if settings else _DEFAULT_LENGTH),
            samples=self.samples,
            temperature=temperature,
            sampling=settings.sampling if settings is not None and temperature > 0 else {},
            seed=(settings.seed if settings else 0) if seed is None else seed,
            chat_template_kwargs=getattr(task, "chat_template_kwargs", None)
            or (run.chat_template_kwargs if run else {}),
        )


class _Asked:
    """What is asked and how: the rows, where their answers stand, how answers are drawn, which rewards score them."""

    def __init__(self, task: Questions | None, run: Run | None, how: _How) -> None:
        if task is None and run is None:
            raise ValueError(
                "which questions? Give a task, gn.evaluation.load_holdout(...), or a run, which has its own."
            )
        own = AnswerFormat(**run.info["task"]["format"]) if run is not None else None
        if task is not None and not isinstance(task, (Task, HeldOut)):
            task = load_holdout(task, format=own)
        self.run, self.task, self.how, self.rewards = run, task, how, how.rewards
        self.decoding = how.decoding(run, task)
        self.name = run.info["task"]["name"] if task is None else task.name
        held = run.holdout if task is None else list(task.holdout)
        self.rows = chosen(held, how.limit, seed=0)
        self.format = own if task is None else task.format
        # Of all answers that are known, not of those that happen to be asked.
        floor, golds = (run.info["task"].get("floor") if task is None else None), [row["answer"] for row in held]
        if isinstance(task, Task):
            floor, golds = task.answers.floor, [*task.train["answer"], *golds]
        self.frequent = floor[0] if floor else frequent_answer(golds)
        if not self.rows:
            raise ValueError("there are no held-out questions to ask.")
        # What the run was paid by, made again from its record; None for what is not the kit's.
        self.paid = {entry["name"]: rebuilt(entry) for entry in run.info["rewards"]} if run is not None else {}
        self.judge = self._judge_of(how.rewards)

    def _judge_of(self, rewards: Sequence[RewardFunction]) -> Reward | None:
        """The reward for the answer among these, else that the run was paid by."""
        if any(isinstance(reward, correctness) for reward in rewards):
            return answer_reward(rewards, self.rows[0])
        paid = (self.run and self.run.rewards) or [reward for reward in self.paid.values() if reward is not None]
        return answer_reward(rewards, self.rows[0]) or answer_reward(paid, self.rows[0])

    @property
    def judged_by(self) -> str:
        """What is right, in words; empty where the run was paid by the same."""
        if self.judge is not None:
            return judge_in_words(self.judge, self.rows)
        is_plain = any(isinstance(reward, correctness) and not answer_reward([reward]) for reward in self.paid.values())
        return "" if is_plain or self.run is None else "what correctness(column='answer') pays in full"

    @property
    def other_set(self) -> str:
        """The name of the set if its questions are not those held out for the run; a result on them is not the run's own."""
        if self.run is None or not (self.run.path / "holdout.jsonl").is_file():
            return ""
        is_own = {row["question"] for row in self.rows} <= {row["question"] for row in self.run.holdout}
        return "" if is_own else self.name or "other questions"

    def of_each(self, subjects: Sequence[Located], labels: Sequence[str]) -> tuple[list[Evaluation], list[str]]:
        """Ask one subject after the other; return their results, and what is to be known of them."""
        runs = {what.path.absolute(): what for what in (self.run, *subjects) if isinstance(what, Run)}
        trained = trained_questions(getattr(self.task, "train", None), runs.values())
        contamination = None
        if trained is not None:
            contamination = find_contamination([row["question"] for row in self.rows], trained)
            if not self.how.allow_contaminated:
                contamination.require_none()
        for subject in subjects:
            if isinstance(subject, Run):
                require_adapter(subject)
        for run in runs.values():
            if (trained_with := run.chat_template_kwargs) != self.decoding.chat_template_kwargs:
                raise ValueError(
                    f"the run {run.name!r} was trained with chat_template_kwargs = {trained_with} and would be asked with "
                    f"{dict(self.decoding.chat_template_kwargs)}: other prompts. Evaluate it alone, on a task of "
                    f"gn.load_task(..., chat_template_kwargs={trained_with})."
                )
        results, notes, tokenizer, report = [], self._other_judge(), None, self.how.report or (lambda line: None)
        for what, label in zip(subjects, labels, strict=True):
            with open_subject(what, run=self.run, tokenizer=tokenizer, report=report) as subject:
                results.append(self._answer(subject, label, contamination))
                tokenizer = tokenizer or subject.tokenizer
                notes += [subject.note] if subject.note else []
                del subject  # or its model would stay in memory while the next one is loaded
        return results, notes

    def _other_judge(self) -> list[str]:
        """What to know where the run was paid by rewards that may judge otherwise, none of which is shown."""
        shown = {reward_name(reward) for reward in self.how.rewards}
        other = [name for name, made in self.paid.items() if name not in shown and (not made or answer_reward([made]))]
        if self.judge is not None or not self.judged_by or not other:
            return []
        return [
            f"The run's own {' and '.join(other)} may judge otherwise: rewards=[...] scores the answers with it too, and one "
            "of the kit for the answer then says what is right."
        ]

    def _answer(self, subject: Subject, label: str, contamination: Contamination | None) -> Evaluation:
        format, samples = self.format, self.decoding.samples
        # A task was made for a tokenizer, a set of `load_holdout` never is.
        if isinstance(self.task, HeldOut) and subject.tokenizer is not None:
            format = format.for_template(subject.tokenizer, self.decoding.chat_template_kwargs)
        repeated = [row for row in self.rows for _ in range(samples)]
        with progress_bar(len(repeated), desc=f"held-out, {label}", unit="answer") as bar:
            prompts = [row["prompt"] for row in repeated]
            completions = subject.ask(prompts, self.decoding, lambda done: bar.update(done - bar.n))
        rows = read_answers(repeated, completions, format, self.judge)
        for number, row in enumerate(rows):
            row["sample"] = number % samples
        if self.rewards:
            ids = [list(c.ids) for c in completions]
            scores = score(self.rewards, [c.text for c in completions], repeated, completion_ids=ids)
            for row, each in zip(rows, scores, strict=True):
                row["rewards"] = each
        return Evaluation.of(
            label,
            rows,
            samples,
            decoding=self.decoding.to_dict(),
            subject=" ".join(part for part in (subject.about, subject.note) if part),
            contamination=contamination,
            folder=subject.folder,
            reward_ranges={reward_name(r): ends for r in self.rewards if (ends := range_of(r))},
            judged_by=self.judged_by,
        )


def _is_questions(what: Any) -> bool:
    """Whether this is a task, or what one can be made of, and not a model."""
    if isinstance(what, (str, Path)):
        return Path(what).suffix.lower() in _DATA_FILES or what == "gsm8k"
    return isinstance(what, (Task, HeldOut, list)) or hasattr(what, "column_names")


def _distinct(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (1)", f"{second} (2)")


def _paired(before: Evaluation, after: Evaluation, **more: Any) -> Comparison:
    return Comparison(
        before=before, after=after, **vars(paired_result(before.shares, after.shares, before.samples)), **more
    )
