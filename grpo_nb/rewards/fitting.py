"""Which of the kit's rewards fit a task, by the kind of its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.rewards.answers import correctness, exact_text
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.expressions import maths
from grpo_nb.rewards.form import xml_format, xml_tags
from grpo_nb.rewards.structured import multiple_choice

if TYPE_CHECKING:
    from grpo_nb.tasks import Task


def rewards_for(task: Task, *, weight: float = 2.0) -> list[Reward]:
    """Return rewards to begin with: one for the right answer, which weighs most, and the format's.

    Numbers are compared as numbers, labels as text without regard to case (single letters as options), expressions with
    math-verify, other text letter for letter.

    Args:
        task: Its `answers` and its `format` decide.
        weight: Of being right.

    >>> task = gn.load_task([{"question": f"Is {n} odd?", "answer": ("no", "yes")[n % 2]} for n in range(8)])
    >>> [type(reward).__name__ for reward in rewards_for(task)]
    ['exact_text', 'xml_format', 'xml_tags']
    """
    labels = [label for label, _ in task.answers.labels]
    common = {"weight": weight, "format": task.format}
    if task.answers.kind == "numbers":
        right: Reward = correctness(**common)
    elif task.answers.kind == "expressions":
        right = maths(**common)
    elif labels and all(len(label) == 1 and label.isalpha() for label in labels):
        right = multiple_choice(**common)
    else:
        right = exact_text(
            **common, is_case_sensitive=len({label.casefold() for label in labels}) < max(len(labels), 1)
        )
    return [right, xml_format(format=task.format), xml_tags(format=task.format)]
