"""Whatever ends an export, nothing looks finished that is not, and nothing is lost; and whether a run's writer is there."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_nb.core import files
from tests.support.forks import in_child


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that is there, with a file of its own."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("old")
    return tmp_path / "out"


def make_until(out: Path, event: str, times: int) -> None:
    """Make the folder, and die just before something happens for so many times, as Python's audit hooks tell it."""
    seen = itertools.count(1)

    def watch(name: str, _: object) -> None:
        if name == event and next(seen) == times:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with files.staged_folder(out) as staged:
        (staged / "a").write_text("new")
        files.put_in_place(staged, out)


OLD, NEW = {"mine": "old"}, {"a": "new"}


@pytest.mark.parametrize(
    ("event", "times", "old_is_there", "found"),
    [
        ("os.rename", 1, False, {}),
        ("shutil.rmtree", 1, False, {"out": NEW}),
        ("os.rename", 1, True, {"out": OLD}),
        ("os.rename", 2, True, {".out.replaced": OLD}),  # the only moment at which the name is free
        ("shutil.rmtree", 1, True, {"out": NEW, ".out.replaced": OLD}),
    ],
)
def test_a_kill_leaves_the_old_or_the_new_and_nothing_between(
    event, times, old_is_there, found, out: Path
) -> None:
    if not old_is_there:
        (out / "mine").unlink()
        out.rmdir()
    assert in_child(lambda: make_until(out, event, times)), "it was not killed"
    left = {path.name.split("-")[0]: content(path) for path in out.parent.iterdir()}
    assert left.pop(".out.partial", NEW) == NEW and left == found
    with files.staged_folder(out) as staged:
        files.put_in_place(staged, out)
    assert content(out) == {}, "what a killed one left hinders nobody"


def test_an_error_leaves_nothing_and_what_came_meanwhile_is_kept(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.staged_folder(out) as staged:
        (staged / "half").touch()
        raise KeyboardInterrupt
    assert list(out.parent.iterdir()) == [out] and content(out) == OLD
    with files.staged_folder(out) as staged, files.staged_folder(out) as another:
        assert staged != another
        with pytest.raises(FileExistsError, match="exists, and is kept"):
            files.put_in_place(staged, out, overwrite=False)
        assert content(out) == OLD
        files.put_in_place(staged, out)
    assert content(out) == {} and list(out.parent.iterdir()) == [out]


def test_what_may_be_written_to_and_what_would_go_with_it(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = out.parent
    (here / "empty").mkdir()
    for taken in (out, out / "mine"):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            files.check_target(taken, overwrite=False)
    for free, overwrite in ((out, True), (here / "empty", False), (here / "new" / "deep", False)):
        files.check_target(free, overwrite)
    files.check_target(out / "export", overwrite=True, needed=[out])
    monkeypatch.chdir(here / "empty")
    for target, needed in (
        (here, [out]),
        (out, [out]),
        (out / ".." / "out", [out]),
        (here, []),
        (here / "empty", []),
    ):
        with pytest.raises(FileExistsError, match="which would be gone with it"):
            files.check_target(target, overwrite=True, needed=needed)
    with pytest.raises(TypeError, match="overwrite = 'no' must be True or False"):
        files.check_target(here / "new", overwrite="no")


def test_paths_as_people_write_them_and_names_that_are_free(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = out.parent
    monkeypatch.setenv("HOME", str(here))
    assert files.target_of("~/a b") == here / "a b" and files.target_of("relative") == Path(
        "relative"
    )
    (here / "link").symlink_to(here / "disk" / "new")
    assert files.target_of(here / "link") == here / "disk" / "new"
    (here / "out-2").mkdir()
    assert (
        files.free_path(out).name == "out-3"
        and files.free_path(out, ".part-", 1).name == "out.part-1"
    )


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    files.write_json(file, {"path": Path("a"), "name": "\u00e9"})
    with pytest.raises(KeyboardInterrupt), files.staged_file(file) as staged:
        staged.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == '{\n  "path": "a",\n  "name": "\\u00e9"\n}\n' and list(
        tmp_path.iterdir()
    ) == [file]
    files.write_text(file, "\ud800\u00e9")
    assert file.read_bytes() == b"\\ud800\xc3\xa9" and list(tmp_path.iterdir()) == [file]


def test_a_cache_is_filled_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def fill(folder: Path) -> None:
        (folder / "proof").write_text("mine")

    def fill_too_late(folder: Path) -> None:
        files.made_once(cache, "proof", fill)
        (folder / "proof").write_text("later")

    with pytest.raises(ZeroDivisionError):
        files.made_once(cache, "proof", lambda folder: 1 / 0)
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        assert content(files.made_once(cache, "proof", fill_too_late)) == {"proof": "mine"}
    assert list(tmp_path.iterdir()) == [cache]


def test_a_writer_is_told_from_a_dead_one_another_one_and_one_elsewhere(tmp_path: Path) -> None:
    mine = files.process_identity()
    with subprocess.Popen(["sleep", "600"]) as writer:
        theirs = {**mine, "pid": writer.pid, "process_start": files._start_of(writer.pid)}
        assert files.liveness(theirs, tmp_path) == "running"
        another = {**theirs, "process_start": theirs["process_start"] - 60}
        assert files.liveness(another, tmp_path) == "crashed", "the number is another process's now"
        assert files.liveness({**another, "host": "elsewhere"}, tmp_path) == "unknown"
        writer.kill()
    assert files.liveness(theirs, tmp_path) == "crashed"
    assert mine["pid"] == os.getpid() and files.liveness(mine, tmp_path) == "crashed", (
        "a kernel outlives its runs"
    )
    with files.writing_here(tmp_path):
        assert files.liveness(mine, tmp_path) == "running"
