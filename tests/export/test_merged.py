"""A merged model is the trained one, and each classic way of losing the training is caught."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

import grpo_nb as gn
from grpo_nb.export import merged as export
from grpo_nb.export.children import verify
from grpo_nb.models.identity import template_of

pytestmark = pytest.mark.begins(40)
WEIGHTS = "every weight is base plus adapter, rounded once"


def rewrite(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def moved(run: gn.runs.Run, folder: Path) -> gn.runs.Run:
    """The run and its base, in folders of their own."""
    base = shutil.copytree(run.settings.model, folder / "base")
    copy = gn.runs.Run(shutil.copytree(run.path, folder / "run"))
    rewrite(copy.path / "run.json", settings={**copy.info["settings"], "model": str(base)})
    return copy


def test_it_is_verified_and_loads_anywhere(merged: export.Export, tiny_run: gn.runs.Run) -> None:
    verification = json.loads((merged.path / "verification.json").read_text())
    assert verification == merged.verification and verification["merged"] == "file by file"
    assert verification["kind"] == "merged" == merged.kind and merged.file == merged.path
    assert verification["passed"] and set(verification["checks"].values()) == {True}
    assert verification["imported_unsloth_or_kit"] == [] and verification["retained_change"] >= 0.95
    assert "trained_in_4bit" not in verification and "4 bit" not in merged.sentence
    assert list(merged.table["passed"]) == [True] * len(verification["checks"])
    assert "✓ passed" in merged._repr_html_() and "every weight is base plus adapter" in merged.sentence
    files = {f.relative_to(merged.path).as_posix(): f for f in merged.path.rglob("*") if f.is_file()}
    for name in files.keys() - {"verification.json"}:
        data = files[name].read_bytes()
        assert verification["files"][name] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    here = (str(Path(tiny_run.settings.model).parent), str(tiny_run.path.parent), str(merged.path.parent))
    texts = [f.read_text() for f in files.values() if f.suffix in (".json", ".jinja", ".md")]
    assert not [place for place in here for text in texts if place in text], "no path of this machine"
    assert merged.sentence in repr(gn.open_run(tiny_run.path))
    code = (
        "import sys; from transformers import pipeline\n"
        f"chat = pipeline('text-generation', model={str(merged.path)!r}, dtype='float32')\n"
        "print(chat([{'role': 'user', 'content': 'hi'}], max_new_tokens=4)[0]['generated_text'][-1]['role'])\n"
        "assert not {'unsloth', 'grpo_nb'} & set(sys.modules)"
    )
    out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout.strip().endswith("assistant"), out.stderr[-2000:]


def test_a_run_trained_in_4_bit(
    tiny_folder: Path, checked_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert {t.dtype for t in tensors.values()} <= {torch.bfloat16, torch.float16, torch.float32}
    assert "compared with the base in 16 bit plus adapter, but trained in 4 bit" in exported.sentence
    assert "not measured: the run has no comparison of its own (gn.compare(run))" in exported.sentence

    compared = gn.compare(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = gn.export_merged(run, tmp_path / "merged", overwrite=True)
    beside = exported.verification["trained_in_4bit"]
    alone = gn.evaluate(exported.path, run=run)
    assert (beside["accuracy"], beside["interval"]) == (alone.accuracy, list(alone.interval))
    card = (exported.path / "README.md").read_text()
    for text in (card, exported.sentence, gn.export.open(exported.path).sentence, run.exports[-1].sentence):
        assert beside["said"] in text and "trained in 4 bit, so that answers may differ" in text

    # What the run's comparison says does not hold for it: said, and no published number either way.
    file = run.path / "comparison" / "comparison.json"
    rewrite(file, after={**compared.after.to_dict(), "accuracy": 0.9, "interval": [0.7, 1]})
    with pytest.warns(UserWarning, match=r"right, the run in 4 bit 90\.0% .* is OUTSIDE of that interval"):
        export.score_beside_run(run, exported.path)
    rewrite(file, after={**compared.after.to_dict(), "judged_by": "somebody"})
    assert "asked or judged otherwise" in export.score_beside_run(run, exported.path)["said"]
    file.write_text("{")
    assert "not measured: " in export.score_beside_run(run, exported.path)["said"]
    file.write_text(json.dumps(compared.to_dict()))
    monkeypatch.setattr("grpo_nb.export.merge.free_memory_bytes", lambda: 10**5)
    monkeypatch.setattr(export, "evaluate", lambda *_, **__: pytest.fail("it was loaded where it does not fit"))
    full = export.score_beside_run(run, exported.path)
    assert full.keys() == {"said"} and re.search("not measured: EnvironmentProblem: .* memory", full["said"])


Spoil = Callable[[Path, Path], object]


def each_tensor(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Spoil:
    """Change every tensor of the merged model, given that of the base."""

    def spoil(merged: Path, base: Path) -> None:
        mine, theirs = (load_file(folder / "model.safetensors") for folder in (merged, base))
        tensors = {name: change(t.float(), theirs[name].float()).to(t.dtype) for name, t in mine.items()}
        save_file(tensors, merged / "model.safetensors", metadata={"format": "pt"})

    return spoil


def one_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Spoil:
    """Change one, as it is, or take it out."""

    def spoil(merged: Path, base: Path) -> None:
        file = merged / "model.safetensors"
        tensors = load_file(file)
        changed = change(tensors.pop(name, tensors["model.embed_tokens.weight"]))
        tensors |= {} if changed is None else {name: changed.contiguous()}
        save_file(tensors, file, metadata={"format": "pt"})

    return spoil


def file(name: str, change: Callable[[Path], object]) -> Spoil:
    return lambda merged, base: change(merged / name)


WORDS, TEMPLATE, GENERATION = "tokenizer, chat template and end tokens", "chat_template.jinja", "generation_config.json"
SAID = "words: "
FAILURES: dict[str, tuple[str, Spoil]] = {
    "adapter never applied": (WEIGHTS, each_tensor(lambda merged, base: base)),
    "adapter applied twice": (WEIGHTS, each_tensor(lambda merged, base: 2 * merged - base)),
    "half the scaling": (WEIGHTS, each_tensor(lambda merged, base: (merged + base) / 2)),
    "wrong base": (WEIGHTS, each_tensor(lambda merged, base: merged + 0.05 * torch.randn(merged.shape))),
    "embedding broken": (WEIGHTS, one_tensor("model.embed_tokens.weight", lambda tensor: tensor.roll(1, 0))),
    "embeddings untied": (WEIGHTS, one_tensor("lm_head.weight", lambda tensor: torch.randn(tensor.shape))),
    "a tensor missing": (WEIGHTS, one_tensor("model.layers.1.mlp.up_proj.weight", lambda tensor: None)),
    "not finite": (WEIGHTS, one_tensor("model.norm.weight", lambda tensor: tensor * float("nan"))),
    "generation's end lost": (WORDS, file(GENERATION, lambda f: rewrite(f, eos_token_id=0))),
    "chat template changed": (WORDS, file(TEMPLATE, lambda f: f.write_text(f.read_text().replace("assist", "Assist")))),
    "chat template lost": (WORDS, file(TEMPLATE, Path.unlink)),
    "end token lost": (WORDS, file("tokenizer_config.json", lambda f: rewrite(f, eos_token="<|endoftext|>"))),
    "another shape of the model": (SAID, file("config.json", lambda f: rewrite(f, rms_norm_eps=1.0))),
    "truncated file": (
        "incomplete|invalid|deserializ",
        file("model.safetensors", lambda f: f.write_bytes(f.read_bytes()[:-1000])),
    ),
}


def checked(run: gn.runs.Run, folder: Path) -> dict:
    """What the check of a merged folder answers."""
    named = {"base": run.settings.model, "adapter": str(run.adapter_path), "merged": str(folder)}
    asked = {"chat_template": template_of(run.path), "is_plain": True, "limits": export.LIMITS}
    return verify.answer({"check": "merged", **named, **asked, **export.verified_texts(run)})


@pytest.mark.parametrize("how", FAILURES)
def test_classic_failures_are_caught(merged: export.Export, tiny_run: gn.runs.Run, how: str, tmp_path: Path) -> None:
    copy, (found, spoil) = Path(shutil.copytree(merged.path, tmp_path / "copy")), FAILURES[how]
    spoil(copy, Path(tiny_run.settings.model))
    try:
        verification = checked(tiny_run, copy)
    except Exception as error:  # it cannot even be loaded: the process ends with this, and the export is refused
        assert re.search(found, str(error), re.IGNORECASE), error
        return
    assert not verification["passed"]
    failed = [name for name, ok in verification["checks"].items() if ok is False]
    assert any(found in name for name in failed), failed


def test_where_a_model_does_not_fit_all_weights_are_compared_and_the_table_says_so(
    merged: export.Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "place", lambda *_: None)
    found = checked(tiny_run, merged.path)
    assert found["passed"] and found["checks"][WEIGHTS] and found["checks"]["words"] is None
    shown = repr(export.Export(merged.path, {**merged.verification, **found}))
    assert re.search(r"not made +words +not compared: no memory is free for the model here", shown)
    for how in ("adapter never applied", "embedding broken", "not finite", "chat template lost"):
        copy = Path(shutil.copytree(merged.path, tmp_path / how))
        FAILURES[how][1](copy, Path(tiny_run.settings.model))
        assert not checked(tiny_run, copy)["passed"], how


@pytest.mark.parametrize(
    ("cpu", "cuda", "wanted"),
    [
        (1, None, None),
        (2, None, ("cpu", "auto")),
        (3, None, ("cpu", torch.float32)),
        (3, 2, ("cuda", "auto")),
        (3, 1, ("cpu", torch.float32)),
    ],
)
def test_a_model_is_asked_in_float32_where_that_fits(
    cpu: int, cuda: int | None, wanted: object, merged: export.Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free is, of each, so many times the files and a GiB."""
    size = (merged.path / "model.safetensors").stat().st_size
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda is not None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (cuda * size + 2**30, 0))
    assert verify.place(merged.path, cpu * size + 2**30) == wanted


