"""The judge of a set of rewards: it decides which answers are correct.

Baseline, evaluation and the held-out curve use the judge, so that they measure what a training
rewards. `choose_judge` returns the first of these:

1. The kit's reward for the answer, such as `multiple_choice()`, if the set has exactly one.
2. If the set has no such reward: the user's own function with the highest weight of all rewards,
   or the kit's `code_tests()` with that weight. Two functions that share the highest weight are no
   judge.
3. `correctness()`.

The functions are in the order of their use: choose a judge, describe it, apply it to answers in the
format, and apply it to the last candidate anywhere in a text.
"""

import copy
import dataclasses
import math
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
from grpo_nb.scoring.calls import first_step_state
from grpo_nb.scoring.candidates import IN_WORDS, CandidateKind, kind_of, labels_of, last_candidate
from grpo_nb.scoring.scores import score
from grpo_nb.tasks.answers import ACCEPTED, folded
from grpo_nb.tasks.formats import AnswerFormat, bare, xml

_TRIED_ROWS = 8
"""Rows whose gold answers are scored to find a function's full score. Each call may cost money."""
_ROUNDING = 1e-6
"""Difference that is ignored, because rewards add up parts in floating point."""


@dataclass(frozen=True, kw_only=True)
class FunctionJudge:
    """A reward function as a judge: an answer with the full score is correct."""

    function: RewardFunction
    full_score: float
    """Lowest score of a correct answer."""
    reason: str
    """Source of the full score, in words."""
    by_question: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Full scores by question and gold answer, if questions have different ones."""
    tells_answers: bool | None = None
    """True if a gold answer scores above a wrong one; None if no gold answer scores anything."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return reward_name(self.function)

    def full_score_of(self, row: Mapping[str, Any]) -> float:
        """Return the lowest score of a correct answer to this question."""
        return self.by_question.get(_key(row), self.full_score)


Judge = Reward | FunctionJudge


def answer_reward(
    rewards: Iterable[RewardFunction], row: Mapping[str, Any] | None = None
) -> Reward | None:
    """Return the kit's reward for the answer; None if a set has none or several.

    None too for a plain `correctness()`, which is the default judge anyway, and for a reward whose
    column is not in the given row.

    >>> from grpo_nb.rewards import xml_tags
    >>> answer_reward([correctness(tolerance=0.1), xml_tags()])
    correctness(tolerance=0.1)
    >>> answer_reward([correctness(), xml_tags()]) is None
    True
    """
    answer_rewards = [reward for reward in rewards if isinstance(reward, SlotReward)]
    if len(answer_rewards) != 1:
        return None
    reward = answer_rewards[0]
    if _without_weight_and_format(reward) == correctness():
        return None
    has_column = row is None or reward.column is None or reward.column in row
    return reward if has_column else None


def main_function(rewards: Iterable[RewardFunction]) -> RewardFunction | None:
    """Return the function that is the judge of a set without a kit reward for the answer.

    It is the user's own function, or the kit's `code_tests()`, with the highest weight of all
    rewards. None if there is no such function, or more than one. The kit's rewards for format and
    length are never judges, so they may have the same weight.

    >>> def solved(completions, **columns): ...
    >>> def style(completions, **columns): ...
    >>> main_function([solved]) is solved
    True
    >>> main_function([solved, style]), main_function([solved, correctness()])
    (None, None)
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
    """Return a function as a judge, with its full score.

    The full score is the upper end of the function's attribute `range`, if it has one. Otherwise it
    is the best score of the gold answers of the first rows, written in the format. It is 1.0 if
    none of these scores above an empty completion. If the gold answers score differently, each
    question has a full score of its own: that of its gold answer, if a wrong answer scores less.

    Args:
        function: A reward function with TRL's signature. It may return booleans.
        rows: Data rows, with `answer`.
        format: The format in which the questions are asked.
        tokenizer: For a function that reads `completion_ids`.
        begun: Adds the environment of a new episode to a row (`Task.begun`).

    Raises:
        RewardError: The function failed.

    >>> def twice(completions, answer, **columns):
    ...     return [2.0 * (gold in text) for text, gold in zip(completions, answer)]
    >>> rows = [{"question": "1 + 1?", "answer": "2"}]
    >>> function_judge(twice, rows, xml()).full_score
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
    # An empty completion to a later question may score above every gold answer.
    highest = max(whole.above_empty, default=best)
    return dataclasses.replace(
        judge,
        full_score=highest,
        reason="its score for the gold answer of the same question",
        by_question=whole.full_scores,
    )


