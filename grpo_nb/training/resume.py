"""Which run to go on with or to give back, whether it is the same training, and going back to its newest checkpoint."""

import contextlib
import dataclasses
import json
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from grpo_nb.config.planning import replacing
from grpo_nb.config.settings import Settings
from grpo_nb.core.files import free_path, put_in_place, write_text
from grpo_nb.core.locks import LOCK_FILE, FolderLockedError, locked
from grpo_nb.runs.checkpoints import NewestCheckpoint, best_adapters, clear_away, newest_checkpoint
from grpo_nb.runs.run_folder import (
    Run,
    completions_step,
    next_sequence,
    open_run,
    seconds_since_written,
)
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.scoring.record import differences

# What the next step does not depend on, or only in how long there are next steps.
MAY_CHANGE = ("max_steps", "num_train_epochs", "save_steps", "holdout_every", "holdout_questions", "keep_adapter",
              "stop_on_alert", "run_root", "gpu_memory_utilization")  # fmt: skip

# A run gets its folder and run.json in milliseconds; a busy network drive takes longer.
_SECONDS_TO_START = 30.0


class Resumption(NamedTuple):
    """A run to go on with."""

    run: Run
    checkpoint: NewestCheckpoint
    changed: list[str]
    """What is not as it was, in words."""
    is_over: bool = False
    """It is finished and has its adapter: there is nothing to go on with, and it is given back."""


def find_run(
    settings: Settings,
    name: str | None,
    resume: str | Path | None,
    info: RunInfo,
    locks: ExitStack,
) -> Resumption | None:
    """Return the run that `train(..., name=name, resume=resume)` means, or None if it begins a new one.

    Args:
        settings, name, resume: Given to `train`.
        info: Of a new run that would start now.
        locks: Holds the lock of the run that was found, until the caller closes it: nobody else can take the run up
            between the moment when it is found and its end.

    Raises:
        FileNotFoundError: The run that was named does not exist.
        ValueError: It cannot be resumed, with the reason.
    """
    if resume is None:
        return None
    root, is_auto = Path(settings.run_root), resume == "auto"
    run = _newest_run(root, name) if is_auto else _named_run(root, Path(resume))
    if run is None:
        return None
    # Before the lock, whose file makes the folder look as if it had just been written.
    _require_silence(run, is_auto)
    hold(run.path, locks)
    before, status, checkpoint = run.info, run.status, newest_checkpoint(run.path / "checkpoints")
    now = json.loads(json.dumps(info.to_dict(), default=str))  # which has lists for tuples
    if status == "running":  # of an earlier version, or on a drive without locks
        raise ValueError(_being_trained(run.name, f"process {before['pid']} of this machine"))
    other = _other_training(before, now)
    pairs = list(zip(before["rewards"], now["rewards"], strict=False))
    rewards = [
        f"the reward {old['name']!r} has changed: {said}"
        for old, new in pairs
        if (said := differences(old, new))
    ]
    if is_auto and status == "finished":
        is_only_state = all(old["hash"] == new["hash"] for old, new in pairs)
        if rewards and is_only_state and not other and name is None:
            # Of other settings or data one knows; the state of an object changes unseen, by each call that it counts.
            warnings.warn(
                f"{run.name!r} is finished, but {'; '.join(rewards)}: a new run begins. gn.open_run({run.name!r}) reads "
                "the finished one. A reward that remembers something from call to call needs state_dict() and "
                "load_state_dict(): what they hold does not count as a change.",
                stacklevel=3,
            )
        other += rewards
        if other and name is None:  # the newest is another training
            return None
    if other:
        raise ValueError(
            f"the run {run.name!r} was another training: {'; '.join(other)}. Go on as it began, or give a new run another name."
        )
    is_whole = settings.max_steps == before["settings"]["max_steps"] and any(
        run.adapter_path.glob("*.safetensors")
    )
    if is_auto and status == "finished" and is_whole:
        return Resumption(run, checkpoint, [], is_over=True)
    if checkpoint.path is None:
        return _without_checkpoint(run, checkpoint, is_auto)
    if settings.max_steps < checkpoint.step or (
        status == "finished" and settings.max_steps == checkpoint.step
    ):
        raise ValueError(
            f"the run {run.name!r} has done {checkpoint.step} steps already, and max_steps = {settings.max_steps}: "
            f"settings = settings.replace(max_steps={checkpoint.step * 2}) trains it further, resume=None begins a new run."
        )
    changed = _differences(
        before["settings"], now["settings"], (key for key in MAY_CHANGE if key != "run_root")
    )
    changed += rewards + _differences(before["versions"], now["versions"], before["versions"])
    changed += _differences(before, now, ("rollout", "number_type", "host"))
    changed += [f"passed over {text}" for text in checkpoint.passed_over]
    return Resumption(run, checkpoint, changed)


def hold(folder: Path, locks: ExitStack) -> None:
    """Lock the folder of a run until `locks` is closed.

    Raises:
        ValueError: Another process trains the run; says which.
    """
    try:
        locks.enter_context(locked(folder))
    except FolderLockedError as error:
        raise ValueError(_being_trained(folder.name, error.holder_sentence)) from None


