"""Files and folders made beside their place and renamed into it at the end: whatever ends the process, nothing looks half-done.

And whether the process that writes a folder is still there: answered from what was noted about it, and never guessed.

What is staged is `.NAME.partial-...`, and the folder that it replaces waits as `.NAME.replaced-...` for the two renames between
it and its end. A killed process leaves them behind; they hinder nobody, and may be deleted by hand.
"""

import contextlib
import hashlib
import itertools
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from grpo_nb.core.words import EnvironmentProblem, in_line

# Folders that this very process is writing: a kernel outlives its runs, so that its pid says nothing about them.
_writing: set[Path] = set()


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all; what JSON does not know is written as its text."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text (UTF-8) whole or not at all."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes whole or not at all."""
    with staged_file(path) as staged:
        staged.write_bytes(data)


@contextlib.contextmanager
def staged_file(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` to write to, which takes its place when the block ends, and is gone when it fails.

    A reader or a crash sees the old file or the new one; on a full disk no leftover is in the way.
    """
    staged = _beside(target, "partial")
    try:
        yield staged
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, cleared away when the block is left, unless `put_in_place` has moved it."""
    staged = _beside(target, "partial")
    staged.mkdir(parents=True)
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def put_in_place(staged: Path, target: Path, *, overwrite: bool = True) -> None:
    """Rename a finished file or folder to `target`; one that is there is set aside first, and deleted last.

    A folder cannot take the name of another in one step. Killed between the two renames, both are still there, complete, under
    their hidden names.

    Args:
        staged: From `staged_folder`, or a file.
        target: Where it goes.
        overwrite: Whether something may be there: an export takes minutes, in which another one can have come first.

    Raises:
        FileExistsError: Something is there and `overwrite` is false.
    """
    _refuse_taken(target, overwrite)
    if not target.is_dir():
        staged.replace(target)
        return
    aside = _beside(target, "replaced")
    target.rename(aside)
    staged.rename(target)
    shutil.rmtree(aside)


def made_once(folder: Path, proof: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of a cache; where it has no file `proof`, it is filled first.

    Of several processes that fill it at the same time the first counts, for their results are the same.
    """
    if not (folder / proof).is_file():
        with staged_folder(folder) as staged:
            fill(staged)
            if not (folder / proof).is_file():
                put_in_place(staged, folder)
    return folder


def target_of(path: str | Path) -> Path:
    """Return the folder that a path from a user names: `~` is their home, and a link is what it points to.

    Renaming onto a link would replace the link: an export meant for the disk behind it would lie on this one.
    """
    target = Path(path).expanduser()
    return target.resolve() if target.is_symlink() else target


def check_target(target: Path, overwrite: bool, needed: Sequence[Path] = ()) -> None:
    """Refuse a target that would have to be overwritten without being told to, or with something that is needed.

    Args:
        target: From `target_of`.
        overwrite: Whether something may be there.
        needed: Folders that must not go with it: the run itself, its base model.

    Raises:
        FileExistsError: Something is there and `overwrite` is false, or what is there holds something that is needed.
    """
    real = target.resolve()
    held = next(
        (path for path in (*needed, Path.cwd()) if path.resolve().is_relative_to(real)), None
    )
    if target.exists() and held is not None:
        raise FileExistsError(
            f"{str(target)!r} is or holds {str(held)!r}, which would be gone with it."
        )
    _refuse_taken(target, overwrite)


def inside(folder: Path, name: Any) -> Path:
    """Return the path of a file or folder in a run, an export or another folder that somebody can have sent.

    Every name that a file gives, and every file that such a folder holds, is asked for here.

    Raises:
        ValueError: It is no name, it leads out (from the root or a drive, by `..`, or over a link), or a part of it is a link.

    >>> inside(Path("theirs"), "adapter"), inside(Path("theirs"), "../mine")
    Traceback (most recent call last):
    ValueError: '../mine' leads out of the folder 'theirs': put there what it points to.
    """
    there = PureWindowsPath(
        name if isinstance(name, str) else ""
    )  # also one of Windows: it is divided at both slashes
    if not there.parts or there.anchor or ".." in there.parts:
        raise ValueError(_leads_out(folder, name))
    real, whole = (Path(os.path.realpath(path)) for path in (folder / name, folder))
    if not real.is_relative_to(whole):
        raise ValueError(_leads_out(folder, name))
    path = folder
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            raise ValueError(
                f"{in_line(name)} in the folder {str(folder)!r} is, or lies behind, a symbolic link. Links are not followed "
                "there, because a folder that somebody sends could read or overwrite other files with them: put there what "
                "it points to."
            )
    return folder / name


