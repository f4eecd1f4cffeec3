"""A GGUF export is verified through the real llama.cpp, and has a Modelfile."""

import json
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest
from gguf.scripts import gguf_new_metadata

import grpo_nb as gn
from grpo_nb.export import conversion, verify_child
from grpo_nb.export import gguf as gguf_export
from grpo_nb.export.saved_export import Export, ExportError
from tests.export.test_merged import rewrite
from tests.support.checks import run_script_here

pytestmark = pytest.mark.begins(50)


@pytest.fixture(scope="module")
def converter() -> None:
    try:
        conversion.find_converter()
    except gn.machine.EnvironmentProblem as problem:
        pytest.skip(f"llama.cpp's converter is neither cached here nor to be fetched: {problem}")


@pytest.fixture(scope="module")
def exported(merged: Export, converter: None, tmp_path_factory: pytest.TempPathFactory) -> Export:
    again = gn.export.open(merged.path, run=merged.run.path)  # as after a restart
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "grpo_nb.export.staged_export.run_script", run_script_here
        )  # notebooks/06_export has it checked apart
        return gn.export_gguf(again, tmp_path_factory.mktemp("gguf") / "tiny")


@pytest.fixture
def converted_before(exported: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the file above in place of converting the same merged model again."""

    def copy(folder: Path, dtype: str, file: Path, quantization: str) -> None:
        shutil.copyfile(exported.file, file)

    monkeypatch.setattr(gguf_export, "convert", copy)


def test_gguf_export_is_verified_through_llama_cpp(exported: Export, tiny_run: gn.runs.Run) -> None:
    assert {"tiny-q8_0.gguf", "Modelfile", "README.md"} <= {
        file.name for file in exported.path.iterdir()
    }
    verification = json.loads((exported.path / "verification.json").read_text())
    assert verification == exported.verification
    assert list(verification["checks"].values()) == [True] * 4
    assert exported.kind == "gguf"
    assert "q8_0" in exported.sentence
    system = tiny_run.holdout[0]["prompt"][0]["content"]
    text = (exported.path / "Modelfile").read_text()
    assert text.startswith(f'FROM ./tiny-q8_0.gguf\nSYSTEM """{system}"""\n')
    assert "num_ctx 4096" in text


@pytest.mark.usefixtures("checked_here", "converted_before")
def test_gguf_without_memory_says_that_weights_are_unchecked(
    exported: Export, merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "weights" not in exported.sentence
    monkeypatch.setattr(verify_child, "fits_in_memory", lambda *_: False)
    unchecked = gn.export_gguf(merged, tmp_path / "tiny")
    assert unchecked.verification["checks"]["tokens"] is None
    assert unchecked.sentence.endswith("So nothing has checked the weights in the file.")


@pytest.mark.usefixtures("checked_here")
def test_gguf_verification_refuses_other_files(
    exported: Export,
    merged: Export,
    tiny_run: gn.runs.Run,
    tmp_path: Path,
    monkeypatch,
) -> None:
    def refused(file: Path) -> str:
        with pytest.raises(ExportError) as caught:
            gguf_export.verify_with_llama_cpp(tiny_run, merged.path, file, "q8_0")
        return str(caught.value)

    def rewritten(name: str, *options: str) -> Path:
        monkeypatch.setattr(
            sys, "argv", ["", "--force", *options, str(exported.file), str(tmp_path / name)]
        )
        gguf_new_metadata.main()
        return tmp_path / name

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(exported.file.read_bytes()[:-100_000])
    assert re.search("(?s)could not be verified.*corrupted or incomplete", refused(cut))
    # The adapter was never applied: the base's own file.
    base = tmp_path / "base.gguf"
    conversion.convert(Path(tiny_run.settings.model), "bfloat16", base, "q8_0")
    said = refused(base)
    assert "does not match the trained model" in said
    assert "at most 0.05 nats apart" in said
    assert "same tokens" not in said
    assert re.search(r"0\.7 to 1\.3 times the training's effect \(-?0\.0\d+ times", said)
    # llama.cpp has defaults for template and end token; other programs have none.
    name = "the file holds chat template and end token"
    bare = rewritten(
        "bare.gguf",
        "--remove-metadata",
        "tokenizer.chat_template",
        "--special-token-by-id",
        "eos",
        "5",
    )
    said = refused(bare)
    assert (
        f"Failed: {name} (chat_template is None, not the tokenizer's; "
        "ggml.eos_token_id is 5, not the tokenizer's)" in said
    )
    other = refused(
        rewritten(
            "other.gguf", "--chat-template", "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        )
    )
    assert "read as the same tokens (0 of " in other
    assert f'{name} (chat_template is "{{% for m' in other


@pytest.mark.parametrize("quantization", [["q8_0", "f16"], ("q8_0",), {"q8_0"}, {}, None, 8])
def test_gguf_of_an_unknown_quantization_names_the_known_ones(
    quantization: object, tmp_path: Path
) -> None:
    export = Export(tmp_path, {"kind": "merged"})
    with pytest.raises(ValueError, match=r"^quantization = .* is unknown; .*q8_0"):
        gn.export_gguf(export, tmp_path / "out", quantization=quantization)


def test_usage_of_a_gguf_file_names_llama_cpp_and_ollama(tmp_path: Path) -> None:
    export = Export(tmp_path, {"kind": "gguf", "file": "a.gguf"})
    server, ollama = export.usage.splitlines()
    assert server == f"llama-server -m {tmp_path}/a.gguf --host 127.0.0.1 --port 8000 --jinja"
    assert ollama.startswith(f"cd {tmp_path} && ollama create mine -f Modelfile")


@pytest.mark.usefixtures("checked_here", "converted_before")
def test_gguf_of_a_run_with_tools_is_verified(
    merged: Export, tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    """The questions are asked without tools, of the file and of the merged model."""
    run = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / tiny_run.name))
    schema = {"type": "function", "function": {"name": "look_up"}}
    rewrite(run.path / "run.json", task={**run.info["task"], "tools": [schema]})
    export = gn.export.open(merged.path, run=run.path)
    assert gn.export_gguf(export, tmp_path / "out").verification["passed"]


def test_gguf_of_a_run_says_to_merge_it(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    for run in (tiny_run, tiny_run.path):
        with pytest.raises(TypeError, match=r"takes a merged export.*gn\.export_merged\(run"):
            gn.export_gguf(run, tmp_path / "out")


def test_gguf_file_in_a_hidden_folder_is_recorded(
    merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program of llama.cpp runs here: only the name of the file matters."""
    measured = {"checks": {}, "measured": {}, "tokens": ""}
    monkeypatch.setattr(
        gguf_export, "convert", lambda folder, dtype, file, quantization: file.write_bytes(b"GGUF")
    )
    monkeypatch.setattr(gguf_export, "verify_with_llama_cpp", lambda *arguments: measured)
    monkeypatch.setattr(gguf_export, "require_llama_cpp", lambda: None)
    made = gn.export_gguf(merged, tmp_path / ".tiny")
    assert "tiny-q8_0.gguf" in made.verification["files"]
    made.file.write_bytes(b"another file")
    with pytest.raises(ExportError, match=r"not what was verified: .*: tiny-q8_0\.gguf\."):
        gn.export.open(made.path)


def test_gguf_export_without_tools_is_refused(
    merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"llama-quantize, which is not on the PATH.*'q8_0'"
    ):
        gn.export_gguf(merged, tmp_path / "out", quantization="q4_k_m")
    program = "raise SystemExit('Model FooForCausalLM is not supported')"
    monkeypatch.setattr(conversion, "find_converter", lambda: [sys.executable, "-c", program])
    with pytest.raises(
        ExportError, match=r"(?s)FooForCausalLM is not supported.*of a newer llama\.cpp"
    ):
        gn.export_gguf(merged, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_convert_rounds_only_in_the_quantizer(
    merged: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that record their arguments stand in; the real quantizer has a test below."""
    program = tmp_path / "noting.py"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"open('{tmp_path}/said', 'a').write(f'{{sys.argv[1:3]}}')\n"
    )
    program.chmod(stat.S_IRWXU)
    target = tmp_path / "m.gguf"
    command = [sys.executable, str(program)]
    monkeypatch.setattr(conversion, "find_converter", lambda: command)
    monkeypatch.setattr(conversion, "find_quantizer", lambda: str(program))
    conversion.convert(merged.path, "float16", target, "q4_k_m")
    assert (tmp_path / "said").read_text() == str(["--outtype", "f16"]) + str(
        [f"{tmp_path}/.m.gguf.between", str(target)]
    )


@pytest.mark.skipif(
    shutil.which("llama-quantize") is None,
    reason="llama.cpp's llama-quantize is not on the PATH: no package brings it",
)
def test_real_quantizer_makes_a_verified_file(
    merged: Export, converter: None, tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    made = gn.export_gguf(merged, tmp_path / "tiny", quantization="q4_k_m")
    assert made.file.name == "tiny-q4_k_m.gguf"
    assert all(made.verification["checks"].values())
    # An adapter that is missing is seen through the rounding.
    file = tmp_path / "base.gguf"
    conversion.convert(Path(tiny_run.settings.model), "bfloat16", file, "q4_k_m")
    with pytest.raises(ExportError, match=r"Failed: .*times the training's effect"):
        gguf_export.verify_with_llama_cpp(tiny_run, merged.path, file, "q4_k_m")


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
LONGER = [*CHAT, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 4 + 4?"}]


@pytest.mark.parametrize(
    ("chats", "begins"),
    [
        ([LONGER, CHAT], ['SYSTEM """Be brief."""']),
        ([CHAT, CHAT[1:]], []),
        ([CHAT[1:]], []),
        ([[{"role": "system", "content": 'Three: """'}, CHAT[1]]], []),
    ],
)
def test_modelfile_has_the_system_prompt_of_all_prompts(chats: list, begins: list[str]) -> None:
    lines = gguf_export.modelfile("m.gguf", chats, context=9000).splitlines()[1:]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=False)] == begins
    assert lines[len(begins) :][:1] == ["PARAMETER num_ctx 9000"]
