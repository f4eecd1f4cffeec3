"""Judge the weighted total of all rewards, which is all that GRPO learns from."""

import math
from collections.abc import Mapping, Sequence

from grpo_nb.checks.classifying import ANSWER, OTHER, best_score, mean_gain
from grpo_nb.checks.findings import WHOLE_SET, Finding, make_finding
from grpo_nb.checks.judging import TriedReward
from grpo_nb.checks.layouts import SLOT_ONLY
from grpo_nb.checks.probes import Probe

Weights = Mapping[str, float]
"""Weight of each reward, by name."""


def judge_total(
    rewards: Sequence[TriedReward], weights: Weights, *, is_for_answers: bool
) -> list[Finding]:
    """Report a total that does not follow right answers, or follows the format more.

    Args:
        rewards: One per reward.
        weights: By name of the reward.
        is_for_answers: False if the total need not tell right from wrong. A single length reward,
            for example, may be meant for length alone.
    """
    answer_rewards = [reward for reward in rewards if _is_for_answers(reward, weights)]
    rows: set[int] = set()
    for reward in answer_rewards:
        rows.update(reward.behaviour.margins)
    totals = _total_scores(rewards, weights)
    right_rows = []
    for row in sorted(rows):
        layout = answer_rewards[0].layout.name
        best_right = best_score(totals, "right", row, layout)
        if best_right > best_score(totals, "wrong", row, layout):
            right_rows.append(row)

    if len(right_rows) > len(rows) / 2:
        return _find_heavy_format(rewards, answer_rewards, weights, row=right_rows[0])
    if is_for_answers:
        suspects = [reward.name for reward in rewards if reward not in answer_rewards]
        look_at = ", ".join(suspects) or "the weights and their signs"
        what = (
            "the gold answer has no higher total than a wrong answer in the same words and format; "
            f"look first at {look_at}"
        )
        return [make_finding("nothing tells right from wrong", WHOLE_SET, what)]
    if [reward.behaviour.role for reward in rewards] == [OTHER]:
        what = "the only reward follows neither right answers nor the format"
        return [make_finding("no reward for answers", WHOLE_SET, what)]
    return []


def _is_for_answers(reward: TriedReward, weights: Weights) -> bool:
    """Return whether a reward adds to the total for right answers in the task's own format."""
    has_weight = weights[reward.name] != 0
    return reward.behaviour.role == ANSWER and reward.layout.is_own and has_weight


def _total_scores(rewards: Sequence[TriedReward], weights: Weights) -> dict[Probe, float]:
    """Return the total of each probe that all rewards were tried with.

    A NaN score is left out of the sum, as in TRL.
    """
    totals = {}
    for probe in rewards[0].scores:
        if not all(probe in reward.scores for reward in rewards):
            continue
        parts = [weights[reward.name] * reward.scores[probe] for reward in rewards]
        numbers = [part for part in parts if not math.isnan(part)]
        totals[probe] = sum(numbers) if numbers else math.nan
    return totals


def _find_heavy_format(
    rewards: Sequence[TriedReward],
    answer_rewards: Sequence[TriedReward],
    weights: Weights,
    *,
    row: int,
) -> list[Finding]:
    """Report a total to which perfect format adds more than the right answer, on one row."""
    layout = answer_rewards[0].layout.name
    format_gain = 0.0
    answer_gain = 0.0
    for reward in rewards:
        weight = weights[reward.name]
        if reward in answer_rewards:
            # A wrong answer in perfect format, compared with prose.
            with_format = best_score(reward.scores, "wrong", row, layout)
            without_format = best_score(reward.scores, "prose", row)
            answer_gain += abs(weight) * mean_gain(reward.behaviour.margins)
        else:
            with_format = best_score(reward.scores, "right", row, layout)
            without_format = best_score(reward.scores, "right", row, SLOT_ONLY)
        gain = weight * (with_format - without_format)
        if gain > 0:  # neither negative nor NaN
            format_gain += gain

    # One reward may add the same for both, because a right answer in its format earns both.
    is_equal_in_set = format_gain == answer_gain and len(answer_rewards) < len(rewards)
    if format_gain > answer_gain or is_equal_in_set:
        what = f"perfect format adds {format_gain:.3g}, the right answer {answer_gain:.3g}"
        return [make_finding("form outweighs being right", WHOLE_SET, what)]
    return []
