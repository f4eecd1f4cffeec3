"""A merged model is the trained one, and each classic way of losing the training is caught."""

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
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

import grpo_nb as gn
from grpo_nb.export import merged as export
from grpo_nb.export.children import verify
from grpo_nb.models.identity import tokenizer_for

pytestmark = pytest.mark.begins(40)


def test_it_is_verified_and_loads_anywhere(merged: export.Export, tiny_run: gn.runs.Run) -> None:
    verification = json.loads((merged.path / "verification.json").read_text())
    assert verification == merged.verification and verification["merged"] == "tensor by tensor"
    assert "trained_in_4bit" not in verification and "4 bit" not in merged.sentence
    assert "held-out score within the 95 % interval of the adapter's" in verification["checks"]
    assert merged.file == merged.path and list(merged.table["passed"]) == [True] * len(verification["checks"])
    assert "✓ passed" in merged._repr_html_() and "10 answers right" in merged.sentence
    assert verification["passed"] and all(verification["checks"].values())
    assert verification["imported_unsloth_or_kit"] == []
    assert verification["retained_change"] >= 0.95
    files = [f for f in merged.path.rglob("*") if f.is_file()]
    here = (str(Path(tiny_run.settings.model).parent), str(tiny_run.path.parent), str(merged.path.parent))
    texts = [f.read_text() for f in files if f.suffix in (".json", ".jinja", ".md")]
    assert not [place for place in here for text in texts if place in text], "no path of this machine"
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
    assert all(t.dtype in (torch.bfloat16, torch.float16, torch.float32) for t in tensors.values())
    assert "compared with the base in 16 bit plus adapter, but trained in 4 bit" in exported.sentence
    assert "not measured: the run has no comparison of its own (gn.compare(run))" in exported.sentence

    compared = gn.compare(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = gn.export_merged(run, tmp_path / "merged", overwrite=True)
    beside = json.loads((exported.path / "verification.json").read_text())["trained_in_4bit"]
    alone = gn.evaluate(exported.path, run=run)
    assert (beside["accuracy"], beside["interval"], beside["questions"]) == (alone.accuracy, list(alone.interval), 6)
    assert (beside["accuracy_of_run"], beside["interval_of_run"]) == (
        compared.after.accuracy,
        list(compared.after.interval),
    )
    card = (exported.path / "README.md").read_text()
    for text in (card, exported.sentence, gn.export.open(exported.path).sentence, run.exports[-1].sentence):
        assert f"{beside['said']}" in text and "trained in 4 bit, so that answers may differ" in text
    assert "the run with the base in 4 bit, as it was trained" in card

    # What the run's comparison says does not hold for it: said, and no published number either way.
    rewrite(
        run.path / "comparison" / "comparison.json",
        after={**compared.after.to_dict(), "accuracy": 0.9, "interval": [0.7, 1]},
    )
    with pytest.warns(
        UserWarning, match=r"held-out questions right, the run in 4 bit 90\.0% .* is OUTSIDE of that interval"
    ):
        assert "OUTSIDE" in export.score_beside_run(run, exported.path)["said"]
    with monkeypatch.context() as patch:
        patch.setattr(export, "free_memory_bytes", lambda: 10**6)
        patch.setattr(export, "evaluate", lambda *_, **__: pytest.fail("it was loaded where it does not fit"))
        full = export.score_beside_run(run, exported.path)
    assert (
        full.keys() == {"said"}
        and "not measured: the model does not fit into what is free, memory: 0.0" in full["said"]
    )
    rewrite(run.path / "comparison" / "comparison.json", after={**compared.after.to_dict(), "judged_by": "somebody"})
    assert "asked or judged otherwise" in export.score_beside_run(run, exported.path)["said"]
    (run.path / "comparison" / "transcripts.parquet").write_bytes(b"cut")
    assert "not measured: Arrow" in export.score_beside_run(run, exported.path)["said"]


def rewrite(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


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
        rewrite(merged / "config.json", tie_word_embeddings="lm_head.weight" not in tensors)

    return spoil


def file(name: str, change: Callable[[Path], object]) -> Spoil:
    return lambda merged, base: change(merged / name)


WEIGHTS, TENSORS = "every weight is base plus adapter", "tensors complete"
WORDS, ENDS = "tokenizer, chat template and end token", "generation ends where the base's does"
CUT, TEMPLATE = "incomplete|invalid|deserializ", "chat_template.jinja"
FAILURES: dict[str, tuple[str, Spoil]] = {
    "adapter never applied": (WEIGHTS, each_tensor(lambda merged, base: base)),
    "adapter applied twice": (WEIGHTS, each_tensor(lambda merged, base: 2 * merged - base)),
    "half the scaling": (WEIGHTS, each_tensor(lambda merged, base: (merged + base) / 2)),
    "wrong base": (WEIGHTS, each_tensor(lambda merged, base: merged + 0.05 * torch.randn(merged.shape))),
    "embedding broken": (WEIGHTS, one_tensor("model.embed_tokens.weight", lambda tensor: tensor.roll(1, 0))),
    "embeddings untied": (TENSORS, one_tensor("lm_head.weight", lambda tensor: torch.randn(tensor.shape))),
    "a tensor missing": (TENSORS, one_tensor("model.layers.1.mlp.up_proj.weight", lambda tensor: None)),
    "not finite": (WEIGHTS, one_tensor("model.norm.weight", lambda tensor: tensor * float("nan"))),
    "a pickle beside it": ("safetensors only", file("pytorch_model.bin", lambda f: torch.save({}, f))),
    "generation's end lost": (ENDS, file("generation_config.json", lambda f: rewrite(f, eos_token_id=0))),
    "chat template changed": (
        WORDS,
        file(TEMPLATE, lambda f: f.write_text(f.read_text().replace("assistant", "Assistant"))),
    ),
    "chat template lost": (WORDS, file(TEMPLATE, Path.unlink)),
    "end token lost": (WORDS, file("tokenizer_config.json", lambda f: rewrite(f, eos_token="<|endoftext|>"))),
    "truncated file": (CUT, file("model.safetensors", lambda f: f.write_bytes(f.read_bytes()[:-1000]))),
}


@pytest.mark.parametrize("how", FAILURES)
def test_classic_failures_are_caught(merged: export.Export, tiny_run: gn.runs.Run, how: str, tmp_path: Path) -> None:
    copy, (found, spoil) = Path(shutil.copytree(merged.path, tmp_path / "copy")), FAILURES[how]
    spoil(copy, Path(tiny_run.settings.model))
    request = export.verification_request(Path(tiny_run.settings.model), tiny_run, copy)
    try:
        verification = verify.verify_merged(request)
    except Exception as error:  # it cannot even be loaded: the process ends with this, and the export is refused
        assert re.search(found, str(error), re.IGNORECASE), error
        return
    assert not verification["passed"]
    failed = [name for name, ok in verification["checks"].items() if not ok]
    assert any(found in name for name in failed), failed


def test_where_time_is_short_fewer_words_and_all_tensors_are_compared(
    merged: export.Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(tiny_run.settings.model)
    request = export.verification_request(base, tiny_run, merged.path)
    whole = verify.verify_merged(request)
    assert (whole["prompts"], whole["tokens"]) == (10, 12) and "time was up" not in str(whole["measured"])
    width = max(len(verify.read(tokenizer_for(tiny_run.path, base), chat)) for chat in request["prompts"])
    monkeypatch.setattr(verify, "_TOKENS", 3 * (width + 12))  # three prompts at once
    in_batches = verify.verify_merged(request)
    assert in_batches["texts"] == whole["texts"] and in_batches["prompts"] == 10
    monkeypatch.setattr(verify, "_SMALL", 0)  # held in the 16 bits of its files, as a large one is
    assert verify.verify_merged(request)["texts"] == whole["texts"]
    short = verify.verify_merged({**request, "seconds": 0})
    assert (short["prompts"], short["tokens"]) == (3, 8) and short["passed"]
    assert any("the first 8 tokens, because time was up" in said for said in short["measured"].values())
    # Answers that were cut off cannot be right or wrong, though those of the training were no longer than the bound.
    short["reference"] = [(text, False) for text, _ in short["reference"]]
    export.add_score(short, tiny_run, "adapter", "adapter")
    assert short["scored"] == 0
    for how in ("adapter never applied", "embedding broken", "not finite"):
        copy = Path(shutil.copytree(merged.path, tmp_path / how))
        FAILURES[how][1](copy, base)
        found = verify.verify_merged({**request, "merged": str(copy), "seconds": 0})
        assert not found["checks"]["every weight is base plus adapter, rounded once"], how


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        export.ExportError("OSError: 3145728 requested and 1613216 written"),
    ],
)
def test_a_disk_that_others_fill_meanwhile_is_named_and_nothing_is_left(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def writes_a_part(base: Path, adapter: Path, staged: Path, **how: object) -> dict:
        (staged / "model.safetensors").write_bytes(b"a part")
        raise error

    monkeypatch.setattr(export, "merge", writes_a_part)
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"/out became full.*\. Free some space, or choose"):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


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
    with pytest.raises(export.ExportError, match="not the trained one"):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_answers_worse_is_refused(
    tiny_run: gn.runs.Run, tmp_path: Path, checked_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a difference that no other check sees: the merged model's answers are all wrong, the adapter's right."""
    real, rows = export.run_check, tiny_run.holdout

    def answers_wrong(request: dict, what: str) -> dict:
        found = real(request, what)
        right = [f"<reasoning>\nit is\n</reasoning>\n<answer>\n{row['answer']}\n</answer>" for row in rows]
        return {**found, "reference": [(text, True) for text in right], "texts": ["" for _ in rows]}

    monkeypatch.setattr(export, "run_check", answers_wrong)
    with pytest.raises(export.ExportError, match=r"held-out score .*0 of 10 right, the adapter's 10 \(72% to 100%\)"):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_adapter_alone(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    made = gn.export.export_adapter(tiny_run, tmp_path / "lora")
    mine, theirs = (load_file(p / "adapter_model.safetensors") for p in (made.path, tiny_run.adapter_path))
    assert mine.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in mine.items())
    assert {"adapter_config.json", "chat_template.jinja", "tokenizer.json", "verification.json"} <= {
        f.name for f in made.path.iterdir()
    }
    assert made.verification["passed"] and made.kind == "adapter" and "for tiny, every byte equal" in made.sentence
    assert made.sentence in repr(gn.open_run(tiny_run.path))
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
    assert gn.open_run(run.path) and (made.path / "verification.json").is_file()


def test_rounding_that_would_lose_the_training_is_refused(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    """A change of a ten-thousandth of the trained one is far below the steps of bfloat16."""
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    file = run.adapter_path / "adapter_model.safetensors"
    save_file({n: t * (0.0001 if "lora_B" in n else 1) for n, t in load_file(file).items()}, file)
    with pytest.raises(export.ExportError, match="would lose a part of the training"):
        gn.export_merged(run, tmp_path / "out", dtype="bfloat16")
    assert not (tmp_path / "out").exists()


def test_targets_and_types(tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.export_merged(tiny_run, tmp_path / "taken")
    with pytest.raises(ValueError, match="low_memory = 'no'"):
        gn.export_merged(tiny_run, tmp_path / "new", low_memory="no")
    with pytest.raises(ValueError, match="dtype = 'int8'"):
        gn.export_merged(tiny_run, tmp_path / "new", dtype="int8")
    monkeypatch.setattr("grpo_nb.export.merge.free_memory_bytes", lambda: 10**6)
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"merging in memory needs .* but 0\.00 GB are free"):
        gn.export_merged(tiny_run, tmp_path / "new", low_memory=False)
    monkeypatch.setattr("grpo_nb.machine.host.free_disk_bytes", lambda path: 10**6)
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"The merged model in .* needs .* but 0\.00 GB are free"):
        gn.export_merged(tiny_run, tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"] and (tmp_path / "taken" / "mine.txt").is_file()


def moved(run: gn.runs.Run, folder: Path) -> gn.runs.Run:
    """The run and its base, in folders of their own."""
    base = shutil.copytree(run.settings.model, folder / "base")
    copy = gn.runs.Run(shutil.copytree(run.path, folder / "run"))
    info = copy.info
    info["settings"]["model"] = str(base)
    (copy.path / "run.json").write_text(json.dumps(info))
    return copy


def test_a_base_that_changed_since_the_training_is_refused(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    """Base plus adapter it would still be, and nothing else could notice."""
    run = moved(tiny_run, tmp_path)
    file = Path(run.settings.model) / "model.safetensors"
    each_tensor(lambda mine, base: mine + 0.01 * torch.randn(mine.shape))(file.parent, file.parent)
    for make in (gn.export_merged, gn.export.export_adapter):
        with pytest.raises(export.ExportError, match="are not those that the run 'run' was trained on"):
            make(run, tmp_path / "out")
    # The same weights in shards are the same base.
    LlamaForCausalLM.from_pretrained(tiny_run.settings.model, dtype="auto").save_pretrained(
        file.parent, max_shard_size="1MB"
    )
    file.unlink()
    save_file({"again": torch.ones(3)}, file.with_name("consolidated.safetensors"))
    made = gn.export.export_adapter(run, tmp_path / "out")
    assert made.verification["checks"]["the base model's weights are those trained on"] is True
    shutil.rmtree(file.parent)
    with pytest.raises(FileNotFoundError, match=r"base model of the run 'run' is not at .* any more"):
        gn.export_merged(run, tmp_path / "new")


def test_template_and_generation_config_of_the_training_through_awkward_paths(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template set in the notebook, a generation_config that transformers will not write, `~`, spaces, umlauts, a link."""
    trained_with = tiny_run.tokenizer.chat_template
    assert (tiny_run.path / "chat_template.jinja").read_text() == trained_with
    run = moved(tiny_run, tmp_path)
    template = trained_with.replace("<|im_start|>", "<|im_start|>dear ")
    assert template != trained_with
    (run.path / "chat_template.jinja").write_text(template)
    file = Path(run.settings.model) / "generation_config.json"
    published = {**json.loads(file.read_text()), "do_sample": False, "temperature": 0.6, "top_p": 0.9}
    file.write_text(json.dumps(published))
    home, disk = tmp_path / "my höme", tmp_path / "disk"
    home.mkdir()
    disk.mkdir()
    (home / "a model").symlink_to(disk / "not there yet")
    monkeypatch.setenv("HOME", str(home))
    made = gn.export_merged(run, "~/a model")
    assert made.path == disk / "not there yet" and (home / "a model").is_symlink() and made.verification["passed"]
    assert (made.path / "chat_template.jinja").read_text() == template
    assert json.loads((made.path / "generation_config.json").read_text()) == published
    alone = gn.export.export_adapter(run, home / "ä b" / "lora")
    assert (alone.path / "chat_template.jinja").read_text() == template
    from grpo_nb.evaluation.subjects import tokenizer_of_run

    assert tokenizer_of_run(gn.open_run(run.path)).chat_template == template


def test_nothing_of_the_run_is_replaced_and_nothing_that_came_meanwhile(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = moved(tiny_run, tmp_path)
    for target in (run.path, run.adapter_path, tmp_path, Path(run.settings.model)):
        with pytest.raises(FileExistsError, match="which would be gone with it"):
            gn.export.export_adapter(run, target, overwrite=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match="which would be gone with it"):
        gn.export.export_adapter(run, ".", overwrite=True)
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


def test_runs_that_cannot_be_written_or_verified(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(gn.runs.Run, "record_export", read_only)
        with pytest.warns(UserWarning, match=r"complete and verified, but could not be noted .*Read-only"):
            made = gn.export.export_adapter(run, tmp_path / "lora")
    assert made.verification["passed"] and (made.path / "verification.json").is_file()
    (run.path / "holdout.jsonl").unlink()
    with pytest.raises(export.ExportError, match="has no held-out questions"):
        gn.export_merged(run, tmp_path / "out")
    file = run.adapter_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(export.ExportError, match=r"adapter_model\.safetensors of the run 'run', .* is damaged"):
        gn.export.export_adapter(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
