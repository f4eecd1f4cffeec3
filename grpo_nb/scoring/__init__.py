"""Call reward functions as TRL does, and decide which answers are correct.

`gn.score` (`gn` is grpo_nb) scores completions without a trainer, and raises `RewardError` if a
reward fails. `group_advantages` computes the advantages of GRPO from total scores. `record_of`
describes a reward, so that a changed one is noticed, and `rebuild_reward` makes it again.

The module `grader` decides for an evaluation which answers are correct, and `last_answer` finds an
answer outside the format. `grpo_nb.checks` finds out whether a reward is fit to train on.
"""

from grpo_nb.scoring.advantages import group_advantages
from grpo_nb.scoring.record import rebuild_reward, record_of
from grpo_nb.scoring.scores import RewardError, Scores, score
