"""Paths named in files from elsewhere never lead out of their folder.

For scale-out folders see scaleout/test_project.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.core.files import safe_path
from grpo_nb.export.saved_export import Export
from grpo_nb.models.base_weights import weights_hash
from grpo_nb.runs.checkpoints import newest_checkpoint, write_checkpoint
from grpo_nb.runs.writing import write_step
from tests.support.written_run import compare_by_hand, write_run


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of somebody's, beside one of mine and with links to it and within itself."""
    for name in ("mine", "theirs/within"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file.txt").write_text(name)
    folder = tmp_path / "theirs"
    (folder / "out").symlink_to("../mine")
    (folder / "out.txt").symlink_to(tmp_path / "mine" / "file.txt")
    (folder / "round").symlink_to("round")
    (folder / "link").symlink_to("within")
    return folder


OUT = [
    "/etc/passwd",
    "//etc",
    "..",
    "../mine",
    "within/../../mine",
    "within/..",
    "out",
    "out/file.txt",
    "out.txt",
    "within/../out",
    "C:\\mine",
    "c:mine",
    "..\\mine",
    "\\mine",
]
NO_NAMES = [".", "", None, 3, ["within"]]


@pytest.mark.parametrize("name", OUT, ids=repr)
def test_a_name_that_leads_out_is_refused(theirs: Path, name: object) -> None:
    with pytest.raises(ValueError, match=r"leads out of the folder|symbolic link"):
        safe_path(theirs, name)


@pytest.mark.parametrize("name", NO_NAMES, ids=repr)
def test_what_is_no_name_of_a_file_is_refused(theirs: Path, name: object) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        safe_path(theirs, name)


def test_name_within_is_taken_and_folder_may_be_a_link(theirs: Path, tmp_path: Path) -> None:
    for name in ("within", "within/file.txt", "not/there", "a..b", ".hidden"):
        assert safe_path(theirs, name) == theirs / name
    (tmp_path / "drive").symlink_to(theirs)
    assert safe_path(tmp_path / "drive", "within").is_dir()


@pytest.mark.parametrize("name", ["link", "link/file.txt", "round"])
def test_safe_path_refuses_links_within_the_folder(theirs: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is, or goes through, a symbolic link"):
        safe_path(theirs, name)


def of_a_checkpoint(folder: Path, name: str) -> object:
    """manifest.json"""
    written = write_checkpoint(folder, 3, lambda staged: (staged / "a").write_text("a"))
    (written / "out.txt").symlink_to(folder / "out.txt")
    manifest = json.loads((written / "manifest.json").read_text())
    manifest["files"] |= {name: {"sha256": "0" * 64}}
    (written / "manifest.json").write_text(json.dumps(manifest))
    raise ValueError("; ".join(newest_checkpoint(folder).skip_reasons))


def of_weights(folder: Path, name: str) -> object:
    """model.safetensors.index.json"""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    return weights_hash(folder)


def of_an_export(folder: Path, name: str) -> object:
    """verification.json"""
    values = {"sentence": "", "run": "", "adapter": "", "checks": {}, "measured": {}}
    values |= {"kind": "gguf", "file": name, "files": {name: {"bytes": 4, "sha256": "0" * 64}}}
    (folder / "verification.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"leads out|symbolic link"):
        _ = Export(folder, values).file
    return gn.export.open(folder)


@pytest.mark.parametrize(
    "name", ["/mine/file.txt", "../mine/file.txt", "within/../../mine/file.txt"]
)
@pytest.mark.parametrize(
    "read", [of_a_checkpoint, of_weights, of_an_export], ids=lambda read: read.__doc__
)
def test_what_a_file_names_lies_in_its_folder(
    theirs: Path, read: Callable[[Path, str], object], name: str
) -> None:
    name = str(theirs.parent / name[1:]) if name.startswith("/") else name
    # `gn.export.open` comes upon the links of the fixture first.
    with pytest.raises(
        ValueError, match=r"leads out of the folder|is not in its folder|'out' is, .* symbolic link"
    ):
        read(theirs, name)


@pytest.mark.parametrize("read", [of_a_checkpoint, of_an_export], ids=lambda read: read.__doc__)
def test_nor_over_a_link(theirs: Path, read: Callable[[Path, str], object]) -> None:
    with pytest.raises(ValueError, match=r"'out(\.txt)?' is, or goes through, a symbolic link"):
        read(theirs, "out.txt")


@pytest.mark.parametrize(
    "name", ["README.md", "comparison", "checkpoints", "metrics.jsonl", "adapter"]
)
def test_a_run_with_a_link_to_elsewhere_is_not_opened(
    theirs: Path, tmp_path: Path, name: str
) -> None:
    """Work on a run writes into its folder: its card, a comparison, checkpoints."""
    run = write_run(tmp_path / "runs" / "sent")
    if (run.path / name).exists():
        (run.path / name).rename(tmp_path / "aside")
    (run.path / name).symlink_to(tmp_path / "mine")
    with pytest.raises(
        ValueError,
        match=rf"'{name}' is, or goes through, a symbolic link.* Replace the link with a copy",
    ):
        gn.open_run(run.path)
    listed = gn.runs.list(run.path.parent)
    assert not listed
    assert "a symbolic link" in listed.unreadable["sent"]
    (run.path / name).unlink()
    assert gn.open_run(run.path).name == "sent"


NESTED = [
    "completions/step_000001.parquet",
    "figures/training.png",
    "comparison/comparison.json",
    "start/train.jsonl",
    "checkpoints/checkpoint-1/manifest.json",
    "adapter/deep/er/link",
]


@pytest.mark.parametrize("name", NESTED)
def test_open_run_refuses_nested_links(theirs: Path, tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "runs" / "sent")
    link = run.path / name
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "mine" / "file.txt")
    with pytest.raises(ValueError, match=f"'{name}' is, or goes through, a symbolic link"):
        gn.open_run(run.path)
    assert "a symbolic link" in gn.runs.list(run.path.parent).unreadable["sent"]


READS = {
    "run.json": lambda run: run.info,
    "metrics.jsonl": lambda run: run.rows,
    "holdout.jsonl": lambda run: run.holdout,
    "train_questions.txt": lambda run: run.train_question_hashes,
    "completions/step_000001.parquet": lambda run: run.completions(1),
    "comparison/comparison.json": lambda run: run.comparison,
}


@pytest.mark.parametrize("name", READS)
def test_run_reads_no_link_that_came_after_opening(theirs: Path, tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "runs" / "sent")
    link = run.path / name
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "mine" / "file.txt")
    with pytest.raises(ValueError, match=f"'{name}' is, or goes through, a symbolic link"):
        READS[name](run)


def test_rewritten_file_is_not_written_through_a_link(theirs: Path, tmp_path: Path) -> None:
    from grpo_nb.runs.card import write_model_card

    run = write_run(tmp_path / "runs" / "sent")
    compare_by_hand(run)
    mine = tmp_path / "mine" / "file.txt"
    (run.path / "README.md").unlink(missing_ok=True)
    (run.path / "README.md").symlink_to(mine)
    write_model_card(run)
    assert mine.read_text() == "mine"
    assert "GRPO" in (run.path / "README.md").read_text()


def test_row_is_not_appended_through_a_link(theirs: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "sent")
    mine = tmp_path / "mine" / "file.txt"
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").symlink_to(mine)
    with pytest.raises(ValueError, match=r"'metrics\.jsonl' is, or goes through, a symbolic link"):
        write_step(run, {"step": 1}, None)
    assert mine.read_text() == "mine"
