"""Compare models on held-out questions, with intervals and an exact test.

- `asking` has `evaluate`, `compare` and `ask`.
- `model_sources` finds and opens the models that are asked.
- `holdout` loads questions, and grades the answers.
- `exam` asks the models the questions, and chooses who decides which answers are correct.
- `results` and `comparison` have the numbers, and `comparison_card` shows a comparison.
"""

from grpo_nb.core.statistics import detectable_difference
from grpo_nb.evaluation.asking import ask, compare, evaluate
from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.holdout import load_holdout
from grpo_nb.evaluation.results import Evaluation
