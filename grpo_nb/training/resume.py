"""Which run to go on with or to give back, whether it is the same training, and going back to its newest checkpoint."""

from __future__ import annotations

import json
import shutil
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.files import free_path, put_in_place, write_bytes
from grpo_nb.rewards import record
from grpo_nb.runs.checkpoints import NewestCheckpoint, clear_away, newest_checkpoint
from grpo_nb.runs.run import Run, open_run, seconds_since_written
from grpo_nb.settings.settings import Settings

# What the next step does not depend on, or only in how long there are next steps.
MAY_CHANGE = ("max_steps", "save_steps", "holdout_every", "holdout_questions", "keep", "stop_on_alert",
             "run_root", "gpu_memory_utilization")  # fmt: skip
_LEAST_SILENCE = 120.0
# Files of completions looked at: a crash damages the newest, and on a network drive each of them has to be fetched.
_NEWEST = 100
_PARQUET = b"PAR1"


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A run to go on with."""

    run: Run
    checkpoint: NewestCheckpoint
    status: str
    """How the run stood."""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.checkpoint.step

    @property
    def is_over(self) -> bool:
        """It is finished and has its adapter: there is nothing to go on with, and it is given back."""
        return self.checkpoint.path is None


def find_run(
    settings: Settings, name: str | None, resume: str | Path | None, info: Mapping[str, Any]
) -> Resumption | None:
    """Return the run that `train(..., name=name, resume=resume)` means, or None if it begins a new one.

    Args:
        settings, name, resume: Given to `train`.
        info: What `run.json` would say of a new run started now.

    Raises:
        FileNotFoundError: The run that was named does not exist.
        ValueError: It cannot be resumed, with the reason.
    """
    if resume is None:
        return None
    root, is_named = Path(settings.run_root), resume != "auto"
    run = open_run(named_folder(root, name, resume, "run.json")) if is_named else _newest_run(root, name)
    if run is None:
        if name is not None:
            remove_unbegun(root / name, "run.json")
        return None
    status = run.status
    if status == "finished" and not is_named:
        try:
            _require_same_finished(run, settings, info)
        except ValueError:
            if name is None:  # the newest is another training
                return None
            raise
        if settings.max_steps == run.settings.max_steps and (run.adapter_path / "adapter_model.safetensors").is_file():
            done = NewestCheckpoint(path=None, step=settings.max_steps, passed_over=())
            return Resumption(run=run, checkpoint=done, status=status)
    _require_nobody_else(run, status, is_named)
    checkpoint = newest_checkpoint(run.path / "checkpoints")
    if checkpoint.path is None:
        return _without_checkpoint(run, checkpoint, is_named, name)
    if status == "finished" and settings.max_steps <= checkpoint.step:
        raise ValueError(
            f"the run {run.name!r} is finished: it has done its {checkpoint.step} steps, and max_steps = "
            f"{settings.max_steps}. Write settings.replace(max_steps={checkpoint.step * 2}) to train it further, or "
            "resume=None for a new run."
        )
    return Resumption(run=run, checkpoint=checkpoint, status=status)


def _newest_run(root: Path, name: str | None) -> Run | None:
    folders = [file.parent for file in root.glob("*/run.json")]
    runs = [Run(folder) for folder in folders if name is None or folder.name == name]
    newest = max(runs, key=lambda run: (run.started, (run.path / "run.json").stat().st_mtime), default=None)
    return newest and open_run(newest.path)


def remove_unbegun(folder: Path, proof: str) -> None:
    """Make room where a run was killed before it had written the file `proof`, with nothing else there."""
    if folder.is_dir() and all(f.name.startswith(f".{proof}") for f in folder.iterdir()):
        shutil.rmtree(folder)


def make_room(folder: Path) -> Path:
    """Give a folder another name, which is returned: nothing that is in it is lost."""
    return folder.rename(free_path(folder, ".unfinished-", 1))


def named_folder(root: str | Path, name: str | None, resume: str | Path, proof: str) -> Path:
    """Return the folder that `resume` names, by its path or by its name under the root, where it has the file `proof`.

    Raises:
        ValueError: `name` is that of another.
    """
    path = Path(resume)
    if not (path / proof).is_file() and (Path(root) / path / proof).is_file():
        path = Path(root) / path
    if name is not None and name != path.name:
        raise ValueError(f"resume = {str(resume)!r} names one run and name = {name!r} another: leave name out.")
    return path


def _require_nobody_else(run: Run, status: str, is_named: bool) -> None:
    if status == "running":
        raise ValueError(
            f"the run {run.name!r} is being trained right now by process {run.info['pid']} of this machine; two of them "
            "would write over each other. Wait, or end that process. For another run beside it: resume=None."
        )
    if status == "unknown" and not is_named:
        silence = seconds_since_written(run.path)
        steps = [row["step_time"] for row in run.rows[-20:] if "step_time" in row]
        patience = max(_LEAST_SILENCE, 10 * statistics.median(steps)) if steps else _LEAST_SILENCE
        if silence < patience:
            raise ValueError(
                f"the run {run.name!r} was written {silence:.0f} seconds ago by another machine ({run.info['host']!r}), "
                f"which may still be training it. Try again in {patience - silence:.0f} seconds or, if you know "
                f"that it is gone, write resume={run.name!r}."
            )


def _without_checkpoint(run: Run, checkpoint: NewestCheckpoint, is_named: bool, name: str | None) -> None:
    why = "; ".join(checkpoint.passed_over) or "none was written yet when it ended"
    # Any file may be missing, as on a drive that was cut off; what was trained shows in the others.
    if is_named or run.rows or run.steps or run.adapter_path.is_dir() or run.checkpoint_step is not None:
        raise ValueError(
            f"the run {run.name!r} has no complete checkpoint to go on from ({why}). It is left as it is; "
            "resume=None and another name begin a new run."
        )
    kept = "" if name is None else f" What it left is in {make_room(run.path).name!r}."
    warnings.warn(
        f"The run {run.name!r} ended before its first checkpoint ({why}): a new run begins.{kept}", stacklevel=4
    )


def _require_same_finished(run: Run, settings: Settings, info: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a finished run is another training than this: more strict than resuming in the code of rewards."""
    before, info = run.info, json.loads(json.dumps(info, default=str))
    _compare_settings(run, run.settings.max_steps, settings)
    _require_same_task(run, before["task"], info["task"])
    _require_same_rewards(run, before["rewards"], info["rewards"])
    for old, new in zip(before["rewards"], info["rewards"], strict=True):
        if old["hash"] != new["hash"]:  # what it uses may be its memory, and is told in a warning
            raise ValueError(
                f"the run {run.name!r} is finished, and its reward {old['name']!r} has changed since: "
                f"{record.differences(old, new)}. Begin a new run with another name."
            )


