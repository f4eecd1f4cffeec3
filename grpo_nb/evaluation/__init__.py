"""Proof on held-out questions: asking, judging, comparing, and the statistics of saying so.

Not here: scores during a training without judgement (`runs`), and rewards (`rewards`).
"""

from grpo_nb.core.statistics import smallest_difference
from grpo_nb.evaluation.ask import ask, compare, evaluate
from grpo_nb.evaluation.heldout import load_holdout
from grpo_nb.evaluation.results import Comparison, Evaluation, open_comparison
