"""Checkpoints on disk: complete or not there, whatever happens while they are written. Files only, no torch, no trainer.

A checkpoint is written into a staged folder, forced to the disk, given a manifest with the size and sha256 of each file, and
renamed. The manifest decides and not the name: on a network drive (Google Drive in Colab) a folder can arrive with files that
did not. Nothing here needs links, locks, or a rename from one disk to another.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core.files import inside, put_in_place, sha256_of
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.faults import error_chain

MANIFEST = "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")
# What libraries say that write through C++ or Rust, where the number of the error is lost.
# torch's writer of zip files only notices that it is not where it should be ("unexpected pos"); numpy's `tofile`, with which
# llama.cpp's converter writes, how much is missing.
_FULL_DISK_WORDS = (
    "no space left", "disk quota exceeded", "file write failed", "pytorchstreamwriter failed", "] . unexpected pos",
    " requested and ",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NewestCheckpoint:
    """The newest complete checkpoint, if there is one, and why newer ones were not taken."""

    path: Path | None
    step: int
    passed_over: tuple[str, ...]


def write_checkpoint(root: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Write the checkpoint of a step, so that it is complete or not there at all, and return its folder.

    Args:
        root: Folder of the checkpoints of one run, which nobody else writes to.
        step: Optimizer steps done.
        fill: Writes the files into the folder that it is given.

    Raises:
        EnvironmentProblem: The disk is full. What was there before is still there.
    """
    staged, target = root / f".checkpoint-{step}.partial", root / f"checkpoint-{step}"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        staged.mkdir(parents=True)
        fill(staged)
        files = {}
        for file in (path for path in staged.rglob("*") if path.is_file()):
            files[file.relative_to(staged).as_posix()] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
            sync(file)
        (staged / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=1))
        sync(staged / MANIFEST)
        sync(staged)
        if target.exists():  # of the same step, and damaged: a complete one is not written again
            shutil.rmtree(target)
        staged.rename(target)
        sync(root)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, Exception) and is_disk_full(error, is_of_a_writer=True):
            kept = newest_checkpoint(root)
            how = "choose another disk with run_root=..., and start again"
            if kept.path is not None:
                held = f"the checkpoint of step {kept.step}, which is complete"
                how = f"go on from {held}: gn.train(..., resume={str(root.parent)!r})"
            said = f"the checkpoint of step {step} could not be written: the disk of {root} is full. Free some space, or {how}."
            raise EnvironmentProblem(said) from error
        raise
    return target


def newest_checkpoint(root: Path) -> NewestCheckpoint:
    """Return the newest checkpoint whose every file is what its manifest says, and what was passed over for it."""
    unfinished = sorted(path.name[1:].removesuffix(".partial") for path in root.glob(".checkpoint-*.partial"))
    passed_over = [f"{name}: it was not finished" for name in unfinished]
    for step, folder in reversed(checkpoint_folders(root)):
        damage = find_damage(folder)
        if damage is None:
            return NewestCheckpoint(path=folder, step=step, passed_over=tuple(passed_over))
        passed_over.append(f"{folder.name}: {damage}")
    return NewestCheckpoint(path=None, step=0, passed_over=tuple(passed_over))


def find_damage(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint, or None if it is complete."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        for name, expected in files.items():
            file = inside(folder, name)
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"] or sha256_of(file) != expected["sha256"]:
                return f"{name} is not what was written"
    except FileNotFoundError:
        return "it has no manifest, so it was not finished"
    except (ValueError, KeyError, TypeError) as error:
        return f"its manifest cannot be read ({error})"
    return None


def keep_newest(root: Path, count: int, also: int | None = None) -> None:
    """Delete all but the newest `count` checkpoints, and that of the step `also`."""
    for step, folder in checkpoint_folders(root)[:-count]:
        if step == also:
            continue
        # First what makes it complete: a deletion cut short leaves nothing that looks whole.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)


def clear_away(root: Path, newest: NewestCheckpoint) -> None:
    """Take what was passed over out of the way: unfinished folders are deleted, damaged ones renamed to `damaged-N`."""
    for folder in root.glob(".checkpoint-*.partial"):
        shutil.rmtree(folder)
    for step, folder in checkpoint_folders(root):
        if newest.path is None or step > newest.step:
            put_in_place(folder, folder.with_name(f"damaged-{step}"))


def sync(path: Path) -> None:
    """Force a file or folder to the disk, where its file system can do that; many network drives cannot."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(number)


def is_disk_full(error: BaseException | None, *, is_of_a_writer: bool = False) -> bool:
    """Say whether an error, or what caused it, is a full disk or a used-up quota.

    Args:
        error: By its number; its words may be those of anybody, a model's answer among them.
        is_of_a_writer: It comes from writing tensors: then its words count too, for there the number can be lost.
    """
    chain = list(error_chain(error)) if error is not None else []
    said = [str(each).lower() for each in chain] if is_of_a_writer else []
    is_numbered = any(isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT) for each in chain)
    return is_numbered or any(word in text for text in said for word in _FULL_DISK_WORDS)


def checkpoint_folders(root: Path) -> list[tuple[int, Path]]:
    """The steps and folders of checkpoints by name, in order; whether one is complete, `newest_checkpoint` says."""
    found = ((_NAME.fullmatch(path.name), path) for path in root.glob("checkpoint-*"))
    return sorted((int(match[1]), path) for match, path in found if match)
