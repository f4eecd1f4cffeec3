"""Reward functions with TRL's signature, by kind. Each is picklable, deterministic and never raises on any text."""

from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import Reward, completion_text
from grpo_nb.rewards.code import code_tests
from grpo_nb.rewards.format import xml_format, xml_tags

__all__ = ["Reward", "code_tests", "completion_text", "correctness", "xml_format", "xml_tags"]
