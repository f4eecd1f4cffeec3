"""Ask one or several models held-out questions, and choose the grader of the answers."""

import dataclasses
import functools
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.rows import sample_rows
from grpo_nb.config.settings import Settings
from grpo_nb.core.problems import warn_user
from grpo_nb.core.words import require_whole_number
from grpo_nb.evaluation.holdout import Holdout, grade_answers, load_holdout
from grpo_nb.evaluation.model_sources import (
    Decoding,
    ModelSource,
    RunModel,
    complete_rows,
    description_of,
    model_id_of,
    open_model,
)
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.rewards.answers import correctness, golds_of_row
from grpo_nb.rewards.base import Reward, RewardFunction, relative, reward_list
from grpo_nb.runs.reading import read_json_lines
from grpo_nb.runs.run_folder import Run
from grpo_nb.scoring.grader import deciding_reward, make_grader
from grpo_nb.scoring.record import difference_in_words, rebuild_reward, record_of
from grpo_nb.tasks.contamination import Contamination, find_contamination, question_hashes
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import Chat, split_system
from grpo_nb.tasks.read_rows import Row, Source
from grpo_nb.tasks.task import Task

QuestionSource = Task | Holdout | Source


@dataclass(frozen=True, kw_only=True)
class RecordedReward(Reward):
    """A reward of which only the record is known: a user's reward, or a `judge`."""

    record: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Questions, models and options of one call of `evaluate` or `compare`.

    `locate_models` returns `model_sources` and `run`. The other fields are arguments of `evaluate`;
    `grader_argument` is `grader` there.
    """

    model_sources: Sequence[ModelSource]
    run: Run | None
    task: QuestionSource | None
    limit: int | None = None
    samples: int = 1
    max_completion_length: int | None = None
    settings: Settings | None = None
    allow_contaminated: bool = False
    grader_argument: RewardFunction | None = None

    def __post_init__(self) -> None:
        require_whole_number("samples", self.samples, 1)
        if self.limit is not None:
            require_whole_number("limit", self.limit, 1)

    # Questions and decoding.

    @functools.cached_property
    def question_set(self) -> Task | Holdout:
        """Questions of the task, or those stored with the run if there is no task."""
        # A run in place of the task is a second model, whose keyword `against` was forgotten.
        if isinstance(self.task, Run) or (self.task is None and self.run is None):
            raise ValueError(
                "no questions were given. Pass a task, gn.evaluation.load_holdout(...), or a run "
                "with its own questions. To compare two models, name the keyword: "
                "gn.compare(run_or_model, task, against=other)."
            )
        if isinstance(self.task, (Task, Holdout)):
            question_set = self.task
        elif self.run is None:
            question_set = load_holdout(self.task)
        elif self.task is None:
            question_set = Holdout(format=format_of(self.run), holdout=self.run.holdout)
        else:
            question_set = _load_as_in_training(self.task, self.run)
        # Without its tools, a model that was trained to call them would be asked another task.
        if self.run is not None and question_set.tools is None:
            require_no_tools(self.run, "Pass the task with its tools: gn.compare(run, task).")
        return question_set

    @functools.cached_property
    def rows(self) -> list[Row]:
        """Rows of the questions to ask."""
        rows = sample_rows(list(self.question_set.holdout), self.limit)
        if not rows:
            raise ValueError(
                "there are no held-out questions. Load the task with a larger held-out part."
            )
        return rows

    @functools.cached_property
    def decoding(self) -> Decoding:
        """Decoding of the answers: settings, temperature, template arguments and tools."""
        settings = self.settings or (self.run.settings if self.run else Settings())
        if self.max_completion_length is not None:
            settings = settings.replace(max_completion_length=self.max_completion_length)
        # Prompts that differ from those of the training would measure another task. So questions
        # without template arguments of their own get those of the run.
        template_kwargs = self.question_set.chat_template_kwargs
        if self.run is not None:
            template_kwargs = template_kwargs or self.run.chat_template_kwargs
        return Decoding(
            settings=settings,
            # One answer is greedy, so that the same model always gets the same score.
            temperature=settings.temperature if self.samples > 1 else 0.0,
            chat_template_kwargs=template_kwargs,
            tools=self.question_set.tools,
        )

    # The grader.

    @functools.cached_property
    def reward_of_run(self) -> RewardFunction:
        """Reward of the training that decides which answers are correct."""
        if self.run is None:
            return correctness()
        if self.run.rewards:
            return deciding_reward(self.run.rewards)
        # A run that was opened from its folder has no functions in memory.
        rewards = []
        for record in self.run.info["rewards"]:
            reward = rebuild_reward(record)
            if reward is None:
                reward = RecordedReward(name=record["name"], weight=record["weight"], record=record)
                # A judge is no function of the user, so it never decides.
                if record.get("is_relative") or record.get("kind") == "judge":
                    relative(reward)
            rewards.append(reward)
        return deciding_reward(rewards)

    @functools.cached_property
    def grading_reward(self) -> RewardFunction:
        """Reward that grades the answers: the argument `grader`, or the reward of the training.

        The docstring of `evaluate` has the order of precedence.
        """
        if self.grader_argument is not None:
            return reward_list([self.grader_argument])[0]
        reward = self.reward_of_run
        if not isinstance(reward, RecordedReward):
            return reward
        # The source is never executed, because the folder may come from somebody else.
        warn_user(
            f"The main reward of the run {self.run.name!r} is your function {reward.__name__}(), "
            "but the folder of the run has only its source. So correctness() decides which "
            f"answers are correct, unless you write grader={reward.__name__}."
        )
        return correctness()

    @property
    def is_result_of_run(self) -> bool:
        """True if prompts, length limit and grader are those of the run, and decoding is greedy.

        Only such a comparison becomes the result that the run shows.
        """
        reward = self.reward_of_run
        record = reward.record if isinstance(reward, RecordedReward) else record_of(reward)
        # Other questions, formats or examples change the prompts. Corrected gold answers change the
        # grades. Both would make another measure.
        asked = list(map(_prompt_and_golds, self.rows))
        held_out = list(map(_prompt_and_golds, self.run.holdout))
        return (
            asked == held_out
            and self.samples == 1
            and self.decoding.settings.max_completion_length
            == self.run.settings.max_completion_length
            and not difference_in_words(record, record_of(self.grading_reward))
        )

    # Asking and grading.

    def evaluate_all(self, labels: Sequence[str]) -> list[Evaluation]:
        """Ask one model after the other, and grade the answers.

        Raises:
            ValueError: A question was trained on, or a run was trained with other prompts.
        """
        # Wrong arguments are reported here, before a model is loaded.
        decoding = self.decoding
        reward = self.grading_reward
        self._require_same_template()
        contamination = self._find_contamination()
        asked_rows = []
        for row in self.rows:
            asked_rows += [row] * self.samples
        grader = None
        evaluations = []
        for source, label in zip(self.model_sources, labels, strict=True):
            with open_model(source) as (model, tokenizer):
                # All models share one grader. A function is called with gold answers here, to find
                # its pass score. This may cost money, so it is done once.
                grader = grader or make_grader(
                    reward,
                    self.rows,
                    self.question_set.format,
                    tokenizer=tokenizer,
                    start_episode=self.question_set.start_episode,
                )
                completions = complete_rows(
                    model, tokenizer, asked_rows, decoding, f"held-out, {label}"
                )
                format = self.question_set.format.for_template(
                    tokenizer, decoding.chat_template_kwargs
                )
            # The model of a run stays in memory. Other models are freed before the next is loaded,
            # so that two models need no more memory than the larger one.
            del model
            gc.collect()
            evaluations.append(
                Evaluation(
                    label=label,
                    rows=grade_answers(asked_rows, completions, format, grader),
                    grader=grader,
                    description=description_of(source),
                    model_id=model_id_of(source),
                    samples=self.samples,
                    temperature=decoding.temperature,
                    contamination=contamination,
                )
            )
        return evaluations

    def _involved_runs(self) -> list[Run]:
        """Return the run, and the runs of the models. A run may be in the list twice."""
        runs = [source.run for source in self.model_sources if isinstance(source, RunModel)]
        return runs if self.run is None else [self.run, *runs]

    def _find_contamination(self) -> Contamination | None:
        """Count the held-out questions that were trained on.

        Raise if there are any and `allow_contaminated` is False. Return None if the count is 0 but
        some training questions are unknown, because that count proves nothing.
        """
        runs = self._involved_runs()
        train = self.question_set.train
        # The task or run of each training question, by the hash of the question.
        trained = {}
        if train is not None:
            trained = dict.fromkeys(
                question_hashes(train["question"]), "the training part of the task"
            )
        for run in runs:
            source = f"the training questions of the run {run.name}"
            trained |= dict.fromkeys(run.train_question_hashes or (), source)
        contamination = find_contamination([row["question"] for row in self.rows], trained)
        if contamination.trained_count and not self.allow_contaminated:
            raise ValueError(
                f"{contamination.sentence} To measure anyway, write allow_contaminated=True; the "
                "result then reports this number."
            )
        is_complete = bool(trained) and all(run.train_question_hashes is not None for run in runs)
        return contamination if is_complete or contamination.trained_count else None

    def _require_same_template(self) -> None:
        """Raise if a run was trained with other arguments of the chat template."""
        asked = self.decoding.chat_template_kwargs
        for run in self._involved_runs():
            own = run.chat_template_kwargs
            # `asked` is of the task, or of another run. No task has the prompts of both runs.
            if own != asked:
                raise ValueError(
                    f"the run {run.name!r} was trained with chat_template_kwargs = {own}, but "
                    f"{asked} makes other prompts. If these are the arguments of another run, the "
                    "two runs cannot be compared. Otherwise load the task with those of this run: "
                    f"gn.load_task(..., chat_template_kwargs={own})."
                )


def _prompt_and_golds(row: Row) -> tuple[Chat, list[str]]:
    """Return the prompt of a row and its right answers."""
    return row["prompt"], golds_of_row(row, "answer")


def format_of(run: Run) -> AnswerFormat:
    """Return the answer format of a run."""
    return AnswerFormat(**run.info["task"]["format"])


def _load_as_in_training(source: Source, run: Run) -> Holdout:
    """Load questions in the format of a run, with the system prompt and example of its prompts."""
    loaded = load_holdout(source, format=format_of(run))
    first_messages = shared_messages(run)
    rows = []
    for row in loaded.holdout:
        turns = split_system(row["prompt"])[1]
        rows.append({**row, "prompt": [*first_messages, *turns]})
    return dataclasses.replace(loaded, holdout=rows)


def shared_messages(run: Run) -> Chat:
    """Return the system prompt and the example with which all prompts of a run start.

    If the prompts start with different system messages, or no prompt is known, return the system
    prompt of the format. Return no messages if the prompts have no system prompt and share nothing.
    """
    # A few held-out conversations may share more turns than the example by chance, so the training
    # prompts are compared too.
    rows = [*run.holdout, *read_json_lines(run.start_path / "train.jsonl")]
    starts = [row["prompt"][:-1] for row in rows]
    shared = []
    # Not strict, because conversations have different lengths.
    for messages in zip(*starts, strict=False):
        if any(message != messages[0] for message in messages):
            break
        shared.append(messages[0])
    # A user turn without its reply is no example.
    while shared and shared[-1]["role"] == "user":
        shared.pop()
    # A run that was trained without a system prompt must not get one here.
    if shared or (starts and not any(split_system(start)[0] for start in starts)):
        return shared
    return [{"role": "system", "content": format_of(run).system_prompt()}]


def require_no_tools(run: Run, advice: str) -> None:
    """Raise a `ValueError` if a run was trained with tools, which its folder does not have."""
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools. Tools are Python objects and are not "
            f"stored with the run. {advice}"
        )
