"""Write files and folders completely or not at all, and check paths that come from other people.

A file or folder is first written next to its target, as `.NAME.partial-...`, and renamed at the
end. Replacing a folder takes two renames; between them, the old folder is `.NAME.replaced-...`.
NAME is cut after 50 characters. If the process is killed, these hidden files and folders stay. No
later write uses them, and they can be deleted.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from grpo_nb.core.words import short_repr


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, completely or not at all; objects unknown to JSON become strings."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, completely or not at all."""
    with staged_file(path) as staged:
        staged.write_bytes(text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def staged_file(target: Path) -> Iterator[Path]:
    """Yield a path next to `target`; at the end, the file written there replaces `target`.

    After an error the new file is removed, and `target` is unchanged. At any time, a reader sees
    either the complete old file or the complete new one.
    """
    staged = _hidden_sibling(target, "partial")
    try:
        yield staged
        staged.replace(target)
    finally:
        # On a full disk, a leftover would take the space that the next attempt needs.
        staged.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to `target`, removed at the end unless `put_in_place` moved it."""
    staged = _hidden_sibling(target, "partial")
    staged.mkdir(parents=True)
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def put_in_place(staged: Path, target: Path) -> None:
    """Rename a finished folder to `target`, and then delete the old folder.

    A folder cannot replace another one in a single step. If the second of the two renames fails,
    the old folder is put back. If the process is killed between them, both folders are complete
    under their hidden names.

    Args:
        staged: The finished folder, such as the one of `staged_folder`.
        target: New path. `check_target` checks it before an export.
    """
    if not target.is_dir():
        staged.replace(target)
        return
    replaced = _hidden_sibling(target, "replaced")
    try:
        target.rename(replaced)
        staged.rename(target)
    except BaseException:
        # A user can interrupt the cell between the renames.
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise
    shutil.rmtree(replaced)


def copy_files(source: Path, target: Path, pattern: str = "*") -> None:
    """Copy the files of a folder, without its subfolders, to another folder."""
    target.mkdir(exist_ok=True)
    for file in source.glob(pattern):
        if file.is_file():
            shutil.copyfile(file, target / file.name)


def cached_folder(folder: Path, marker: str, fill: Callable[[Path], None]) -> Path:
    """Return a cache folder; call `fill` first if the folder has no file named `marker`.

    If another process fills the folder meanwhile, the files are the same in either case.
    """
    marker_file = folder / marker
    if not marker_file.is_file():
        with staged_folder(folder) as staged:
            fill(staged)
            try:
                put_in_place(staged, folder)
            except OSError:
                # Another process may have put its folder in place at the same moment.
                if not marker_file.is_file():
                    raise
    return folder


def resolved_target(path: str | Path) -> Path:
    """Return a user's path as a folder to write, with `~` and a link at the end resolved.

    The link may lead to a larger disk. Renaming the finished folder onto the link would replace the
    link, and the export would be on the wrong disk.
    """
    target = Path(path).expanduser()
    return target.resolve() if target.is_symlink() else target


def check_target(target: Path, overwrite: bool, protected: Sequence[Path] = ()) -> None:
    """Check that a target may be written to, and that it contains no protected folder.

    Args:
        target: Path from `resolved_target`.
        overwrite: If False, `target` must be free: it does not exist, or is an empty folder.
        protected: Folders that must not be overwritten, such as the run itself and its base model.

    Raises:
        FileExistsError: `target` is not free, and `overwrite` is False; or it contains a protected
            folder or the working directory.
        NotADirectoryError: `target` is a file.
    """
    if not target.exists():
        return
    real_target = target.resolve()
    for path in (*protected, Path.cwd()):
        if path.resolve().is_relative_to(real_target):
            raise FileExistsError(
                f"{str(target)!r} is or contains {str(path)!r}, which would be deleted too."
            )
    if any(target.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{str(target)!r} exists, and is kept. Choose another folder, or pass overwrite=True."
        )


def safe_path(folder: Path, name: Any) -> Path:
    """Return the path of `name` in a folder, checked to be inside the folder.

    A run or an export can come from somebody else. In such a folder, use this function for each
    file, and for each name that is read from a file.

    Raises:
        ValueError: `name` is not a path, or leads out of the folder (such as `/etc` or `..`), or a
            part of it is a symbolic link.

    >>> safe_path(Path("theirs"), "adapter")
    PosixPath('theirs/adapter')
    >>> safe_path(Path("theirs"), "../mine")
    Traceback (most recent call last):
    ValueError: '../mine' leads out of the folder 'theirs': use a path inside it.
    """
    if not isinstance(name, str) or not Path(name).parts:
        raise ValueError(f"{short_repr(name)} cannot be the name of a file in {str(folder)!r}.")
    # Parsing as a Windows path splits at both kinds of slashes and detects drives.
    parsed = PureWindowsPath(name)
    if parsed.anchor or ".." in parsed.parts:
        raise ValueError(
            f"{short_repr(name)} leads out of the folder {str(folder)!r}: use a path inside it."
        )
    # Without links, a path that only goes down stays inside.
    path = folder
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            raise _link_error(name, folder)
    return path


def _link_error(name: str, folder: Path) -> ValueError:
    return ValueError(
        f"{short_repr(name)} is, or goes through, a symbolic link, which could lead out of the "
        f"folder {str(folder)!r}. Links are not followed, because a folder that somebody sends "
        "could use them to read or overwrite other files. Replace the link with a copy of its "
        "target."
    )


def refuse_links(folder: Path) -> None:
    """Raise `ValueError` if a folder contains a symbolic link at any depth; see `safe_path`."""
    # `os.walk` skips folders that a running training removes meanwhile.
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink():
                raise _link_error(path.relative_to(folder).as_posix(), folder)


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, which is read in parts and may be larger than the memory."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hidden_sibling(target: Path, kind: str) -> Path:
    # A character has at most 4 bytes, so the hidden name stays below the 255 of file systems.
    return target.with_name(f".{target.name[:50]}.{kind}-{os.urandom(6).hex()}")
