"""A merged model is the trained one, and each classic way of losing the training is caught."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

import grpo_nb as gn
from grpo_nb.export import merged as export
from grpo_nb.export import staged_export
from grpo_nb.export import verify_child as verify
from grpo_nb.export.staged_export import verification_request
from grpo_nb.models.templates import saved_chat_template
from tests.run_fixtures import brevity
from tests.support.warm_kernel import run_module

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


def test_merged_export_records_checks_and_hashes(
    merged: export.Export, tiny_run: gn.runs.Run
) -> None:
    verification = json.loads((merged.path / "verification.json").read_text())
    assert verification == merged.verification
    assert verification["passed"]
    assert "trained_in_4bit" not in verification
    assert set(verification["checks"].values()) == {True}
    assert merged.file == merged.path
    assert verification["retained_change"] >= 0.95
    files = {
        f.relative_to(merged.path).as_posix(): f.read_bytes()
        for f in merged.path.rglob("*")
        if f.is_file()
    }
    known = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    assert verification["files"] == {
        name: entry for name, entry in known.items() if name != "verification.json"
    }
    here = [
        str(place.parent).encode()
        for place in (Path(tiny_run.settings.model), tiny_run.path, merged.path)
    ]
    assert not [place for place in here for data in files.values() if place in data], (
        "no path of this machine"
    )


def test_merged_export_of_a_4_bit_run_says_so(
    tiny_folder: Path, checked_here: None, tmp_path: Path
) -> None:
    settings = gn.preset(
        "cpu",
        model=str(tiny_folder),
        load_in_4bit=True,
        max_steps=5,
        max_completion_length=12,
        learning_rate=2e-2,
        max_grad_norm=10.0,
        run_root=str(tmp_path / "runs"),
    )
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout=6, tokenizer=tokenizer)
    run = gn.train(model, tokenizer, task, [brevity], settings)
    # TRL alone would train it in bfloat16, where small updates are rounded away.
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    exported = gn.export_merged(run, tmp_path / "merged")
    assert exported.verification["trained_in_4bit"] is True
    for text in (
        (exported.path / "README.md").read_text(),
        exported.sentence,
    ):
        assert "trained on a 4-bit base, so answers may differ" in text


Spoil = Callable[[Path, Path], object]


Tensors = dict[str, torch.Tensor]


def tensors(change: Callable[[Tensors, Tensors], Tensors]) -> Spoil:
    """Put other tensors into the merged model, given its own and the base's."""

    def spoil(merged: Path, base: Path) -> None:
        mine, theirs = (load_file(folder / "model.safetensors") for folder in (merged, base))
        save_file(change(mine, theirs), merged / "model.safetensors", metadata={"format": "pt"})

    return spoil


