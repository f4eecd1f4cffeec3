"""run.json: one dataclass that is written and read in one place, with the version of its format."""

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.runs.alert import Alert, alerts_of
from grpo_nb.runs.run_info import (
    RENAMED_EVALUATION_FIELDS,
    RENAMED_FIELDS,
    SavedContamination,
    SavedEvaluation,
    SavedMajority,
    read_run_info,
)
from tests.support.run_folders import info_of
from tests.support.written_run import side_of


def write(folder: Path, **changes: object) -> Path:
    file = folder / "run.json"
    file.write_text(json.dumps(info_of({"right": 1.0}) | changes))
    return file


def test_run_info_goes_through_its_file_unchanged(tmp_path: Path) -> None:
    info = read_run_info(write(tmp_path))
    info.adapter_step = 0
    gn.runs.Run(tmp_path).write_info(info)
    assert read_run_info(tmp_path / "run.json") == info


def test_written_run_info_has_the_version_of_its_format(tmp_path: Path) -> None:
    info = read_run_info(write(tmp_path))
    gn.runs.Run(tmp_path).write_info(info)
    assert json.loads((tmp_path / "run.json").read_text())["format_version"] == 1


def test_run_info_without_version_is_read_as_the_first(tmp_path: Path) -> None:
    assert read_run_info(write(tmp_path)).format_version == 1


def test_run_info_leaves_out_unrecorded_fields(tmp_path: Path) -> None:
    content = read_run_info(write(tmp_path)).to_dict()
    assert "adapter_step" not in content
    assert "dtype" in content


def test_run_info_with_earlier_names_is_read(tmp_path: Path) -> None:
    later_fields = {"grader_description": "answers to which maths() gives 1"}
    now = read_run_info(write(tmp_path, **later_fields, base_weights_hash="ab" * 16))
    content = now.to_dict()
    for earlier, name in RENAMED_FIELDS.items():
        content[earlier] = content.pop(name)
    assert {"number_type", "rollout", "holdout_grader", "base"} <= content.keys()
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert read_run_info(tmp_path / "run.json") == now


def test_alert_with_an_earlier_name_is_read() -> None:
    alert = Alert(
        rule="kl", severity="info", step=20, message="KL 3.", advice="", withdrawn_step=40
    )
    earlier = alert.to_dict()
    earlier["ended"] = earlier.pop("withdrawn_step")
    assert alerts_of([{"step": 40, "alerts": [earlier]}]) == [alert]


def test_majority_baseline_with_an_earlier_name_is_read() -> None:
    earlier = {"answer": "spam", "share": 0.5, "is_cleared": True, "sentence": "Beaten."}
    assert SavedMajority.model_validate(earlier).is_beaten


EARLIER_NAMES = [
    pytest.param(
        ["counted_as_correct", "anywhere_note", "compares_gold", "unproven_grader"], id="first"
    ),
    pytest.param(["is_gold_compared"], id="is_gold_compared"),
]


@pytest.mark.parametrize("earlier_names", EARLIER_NAMES)
def test_comparison_side_with_earlier_names_is_read(earlier_names: list[str]) -> None:
    now = side_of("after", 0.75, [0.53, 0.89], 1.0)
    now |= {"correctness_rule": "answers to which maths() gives 1", "unproven_grader_name": "maths"}
    earlier = dict(now)
    for earlier_name in earlier_names:
        earlier[earlier_name] = earlier.pop(RENAMED_EVALUATION_FIELDS[earlier_name])
    side = SavedEvaluation.model_validate(earlier)
    assert side.model_dump() == {**now, "accuracy_interval": (0.53, 0.89)}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("question_count", "trained_count"), id="now"),
        pytest.param(("questions", "count"), id="earlier"),
    ],
)
def test_contamination_with_names_of_now_and_earlier_is_read(names: tuple[str, str]) -> None:
    numbers = dict(zip(names, (20, 3), strict=True))
    saved = SavedContamination.model_validate(numbers | {"source": "the training part"})
    assert (saved.question_count, saved.trained_count) == (20, 3)


def test_alert_of_an_earlier_rule_name_is_read() -> None:
    alert = Alert(rule="zero_variance", severity="info", step=20, message="All equal.", advice="")
    earlier = {**alert.to_dict(), "rule": "no_spread"}
    assert alerts_of([{"step": 20, "alerts": [earlier]}]) == [alert]


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
