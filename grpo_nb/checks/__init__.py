"""Is this reward fit to train on, and is there a signal to learn from? Asked before any GPU minute is spent.

Not here: the rewards themselves (`rewards`), and what goes wrong during a run (`health`).
"""

from grpo_nb.checks.agreement import agreement
from grpo_nb.checks.baseline import baseline
from grpo_nb.checks.check_rewards import check_rewards
from grpo_nb.checks.levels import choose_level
