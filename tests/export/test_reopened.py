"""An export is found again in its folder, says which weights it belongs on, and refuses what is damaged or no export."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import grpo_nb as gn
from grpo_nb.evaluation.subjects import open_subject
from grpo_nb.export import merged as merged_file
from grpo_nb.export.children import verify
from grpo_nb.export.gguf import export_gguf
from grpo_nb.export.result import Export, ExportError
from grpo_nb.models.identity import weights_identity
from tests.export.test_merged import each_tensor

pytestmark = pytest.mark.begins(45)


def test_it_is_what_it_was_with_its_run(
    merged: Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = gn.export.open(merged.path)
    assert found == merged and found.run is None and found.sentence == merged.sentence
    with pytest.raises(ValueError, match=r"Say which it was: gn\.export\.open\(.*, run='runs/<name>'\)"):
        gn.export_gguf(str(merged.path), tmp_path / "out")
    assert "Hello" in gn.export.inference_commands(merged.path)["transformers"].code
    (tmp_path / "runs").symlink_to(tiny_run.path.parent)
    assert gn.export.open(str(merged.path)).run.path.resolve() == tiny_run.path.resolve()
    asked = [gn.export.inference_commands(what)["transformers"].code for what in (merged, str(merged.path))]
    assert asked[0] == asked[1]
    assert gn.export.open(merged.path, run=tiny_run).run is tiny_run


@pytest.fixture(scope="module")
def adapter(tiny_run: gn.runs.Run, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return gn.export.export_adapter(tiny_run, tmp_path_factory.mktemp("adapter") / "lora")


def written_gguf(folder: Path) -> Export:
    """The folder of a GGUF export, as far as it is looked at."""
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"GGUF and more")
    values = {"checks": {}, "passed": True, "file": "m.gguf", "bytes": 13, "quantization": "q8_0", "prompts": 2}
    values |= dict.fromkeys(
        ("equal_greedy_text", "equal_greedy_text_near_ties_aside", "mean_logp_difference_to_merged"), 1.0
    )
    (folder / "verification.json").write_text(json.dumps(values))
    return Export(folder, values, "gguf")


def test_what_was_verified_is_known_by_its_bytes(merged: Export, adapter: Export, tmp_path: Path) -> None:
    for whole in (merged, adapter):
        copy = Path(shutil.copytree(whole.path, tmp_path / whole.kind))
        recorded = json.loads((copy / "verification.json").read_text())["files"]
        there = {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()}
        assert there - recorded.keys() == {"README.md", "verification.json", "figures/training.png"}
        for name, entry in recorded.items():
            data = (copy / name).read_bytes()
            assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert not any("as it was verified" in problem for problem in gn.export.push_problems(copy))
        (weights,) = copy.glob("*.safetensors")
        data = weights.read_bytes()
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert any(
            f"not as it was verified: {weights.name} was changed" in problem
            for problem in gn.export.push_problems(copy)
        )


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "emptied": lambda file: file.write_bytes(b""),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("merged", ["model.safetensors", "config.json", "verification.json"]),
        ("adapter", ["adapter_model.safetensors", "adapter_config.json", "verification.json"]),
        ("gguf", ["m.gguf", "verification.json"]),
    ],
)
def test_a_damaged_file_is_named(
    kind: str, names: list[str], how: str, merged: Export, adapter: Export, tmp_path: Path
) -> None:
    whole = {"merged": merged, "adapter": adapter}.get(kind) or written_gguf(tmp_path / "gguf")
    for name in names:
        copy = Path(shutil.copytree(whole.path, tmp_path / f"copy of {name}"))
        assert gn.export.open(copy).kind == kind
        DAMAGES[how](copy / name)
        with pytest.raises((ExportError, ValueError), match=name.replace(".", r"\.")):
            gn.export.open(copy)


def test_a_verification_of_another_version_is_no_export(merged: Export, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(merged.path, tmp_path / "copy"))
    for values in ([], {}, {"checks": {}}, None):
        (copy / "verification.json").write_text(json.dumps(values))
        with pytest.raises(ExportError, match=r"verification\.json (does not say .* another version|.* is damaged)"):
            gn.export.open(copy)
        problems = gn.export.push_problems(copy)
        assert any("verification" in problem for problem in problems)
    (copy / "adapter_config.json").write_text("{")
    assert any("adapter_config.json of the export is damaged" in p for p in gn.export.push_problems(copy))


def test_an_adapter_of_the_embedded_model_is_refused_on_other_weights(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model is its published one's only nearly: in 4 bit, dequantised. The tiny one stands for it."""
    here = Path(tiny_run.settings.model)
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    info = run.info
    info["settings"]["model"] = gn.settings.EMBEDDED_MODEL
    (run.path / "run.json").write_text(json.dumps(info))

    def embedded_is(folder: Path) -> None:
        for place in ("export.merged", "export.result", "evaluation.subjects"):
            monkeypatch.setattr(f"grpo_nb.{place}.resolve_model", lambda name: str(folder))

    embedded_is(here)
    made = gn.export.export_adapter(run, tmp_path / "lora")
    config = json.loads((made.path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == gn.settings.EMBEDDED_MODEL == "SmolLM2-135M-Instruct"
    assert json.loads((made.path / "verification.json").read_text())["base_weights"] == weights_identity(here)
    assert "HuggingFaceTB/SmolLM2-135M-Instruct in 4 bit" in (made.path / "README.md").read_text()
    assert any("whose weights are in no repository" in p for p in gn.export.push_problems(made))
    from peft import AutoPeftModelForCausalLM

    with pytest.raises(OSError):  # PEFT finds no model of that name
        AutoPeftModelForCausalLM.from_pretrained(made.path)
    assert f"from_pretrained({str(here)!r})" in gn.export.inference_commands(made)["peft"].code
    with open_subject(made.path) as subject:
        assert subject.tokenizer is not None
    assert gn.export.open(made.path).kind == "adapter"
    other = Path(shutil.copytree(here, tmp_path / "other"))
    each_tensor(lambda mine, base: 1.01 * mine)(other, here)
    embedded_is(other)
    for use in (lambda: gn.export.open(made.path), lambda: open_subject(made.path).__enter__()):
        with pytest.raises(ValueError, match=r"was trained on other weights than those of 'SmolLM2-135M-Instruct'"):
            use()


def test_long_answers_are_verified_up_to_a_bound_and_told_of(
    merged: Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    info = run.info
    info["settings"]["max_completion_length"] = 512
    (run.path / "run.json").write_text(json.dumps(info))
    request = merged_file.verification_request(Path(run.settings.model), run, merged.path)
    assert request["max_new_tokens"] == 64 == merged_file.VERIFIED_TOKENS
    bars, make = [], merged_file.progress_bar
    monkeypatch.setattr(merged_file, "progress_bar", lambda **how: bars.append(make(**how)) or bars[-1])
    found = merged_file.run_check({**request, "max_new_tokens": 5}, "the merged model")
    tensors = len(load_file(merged.path / "model.safetensors"))
    assert bars[0].n == bars[0].total == tensors + 2 * 5 + 3 * 10 and found["passed"] and found["device"] == "cpu"
    # An answer that goes on beyond the bound says nothing of its score.
    rows = run.holdout
    right = [f"<reasoning>\nit is\n</reasoning>\n<answer>\n{row['answer']}\n</answer>" for row in rows]

    def scored(has_ended: list[bool], texts: list[str]) -> dict[str, Any]:
        values = {"prompts": 10, "tokens": 64, "checks": {}, "measured": {}, "texts": texts, "passed": True}
        values["reference"] = list(zip(right, has_ended, strict=True))
        merged_file.add_score(values, run, "adapter", "adapter")
        return values

    half = scored([True] * 5 + [False] * 5, right[:5] + [""] * 5)
    assert (half["correct"], half["correct_of_adapter"], half["scored"]) == (5, 5, 5) and half["passed"]
    assert not scored([True] * 10, [""] * 10)["passed"]
    none = scored([False] * 10, right)
    assert none["checks"] == {} and "not compared" in Export(tmp_path, {**merged.verification, **none}).sentence


def test_the_check_takes_a_gpu_that_has_room(merged: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (merged.path / "model.safetensors").stat().st_size
    assert verify.free_device(merged.path) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for free, device in ((size + 2**30, "cpu"), (3 * size + 2**30, "cuda")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 80 * 2**30))
        assert verify.free_device(merged.path) == device


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda run: gn.export_merged(run, "out", dtype=16), "dtype = 16 is not one of 'auto'"),
    (lambda run: gn.export_merged(run, "out", overwrite="no"), "overwrite = 'no' must be True or False"),
    (lambda run: export_gguf(run, "out", quantization=None), "quantization = None is not one of 'f32'"),
    (lambda run: gn.export.open("."), r"'\.' is no export: it has no verification\.json"),
    (lambda run: gn.scaleout.write(run, "there", processes="all"), "processes = 'all' must be"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_no_run_export_or_path_is_said_in_one_line(
    call: Callable[[Any], object], said: str, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=said) as caught:
        call(tiny_run)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir()), "nothing is written"
    with pytest.raises(FileNotFoundError, match="no folder 'nowhere'"):
        gn.export.open("nowhere")
