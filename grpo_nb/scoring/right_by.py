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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from grpo_nb.tasks.answers import folded
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
    by_question: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Full scores by question and gold answer, where they are not the same for all questions."""
    tells_answers: bool | None = None
    """True if a gold answer gets more than a wrong one; None if an empty completion gets as much."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return reward_name(self.function)

    def full_score_of(self, row: Mapping[str, Any]) -> float:
        """Return the score from which on an answer to this question is correct."""
        return self.by_question.get(_key(row), self.full_score)


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
    function: RewardFunction,
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    tokenizer: Any = None,
    begun: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> FunctionJudge:
    """Return a function as a judge, with the score from which on an answer is correct.

    The full score is the upper end of the function's attribute `range`, if it has one. Otherwise it is the best score that
    the function gives to the gold answers of the first rows, written in the format; and 1.0 where it gives none of them more
    than an empty completion. If the gold answers of these rows get different scores, each question
    has its own full score: that of its gold answer, if a wrong answer gets less.

    Args:
        function: A reward function with TRL's signature. It may return booleans.
        rows: Data rows, with `answer`.
        format: The format in which the questions are asked.
        tokenizer: For a function that reads `completion_ids`.
        begun: Adds the environment of an episode that nobody has played (`Task.begun`).

    Raises:
        RewardError: The function failed.

    >>> def twice(completions, answer, **columns):
    ...     return [2.0 * (gold in text) for text, gold in zip(completions, answer)]
    >>> function_judge(twice, [{"question": "1 + 1?", "answer": "2"}], xml()).full_score
    2.0
    """
    declared = range_of(function)
    trial = _try_golds(function, rows[:_TRIED_ROWS], format, tokenizer, begun)
    if declared is not None and declared[0] < declared[1] < math.inf:
        return FunctionJudge(
            function=function,
            full_score=declared[1],
            reason="its declared maximum",
            tells_answers=trial.tells_answers,
        )
    best = max(trial.above_empty, default=-math.inf)
    if best == -math.inf:
        return FunctionJudge(
            function=function,
            full_score=1.0,
            reason="no maximum is declared or seen on gold answers",
        )
    judge = FunctionJudge(
        function=function,
        full_score=best,
        reason="its score for a gold answer in the format",
        tells_answers=trial.tells_answers,
    )
    if not trial.tells_answers or min(trial.above_empty) > best - _ROUNDING:
        return judge
    whole = _try_golds(function, rows, format, tokenizer, begun)
    return dataclasses.replace(
        judge,
        full_score=max(whole.above_empty),
        reason="its score for the gold answer of the same question",
        by_question=whole.full_scores,
    )


@dataclass(frozen=True)
class _Trial:
    """Scores for the gold answer, a wrong answer and an empty completion of rows; NaN for None."""

    rows: Sequence[Mapping[str, Any]]
    gold: Sequence[float]
    wrong: Sequence[float]
    empty: Sequence[float]

    @property
    def above_empty(self) -> list[float]:
        """Scores of gold answers that get more than an empty completion gets anywhere."""
        highest = max(_known(self.empty), default=-math.inf)
        return [score for score in self.gold if score > highest + _ROUNDING]

    @property
    def tells_answers(self) -> bool | None:
        """True if some gold answer beats a wrong one; None if that cannot be told."""
        pairs = []
        for gold, wrong in zip(self.gold, self.wrong, strict=True):
            if gold in self.above_empty and not math.isnan(wrong):
                pairs.append(gold > wrong + _ROUNDING)
        return any(pairs) if pairs else None

    @property
    def full_scores(self) -> dict[tuple[str, str], float]:
        """Full score by question, if its gold answer beats a wrong and an empty one."""
        scores = {}
        for row, gold, *others in zip(self.rows, self.gold, self.wrong, self.empty, strict=True):
            if all(gold > other + _ROUNDING for other in others):
                scores[_key(row)] = gold
        return scores


def _try_golds(
    function: RewardFunction,
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    tokenizer: Any,
    begun: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> _Trial:
    """Score gold answers and empty completions and, if these differ, wrong answers."""
    tried = [dict(row) for row in rows]
    golds = [str(row.get("answer", "")) for row in tried]
    unknown = [math.nan] * len(tried)
    if not tried:
        return _Trial(rows=tried, gold=unknown, wrong=unknown, empty=unknown)

    def scores_of(texts: list[str], places: Sequence[int]) -> list[float]:
        # Each call has environments of its own, which the function may change.
        asked = [dict(begun(tried[place])) for place in places]
        return _function_scores(function, texts, asked, tokenizer=tokenizer)

    everywhere = range(len(tried))
    written = [format.render("reasoning", gold) for gold in golds]
    trial = _Trial(
        rows=tried,
        gold=scores_of(written, everywhere),
        wrong=unknown,
        empty=scores_of([""] * len(tried), everywhere),
    )
    others = {}
    for place, gold in enumerate(golds):
        other = next((text for text in golds if folded(text) != folded(gold)), None)
        if other is not None:
            others[place] = format.render("reasoning", other)
    if not others or not trial.above_empty:
        return trial
    of_others = scores_of(list(others.values()), list(others))
    scores = dict(zip(others, of_others, strict=True))
    return dataclasses.replace(trial, wrong=[scores.get(place, math.nan) for place in everywhere])


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row.get("question", "")), str(row.get("answer", ""))


