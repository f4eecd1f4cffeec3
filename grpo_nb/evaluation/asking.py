"""Ask models held-out questions: `evaluate` one, `compare` two, or `ask` questions of your own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import described, require
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.tables import Part, Shown, Table, as_written
from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.heldout import HeldOut, choose_rows, load_holdout, read_answers
from grpo_nb.evaluation.judging import HeldOutQuestions, describe_judge, judge_for
from grpo_nb.evaluation.results import REWARD, Evaluation
from grpo_nb.evaluation.subjects import (
    Decoding,
    OpenSubject,
    RunModel,
    Subject,
    locate_subjects,
    model_id_of,
    name_of,
    open_subject,
    start_part,
)
from grpo_nb.generation.samples import Completion, as_scored
from grpo_nb.rewards.base import RewardFunction, reward_list, weights_by_name
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.rows import read_rows
from grpo_nb.runs.run_folder import Run, open_run, trained_questions
from grpo_nb.scoring.correct_answers import Grader, grader_remarks
from grpo_nb.scoring.scores import score
from grpo_nb.tasks.contamination import Contamination, find_contamination
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.load import with_prompts
from grpo_nb.tasks.read_rows import Source
from grpo_nb.tasks.task import Task

Questions = Task | HeldOut | Source


def evaluate(
    subject: Any,
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
    label: str | None = None,
    allow_contaminated: bool = False,
    correct: RewardFunction | None = None,
) -> Evaluation:
    """Ask a model held-out questions and judge the answers.

    The first of these decides which answers are correct, and the result names it:

    1. `correct`, if you pass it.
    2. The kit's reward for the answer among `rewards`.
    3. With a run, the kit's reward for the answer among the rewards of the run.
    4. Your own function with the highest weight: a reward of the run, or without a run one of
       `rewards`.
    5. `correctness()`.

    Args:
        subject: Model to ask: a run or its folder (its adapter), `"base"` or `"start"` (with `run`:
            its base model, and the model that it started from), the folder of a model such as a
            merged export, a .gguf file, the name of a model, or `(model, tokenizer)`.
        task: Questions: a task, or a set from `load_holdout`. Rows or a file are asked in the
            format of the run. By default the questions that are stored with the run.
        run: Run that the model belongs to. It is needed for `"base"` and `"start"`, and gives the
            folder of a model its tokenizer, settings and training questions.
        rewards: Rewards whose means are reported. They may also decide which answers are correct.
        limit: Number of questions, always the same ones. By default all.
        samples: Answers per question: 1 is the greedy answer, several are sampled for pass@k.
        temperature: Sampling temperature. By default 0 for one answer, else that of the settings.
        max_completion_length: Tokens of an answer, by default as in the settings.
        settings: Settings for length and sampling, by default those of the run or of the kit.
        seed: Seed of the sampling, by default that of the settings.
        label: Name of the model in the result.
        allow_contaminated: If True, go on although held-out questions were trained on. The result
            reports their number.
        correct: Reward function that decides which answers are correct. An answer is correct if
            it gets the full score: the upper end of the function's attribute `range`, or without
            one the best score that it gives to a gold answer in the format.

    Raises:
        ValueError: A held-out question was trained on, there are no questions, or an argument has
            an impossible value.
        FileNotFoundError: There is no such folder, file or run.
        EnvironmentProblem: llama.cpp is missing for a GGUF file.

    >>> answered = gn.evaluate((model, tokenizer), task, max_completion_length=8)
    >>> 0.0 <= answered.accuracy <= 1.0
    True
    """
    require(
        "gn.evaluate(subject, task)",
        optional=("task", "run", "settings"),
        roles={"task": "questions"},
        subject=subject,
        task=task,
        run=run,
        rewards=rewards,
        settings=settings,
    )
    located, run = locate_subjects([subject], run)
    exam = Exam(
        task,
        run,
        located,
        rewards=rewards,
        limit=limit,
        samples=samples,
        temperature=temperature,
        max_completion_length=max_completion_length,
        settings=settings,
        seed=seed,
        correct=correct,
    )
    (evaluation,) = exam.ask_all([label or name_of(located[0])], allow_contaminated)
    return evaluation


def compare(
    subject: Any = None,
    task: Questions | None = None,
    against: Any = None,
    *,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    limit: int | None = None,
    samples: int = 1,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    allow_contaminated: bool = False,
    correct: RewardFunction | None = None,
) -> Comparison:
    """Compare a model with another one on the same held-out questions.

    `compare(run, task)` compares a run with the model that it started from: the base model, or
    after priming or an earlier stage the model with the earlier adapter.
    `compare(subject, against=other, task=task)` compares any two models; the other one is `before`
    in the result. Both get the same prompts, the same chat template and the same decoding.

    The comparison of a run with its start, on all of its own questions with greedy answers, is kept
    in the folder of the run, for its summary and model card. Keep any other with `.save(folder)`.

    Args:
        subject: Model to ask, as in `evaluate`. A run if there is no `against`.
        task: Questions, as in `evaluate`.
        against: Model to compare with, for example `"base"`.
        run: Run that the models belong to, if neither is one.
        rewards, limit, samples, temperature, max_completion_length: As in `evaluate`.
        settings, seed, allow_contaminated, correct: As in `evaluate`.

    Raises:
        ValueError: A held-out question was trained on, `against` is missing, there are no
            questions, or an argument has an impossible value.
        FileNotFoundError: There is no such folder, file or run.
        EnvironmentProblem: llama.cpp is missing for a GGUF file.

    >>> comparison = gn.compare(run, max_completion_length=8)
    >>> comparison.verdict in ("better", "worse", "no difference shown")
    True
    """
    require(
        "gn.compare(subject, against=other, task=task)",
        optional=("against", "task", "run", "settings"),
        roles={"against": "subject", "task": "questions"},
        subject=subject,
        task=task,
        against=against,
        run=run,
        rewards=rewards,
        settings=settings,
    )
    # Without `against`, the model that the run started from takes its place.
    is_against_start = against is None
    labels = ["before", "after"]
    if is_against_start:
        located, run = locate_subjects([subject], run)
        if not isinstance(located[0], RunModel) or located[0].part != "adapter":
            raise ValueError(
                f"{described(subject)} is not a run, so there is no earlier model to compare it "
                "with. Name the other model: gn.compare(subject, against=other, task=task)."
            )
        run = located[0].run
        located.insert(0, RunModel(run, start_part(run)))
    else:
        located, run = locate_subjects([against, subject], run)
        names = [name_of(each) for each in located]
        if names[0] != names[1]:
            labels = names
    exam = Exam(
        task,
        run,
        located,
        rewards=rewards,
        limit=limit,
        samples=samples,
        temperature=temperature,
        max_completion_length=max_completion_length,
        settings=settings,
        seed=seed,
        correct=correct,
    )
    comparison = Comparison(*exam.ask_all(labels, allow_contaminated))
    if is_against_start and exam.is_complete:
        comparison = comparison.save(run.path / "comparison")
        write_model_card(run)
    return comparison


class Exam:
    """Held-out questions for one or several models, and how they are asked and judged.

    Args:
        task, rewards, limit, samples, temperature, max_completion_length: As in `evaluate`.
        settings, seed, correct: As in `evaluate`.
        run: Run that the models belong to.
        subjects: Models to ask.
    """

    def __init__(
        self,
        task: Questions | None,
        run: Run | None,
        subjects: Sequence[Subject],
        *,
        rewards: RewardFunction | Sequence[RewardFunction],
        limit: int | None,
        samples: int,
        temperature: float | None,
        max_completion_length: int | None,
        settings: Settings | None,
        seed: int | None,
        correct: RewardFunction | None,
    ) -> None:
        self.run = run
        self.subjects = subjects
        self.rewards = reward_list(rewards, least=0)
        weights_by_name(self.rewards)  # raises if two rewards have the same name
        self.task = self._load_task(task)
        rows = _stored_holdout(run) if task is None else list(self.task.holdout)
        rows = choose_rows(rows, limit, seed=0)
        if not rows:
            raise ValueError("there are no held-out questions to ask.")
        in_memory = [subject for subject in subjects if isinstance(subject, tuple)]
        self.questions = HeldOutQuestions(
            rows=rows,
            format=_format_of(run) if task is None else self.task.format,
            task=self.task,
            run=run,
            tokenizer=in_memory[0][1] if in_memory else None,
        )

        # Order of precedence: argument, `settings`, settings of the run, defaults.
        resolved = settings or (run.settings if run else Settings())
        if max_completion_length is not None:
            resolved = resolved.replace(max_completion_length=max_completion_length)
        if seed is not None:
            resolved = resolved.replace(seed=seed)
        if temperature is None:
            temperature = 0.0 if samples == 1 else resolved.temperature
        if samples < 1 or (samples > 1 and temperature == 0):
            raise ValueError(
                f"samples = {samples!r} must be 1, or several at a temperature above 0: at "
                "temperature 0 all samples are the same."
            )
        # Prompts that differ from those of the training would measure another task.
        own_kwargs = getattr(self.task, "chat_template_kwargs", {})
        self.decoding = Decoding(
            max_completion_length=resolved.max_completion_length,
            samples=samples,
            temperature=temperature,
            sampling=resolved.sampling if temperature else {},
            seed=resolved.seed,
            chat_template_kwargs=own_kwargs or (run.chat_template_kwargs if run else {}),
            tools=getattr(self.task, "tools", None),
        )
        self.judge: Grader = judge_for(self.questions, correct, self.rewards)

    def _load_task(self, task: Questions | None) -> Task | HeldOut | None:
        """Return the questions as a task or held-out set, None for those stored with the run."""
        if task is None and self.run is None:
            raise ValueError(
                "which questions? Give a task, gn.evaluation.load_holdout(...), or a run with its "
                "own questions."
            )
        if self.run is not None and getattr(task, "tools", None) is None:
            _require_no_tools(self.run, "pass the task: gn.compare(run, task)")
        if task is None or isinstance(task, (Task, HeldOut)):
            return task
        return load_holdout(task, format=_format_of(self.run) if self.run else None)

    @property
    def is_complete(self) -> bool:
        """True if all questions of the run get a greedy answer of full length.

        Only such a comparison becomes the result that the run shows.
        """
        asked = [row["question"] for row in self.questions.rows]
        own = [row["question"] for row in self.run.holdout]
        full_length = self.run.settings.max_completion_length
        is_full_length = self.decoding.max_completion_length >= full_length
        return asked == own and is_full_length and self.decoding.temperature == 0

    def ask_all(self, labels: Sequence[str], allow_contaminated: bool) -> list[Evaluation]:
        """Ask one model after the other.

        Raises:
            ValueError: A question was trained on, or a run was trained with other prompts.
        """
        runs = {self.run.path.absolute(): self.run} if self.run else {}
        for subject in self.subjects:
            if isinstance(subject, RunModel):
                runs.setdefault(subject.run.path.absolute(), subject.run)
        contamination = self._find_contamination(list(runs.values()))
        if contamination and not allow_contaminated:
            contamination.require_none()
        for run in runs.values():
            own = run.chat_template_kwargs
            if own != self.decoding.chat_template_kwargs:
                raise ValueError(
                    f"the run {run.name!r} was trained with chat_template_kwargs = {own}, and this "
                    f"task makes other prompts: gn.load_task(..., chat_template_kwargs={own})."
                )
        # The judge is the same for all models, so it is described (and tried) only once.
        judge_fields = describe_judge(self.questions, self.judge)
        evaluations = []
        tokenizer = None
        for subject, label in zip(self.subjects, labels, strict=True):
            # Only one model is in memory at a time. The first tokenizer is used for all.
            with open_subject(subject, run=self.run, tokenizer=tokenizer) as opened:
                completions = self._answers(opened, label)
                tokenizer = tokenizer or opened.tokenizer
                description = opened.description
                # A GGUF file has no tokenizer here, but usually the template of the other model.
                format = self._format_for(opened.tokenizer or tokenizer)
                # Otherwise this model would stay in memory while the next one is loaded.
                del opened
            rows = self._judge_answers(completions, format)
            scores = [row.get("judge_score") for row in rows]
            evaluations.append(
                Evaluation(
                    label=label,
                    rows=rows,
                    samples=self.decoding.samples,
                    decoding=self.decoding.to_dict(),
                    subject=description,
                    contamination=contamination,
                    model_id=model_id_of(subject),
                    remarks=grader_remarks(self.judge, scores),
                    **judge_fields,
                )
            )
        return evaluations

    @property
    def _repeated_rows(self) -> list[Any]:
        """The rows, each once per sample."""
        samples = range(self.decoding.samples)
        return [row for row in self.questions.rows for _ in samples]

    def _answers(self, opened: OpenSubject, label: str) -> list[Completion]:
        rows = self._repeated_rows
        with progress_bar(len(rows), desc=f"held-out, {label}", unit="answer") as bar:
            return opened.ask(rows, self.decoding, lambda done: bar.update(done - bar.n))

    def _format_for(self, tokenizer: Any) -> AnswerFormat:
        # The format of a task already fits its tokenizer. That of a held-out set is adapted here.
        if not isinstance(self.task, HeldOut) or tokenizer is None:
            return self.questions.format
        return self.questions.format.for_template(tokenizer, self.decoding.chat_template_kwargs)

    def _judge_answers(
        self, completions: Sequence[Completion], format: AnswerFormat
    ) -> list[dict[str, Any]]:
        asked = self._repeated_rows
        rows = read_answers(asked, completions, format, self.judge)
        if self.rewards:
            scores = score(self.rewards, **as_scored(completions, asked)).values
            for name, values in scores.items():
                for row, value in zip(rows, values, strict=True):
                    row[f"{REWARD}{name}"] = value
        return rows

    def _find_contamination(self, runs: Sequence[Run]) -> Contamination | None:
        trained = trained_questions(getattr(self.task, "train", None), runs)
        if not trained:
            return None
        return find_contamination([row["question"] for row in self.questions.rows], trained)


def _stored_holdout(run: Run) -> list[dict[str, Any]]:
    """Return the held-out rows of a run, with all columns that rewards may read if it kept them."""
    rows = run.holdout
    complete = read_rows(run.start_path / "holdout.jsonl")
    questions = [row["question"] for row in rows]
    return complete if [row.get("question") for row in complete] == questions else rows


def _require_no_tools(run: Run, cure: str) -> None:
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools. Tools are Python objects and are not "
            f"stored with the run, so {cure}."
        )


def _format_of(run: Run) -> AnswerFormat:
    return AnswerFormat(**run.info["task"]["format"])


@dataclass(frozen=True, repr=False)
class Answers(Shown):
    """Greedy answers to questions of your own, from before and after a training."""

    questions: tuple[str, ...]
    before: tuple[Completion, ...]
    """Answers of the model that the run started from."""
    after: tuple[Completion, ...]

    def _parts(self) -> Iterator[Part]:
        rows = []
        for question, *answers in zip(self.questions, self.before, self.after, strict=True):
            cells = [as_written(question)]
            for answer in answers:
                mark = " [truncated here]" if answer.is_cut else ""
                cells.append(as_written(answer.text + mark))
            rows.append(cells)
        yield Table(rows, head=("question", "before", "after"), wide=range(3))


def ask(
    run: Run | str | Path,
    questions: str | Sequence[str],
    *,
    max_completion_length: int | None = None,
) -> Answers:
    """Ask a run questions of your own, and show the answers before and after its training.

    The questions get the system prompt, the examples and the chat template of the training.

    Args:
        run: A run or its folder.
        questions: One question, or several.
        max_completion_length: Tokens of an answer, by default as in the settings of the run.

    Raises:
        FileNotFoundError: There is no such run, or it has no adapter yet.

    >>> gn.ask(run, ["What is 17 + 25?", "What is 6 + 7?"]).questions
    ('What is 17 + 25?', 'What is 6 + 7?')
    """
    require("gn.ask(run, questions)", run=run)
    run = open_run(run)
    questions = (questions,) if isinstance(questions, str) else tuple(questions)
    settings = run.settings
    if max_completion_length is not None:
        settings = settings.replace(max_completion_length=max_completion_length)
    _require_no_tools(
        run,
        "gn.ask, which takes no task, cannot ask this run. To see held-out answers from before and "
        "after, pass the task: gn.compare(run, task)",
    )
    examples = run.holdout or with_prompts([{"question": ""}], _format_of(run), None)
    turns = shared_turns(examples)
    rows = []
    for question in questions:
        rows.append({"prompt": [*turns, {"role": "user", "content": question}]})
    decoding = Decoding(
        max_completion_length=settings.max_completion_length,
        chat_template_kwargs=run.chat_template_kwargs,
    )
    answers = []
    for part in (start_part(run), "adapter"):
        with open_subject(RunModel(run, part)) as opened:
            answers.append(tuple(opened.ask(rows, decoding, lambda done: None)))
    return Answers(questions, *answers)


def shared_turns(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the first turns that all prompts share, without the question at the end."""
    shared = []
    for turns in zip(*(row["prompt"][:-1] for row in rows), strict=False):
        if any(turn != turns[0] for turn in turns):
            break
        shared.append(turns[0])
    return shared
