"""Call reward functions as TRL does: scores, advantages, and the identity of a reward.

`gn.score` scores completions without a trainer. `grpo_nb.checks` finds out whether a reward is fit
to train on.
"""

from grpo_nb.scoring.record import rebuild_reward, record_of
from grpo_nb.scoring.scores import RewardError, Scores, group_advantages, score