def choose_judge(
    rewards: Iterable[RewardFunction],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    **how: Any,
) -> Judge | None:
    """Return the judge of a set of rewards, as the head of this file says; None for `correctness()`.

    Args:
        rewards, rows, format: As in `function_judge`, whose other arguments are `how`.
    """
    rewards = list(rewards)
    if any(isinstance(reward, SlotReward) for reward in rewards):
        return answer_reward(rewards, rows[0] if rows else None)
    function = main_function(rewards)
    return None if function is None else function_judge(function, rows, format, **how)


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
        if judge.by_question:
            lowest = min(judge.by_question.values())
            return (
                f"what {judge.name}() scores as high as the gold answer of the same question "
                f"in the format ({lowest:g} to {judge.full_score:g})"
            )
        blind = "; a wrong answer gets as much" if judge.tells_answers is False else ""
        return (
            f"what {judge.name}() scores with {judge.full_score:g} or more ({judge.reason}{blind})"
        )
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
    scores: Sequence[float] | None = None,
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
        scores: From `judge_scores` for the same completions, so that the judge is not called again.
    """
    if scores is None:
        scores = judge_scores(judge, texts, rows, format, scored=scored)
    full_scores = [1.0] * len(texts)
    if isinstance(judge, FunctionJudge):
        full_scores = [judge.full_score_of(row) - _ROUNDING for row in rows]
    columns = {name: [row.get(name) for row in rows] for name in ("answer", ACCEPTED)}
    by_sameness = correctness(format=format)(completions=texts, **columns)
    flags = []
    for judged, full, same in zip(scores, full_scores, by_sameness, strict=True):
        flags.append(same == 1.0 if math.isnan(judged) else judged >= full)
    return flags


def judge_scores(
    judge: Judge | None,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    scored: Mapping[str, Any] | None = None,
) -> list[float]:
    """Return the judge's score of each completion, NaN for no opinion; arguments as in `right_by`."""
    if judge is None or not texts:
        return [math.nan] * len(texts)
    if isinstance(judge, FunctionJudge):
        return _function_scores(judge.function, **(scored or {"completions": texts, "rows": rows}))
    asked = dataclasses.replace(judge, format=format)
    return list(score(asked, texts, list(rows)).values[asked.__name__])


def judge_remarks(
    judge: Judge | None, scores: Sequence[float | None], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return remarks on scores above the full score of a function, and on missing ones.

    >>> rows = [{"question": "1 + 1?", "answer": "2"}] * 2
    >>> judge = FunctionJudge(function=print, full_score=1.0, reason="its declared maximum")
    >>> judge_remarks(judge, [None, 1.0], rows)
    ['print() returned None for 1 of 2 answers: there correctness() decides.']
    """
    if not isinstance(judge, FunctionJudge):
        return []
    remarks = []
    name, count = judge.name, len(scores)
    missing = sum(score_of_answer is None for score_of_answer in scores)
    if missing:
        remarks.append(
            f"{name}() returned None for {missing} of {count} answers: there correctness() decides."
        )
    above = []
    for score_of_answer, row in zip(scores, rows, strict=True):
        limit = judge.full_score_of(row) + _ROUNDING
        if score_of_answer is not None and score_of_answer > limit:
            above.append(score_of_answer)
    if above:
        remarks.append(
            f"{name}() gave {len(above)} of {count} answers more than what counts as correct here, "
            f"up to {max(above):g}: if only its full score is to count, set its attribute, such as "
            f"{name}.range = (0, {max(above):g})."
        )
    return remarks


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
    tokenizer: Any = None,
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
    how = {"completion_ids": completion_ids, "tokenizer": tokenizer, "trainer_state": state}
    try:
        scores = score(function, completions, list(rows), **how)
    finally:
        if has_memory:
            function.load_state_dict(memory)
    return list(scores.values[reward_name(function)])


def _known(scores: Iterable[float]) -> list[float]:
    return [value for value in scores if not math.isnan(value)]
