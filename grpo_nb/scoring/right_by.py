"""Which answers are correct in the opinion of the reward that a training is paid by: baseline and evaluation ask it.

The judge is the first of these that there is:

1. the kit's one reward for the answer in the set, such as `multiple_choice()`; several, or none: `correctness()`;
2. where the set has no such reward: the user's own function with the highest weight of all rewards (or the kit's
   `code_tests()`, if that has it). Two functions that share the highest weight have no main one;
3. `correctness()`.
"""

import copy
import dataclasses
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.answers import SlotReward, correctness, json_answer, regex_answer
from grpo_nb.rewards.base import (
    Reward,
    RewardFunction,
    kinds,
    range_of,
    reward_name,
    weights_by_name,
)
from grpo_nb.rewards.code import code_tests
from grpo_nb.scoring.candidates import IN_WORDS, CandidateKind, kind_of, labels_of, last_candidate
from grpo_nb.scoring.scores import score
from grpo_nb.tasks.cleaning import ACCEPTED
from grpo_nb.tasks.formats import AnswerFormat, bare, xml

_TRIED_ROWS = 8
"""Rows whose gold answers are scored to find a function's full score; each may be a call that costs money."""
_ROUNDING = 1e-6
"""A score this near to the full score is full: rewards sum parts in floating point."""


