"""Questions, their gold answers, answer formats and tools.

Answers are scored in `rewards`. Held-out questions are asked in `evaluation`.
"""

from grpo_nb.tasks.answers import AnswerSummary, is_right_answer
from grpo_nb.tasks.arithmetic import ARITHMETIC_LEVELS
from grpo_nb.tasks.formats import AnswerFormat, bare, boxed, hashes, think_answer, xml
from grpo_nb.tasks.load import load_task
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.task import Task
