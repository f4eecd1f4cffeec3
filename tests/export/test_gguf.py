"""A GGUF file is the merged model, through the real llama.cpp; its Modelfile says what the training's prompts began with."""

import dataclasses
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

import grpo_nb as gn
from grpo_nb.export import conversion, modelfile
from grpo_nb.export import gguf as gguf_export
from grpo_nb.export.children import verify
from grpo_nb.export.result import Export, ExportError
from grpo_nb.generation import llama_cpp

pytestmark = pytest.mark.begins(50)


def silent(line: str) -> None:
    """Where a report is asked for."""


@pytest.fixture(scope="module")
def converter() -> list[str]:
    try:
        return conversion.find_converter(None, silent)
    except gn.machine.EnvironmentProblem as problem:
        pytest.skip(f"llama.cpp's converter is neither cached here nor to be fetched: {problem}")


@pytest.fixture(scope="module")
def exported(merged: Export, converter: list[str], tmp_path_factory: pytest.TempPathFactory) -> Export:
    lines: list[str] = []
    again = gn.export.open(merged.path, run=merged.run.path)  # as after a restart
    made = gn.export_gguf(again, tmp_path_factory.mktemp("gguf") / "tiny", report=lines.append)
    assert [line.split()[0] for line in lines] == ["converting", "llama.cpp", "comparing"]
    return made


def test_it_is_verified_through_llama_cpp(exported: Export, tiny_run: gn.runs.Run) -> None:
    names = {"tiny-q8_0.gguf", "Modelfile", "README.md", "verification.json", "figures"}
    assert {file.name for file in exported.path.iterdir()} == names and exported.file.name == "tiny-q8_0.gguf"
    verification = json.loads((exported.path / "verification.json").read_text())
    assert verification == exported.verification and verification["imported_unsloth_or_kit"] == []
    assert list(verification["checks"].values()) == [True] * 5 and exported.kind == "gguf"
    assert exported.sentence in repr(gn.open_run(tiny_run.path)) and "q8_0" in exported.sentence
    told, text = tiny_run.holdout[0]["prompt"], (exported.path / "Modelfile").read_text()
    assert text.startswith(f'FROM ./tiny-q8_0.gguf\nSYSTEM """{told[0]["content"]}"""\n') and "num_ctx 4096" in text


@pytest.mark.usefixtures("checked_here")
def test_files_that_are_something_else(
    exported: Export, merged: Export, tiny_run: gn.runs.Run, converter: list[str], tmp_path: Path
) -> None:
    def refused(file: Path) -> str:
        with pytest.raises(ExportError) as caught:
            gguf_export.verify_gguf(tiny_run, merged.path, file, "q8_0", silent)
        return str(caught.value)

    def rewritten(name: str, *options: str) -> Path:
        command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", *options]
        subprocess.run([*command, str(exported.file), str(tmp_path / name)], check=True, capture_output=True)
        return tmp_path / name

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(exported.file.read_bytes()[:-100_000])
    assert re.search("(?s)could not be verified.*corrupted or incomplete", refused(cut))
    # The adapter was never applied: the base's own file.
    base = tmp_path / "base.gguf"
    conversion.convert(Path(tiny_run.settings.model), "bfloat16", base, "q8_0", converter, None)
    said = refused(base)
    assert "is not the trained one" in said and "at most 0.05 nats apart" in said and "same tokens" not in said
    assert re.search(r"0\.7 to 1\.3 times the training's effect \(-?0\.0\d+ times", said)
    # llama.cpp has a template in reserve, which happens to be this one, and knows the usual ends; others have none.
    name = "the file holds chat template and end token"
    bare = rewritten("bare.gguf", "--remove-metadata", "tokenizer.chat_template")
    assert f"Failed: {name} (chat_template is None, not the tokenizer's)" in refused(bare)
    other = refused(rewritten("other.gguf", "--chat-template", "{% for m in messages %}{{ m['content'] }}{% endfor %}"))
    assert "read as the same tokens (0 of " in other and f'{name} (chat_template is "{{% for m' in other
    endless = refused(rewritten("endless.gguf", "--special-token-by-id", "eos", "5"))
    assert f"Failed: {name} (ggml.eos_token_id is 5, not the tokenizer's)" in endless


