"""An export is found again in its folder, says which weights it belongs on, and refuses what is damaged or no export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.subjects import open_subject
from grpo_nb.export.result import Export, ExportError
from grpo_nb.models.identity import weights_identity
from tests.export.test_merged import each_tensor, rewrite

pytestmark = pytest.mark.begins(45)


@pytest.fixture(scope="module")
def adapter(tiny_run: gn.runs.Run, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return gn.export.export_adapter(tiny_run, tmp_path_factory.mktemp("adapter") / "lora")


def test_it_is_what_it_was_with_its_run_wherever_one_works(
    merged: Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = gn.export.open(merged.path)
    assert found == merged and found.run is None and found.sentence == merged.sentence and "Hello" in found.usage
    assert gn.export.open(merged.path, run=tiny_run).run is tiny_run
    (tmp_path / "runs").mkdir()
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "runs" / tiny_run.name))
    assert gn.export.open(str(merged.path)).run.path.resolve() == run.path.resolve()
    assert gn.export.open(merged.path).usage == merged.usage
    # A run of that name that was trained on since is another.
    weights = run.adapter_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert gn.export.open(merged.path).run is None
    copy = Path(shutil.copytree(merged.path, tmp_path / "copy"))
    rewrite(copy / "verification.json", run="../elsewhere")
    with pytest.raises(ValueError, match=r"'\.\./elsewhere' leads out of the folder"):
        gn.export.open(copy)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "emptied": lambda file: file.write_bytes(b""),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "adapter_model.safetensors", "verification.json"]
)
def test_a_damaged_file_is_named(name: str, how: str, merged: Export, adapter: Export, tmp_path: Path) -> None:
    whole = adapter if "adapter" in name else merged
    copy = Path(shutil.copytree(whole.path, tmp_path / "copy"))
    (copy / "README.md").write_text("The card is the user's.")
    assert gn.export.open(copy).kind == whole.kind
    DAMAGES[how](copy / name)
    with pytest.raises(ExportError, match=name.replace(".", r"\.")):
        gn.export.open(copy)


@pytest.mark.parametrize("values", [[], {}, {"checks": {}}, None, {"files": {"a": 1}}])
def test_what_is_no_export(values: object, tmp_path: Path) -> None:
    (tmp_path / "verification.json").write_text(json.dumps(values))
    with pytest.raises(
        ExportError, match=r"is no export: its verification\.json is missing, damaged or of another version"
    ):
        gn.export.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder 'nowhere'"):
        gn.export.open("nowhere")


def test_an_adapter_of_the_embedded_model_is_refused_on_other_weights(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model is its published one's only nearly: in 4 bit, dequantised. The tiny one stands for it."""
    here = Path(tiny_run.settings.model)
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    rewrite(run.path / "run.json", settings={**run.info["settings"], "model": gn.settings.EMBEDDED_MODEL})

    def embedded_is(folder: Path) -> None:
        for place in ("export.merged", "export.result", "evaluation.subjects"):
            monkeypatch.setattr(f"grpo_nb.{place}.resolve_model", lambda name: str(folder))

    embedded_is(here)
    made = gn.export.export_adapter(run, tmp_path / "lora")
    config = json.loads((made.path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == gn.settings.EMBEDDED_MODEL == "SmolLM2-135M-Instruct"
    assert made.verification["base_weights"] == weights_identity(here)
    assert "HuggingFaceTB/SmolLM2-135M-Instruct in 4 bit" in (made.path / "README.md").read_text()
    assert any("'SmolLM2-135M-Instruct' are in no repository" in p for p in gn.export.push_problems(made))
    from peft import AutoPeftModelForCausalLM

    with pytest.raises(OSError):  # PEFT finds no model of that name
        AutoPeftModelForCausalLM.from_pretrained(made.path)
    assert f"model={str(here)!r}" in made.usage
    with open_subject(made.path) as subject:
        assert subject.tokenizer is not None
    other = Path(shutil.copytree(here, tmp_path / "other"))
    each_tensor(lambda mine, base: 1.01 * mine)(other, here)
    embedded_is(other)
    with pytest.raises(ValueError, match=r"was trained on other weights than those of 'SmolLM2-135M-Instruct'"):
        open_subject(made.path).__enter__()
