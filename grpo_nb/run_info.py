"""What is known of a run before its first step: that its rewards work, and everything that `run.json` says."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_nb.config import Settings
from grpo_nb.data import Task
from grpo_nb.environment import find_gpu, package_versions, total_memory_gib
from grpo_nb.liveness import process_identity
from grpo_nb.reward_calls import call_reward, make_batch, to_floats
from grpo_nb.reward_identity import hash_of_parts, parts_of
from grpo_nb.rewards.base import weights_by_name
from grpo_nb.rewards.compose import adaptive_states

RewardFunction = Callable[..., Sequence[float | None]]


def checked_rewards(rewards: list[RewardFunction], task: Task, settings: Settings) -> dict[str, float]:
    """Return weight by name, after calling each reward once on the first row: what is missing shows before training.

    The call is that of trl 1.15 at step 0, and what comes back is read as TRL reads it.
    """
    from transformers import TrainerState

    if not rewards:
        raise ValueError("rewards is empty: without a reward there is nothing to learn from.")
    weights = weights_by_name(rewards)
    row = task.train[0]
    text = task.format.render("reasoning", row["answer"])
    state = TrainerState(max_steps=settings.max_steps)
    state.is_trial = True  # not one of TRL's: for rewards that learn from every training call
    for name, reward in zip(weights, rewards, strict=True):
        messages = [{"role": "assistant", "content": text}]
        try:
            scores = call_reward(reward, make_batch([messages], row, completion_ids=[[0]], trainer_state=state))
        except Exception as error:
            error.add_note(f"This came from the reward {name!r}, tried on the first training row before any training.")
            raise
        if len(scores) != 1:
            raise ValueError(f"the reward {name!r} returned {scores!r} for one completion: return a list of one float.")
        try:
            to_floats(scores, 1)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"the reward {name!r} returned {scores[0]!r:.200}, a {type(scores[0]).__name__}, not a float."
            ) from error
    return weights


def source_of(reward: RewardFunction) -> str:
    """Return the source text of a reward: of the function, of what a `functools.partial` wraps, or of the object's class."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    target = reward if inspect.isroutine(reward) else type(reward)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        return "source not available (defined interactively without a file)"


def run_info(
    settings: Settings, task: Task, rewards: list[RewardFunction], weights: dict[str, float], obstacle: str | None
) -> dict[str, Any]:
    """Return what `run.json` says of a run that starts now: `obstacle` is why prompts are not shared, if they are not."""
    gpu = find_gpu()
    return {
        "status": "running",
        **process_identity(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": settings.to_dict(),
        "task": {
            "name": task.name,
            "format": dataclasses.asdict(task.format),
            "train": len(task.train),
            "holdout": len(task.holdout),
            "dropped": dict(task.dropped),
            "fingerprint": task.fingerprint,
        },
        "rewards": [
            {"name": name, "weight": weight, **_described(reward)}
            for (name, weight), reward in zip(weights.items(), rewards, strict=True)
        ],
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "memory_gib": round(total_memory_gib(), 1),
            "gpu": dataclasses.asdict(gpu) if gpu else None,
        },
        "versions": package_versions(),
        "rollout": f"stock ({obstacle})" if obstacle else "shared prompts",
    }


def _described(reward: RewardFunction) -> dict[str, Any]:
    source, parts = source_of(reward), parts_of(reward)
    return {
        "call": repr(reward),
        "source": source,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "identity": hash_of_parts(parts),
        "parts": parts,
        "fades": bool(adaptive_states([reward])),
    }
