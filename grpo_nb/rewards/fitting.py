"""The rewards that fit a task, and whether rewards can read its rows."""

from collections.abc import Iterable, Mapping
from typing import Any

from grpo_nb.rewards.answers import correctness, exact_text, json_answer, multiple_choice
from grpo_nb.rewards.base import Reward, RewardFunction
from grpo_nb.rewards.code import code_tests
from grpo_nb.rewards.maths import maths
from grpo_nb.rewards.xml_format import xml_format, xml_tags
from grpo_nb.tasks.task import Task


def check_rows(rewards: Iterable[RewardFunction], rows: Iterable[Mapping[str, Any]]) -> None:
    """Let `code_tests`, which reads a data column before it judges, read it in all rows.

    Raises:
        ValueError: A row cannot be read; the message names the reward and the row.

    >>> from grpo_nb.rewards import code_tests
    >>> check_rows([code_tests()], [{"tests": ["assert f(1) == 2"]}])
    """
    for reward in rewards:
        if isinstance(reward, code_tests):
            reward.check(rows)


def rewards_for(task: Task, *, weight: float = 2.0) -> list[Reward]:
    """Return rewards to begin with: one for the right answer, which weighs more than the format's two together.

    With `bare()` there is none for the format: every text is in it, so such a reward never changes.

    Numbers and text are judged by `correctness`, choices as text without regard to case (single letters as options),
    expressions by `maths`, JSON by its values.

    Args:
        task: Its `answers` and its `format` decide.
        weight: Of being right; the format's weigh a half and a quarter of it.

    >>> task = gn.load_task([{"question": f"Is {n} odd?", "answer": ("no", "yes")[n % 2]} for n in range(8)])
    >>> [(reward.__name__, reward.weight) for reward in rewards_for(task)]
    [('exact_text', 2.0), ('xml_format', 1.0), ('xml_tags', 0.5)]
    """
    common = {"weight": weight, "format": task.format}
    judges = {"expression": maths, "json": json_answer, "choice": multiple_choice}
    right: Reward = judges.get(task.answers.kind, correctness)(**common)
    if task.answers.kind == "choice" and any(
        len(label) > 1 or not label.isalpha() for label, _ in task.answers.labels
    ):
        right = exact_text(**common, is_case_sensitive=False)
    if task.format.is_bare:
        return [right]
    return [
        right,
        xml_format(weight=weight / 2, format=task.format),
        xml_tags(weight=weight / 4, format=task.format),
    ]
