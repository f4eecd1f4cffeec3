"""Ask one or several models held-out questions, and choose the grader of the answers."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.problems import warn_user
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.words import require_whole_number
from grpo_nb.evaluation.holdout import Holdout, grade_answers, load_holdout
from grpo_nb.evaluation.model_sources import (
    Decoding,
    ModelSource,
    RunModel,
    answers_of_model,
    description_of,
    model_id_of,
    open_model,
)
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.rewards.answers import SlotReward, correctness, golds_of_row
from grpo_nb.rewards.base import Reward, RewardFunction, relative, reward_list
from grpo_nb.runs.rows import read_json_lines
from grpo_nb.runs.run_folder import Run, all_trained_questions
from grpo_nb.scoring.correct_answers import (
    anywhere_in_words,
    choose_grader,
    deciding_reward,
    grader_in_words,
)
from grpo_nb.scoring.record import difference_in_words, rebuild_reward, record_of
from grpo_nb.tasks.contamination import Contamination, find_contamination
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import Chat, require_system_prompt, split_system
from grpo_nb.tasks.read_rows import Source, sample_rows
from grpo_nb.tasks.task import Task

QuestionSource = Task | Holdout | Source


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Questions, models and options of one call of `evaluate` or `compare`.

    `locate_models` returns `model_sources` and `run`. The other fields are arguments of `evaluate`.
    """

    model_sources: Sequence[ModelSource]
    run: Run | None
    task: QuestionSource | None
    rewards: RewardFunction | Sequence[RewardFunction] = ()
    limit: int | None = None
    samples: int = 1
    max_completion_length: int | None = None
    settings: Settings | None = None
    allow_contaminated: bool = False
    grader: RewardFunction | None = None

    def __post_init__(self) -> None:
        require_types("gn.evaluate or gn.compare", optional=("settings",), settings=self.settings)
        require_whole_number("samples", self.samples, 1)
        if self.limit is not None:
            require_whole_number("limit", self.limit, 1)

    # Questions and decoding.

    @functools.cached_property
    def question_set(self) -> Task | Holdout:
        """Questions of the task, or those stored with the run if there is no task."""
        if self.task is None and self.run is None:
            raise ValueError(
                "no questions were given. Pass a task, gn.evaluation.load_holdout(...), or a run "
                "with its own questions."
            )
        if self.run is not None and getattr(self.task, "tools", None) is None:
            require_no_tools(self.run, "Pass the task with its tools: gn.compare(run, task).")
        if isinstance(self.task, (Task, Holdout)):
            return self.task
        if self.run is None:
            return load_holdout(self.task)
        if self.task is None:
            return Holdout(format=format_of(self.run), holdout=self.run.holdout)
        return _load_as_in_training(self.task, self.run)

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the questions to ask."""
        rows = sample_rows(list(self.question_set.holdout), self.limit)
        if not rows:
            raise ValueError(
                "there are no held-out questions. Load the task with a larger held-out part."
            )
        return rows

    @functools.cached_property
    def decoding(self) -> Decoding:
        """Settings with which answers are sampled."""
        settings = self.settings or (self.run.settings if self.run else Settings())
        if self.max_completion_length is not None:
            settings = settings.replace(max_completion_length=self.max_completion_length)
        # Prompts that differ from those of the training would measure another task. So questions
        # without template arguments of their own get those of the run.
        template_kwargs = getattr(self.question_set, "chat_template_kwargs", {})
        if self.run is not None:
            template_kwargs = template_kwargs or self.run.chat_template_kwargs
        return Decoding(
            max_completion_length=settings.max_completion_length,
            # One answer is greedy, so that the same model always gets the same score.
            temperature=settings.temperature if self.samples > 1 else 0.0,
            sampling=settings.sampling_besides_temperature,
            seed=settings.seed,
            chat_template_kwargs=template_kwargs,
            tools=getattr(self.question_set, "tools", None),
            shared_prompts=settings.shared_prompts,
        )

    # The grader.

    @functools.cached_property
    def grading_reward(self) -> RewardFunction:
        """Reward that grades the answers: the argument `grader`, or a reward of the training.

        The docstring of `evaluate` has the order of precedence.
        """
        if self.grader is not None:
            (reward,) = reward_list([self.grader])
            return reward
        rewards = []
        if self.rewards:
            rewards = reward_list(self.rewards)
        elif self.run is not None:
            rewards = rewards_of_run(self.run)
        reward = deciding_reward(rewards)
        if isinstance(reward, RecordedReward):
            name = reward.__name__
            warn_user(
                f"The main reward of the run {self.run.name!r} is your function {name}(), but "
                "the folder of the run has only its source. So correctness() decides which "
                f"answers are correct, unless you write grader={name}."
            )
            reward = None
        return reward or correctness()

    @property
    def is_result_of_run(self) -> bool:
        """True if prompts, length limit and grader are those of the run, and decoding is greedy.

        Only such a comparison becomes the result that the run shows.
        """
        # Other questions, formats or examples change the prompts. Corrected gold answers change the
        # grades. Both would make another measure.
        asked = [_prompt_and_golds(row) for row in self.rows]
        held_out = [_prompt_and_golds(row) for row in self.run.holdout]
        if asked != held_out or self.samples > 1:
            return False
        if self.decoding.max_completion_length != self.run.settings.max_completion_length:
            return False
        rewards = rewards_of_run(self.run, self.grading_reward)
        reward = deciding_reward(rewards) or correctness()
        record = reward.record if isinstance(reward, RecordedReward) else record_of(reward)
        return _matches_record(self.grading_reward, record)

    # Asking and grading.

    def evaluate_all(self, labels: Sequence[str]) -> list[Evaluation]:
        """Ask one model after the other, and grade the answers.

        Raises:
            ValueError: A question was trained on, or a run was trained with other prompts.
        """
        # Wrong arguments are reported here, before a model is loaded.
        decoding = self.decoding
        self._require_same_template()
        contamination = self._find_contamination()
        is_gold_compared = isinstance(self.grading_reward, SlotReward)
        asked_rows = []
        for row in self.rows:
            asked_rows += [row] * self.samples
        chosen_grader = None
        evaluations = []
        for source, label in zip(self.model_sources, labels, strict=True):
            with open_model(source) as (model, tokenizer):
                # All models share one grader. A function is called with gold answers here, to find
                # its full score. This may cost money, so it is done once.
                chosen_grader = chosen_grader or choose_grader(
                    self.grading_reward,
                    self.rows,
                    self.question_set.format,
                    tokenizer=tokenizer,
                    start_episode=getattr(self.question_set, "start_episode", dict),
                )
                completions = answer_rows(
                    model, tokenizer, asked_rows, decoding, f"held-out, {label}"
                )
                format = self.question_set.format.for_template(
                    tokenizer, decoding.chat_template_kwargs
                )
            # The model of a run stays in memory. Other models are freed before the next is loaded.
            del model
            gc.collect()
            is_unproven = not (is_gold_compared or chosen_grader.is_pass_score_tested)
            evaluations.append(
                Evaluation(
                    label=label,
                    rows=grade_answers(asked_rows, completions, format, chosen_grader),
                    description=description_of(source),
                    model_id=model_id_of(source),
                    samples=self.samples,
                    temperature=decoding.temperature,
                    contamination=contamination,
                    correctness_rule=grader_in_words(chosen_grader),
                    anywhere_rule=anywhere_in_words(chosen_grader),
                    is_gold_compared=is_gold_compared,
                    unproven_grader_name=chosen_grader.name if is_unproven else "",
                )
            )
        return evaluations

    def _involved_runs(self) -> list[Run]:
        """Return the run, and the runs of the models. A run may be in the list twice."""
        runs = [source.run for source in self.model_sources if isinstance(source, RunModel)]
        return runs if self.run is None else [self.run, *runs]

    def _find_contamination(self) -> Contamination | None:
        """Count the questions that were trained on. Raise if there are any, unless this is allowed.

        None if none was found, but some training questions are unknown: that proves nothing.
        """
        runs = self._involved_runs()
        trained = all_trained_questions(getattr(self.question_set, "train", None), runs)
        contamination = find_contamination([row["question"] for row in self.rows], trained)
        if not self.allow_contaminated:
            contamination.require_none()
        if contamination.trained_count:
            return contamination
        is_complete = bool(trained) and all(run.trained_questions is not None for run in runs)
        return contamination if is_complete else None

    def _require_same_template(self) -> None:
        """Raise if a run was trained with other arguments of the chat template."""
        for run in self._involved_runs():
            own = run.chat_template_kwargs
            if own != self.decoding.chat_template_kwargs:
                raise ValueError(
                    f"the run {run.name!r} was trained with chat_template_kwargs = {own}, and this "
                    "task makes other prompts. Load it with the same arguments: "
                    f"gn.load_task(..., chat_template_kwargs={own})."
                )


def answer_rows(
    model: Any, tokenizer: Any, rows: Sequence[Any], decoding: Decoding, bar_name: str
) -> list[GeneratedCompletion]:
    """Return the answers of a model, one for each row, with a progress bar.

    Raises:
        ValueError: The chat template leaves out the system prompt of the first row.
    """
    require_system_prompt(rows[0]["prompt"], tokenizer, decoding.chat_template_kwargs)
    with progress_bar(len(rows), desc=bar_name, unit="answer") as bar:
        return answers_of_model(
            model, tokenizer, rows, decoding, lambda done: bar.update(done - bar.n)
        )


@dataclass(frozen=True, kw_only=True)
class RecordedReward(Reward):
    """A reward that the folder of a run has only as a record, such as a user's function."""

    record: Mapping[str, Any]