def refuse_links(folder: Path, within: Path | None = None) -> None:
    """Raise `ValueError` if a folder holds a symbolic link, at any depth; `inside` says why.

    Args:
        folder: A run, an export, or a part of one.
        within: The whole, to which the message names the link; by default `folder`.
    """
    whole = within or folder
    places = [folder]
    while places:
        # A training that is under way removes files and folders at any moment.
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(places.pop()) as entries,
        ):
            for entry in entries:
                if entry.is_symlink():
                    inside(whole, Path(entry.path).relative_to(whole).as_posix())
                elif entry.is_dir():
                    places.append(Path(entry.path))


def _leads_out(folder: Path, name: Any) -> str:
    return f"{in_line(name)} leads out of the folder {str(folder)!r}: put there what it points to."


def require_writable(folder: Path, purpose: str = "A run") -> None:
    """Raise `EnvironmentProblem` unless files can be made in a folder, or in the nearest of its parents that is there."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        reason = f"{str(there)!r} is a file, not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        reason = f"{str(there)!r} is read-only for this process"
    else:
        return
    raise EnvironmentProblem(
        f"{purpose} cannot be written to {str(folder)!r}: {reason}. Everything that it makes is kept in that folder. Choose "
        'another one, such as settings.replace(run_root="runs"), or make this one writable.'
    )


def free_path(path: Path, mark: str = "-", first: int = 2) -> Path:
    """Return a path that is free: this one, or the same with a mark and the first free number.

    >>> free_path(Path("/nowhere/run"))
    PosixPath('/nowhere/run')
    """
    numbered = (path.with_name(f"{path.name}{mark}{number}") for number in itertools.count(first))
    return next(found for found in itertools.chain([path], numbered) if not found.exists())


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, which is never in memory as a whole."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def shown_path(path: Path) -> Path:
    """The path as one would type it here: relative if it lies below the working directory."""
    return (
        path.relative_to(Path.cwd())
        if path.is_absolute() and path.is_relative_to(Path.cwd())
        else path
    )


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}-{os.urandom(6).hex()}")


def _refuse_taken(target: Path, overwrite: bool) -> None:
    if not isinstance(overwrite, bool):  # "no" would be true
        raise TypeError(f"overwrite = {in_line(overwrite)} must be True or False.")
    if not overwrite and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{str(target)!r} exists, and is kept. Choose another folder, or say overwrite=True."
        )


def process_identity() -> dict[str, Any]:
    """What tells this process from all others, for `run.json`: its number, its start, and its host."""
    return {"pid": os.getpid(), "process_start": _start_of(os.getpid()), "host": platform.node()}


@contextlib.contextmanager
def writing_here(path: Path) -> Iterator[None]:
    """Note that this process is writing the folder at `path`, as long as the block lasts."""
    path = path.absolute()
    _writing.add(path)
    try:
        yield
    finally:
        _writing.discard(path)


def liveness(info: Mapping[str, Any], path: Path) -> str:
    """Say of a folder that calls itself being written whether it is: `running`, `crashed`, or `unknown` (another machine's).

    A process is the one that was noted if it has the same pid and the same start: days later, another process can have its
    number.
    """
    start = _start_of(info["pid"])
    if start is not None and abs(start - info.get("process_start", start)) < 0.1:
        is_left = info["pid"] == os.getpid() and path.absolute() not in _writing
        return "crashed" if is_left else "running"
    return "crashed" if info["host"] == platform.node() else "unknown"


def _start_of(pid: int) -> float | None:
    """When a process started, in seconds since the boot, which no change of the clock moves; None if it is gone."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).create_time() - psutil.boot_time()
    return None