@dataclass(frozen=True)
class _Trial:
    """Scores of the gold answer, a wrong answer and an empty text for each row; NaN for None."""

    rows: Sequence[Mapping[str, Any]]
    gold: Sequence[float]
    wrong: Sequence[float]
    empty: Sequence[float]

    @property
    def above_empty(self) -> list[float]:
        """Scores of the gold answers that score above every empty completion."""
        highest = max(_known(self.empty), default=-math.inf)
        return [score for score in self.gold if score > highest + _ROUNDING]

    @property
    def tells_answers(self) -> bool | None:
        """True if a gold answer scores above a wrong one; None if there are no such pairs."""
        pairs = []
        for gold, wrong in zip(self.gold, self.wrong, strict=True):
            if gold in self.above_empty and not math.isnan(wrong):
                pairs.append(gold > wrong + _ROUNDING)
        return any(pairs) if pairs else None

    @property
    def full_scores(self) -> dict[tuple[str, str], float]:
        """Full scores of the questions whose gold answer scores above a wrong and an empty one."""
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
    """Score gold answers and empty completions, and wrong answers if the two differ."""
    tried = [dict(row) for row in rows]
    golds = [str(row.get("answer", "")) for row in tried]
    unknown = [math.nan] * len(tried)
    if not tried:
        return _Trial(rows=tried, gold=unknown, wrong=unknown, empty=unknown)

    def scores_of(texts: list[str], places: Sequence[int]) -> list[float]:
        # Each call gets new environments, because the function may change them.
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
    wrong_texts = {}
    for place, gold in enumerate(golds):
        # The gold answer of another question is a wrong answer to this one.
        for other in golds:
            if folded(other) != folded(gold):
                wrong_texts[place] = format.render("reasoning", other)
                break
    if not wrong_texts or not trial.above_empty:
        return trial
    wrong_scores = list(unknown)
    scores = scores_of(list(wrong_texts.values()), list(wrong_texts))
    for place, wrong_score in zip(wrong_texts, scores, strict=True):
        wrong_scores[place] = wrong_score
    return dataclasses.replace(trial, wrong=wrong_scores)


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row.get("question", "")), str(row.get("answer", ""))


def choose_judge(
    rewards: Iterable[RewardFunction],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    **trial_arguments: Any,
) -> Judge | None:
    """Return the judge of a set of rewards, as described at the top; None for `correctness()`.

    Args:
        rewards: The rewards of a training.
        rows, format, trial_arguments: As in `function_judge`.
    """
    rewards = list(rewards)
    if any(isinstance(reward, SlotReward) for reward in rewards):
        return answer_reward(rewards, rows[0] if rows else None)
    function = main_function(rewards)
    if function is None:
        return None
    return function_judge(function, rows, format, **trial_arguments)


def _without_weight_and_format(judge: Reward) -> Reward:
    """Return a copy whose fields that do not affect correctness are reset."""
    return dataclasses.replace(judge, weight=type(judge).weight, format=xml(), name="")


