"""Rewards of a run that was opened from its folder, where their functions are not in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.base import Reward, relative
from grpo_nb.scoring.record import rebuild_reward


@dataclass(frozen=True, kw_only=True)
class RecordedReward(Reward):
    """A reward of which only the record is known: a user's reward, or a `judge`."""

    record: Mapping[str, Any]


def rewards_from_records(records: Iterable[Mapping[str, Any]]) -> list[Reward]:
    """Return the rewards of a run, rebuilt from their records or as `RecordedReward`s.

    Args:
        records: Entries of `rewards` in `run.json`: records with the `name` and `weight` of each
            reward.
    """
    rewards = []
    for record in records:
        reward = rebuild_reward(record)
        if reward is None:
            reward = RecordedReward(name=record["name"], weight=record["weight"], record=record)
            # A judge is no function of the user, so it never decides which answers are correct.
            if record.get("is_relative") or record.get("kind") == "judge":
                relative(reward)
        rewards.append(reward)
    return rewards
