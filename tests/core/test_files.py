"""Whatever ends an export, nothing looks finished that is not, and nothing is lost; and whether a run's writer is there."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grpo_nb.core.files import (
    check_target,
    free_path,
    liveness,
    made_once,
    process_identity,
    put_in_place,
    shown_path,
    staged_file,
    staged_folder,
    target_of,
    write_json,
    write_text,
    writing_here,
)

# Makes a folder at `out`, and is killed at the moment that its argument names.
MAKER = """
    import os, shutil, sys
    from pathlib import Path
    from grpo_nb.core import files

    def die(moment):
        if sys.argv[2] == moment:
            os.kill(os.getpid(), 9)

    rename, remove = Path.rename, shutil.rmtree
    def watched(path, other):
        die("before " + ("setting aside" if path.name == "out" else "putting in place"))
        return rename(path, other)
    def removed(path, **options):
        if "replaced" in path.name:
            die("before removing")
        remove(path, **options)
    Path.rename, Path.replace, shutil.rmtree = watched, watched, removed

    target = Path(sys.argv[1], "out")
    with files.staged_folder(target) as staged:
        (staged / "a").write_text("new")
        die("half-way")
        files.put_in_place(staged, target)
    die("done")
"""


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("moment", "old_is_there", "found"),
    [
        ("half-way", False, {}),
        ("done", False, {"out": {"a": "new"}}),
        ("before setting aside", True, {"out": {"mine": "old"}}),
        (
            "before putting in place",
            True,
            {".out.replaced": {"mine": "old"}},
        ),  # the only moment at which the name is free
        ("before removing", True, {"out": {"a": "new"}, ".out.replaced": {"mine": "old"}}),
    ],
)
def test_a_kill_leaves_the_old_or_the_new_and_nothing_between(
    moment: str, old_is_there: bool, found: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if old_is_there:
        out.mkdir()
        (out / "mine").write_text("old")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MAKER), str(tmp_path), moment])
    assert done.returncode == -9
    left = {path.name.split("-")[0]: content(path) for path in tmp_path.iterdir()}
    assert left.pop(".out.partial", {"a": "new"}) == {"a": "new"} and left == found
    with staged_folder(out) as staged:
        put_in_place(staged, out)
    assert content(out) == {}, "what a killed one left hinders nobody"


def test_an_error_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt), staged_folder(out) as staged:
        (staged / "half").touch()
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    for taken in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            check_target(taken, overwrite=False)
    check_target(tmp_path / "full", overwrite=True)
    check_target(tmp_path / "empty", overwrite=False)
    check_target(tmp_path / "new" / "deep", overwrite=False)
    needed = tmp_path / "runs" / "one"
    needed.mkdir(parents=True)
    for target in (tmp_path, tmp_path / "runs", needed, needed / ".." / "one"):
        with pytest.raises(FileExistsError, match="which would be gone with it"):
            check_target(target, overwrite=True, needed=[needed])
    check_target(needed / "export", overwrite=True, needed=[needed])
    monkeypatch.chdir(needed)
    with pytest.raises(FileExistsError, match="which would be gone with it"):
        check_target(tmp_path / "runs", overwrite=True)
    with pytest.raises(TypeError, match="overwrite = 'no' must be True or False"):
        check_target(tmp_path / "new", overwrite="no")


def test_what_came_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with staged_folder(out) as staged, staged_folder(out) as another:
        assert staged != another
        (staged / "mine").touch()
        out.mkdir()
        (out / "theirs").touch()
        with pytest.raises(FileExistsError, match="exists, and is kept"):
            put_in_place(staged, out, overwrite=False)
        assert content(out) == {"theirs": ""}
        put_in_place(staged, out)
    assert content(out) == {"mine": ""} and list(tmp_path.iterdir()) == [out]


def test_paths_as_people_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert target_of("~/a b") == tmp_path / "a b" and target_of("relative") == Path("relative")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "new")
    assert target_of(tmp_path / "link") == tmp_path / "disk" / "new"
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "runs" / "a") == Path("runs/a") and shown_path(Path("/else")) == Path("/else")


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


def test_names_that_are_free(tmp_path: Path) -> None:
    assert free_path(tmp_path / "run") == tmp_path / "run"
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
    assert free_path(tmp_path / "run").name == "run-3" and free_path(tmp_path / "run", ".part-", 1).name == "run.part-1"


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


def test_a_writer_is_told_from_a_dead_one_another_one_and_one_elsewhere(tmp_path: Path) -> None:
    code = "from grpo_nb.core.files import *; import json; print(json.dumps(process_identity()), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        theirs = json.loads(writer.stdout.readline())
        assert theirs["pid"] == writer.pid and liveness(theirs, tmp_path) == "running"
        another = {**theirs, "process_start": theirs["process_start"] - 60}
        assert liveness(another, tmp_path) == "crashed", "the number is another process's now"
        assert liveness({**another, "host": "elsewhere"}, tmp_path) == "unknown"
        os.kill(writer.pid, 9)
    assert liveness(theirs, tmp_path) == "crashed"
    with writing_here(tmp_path):
        assert liveness(process_identity(), tmp_path) == "running"
    assert liveness(process_identity(), tmp_path) == "crashed", "a kernel outlives its runs"
