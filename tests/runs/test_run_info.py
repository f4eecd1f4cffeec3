"""run.json: one dict that is written and read in one place, with the version of its format."""

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.runs.run_info import read_run_info
from grpo_nb.runs.writing import write_run_info
from tests.support.run_folders import info_of


def write(folder: Path, **changes: object) -> Path:
    file = folder / "run.json"
    file.write_text(json.dumps(info_of({"right": 1.0}) | changes))
    return file


def test_run_info_goes_through_its_file_unchanged(tmp_path: Path) -> None:
    info = read_run_info(write(tmp_path))
    info["adapter_step"] = 0
    write_run_info(gn.runs.Run(tmp_path), info)
    assert read_run_info(tmp_path / "run.json") == info


def test_written_run_info_has_the_version_of_its_format(tmp_path: Path) -> None:
    info = read_run_info(write(tmp_path))
    write_run_info(gn.runs.Run(tmp_path), info)
    assert json.loads((tmp_path / "run.json").read_text())["format_version"] == 1


def test_run_info_without_version_is_read_as_the_first(tmp_path: Path) -> None:
    assert "format_version" not in json.loads(write(tmp_path).read_text())
    assert read_run_info(tmp_path / "run.json")["format_version"] == 1


def test_run_info_leaves_out_unrecorded_fields(tmp_path: Path) -> None:
    content = read_run_info(write(tmp_path, adapter_step=None))
    assert "adapter_step" not in content
    assert "dtype" in content


def test_run_info_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path, format_version=2, status="a later word")
    said = (
        r"run\.json.* another version of grpo_nb .*format_version Input should be 1 .*input_value=2"
    )
    with pytest.raises(ValueError, match=said):
        _ = gn.open_run(tmp_path).info


@pytest.mark.parametrize("version", ["1", None, []])
def test_run_info_of_a_damaged_version_is_refused(tmp_path: Path, version: object) -> None:
    write(tmp_path, format_version=version)
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        _ = gn.open_run(tmp_path).info


def test_list_of_runs_goes_on_past_a_later_version(tmp_path: Path) -> None:
    for name, changes in (("now", {}), ("later", {"format_version": 2})):
        (tmp_path / name).mkdir()
        write(tmp_path / name, **changes)
    assert "format_version Input should be 1" in repr(gn.runs.list(tmp_path))
    assert "now" in repr(gn.runs.list(tmp_path))
