"""Questions, their gold answers and the form of an answer.

Not here: what an answer is worth (`rewards`), and the sets that people compare models on (`evaluation`).
"""

from grpo_nb.core import open_door
from grpo_nb.tasks.answers import Answers, answers_of, tags_of, with_point
from grpo_nb.tasks.cleaning import clean
from grpo_nb.tasks.formats import AnswerFormat, boxed, hashes, think_answer, xml
from grpo_nb.tasks.notation import (
    UNION,
    Shape,
    Units,
    bare,
    boxed_answers,
    is_convertible,
    is_known_unit,
    is_literal,
    is_same_json,
    parse_number,
    plain,
    read_container,
    read_json,
    read_measure,
    read_number,
    split_list,
    split_variable,
    unit_name,
    unit_of,
    words,
)
from grpo_nb.tasks.questions import Contamination, TrainedQuestions, find_contamination, write_hashes
from grpo_nb.tasks.reading import Source, read_rows
from grpo_nb.tasks.sources import Messages, fitting_format, load_task, with_prompts
from grpo_nb.tasks.task import Task

__getattr__, __dir__, __all__ = open_door(globals())
