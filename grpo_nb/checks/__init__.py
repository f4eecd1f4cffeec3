"""Is this reward fit to train on, and is there a signal to learn from? Asked before any GPU minute is spent.

Not here: the rewards themselves (`rewards`), and what goes wrong during a run (`health`).
"""

from grpo_nb.checks.gate import baseline
from grpo_nb.checks.levels import choose_level
from grpo_nb.checks.run import check_rewards
