"""Held-out questions for one or several models: how they are asked, and who grades the answers."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.problems import warn_user
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.statistics import Estimate, estimate
from grpo_nb.evaluation.holdout import Holdout, grade_answers, load_holdout
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.evaluation.subjects import (
    Decoding,
    ModelAnswers,
    RunModel,
    Subject,
    answer_rows,
    model_id_of,
    tokenizer_of_run,
)
from grpo_nb.generation.samples import GeneratedCompletion, as_scored
from grpo_nb.rewards.answers import SlotReward, correctness
from grpo_nb.rewards.base import RewardFunction, reward_list, reward_name, weights_by_name
from grpo_nb.runs.run_folder import Run, questions_trained_on
from grpo_nb.scoring.correct_answers import (
    FunctionGrader,
    Grader,
    anywhere_in_words,
    deciding_reward,
    function_grader,
    grader_in_words,
)
from grpo_nb.scoring.record import rebuild_reward, record_of
from grpo_nb.scoring.scores import in_groups, score
from grpo_nb.tasks.contamination import Contamination, find_contamination
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import Chat, split_system
from grpo_nb.tasks.read_rows import Source, sample_rows
from grpo_nb.tasks.task import Task

Questions = Task | Holdout | Source


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Questions, models and options of one call of `evaluate` or `compare`.

    `subjects` and `run` are as `locate_subjects` returns them. The other fields are the arguments
    of `evaluate`.
    """

    subjects: Sequence[Subject]
    run: Run | None
    task: Questions | None
    rewards: RewardFunction | Sequence[RewardFunction] = ()
    limit: int | None = None
    samples: int = 1
    max_completion_length: int | None = None
    settings: Settings | None = None
    allow_contaminated: bool = False
    correct: RewardFunction | None = None

    def __post_init__(self) -> None:
        require("gn.evaluate or gn.compare", optional=("settings",), settings=self.settings)

    # What is asked.

    @functools.cached_property
    def questions(self) -> Task | Holdout:
        """The questions, without a task those that are stored with the run."""
        if self.task is None and self.run is None:
            raise ValueError(
                "which questions? Give a task, gn.evaluation.load_holdout(...), or a run with its "
                "own questions."
            )
        if self.run is not None and getattr(self.task, "tools", None) is None:
            require_no_tools(self.run, "pass the task: gn.compare(run, task)")
        if isinstance(self.task, (Task, Holdout)):
            return self.task
        if self.run is None:
            return load_holdout(self.task)
        format = format_of(self.run)
        if self.task is None:
            return Holdout(name=self.run.name, format=format, holdout=self.run.holdout)
        # Asked without the example of the training, the model would answer another kind of prompt.
        return load_holdout(self.task, format=format, example=example_of(self.run))

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the questions."""
        rows = sample_rows(list(self.questions.holdout), self.limit)
        if not rows:
            raise ValueError("there are no held-out questions to ask.")
        return rows

    @functools.cached_property
    def decoding(self) -> Decoding:
        """Settings with which answers are sampled."""
        settings = self.settings or (self.run.settings if self.run else Settings())
        if self.max_completion_length is not None:
            settings = settings.replace(max_completion_length=self.max_completion_length)
        if self.samples < 1:
            raise ValueError(f"samples = {self.samples!r} must be at least 1.")
        # One answer is greedy, so that the same model always gets the same score.
        is_sampled = self.samples > 1
        # Prompts that differ from those of the training would measure another task.
        own_kwargs = getattr(self.questions, "chat_template_kwargs", {})
        return Decoding(
            max_completion_length=settings.max_completion_length,
            temperature=settings.temperature if is_sampled else 0.0,
            sampling=settings.sampling if is_sampled else {},
            seed=settings.seed,
            chat_template_kwargs=own_kwargs or (self.run.chat_template_kwargs if self.run else {}),
            tools=getattr(self.questions, "tools", None),
        )

    # Who decides which answers are correct.

    @functools.cached_property
    def grader(self) -> Grader:
        """Reward or function that grades the answers.

        The docstring of `evaluate` has the order of precedence.

        Raises:
            ValueError: `correct` is more than one function.
        """
        if self.correct is not None:
            function, *others = self._given_graders
            if others:
                raise ValueError(
                    f"correct = {self._given_graders!r:.80} is {1 + len(others)} functions, but "
                    "only one can decide which answers are correct."
                )
        else:
            candidates = self._given_graders or self._rewards
            if self.run is not None and not self._given_graders:
                candidates = self._rewards_of_run or []
            function = deciding_reward(candidates, self.rows) or correctness()
        if isinstance(function, SlotReward):
            return function
        # A function is tried on gold answers, for which it may read token ids or an environment.
        in_memory = [subject for subject in self.subjects if isinstance(subject, tuple)]
        tokenizer = in_memory[0][1] if in_memory else None
        if tokenizer is None and self.run is not None:
            tokenizer = tokenizer_of_run(self.run)
        task = self.questions
        start_episode = task.start_episode if isinstance(task, Task) else dict
        return function_grader(
            function, self.rows, task.format, tokenizer=tokenizer, start_episode=start_episode
        )

    @property
    def _rewards(self) -> list[RewardFunction]:
        return reward_list(self.rewards, may_be_empty=True)

    @property
    def _given_graders(self) -> list[RewardFunction]:
        """`correct`, or the kit's rewards for the answer among `rewards`.

        They take precedence over the rewards of the run.
        """
        if self.correct is not None:
            return reward_list(self.correct)
        return [reward for reward in self._rewards if isinstance(reward, SlotReward)]

    @functools.cached_property
    def _rewards_of_run(self) -> list[RewardFunction] | None:
        """The rewards of the run: those of the kit from its record, functions from memory.

        None, with a warning, if a function would decide what is correct and is not in memory: the
        folder of a run has only its source.
        """
        run = self.run
        given = filter(self._is_of_the_run, self._rewards)
        functions = {reward_name(reward): reward for reward in (*given, *run.rewards)}
        known = []
        missing = []
        for record in run.info["rewards"]:
            reward = rebuild_reward(record) or functions.get(record["name"])
            if reward is not None:
                known.append(reward)
            elif record["weight"] == max(run.weights.values()):
                missing.append(record["name"])
        if len(missing) != 1 or any(isinstance(reward, SlotReward) for reward in known):
            return known
        warn_user(
            f"The main reward of the run {run.name!r} is your function {missing[0]}(), but the "
            "folder of the run has only its source. So correctness() decides which answers are "
            f"correct, unless you write correct={missing[0]}."
        )
        return None

    def _is_of_the_run(self, reward: RewardFunction) -> bool:
        """Return True if the run was trained with this reward, and not with an earlier version."""
        own = [record["hash"] for record in self.run.info["rewards"]]
        return record_of(reward)["hash"] in own

    @property
    def is_complete(self) -> bool:
        """True if all prompts of the run get a greedy answer of full length, graded as by the run.

        Only such a comparison becomes the result that the run shows.
        """
        # Other questions, formats or examples make other prompts, and so another measure.
        asked = [_words_of(row["prompt"]) for row in self.rows]
        own = [_words_of(row["prompt"]) for row in self.run.holdout]
        full_length = self.run.settings.max_completion_length
        is_full_length = self.decoding.max_completion_length >= full_length
        if self._given_graders:
            is_graded_as_by_run = all(map(self._is_of_the_run, self._given_graders))
        else:
            is_graded_as_by_run = self._rewards_of_run is not None
        return asked == own and is_full_length and self.samples == 1 and is_graded_as_by_run

    # Ask and grade.

    def ask_all(self, labels: Sequence[str]) -> list[Evaluation]:
        """Ask one model after the other.

        Raises:
            ValueError: A question was trained on, a run was trained with other prompts, or a GGUF
                file would have to run tools or to sample.
        """
        weights_by_name(self._rewards)  # raises if two have the same name
        self._require_same_template()
        self._require_plain_gguf_answers()
        contamination = self._find_contamination()
        grader = self.grader
        is_function = isinstance(grader, FunctionGrader)
        is_unproven = is_function and not grader.is_proven
        asked_rows = [row for row in self.rows for _ in range(self.samples)]
        evaluations = []
        tokenizer = None
        for subject, label in zip(self.subjects, labels, strict=True):
            answered = self._answer(subject, asked_rows, label)
            # The model of a run stays in memory. Any other is freed before the next one is loaded.
            gc.collect()
            # A GGUF file has no tokenizer here, but usually the template of the other model.
            tokenizer = answered.tokenizer or tokenizer
            completions = answered.completions
            rows = grade_answers(asked_rows, completions, self._format_for(tokenizer), grader)
            evaluations.append(
                Evaluation(
                    label=label,
                    rows=rows,
                    description=answered.description,
                    model_id=model_id_of(subject),
                    remarks=_remarks_on_missing_scores(grader, rows),
                    rewards=self._mean_rewards(completions, rows, asked_rows),
                    samples=self.samples,
                    temperature=self.decoding.temperature,
                    contamination=contamination,
                    counted_as_correct=grader_in_words(grader),
                    anywhere_note=anywhere_in_words(grader, self.rows),
                    compares_gold=not is_function,
                    unproven_grader=grader.name if is_unproven else "",
                )
            )
        return evaluations

    def _runs(self) -> list[Run]:
        """Return the run, and those of the models. The same run may be in the list twice."""
        runs = [subject.run for subject in self.subjects if isinstance(subject, RunModel)]
        return runs if self.run is None else [self.run, *runs]

    def _find_contamination(self) -> Contamination | None:
        """Return the questions that were trained on. Raise if there are any, unless allowed."""
        trained = questions_trained_on(getattr(self.questions, "train", None), self._runs())
        if not trained:
            return None  # Nobody could check, which is not the same as no contamination.
        contamination = find_contamination([row["question"] for row in self.rows], trained)
        if not self.allow_contaminated:
            contamination.require_none()
        return contamination

    def _require_same_template(self) -> None:
        """Raise if a run was trained with other arguments of the chat template."""
        for run in self._runs():
            own = run.chat_template_kwargs
            if own != self.decoding.chat_template_kwargs:
                raise ValueError(
                    f"the run {run.name!r} was trained with chat_template_kwargs = {own}, and this "
                    f"task makes other prompts: gn.load_task(..., chat_template_kwargs={own})."
                )

    def _require_plain_gguf_answers(self) -> None:
        """Raise if a GGUF file would have to run tools or to sample its answers."""
        for subject in self.subjects:
            if not isinstance(subject, Path) or subject.suffix != ".gguf":
                continue
            if self.decoding.tools is not None:
                raise ValueError(
                    f"{subject.name} is asked through llama.cpp, which cannot run tools here. "
                    "Compare the merged folder instead."
                )
            if self.decoding.temperature > 0:
                raise ValueError(
                    f"{subject.name} is asked through llama.cpp, which decodes greedily here. "
                    "Leave out samples=, or compare the merged folder instead."
                )

    def _answer(self, subject: Subject, asked_rows: Sequence[Any], label: str) -> ModelAnswers:
        with progress_bar(len(asked_rows), desc=f"held-out, {label}", unit="answer") as bar:

            def show(done: int) -> None:
                bar.update(done - bar.n)

            return answer_rows(subject, asked_rows, self.decoding, show, self.run)

    def _format_for(self, tokenizer: Any) -> AnswerFormat:
        # The format of a task already fits its tokenizer. That of a held-out set is adapted here.
        format = self.questions.format
        if isinstance(self.questions, Task) or tokenizer is None:
            return format
        return format.for_template(tokenizer, self.decoding.chat_template_kwargs)

    def _mean_rewards(
        self,
        completions: Sequence[GeneratedCompletion],
        graded_rows: Sequence[Mapping[str, Any]],
        asked_rows: Sequence[Any],
    ) -> dict[str, Estimate]:
        means = {}
        for reward in self._rewards:
            # The grader has scored the answers already, and each call may cost money.
            if isinstance(self.grader, FunctionGrader) and reward is self.grader.function:
                given = [row["grader_score"] for row in graded_rows]
                scores = [math.nan if value is None else value for value in given]
            else:
                (scores,) = score(reward, **as_scored(completions, asked_rows)).values.values()
            means[reward_name(reward)] = estimate(in_groups(scores, self.samples))
        return means


def format_of(run: Run) -> AnswerFormat:
    """Return the answer format of a run."""
    return AnswerFormat(**run.info["task"]["format"])


def example_of(run: Run) -> list[dict[str, str]]:
    """Return the turns of the example that each prompt of a run has before its question."""
    prompts = [split_system(row["prompt"])[1] for row in run.holdout]
    turns = prompts[0][:-1] if prompts else []
    # The turns of a conversation differ from prompt to prompt, so they are no example.
    if not turns or any(prompt[: len(turns)] != turns for prompt in prompts):
        return []
    # Without a system role, the first message starts with the system prompt.
    system = f"{format_of(run).system_prompt()}\n\n"
    first = turns[0] | {"content": turns[0]["content"].removeprefix(system)}
    return [first, *turns[1:]]


def _words_of(prompt: Chat) -> str:
    """Return the words of a prompt, which are the same for templates without a system role."""
    return "\n\n".join(str(turn["content"]) for turn in prompt)


def require_no_tools(run: Run, cure: str) -> None:
    """Raise a `ValueError` if a run was trained with tools, which its folder does not have."""
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools. Tools are Python objects and are not "
            f"stored with the run, so {cure}."
        )


def _remarks_on_missing_scores(grader: Grader, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a remark if a function returned None for some answers.

    Args:
        grader: Grader of the rows.
        rows: From `grade_answers`; only those of a function have `grader_score`.
    """
    missing = sum(row.get("grader_score", 0.0) is None for row in rows)
    if not missing:
        return []
    return [
        f"{grader.name}() returned None for {missing} of {len(rows)} answers: "
        "they count as not correct."
    ]
