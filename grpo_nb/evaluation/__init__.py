"""Proof on held-out questions: asking, judging, comparing, and the statistics of saying so.

Not here: scores during a training without judgement (`runs`), and rewards (`rewards`).
"""

from grpo_nb.core import open_door
from grpo_nb.evaluation.ask import compare, evaluate
from grpo_nb.evaluation.comparison import Comparison, Evaluation, open_comparison
from grpo_nb.evaluation.harness import write_harness_task
from grpo_nb.evaluation.heldout import load_holdout, read_answers
from grpo_nb.evaluation.statistics import paired_result, share_interval, smallest_difference
from grpo_nb.evaluation.subjects import Decoding, answers_of_model

__getattr__, __dir__, __all__ = open_door(globals())
