"""Questions, their gold answers and the form of an answer.

Not here: what an answer is worth (`rewards`), and the sets that people compare models on (`evaluation`).
"""

from grpo_nb.tasks.formats import AnswerFormat, boxed, hashes, think_answer, xml
from grpo_nb.tasks.questions import Contamination, TrainedQuestions, find_contamination, write_hashes
from grpo_nb.tasks.sources import Messages, Source, load_task, rows_with_prompts, source_rows
from grpo_nb.tasks.task import Task

__all__ = [
    "AnswerFormat",
    "Contamination",
    "Messages",
    "Source",
    "Task",
    "TrainedQuestions",
    "boxed",
    "find_contamination",
    "hashes",
    "load_task",
    "rows_with_prompts",
    "source_rows",
    "think_answer",
    "write_hashes",
    "xml",
]
