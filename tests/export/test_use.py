"""What `inference_commands` prints works when it is pasted: cells are run, servers started and asked by the real client."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.export.result import Export
from grpo_nb.export.use import PORTS

pytestmark = pytest.mark.begins(110)

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_cell(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextmanager
def served(command: list[str], address: str, log: Path, *, seconds: float = 240) -> Iterator[None]:
    """A server's process, from its first answer, which may take so long, to the end of the block."""
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    try:
        end = time.monotonic() + seconds
        while True:
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(address, timeout=5):
                    break
            except OSError:
                time.sleep(0.3)
        yield
    finally:
        process.terminate()
        process.wait(60)


def greedy(folder: Path, messages: list, limit: int) -> str:
    """What the folder answers, by transformers without a pipeline."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=limit, do_sample=False)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_pipeline_cell(merged: Export) -> None:
    ways = gn.export.inference_commands(merged)
    answer = greedy(merged.path, merged.run.holdout[0]["prompt"], merged.run.settings.max_completion_length)
    assert run_cell(ways["transformers"].code).strip() == answer.strip() != ""


def test_transformers_serve_answers_the_openai_client(merged: Export, tmp_path: Path) -> None:
    ways, port = gn.export.inference_commands(merged), free_port()
    command = shlex.split(ways["transformers serve"].code.replace(str(PORTS["transformers serve"]), str(port)))
    assert command[:3] == ["transformers", "serve", str(merged.path)]
    command[0] = str(Path(sys.executable).with_name("transformers"))
    with served(command, f"http://127.0.0.1:{port}/health", tmp_path / "serve.log"):
        printed = run_cell(ways["openai client"].code.replace(":8000/", f":{port}/"))
    answer = greedy(merged.path, merged.run.holdout[0]["prompt"], merged.run.settings.max_completion_length)
    assert printed.strip() == answer.strip()


def test_the_adapter_cell(tiny_run: gn.runs.Run, merged: Export, tmp_path: Path) -> None:
    ways = gn.export.inference_commands(gn.export.export_adapter(tiny_run, tmp_path / "adapter"))
    assert run_cell(ways["peft"].code).strip()
    assert "--host 127.0.0.1" in ways["vLLM"].code, "not for the whole network"
    assert "--lora-modules" in ways["vLLM"].code and ways["vLLM"].checked == "not run by the kit's tests"


def test_llama_cpp_answers_the_openai_client(embedded_gguf: Export, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What is the capital of France? Answer with its name."}]
    ways, port = gn.export.inference_commands(embedded_gguf, asked), free_port()
    code = (
        ways["llama.cpp in Python"].code.replace(str(PORTS["llama.cpp"]), str(port)) + "\nimport time; time.sleep(600)"
    )
    with served([sys.executable, "-c", code], f"http://127.0.0.1:{port}/health", tmp_path / "llama.log"):
        printed = run_cell(ways["openai client"].code.replace(":8080/", f":{port}/"))
    assert "Paris" in printed
    assert f"ollama create {embedded_gguf.path.name}" in ways["Ollama"].code


def test_ollama_gets_a_name_that_it_takes_and_what_the_modelfile_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "-Été de Ünal's (2)"
    folder.mkdir()
    (folder / "Modelfile").write_text("FROM ./m.gguf\n")
    export = Export(folder, {"checks": {}, "file": "m.gguf"}, "gguf")
    create, run = gn.export.inference_commands(export)["Ollama"].code.splitlines()
    assert create.endswith(" && ollama create t-de-nal-s-2- -f Modelfile") and run == "ollama run t-de-nal-s-2-"
    assert shlex.split(create)[1] == str(folder) and gn.export.inference_commands(export)["Ollama"].needs == "Ollama"
    (folder / "Modelfile").write_text("FROM ./m.gguf\n# No SYSTEM: it has a character that is lost\n")
    assert "the system prompt has to be sent with each question" in gn.export.inference_commands(export)["Ollama"].needs


@pytest.fixture
def embedded_gguf(tmp_path: Path) -> Export:
    """The embedded model's own GGUF file in the shape of an export."""
    from grpo_nb.models.embedded import _embedded_gguf

    folder = tmp_path / "smol"
    folder.mkdir()
    shutil.copyfile(_embedded_gguf(), folder / "smol-q4_1.gguf")
    return Export(folder, {"checks": {}, "file": "smol-q4_1.gguf"}, "gguf")


def test_they_show_themselves(merged: Export) -> None:
    hostile = [{"role": "user", "content": "</pre><script>alert(1)</script> '''\" \\ \u2028"}]
    ways = gn.export.inference_commands(merged, hostile)
    page = ways._repr_html_()
    assert "<script>" not in page and page.count("<pre") == page.count("</pre>") == len(list(ways)) == 4
    for way in ways:
        assert way.code in repr(ways) and way.checked in repr(ways)
        if way.language == "python":
            compile(way.code, way.name, "exec")
    found = re.search(r"messages = (\[.*?\n\])", ways["transformers"].code, re.DOTALL)
    assert eval(found[1]) == hostile
    with pytest.raises(KeyError, match="llama"):
        ways["llama"]
