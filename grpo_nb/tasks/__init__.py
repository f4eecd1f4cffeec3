"""Questions, their gold answers and the form of an answer.

Not here: what an answer is worth (`rewards`), and the sets that people compare models on (`evaluation`).
"""

from grpo_nb.tasks.formats import AnswerFormat, boxed, hashes, think_answer, xml
from grpo_nb.tasks.sources import ARITHMETIC_LEVELS, load_task
from grpo_nb.tasks.task import Task
