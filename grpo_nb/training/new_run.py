"""Check the name of a new run, and record what it starts from: `RunInfo` and `start/` folder.

With the start folder, `grpo_nb.scaleout` can repeat the first steps elsewhere. Its files:

runs/<name>/start/
  adapter_*                    LoRA that the run starts from. If this LoRA was already trained, a
                               run on a CPU measures its KL against it
  train.jsonl                  the training rows in their order
  generation_<step>.json       data row and token ids of each completion of the first three
                               generations. <step> counts the optimizer steps done before the
                               generation. Of several generations of one step, only the last is
                               kept
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_nb.core.files import write_json
from grpo_nb.core.words import short_repr
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.packages import package_versions
from grpo_nb.models.base_weights import base_weights_hash
from grpo_nb.rewards.base import range_of
from grpo_nb.runs.run_folder import Run
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.scoring.record import record_of
from grpo_nb.tasks.read_rows import Row

if TYPE_CHECKING:
    from grpo_nb.training.prepare import PreparedTraining


def require_free_path(folder: Path) -> None:
    """Raise a `FileExistsError` if a folder exists, because a new run overwrites nothing."""
    if folder.exists():
        raise FileExistsError(
            f"{str(folder)!r} exists, and a new run overwrites nothing. Give the run another name, "
            "or pass resume='auto' to resume the run in it. A folder without run.json is no run, "
            "and cannot be resumed. If it is left from an interrupted start, you may delete it."
        )


def require_valid_name(name: object) -> None:
    """Raise a `ValueError` unless a run can have this name."""
    pattern = r"(?!auto$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
    if not isinstance(name, str) or not re.fullmatch(pattern, name):
        raise ValueError(
            f"{short_repr(name)} cannot be the name of a run. Use up to 100 letters, digits, '.', "
            "'_' and '-', and begin with a letter or digit. 'auto' is no name, but a value of "
            "`resume`."
        )


def new_run_info(prepared: PreparedTraining) -> RunInfo:
    """Return the `RunInfo` of a run that starts now.

    Before the first step, `train` adds the effective settings, the reference of the KL and the
    description of the grader. After the last step, it adds how the run ended.
    """
    gpu = find_gpu()
    settings = prepared.settings
    task = prepared.task
    rewards = [
        {"name": name, "weight": weight, **record_of(reward), "range": range_of(reward)}
        for reward, (name, weight) in zip(prepared.rewards, prepared.weights.items(), strict=True)
    ]
    return RunInfo(
        status="running",
        pid=os.getpid(),
        host=platform.node(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        settings=settings.to_dict(),
        task={
            "name": task.name,
            "format": dataclasses.asdict(task.format),
            "train": len(task.train),
            "holdout": len(task.holdout),
            "fingerprint": task.fingerprint,
            "is_ordered": task.is_ordered,
            # A run records how tools are called, not their code.
            "tools": task.tools.schemas if task.tools is not None else [],
        },
        rewards=rewards,
        machine={
            "platform": platform.platform(),
            "gpu": dataclasses.asdict(gpu) if gpu else None,
        },
        dtype=prepared.dtype,
        versions=package_versions(),
        engine=prepared.engine_choice.name,
        # The folder or name in `settings.model` may lead to other weights later.
        base_weights_hash=base_weights_hash(prepared.model, settings.model),
        # The model card links the base model only if it is not a local folder.
        is_base_local=Path(settings.model).expanduser().exists(),
    )


def write_generation(
    run: Run,
    step: int,
    completion_rows: Sequence[Row],
    completion_ids: Sequence[Sequence[int]],
) -> None:
    """Write one of the first generations.

    A later generation of the same step replaces the earlier one. A resumed run may sample a step
    again, and with `steps_per_generation` below `gradient_accumulation_steps` a step has several.

    Args:
        run: The run that is trained.
        step: Optimizer steps that the training had done before.
        completion_rows: The data row of each completion.
        completion_ids: The token ids of each completion. Its text alone would not restore them.
    """
    write_json(
        run.start_path / f"generation_{step:06d}.json",
        {"step": step, "completion_rows": completion_rows, "completion_ids": completion_ids},
    )
