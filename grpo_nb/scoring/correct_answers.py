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

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.answers import SlotReward, correctness, golds_in_cell
from grpo_nb.rewards.base import (
    RewardFunction,
    is_relative,
    range_of,
    reward_name,
    weights_by_name,
)
from grpo_nb.rewards.code import code_tests
from grpo_nb.scoring.last_answer import last_candidate_readings, recurring_labels
from grpo_nb.scoring.record import is_from_kit
from grpo_nb.scoring.scores import ROUNDING_ERROR, score_as_trial
from grpo_nb.tasks.answers import ACCEPTED_COLUMN, folded, is_same_answer
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
    """True if a wrong answer was tried, and some gold answer scored higher than every wrong answer
    and every empty completion."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return reward_name(self.function)


Grader = SlotReward | FunctionGrader


def deciding_reward(rewards: Iterable[RewardFunction]) -> RewardFunction | None:
    """Return the reward of a set that decides which answers are correct.

    The rules are in the docstring of this module. None if `correctness()` decides.

    >>> def solved(completions, **columns): ...
    >>> def style(completions, **columns): ...
    >>> deciding_reward([solved]) is solved, deciding_reward([solved, style])
    (True, None)
    >>> deciding_reward([solved, correctness(tolerance=0.1)])
    correctness(tolerance=0.1)
    """
    rewards = list(rewards)
    if not rewards:
        return None
    slot_rewards = [
        reward for reward in rewards if isinstance(reward, SlotReward) and not is_relative(reward)
    ]
    if slot_rewards:
        # Two rewards for the slot may disagree, and neither is more right than the other.
        return slot_rewards[0] if len(slot_rewards) == 1 else None
    weights = weights_by_name(rewards)
    highest = max(weights.values())
    heaviest = []
    for reward in rewards:
        is_function = not is_from_kit(reward) or isinstance(reward, code_tests)
        has_highest_weight = weights[reward_name(reward)] == highest > 0
        # A relative score has no meaning without the other scores of the call.
        if is_function and has_highest_weight and not is_relative(reward):
            heaviest.append(reward)
    return heaviest[0] if len(heaviest) == 1 else None


def choose_grader(
    reward: RewardFunction | None,
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    tokenizer: Any = None,
    start_episode: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Grader:
    """Return the grader for a deciding reward: a `SlotReward`, or a function with a pass score.

    For each of the first rows, three completions are scored: the gold answer, a wrong answer (the
    gold answer of another row) and an empty completion. The pass score is the first of these:

    1. The upper end of the function's attribute `range`.
    2. The lowest gold score among those that exceed every score of a wrong answer or an empty
       completion. Questions may be worth different scores:

       | gold answers score | wrong answers score | pass score |
       | --- | --- | --- |
       | 1 or 3 | 0 | 1 |
       | 1 or 3 | 0 or 2 | 3 |

    3. 1.0.

    Args:
        reward: From `deciding_reward`. A function may return booleans. A `SlotReward` is a grader
            itself, and None is `correctness()`.
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
    if reward is None or isinstance(reward, SlotReward):
        return reward or correctness()
    tried_rows = rows[:_TRIED_ROWS]
    golds = [str(row.get("answer", "")) for row in tried_rows]
    wrong_answers = [
        _wrong_answer([gold, *golds_in_cell(row.get(ACCEPTED_COLUMN))], golds)
        for row, gold in zip(tried_rows, golds, strict=True)
    ]
    # The texts with the gold answers come first, then those with the wrong answers, then the empty
    # ones.
    answer_texts = [
        format.render_completion("reasoning", answer) for answer in [*golds, *wrong_answers]
    ]
    texts = [*answer_texts, *[""] * len(golds)]
    # Each text gets an environment of its own, because the function may change it.
    started_rows = [dict(start_episode(row)) for row in [*tried_rows] * 3]
    scores = _reward_scores(reward, texts, started_rows, tokenizer=tokenizer) if texts else []
    # A text without a score is below every text with one.
    scores = [-math.inf if math.isnan(value) else value for value in scores]
    gold_scores = scores[: len(golds)]
    non_gold_scores = scores[len(golds) :]
    highest_non_gold = max(non_gold_scores, default=-math.inf)
    scores_above_wrong_ones = [
        value for value in gold_scores if value > highest_non_gold + ROUNDING_ERROR
    ]
    is_gold_above_wrong_ones = bool(scores_above_wrong_ones)
    declared_range = range_of(reward)
    if declared_range is not None:
        # The declared maximum takes precedence, because the gold answers of eight rows may not
        # reach it.
        _, pass_score = declared_range
        reason = "its declared maximum"
    elif is_gold_above_wrong_ones:
        pass_score = min(scores_above_wrong_ones)
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
        is_right = any(is_same_answer(other, right) for right in right_answers)
        if not is_right and all(folded(right) not in folded(other) for right in right_answers):
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
    shown = _with_fields(
        grader,
        weight=grader_class.weight,
        format=grader_class.format,
        name=grader_class.name,
    )
    return f"answers to which {shown!r} gives the full score"


