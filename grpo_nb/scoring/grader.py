"""Decide which answers are correct, so that evaluation measures what a training run rewards.

`deciding_reward` chooses the deciding reward of a training run by the first rule that applies:

1. The reward that compares the answer in the format (the slot): a `SlotReward`, such as `maths()`
   or a user's subclass.
2. A user's function, or `code_tests()`, whose tests decide if a program is right. Its weight is
   positive and not below that of any other reward. The other rewards of grpo_nb do not compare
   answers.
3. `correctness()`.

A reward that is marked `relative` never decides. If a rule fits two rewards, a plain
`correctness()` decides.

`make_grader` finds the pass score of this reward: the lowest score of a correct answer. The
`Grader` then grades answers in the format, and the last answer of a text in any format.
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
from grpo_nb.scoring.last_answer import readings_of_last_answer
from grpo_nb.scoring.record import is_from_kit
from grpo_nb.scoring.scores import SCORE_TOLERANCE, score
from grpo_nb.tasks.answers import is_right_answer, normalize_answer, summarize_answers
from grpo_nb.tasks.formats import AnswerFormat, bare
from grpo_nb.tasks.read_rows import Row

# Rows whose gold answers are scored to find a function's pass score. Each score may cost money.
_TRIED_ROWS = 8


def deciding_reward(rewards: Sequence[RewardFunction]) -> RewardFunction:
    """Return the reward that decides which answers are correct: one of these, or `correctness()`.

    The rules are in the docstring of this module.

    >>> def solved(completions, **columns): ...
    >>> def style(completions, **columns): ...
    >>> deciding_reward([solved]) is solved, deciding_reward([solved, style])
    (True, correctness())
    >>> deciding_reward([solved, correctness(tolerance=0.1)])
    correctness(tolerance=0.1)
    """
    weights = weights_by_name(rewards)
    highest_weight = max(weights.values())
    slot_rewards = []
    heaviest_others = []
    for reward in rewards:
        # A relative score has no meaning without the other scores of the call.
        if is_relative(reward):
            continue
        # Of the kit's other rewards, only `code_tests` tells right from wrong.
        can_decide = not is_from_kit(reward) or isinstance(reward, code_tests)
        if isinstance(reward, SlotReward):
            slot_rewards.append(reward)
        elif can_decide and 0 < weights[reward_name(reward)] == highest_weight:
            heaviest_others.append(reward)
    qualified = slot_rewards or heaviest_others
    # Two qualified rewards may disagree, and neither is more right than the other.
    return qualified[0] if len(qualified) == 1 else correctness()


@dataclass(frozen=True, kw_only=True)
class Grader:
    """A reward that decides which answers are correct: those with the pass score or more."""

    reward: RewardFunction
    pass_score: float = 1.0
    """Lowest score of a correct answer. Answers to some questions may score more."""
    pass_score_source: str = ""
    """Explanation of where a function's pass score is from."""
    tells_gold_from_wrong: bool = True
    """False if the trial did not show that the function scores gold answers above wrong ones."""
    labels: Sequence[str] = ()
    """The labels, if the answers of the task are labels. Only they can be the last answer then."""

    @property
    def name(self) -> str:
        """Name under which a run logs the reward."""
        return reward_name(self.reward)

    @property
    def reads_slot(self) -> bool:
        """True for a `SlotReward`. A function may read the answer anywhere."""
        return isinstance(self.reward, SlotReward)

    @property
    def correctness_rule(self) -> str:
        """Phrase for the answers that count as correct, with the settings that are not defaults.

        >>> Grader(reward=correctness(tolerance=0.1)).correctness_rule
        'answers to which correctness(tolerance=0.1) gives the full score'
        """
        if not self.reads_slot:
            pass_score = f"{self.pass_score:g} or more ({self.pass_score_source})"
            return f"answers to which {self.name}() gives {pass_score}"
        # Weight and name do not affect which answers are correct, and `score` replaces the format.
        # With their defaults, they are not shown.
        reward_class = type(self.reward)
        shown = dataclasses.replace(
            self.reward,
            weight=reward_class.weight,
            format=reward_class.format,
            name=reward_class.name,
        )
        return f"answers to which {shown!r} gives the full score"

    @property
    def last_answer_rule(self) -> str:
        """Phrase for how `is_last_answer_correct` finds an answer, or why it finds none.

        >>> Grader(reward=correctness()).last_answer_rule.partition(",")[0]
        'the last answer in the text'
        """
        if not self.reads_slot:
            return f"not measured, because {self.name}() does not say where it reads the answer"
        return (
            "the last answer in the text, compared in the same way (for a number the last number, "
            "for a label the label named last); a question repeated word for word is not searched"
        )

    def score(
        self,
        completions: Sequence[Completion],
        rows: Sequence[Row],
        format: AnswerFormat,
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[float]:
        """Return the scores of the reward, NaN for None.

        Args:
            completions: Strings or chat messages, as a training run passes them to a reward
                (`generation.completions.scoring_arguments`).
            rows: The data row of each completion, with `answer`.
            format: The format in which the questions were asked, which may be another one than
                that of the training.
            completion_ids: Token ids, for a function that counts tokens.
        """
        reward = self.reward
        # A function has no format that could be replaced.
        if self.reads_slot:
            reward = dataclasses.replace(reward, format=format)
        scores = score(reward, completions, rows, completion_ids=completion_ids)
        return list(scores.values[self.name])

    def are_correct(self, scores: Iterable[float]) -> list[bool]:
        """Return True for each score that is at least the pass score."""
        return [value >= self.pass_score - SCORE_TOLERANCE for value in scores]

    def is_last_answer_correct(
        self, text: str, row: Row, format: AnswerFormat, *, is_correct_in_format: bool
    ) -> bool | None:
        """Return True if the last answer of a completion is correct, in the format or not.

        None for a function, because it does not show where it reads the answer.

        Args:
            text: The completion.
            row: Its data row.
            format: The answer format of the task.
            is_correct_in_format: Verdict of `are_correct`. If True, the last answer is correct too.
        """
        if not self.reads_slot:
            return None
        if is_correct_in_format:
            return True
        question = str(row.get("question", ""))
        readings = []
        # The gold answer decides what is searched for: a number, a label, a formula.
        for gold in self.reward.golds(dict(row)):
            readings += readings_of_last_answer(
                text, gold, question=question, format=format, labels=self.labels
            )
        if not readings:
            return False
        # A reading has no tags any more, so it is graded in the format without tags.
        scores = self.score(readings, [row] * len(readings), bare())
        return any(self.are_correct(scores))


def make_grader(
    reward: RewardFunction,
    rows: Sequence[Row],
    format: AnswerFormat,
    *,
    tokenizer: Any = None,
    start_episode: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Grader:
    """Return the grader for a deciding reward, with the pass score.

    The pass score of a `SlotReward` is 1.0. A function is tried to find its pass score: for each of
    the first eight rows with a gold answer, it scores this answer and a wrong answer, both in the
    format. The wrong answer is the first gold answer of the data that is wrong for this row, or an
    empty one if there is none. The pass score is the first of these that exists:

    1. The upper end of the function's attribute `range`, which declares the full score.
    2. The lowest score of a gold answer that is above the scores of all wrong answers. Questions
       may be worth different scores:

       | gold answers score | wrong answers score | pass score |
       | --- | --- | --- |
       | 1 or 3 | 0 | 1 |
       | 1 or 3 | 0 or 2 | 3 |

    3. 1.0.

    `tells_gold_from_wrong` is False if rule 2 finds no score, or if all wrong answers were empty.

    Args:
        reward: From `deciding_reward`.
        rows: All data rows, with `answer`. A row with an empty `answer` is not tried.
        format: The format in which the questions are asked.
        tokenizer: For a function that reads `completion_ids`.
        start_episode: Starts an episode with a row, and returns its row (`Task.start_episode`).
            `dict` only copies the row.

    Raises:
        RewardError: The function failed.
        ValueError: The rows do not have the column of a `SlotReward`.
        KeyError: A row does not have a column of the first row.
        EnvironmentProblem: The function cannot work on this machine.

    >>> from grpo_nb.tasks.formats import xml
    >>> def twice(completions, answer, **columns):
    ...     return [2.0 * (gold in text) for text, gold in zip(completions, answer)]
    >>> rows = [{"question": "1 + 1?", "answer": "2"}]
    >>> make_grader(twice, rows, xml()).pass_score
    2.0
    """
    if isinstance(reward, SlotReward):
        golds_by_row = [reward.golds(dict(row)) for row in rows]
        summary = summarize_answers([golds[0] for golds in golds_by_row if golds])
        # Numbers that repeat, such as ratings, are searched as numbers.
        labels = [label for label, _ in summary.labels] if summary.kind == "choice" else []
        return Grader(reward=reward, labels=labels)

    # Try the function on the first rows.
    answered_rows = [row for row in rows if golds_of_row(row, "answer")]
    gold_answers = [golds_of_row(row, "answer")[0] for row in answered_rows]
    tried_rows = answered_rows[:_TRIED_ROWS]
    # Each distinct gold answer is tried once as the wrong one: most tasks repeat them.
    distinct_golds = dict.fromkeys(gold_answers)
    wrong_answers = [_wrong_answer(row, distinct_golds) for row in tried_rows]
    scores_above_wrong = []
    if tried_rows:
        # One call for all: first the gold answers, then the wrong ones.
        answers = gold_answers[:_TRIED_ROWS] + wrong_answers
        texts = [format.render_completion("reasoning", answer) for answer in answers]
        # Each text gets an environment of its own, because the function may change it.
        started_rows = [start_episode(row) for row in tried_rows + tried_rows]
        trial = score(reward, texts, started_rows, tokenizer=tokenizer)
        scores = trial.values[reward_name(reward)]
        # Without a score (NaN), a wrong answer sets no limit, and a gold answer is not above it.
        wrong_scores = [value for value in scores[len(tried_rows) :] if not math.isnan(value)]
        highest_wrong_score = max(wrong_scores, default=-math.inf)
        gold_scores = scores[: len(tried_rows)]
        least = highest_wrong_score + SCORE_TOLERANCE
        scores_above_wrong = [value for value in gold_scores if value > least]

    # Apply the rules.
    declared_range = range_of(reward)
    if declared_range is not None:
        pass_score = declared_range[1]
        source = "its declared maximum"
    elif scores_above_wrong:
        pass_score = min(scores_above_wrong)
        source = "its score for a gold answer in the format"
    else:
        pass_score = 1.0
        source = "the default"

    # Say what the trial did not show.
    if not tried_rows:
        source += "; there was no gold answer to try"
    elif not scores_above_wrong:
        source += "; no gold answer scores above a wrong one"
    elif max(scores_above_wrong) < pass_score - SCORE_TOLERANCE:
        source += "; no gold answer reaches it"
    return Grader(
        reward=reward,
        pass_score=pass_score,
        pass_score_source=source,
        tells_gold_from_wrong=bool(scores_above_wrong) and any(wrong_answers),
    )


def _wrong_answer(row: Row, golds: Iterable[str]) -> str:
    """Return the first of these gold answers that is wrong for a row, or "" if all are right.

    It does not contain a right answer either, because a function may search the text for one.
    """
    right_answers = golds_of_row(row, "answer")
    for other in golds:
        is_right = any(
            is_right_answer(other, right) or normalize_answer(right) in normalize_answer(other)
            for right in right_answers
        )
        if not is_right:
            return other
    return ""
