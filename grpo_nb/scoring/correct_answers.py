"""Decide which answers are correct, so that evaluation measures what a training run rewards.

A grader decides whether an answer is correct. `deciding_reward` chooses it from the rewards of a
training run, as the first of these:

1. The reward that compares the answer slot: a `SlotReward`, such as `maths()` or a user's subclass.
2. The function with the highest weight of all rewards, if that weight is positive. Of the kit's
   rewards, only `code_tests()` counts as a function here.
3. `correctness()`.

A reward that is marked `relative` does not qualify. If two rewards qualify for the same rule,
`correctness()` decides.

The functions are in the order of their use: choose a grader, describe it, apply it to answers in
the format, and apply it to the last candidate anywhere in a text.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.answers import SlotReward, correctness, golds_of_row
from grpo_nb.rewards.base import (
    Completion,
    RewardFunction,
    is_relative,
    range_of,
    reward_name,
    weights_by_name,
)
from grpo_nb.rewards.code import code_tests
from grpo_nb.scoring.last_answer import last_candidate_readings
from grpo_nb.scoring.record import is_from_kit
from grpo_nb.scoring.scores import ROUNDING_ERROR, score_as_trial
from grpo_nb.tasks.answers import comparable, is_right_answer, summarize_answers
from grpo_nb.tasks.formats import AnswerFormat, bare

_TRIED_ROWS = 8
"""Rows whose gold answers are scored to find a function's pass score. Each call may cost money."""


