"""Questions, their gold answers and the form of an answer.

Not here: what an answer is worth (`rewards`), and the sets that people compare models on (`evaluation`).
"""

from grpo_nb.tasks.answers import Answers, answers_of
from grpo_nb.tasks.cleaning import clean
from grpo_nb.tasks.formats import AnswerFormat, boxed, hashes, think_answer, xml
from grpo_nb.tasks.questions import Contamination, TrainedQuestions, find_contamination, write_hashes
from grpo_nb.tasks.reading import Source, read_rows
from grpo_nb.tasks.sources import Messages, fitting_format, load_task, with_prompts
from grpo_nb.tasks.task import Task

__all__ = [
    "AnswerFormat",
    "Answers",
    "Contamination",
    "Messages",
    "Source",
    "Task",
    "TrainedQuestions",
    "answers_of",
    "boxed",
    "clean",
    "find_contamination",
    "fitting_format",
    "hashes",
    "load_task",
    "read_rows",
    "think_answer",
    "with_prompts",
    "write_hashes",
    "xml",
]
