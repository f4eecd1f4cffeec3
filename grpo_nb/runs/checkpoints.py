"""Write and find checkpoints on disk. A checkpoint counts only if its files match its manifest.

A checkpoint is written into a staged folder, forced to the disk, given a manifest with the sha256
of each file, and renamed. A folder with the right name is not enough: on a network drive (Google
Drive in Colab) it can arrive before all of its files. Nothing here needs links, locks, or a rename
from one disk to another, which such drives may lack.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grpo_nb.core.files import put_in_place, safe_path, sha256_of, staged_folder

MANIFEST_FILE = "manifest.json"
#: Error numbers that a damaged checkpoint can cause: a path is missing, of another kind, too long,
#: or a loop of links. Any other number means that the drive fails.
DAMAGE_ERRNOS = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
#: A disk with less free space counts as full.
FULL_DISK_BYTES = 2**20


class NewestCheckpoint(NamedTuple):
    """The newest complete checkpoint, if there is one, and why newer ones were skipped."""

    path: Path | None
    """Folder of the checkpoint; None if no checkpoint is complete."""
    step: int
    """Step of the checkpoint; 0 if no checkpoint is complete."""
    skip_reasons: list[str]
    """Reason why each newer checkpoint was skipped."""


def write_checkpoint(root: Path, step: int, write_files: Callable[[Path], None]) -> Path:
    """Write the checkpoint of a step, complete or not at all, and return its folder.

    Args:
        root: Folder of the checkpoints of one run, which nobody else writes to.
        step: Optimizer steps done.
        write_files: Writes the files of the checkpoint into the folder that it is given.

    Raises:
        OSError: The disk is full or cannot be written to, or the step has a checkpoint already.
            Earlier checkpoints are still there.
    """
    target = root / f"checkpoint-{step}"
    with staged_folder(target) as staged:
        try:
            write_files(staged)
            # Each file is on the disk before the manifest lists it, and the manifest before the
            # folder gets its name. A power cut in between leaves no folder that looks complete.
            files = {}
            for path in staged.rglob("*"):
                if path.is_file():
                    files[path.relative_to(staged).as_posix()] = {"sha256": sha256_of(path)}
                # Folders are synced too, because they hold the names of their files.
                sync(path)
            manifest = staged / MANIFEST_FILE
            manifest.write_text(json.dumps({"step": step, "files": files}, indent=1))
            sync(manifest)
            sync(staged)
            # `rename` fails if the step has a checkpoint; `put_in_place` would replace that one.
            staged.rename(target)
            sync(root)
        except Exception as error:
            # Libraries in C++ or Rust do not pass on the error number, so look at the free space.
            if shutil.disk_usage(root).free < FULL_DISK_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root)) from error
            raise
    return target


def newest_checkpoint(root: Path) -> NewestCheckpoint:
    """Return the newest complete checkpoint, and why each newer one was skipped."""
    skip_reasons = []
    # Start with the newest: usually it is complete, and hashing the others would take time.
    for step, folder in reversed(checkpoint_folders(root)):
        damage = find_damage(folder)
        if damage is None:
            return NewestCheckpoint(folder, step, skip_reasons)
        skip_reasons.append(f"{folder.name}: {damage}")
    return NewestCheckpoint(None, 0, skip_reasons)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if it is complete.

    Raises:
        OSError: The drive cannot be read at the moment. The checkpoint may be complete.
    """
    try:
        # A checkpoint that was not finished has no manifest.
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
        for name, expected in manifest["files"].items():
            # A manifest can come from somebody else and name files elsewhere.
            file = safe_path(folder, name)
            if not file.is_file() or sha256_of(file) != expected["sha256"]:
                return f"{name} is not what was written"
        # A copy of a checkpoint can have the name of another step.
        if folder.name != f"checkpoint-{manifest['step']}":
            return f"it is the checkpoint of step {manifest['step']}"
    # A damaged manifest can cause nearly any error.
    except Exception as error:
        # Any other error number, or none, means that the drive fails.
        if isinstance(error, OSError) and error.errno not in DAMAGE_ERRNOS:
            raise
        return f"its manifest or a file that it lists cannot be read ({error})"
    return None


def keep_newest(root: Path, count: int) -> None:
    """Delete all but the newest `count` checkpoints; `count` is at least 1.

    Damaged ones are counted too, because hashing all files at each step would take too long. So
    call `set_aside_damaged` before a training goes on.
    """
    for _, folder in checkpoint_folders(root)[:-count]:
        # The manifest goes first, so that an interrupted deletion leaves no complete checkpoint.
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder)


def set_aside_damaged(root: Path, newest: NewestCheckpoint) -> None:
    """Rename checkpoints after the newest complete one to `damaged-N`.

    An older folder of that name is replaced. With its old name, the checkpoint would take a place
    in `keep_newest`, which would delete a complete one instead. It is kept, because its files may
    still be worth something.
    """
    for step, folder in checkpoint_folders(root):
        if step > newest.step:
            put_in_place(folder, folder.with_name(f"damaged-{step}"))


def checkpoint_folders(root: Path) -> list[tuple[int, Path]]:
    """Return step and folder of each checkpoint in order, complete or not."""
    folders = []
    for folder in root.glob("checkpoint-*"):
        number = folder.name.removeprefix("checkpoint-")
        # Copies that a user made, such as "checkpoint-4 (1)", are left out.
        if number.isdecimal():
            folders.append((int(number), folder))
    return sorted(folders)


def sync(path: Path) -> None:
    """Force a file or folder to the disk, except on network drives that cannot do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Raise for a failing or full disk, or a used-up quota. Any other error means that the drive
        # cannot sync.
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(descriptor)
