"""A merged model is the trained one, and each classic way of losing the training is caught."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import grpo_nb as gn
from grpo_nb import export, verify_merged


@pytest.fixture(scope="module")
def merged(tiny_run: gn.Run, tmp_path_factory: pytest.TempPathFactory) -> export.Export:
    return gn.export_merged(tiny_run, tmp_path_factory.mktemp("exports") / "tiny")


def test_it_is_verified_and_loads_anywhere(merged: export.Export, tiny_run: gn.Run) -> None:
    verification = json.loads((merged.path / "verification.json").read_text())
    assert verification == merged.verification and verification["merged"] == "tensor by tensor"
    assert "held-out score within the 95 % interval of the adapter's" in verification["checks"]
    assert merged.file == merged.path and list(merged.table["passed"]) == [True] * len(verification["checks"])
    assert "&#10003; passed" in merged._repr_html_() and "10 answers right" in merged.sentence
    assert verification["passed"] and all(verification["checks"].values())
    assert verification["imported_unsloth_or_kit"] == []
    assert verification["retained_change"] >= 0.95
    files = [f for f in merged.path.rglob("*") if f.is_file()]
    assert {f.suffix for f in files} <= {".json", ".safetensors", ".jinja", ".md", ".png"}
    assert "verified on" in repr(gn.open_run(tiny_run.path))
    code = (
        "import sys; from transformers import pipeline\n"
        f"chat = pipeline('text-generation', model={str(merged.path)!r}, dtype='float32')\n"
        "print(chat([{'role': 'user', 'content': 'hi'}], max_new_tokens=4)[0]['generated_text'][-1]['role'])\n"
        "assert not {'unsloth', 'grpo_nb'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout.strip().endswith("assistant"), out.stderr[-2000:]


def test_a_run_trained_in_4_bit(tiny_folder: Path, tmp_path: Path) -> None:
    from tests.conftest import brevity

    settings = gn.preset(
        "cpu", model=str(tiny_folder), load_in_4bit=True, max_steps=5, max_completion_length=12, learning_rate=2e-2,
        max_grad_norm=10.0, run_root=str(tmp_path / "runs"),
    )  # fmt: skip
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout_size=6, tokenizer=tokenizer)
    run = gn.train(model, tokenizer, task, [brevity], settings)
    # TRL alone would train it in bfloat16, where small updates are rounded away.
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    exported = gn.export_merged(run, tmp_path / "merged")
    tensors = load_file(exported.path / "model.safetensors")
    assert all(t.dtype in (torch.bfloat16, torch.float16, torch.float32) for t in tensors.values())


def spoil(merged: Path, run: gn.Run, how: str) -> None:
    file = merged / "model.safetensors"
    if how == "chat template lost":
        (merged / "chat_template.jinja").unlink()
        return
    if how == "truncated file":
        file.write_bytes(file.read_bytes()[:-1000])
        return
    if how == "generation's end lost":
        config = json.loads((merged / "generation_config.json").read_text())
        (merged / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": 0}))
        return
    if how == "a pickle beside it":
        torch.save({}, merged / "pytorch_model.bin")
        return
    if how == "chat template changed":
        template = (merged / "chat_template.jinja").read_text()
        (merged / "chat_template.jinja").write_text(template.replace("assistant", "Assistant"))
        return
    if how == "end token lost":
        config = json.loads((merged / "tokenizer_config.json").read_text())
        (merged / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|endoftext|>"}))
        return
    tensors = load_file(file)
    base = load_file(Path(run.settings.model) / "model.safetensors")
    if how == "adapter never applied":
        tensors = {name: base[name].to(t.dtype) for name, t in tensors.items()}
    elif how == "adapter applied twice":
        tensors = {name: (2 * t.float() - base[name].float()).to(t.dtype) for name, t in tensors.items()}
    elif how == "half the scaling":
        tensors = {name: ((t.float() + base[name].float()) / 2).to(t.dtype) for name, t in tensors.items()}
    elif how == "wrong base":
        generator = torch.Generator().manual_seed(9)
        tensors = {n: t + 0.05 * torch.randn(t.shape, generator=generator).to(t.dtype) for n, t in tensors.items()}
    elif how == "embeddings untied":
        tensors["lm_head.weight"] = torch.randn(tensors["model.embed_tokens.weight"].shape)
        config = json.loads((merged / "config.json").read_text())
        (merged / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    elif how == "a tensor missing":
        tensors.pop("model.layers.1.mlp.up_proj.weight")
    elif how == "not finite":
        tensors["model.norm.weight"][0] = float("nan")
    elif how == "embedding broken":
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].roll(1, 0)
    save_file({name: t.contiguous() for name, t in tensors.items()}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("adapter never applied", "every weight is base plus adapter"),
        ("adapter applied twice", "every weight is base plus adapter"),
        ("half the scaling", "every weight is base plus adapter"),
        ("wrong base", "every weight is base plus adapter"),
        ("embedding broken", "every weight is base plus adapter"),
        ("embeddings untied", "tensors finite and complete"),
        ("a tensor missing", "tensors finite and complete"),
        ("not finite", "tensors finite and complete"),
        ("a pickle beside it", "safetensors only"),
        ("generation's end lost", "generation ends where the base's does"),
        ("chat template changed", "tokenizer, chat template and end token"),
        ("chat template lost", "tokenizer, chat template and end token"),
        ("end token lost", "tokenizer, chat template and end token"),
        ("truncated file", "incomplete|invalid|deserializ"),
    ],
)
def test_classic_failures_are_caught(
    merged: export.Export, tiny_run: gn.Run, how: str, found: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(merged.path, copy)
    spoil(copy, tiny_run, how)
    request = export.verification_request(Path(tiny_run.settings.model), tiny_run, copy)
    try:
        verification = verify_merged.verify(request)
    except Exception as error:  # it cannot even be loaded: the process ends with this, and the export is refused
        assert re.search(found, str(error), re.IGNORECASE), error
        return
    assert not verification["passed"]
    failed = [name for name, ok in verification["checks"].items() if not ok]
    assert any(found in name for name in failed), failed


def test_a_failed_verification_leaves_nothing(
    tiny_run: gn.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = export.merge

    def loses_the_training(base: Path, adapter: Path, staged: Path, **how: object) -> dict:
        kept = real(base, adapter, staged, **how)
        spoil(staged, tiny_run, "adapter never applied")
        return kept

    monkeypatch.setattr(export, "merge", loses_the_training)
    with pytest.raises(export.ExportError, match="not the trained one"):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_answers_worse_is_refused(
    tiny_run: gn.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a difference that no other check sees: the merged model's answers are all wrong, the adapter's right."""
    real, rows = export.run_check, tiny_run.holdout()

    def answers_wrong(script: str, request: dict, what: str) -> dict:
        found = real(script, request, what)
        right = [f"<reasoning>\nit is\n</reasoning>\n<answer>\n{row['answer']}\n</answer>" for row in rows]
        return {**found, "texts_of_adapter": right, "texts": ["" for _ in rows]}

    monkeypatch.setattr(export, "run_check", answers_wrong)
    with pytest.raises(export.ExportError, match=r"held-out score .*0 of 10 right, the adapter's 10 \(72% to 100%\)"):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_adapter_alone(tiny_run: gn.Run, tmp_path: Path) -> None:
    made = gn.export_adapter(tiny_run, tmp_path / "lora")
    mine, theirs = (load_file(p / "adapter_model.safetensors") for p in (made.path, tiny_run.adapter_path))
    assert mine.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in mine.items())
    assert {"adapter_config.json", "chat_template.jinja", "tokenizer.json", "verification.json"} <= {
        f.name for f in made.path.iterdir()
    }
    assert made.verification["passed"] and made.kind == "adapter" and "every byte equal" in made.sentence
    assert made.sentence in repr(gn.open_run(tiny_run.path))
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.export_adapter(tiny_run, tmp_path / "lora")
    # An adapter that does nothing is no export.
    run = gn.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    file = run.adapter_path / "adapter_model.safetensors"
    save_file({n: t * (0 if "lora_B" in n else 1) for n, t in load_file(file).items()}, file)
    with pytest.raises(export.ExportError, match="Failed: the adapter changes the model"):
        gn.export_adapter(run, tmp_path / "lora", overwrite=True)
    assert gn.open_run(run.path) and (made.path / "verification.json").is_file()


