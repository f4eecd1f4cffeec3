"""An export is opened from its folder; damaged folders are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.export.saved_export import Export, ExportError
from tests.export.test_merged import rewrite

pytestmark = pytest.mark.begins(45)


def test_open_export_is_the_export_with_the_given_run(
    merged: Export, tiny_run: gn.runs.Run
) -> None:
    export = gn.export.open(str(merged.path), run=tiny_run.path)
    assert export == merged
    assert export.run.path == tiny_run.path


def test_gguf_of_an_export_without_its_run_says_how_to_open_it(
    merged: Export, tmp_path: Path
) -> None:
    export = gn.export.open(merged.path)
    assert export.run is None
    with pytest.raises(ValueError, match=r"gn\.export\.open\(path, run='runs/tiny'\)"):
        gn.export_gguf(export, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:-5])),
        ("tokenizer.json", Path.unlink),
        ("verification.json", Path.unlink),
        ("verification.json", lambda file: file.write_text("{")),
        ("verification.json", lambda file: file.write_text("null")),
    ],
)
def test_open_export_refuses_damaged_folders(
    name: str, damage: Callable[[Path], object], merged: Export, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(merged.path, tmp_path / "copy"))
    (copy / "README.md").write_text("The card is the user's.")
    assert gn.export.open(copy).kind == "merged"
    damage(copy / name)
    with pytest.raises(ExportError, match=name.replace(".", r"\.")):
        gn.export.open(copy)


def test_verification_of_many_wrong_fields_gives_a_short_error(tmp_path: Path) -> None:
    checks = {f"check {number}\x1b": "no" for number in range(3000)}
    fields = {"kind": "merged", "run": "", "adapter": "", "sentence": "", "checks": checks}
    (tmp_path / "verification.json").write_text(json.dumps({**fields, "measured": {}, "files": {}}))
    with pytest.raises(ExportError, match=r"checks\.check 0\\x1b") as raised:
        gn.export.open(tmp_path)
    message = str(raised.value)
    assert "verification.json" in message
    assert "http" not in message
    assert len(message) < 500 + 2 * len(str(tmp_path))


def test_adapter_of_a_relative_folder_is_never_pushable(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relative path of a folder looks like a name on the Hub in every other folder."""
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    shutil.copytree(run.settings.model, tmp_path / "models" / "mine")
    rewrite(run.path / "run.json", settings={**run.info["settings"], "model": "models/mine"})
    monkeypatch.chdir(tmp_path)
    made = gn.export.export_adapter(run, tmp_path / "lora")
    monkeypatch.chdir(tmp_path / "models")
    (problem,) = gn.export.push_problems(made)
    assert "its base model 'mine' are in no repository" in problem


def test_adapter_of_embedded_model_needs_its_weights(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model differs from the published one. The tiny model stands in for it."""
    here = Path(tiny_run.settings.model)
    name = gn.config.EMBEDDED_MODEL
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    rewrite(run.path / "run.json", settings={**run.info["settings"], "model": name})

    def embedded_is(folder: Path) -> None:
        for place in ("export.adapter", "models.load"):
            monkeypatch.setattr(f"grpo_nb.{place}.resolve_model", lambda *_: str(folder))

    embedded_is(here)
    made = gn.export.export_adapter(run, tmp_path / "lora")
    assert (
        json.loads((made.path / "adapter_config.json").read_text())["base_model_name_or_path"]
        == name
    )
    assert any(
        f"'{name}' are in no repository" in problem for problem in gn.export.push_problems(made)
    )
    assert "`verification.json` has their hash" in (made.path / "README.md").read_text()
    assert made.verification["base_weights_hash"] == tiny_run.info["base_weights_hash"]
