"""Whatever ends an export, nothing looks finished that is not, nothing is lost, and what is left behind is cleared."""

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_nb.core import files
from grpo_nb.core.files import (
    check_target,
    clear_leftovers,
    free_path,
    made_once,
    put_in_place,
    set_aside,
    shown_path,
    staged_file,
    staged_folder,
    target_of,
    write_json,
    write_text,
)

# Makes a folder of three files at `out`, and stands still at the moment that its argument names.
MAKER = """
    import sys, time
    from pathlib import Path
    from grpo_nb.core import files as staging

    def stop(moment):
        if sys.argv[2] == moment:
            Path(sys.argv[1], "moment").touch()
            time.sleep(600)

    rename = Path.rename
    def watched(path, other):
        stop("before " + ("setting aside" if path.name == "out" else "putting in place"))
        return rename(path, other)
    Path.rename = watched
    remove = staging._remove
    staging._remove = lambda path: (stop("before removing"), remove(path))

    target = Path(sys.argv[1], "out")
    with staging.staged_folder(target) as staged:
        stop("empty")
        for name in "abc":
            (staged / name).write_text("new")
            stop("after " + name)
        staging.put_in_place(staged, target)
    stop("done")
"""


@contextlib.contextmanager
def standing_still(folder: Path, moment: str) -> Iterator[None]:
    """Run the maker up to a moment; it is killed when the block ends."""
    maker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(MAKER), str(folder), moment])
    try:
        end = time.monotonic() + 60
        while not (folder / "moment").is_file():
            assert maker.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        (folder / "moment").unlink()
        yield
    finally:
        maker.kill()
        maker.wait()


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


NEW = {"a": "new", "b": "new", "c": "new"}


@pytest.mark.parametrize(
    ("moment", "old_is_there", "found"),
    [
        ("empty", False, None),
        ("after b", False, None),
        ("before putting in place", False, None),
        ("done", False, NEW),
        ("after b", True, {"mine": "old"}),
        ("before setting aside", True, {"mine": "old"}),
        ("before removing", True, NEW),
    ],
)
def test_a_kill_leaves_the_old_or_the_new_and_nothing_between(
    moment: str, old_is_there: bool, found: dict[str, str] | None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if old_is_there:
        out.mkdir()
        (out / "mine").write_text("old")
    with standing_still(tmp_path, moment):
        pass
    assert (content(out) if out.exists() else None) == found
    with staged_folder(out) as staged:
        # What the killed one left is gone; the only other thing here is the new one's own.
        assert {p for p in tmp_path.iterdir() if p != out} == {staged}
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if found else [])


