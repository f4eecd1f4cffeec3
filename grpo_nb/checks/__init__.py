"""Check before training that the rewards are sound and the model gets a learning signal.

Not here: the rewards themselves (`rewards`), and problems during a run (`health`).
"""

from grpo_nb.checks.judge_agreement import agreement
from grpo_nb.checks.learning_signal import baseline
from grpo_nb.checks.levels import choose_level
from grpo_nb.checks.reward_check import check_rewards
