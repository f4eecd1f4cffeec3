"""Resume a run: find it, check that it is the same training, rewind it to its newest checkpoint."""

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from grpo_nb.core.files import put_in_place
from grpo_nb.core.locks import FolderLockedError, holding_lock
from grpo_nb.core.problems import warn_user
from grpo_nb.runs.checkpoints import NewestCheckpoint, newest_checkpoint, set_aside_damaged
from grpo_nb.runs.rows import write_json_lines
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.scoring.record import difference_in_words
from grpo_nb.training.kl_reference import BASE_REFERENCE

#: Settings that may change when a run is resumed. They do not change how a step trains, except that
#: the schedule of the learning rate depends on `max_steps`. Each change is reported.
CHANGEABLE_SETTINGS = (
    "max_steps",
    "save_steps",
    "holdout_every",
    "holdout_questions",
    "stop_on_alert",
    "gpu_memory_utilization",
    "run_root",
)
#: Parts of a task that must not change when a run is resumed, each with its description.
FIXED_TASK_PARTS = {
    "fingerprint": "hash of rows and tools",
    "format": "format of the answers",
    "name": "name of the task",
    "train": "number of training rows",
    "holdout": "number of held-out rows",
    "is_ordered": "is_ordered of the task",
}
#: Fields of `RunInfo` that may change. The change is reported, because the numbers may differ
#: slightly.
CHANGEABLE_FIELDS = ("engine", "dtype", "host")


class FoundRun(NamedTuple):
    """A run that `train` resumes or returns, with its newest checkpoint."""

    run: Run
    checkpoint: NewestCheckpoint
    changes: list[str]
    """Sentences on what has changed since the earlier part of the run."""
    needs_no_training: bool = False
    """True if `train` returns the finished run as it is."""


def claim_run(
    name: str | None, resume: str | Path | None, run_info: RunInfo, held_locks: ExitStack
) -> FoundRun | None:
    """Find, lock and check the run that `train(..., name=name, resume=resume)` means.

    | run                                     | resume="auto" | resume=path  |
    | --------------------------------------- | ------------- | ------------ |
    | none                                    | new run       | error        |
    | another training                        | error         | error        |
    | failed before its first checkpoint      | new run       | error        |
    | to be resumed, checkpoints damaged      | error         | error        |
    | unfinished, same training               | resumed       | resumed      |
    | unfinished, changed code of a reward    | resumed       | resumed      |
    | unfinished, `max_steps` already passed  | error         | error        |
    | finished, same training                 | returned      | no step left |
    | finished, and larger `max_steps` now    | resumed       | resumed      |
    | finished, and smaller `max_steps` now   | error         | error        |
    | finished, changed code of a reward      | error         | no step left |
    | the same, and larger `max_steps` now    | error         | resumed      |

    "No step left" is an error too. "Changed code" includes a changed state. All changes of a
    resumed run are reported. A finished run whose adapter is missing counts as unfinished, and gets
    the adapter of its last checkpoint.
    A run of this machine that failed before its first checkpoint is given up: it is deleted if
    `name` is its name, and otherwise left as it is.

    Args:
        name: The name that was given to `train`.
        resume: None, "auto", or the path of a run, as given to `train`.
        run_info: The `RunInfo` that a new run would start with now.
        held_locks: Stack that holds the lock of the run until the caller closes it, so that no
            other process can resume the run meanwhile.

    Returns:
        The run and its checkpoint; None if a new run starts.

    Raises:
        FileNotFoundError: There is no run at that path.
        ValueError: The run cannot be resumed, with the reason.
    """
    root = Path(run_info["settings"]["run_root"]).expanduser()
    run = _requested_run(root, name, resume)
    if run is None:
        return None
    # Read now, because with the lock of this process a crashed run would look like a running one.
    status_before_lock = run.status
    lock_run(run.path, held_locks)
    old_info = run.info
    # Through JSON, so that tuples become lists as in the file.
    new_info = json.loads(json.dumps(run_info, default=str))
    max_steps = new_info["settings"]["max_steps"]
    was_finished = old_info["status"] == "finished" and any(run.adapter_path.glob("*.safetensors"))
    may_be_returned = was_finished and resume == "auto"
    checkpoint = newest_checkpoint(run.path / "checkpoints")

    # 1. Give the run up if it ended before its first checkpoint: nothing of it can be resumed.
    is_empty = not (checkpoint.path or checkpoint.skip_reasons or run.rows)
    if resume == "auto" and is_empty and status_before_lock in ("failed", "interrupted", "crashed"):
        # Only a folder with the requested name is in the way of the new run.
        if name:
            shutil.rmtree(run.path)
        held_locks.close()
        return None

    # 2. Refuse the run if it was another training.
    changed_values = _changed_values(old_info, new_info)
    may_change = {*CHANGEABLE_SETTINGS, *CHANGEABLE_FIELDS, *old_info["versions"]}
    blocking_changes = [text for name, text in changed_values.items() if name not in may_change]
    reward_changes = _changes_in_rewards(old_info, new_info)
    # "auto" must not return or extend a finished run for other rewards, because the user did not
    # choose that run. With a path, the user did.
    if may_be_returned:
        blocking_changes += reward_changes
    if blocking_changes:
        raise ValueError(
            f"the run {run.name!r} was another training: {'; '.join(blocking_changes)}. To start a "
            "new run, pass resume=None and another name."
        )

    # 3. Return it, or resume it at its newest checkpoint.
    if may_be_returned and max_steps == old_info["settings"]["max_steps"]:
        return FoundRun(run, checkpoint, [], needs_no_training=True)
    if checkpoint.path is None:
        reason = "; ".join(checkpoint.skip_reasons) or "there is none"
        raise ValueError(
            f"the run {run.name!r} has no complete checkpoint to resume from ({reason}). To start "
            "a new run, pass resume=None and another name."
        )
    # A finished run needs at least one more step. A run that was lost after its last step only
    # needs its adapter, which `train` writes.
    needed_steps = checkpoint.step + 1 if was_finished else checkpoint.step
    if max_steps < needed_steps:
        raise ValueError(
            f"the run {run.name!r} has already done {checkpoint.step} steps, and max_steps = "
            f"{max_steps}. To train it further, write settings = "
            f"settings.replace(max_steps={checkpoint.step * 2}). To start a new run, pass "
            "resume=None and another name."
        )
    skipped = [f"checkpoint passed over: {reason}" for reason in checkpoint.skip_reasons]
    return FoundRun(run, checkpoint, [*changed_values.values(), *reward_changes, *skipped])