def _with_fields(reward: SlotReward, **values: Any) -> SlotReward:
    """Return a copy of a reward with other fields, also if its class has its own `__init__`."""
    try:
        return dataclasses.replace(reward, **values)
    except TypeError:
        copied = copy.copy(reward)
    for name, value in values.items():
        # Rewards of the kit are frozen.
        object.__setattr__(copied, name, value)
    return copied


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
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    function_arguments: Mapping[str, Any] | None = None,
) -> list[float]:
    """Return the grader's scores, NaN for None.

    Args:
        grader: From `choose_grader`.
        texts: The completions.
        rows: The data row of each completion, with `answer`.
        format: The format in which the questions were asked.
        function_arguments: Completions, rows and token ids as a training run passes them to a
            function (`generation.completions.scoring_arguments`). Without it, `texts` and `rows`.
    """
    if not texts:
        return []
    if isinstance(grader, FunctionGrader):
        function_arguments = function_arguments or {"completions": texts, "rows": rows}
        return _reward_scores(grader.function, **function_arguments)
    # The questions may be asked in another format than that of the training.
    return _reward_scores(_with_fields(grader, format=format), texts, rows)


def are_last_answers_correct(
    grader: Grader,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    are_correct_in_format: Sequence[bool],
) -> list[bool] | None:
    """Return for each completion whether its last answer is correct, in the format or not.

    `grpo_nb.scoring.last_answer` finds the last candidates for each gold answer, and the same
    grader scores them. A completion that is correct in the format counts as correct here too.
    Returns None for a grader that does not compare with gold answers.

    Args:
        grader, texts, rows, format: The same as for `grader_scores`.
        are_correct_in_format: Result of `are_correct` for the same completions.
    """
    if not isinstance(grader, SlotReward):
        return None
    # Each row once: with several samples of a row, its answer would recur and look like a label.
    distinct_rows = {id(row): row for row in rows}.values()
    golds_of_rows = [grader.golds(dict(row)) for row in distinct_rows]
    labels = recurring_labels([golds[0] for golds in golds_of_rows if golds])
    are_correct_in_text = list(are_correct_in_format)
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if are_correct_in_format[index]:
            continue
        question = str(row.get("question", ""))
        candidates = []
        for gold in grader.golds(dict(row)):
            candidates += last_candidate_readings(
                text, gold, question=question, format=format, labels=labels
            )
        # A candidate has no tags any more, so it is graded in the format without tags.
        scores = grader_scores(grader, candidates, [row] * len(candidates), bare())
        are_correct_in_text[index] = any(are_correct(grader, scores))
    return are_correct_in_text


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


def _reward_scores(
    reward: RewardFunction,
    completions: Sequence[Any],
    rows: Sequence[Mapping[str, Any]],
    **arguments: Any,
) -> list[float]:
    """Return the scores of a reward, and restore its state, as grading is not a training step."""
    scores = score_as_trial(reward, completions, rows, **arguments)
    return list(scores.values[reward_name(reward)])
