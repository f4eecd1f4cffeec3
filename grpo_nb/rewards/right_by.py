"""Whether an answer is right by the opinion of the reward that a training is paid by: baseline and evaluation ask it."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_nb.rewards.answers import SlotReward, correctness
from grpo_nb.rewards.base import Reward, RewardFunction
from grpo_nb.rewards.scores import score
from grpo_nb.tasks.cleaning import ACCEPTED
from grpo_nb.tasks.formats import AnswerFormat, xml


def answer_reward(rewards: Iterable[RewardFunction], row: Mapping[str, Any] | None = None) -> Reward | None:
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


def _opinion(judge: Reward) -> Reward:
    """The reward but for what changes nothing of what it takes for right."""
    return dataclasses.replace(judge, weight=type(judge).weight, format=xml(), name="")


def judge_in_words(judge: Reward, rows: Sequence[Mapping[str, Any]]) -> str:
    """What `right_by` takes for right in these rows: what is not the judge's default, and where it has no opinion.

    >>> from grpo_nb.rewards import multiple_choice
    >>> judge_in_words(multiple_choice(), [{"answer": "B"}, {"answer": ""}])
    'what multiple_choice() pays in full, and where it has no opinion (1 of 2 questions) what correctness() does'
    """
    scores = score(judge, [""] * len(rows), list(rows)).values[judge.__name__] if rows else []
    said = f"what {_opinion(judge)!r} pays in full"
    if unread := sum(map(math.isnan, scores)):
        said += f", and where it has no opinion ({unread} of {len(rows)} questions) what correctness() does"
    return said


def right_by(
    judge: Reward | None, texts: Sequence[str], rows: Sequence[Mapping[str, Any]], format: AnswerFormat
) -> list[bool]:
    """Whether each completion is right: paid in full by the judge, else (or where it has none) the answer of its row.

    The judge has no opinion where a gold answer is of a kind that it cannot read.

    Args:
        judge: From `answer_reward`.
        texts: The completions.
        rows: The data row of each, with `answer`.
        format: In which they were asked.
    """
    scores = [math.nan] * len(texts)
    if judge is not None and texts:
        asked = dataclasses.replace(judge, format=format)
        scores = list(score(asked, texts, list(rows)).values[asked.__name__])
    columns = {name: [row.get(name) for row in rows] for name in ("answer", ACCEPTED)}
    by_sameness = correctness(format=format)(completions=texts, **columns)
    return [(same if math.isnan(paid) else paid) == 1.0 for paid, same in zip(scores, by_sameness, strict=True)]
