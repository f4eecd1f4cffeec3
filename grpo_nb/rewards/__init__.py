"""Reward functions with TRL's signature, by kind. Each is picklable, deterministic and never raises on any text.

`gn.rewards.correctness()` makes one; `.cases` of any of them shows what it pays for; docs/rewards.md helps to choose.
"""

from grpo_nb.rewards.answers import correctness, exact_text, number
from grpo_nb.rewards.base import Reward, completion_text, weights_by_name
from grpo_nb.rewards.classifiers import classifier
from grpo_nb.rewards.code import code_tests
from grpo_nb.rewards.compose import adaptive, clipped, combined, dummy
from grpo_nb.rewards.expressions import maths
from grpo_nb.rewards.format import (
    answer_format,
    incremental_format,
    json_format,
    think_format,
    xml_format,
    xml_tags,
)
from grpo_nb.rewards.length import cosine_length, ideal_length, minimum_length, soft_overlong
from grpo_nb.rewards.structured import json_answer, multiple_choice, regex_answer
from grpo_nb.rewards.text import banned_phrases, language, reasoning_steps, repetition

__all__ = [
    "Reward",
    "adaptive",
    "answer_format",
    "banned_phrases",
    "classifier",
    "clipped",
    "code_tests",
    "combined",
    "completion_text",
    "correctness",
    "cosine_length",
    "dummy",
    "exact_text",
    "ideal_length",
    "incremental_format",
    "json_answer",
    "json_format",
    "language",
    "maths",
    "minimum_length",
    "multiple_choice",
    "number",
    "reasoning_steps",
    "regex_answer",
    "repetition",
    "soft_overlong",
    "think_format",
    "weights_by_name",
    "xml_format",
    "xml_tags",
]
