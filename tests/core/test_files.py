"""Files and folders appear completely or not at all, and nothing is lost on the way."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from grpo_nb.core import files

OLD = {"mine": "old"}


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def folder_with_a_file(parent: Path) -> Path:
    """Return a new folder `out` with the content `OLD`."""
    (parent / "out").mkdir()
    (parent / "out" / "mine").write_text("old")
    return parent / "out"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return folder_with_a_file(tmp_path)


@pytest.fixture
def empty(out: Path) -> Path:
    """An empty folder next to `out`."""
    folder = out.parent / "empty"
    folder.mkdir()
    return folder


def test_staged_folder_after_error_leaves_target_as_it_was(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.staged_folder(out) as staged:
        (staged / "half").touch()
        raise KeyboardInterrupt
    assert list(out.parent.iterdir()) == [out]
    assert content(out) == OLD


def test_put_in_place_leaves_only_the_target(out: Path) -> None:
    with files.staged_folder(out) as staged, files.staged_folder(out) as another:
        assert staged != another
        files.put_in_place(staged, out)
    assert content(out) == {}
    assert list(out.parent.iterdir()) == [out]


def test_put_in_place_that_fails_puts_the_old_folder_back(out: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.put_in_place(out.with_name("missing"), out)
    assert content(out) == OLD
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("overwrite", [True, False])
def test_target_that_is_a_file_is_refused(overwrite: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("mine")
    with pytest.raises(NotADirectoryError, match="out"):
        files.check_target(target, overwrite=overwrite)


def test_target_that_exists_is_refused(out: Path) -> None:
    with pytest.raises(FileExistsError, match="overwrite=True"):
        files.check_target(out, overwrite=False)


@pytest.mark.parametrize(
    ("name", "overwrite"),
    [
        pytest.param("out", True, id="may be overwritten"),
        pytest.param("empty", False, id="empty folder"),
        pytest.param("new/deep", False, id="new folder"),
    ],
)
def test_target_that_is_free_is_accepted(name, overwrite, out: Path, empty: Path) -> None:
    files.check_target(out.parent / name, overwrite)


def test_target_inside_needed_folder_is_accepted(out: Path) -> None:
    files.check_target(out / "export", overwrite=True, protected=[out])


def test_target_with_the_longest_name_is_written(tmp_path: Path) -> None:
    target = tmp_path / ("\u00e9" * 127)
    with files.staged_folder(target) as staged:
        files.put_in_place(staged, target)
    with files.staged_folder(target) as staged:
        files.put_in_place(staged, target)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", [".", "out", "out/../out"])
def test_target_that_holds_needed_folder_is_refused(name: str, out: Path) -> None:
    with pytest.raises(FileExistsError, match="which would be deleted too"):
        files.check_target(out.parent / name, overwrite=True, protected=[out])


@pytest.mark.parametrize("name", [".", "empty"])
def test_target_that_holds_working_directory_is_refused(
    name: str, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(empty)
    with pytest.raises(FileExistsError, match="which would be deleted too"):
        files.check_target(empty.parent / name, overwrite=True)


def test_target_with_tilde_is_in_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.resolved_target("~/a b") == tmp_path / "a b"


def test_target_that_is_relative_stays_so() -> None:
    assert files.resolved_target("relative") == Path("relative")


def test_target_that_is_a_link_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "new")
    assert files.resolved_target(tmp_path / "link") == tmp_path / "disk" / "new"


def test_written_json_has_strings_for_unknown_objects(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    files.write_json(file, {"path": Path("a"), "name": "\u00e9"})
    assert file.read_text() == '{\n  "path": "a",\n  "name": "\\u00e9"\n}\n'
    assert list(tmp_path.iterdir()) == [file]


def test_written_text_has_lone_surrogates_escaped(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", "\ud800\u00e9")
    assert (tmp_path / "a").read_bytes() == b"\\ud800\xc3\xa9"


def test_staged_file_after_error_leaves_target_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.staged_file(file) as staged:
        staged.write_text("half")
        raise KeyboardInterrupt
    assert content(tmp_path) == {"a": "old"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fill(folder: Path) -> None:
    (folder / "proof").write_text("first")


def test_cache_after_failed_fill_is_not_there(cache: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        files.cached_folder(cache, "proof", lambda folder: 1 / 0)
    assert list(cache.parent.iterdir()) == []


def test_cache_that_is_filled_is_not_filled_again(cache: Path) -> None:
    files.cached_folder(cache, "proof", fill)
    files.cached_folder(cache, "proof", lambda folder: pytest.fail("filled twice"))
    assert content(cache) == {"proof": "first"}


def test_cache_that_another_process_fills_meanwhile_is_used(cache: Path, monkeypatch) -> None:
    def put_too_late(staged: Path, target: Path) -> None:
        target.mkdir()
        fill(target)
        staged.replace(target)

    monkeypatch.setattr(files, "put_in_place", put_too_late)
    files.cached_folder(cache, "proof", fill)
    assert content(cache) == {"proof": "first"}
    assert list(cache.parent.iterdir()) == [cache]


def test_cache_that_cannot_be_put_in_place_raises(cache: Path, monkeypatch) -> None:
    put = Mock(side_effect=OSError("no space"))
    monkeypatch.setattr(files, "put_in_place", put)
    with pytest.raises(OSError, match="no space"):
        files.cached_folder(cache, "proof", fill)


def test_cache_filled_by_two_is_one_folder(cache: Path) -> None:
    def fill_too_late(folder: Path) -> None:
        files.cached_folder(cache, "proof", fill)
        (folder / "proof").write_text("later")

    assert content(files.cached_folder(cache, "proof", fill_too_late)) == {"proof": "later"}
    assert list(cache.parent.iterdir()) == [cache]
