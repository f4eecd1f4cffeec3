"""Reward functions with TRL's signature, by kind. Each is picklable, deterministic and never raises on any text.

`gn.rewards.correctness()` makes one; docs/guide/rewards.md helps to choose.
Calling them as TRL does, and scores outside a trainer, are here too; whether a reward is fit to train on is asked in `checks`.
"""

from grpo_nb.rewards.answers import (
    SlotReward,
    correctness,
    exact_text,
    json_answer,
    multiple_choice,
    regex_answer,
)
from grpo_nb.rewards.base import Reward, completion_text, reward_name, weights_by_name
from grpo_nb.rewards.code import code_tests
from grpo_nb.rewards.fitting import check_rows, rewards_for
from grpo_nb.rewards.grouping import relative
from grpo_nb.rewards.hidden_tests import read_tests
from grpo_nb.rewards.judge_model import judge
from grpo_nb.rewards.length import length
from grpo_nb.rewards.maths import maths
from grpo_nb.rewards.xml_format import incremental_format, xml_format, xml_tags