@dataclass(frozen=True, kw_only=True)
class FunctionJudge:
    """A reward function that decides which answers are correct: those that it gives its full score."""

    function: RewardFunction
    full_score: float
    """The score from which on an answer is correct."""
    reason: str
    """Where the full score is from, in words."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return reward_name(self.function)


Judge = Reward | FunctionJudge


def answer_reward(
    rewards: Iterable[RewardFunction], row: Mapping[str, Any] | None = None
) -> Reward | None:
    """The reward of the kit for the answer among these; None for none or several.

    None too for a plain `correctness()`, whose opinion is the one of those who know no reward, and where a row is given that
    does not have the column that it needs.

    >>> from grpo_nb.rewards import xml_tags
    >>> answer_reward([correctness(tolerance=0.1), xml_tags()]), answer_reward([correctness(), xml_tags()])
    (correctness(tolerance=0.1), None)
    """
    found = [reward for reward in rewards if isinstance(reward, SlotReward)]
    if len(found) != 1 or _opinion(found[0]) == correctness():
        return None
    return found[0] if row is None or found[0].column is None or found[0].column in row else None


def main_function(rewards: Iterable[RewardFunction]) -> RewardFunction | None:
    """Return the function that decides what is correct where a set has no kit reward for the answer; None if none does.

    It is the user's own function, or the kit's `code_tests()`, with the highest weight of all rewards. Rewards of the kit
    for format and length never decide, so that they may have the same weight.

    >>> def solved(completions, **columns): ...
    >>> def style(completions, **columns): ...
    >>> main_function([solved]) is solved, main_function([solved, style]), main_function([solved, correctness()])
    (True, None, None)
    """
    rewards = list(rewards)
    if any(isinstance(reward, SlotReward) for reward in rewards):
        return None
    weights = weights_by_name(rewards)
    highest = max(weights.values(), default=0.0)
    kits_kinds = tuple(kinds().values())
    main = []
    for reward in rewards:
        is_own = type(reward) not in kits_kinds
        may_decide = is_own or isinstance(reward, code_tests)
        if may_decide and weights[reward_name(reward)] == highest > 0:
            main.append(reward)
    return main[0] if len(main) == 1 else None


def function_judge(
    function: RewardFunction, rows: Sequence[Mapping[str, Any]], format: AnswerFormat
) -> FunctionJudge:
    """Return a function as a judge, with the score from which on an answer is correct.

    The full score is the upper end of the function's attribute `range`, if it has one. Otherwise it is the best score that
    the function gives to the gold answers of the first rows, written in the format; and 1.0 where it gives none of them more
    than an empty completion.

    Args:
        function: A reward function with TRL's signature. It may return booleans.
        rows: Data rows, with `answer`.
        format: The format in which the questions are asked.

    Raises:
        RewardError: The function failed.

    >>> def twice(completions, answer, **columns):
    ...     return [2.0 * (gold in text) for text, gold in zip(completions, answer)]
    >>> function_judge(twice, [{"question": "1 + 1?", "answer": "2"}], xml()).full_score
    2.0
    """
    declared = range_of(function)
    if declared is not None and math.isfinite(declared[1]):
        return FunctionJudge(
            function=function, full_score=declared[1], reason="its declared maximum"
        )
    tried = [dict(row) for row in rows[:_TRIED_ROWS]]
    golds = [format.render("reasoning", str(row.get("answer", ""))) for row in tried]
    of_gold = _known(_function_scores(function, golds, tried))
    of_empty = _known(_function_scores(function, [""] * len(tried), tried))
    best = max(of_gold, default=-math.inf)
    if best > max(of_empty, default=-math.inf) + _ROUNDING:
        return FunctionJudge(
            function=function, full_score=best, reason="its score for a gold answer in the format"
        )
    return FunctionJudge(
        function=function, full_score=1.0, reason="no maximum is declared or seen on gold answers"
    )


def choose_judge(
    rewards: Iterable[RewardFunction], rows: Sequence[Mapping[str, Any]], format: AnswerFormat
) -> Judge | None:
    """Return the judge of a set of rewards, as the head of this file says; None for `correctness()`."""
    rewards = list(rewards)
    if any(isinstance(reward, SlotReward) for reward in rewards):
        return answer_reward(rewards, rows[0] if rows else None)
    function = main_function(rewards)
    return None if function is None else function_judge(function, rows, format)


def _opinion(judge: Reward) -> Reward:
    """The reward but for what changes nothing of what it takes for right."""
    return dataclasses.replace(judge, weight=type(judge).weight, format=xml(), name="")


def judge_in_words(judge: Judge, rows: Sequence[Mapping[str, Any]]) -> str:
    """What `right_by` takes for right in these rows: what is not the judge's default, and where it has no opinion.

    >>> from grpo_nb.rewards import multiple_choice
    >>> judge_in_words(multiple_choice(), [{"answer": "B"}, {"answer": ""}])
    'what multiple_choice() pays in full, and where it has no opinion (1 of 2 questions) what correctness() does'
    """
    if isinstance(judge, FunctionJudge):
        return f"what {judge.name}() scores with {judge.full_score:g} or more ({judge.reason})"
    scores = score(judge, [""] * len(rows), list(rows)).values[judge.__name__] if rows else []
    said = f"what {_opinion(judge)!r} pays in full"
    if unread := sum(map(math.isnan, scores)):
        said += f", and where it has no opinion ({unread} of {len(rows)} questions) what correctness() does"
    return said


def right_by(
    judge: Judge | None,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    scored: Mapping[str, Any] | None = None,
) -> list[bool]:
    """Whether each completion is right: paid in full by the judge, else (or where it has none) the answer of its row.

    The judge has no opinion where a gold answer is of a kind that it cannot read, and a function where it returns None.

    Args:
        judge: From `answer_reward` or `choose_judge`.
        texts: The completions.
        rows: The data row of each, with `answer`.
        format: In which they were asked.
        scored: For a function: completions, rows and token ids as a training hands them to rewards
            (`generation.samples.as_scored`). The texts and rows if not given.
    """
    scores, full_score = [math.nan] * len(texts), 1.0
    if isinstance(judge, FunctionJudge) and texts:
        given = scored or {"completions": texts, "rows": rows}
        scores = _function_scores(judge.function, **given)
        full_score = judge.full_score - _ROUNDING
    elif judge is not None and texts:
        asked = dataclasses.replace(judge, format=format)
        scores = list(score(asked, texts, list(rows)).values[asked.__name__])
    columns = {name: [row.get(name) for row in rows] for name in ("answer", ACCEPTED)}
    by_sameness = correctness(format=format)(completions=texts, **columns)
    flags = []
    for judged, same in zip(scores, by_sameness, strict=True):
        flags.append(same == 1.0 if math.isnan(judged) else judged >= full_score)
    return flags


def right_anywhere(
    judge: Judge | None,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    is_right: Sequence[bool],
) -> list[bool] | None:
    """Return for each completion if the right answer is its last candidate, in the format or not; None if unknown.

    The candidate of `grpo_nb.scoring.candidates` is compared by the same judge. An answer that is right where the format has
    it is the last candidate of its completion. Nothing is known of a judge that does not compare with gold answers.

    Args:
        judge, texts, rows, format: As in `right_by`.
        is_right: What `right_by` returned for them.
    """
    if not has_candidates(judge):
        return None
    labels = labels_of([str(row.get("answer", "")) for row in rows], format)
    places: list[int] = []
    readings: list[str] = []
    for place, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if is_right[place]:
            continue
        for gold in _golds(judge, row):
            kind = _candidate_kind(judge, gold, row, labels)
            found = last_candidate(text, gold, row=row, format=format, labels=labels, kind=kind)
            places += [place] * len(found)
            readings += found
    flags = list(is_right)
    verdicts = right_by(judge, readings, [rows[place] for place in places], bare())
    for place, verdict in zip(places, verdicts, strict=True):
        flags[place] = flags[place] or verdict
    return flags


def has_candidates(judge: Judge | None) -> bool:
    """Return True if the judge compares an answer with a gold answer, so that a candidate can be given to it."""
    return judge is None or (isinstance(judge, SlotReward) and not isinstance(judge, regex_answer))


def anywhere_in_words(
    judge: Judge | None, rows: Sequence[Mapping[str, Any]], format: AnswerFormat
) -> str:
    """Say how `right_anywhere` finds an answer in these rows, or why it finds none.

    >>> anywhere_in_words(None, [{"question": "1 + 1?", "answer": "2"}], xml())
    'the last number in the text, compared in the same way; a question repeated word for word is not searched'
    """
    if isinstance(judge, FunctionJudge):
        return f"not measured, because {judge.name}() does not say where it reads the answer"
    if not has_candidates(judge):
        return f"not measured, because {judge.__name__} matches a pattern and has no gold answer to search for"
    labels = labels_of([str(row.get("answer", "")) for row in rows], format)
    kinds_found: dict[CandidateKind, None] = {}
    for row in rows:
        for gold in _golds(judge, row):
            kinds_found[_candidate_kind(judge, gold, row, labels)] = None
    searched = " or ".join(words for kind, words in IN_WORDS.items() if kind in kinds_found)
    return (
        f"{searched or 'the last words'} in the text, compared in the same way; "
        "a question repeated word for word is not searched"
    )


def _golds(judge: Judge | None, row: Mapping[str, Any]) -> list[str]:
    own = judge.golds(dict(row)) if isinstance(judge, SlotReward) else []
    golds = own or correctness().golds({name: row.get(name) for name in ("answer", ACCEPTED)})
    return [str(gold) for gold in golds]


def _candidate_kind(
    judge: Judge | None, gold: str, row: Mapping[str, Any], labels: Sequence[str]
) -> CandidateKind:
    return "json" if isinstance(judge, json_answer) else kind_of(gold, row, labels)


def _function_scores(
    function: RewardFunction,
    completions: Sequence[Any],
    rows: Sequence[Mapping[str, Any]],
    completion_ids: Sequence[Sequence[int]] | None = None,
) -> list[float]:
    """Return a function's scores, and leave what it remembers as it was: judging is no step of a training."""
    has_memory = hasattr(function, "state_dict") and hasattr(function, "load_state_dict")
    memory = copy.deepcopy(function.state_dict()) if has_memory else None
    state = None
    if not isinstance(function, Reward):
        # As in the trial before a training: a reward that learns from each training call learns nothing from this one.
        state = types.SimpleNamespace(
            global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, log_history=[]
        )
        state.is_trial = True
    how = {"completion_ids": completion_ids, "trainer_state": state}
    try:
        scores = score(function, completions, list(rows), **how)
    finally:
        if has_memory:
            function.load_state_dict(memory)
    return list(scores.values[reward_name(function)])


def _known(scores: Iterable[float]) -> list[float]:
    return [value for value in scores if not math.isnan(value)]
