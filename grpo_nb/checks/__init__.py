"""Is this reward fit to train on, and is there a signal to learn from? Asked before any GPU minute is spent.

Not here: the rewards themselves (`rewards`), and what goes wrong during a run (`health`).
"""

from grpo_nb.checks.catalogue import WHOLE_SET, Finding
from grpo_nb.checks.gate import Baseline, baseline
from grpo_nb.checks.groups import Estimate, estimate, in_groups
from grpo_nb.checks.probes import PLAIN, completion, wrong_answers
from grpo_nb.checks.report import ProbeTable, RewardProblem, RewardReport
from grpo_nb.checks.run import add_case, check_rewards, read_cases
from grpo_nb.checks.sample import check_options, rows_of
from grpo_nb.core import open_door

__getattr__, __dir__, __all__ = open_door(globals())
