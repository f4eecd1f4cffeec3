"""Call reward functions as TRL does, and decide which answers are correct.

`gn.score` (`gn` is grpo_nb) scores completions without a trainer. `record_of` describes a reward,
so that a changed one is noticed.
`correct_answers` chooses the grader of an evaluation, and `last_answer` finds an answer outside the
format. `grpo_nb.checks` finds out whether a reward is fit to train on.
"""

from grpo_nb.scoring.advantages import group_advantages
from grpo_nb.scoring.record import rebuild_reward, record_of
from grpo_nb.scoring.scores import RewardError, Scores, score
