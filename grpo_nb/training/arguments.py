"""What a training is asked for, looked at at the door: before anything slow starts, and before anything is written."""

from __future__ import annotations

from typing import Any, Literal, get_args

from grpo_nb.core.words import in_line
from grpo_nb.models.match import require_same_settings
from grpo_nb.runs.run import check_run_name
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task

Reference = Literal["start", "base"]


def check_arguments(name: str | None, resume: Any, observers: Any = (), reference: str = "start") -> None:
    """Refuse what `train` cannot be told.

    Raises:
        TypeError, ValueError: The argument, its value, and what it must be.
    """
    if name is not None:
        check_run_name(name)
    if not isinstance(reference, str) or reference not in get_args(Reference):
        raise ValueError(f"reference = {in_line(reference)} must be 'start' or 'base'.")


def require_parts(model: Any, tokenizer: Any, task: Any, settings: Any) -> None:
    """Refuse what is no model with a LoRA, no tokenizer, no task or no settings, and settings of another model.

    Raises:
        TypeError, ValueError: The argument, what it is, and the line that makes one.
    """
    require_same_settings(model, tokenizer, settings)
    task.rendered_by(settings)


def require_holdout(task: Task, settings: Settings) -> None:
    """Refuse settings that need held-out scores where there are none.

    Raises:
        ValueError: With the setting to change.
    """
    if settings.keep == "best" and not settings.holdout_every:
        raise ValueError(
            "keep = 'best' is the best by held-out scores, and holdout_every = 0 makes none: "
            "settings = settings.replace(holdout_every=5)."
        )
    if settings.holdout_every and not len(task.holdout):
        raise ValueError(
            f"holdout_every = {settings.holdout_every} needs held-out questions, and the task has none: "
            "settings = settings.replace(holdout_every=0), or gn.load_task(..., holdout=0.2)."
        )