def test_killed_between_the_two_renames_neither_is_lost(tmp_path: Path) -> None:
    """The only moment at which the name is free: the next export puts the old one back, whatever becomes of itself."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("old")
    with standing_still(tmp_path, "before putting in place"):
        pass
    assert not out.exists()
    assert {p.name.split("-")[0] for p in tmp_path.iterdir()} == {".out.partial", ".out.replaced"}
    cleared = clear_leftovers(out)
    assert content(out) == {"mine": "old"} and len(cleared) == 2 and len(list(tmp_path.iterdir())) == 1


def test_a_living_process_keeps_its_folder(tmp_path: Path) -> None:
    with standing_still(tmp_path, "after b"):
        (theirs,) = tmp_path.glob(".out.partial-*")
        with staged_folder(tmp_path / "out") as mine, staged_folder(tmp_path / "out") as another:
            assert len({mine, another, theirs}) == 3 and clear_leftovers(tmp_path / "out") == []
        assert theirs.is_dir() and not mine.exists() and not another.exists()
    assert clear_leftovers(tmp_path / "out") == [theirs]


def test_only_its_own_kind_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".out.partial-notes", ".out.backup-1", ".outer.partial-1.2.3.4.0", "out.partial-1"):
        (tmp_path / name).mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(files, "process_identity", lambda: who("another"))
        (tmp_path / files._staged_path(tmp_path / "out", "partial").name).mkdir()
    before = sorted(tmp_path.iterdir())
    assert clear_leftovers(tmp_path / "out") == [] and sorted(tmp_path.iterdir()) == before
    # The same machine before it was started again: whatever has the number now, it is not that process.
    with monkeypatch.context() as patch:
        patch.setattr(files, "process_identity", lambda: {**who(None), "boot": "an earlier one"})
        old = tmp_path / files._staged_path(tmp_path / "out", "partial").name
    old.mkdir()
    assert clear_leftovers(tmp_path / "out") == [old]


def who(host: str | None) -> dict:
    from grpo_nb.core.writers import process_identity

    here = process_identity()
    return {**here, "host": host or here["host"]}


def test_an_error_leaves_nothing_and_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "[out]*"  # a name that a pattern would read otherwise
    out.mkdir()
    (out / "mine").write_text("old")
    with pytest.raises(KeyboardInterrupt), staged_folder(out) as staged:
        (staged / "half").touch()
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    rename = Path.rename

    def fails(path: Path, other: Path) -> Path:
        if "partial" in path.name:
            raise OSError("disk gone")
        return rename(path, other)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="disk gone"), staged_folder(out) as staged:
        put_in_place(staged, out)
    assert content(out) == {"mine": "old"} and [p.name for p in tmp_path.iterdir()] == [out.name]


def test_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    for taken in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            check_target(taken, overwrite=False)
    with pytest.raises(NotADirectoryError, match="is a file"):
        check_target(tmp_path / "full" / "file" / "below", overwrite=True)
    check_target(tmp_path / "full", overwrite=True)
    check_target(tmp_path / "empty", overwrite=False)
    check_target(tmp_path / "new" / "deep", overwrite=False)
    # For the administrator no folder is closed, so the system's answer is put in its place.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot be written"):
        check_target(tmp_path / "new" / "deep", overwrite=False)


def test_what_must_not_go_and_what_came_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = tmp_path / "runs" / "one"
    needed.mkdir(parents=True)
    for target in (tmp_path, tmp_path / "runs", needed, needed / ".." / "one"):
        with pytest.raises(FileExistsError, match="which would be gone with it"):
            check_target(target, overwrite=True, needed=[needed])
    check_target(needed / "export", overwrite=True, needed=[needed])
    monkeypatch.chdir(needed)
    with pytest.raises(FileExistsError, match="which would be gone with it"):
        check_target(tmp_path / "runs", overwrite=True)
    out = tmp_path / "out"
    with staged_folder(out) as staged:
        (staged / "mine").touch()
        out.mkdir()
        (out / "theirs").touch()
        with pytest.raises(FileExistsError, match="made by somebody else"):
            put_in_place(staged, out, overwrite=False)
        assert content(out) == {"theirs": ""}
        put_in_place(staged, out)
    assert content(out) == {"mine": ""}


def test_paths_as_people_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert target_of("~/a b") == tmp_path / "a b" and target_of("relative") == Path("relative")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "new")
    assert target_of(tmp_path / "link") == tmp_path / "disk" / "new"


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    write_json(file, {"path": Path("a"), "name": "\u00e9"})
    assert file.read_text() == '{\n  "path": "a",\n  "name": "\\u00e9"\n}\n'
    with pytest.raises(KeyboardInterrupt), staged_file(file) as staged:
        staged.write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(TypeError, match="keys"):
        write_json(file, {("no", "JSON"): 1})
    assert "name" in file.read_text() and list(tmp_path.iterdir()) == [file]
    write_text(file, "\ud800\u00e9")
    assert file.read_bytes() == b"\\ud800\xc3\xa9" and list(tmp_path.iterdir()) == [file]


def test_names_that_are_free_and_what_is_set_aside(tmp_path: Path) -> None:
    assert free_path(tmp_path / "run") == tmp_path / "run"
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
    assert free_path(tmp_path / "run").name == "run-3" and free_path(tmp_path / "run", ".part-", 1).name == "run.part-1"
    (tmp_path / "run-2" / "older").touch()
    assert set_aside(tmp_path / "run", "run-2") == tmp_path / "run-2"
    assert [path.name for path in tmp_path.iterdir()] == ["run-2"] and content(tmp_path / "run-2") == {}


def test_a_cache_is_filled_once(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "proof").write_text("mine")

    def fill_too_late(folder: Path) -> None:
        made_once(tmp_path / "a" / "cache", "proof", fill)
        (folder / "proof").write_text("later")

    def fail(folder: Path) -> None:
        (folder / "proof").touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        made_once(tmp_path / "a" / "cache", "proof", fail)
    assert list((tmp_path / "a").iterdir()) == []
    for late in (fill_too_late, fail):
        assert content(made_once(tmp_path / "a" / "cache", "proof", late)) == {"proof": "mine"}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["cache"]


def test_paths_are_shown_as_typed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "runs" / "a") == Path("runs/a") and shown_path(Path("/else")) == Path("/else")