def continued_info(resumption: Resumption, settings: Settings, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `run.json` of a resumed run, after checking that it is the same training.

    Args:
        resumption: The run.
        settings: Those given now.
        info: What `run.json` would say of a new run started now.

    Raises:
        ValueError: Settings, data or rewards differ, with each difference.
    """
    before, info = resumption.run.info, json.loads(json.dumps(info, default=str))
    changed = _compare_settings(resumption.run, resumption.step, settings)
    _require_same_task(resumption.run, before["task"], info["task"])
    _require_same_rewards(resumption.run, before["rewards"], info["rewards"])
    for old, new in zip(before["rewards"], info["rewards"], strict=True):
        if difference := record.differences(old, new):
            changed.append(f"the reward {old['name']!r} has changed: {difference}")
    for package, version in before["versions"].items():
        if version != info["versions"].get(package):
            changed.append(f"{package} {version} is now {info['versions'].get(package)}")
    if before["rollout"].split(" (")[0] != info["rollout"].split(" (")[0]:
        changed.append(f"the rollout was {before['rollout']}, is {info['rollout']}")
    if before["number_type"] != info["number_type"]:
        changed.append(f"the number type was {before['number_type']}, is {info['number_type']}")
    if before["machine"]["gpu"] != info["machine"]["gpu"]:
        changed.append("the device is another one")
    if before["host"] != info["host"]:
        changed.append(f"the machine was {before['host']!r}, is {info['host']!r}")
    entry = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "step": resumption.step,
        "status_before": resumption.status,
        "rows_dropped": sum(row["step"] > resumption.step for row in resumption.run.rows),
        "changed": changed,
        "passed_over": list(resumption.checkpoint.passed_over),
        "damaged": [file.name for file in _damaged_completions(resumption)],
        "host": info["host"],
    }
    said = [*changed, *(f"passed over {text}" for text in resumption.checkpoint.passed_over)]
    said += [f"completions/{name} is damaged, and was renamed" for name in entry["damaged"]]
    if said:
        warnings.warn(f"Resuming {resumption.run.name!r} at step {resumption.step}: {'; '.join(said)}.", stacklevel=3)
    return {
        **info,
        "started": before["started"],
        "reference": before["reference"],
        "resumed": [*before.get("resumed", ()), entry],
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any], keys: Iterable[str] | None = None) -> dict[str, str]:
    """Return which keys have other values, each in words; compared as JSON has them, where a tuple comes back as a list.

    >>> differences({"beta": 0.1, "seed": [1]}, {"beta": 0.2, "seed": (1,)})
    {'beta': 'beta was 0.1, is 0.2'}
    """
    found = {}
    for key in old if keys is None else keys:
        if json.dumps(old[key], default=str) != json.dumps(new[key], default=str):
            found[key] = f"{key} was {old[key]!r}, is {new[key]!r}"
    return found


def _compare_settings(run: Run, step: int, settings: Settings) -> list[str]:
    name, old = run.name, run.settings.to_dict()
    changed = differences(old, settings.to_dict())
    refused = {key: said for key, said in changed.items() if key not in MAY_CHANGE}
    if refused:
        back = ", ".join(f"{key}={old[key]!r}" for key in refused)
        raise ValueError(
            f"the run {name!r} was started with other settings: {'; '.join(refused.values())}. One curve of two trainings "
            f"would tell nothing. Go on with settings.replace({back}), or begin a new run with resume=None."
        )
    if settings.max_steps < step:
        raise ValueError(
            f"max_steps = {settings.max_steps}, but the run {name!r} has done {step} steps already. Write "
            f"settings.replace(max_steps={max(step, old['max_steps'])}), or begin a new run with resume=None."
        )
    return [said for key, said in changed.items() if key != "run_root"]


def _require_same_task(run: Run, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = differences(old, new, ("fingerprint", "format", "name"))
    if changed:
        raise ValueError(
            f"the run {run.name!r} was started with other data: {'; '.join(changed.values())} ({old['train']} training and "
            f"{old['holdout']} held-out rows then, {new['train']} and {new['holdout']} now). Load the task as then, with the "
            "same sizes and seed, or begin a new run with resume=None."
        )


def _require_same_rewards(run: Run, old: list[Mapping[str, Any]], new: list[Mapping[str, Any]]) -> None:
    was, is_now = ({reward["name"]: reward["weight"] for reward in rewards} for rewards in (old, new))
    if list(was.items()) != list(is_now.items()):
        raise ValueError(
            f"the run {run.name!r} was started with other rewards: it had {was}, by name and weight, now they are {is_now}. "
            "Pass the same ones in the same order, or begin a new run with resume=None."
        )


def _damaged_completions(resumption: Resumption) -> list[Path]:
    """The files that a crash cut off, as a power cut or a network drive leaves them; their steps are not trained again."""
    files = sorted((resumption.run.path / "completions").glob("step_*.parquet"))
    kept = [file for file in files if int(file.stem.split("_")[1]) <= resumption.step]
    contents = ((file, file.read_bytes()) for file in kept[-_NEWEST:])
    # The beginning and the end of a parquet file, which is written last.
    return [file for file, held in contents if len(held) < 8 or {held[:4], held[-4:]} != {_PARQUET}]


def go_back(resumption: Resumption) -> Path:
    """Take the run's folder, which is returned, to its checkpoint: each step is there once. Can be cut short and done again."""
    path, checkpoint = resumption.run.path, resumption.checkpoint
    write_bytes(path / "metrics.jsonl", (checkpoint.path / "metrics.jsonl").read_bytes())
    for left in path.rglob(".*.partial-*"):  # what was half written when it was killed
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    for file in (path / "completions").glob("step_*"):
        if int(file.stem.split("_")[1]) > resumption.step:
            file.unlink()
    for file in _damaged_completions(resumption):
        file.rename(file.with_suffix(".damaged"))
    # What was measured and exported belongs to the adapter of then, not to the one there will be.
    for name in ("comparison", "exports.json"):
        old = path / name
        if old.exists():
            put_in_place(old, old.with_name(f"{old.stem}-step-{resumption.step}{old.suffix}"))
    clear_away(path / "checkpoints", checkpoint)
    return path
