"""Resume a run: find it, check that it is the same training, rewind it to its newest checkpoint."""

import dataclasses
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
#: Fields of `RunInfo` whose change is reported, because the numbers may differ slightly.
REPORTED_FIELDS = ("engine", "dtype", "host")


class Resumption(NamedTuple):
    """The run that `train` resumes or returns, with the checkpoint to resume from."""

    run: Run
    checkpoint: NewestCheckpoint
    changes: list[str]
    """Sentences on what has changed since the earlier part of the run."""
    is_complete: bool = False
    """True if `train` returns the run as it is."""


def find_run(
    name: str | None, resume: str | Path | None, run_info: RunInfo, locks: ExitStack
) -> Resumption | None:
    """Find, lock and check the run that `train(..., name=name, resume=resume)` means.

    | run                                    | resume="auto" | resume=path |
    | -------------------------------------- | ------------- | ----------- |
    | none                                   | new run       | error       |
    | another training                       | error         | error       |
    | finished, same training                | returned      | error       |
    | finished, and larger `max_steps` now   | resumed       | resumed     |
    | finished, and smaller `max_steps` now  | error         | error       |
    | unfinished, same training              | resumed       | resumed     |
    | unfinished, `max_steps` already passed | error         | error       |
    | finished, changed code of a reward     | error         | as above    |
    | unfinished, changed code of a reward   | resumed       | resumed     |
    | failed before its first checkpoint     | new run       | error       |
    | to be resumed, checkpoints damaged     | error         | error       |

    "Changed code" includes a changed state. All changes of a resumed run are reported. A finished
    run whose adapter is missing counts as unfinished, and gets the adapter of its last checkpoint.
    A run that failed before its first checkpoint is deleted if `name` is its name.

    Args:
        name: The name that was given to `train`.
        resume: None, "auto", or the path of a run, as given to `train`.
        run_info: The `RunInfo` that a new run would start with now.
        locks: Stack that holds the lock of the run until the caller closes it, so that no other
            process can resume the run meanwhile.

    Returns:
        The run and its checkpoint; None if a new run starts.

    Raises:
        FileNotFoundError: There is no run at that path.
        ValueError: The run cannot be resumed, with the reason.
    """
    root = Path(run_info.settings["run_root"]).expanduser()
    run = _requested_run(root, name, resume)
    if run is None:
        return None
    # Read before the run is locked: a locked run counts as running.
    status = run.status
    lock_run(run.path, locks)
    old_info = run.info
    # Through JSON, so that tuples become lists as in the file.
    new_info = json.loads(json.dumps(run_info.to_dict(), default=str))
    max_steps = new_info["settings"]["max_steps"]
    was_finished = run.status == "finished" and any(run.adapter_path.glob("*.safetensors"))
    may_be_returned = was_finished and resume == "auto"
    checkpoint = newest_checkpoint(run.path / "checkpoints")

    # A run that ended before its first checkpoint has nothing to resume, and would block its name.
    is_empty = not (checkpoint.path or checkpoint.skip_reasons or run.rows)
    if resume == "auto" and is_empty and status in ("failed", "interrupted", "crashed"):
        # Without `name`, the new run has another name.
        if name:
            shutil.rmtree(run.path)
        locks.close()
        return None

    # 1. Refuse the run if it was another training.
    may_change = {*CHANGEABLE_SETTINGS, *old_info["versions"], *REPORTED_FIELDS}
    changed_values = _changed_values(old_info, new_info)
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

    # 2. Return it, or resume it at its newest checkpoint.
    if may_be_returned and max_steps == old_info["settings"]["max_steps"]:
        return Resumption(run, checkpoint, [], is_complete=True)
    if checkpoint.path is None:
        reason = "; ".join(checkpoint.skip_reasons) or "none was written before the run ended"
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
    return Resumption(run, checkpoint, [*changed_values.values(), *reward_changes, *skipped])


def lock_run(folder: Path, locks: ExitStack) -> None:
    """Lock the folder of a run until `locks` is closed.

    Raises:
        ValueError: Another process trains the run.
        PermissionError: The lock file belongs to another user, or is read-only.
    """
    try:
        locks.enter_context(holding_lock(folder))
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
        # If several runs started in the same second, the last name is taken.
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
    reported = {field: info[field] for field in REPORTED_FIELDS if field in info}
    # A list, because the order of the rewards matters too.
    rewards = [(reward["name"], reward["weight"]) for reward in info["rewards"]]
    # The setting `dtype` may be "auto", so the dtype of `RunInfo` replaces it.
    return {**info["settings"], **task, "rewards": rewards, **info["versions"], **reported}


def _changes_in_rewards(old_info: Mapping[str, Any], new_info: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each reward whose code or state is not that of the earlier run."""
    sentences = []
    # Another number of rewards is reported by `_changed_values`.
    for old, new in zip(old_info["rewards"], new_info["rewards"], strict=False):
        difference = difference_in_words(old, new)
        if difference:
            sentences.append(f"the reward {old['name']!r} has changed: {difference}")
    return sentences


def resumed_run_info(resumption: Resumption, run_info: RunInfo) -> RunInfo:
    """Warn of changes, and return the `RunInfo` of the resumed run.

    Args:
        resumption: The run to resume.
        run_info: The `RunInfo` that a new run would start with now.
    """
    run = resumption.run
    old_info = run.info
    step = resumption.checkpoint.step
    if resumption.changes:
        warn_user(f"Resuming {run.name!r} at step {step}: {'; '.join(resumption.changes)}.")
    return dataclasses.replace(
        run_info,
        started=old_info["started"],
        reference=old_info.get("reference", BASE_REFERENCE),
        resumed=[*old_info.get("resumed", ()), {"step": step, "changed": resumption.changes}],
    )


def rewind(resumption: Resumption) -> None:
    """Delete the rows and completions after the checkpoint of a run.

    A comparison and damaged checkpoints are set aside. If the rewind itself is interrupted, calling
    it again completes it.
    """
    run = resumption.run
    step = resumption.checkpoint.step
    # The steps after the checkpoint are trained again, so their rows would be there twice.
    write_json_lines(run.path / "metrics.jsonl", [row for row in run.rows if row["step"] <= step])
    for recorded_step in run.steps:
        if recorded_step > step:
            run.completions_file(recorded_step).unlink()
    # A comparison belongs to the earlier adapter, not to the one that the run will have.
    comparison = run.path / "comparison"
    if comparison.exists():
        put_in_place(comparison, run.path / f"comparison-step-{step}")
    set_aside_damaged(run.path / "checkpoints", resumption.checkpoint)