def judge_in_words(judge: Judge, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a phrase for the answers that `right_by` counts as correct in these rows.

    It shows the settings of the judge that are not defaults, and for how many questions the judge
    has no opinion.

    >>> from grpo_nb.rewards import multiple_choice
    >>> judge_in_words(multiple_choice(), [{"answer": "B"}])
    'what multiple_choice() pays in full'
    """
    if isinstance(judge, FunctionJudge):
        if judge.by_question:
            lowest = min(judge.by_question.values())
            return (
                f"what {judge.name}() scores as high as the gold answer of the same question "
                f"in the format ({lowest:g} to {judge.full_score:g})"
            )
        reason = judge.reason
        if judge.tells_answers is False:
            reason += "; a wrong answer gets as much"
        return f"what {judge.name}() scores with {judge.full_score:g} or more ({reason})"
    phrase = f"what {_without_weight_and_format(judge)!r} pays in full"
    scores = score(judge, [""] * len(rows), list(rows)).values[judge.__name__] if rows else []
    missing = sum(map(math.isnan, scores))
    if missing:
        phrase += (
            f", and where it has no opinion ({missing} of {len(rows)} questions) "
            "what correctness() does"
        )
    return phrase


def right_by(
    judge: Judge | None,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    scored: Mapping[str, Any] | None = None,
    scores: Sequence[float] | None = None,
) -> list[bool]:
    """Return for each completion if it is correct.

    A completion is correct if the judge gives it the full score. If the judge has no opinion,
    `correctness()` decides. A reward has none if it cannot read the gold answer, and a function has
    none if it returns None.

    Args:
        judge: From `answer_reward` or `choose_judge`.
        texts: The completions.
        rows: The data row of each completion, with `answer`.
        format: The format in which the questions were asked.
        scored: For a function: completions, rows and token ids as a training passes them to rewards
            (`generation.samples.as_scored`). The texts and rows if not given.
        scores: From `judge_scores` for the same completions, so that the judge is not called again.
    """
    if scores is None:
        scores = judge_scores(judge, texts, rows, format, scored=scored)
    full_scores = [1.0] * len(texts)
    if isinstance(judge, FunctionJudge):
        full_scores = [judge.full_score_of(row) - _ROUNDING for row in rows]
    columns = {name: [row.get(name) for row in rows] for name in ("answer", ACCEPTED)}
    default_scores = correctness(format=format)(completions=texts, **columns)
    flags = []
    for own, full, default in zip(scores, full_scores, default_scores, strict=True):
        flags.append(default == 1.0 if math.isnan(own) else own >= full)
    return flags


def judge_scores(
    judge: Judge | None,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    *,
    scored: Mapping[str, Any] | None = None,
) -> list[float]:
    """Return the judge's scores, NaN for no opinion. Arguments as in `right_by`."""
    if judge is None or not texts:
        return [math.nan] * len(texts)
    if isinstance(judge, FunctionJudge):
        return _function_scores(judge.function, **(scored or {"completions": texts, "rows": rows}))
    judge = dataclasses.replace(judge, format=format)
    return list(score(judge, texts, list(rows)).values[judge.__name__])


def judge_remarks(
    judge: Judge | None, scores: Sequence[float | None], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return remarks on a function's scores that are above the full score, or missing.

    Args:
        judge: From `choose_judge`.
        scores: The `judge_score` of each judged row, where None stands for no opinion (NaN in
            `judge_scores`, which JSON cannot hold).
        rows: The data row of each score.

    >>> rows = [{"question": "1 + 1?", "answer": "2"}] * 2
    >>> judge = FunctionJudge(function=print, full_score=1.0, reason="its declared maximum")
    >>> judge_remarks(judge, [None, 1.0], rows)
    ['print() returned None for 1 of 2 answers: there correctness() decides.']
    """
    if not isinstance(judge, FunctionJudge):
        return []
    remarks = []
    missing = 0
    above = []
    for own, row in zip(scores, rows, strict=True):
        if own is None:
            missing += 1
        elif own > judge.full_score_of(row) + _ROUNDING:
            above.append(own)
    name = judge.name
    if missing:
        remarks.append(
            f"{name}() returned None for {missing} of {len(scores)} answers: "
            "there correctness() decides."
        )
    if above:
        remarks.append(
            f"{name}() gave {len(above)} of {len(scores)} answers more than what counts as correct "
            f"here, up to {max(above):g}: if only its full score is to count, set its attribute, "
            f"such as {name}.range = (0, {max(above):g})."
        )
    return remarks


def right_anywhere(
    judge: Judge | None,
    texts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    format: AnswerFormat,
    is_right: Sequence[bool],
) -> list[bool] | None:
    """Return for each completion if its last candidate is correct, in the format or not.

    The last candidate of `grpo_nb.scoring.candidates` is given to the same judge. An answer that is
    correct in the format is the last candidate of its completion. Returns None for a judge that
    does not compare with gold answers.

    Args:
        judge, texts, rows, format: As in `right_by`.
        is_right: Result of `right_by` for the same completions.
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
            candidates = last_candidate(
                text, gold, row=row, format=format, labels=labels, kind=kind
            )
            places += [place] * len(candidates)
            readings += candidates
    flags = list(is_right)
    verdicts = right_by(judge, readings, [rows[place] for place in places], bare())
    for place, verdict in zip(places, verdicts, strict=True):
        flags[place] = flags[place] or verdict
    return flags


def has_candidates(judge: Judge | None) -> bool:
    """Return True if the judge compares answers with gold answers."""
    return judge is None or (isinstance(judge, SlotReward) and not isinstance(judge, regex_answer))


def anywhere_in_words(
    judge: Judge | None, rows: Sequence[Mapping[str, Any]], format: AnswerFormat
) -> str:
    """Return a phrase for how `right_anywhere` finds an answer in these rows, or why it does not.

    >>> words = anywhere_in_words(None, [{"question": "1 + 1?", "answer": "2"}], xml())
    >>> words.partition(";")[0]
    'the last number in the text, compared in the same way'
    """
    if isinstance(judge, FunctionJudge):
        return f"not measured, because {judge.name}() does not say where it reads the answer"
    if not has_candidates(judge):
        return (
            f"not measured, because {judge.__name__} matches a pattern "
            "and has no gold answer to search for"
        )
    labels = labels_of([str(row.get("answer", "")) for row in rows], format)
    kinds_in_rows: set[CandidateKind] = set()
    for row in rows:
        for gold in _golds(judge, row):
            kinds_in_rows.add(_candidate_kind(judge, gold, row, labels))
    searched = " or ".join(words for kind, words in IN_WORDS.items() if kind in kinds_in_rows)
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
    """Return a function's scores, and restore its memory: judging is not a step of a training."""
    has_memory = hasattr(function, "state_dict") and hasattr(function, "load_state_dict")
    memory = copy.deepcopy(function.state_dict()) if has_memory else None
    state = None
    if not isinstance(function, Reward):
        # As in the trial before a training, so that a reward that learns from calls learns nothing.
        state = first_step_state()
        state.is_trial = True
    try:
        scores = score(
            function,
            completions,
            list(rows),
            completion_ids=completion_ids,
            tokenizer=tokenizer,
            trainer_state=state,
        )
    finally:
        if has_memory:
            function.load_state_dict(memory)
    return list(scores.values[reward_name(function)])


def _known(scores: Iterable[float]) -> list[float]:
    return [value for value in scores if not math.isnan(value)]
