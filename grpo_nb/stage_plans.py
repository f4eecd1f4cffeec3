"""What stages are to do, checked before the first is trained, and compared with what they were when a staged run goes on."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import Settings
from grpo_nb.data import Task
from grpo_nb.resume import MAY_CHANGE
from grpo_nb.reward_identity import describe_difference, differing_parts, may_be_memory, parts_of
from grpo_nb.rewards.base import weights_by_name
from grpo_nb.run_info import checked_rewards, source_of

if TYPE_CHECKING:
    from grpo_nb.stages import Stage

# What load_model has made of the model cannot change between stages.
_OF_THE_MODEL = ("model", "load_in_4bit", "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")


def settings_of(stages: Sequence[Stage], settings: Settings | None) -> list[Settings]:
    """Return the settings of each stage, with its steps.

    Raises:
        ValueError: Stages that cannot be trained one after the other on one model.
    """
    if not stages:
        raise ValueError("stages is empty: give at least one gn.Stage(name=..., rewards=[...], steps=...).")
    made: list[Settings] = []
    for stage in stages:
        own = stage.settings or settings
        if own is None:
            raise ValueError(f"the stage {stage.name!r} has no settings: give them to it, or to train_stages for all.")
        made.append(own.replace(max_steps=stage.steps) if stage.steps is not None else own)
        for field in _OF_THE_MODEL:
            if getattr(made[-1], field) != getattr(made[0], field):
                raise ValueError(
                    f"the stage {stage.name!r} has {field} = {getattr(made[-1], field)!r}, the first one "
                    f"{getattr(made[0], field)!r}: the stages train one adapter on one model, which is loaded already."
                )
    names = [stage.name for stage in stages]
    for stage_name in names:
        if names.count(stage_name) > 1:
            raise ValueError(f"two stages are named {stage_name!r}: give each a name of its own.")
        if not stage_name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in stage_name):
            raise ValueError(f"stage name {stage_name!r} may hold letters, digits, '.', '_' and '-' only.")
    return made


def plan_of(stages: Sequence[Stage], settings: Sequence[Settings], task: Task, reference: str) -> dict[str, Any]:
    """Return what stages.json says of these stages.

    Raises:
        ValueError: A stage has no rewards, or two of the same name.
    """
    entries = []
    for number, (stage, own) in enumerate(zip(stages, settings, strict=True), 1):
        weights = weights_by_name(stage.rewards)
        if not weights:
            raise ValueError(f"the stage {stage.name!r} has no rewards.")
        entries.append(
            {
                "name": stage.name,
                "folder": f"{number:02d}-{stage.name}",
                "steps": own.max_steps,
                "rewards": weights,
                "code": [_code_hash(reward) for reward in stage.rewards],
                "parts": [parts_of(reward) for reward in stage.rewards],
                "settings": own.to_dict(),
                "task": _task_mark(stage.task),
            }
        )
    # Through JSON, so that a plan just made equals the same one read back.
    return json.loads(json.dumps({"reference": reference, "task": task.fingerprint, "stages": entries}, default=str))


def _task_mark(task: Task | Callable[..., Task] | None) -> str | None:
    if task is None:
        return None
    return task.fingerprint if isinstance(task, Task) else _code_hash(task)


def _code_hash(reward: Callable[..., Any]) -> str:
    return hashlib.sha256(source_of(reward).encode()).hexdigest()


def try_rewards(stage: Stage, task: Task, settings: Settings) -> None:
    """Call each reward of a stage once: a mistake in the third stage's is found before the first is trained."""
    try:
        checked_rewards(list(stage.rewards), stage.task if isinstance(stage.task, Task) else task, settings)
    except Exception as error:
        error.add_note(f"This was a reward of the stage {stage.name!r}; no stage was begun.")
        raise


def require_same_plan(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Compare the stages with those that the staged run was begun with.

    Raises:
        ValueError: They are not the same, with what differs.
    """
    for key in ("reference", "task"):
        if before[key] != now[key]:
            raise ValueError(
                f"the staged run {folder.name!r} has another {key}: {before[key]!r}, not {now[key]!r}. Go on with the same, or "
                "choose another name."
            )
    if [s["name"] for s in before["stages"]] != [s["name"] for s in now["stages"]]:
        raise ValueError(
            f"the staged run {folder.name!r} has the stages {[s['name'] for s in before['stages']]}, not "
            f"{[s['name'] for s in now['stages']]}. Go on with the same, or choose another name."
        )
    for old, new in zip(before["stages"], now["stages"], strict=True):
        old_settings, new_settings = old["settings"], new["settings"]
        # What a run may change when it is resumed, a stage may; but its length is part of the plan.
        fixed = [key for key in new_settings if key not in MAY_CHANGE or key == "max_steps"]
        changed = [key for key in fixed if old_settings.get(key) != new_settings[key]]
        changed += ["rewards"] if (old["rewards"], old["code"]) != (new["rewards"], new["code"]) else []
        changed += ["task"] if old["task"] != new["task"] else []
        if "rewards" not in changed and "parts" in old:
            changed += _other_parameters(new, old["parts"])
        if changed:
            raise ValueError(
                f"the stage {new['name']!r} of {folder.name!r} was planned with other {', '.join(changed)}: going on would mix "
                "two trainings under one name. Go on with the same, or choose another name."
            )


def _other_parameters(stage: dict[str, Any], before: Sequence[dict[str, str]]) -> list[str]:
    """Name the rewards of a stage that have other parameters; warn of what may be but their memory, such as a cache."""
    certain, perhaps = [], []
    for name, old, new in zip(stage["rewards"], before, stage["parts"], strict=True):
        differing = differing_parts(old, new)
        if differing:
            is_memory = all(map(may_be_memory, differing))
            (perhaps if is_memory else certain).append(f"the reward {name!r}: {describe_difference(old, new)}")
    if perhaps and not certain:
        warnings.warn(
            f"The stage {stage['name']!r} goes on with values that were others when it was planned: {'; '.join(perhaps)}. "
            "If they are what a reward keeps between its calls, nothing is wrong.",
            stacklevel=4,
        )
    return [f"parameters of {said}" for said in certain]