def test_doctored_answers_are_seen(
    exported: Export, merged: Export, tiny_run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [row["prompt"] for row in tiny_run.holdout]
    answered = llama_cpp.answer(exported.file, prompts, max_completion_length=tiny_run.settings.max_completion_length)
    answers = json.loads(json.dumps([dataclasses.asdict(answer) for answer in answered]))  # as they travel
    request = {"file": str(exported.file), "merged": str(merged.path), "base": tiny_run.settings.model}
    request |= {"prompts": prompts, "chat_template_kwargs": {}, "limits": gguf_export.LIMITS["q8_0"]}

    def failed(**changes: Callable[[dict], object]) -> str:
        changed = [{**answer, **{name: new(answer) for name, new in changes.items()}} for answer in answers]
        found = verify.verify_gguf({**request, "answers": changed, "free_memory": 10**11})
        return "; ".join(name for name, (passed, _) in found.items() if passed is False)

    assert failed() == ""
    assert failed(prompt_ids=lambda a: [1, *a["prompt_ids"]]).startswith("prompts are read as the same tokens")
    assert "log-probabilities" in failed(log_probs=lambda a: [x - 0.5 for x in a["log_probs"]])
    assert failed(log_probs=lambda a: [None, *a["log_probs"][1:]]) == "", "within a character llama.cpp tells none"
    assert "at 95% of the places alike" in failed(ids=lambda a: [5000 + i for i in range(len(a["ids"]))])
    monkeypatch.setattr(verify, "place", lambda *_: None)
    assert verify.verify_gguf({**request, "answers": answers, "free_memory": 0})["words"][0] is None


def test_what_cannot_be_made(
    tiny_run: gn.runs.Run, merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="'q8' is not one of 'q8_0', 'f16'"):
        gn.export_gguf(tiny_run, tmp_path / "out", quantization="q8")
    adapter = dataclasses.replace(merged, verification={**merged.verification, "kind": "adapter"})
    for export in (adapter, dataclasses.replace(merged, run=None)):
        with pytest.raises(ValueError, match=r"from a merged export whose run is known.*gn\.export\.open\(path, run="):
            gn.export_gguf(export, tmp_path / "out")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"llama-quantize, which is not on the PATH.*'q8_0'"):
        gn.export_gguf(merged, tmp_path / "out", quantization="q4_k_m")
    (tmp_path / "convert_hf_to_gguf.py").write_text("raise SystemExit('Model FooForCausalLM is not supported')")
    with pytest.raises(ExportError, match=r"(?s)FooForCausalLM is not supported.*a newer llama\.cpp may"):
        gn.export_gguf(merged, tmp_path / "out", converter=tmp_path / "convert_hf_to_gguf.py")
    assert [p.name for p in tmp_path.iterdir()] == ["convert_hf_to_gguf.py"]


@pytest.mark.parametrize(("stored", "between"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_programs_on_the_path_are_used(
    stored: str, between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they are called with, and in which order: nothing is rounded before the quantizer does it."""
    calls: list[list[str]] = []
    for name in ("convert_hf_to_gguf.py", "llama-quantize"):
        (tmp_path / name).touch(stat.S_IRWXU)
    save_file({"a": torch.zeros(2, dtype=getattr(torch, stored))}, tmp_path / "model.safetensors")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(conversion, "run_command", lambda command, **_: calls.append(command))
    found, program = conversion.find_converter(None, silent), conversion.find_quantizer("q4_k_m")
    assert conversion.find_quantizer("q8_0") is None
    target, middle = tmp_path / "m.gguf", str(tmp_path / ".m.gguf.between")
    conversion.convert(tmp_path, stored, target, "q4_k_m", found, program)
    made = [sys.executable, str(tmp_path / "convert_hf_to_gguf.py"), "--outtype", between, "--outfile", middle]
    assert calls == [[*made, str(tmp_path)], [str(tmp_path / "llama-quantize"), middle, str(target), "Q4_K_M"]]
    monkeypatch.setattr("grpo_nb.machine.host.free_disk_bytes", lambda path: 0)
    with pytest.raises(gn.machine.EnvironmentProblem, match="The GGUF file needs"):
        conversion.convert(tmp_path, stored, target, "q8_0", found, None)


@pytest.mark.skipif(
    shutil.which("llama-quantize") is None, reason="llama.cpp's llama-quantize is not on the PATH: no package brings it"
)
def test_the_real_quantizer(merged: Export, converter: list[str], tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    made = gn.export_gguf(merged, tmp_path / "tiny", quantization="q4_k_m")
    assert made.file.name == "tiny-q4_k_m.gguf" and all(made.verification["checks"].values())
    # An adapter that is missing is seen through the rounding.
    file, tool = tmp_path / "base.gguf", conversion.find_quantizer("q4_k_m")
    conversion.convert(Path(tiny_run.settings.model), "bfloat16", file, "q4_k_m", converter, tool)
    with pytest.raises(ExportError, match=r"Failed: .*times the training's effect"):
        gguf_export.verify_gguf(tiny_run, merged.path, file, "q4_k_m", silent)


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    nowhere |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PATH": str(tmp_path)}
    for name, value in {**nowhere, "GRPO_NB_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"(?s)could not be fetched.*pass converter='llama\.cpp/"):
        conversion.find_converter(None, silent)
    assert list((tmp_path / "cache").iterdir()) == []


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
LONGER = [*CHAT, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 4 + 4?"}]


@pytest.mark.parametrize(
    ("chats", "begins"),
    [
        ([LONGER, LONGER], ['SYSTEM """Be brief."""', 'MESSAGE user """2 + 3?"""', 'MESSAGE assistant """5"""']),
        ([LONGER, CHAT], ['SYSTEM """Be brief."""']),
        ([LONGER[1:], CHAT[1:]], []),
        ([CHAT, CHAT[1:]], []),
        ([[{"role": "system", "content": 'Three: """'}, CHAT[1]]], ["# No SYSTEM"]),
    ],
)
def test_what_all_prompts_begin_with(chats: list, begins: list[str], embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    lines = modelfile.modelfile("m.gguf", tokenizer, chats, context=9000).splitlines()[1:]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=False)] == begins
    assert lines[len(begins) :][:2] == ['PARAMETER stop "<|im_end|>"', "PARAMETER num_ctx 9000"]
    tokenizer.eos_token = None
    assert "stop" not in modelfile.modelfile("m.gguf", tokenizer, chats, context=1)