def test_rounding_that_would_lose_the_training_is_refused(tiny_run: gn.Run, tmp_path: Path) -> None:
    """A change of a ten-thousandth of the trained one is far below the steps of bfloat16."""
    run = gn.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    file = run.adapter_path / "adapter_model.safetensors"
    save_file({n: t * (0.0001 if "lora_B" in n else 1) for n, t in load_file(file).items()}, file)
    with pytest.raises(export.ExportError, match="would lose a part of the training"):
        gn.export_merged(run, tmp_path / "out", dtype="bfloat16")
    assert not (tmp_path / "out").exists()


def test_targets_and_types(tiny_run: gn.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.export_merged(tiny_run, tmp_path / "taken")
    with pytest.raises(ValueError, match="low_memory = 'no'"):
        gn.export_merged(tiny_run, tmp_path / "new", low_memory="no")
    with pytest.raises(ValueError, match="dtype = 'int8'"):
        gn.export_merged(tiny_run, tmp_path / "new", dtype="int8")
    monkeypatch.setattr("grpo_nb.export_plan.free_disk_bytes", lambda path: 10**6)
    with pytest.raises(gn.EnvironmentProblem, match="merged: it needs"):
        gn.export_merged(tiny_run, tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"] and (tmp_path / "taken" / "mine.txt").is_file()
