"""Check the weighted total of all rewards, which is all that GRPO learns from."""

import math
from collections.abc import Mapping, Sequence

import pandas

from grpo_nb.checks import roles
from grpo_nb.checks.faults import TriedReward
from grpo_nb.checks.layouts import SLOT_ONLY
from grpo_nb.checks.probes import DO_NOT_KNOW, Probe
from grpo_nb.checks.report import WHOLE_SET, Finding, make_finding
from grpo_nb.checks.roles import ANSWER, FORMAT, OTHER, best_scores
from grpo_nb.checks.rows import CheckRows

Weights = Mapping[str, float]
"""Weight of each reward, by name."""


def check_total(rewards: Sequence[TriedReward], weights: Weights, rows: CheckRows) -> list[Finding]:
    """Report a total that does not follow right answers, or follows the format more."""
    answer_rewards = [
        reward
        for reward in rewards
        if reward.role.name == ANSWER and reward.role.layout.is_own and weights[reward.name] != 0
    ]
    if not answer_rewards:
        return [_explain_total(rewards, rows)]
    layout = answer_rewards[0].role.layout.name
    margin_rows = set().union(*(reward.role.margins.index for reward in answer_rewards))
    best = best_scores(_total_scores(rewards, weights)).loc[layout].reindex(sorted(margin_rows))
    # TRL adds up missing scores as 0.
    is_right_best = best["right"] > best["wrong"].fillna(0.0)
    if is_right_best.mean() <= 0.5:
        return [_explain_total(rewards, rows)]
    return _find_heavy_format(rewards, answer_rewards, weights, row=is_right_best.idxmax())


def _total_scores(rewards: Sequence[TriedReward], weights: Weights) -> pandas.DataFrame:
    """Return the probes that all rewards were tried with, and the total as their `score`.

    A NaN score is left out of the sum, as in TRL.
    """
    parts = []
    for reward in rewards:
        scores = reward.probes.set_index(list(Probe._fields))["score"]
        parts.append(weights[reward.name] * scores)
    table = pandas.concat(parts, axis=1, join="inner")
    return table.sum(axis=1, min_count=1).rename("score").reset_index()


def _explain_total(rewards: Sequence[TriedReward], rows: CheckRows) -> Finding:
    """Return the finding about a total that does not follow right answers.

    It is not critical if the total may be meant so: a single reward for the format or length, and
    rewards that reward none of the answers and read other columns of the row, or are alone.
    """
    is_lone = len(rewards) == 1
    name = rewards[0].name if is_lone else WHOLE_SET
    columns = {
        column
        for reward in rewards
        if reward.role.name == OTHER
        for column in reward.columns
    }
    other_columns = sorted(columns - {"answer", rows.gold_column})
    if not any(roles.is_answer_dependent(reward.probes) for reward in rewards):
        if other_columns and not rows.is_answer_function:
            what = (
                "no gold answer scores higher than a wrong one, and the reward reads "
                f"{', '.join(other_columns)}: its right answers may be others than the gold answers"
            )
            return make_finding("right answer unknown", name, what)
        if is_lone and _is_for_form(rewards[0]):
            what = "the only reward follows the format, length or wording, whatever the answer"
            return make_finding("no reward for answers", WHOLE_SET, what)
        if is_lone and not columns:
            what = (
                "the only reward scores wrong answers like right ones, and not for their format, "
                "length or wording alone"
            )
            return make_finding("right answer unknown", name, what)
    suspects = [reward.name for reward in rewards if reward.role.name != ANSWER]
    look_at = ", ".join(suspects) or "the weights and their signs"
    what = (
        "the gold answer has no higher total than a wrong answer in the same words and format; "
        f"look first at {look_at}"
    )
    return make_finding("nothing tells right from wrong", WHOLE_SET, what)


def _is_for_form(reward: TriedReward) -> bool:
    """Return whether a reward follows the format, the length or the wording.

    A reward for the format alone scores "I do not know" in the slot like any other answer.
    """
    if reward.role.name != FORMAT:
        return roles.is_length_dependent(reward.probes) or roles.is_phrase_dependent(reward.probes)
    missing_answers = reward.of_kind("missing answer is rewarded")
    unanswered = missing_answers[missing_answers["variant"] == DO_NOT_KNOW]
    is_answer_needed = unanswered["is_rewarded"].mean() < 0.5  # false if none was tried
    return not reward.role.layout.has_slot or not is_answer_needed


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
    layout = answer_rewards[0].role.layout.name
    format_gain = 0.0
    answer_gain = 0.0
    for reward in rewards:
        weight = weights[reward.name]
        scores = reward.probes[reward.probes["row"] == row]
        best = scores.groupby(["kind", "layout"])["score"].agg(["min", "max"])
        if reward in answer_rewards:
            # The worst wrong answer in perfect format, compared with prose. The best one may earn
            # partial credit, which is not for the format.
            gain = best["min"].get(("wrong", layout)) - best["max"].get(("prose", ""))
            answer_gain += weight * reward.role.margins["gain"].mean()
        else:
            slot_alone = best["max"].get(("right", SLOT_ONLY), math.nan)
            gain = best["max"].get(("right", layout)) - slot_alone
        if weight * gain > 0:  # neither negative nor NaN
            format_gain += weight * gain

    # One reward may add the same for both, because a right answer in its format earns both.
    is_equal_in_set = format_gain == answer_gain and len(answer_rewards) < len(rewards)
    if format_gain > answer_gain or is_equal_in_set:
        what = f"perfect format adds {format_gain:.3g}, the right answer {answer_gain:.3g}"
        return [make_finding("format outweighs the answer", WHOLE_SET, what)]
    return []
