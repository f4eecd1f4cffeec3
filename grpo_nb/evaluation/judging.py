"""Choose who decides which answers of an evaluation are correct, and describe that judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.user_warnings import warn_user
from grpo_nb.evaluation.subjects import tokenizer_of_run
from grpo_nb.rewards.answers import SlotReward
from grpo_nb.rewards.base import RewardFunction, reward_list, reward_name
from grpo_nb.runs.run_folder import Run
from grpo_nb.scoring.correct_answers import (
    FunctionGrader,
    Grader,
    anywhere_in_words,
    are_correct,
    choose_grader,
    deciding_function,
    function_grader,
    grader_in_words,
)
from grpo_nb.scoring.record import rebuilt
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.task import Task

FREQUENT_SHARE = 0.2
"""Share of the questions from which one gold answer is frequent enough to be a baseline."""

FREQUENT_COUNT = 3
"""Questions that the most frequent gold answer needs at least."""


@dataclass(frozen=True, kw_only=True)
class HeldOutQuestions:
    """The questions of an evaluation, and what belongs to them."""

    rows: Sequence[Mapping[str, Any]]
    format: AnswerFormat
    """Format in which the questions are asked."""
    task: Any = None
    """Task or held-out set of the questions, None for those stored with the run."""
    run: Run | None = None
    tokenizer: Any = None
    """Tokenizer of a model in memory, if there is one."""

    @property
    def trial_arguments(self) -> dict[str, Any]:
        """Arguments that a function needs besides the rows: tokenizer, and starts of episodes."""
        tokenizer = self.tokenizer
        if tokenizer is None and self.run is not None:
            tokenizer = tokenizer_of_run(self.run)
        return {
            "tokenizer": tokenizer,
            "start_episode": self.task.begun if isinstance(self.task, Task) else dict,
        }


def judge_for(
    questions: HeldOutQuestions,
    correct: RewardFunction | None,
    rewards: Sequence[RewardFunction],
) -> Grader:
    """Return the judge of an evaluation. The docstring of `evaluate` has the order of precedence.

    Args:
        questions: Questions of the evaluation.
        correct: Judge that the user chose.
        rewards: Rewards that the user passed.

    Raises:
        ValueError: `correct` is more than one function.
    """
    rows = questions.rows
    format = questions.format
    if correct is not None:
        given = reward_list(correct)
        if len(given) > 1:
            raise ValueError(
                f"correct = {given!r:.80} is {len(given)} functions, but only one can decide which "
                "answers are correct."
            )
        if isinstance(given[0], SlotReward):
            return given[0]
        return function_grader(given[0], rows, format, **questions.trial_arguments)
    if questions.run is not None and not any(isinstance(each, SlotReward) for each in rewards):
        rewards = _rewards_of_run(questions.run, rewards)
    trial_arguments = {} if deciding_function(rewards) is None else questions.trial_arguments
    return choose_grader(rewards, rows, format, **trial_arguments)


def _rewards_of_run(run: Run, rewards: Sequence[RewardFunction]) -> list[RewardFunction]:
    """Return the rewards of a run: those of the kit from its record, functions from memory.

    The folder of a run has only the source of a function. If that function would decide what is
    correct, warn and return no rewards.
    """
    functions = {reward_name(reward): reward for reward in (*run.rewards, *rewards)}
    known = []
    missing = []
    for record in run.info["rewards"]:
        reward = rebuilt(record) or functions.get(record["name"])
        if reward is None:
            missing.append(record)
        else:
            known.append(reward)
    highest_weight = max(run.weights.values(), default=0.0)
    main = [record["name"] for record in missing if record["weight"] == highest_weight]
    if len(main) != 1 or any(isinstance(reward, SlotReward) for reward in known):
        return known
    warn_user(
        f"The main reward of the run {run.name!r} is your function {main[0]}(), but the folder of "
        "the run has only its source. So correctness() decides which answers are correct, unless "
        f"you write correct={main[0]}."
    )
    return []


def describe_judge(questions: HeldOutQuestions, judge: Grader) -> dict[str, Any]:
    """Return the fields of an `Evaluation` that say who judged and how."""
    is_function = isinstance(judge, FunctionGrader)
    # A function is proven if it gave some gold answer more than a wrong one.
    is_unproven = is_function and not judge.separates_right_from_wrong
    return {
        "judged_by": grader_in_words(judge),
        "anywhere_note": anywhere_in_words(judge, questions.rows),
        "compares_gold": not is_function,
        "unproven_judge": judge.name if is_unproven else "",
        "majority_share": None if is_unproven else _majority_share(questions, judge),
    }


def frequent_answer(golds: Sequence[str]) -> str | None:
    """Return the most frequent gold answer, None if it is not frequent enough to be a baseline.

    >>> frequent_answer(["yes", "no", "yes", "yes"]), frequent_answer(["1", "2", "3"])
    ('yes', None)
    """
    answer, count = Counter(golds).most_common(1)[0]
    return answer if count >= max(FREQUENT_COUNT, FREQUENT_SHARE * len(golds)) else None


def _majority_share(questions: HeldOutQuestions, judge: Grader) -> float | None:
    """Return the share of questions on which the most frequent gold answer is correct."""
    rows = questions.rows
    frequent = frequent_answer([str(row["answer"]) for row in rows])
    if frequent is None:
        return None
    texts = [questions.format.render("reasoning", frequent)] * len(rows)
    scored = None
    if isinstance(judge, FunctionGrader):
        trial = questions.trial_arguments
        # Each call gets episodes of its own, because the function may change them.
        episodes = [trial["start_episode"](row) for row in rows]
        scored = {"completions": texts, "rows": episodes, "tokenizer": trial["tokenizer"]}
    is_right = are_correct(judge, texts, rows, questions.format, scored=scored)
    return sum(is_right) / len(is_right)