@pytest.mark.usefixtures("checked_here")
def test_a_failed_verification_leaves_nothing(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = export.merge

    def loses_the_training(base: Path, adapter: Path, staged: Path, **how: object) -> dict:
        kept = real(base, adapter, staged, **how)
        FAILURES["adapter never applied"][1](staged, base)
        return kept

    monkeypatch.setattr(export, "merge", loses_the_training)
    with pytest.raises(export.ExportError, match=f"not the trained one.*Failed: {WEIGHTS} .*differs from base plus"):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_adapter_alone(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    made = gn.export.export_adapter(tiny_run, tmp_path / "lora")
    mine, theirs = ((p / "adapter_model.safetensors").read_bytes() for p in (made.path, tiny_run.adapter_path))
    assert mine == theirs and made.kind == "adapter" and "for tiny, every byte equal" in made.sentence
    assert {"adapter_config.json", "chat_template.jinja", "tokenizer.json"} <= made.verification["files"].keys()
    assert made.verification["passed"] and made.sentence in repr(gn.open_run(tiny_run.path))
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.export.export_adapter(tiny_run, tmp_path / "lora")
    gn.export.export_adapter(tiny_run, tmp_path / "lora", overwrite=True)
    noted = [entry.path for entry in tiny_run.exports]
    assert noted.count(str(made.path)) == 1, "the one that was replaced is not said to be there"
    # An adapter that does nothing is no export.
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    file = run.adapter_path / "adapter_model.safetensors"
    save_file({n: t * (0 if "lora_B" in n else 1) for n, t in load_file(file).items()}, file)
    with pytest.raises(export.ExportError, match="Failed: the adapter changes the model"):
        gn.export.export_adapter(run, tmp_path / "lora", overwrite=True)
    assert gn.export.open(made.path).kind == "adapter"
    file.unlink()
    with pytest.raises(FileNotFoundError, match="has no adapter: train it to its end first"):
        gn.export.export_adapter(run, tmp_path / "new")


def test_targets_and_types(tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.export_merged(tiny_run, tmp_path / "taken")
    with pytest.raises(TypeError, match="overwrite = 'no' must be True or False"):
        gn.export_merged(tiny_run, tmp_path / "taken", overwrite="no")
    with pytest.raises(ValueError, match="dtype = 'int8' is not one of 'auto'"):
        gn.export_merged(tiny_run, tmp_path / "new", dtype="int8")
    with monkeypatch.context() as patch:
        patch.setattr("grpo_nb.export.merge.free_memory_bytes", lambda: 10**6)
        with pytest.raises(gn.machine.EnvironmentProblem, match=r"largest file of the base needs .* 0\.00 GB are free"):
            gn.export_merged(tiny_run, tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr("grpo_nb.machine.host.free_disk_bytes", lambda path: 10**6)
        with pytest.raises(gn.machine.EnvironmentProblem, match=r"The merged model in .* but 0\.00 GB are free"):
            gn.export_merged(tiny_run, tmp_path / "new")
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "taken" / "run"))
    (run.path / "holdout.jsonl").unlink()
    with pytest.raises(export.ExportError, match="has no held-out questions"):
        gn.export_merged(run, tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"] and (tmp_path / "taken" / "mine.txt").is_file()


def test_a_base_that_changed_since_the_training_is_refused(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    """Base plus adapter it would still be, and nothing else could notice."""
    run = moved(tiny_run, tmp_path)
    file = Path(run.settings.model) / "model.safetensors"
    each_tensor(lambda mine, base: mine + 0.01 * torch.randn(mine.shape))(file.parent, file.parent)
    for make in (gn.export_merged, gn.export.export_adapter):
        with pytest.raises(export.ExportError, match="are not those that the run 'run' was trained on"):
            make(run, tmp_path / "out")
    # The same weights in shards are the same base, whatever else lies there.
    LlamaForCausalLM.from_pretrained(tiny_run.settings.model, dtype="auto").save_pretrained(
        file.parent, max_shard_size="1MB"
    )
    file.unlink()
    save_file({"again": torch.ones(3)}, file.with_name("consolidated.safetensors"))
    made = gn.export.export_adapter(run, tmp_path / "out")
    assert made.verification["checks"]["the base model's weights are those trained on"] is True


def test_template_and_generation_config_of_the_training_through_awkward_paths(
    tiny_run: gn.runs.Run, tmp_path: Path, checked_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template set in the notebook, a generation_config that transformers will not write, `~`, spaces, umlauts, a link."""
    run = moved(tiny_run, tmp_path)
    template = (run.path / "chat_template.jinja").read_text().replace("<|im_start|>", "<|im_start|>dear ")
    (run.path / "chat_template.jinja").write_text(template)
    file = Path(run.settings.model) / "generation_config.json"
    rewrite(file, do_sample=False, temperature=0.6, top_p=0.9)
    home, disk = tmp_path / "my höme", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    (home / "a model").symlink_to(disk / "not there yet")
    monkeypatch.setenv("HOME", str(home))
    made = gn.export_merged(run, "~/a model")
    assert made.path == disk / "not there yet" and (home / "a model").is_symlink() and made.verification["passed"]
    assert (made.path / "chat_template.jinja").read_text() == template
    assert (made.path / "generation_config.json").read_bytes() == file.read_bytes()


def test_nothing_of_the_run_is_replaced_and_nothing_that_came_meanwhile(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = moved(tiny_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    for target in (run.path, run.adapter_path, tmp_path, Path(run.settings.model), "."):
        with pytest.raises(FileExistsError, match="which would be gone with it"):
            gn.export.export_adapter(run, target, overwrite=True)
    assert (run.path / "run.json").is_file() and run.adapter_path.is_dir()
    real = export.write_export_card

    def somebody_else(*arguments: object, **named: object) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
        real(*arguments, **named)

    monkeypatch.setattr(export, "write_export_card", somebody_else)
    with pytest.raises(FileExistsError, match="exists, and is kept"):
        gn.export.export_adapter(run, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["theirs"]


def test_a_whole_export_killed_at_any_moment(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    (run.path / "exports.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.support.killed_exports", str(run.path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == 10
    for line in told:
        kind, found = line["kind"], line["found"]
        out = found.pop("out")
        if line["moment"] in ("it is in its place", None):
            weights = "model.safetensors" if kind == "merged" else "adapter_model.safetensors"
            assert {weights, "verification.json", "README.md", "tokenizer.json"} <= set(out), line
        else:
            assert out == ["old"], line
        assert all(name.startswith(".out.") for name in found), "what a kill left is under hidden names"
    assert [entry.kind.split()[0] for entry in run.exports] == ["merged", "adapter"], "those that were finished"
