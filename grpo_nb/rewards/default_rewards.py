"""The rewards that fit a task."""

from grpo_nb.rewards.answers import correctness, exact_text
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.format_rewards import exact_format, partial_format
from grpo_nb.rewards.math_answers import maths
from grpo_nb.tasks.task import Task


def rewards_for(task: Task) -> list[Reward]:
    """Return rewards to start with: one for the right answer, and two for the format.

    The answer (2.0) weighs more than both format rewards together (1.5). So a right answer in a
    format that is only partly right is worth more than a wrong answer in a perfect format. With
    `bare()` there is no format reward, because every text is in that format.

    Expressions are scored by `maths`, labels such as "spam" by `exact_text` without regard to case,
    and all other answers by `correctness`, which also reads letters of options.

    Args:
        task: The task; its `answers` and its `format` decide.

    >>> rows = [{"question": f"Is {n} odd?", "answer": ("no", "yes")[n % 2]} for n in range(8)]
    >>> task = gn.load_task(rows)
    >>> [(reward.__name__, reward.weight) for reward in rewards_for(task)]
    [('exact_text', 2.0), ('exact_format', 1.0), ('partial_format', 0.5)]
    """
    kind = task.answers.kind
    # Labels such as "A" are letters of options; "spam" is a word that must be written out.
    are_letters = all(len(label) == 1 and label.isalpha() for label, _ in task.answers.labels)
    if kind == "expression":
        answer_reward = maths(format=task.format)
    elif kind == "choice" and not are_letters:
        answer_reward = exact_text(format=task.format, is_literal=False)
    else:
        answer_reward = correctness(format=task.format)
    if task.format.is_bare:
        return [answer_reward]
    return [answer_reward, exact_format(format=task.format), partial_format(format=task.format)]