@dataclass(frozen=True, kw_only=True)
class FunctionGrader:
    """A reward function as a grader: an answer with the pass score or more is correct."""

    function: RewardFunction
    pass_score: float
    """Lowest score of a correct answer. Answers to some questions may score more."""
    reason: str
    """Source of the pass score, in words."""
    is_pass_score_tested: bool = False
    """True if a wrong answer was tried, and some gold answer scored higher than every wrong one."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return reward_name(self.function)


Grader = SlotReward | FunctionGrader


def deciding_reward(rewards: Iterable[RewardFunction]) -> RewardFunction:
    """Return the reward that decides which answers are correct: one of a set, or `correctness()`.

    The rules are in the docstring of this module.

    >>> def solved(completions, **columns): ...
    >>> def style(completions, **columns): ...
    >>> deciding_reward([solved]) is solved, deciding_reward([solved, style])
    (True, correctness())
    >>> deciding_reward([solved, correctness(tolerance=0.1)])
    correctness(tolerance=0.1)
    """
    rewards = list(rewards)
    if not rewards:
        return correctness()
    # A relative score has no meaning without the other scores of the call.
    absolute_rewards = [reward for reward in rewards if not is_relative(reward)]
    slot_rewards = [reward for reward in absolute_rewards if isinstance(reward, SlotReward)]
    weights = weights_by_name(rewards)
    highest = max(weights.values())
    heaviest_functions = []
    for reward in absolute_rewards:
        is_function = not is_from_kit(reward) or isinstance(reward, code_tests)
        if is_function and weights[reward_name(reward)] == highest > 0:
            heaviest_functions.append(reward)
    qualified = slot_rewards or heaviest_functions
    # Two qualified rewards may disagree, and neither is more right than the other.
    return qualified[0] if len(qualified) == 1 else correctness()


def choose_grader(
    reward: RewardFunction,
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    tokenizer: Any = None,
    start_episode: Callable[..., Mapping[str, Any]] = dict,
) -> Grader:
    """Return the grader for a deciding reward: a `SlotReward`, or a function with a pass score.

    For each of the first rows, two answers are scored in the format: the gold answer, and a wrong
    answer, which is the gold answer of another row. The pass score is the first of these:

    1. The upper end of the function's attribute `range`.
    2. The lowest gold score among those that exceed every score of a wrong answer. Questions may be
       worth different scores:

       | gold answers score | wrong answers score | pass score |
       | --- | --- | --- |
       | 1 or 3 | 0 | 1 |
       | 1 or 3 | 0 or 2 | 3 |

    3. 1.0.

    Args:
        reward: From `deciding_reward`. A function may return booleans. A `SlotReward` is a grader
            itself.
        rows: Data rows, with `answer`.
        format: The format in which the questions are asked.
        tokenizer: For a function that reads `completion_ids`.
        start_episode: Adds the environment of a new episode to a row (`Task.start_episode`).

    Raises:
        RewardError: The function failed.

    >>> from grpo_nb.tasks.formats import xml
    >>> def twice(completions, answer, **columns):
    ...     return [2.0 * (gold in text) for text, gold in zip(completions, answer)]
    >>> rows = [{"question": "1 + 1?", "answer": "2"}]
    >>> choose_grader(twice, rows, xml()).pass_score
    2.0
    """
    if isinstance(reward, SlotReward):
        return reward
    # Imported here, because importing the package must not load it.
    import numpy as np

    tried_rows = rows[:_TRIED_ROWS]
    golds = [str(row.get("answer", "")) for row in tried_rows]
    wrong_answers = [
        _wrong_answer(golds_of_row(row, "answer", gold), golds)
        for row, gold in zip(tried_rows, golds, strict=True)
    ]
    texts = [format.render_completion("reasoning", answer) for answer in [*golds, *wrong_answers]]
    # Each text gets an environment of its own, because the function may change it.
    started_rows = [dict(start_episode(row)) for row in [*tried_rows, *tried_rows]]
    scores = _reward_scores(reward, texts, started_rows, tokenizer=tokenizer)
    gold_scores, wrong_scores = np.reshape(scores, (2, len(golds)))
    # A text without a score (NaN) is below every text with one.
    highest_wrong_score = np.nanmax(wrong_scores, initial=-math.inf)
    scores_above_wrong_ones = gold_scores[gold_scores > highest_wrong_score + ROUNDING_ERROR]
    is_gold_above_wrong_ones = len(scores_above_wrong_ones) > 0
    declared_range = range_of(reward)
    if declared_range is not None:
        # The declared maximum takes precedence, because the gold answers of eight rows may not
        # reach it.
        _, pass_score = declared_range
        reason = "its declared maximum"
    elif is_gold_above_wrong_ones:
        pass_score = float(min(scores_above_wrong_ones))
        reason = "its score for a gold answer in the format"
    else:
        pass_score = 1.0
        reason = "the default"
    if not is_gold_above_wrong_ones:
        reason += "; no gold answer scores above a wrong one"
    return FunctionGrader(
        function=reward,
        pass_score=pass_score,
        reason=reason,
        # If all gold answers are the same, no wrong answer was tried.
        is_pass_score_tested=is_gold_above_wrong_ones and any(wrong_answers),
    )


def _wrong_answer(right_answers: Sequence[str], golds: Sequence[str]) -> str:
    """Return a wrong answer: the gold answer of another row, or "" if there is none.

    It does not contain a right answer, because a function may search the text for one.
    """
    for other in golds:
        are_right = [
            is_right_answer(other, right) or comparable(right) in comparable(other)
            for right in right_answers
        ]
        if not any(are_right):
            return other
    return ""


def grader_in_words(grader: Grader) -> str:
    """Return a phrase for the answers that `are_correct` counts as correct.

    It shows the settings of the grader that are not defaults.

    >>> grader_in_words(correctness(tolerance=0.1))
    'answers to which correctness(tolerance=0.1) gives the full score'
    """
    if isinstance(grader, FunctionGrader):
        return (
            f"answers to which {grader.name}() gives {grader.pass_score:g} or more "
            f"({grader.reason})"
        )
    # Weight, format and name do not affect which answers are correct. A default is not shown.
    grader_class = type(grader)
    shown = dataclasses.replace(
        grader,
        weight=grader_class.weight,
        format=grader_class.format,
        name=grader_class.name,
    )
    return f"answers to which {shown!r} gives the full score"


def are_correct(grader: Grader, scores: Iterable[float]) -> list[bool]:
    """Return True for each score that is at least the grader's pass score.

    Args:
        grader: From `choose_grader`.
        scores: From `grader_scores`.
    """
    pass_score = grader.pass_score if isinstance(grader, FunctionGrader) else 1.0
    return [value >= pass_score - ROUNDING_ERROR for value in scores]


def grader_scores(
    grader: Grader,
    completions: Sequence[Completion],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
) -> list[float]:
    """Return the grader's scores, NaN for None.

    Args:
        grader: From `choose_grader`.
        completions: Strings or chat messages, as a training run passes them to a reward
            (`generation.completions.scoring_arguments`).
        rows: The data row of each completion, with `answer`.
        format: The format in which the questions were asked.
        completion_ids: Token ids, for a function that counts tokens.
    """
    is_function = isinstance(grader, FunctionGrader)
    # The questions may be asked in another format than that of the training.
    reward = grader.function if is_function else dataclasses.replace(grader, format=format)
    return _reward_scores(reward, completions, rows, completion_ids=completion_ids)


def are_last_answers_correct(
    grader: Grader,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    are_correct_in_format: Sequence[bool],
) -> list[bool | None]:
    """Return for each completion whether its last answer is correct, in the format or not.

    `grpo_nb.scoring.last_answer` finds the last candidates for each gold answer, and the same
    grader scores them. A completion that is correct in the format counts as correct here too.
    None if the grader is a function, because it does not show where it reads the answer.

    Args:
        grader, texts, rows, format: The same as for `grader_scores`.
        are_correct_in_format: Result of `are_correct` for the same completions.
    """
    if not isinstance(grader, SlotReward):
        return [None] * len(texts)
    # By row, because a row has several samples. Counted once for each sample, every gold answer
    # would recur and look like a label.
    golds_by_row = {id(row): grader.golds(dict(row)) for row in rows}
    answers = summarize_answers([golds[0] for golds in golds_by_row.values() if golds])
    labels = [label for label, _ in answers.labels if answers.kind == "choice"]
    grades = []
    for text, row, is_correct in zip(texts, rows, are_correct_in_format, strict=True):
        question = str(row.get("question", ""))
        candidates = []
        for gold in golds_by_row[id(row)]:
            candidates += last_candidate_readings(
                text, gold, question=question, format=format, labels=labels
            )
        if candidates and not is_correct:
            # A candidate has no tags any more, so it is graded in the format without tags.
            scores = grader_scores(grader, candidates, [row] * len(candidates), bare())
            is_correct = any(are_correct(grader, scores))
        grades.append(is_correct)
    return grades


def anywhere_in_words(grader: Grader) -> str:
    """Return a phrase for how `are_last_answers_correct` finds an answer, or why it finds none.

    >>> anywhere_in_words(correctness()).partition(",")[0]
    'the last answer in the text'
    """
    if not isinstance(grader, SlotReward):
        return f"not measured, because {grader.name}() does not say where it reads the answer"
    return (
        "the last answer in the text, compared in the same way (for a number the last number, for "
        "a label the label named last); a question repeated word for word is not searched"
    )


def _reward_scores(reward: RewardFunction, *arguments: Any, **keywords: Any) -> list[float]:
    """Return the scores of a reward, and restore its state, as grading is not a training step."""
    scores = score_as_trial(reward, *arguments, **keywords)
    return list(scores.values[reward_name(reward)])
