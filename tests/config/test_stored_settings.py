"""Settings in files of an earlier version are read under their names of today."""

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.support.run_folders import info_of

OLD = {**gn.preset("cpu", keep_adapter="best").to_dict()}
OLD["keep"] = OLD.pop("keep_adapter")


def test_settings_file_with_old_name_loads(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(OLD))
    assert gn.Settings.load(file) == gn.preset("cpu", keep_adapter="best")


def test_run_with_old_setting_name_opens(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(info_of({}) | {"settings": OLD}))
    run = gn.open_run(tmp_path)
    assert run.settings.keep_adapter == "best"
    assert run.info["settings"]["keep_adapter"] == "best"
    assert "keep" not in run.info["settings"]


def test_old_name_beside_the_new_one_is_refused() -> None:
    with pytest.raises(ValueError, match="the setting is keep_adapter"):
        gn.Settings.from_dict({**OLD, "keep_adapter": "last"})


def test_old_name_in_a_call_names_the_new_one() -> None:
    with pytest.raises(ValueError, match="Write instead: keep_adapter='best'"):
        gn.preset("cpu", keep="best")
