"""Check before training that the rewards are sound and the model gets a learning signal.

- `reward_check` has `check_rewards`, which tries rewards without a model. `rows`, `probes`,
  `calls`, `roles`, `faults` and `reward_code` are its steps, and `report` shows the findings.
- `judge_agreement` has `agreement`, which compares a judge with your own scores.
- `learning_signal` has `baseline`, which samples groups before training. `advice` proposes changes.
- `levels` has `choose_level`, which chooses how hard a task should be.

Not here: the rewards themselves (`rewards`), and problems during a run (`health`).
"""

from grpo_nb.checks.judge_agreement import agreement
from grpo_nb.checks.learning_signal import baseline
from grpo_nb.checks.levels import choose_level
from grpo_nb.checks.report import RewardProblem
from grpo_nb.checks.reward_check import check_rewards