def each_tensor(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Spoil:
    """Change every tensor of the merged model, given that of the base."""
    return tensors(
        lambda mine, base: {
            n: change(t.float(), base[n].float()).to(t.dtype) for n, t in mine.items()
        }
    )


def file(name: str, change: Callable[[Path], object]) -> Spoil:
    return lambda merged, base: change(merged / name)


WORDS = "tokenizer, chat template and end tokens"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"
WORDED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
FAILURES: dict[str, tuple[str, Spoil]] = {
    "adapter never applied": (WEIGHTS, each_tensor(lambda merged, base: base)),
    "adapter applied twice": (WEIGHTS, each_tensor(lambda merged, base: 2 * merged - base)),
    "half the scaling": (WEIGHTS, each_tensor(lambda merged, base: (merged + base) / 2)),
    "wrong base": (
        WEIGHTS,
        each_tensor(lambda merged, base: merged + 0.05 * torch.randn(merged.shape)),
    ),
    "embedding broken": (
        WEIGHTS,
        tensors(lambda mine, base: mine | {WORDED: mine[WORDED].roll(1, 0)}),
    ),
    "embeddings untied": (
        WEIGHTS,
        tensors(lambda mine, base: mine | {"lm_head.weight": torch.ones_like(mine[WORDED])}),
    ),
    "a tensor missing": (
        WEIGHTS,
        tensors(lambda mine, base: {n: t for n, t in mine.items() if "1.mlp.up" not in n}),
    ),
    "not finite": (WEIGHTS, tensors(lambda mine, base: mine | {NORM: mine[NORM] * float("nan")})),
    "generation's end lost": (WORDS, file(GENERATION, lambda f: rewrite(f, eos_token_id=0))),
    "chat template changed": (
        WORDS,
        file(TEMPLATE, lambda f: f.write_text(f.read_text().replace("assist", "Assist"))),
    ),
    "chat template lost": (WORDS, file(TEMPLATE, Path.unlink)),
    "end token lost": (
        WORDS,
        file("tokenizer_config.json", lambda f: rewrite(f, eos_token="<|endoftext|>")),
    ),
    "another shape of the model": (
        "tokens: ",
        file("config.json", lambda f: rewrite(f, rms_norm_eps=1.0)),
    ),
    "cut": (
        "incomplete",
        file("model.safetensors", lambda f: f.write_bytes(f.read_bytes()[:-1000])),
    ),
}


def test_verification_imports_neither_the_kit_nor_unsloth() -> None:
    code = (
        "import runpy, sys; sys.path = [path for path in sys.path if path]; "
        f"runpy.run_path({verify.__file__!r}); "
        "print(sorted({'grpo_nb', 'unsloth'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["[]"]


def checked(run: gn.runs.Run, folder: Path) -> dict:
    """Return the result of checking a merged folder."""
    named = {
        "base_folder": run.settings.model,
        "adapter_folder": str(run.adapter_path),
        "merged_folder": str(folder),
    }
    asked = {"chat_template": saved_chat_template(run.path), "limits": export.MERGED_LIMITS}
    return verify.answer({"check": "merged", **named, **asked, **verification_request(run)})


@pytest.mark.parametrize("how", FAILURES)
def test_verification_finds_classic_failures(
    merged: export.Export, tiny_run: gn.runs.Run, how: str, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(merged.path, tmp_path / "copy"))
    found, spoil = FAILURES[how]
    spoil(copy, Path(tiny_run.settings.model))
    try:
        failed = [name for name, ok in checked(tiny_run, copy)["checks"].items() if ok is False]
    except (
        Exception
    ) as error:  # it cannot even be loaded: the process ends with this, and the export is refused
        failed = [str(error)]
    assert any(found in name for name in failed), failed


def test_verification_without_memory_compares_weights(
    merged: export.Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "fits_in_memory", lambda *_: False)
    found = checked(tiny_run, merged.path)
    assert False not in found["checks"].values()
    assert found["checks"][WEIGHTS]
    assert found["checks"]["tokens"] is None
    shown = repr(export.Export(merged.path, {**merged.verification, **found}))
    assert "exported" not in shown.splitlines()[-1], "no variable has to have this name"
    assert re.search(
        r"not made +tokens +not measured, because the model in float32 does not fit into memory",
        shown,
    )
    FAILURES["embedding broken"][1](copy := shutil.copytree(merged.path, tmp_path / "copy"), copy)
    assert False in checked(tiny_run, copy)["checks"].values()


@pytest.mark.usefixtures("checked_here")
def test_failed_verification_leaves_nothing(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = export.merge

    def loses_the_training(base: Path, adapter: Path, staged: Path, **how: object) -> dict:
        kept = real(base, adapter, staged, **how)
        FAILURES["adapter never applied"][1](staged, base)
        return kept

    monkeypatch.setattr(export, "merge", loses_the_training)
    with pytest.raises(
        export.ExportError,
        match=f"not match the trained model.*Failed: {WEIGHTS} .*differs from base plus",
    ):
        gn.export_merged(tiny_run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_adapter_export_equals_the_run(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    make = gn.export.export_adapter
    made = make(tiny_run, tmp_path / "lora")
    mine, theirs = (
        place / "adapter_model.safetensors" for place in (made.path, tiny_run.adapter_path)
    )
    assert mine.read_bytes() == theirs.read_bytes()
    assert made.verification["passed"]
    assert {"adapter_config.json", "chat_template.jinja", "tokenizer.json"} <= made.verification[
        "files"
    ].keys()
    make(tiny_run, tmp_path / "lora", overwrite=True)
    # An adapter that does nothing is no export, and neither is one with values like NaN.
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    file = run.adapter_path / "adapter_model.safetensors"
    for factor, message in (
        (0, "changes nothing: all its B"),
        (float("nan"), "are not finite, so"),
    ):
        trained = load_file(tiny_run.adapter_path / file.name)
        save_file({n: t * (factor if "lora_B" in n else 1) for n, t in trained.items()}, file)
        with pytest.raises(export.ExportError, match=f"^the adapter .*{message}"):
            make(run, tmp_path / "lora", overwrite=True)
    assert gn.export.open(made.path).kind == "adapter"


def test_merged_export_refuses_taken_folder_and_full_disk(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.export_merged(tiny_run, tmp_path / "taken")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"The merged model in .* but 0\.00 GB are free"
    ):
        gn.export_merged(tiny_run, tmp_path / "new")
    assert [file.name for file in tmp_path.rglob("*")] == ["taken", "mine.txt"]


def test_export_refuses_base_changed_since_training(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    """Base plus adapter it would still be, and nothing else could notice."""
    run = moved(tiny_run, tmp_path)
    file = Path(run.settings.model) / "model.safetensors"
    each_tensor(lambda mine, base: mine + 0.01 * torch.randn(mine.shape))(file.parent, file.parent)
    with pytest.raises(export.ExportError, match="are not those that the run 'run' was trained on"):
        gn.export_merged(run, tmp_path / "out")
    # The same weights in shards are the same base.
    model = LlamaForCausalLM.from_pretrained(tiny_run.settings.model, dtype="auto")
    file.unlink()
    model.save_pretrained(file.parent, max_shard_size="1MB")
    staged_export.require_same_base(run, file.parent)


def test_export_keeps_template_through_awkward_paths(
    tiny_run: gn.runs.Run, tmp_path: Path, checked_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path has `~`, spaces, an umlaut and a link; transformers cannot write this config."""
    run = moved(tiny_run, tmp_path)
    place = tmp_path / "not there yet"
    template = (
        (run.path / "chat_template.jinja").read_text().replace("<|im_start|>", "<|im_start|>dear ")
    )
    (run.path / "chat_template.jinja").write_text(template)
    file = Path(run.settings.model) / "generation_config.json"
    rewrite(file, do_sample=False, temperature=0.6, top_p=0.9)
    (tmp_path / "a mödel").symlink_to(place)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = gn.export_merged(run, "~/a mödel")
    assert made.path == place
    assert (tmp_path / "a mödel").is_symlink()
    assert made.verification["passed"]
    assert (place / "chat_template.jinja").read_text() == template
    assert (place / "generation_config.json").read_bytes() == file.read_bytes()


def test_export_never_replaces_the_run_or_new_files(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = moved(tiny_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    for target in (run.path, run.adapter_path, tmp_path, Path(run.settings.model), "."):
        with pytest.raises(FileExistsError, match="which would be deleted too"):
            gn.export.export_adapter(run, target, overwrite=True)
    assert (run.path / "run.json").is_file()
    assert run.adapter_path.is_dir()
    real = staged_export.write_export_card

    def somebody_else(*arguments: object, **named: object) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
        real(*arguments, **named)

    monkeypatch.setattr(staged_export, "write_export_card", somebody_else)
    with pytest.raises(FileExistsError, match="exists, and is kept"):
        gn.export.export_adapter(run, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["theirs"]


def test_export_killed_at_any_moment_is_whole_or_absent(
    tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    said = run_module(
        "tests.support.killed_exports", str(run.path), str(tmp_path / "out"), folder=tmp_path
    )
    told = [json.loads(line) for line in said if line.startswith("{")]
    whole = {"model.safetensors", "verification.json", "README.md", "tokenizer.json"}
    assert len(told) == 7, said
    for line in told:
        found = set(line["found"].pop("out"))
        is_done = line["moment"] in ("it is in its place", None)
        assert whole <= found if is_done else found == {"old"}, line
        assert all(name.startswith(".out.") for name in line["found"]), (
            "what a kill left is under hidden names"
        )


# What `Export.usage` prints


def test_usage_of_an_adapter_serves_it_on_its_base(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    """The folder has a name that a shell would split. test_serving.py starts the servers."""
    adapter = gn.export.export_adapter(tiny_run, tmp_path / "my adapter")
    rank = tiny_run.settings.lora_rank
    lora = f"--enable-lora --max-lora-rank {rank} --lora-modules mine='{adapter.path}'"
    base = shlex.quote(tiny_run.settings.model)
    assert adapter.usage == f"vllm serve {base} {lora} --host 127.0.0.1 --port 8000"


def usage_with(folder: Path, base: str, rank: object) -> str:
    config = {"base_model_name_or_path": base, "r": rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return export.Export(folder, {"kind": "adapter"}).usage


@pytest.mark.parametrize(("rank", "taken"), [(4, 8), (12, 16), (32, 32), (128, 128)])
def test_usage_rounds_the_rank_for_vllm(rank: int, taken: int, tmp_path: Path) -> None:
    usage = usage_with(tmp_path, "Qwen/Qwen3-0.6B", rank)
    assert (
        f"vllm serve Qwen/Qwen3-0.6B --enable-lora --max-lora-rank {taken} --lora-modules" in usage
    )


def test_usage_never_shows_texts_of_an_adapter_as_commands(tmp_path: Path) -> None:
    assert "serve 'a; touch b' --enable-lora" in usage_with(tmp_path, "a; touch b", 8)
    for name in (
        "--trust-remote-code",
        "-v",
        "a\ntouch b",
        "a\x1b[2Ktouch b",
        "a\rtouch b",
        "a\u202etouch b",
    ):
        with pytest.raises(export.ExportError, match="names the base model"):
            usage_with(tmp_path, name, 8)
    with pytest.raises(export.ExportError, match=r"r Input should be a valid integer .*='8; t"):
        usage_with(tmp_path, "a", "8; touch b")


@pytest.mark.parametrize("content", ["{", "[]", '{"r": 8}', '{"base_model_name_or_path": 3}', None])
def test_usage_of_a_damaged_adapter_config_names_the_file(
    content: str | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(export.ExportError, match=r"adapter_config\.json' is missing, or not what"):
        assert export.Export(tmp_path, {"kind": "adapter"}).usage


def test_table_escapes_hostile_text(merged: export.Export) -> None:
    hostile = {**merged.verification, "sentence": "<script>"}
    assert "<script>" not in export.Export(merged.path, hostile)._repr_html_()
