"""Reward functions with TRL's signature. No reward raises, whatever the model writes.

`gn.rewards.correctness()` makes one; docs/guide/rewards.md helps to choose. `grpo_nb.scoring` calls
rewards outside a trainer, and `grpo_nb.checks` finds out whether a reward is fit to train on.
"""

from grpo_nb.rewards.answers import SlotReward, Undecided, correctness, exact_text
from grpo_nb.rewards.base import Reward, completion_text, relative, reward_name, weights_by_name
from grpo_nb.rewards.code import code_tests, read_tests
from grpo_nb.rewards.default_rewards import rewards_for
from grpo_nb.rewards.format_rewards import exact_format, partial_format
from grpo_nb.rewards.judge_model import judge
from grpo_nb.rewards.math_answers import maths