def lock_run(folder: Path, held_locks: ExitStack) -> None:
    """Lock the folder of a run until `held_locks` is closed.

    Raises:
        ValueError: Another process trains the run.
        PermissionError: The lock file belongs to another user, or is read-only.
    """
    try:
        held_locks.enter_context(holding_lock(folder))
    except FolderLockedError:
        raise ValueError(
            f"the run {folder.name!r} is being trained right now by another process or thread. Two "
            "would overwrite each other's steps. Wait until that process has ended, or end it, and "
            "run this cell again. To start another run, pass resume=None and another name."
        ) from None


def _requested_run(root: Path, name: str | None, resume: str | Path | None) -> Run | None:
    """Return the run that `train(..., name=name, resume=resume)` names; None if there is none.

    Raises:
        ValueError: The run at the path has another name, or a `run.json` is damaged, so that the
            newest run is unknown.
    """
    if resume is None:
        return None
    if resume == "auto":
        # Of the other runs only `run.json` is read, so other damage to them does not matter.
        runs = [Run(file.parent) for file in root.glob(f"{name or '*'}/run.json")]
        if not runs:
            return None
        # `started` counts seconds. Of several runs of one second, the last name is taken.
        # `open_run` also refuses symbolic links, but only in this run.
        return open_run(max(runs, key=lambda run: (run.started, run.name)).path)
    run = open_run(resume)
    if name not in (None, run.name):
        raise ValueError(
            f"resume={str(resume)!r} is the run {run.name!r}, not {name!r}. Leave out name=, or "
            "pass resume=None to start a new run of that name."
        )
    return run


def _changed_values(old_info: Mapping[str, Any], new_info: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence for each value that the old run recorded and that has changed since.

    The keys are the names of the values.
    """
    new_values = _compared_values(new_info)
    changes = {
        name: f"{name} was {value!r}, is {new_values.get(name)!r}"
        for name, value in _compared_values(old_info).items()
        if value != new_values.get(name)
    }
    # The same folder may hold other weights now. A model without files has no hash, so only two
    # known hashes are compared.
    known_hashes = {info.get("base_weights_hash") for info in (old_info, new_info)} - {None}
    if len(known_hashes) > 1:
        changes["base_weights_hash"] = "the weights of the base model have changed"
    return changes


def _compared_values(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a `run.json` that are compared when the run is resumed."""
    task = {
        description: info["task"][part]
        for part, description in FIXED_TASK_PARTS.items()
        if part in info["task"]
    }
    changeable = {field: info[field] for field in CHANGEABLE_FIELDS if field in info}
    # A list, because the order of the rewards matters too.
    rewards = [(reward["name"], reward["weight"]) for reward in info["rewards"]]
    # `changeable` comes last: its `dtype`, which was really used, replaces the setting.
    return {**info["settings"], **task, "rewards": rewards, **info["versions"], **changeable}


def _changes_in_rewards(old_info: Mapping[str, Any], new_info: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each reward whose code or state is not that of the earlier run."""
    sentences = []
    # Another number of rewards is reported by `_changed_values`.
    for old, new in zip(old_info["rewards"], new_info["rewards"], strict=False):
        difference = difference_in_words(old, new)
        if difference:
            sentences.append(f"the reward {old['name']!r} has changed: {difference}")
    return sentences


def resumed_run_info(found: FoundRun, run_info: RunInfo) -> RunInfo:
    """Warn of changes, and return the `RunInfo` of the resumed run.

    Args:
        found: The run to resume.
        run_info: The `RunInfo` that a new run would start with now.
    """
    run = found.run
    old_info = run.info
    step = found.checkpoint.step
    if found.changes:
        warn_user(f"Resuming {run.name!r} at step {step}: {'; '.join(found.changes)}.")
    # These describe what the folder has already: its start, adapter and held-out scores.
    kept = {"started", "adapter_step", "grader_description"} & old_info.keys()
    return {
        **run_info,
        **{name: old_info[name] for name in kept},
        "reference": old_info.get("reference", BASE_REFERENCE),
        "resumed": [*old_info.get("resumed", ()), {"step": step, "changed": found.changes}],
    }


def rewind(found: FoundRun) -> None:
    """Delete the rows and completions after the checkpoint of a run.

    A comparison and damaged checkpoints are set aside. If the rewind itself is interrupted, calling
    it again completes it.
    """
    run = found.run
    step = found.checkpoint.step
    # The steps after the checkpoint are trained again, so their rows would be there twice.
    write_json_lines(run.path / "metrics.jsonl", [row for row in run.rows if row["step"] <= step])
    for recorded_step in run.steps:
        if recorded_step > step:
            run.completions_file(recorded_step).unlink()
    # A comparison belongs to the earlier adapter, not to the one that the run will have.
    comparison = run.path / "comparison"
    if comparison.exists():
        put_in_place(comparison, run.path / f"comparison-step-{step}")
    set_aside_damaged(run.path / "checkpoints", found.checkpoint)
