"""What `gn.train` takes, but for the rewards: the tiny model, its tokenizer, sums, and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpo_nb as gn


def load_tiny(
    folder: Path | str, train_size: int, holdout_size: int, **changes: Any
) -> tuple[Any, Any, gn.tasks.Task, Any]:
    """Return model, tokenizer, a task of so many questions, and the settings for a CPU with these changes."""
    settings = gn.preset("cpu", model=str(folder), **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=train_size, holdout_size=holdout_size, tokenizer=tokenizer)
    return model, tokenizer, task, settings
