"""The `RunInfo` of a new run: settings, data, each reward with its source, machine, and what the KL is measured to."""

import dataclasses
import math
import os
import platform
import time
import warnings
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.writers import process_identity
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import usable_memory_gib
from grpo_nb.machine.packages import package_versions
from grpo_nb.rewards.base import RewardFunction, range_of
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.scoring.record import record_of

# What the KL of a run is measured to.
BASE_MODEL, START_ADAPTER = "the base model", "the adapter it started from"


def run_info(prepared: Any, number_type: str) -> RunInfo:
    """Return the `RunInfo` of a run that starts now.

    Args:
        prepared: The run's `grpo_nb.training.prepare.Prepared`.
        number_type: What the loaded model computes in.
    """
    gpu, task = find_gpu(), prepared.task
    why_not_shared = prepared.engine.why_not_cpu_engine
    return RunInfo(
        status="running",
        **process_identity(),
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        settings=prepared.settings.to_dict(),
        task={
            "name": task.name,
            "format": dataclasses.asdict(task.format),
            "train": len(task.train),
            "holdout": len(task.holdout),
            "dropped": dict(task.dropped),
            "fingerprint": task.fingerprint,
            "is_ordered": task.is_ordered,
            "floor": task.answers.floor,
            "tools": task.tools.schemas if task.tools is not None else [],
        },
        rewards=[
            {"name": name, "weight": weight, **_described(reward)}
            for (name, weight), reward in zip(
                prepared.weights.items(), prepared.rewards, strict=True
            )
        ],
        machine={
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "memory_gib": round(usable_memory_gib(), 1),
            "gpu": dataclasses.asdict(gpu) if gpu else None,
        },
        number_type=number_type,
        versions=package_versions(),
        rollout=f"stock ({why_not_shared})" if why_not_shared else "shared prompts",
        generation=str(prepared.engine),
    )


def _described(reward: RewardFunction) -> dict[str, Any]:
    ends = range_of(reward)
    # The health rules judge levels by the range.
    known = [*ends] if ends and all(map(math.isfinite, ends)) else None
    return {"call": repr(reward), **record_of(reward), "range": known}


def reference_of(model: Any, settings: Settings, kl_reference: str) -> str:
    """Return what the KL of a new run is measured to, with a warning where that is not what was asked for.

    On a GPU it is the base model always: Unsloth takes the lines out of TRL's trainer that make a frozen copy of the adapter
    (unsloth/models/rl.py), and vLLM would be handed the tensors of that copy among those of the trained adapter.
    """
    if kl_reference not in ("start", "base"):
        raise ValueError(f"kl_reference = {kl_reference!r:.60} must be 'start' or 'base'.")
    tensors = [p.detach() for name, p in model.named_parameters() if "lora_B.default" in name]
    if settings.beta == 0 or kl_reference == "base" or not any(tensor.any() for tensor in tensors):
        return BASE_MODEL  # with a LoRA as it was made the model is the base model
    if find_gpu() is None:
        return START_ADAPTER
    warnings.warn(
        'On a GPU Unsloth measures the KL to the base model: this run is held to the base model, as with kl_reference="base".',
        stacklevel=4,
    )
    return BASE_MODEL
