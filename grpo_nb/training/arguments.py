"""What a training is asked for, looked at at the door: before anything slow starts, and before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from grpo_nb.models import require_same_settings
from grpo_nb.runs import check_run_name
from grpo_nb.settings import Settings, check_choice
from grpo_nb.tasks import Task
from grpo_nb.training.observers import Observer

Reference = Literal["start", "base"]


def check_arguments(
    name: str | None, resume: Any, observers: Any = (), reference: str = "start", check_fit: bool = True
) -> None:
    """Refuse what `train` and `train_stages` cannot be told, before anything is looked at.

    Raises:
        TypeError, ValueError: The argument, its value, and what it must be.
    """
    if name is not None:
        check_run_name(name)
    if resume is not None and (not isinstance(resume, (str, Path)) or not str(resume)):
        raise TypeError(f'resume = {resume!r:.60} must be None, "auto", or the path or name of a run.')
    if isinstance(observers, (str, Observer)) or not all(
        isinstance(each, Observer) for each in (observers if isinstance(observers, Iterable) else [observers])
    ):
        raise TypeError(
            f"observers = {observers!r:.60} must be a list of gn.training.Observer objects: [MyObserver()]."
        )
    check_choice("reference", reference, get_args(Reference))
    check_choice("check_fit", check_fit, (True, False))


def require_parts(model: Any, tokenizer: Any, task: Any, settings: Any) -> None:
    """Refuse what is no model with a LoRA, no tokenizer, no task or no settings, and settings of another model.

    Raises:
        TypeError, ValueError: The argument, what it is, and the line that makes one.
    """
    require_same_settings(model, tokenizer, settings)
    if not isinstance(task, Task):
        raise TypeError(f"task = {task!r:.60} is no task: task = gn.load_task(<your file>, settings).")


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
