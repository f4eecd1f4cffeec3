"""What is wrong with rewards of one's own, in a line before a training"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grpo_nb.checks.catalogue import WHOLE_SET
from grpo_nb.checks.run import check_rewards
from grpo_nb.core.randomness import kept_random_state
from grpo_nb.rewards.base import Reward, RewardFunction, reward_name
from grpo_nb.rewards.identity import hash_of_parts, parts_of
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task

_LOOK = "gn.check_rewards(rewards, task)"
_LIMIT = 0.2
"""Seconds that one call may take while a reward is checked; all of them together at most thirty times as long."""
_looked_at: set[str] = set()
"""Rewards, by what they compute: of each is said once in a process what is to be said."""


def said_of_own_rewards(
    rewards: Sequence[RewardFunction], task: Task, settings: Settings, harmless: Collection[str]
) -> str:
    """Return what is wrong with rewards that are not the kit's, as one line; nothing where nothing is, or it was said before.

    Checking calls a reward some hundred times with texts that no model writes. So that no training becomes slow by that, or
    another one, a reward is checked only if its trial was quick and changed nothing that it computes with; of others it is
    said that they have not been checked.

    Args:
        rewards: Of the training.
        task: Its task.
        settings: Its settings.
        harmless: The names of the rewards whose trial was so.
    """
    own = [reward for reward in rewards if not isinstance(reward, Reward)]
    fresh = [reward for reward in own if hash_of_parts(parts_of(reward)) not in _looked_at]
    if not fresh:
        return ""
    unchecked = [reward_name(reward) for reward in fresh if reward_name(reward) not in harmless]
    _looked_at.update(hash_of_parts(parts_of(reward)) for reward in fresh)
    if unchecked:
        return f"Not checked before this training, for a call takes long or changes it: {', '.join(unchecked)}. {_LOOK} does."
    with kept_random_state():
        report = check_rewards(own, task, seconds_per_call=_LIMIT)
    # Of what the rewards do together, only where all are here.
    told = [*map(reward_name, own), *([WHOLE_SET] if len(own) == len(rewards) else [])]
    serious = [f for f in report.findings if f.severity != "note" and f.reward in told]
    if not serious:
        return ""
    said = "; ".join(f"{f.reward}: {f.kind} ({f.severity})" for f in serious)
    return f"Training begins all the same, but your rewards have faults: {said}. {_LOOK} shows each with its mend."
