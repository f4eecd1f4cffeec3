"""Check the weighted total of all rewards, which is all that GRPO learns from."""

import math
from collections.abc import Mapping, Sequence

from grpo_nb.checks import classifying
from grpo_nb.checks.classifying import ANSWER, FORMAT, OTHER, best_score, mean_gain, scores_on_row
from grpo_nb.checks.faults import REWARDED_SHARE, TriedReward
from grpo_nb.checks.findings import WHOLE_SET, Finding, make_finding
from grpo_nb.checks.layouts import SLOT_ONLY
from grpo_nb.checks.probes import NO_ANSWER, Probe
from grpo_nb.checks.rows import CheckRows

Weights = Mapping[str, float]
"""Weight of each reward, by name."""


def check_total(rewards: Sequence[TriedReward], weights: Weights, rows: CheckRows) -> list[Finding]:
    """Report a total that does not follow right answers, or follows the format more."""
    answer_rewards = [reward for reward in rewards if _is_for_answers(reward, weights)]
    margin_rows = {row for reward in answer_rewards for row in reward.behaviour.margins}
    totals = _total_scores(rewards, weights)
    right_rows = []
    for row in sorted(margin_rows):
        layout = answer_rewards[0].layout.name
        best_right = best_score(totals, "right", row, layout)
        best_wrong = best_score(totals, "wrong", row, layout)
        # TRL adds up missing scores as 0.
        if best_right > (0.0 if math.isnan(best_wrong) else best_wrong):
            right_rows.append(row)
    if len(right_rows) > len(margin_rows) / 2:
        return _find_heavy_format(rewards, answer_rewards, weights, row=right_rows[0])
    return [_explain_total(rewards, rows)]


def _explain_total(rewards: Sequence[TriedReward], rows: CheckRows) -> Finding:
    """Return the finding about a total that does not follow right answers.

    It is not critical if the total may be meant so: a single reward for the format or length, a
    single reward that ignores the gold answer, and rewards that reward none of the answers and
    read other columns of the row, or none.
    """
    is_lone = len(rewards) == 1
    name = rewards[0].name if is_lone else WHOLE_SET
    undecided = [reward for reward in rewards if reward.behaviour.role == OTHER]
    columns = {column for reward in undecided for column in reward.columns}
    other_columns = sorted(columns - {"answer", rows.gold_column})
    if not any(classifying.is_answer_dependent(reward.scores) for reward in rewards):
        if other_columns and not rows.is_answer_function:
            what = (
                "no gold answer scores higher than a wrong one, and the reward reads "
                f"{', '.join(other_columns)}: its right answers may be others than the gold answers"
            )
            return make_finding("right answer unknown", name, what)
        if is_lone and _wants_certain_answers(rewards[0]):
            what = (
                "the only reward scores wrong answers like right ones, but refuses other texts in "
                "the same format"
            )
            return make_finding("ignores the gold answer", name, what)
        if is_lone and _is_for_form(rewards[0]):
            what = "the only reward follows the format, length or wording, whatever the answer"
            return make_finding("no reward for answers", WHOLE_SET, what)
        if is_lone and not columns and rewards[0].behaviour.role == OTHER:
            what = "the only reward follows neither right answers nor the format, in all we tried"
            return make_finding("right answer unknown", name, what)
    suspects = [reward.name for reward in rewards if reward.behaviour.role != ANSWER]
    look_at = ", ".join(suspects) or "the weights and their signs"
    what = (
        "the gold answer has no higher total than a wrong answer in the same words and format; "
        f"look first at {look_at}"
    )
    return make_finding("nothing tells right from wrong", WHOLE_SET, what)


def _is_for_form(reward: TriedReward) -> bool:
    """Return whether a reward follows the format, the length or the wording."""
    if reward.behaviour.role != OTHER:
        return reward.behaviour.role == FORMAT
    is_length_dependent = classifying.is_length_dependent(reward.scores)
    return is_length_dependent or classifying.is_phrase_dependent(reward.scores)


def _wants_certain_answers(reward: TriedReward) -> bool:
    """Return whether a reward for well-formed completions refuses "I do not know" in the slot.

    A reward for the format alone scores it like any other answer.
    """
    probes = [
        probe
        for probe in reward.of_kind("missing answer is rewarded")
        if probe.variant == NO_ANSWER
    ]
    refused = [probe for probe in probes if reward.share(probe) < REWARDED_SHARE]
    return reward.layout.has_slot and 2 * len(refused) > len(probes)


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
    """Report a total to which perfect format adds as much as the right answer.

    The format is compared on one row, the answer on all rows on average.
    """
    layout = answer_rewards[0].layout.name
    format_gain = 0.0
    answer_gain = 0.0
    for reward in rewards:
        weight = weights[reward.name]
        if reward in answer_rewards:
            # The worst wrong answer in perfect format, compared with prose. The best one may earn
            # partial credit, which is not for the format.
            wrong = scores_on_row(reward.scores, "wrong", row, layout)
            with_format = min(wrong, default=math.nan)
            without_format = best_score(reward.scores, "prose", row)
            answer_gain += weight * mean_gain(reward.behaviour.margins)
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
        return [make_finding("format outweighs the answer", WHOLE_SET, what)]
    return []