def rewards_of_run(
    run: Run, reward_in_memory: RewardFunction | None = None
) -> list[RewardFunction]:
    """Return the rewards of a run from memory, or from their records if the run was reopened.

    Args:
        run: A run. If it was opened from its folder, its functions are not in memory.
        reward_in_memory: A reward in memory that may belong to the run.
    """
    if run.rewards:
        return run.rewards
    rewards = []
    for record in run.info["rewards"]:
        reward = rebuild_reward(record)
        if reward is None:
            reward = RecordedReward(name=record["name"], weight=record["weight"], record=record)
            if record.get("is_relative") or record.get("kind") == "judge":
                # Neither a relative reward nor a judge may decide which answers are correct.
                reward = relative(reward)
        # A record does not show that a user's class compares the answer slot (`SlotReward`). The
        # object in memory does, so it is used if it matches the record.
        if isinstance(reward_in_memory, SlotReward) and _matches_record(reward_in_memory, record):
            reward = reward_in_memory
        rewards.append(reward)
    return rewards


def _prompt_and_golds(row: Mapping[str, Any]) -> tuple[Chat, list[str]]:
    """Return the prompt of a row and its right answers."""
    return row["prompt"], golds_of_row(row, "answer", row["answer"])


def _matches_record(reward: RewardFunction, record: Mapping[str, Any]) -> bool:
    """Return True if a reward still matches a record of it."""
    now = record_of(reward)
    # An old record may have fewer fields. Those that it does not have are not compared.
    return not difference_in_words(now | record, now)


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
    prompt of the format.
    """
    rows = run.holdout
    # A few held-out conversations may share more turns than the example by chance, so the training
    # prompts are compared too. Runs of the first versions have no train.jsonl.
    train_file = run.start_path / "train.jsonl"
    if train_file.is_file():
        rows = [*rows, *read_json_lines(train_file)]
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
    is_without_system_prompt = starts != [] and not any(split_system(start)[0] for start in starts)
    if shared or is_without_system_prompt:
        return shared
    return [{"role": "system", "content": format_of(run).system_prompt()}]


def require_no_tools(run: Run, advice: str) -> None:
    """Raise a `ValueError` if a run was trained with tools, which its folder does not have."""
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools. Tools are Python objects and are not "
            f"stored with the run. {advice}"
        )
