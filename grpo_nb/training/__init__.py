"""One run, begun, gone on with and ended: training, stages, resuming, dry runs and priming.

Not here: what a run's folder holds (`runs`), and what is made of it afterwards (`evaluation`, `export`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core import open_door
from grpo_nb.training.beginning import write_task
from grpo_nb.training.observers import Observer
from grpo_nb.training.stages import Stage, StagedRun, open_stages, train_stages

if TYPE_CHECKING:
    from grpo_nb.training.dry_runs import DryRun, dry_run
    from grpo_nb.training.priming import Priming, prime
    from grpo_nb.training.recorder import completions_table
    from grpo_nb.training.session import train

__getattr__, __dir__, __all__ = open_door(
    globals(),
    {
        "dry_runs": ("DryRun", "dry_run"),
        "priming": ("Priming", "prime"),
        "recorder": ("completions_table",),
        "session": ("train",),
    },
)
