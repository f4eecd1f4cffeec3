"""Reward functions with TRL's signature, by kind. Each is picklable, deterministic and never raises on any text.

`gn.rewards.correctness()` makes one; `.cases` of any of them shows what it pays for; docs/guide/rewards.md helps to choose.
Calling them as TRL does, and scores outside a trainer, are here too; whether a reward is fit to train on is asked in `checks`.
"""

from grpo_nb.core import open_door
from grpo_nb.rewards.answers import correctness, exact_text, is_same_answer, number
from grpo_nb.rewards.base import (
    WHOLE_TEXT,
    Reward,
    RewardFunction,
    Span,
    completion_text,
    kinds,
    range_of,
    reward_list,
    reward_name,
    spans,
    weight_of,
    weights_by_name,
)
from grpo_nb.rewards.calls import (
    Batch,
    RewardError,
    UnreadableOutput,
    call_reward,
    is_async,
    make_batch,
    to_floats,
)
from grpo_nb.rewards.classifiers import classifier
from grpo_nb.rewards.code import code_tests
from grpo_nb.rewards.compose import (
    AdaptiveState,
    adaptive,
    adaptive_states,
    check_rows,
    clipped,
    combined,
    dummy,
    inner_rewards,
    rewards_for,
)
from grpo_nb.rewards.expressions import maths
from grpo_nb.rewards.form import answer_format, incremental_format, json_format, think_format, xml_format, xml_tags
from grpo_nb.rewards.hidden_tests import read_tests
from grpo_nb.rewards.identity import (
    describe_difference,
    differing_parts,
    globals_used,
    hash_of_parts,
    is_own_module,
    may_be_memory,
    parts_of,
)
from grpo_nb.rewards.judging import answer_reward, judge_in_words, right_by
from grpo_nb.rewards.rebuild import rebuild_reward
from grpo_nb.rewards.scores import ScaleRewards, Scores, changed_weights, group_advantages, reweight, score
from grpo_nb.rewards.slot import gold_answers
from grpo_nb.rewards.structured import json_answer, multiple_choice, regex_answer
from grpo_nb.rewards.style import (
    banned_phrases,
    cosine_length,
    ideal_length,
    language,
    minimum_length,
    reasoning_steps,
    repetition,
    soft_overlong,
)
from grpo_nb.tasks import parse_number

# Last, for they need the rewards: each enters its cases where the rewards look for them.
from grpo_nb.rewards import cases as cases  # isort: skip

__getattr__, __dir__, __all__ = open_door(globals())