@contextlib.contextmanager
def starting(
    root: Path, name: str | None, resume: str | Path | None, sequence: int
) -> Iterator[None]:
    """Hold the lock of the folder of all runs while a new run gets its folder and its `run.json`.

    Between `find_run` and this moment the trainer is built, which takes seconds. With `resume="auto"` two processes could
    both find no run in them, and both begin one.

    Args:
        root: Folder of all runs.
        name, resume: Given to `train`.
        sequence: From `next_sequence`, before `find_run` looked.

    Raises:
        ValueError: With `resume="auto"`, another process has begun a run since then that this call would have found.
    """
    root.mkdir(parents=True, exist_ok=True)
    with locked(root, _SECONDS_TO_START):
        is_begun = next_sequence(root) != sequence
        if name is not None:
            is_begun = (root / name / "run.json").is_file()
        if resume == "auto" and is_begun:
            raise ValueError(
                f"another process has begun {'a run' if name is None else f'the run {name!r}'} in {str(root)!r} while this "
                "one was getting ready. Two processes would train the same. Run this cell again when that one has ended; "
                "resume=None begins another run beside it."
            )
        yield


def _being_trained(name: str, holder: str) -> str:
    return (
        f"the run {name!r} is being trained right now by {holder}. Two processes would write over each other's steps. Wait "
        "until that one has ended, or end it, and run this cell again; resume=None begins another run beside it."
    )


def _newest_run(root: Path, name: str | None) -> Run | None:
    ordered = []
    for file in sorted(root.glob("*/run.json")):
        run = Run(file.parent)
        if name not in (None, run.name):
            continue
        try:
            ordered.append((run.order, file.stat().st_mtime, run))
        except (OSError, ValueError) as error:
            if name is not None:
                raise
            warnings.warn(f"{run.name!r} cannot be the run to go on with: {error}", stacklevel=4)
    if ordered:
        *_, newest = max(ordered, key=lambda entry: entry[:2])
        return open_run(newest.path)
    folder = root / (name or "")
    if name is not None and folder.is_dir() and all(map(_is_first_file, folder.iterdir())):
        # It was killed before it had written its first file, and nothing else is there; or it begins at this moment.
        with ExitStack() as locks:
            locks.enter_context(locked(root, _SECONDS_TO_START))
            hold(folder, locks)
            shutil.rmtree(folder)
    return None


def _is_first_file(file: Path) -> bool:
    return file.name == LOCK_FILE or file.name.startswith(".run.json")


def _named_run(root: Path, path: Path) -> Run:
    return open_run(path if (path / "run.json").is_file() else root / path)


def _require_silence(run: Run, is_auto: bool) -> None:
    # Another machine cannot be asked: silence tells that it is gone.
    if is_auto and run.status == "unknown" and seconds_since_written(run.path) < 120:
        told = f"the run {run.name!r} was written a moment ago by another machine ({run.info['host']!r}): it may be training"
        raise ValueError(
            f"{told}. Try again in two minutes or, if you know that it is gone: resume={run.name!r}."
        )


def _without_checkpoint(run: Run, checkpoint: NewestCheckpoint, is_auto: bool) -> None:
    why = "; ".join(checkpoint.passed_over) or "none was written yet when it ended"
    # Any file may be missing, as on a drive that was cut off; what was trained shows in the others.
    if (
        not is_auto
        or run.rows
        or run.steps
        or run.adapter_path.is_dir()
        or run.checkpoint_step is not None
    ):
        raise ValueError(
            f"the run {run.name!r} has no complete checkpoint to go on from ({why}). For a new run: resume=None, another name."
        )
    aside = run.path.rename(free_path(run.path, ".unfinished-", 1)).name
    warnings.warn(
        f"{run.name!r} ended before its first checkpoint ({why}) and is in {aside!r}: a new run begins.",
        stacklevel=4,
    )


def _other_training(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes two trainings different ones, each in words; for settings with the line that takes them back."""
    old, new = before["settings"], now["settings"]
    back = {key: old[key] for key in old if key not in MAY_CHANGE and old[key] != new.get(key)}
    found = [*_differences(old, new, back), replacing(back)] if back else []
    found += _differences(
        before["task"], now["task"], ("fingerprint", "format", "name", "train", "holdout")
    )
    was, are = (
        {reward["name"]: reward["weight"] for reward in info["rewards"]} for info in (before, now)
    )
    if list(was.items()) != list(are.items()):  # their order counts, too
        found.append(f"the rewards and their weights were {was}, are {are}")
    return found


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def continued_info(found: Resumption, info: RunInfo) -> RunInfo:
    """Return the `RunInfo` of a resumed run from that of a new one; warn of what has changed."""
    run, step, before = found.run, found.checkpoint.step, found.run.info
    if found.changed:
        warnings.warn(
            f"Resuming {run.name!r} at step {step}: {'; '.join(found.changed)}.", stacklevel=3
        )
    entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "step": step, "changed": found.changed}
    kept = {key: before[key] for key in ("started", "reference", "sequence") if key in before}
    return dataclasses.replace(info, **kept, resumed=[*before.get("resumed", ()), entry])


def go_back(found: Resumption) -> Path:
    """Take the run's folder, which is returned, to its checkpoint: each step is there once. Can be cut short and done again."""
    run, step = found.run, found.checkpoint.step
    kept = [row for row in run.rows if row["step"] <= step]
    write_text(run.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
    for file in (run.path / "completions").glob("step_*"):
        if (completions_step(file) or 0) > step:
            file.unlink()
    # A step that is done again can end otherwise on a GPU, and its adapter of before must not pass for the new one.
    for made_at, folder in best_adapters(run.path):
        if made_at > step:
            shutil.rmtree(folder)
    for left in run.path.rglob(".*.partial-*"):  # what was half written when it was killed
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    # What was measured and exported belongs to the adapter of then, not to the one there will be.
    for old in (run.path / "comparison", run.path / "exports.json"):
        if old.exists():
            put_in_place(old, old.with_name(f"{old.stem}-step-{step}{old.suffix}"))
    clear_away(run.path / "checkpoints", found.checkpoint)
    return run.path
