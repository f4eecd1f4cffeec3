"""Questions, their gold answers and the form of an answer.

Not here: what an answer is worth (`rewards`), and the sets that people compare models on (`evaluation`).
"""

from grpo_nb.tasks.answers import Answers, is_same_answer, is_same_json, read_json
from grpo_nb.tasks.contamination import normalized_question
from grpo_nb.tasks.formats import AnswerFormat, bare, boxed, hashes, think_answer, xml
from grpo_nb.tasks.load import ARITHMETIC_LEVELS, load_task
from grpo_nb.tasks.numbers import read_number
from grpo_nb.tasks.task import Task
