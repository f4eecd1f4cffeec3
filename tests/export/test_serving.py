"""The server commands that `Export.usage` prints work: the real `openai` client asks each server.

The servers get the held-out questions of the quickstart. In float32 their answers equal those of
transformers. llama.cpp computes in other dtypes, so its equal answers are counted.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.export import conversion
from grpo_nb.export.saved_export import Export
from tests.support.notebooks import only_published
from tests.support.real_vllm import needs_vllm

# After the notebook whose run this is.
pytestmark = pytest.mark.begins(115)
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
QUESTIONS = 16
# As notebooks/06_export serves a file, with one thread: several would wait for each other at every
# layer on shared cores.
LLAMA_SERVER = """
import sys, time
import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.use_jinja = True
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.hostnames = ["127.0.0.1"]
parameters.port = int(sys.argv[2])
server = xllamacpp.Server(parameters)
time.sleep(600)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def served(command: list[str], address: str, log: Path, *, seconds: float = 240) -> Iterator[None]:
    """Run a server for the block, once it answers; wait at most `seconds` for that."""
    with log.open("w") as written:
        process = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=ENVIRONMENT
        )
    try:
        end = time.monotonic() + seconds
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(address, timeout=5):
                    break
            except OSError:
                time.sleep(0.3)
        yield
    finally:
        process.terminate()
        process.wait(60)


def shell_line(export: Export, program: str, port: int) -> list[str]:
    """The command of a program as it is printed, on another port and in float32."""
    (line,) = [line for line in export.usage.splitlines() if line.startswith(f"{program} ")]
    assert line.endswith(" --host 127.0.0.1 --port 8000"), "not for the whole network"
    name, *arguments = shlex.split(line)[:-1]
    return [str(Path(sys.executable).with_name(name)), *arguments, str(port), "--dtype", "float32"]


@pytest.fixture(scope="module")
def quick(quickstart: tuple[Path, gn.runs.Run]) -> Export:
    """The quickstart's merged model."""
    run = quickstart[1]
    return gn.export.open(run.path.parent.parent / "exports" / "quickstart", run=run.path)


def chats(export: Export) -> list[list[dict[str, str]]]:
    """The first held-out questions, as they were asked in training."""
    return [row["prompt"] for row in export.run.holdout[:QUESTIONS]]


@pytest.fixture(scope="module")
def expected(quick: Export) -> list[str]:
    """Return the answers of transformers with the merged folder in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(quick.path)
    model = AutoModelForCausalLM.from_pretrained(quick.path, dtype="float32")
    texts = []
    for chat in chats(quick):
        ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(
            **ids, max_new_tokens=quick.run.settings.max_completion_length, do_sample=False
        )
        texts.append(
            tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        )
    return texts


def answers_of(port: int, model: str, quick: Export) -> list[str]:
    """Return a server's greedy answers, through the client that its users have."""
    from openai import OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="not needed", max_retries=0)
    limit = quick.run.settings.max_completion_length
    said = [
        client.chat.completions.create(model=model, messages=chat, max_tokens=limit, temperature=0)
        for chat in chats(quick)
    ]
    return [answer.choices[0].message.content for answer in said]


def same(found: list[str], expected: list[str]) -> int:
    return sum(a == b for a, b in zip(found, expected, strict=True))


@only_published
def test_merged_folder_answers_as_base_and_adapter(quick: Export, expected: list[str]) -> None:
    """The run's comparison has the answers before the rounding to 16 bit."""
    answers = pandas.read_parquet(quick.run.path / "comparison" / "transcripts.parquet")
    told = dict(zip(answers["question"], answers["after"], strict=True))
    asked = [row["question"] for row in quick.run.holdout[:QUESTIONS]]
    assert same([told[question] for question in asked], expected) >= QUESTIONS - 2
    assert len(set(expected)) > QUESTIONS // 2, "one answer for all would be the same everywhere"


@only_published
def test_transformers_serve_answers_as_transformers(
    quick: Export, expected: list[str], tmp_path: Path
) -> None:
    port = free_port()
    with served(
        shell_line(quick, "transformers", port), f"http://127.0.0.1:{port}/health", tmp_path / "log"
    ):
        assert answers_of(port, str(quick.path), quick) == expected


@needs_vllm
@only_published
@pytest.mark.parametrize("kind", ["merged", "adapter"])
def test_vllm_serve_answers_as_transformers(
    kind: str, quick: Export, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_NO_USAGE_STATS", "1")):
        monkeypatch.setitem(ENVIRONMENT, name, value)
    export = quick if kind == "merged" else gn.export.export_adapter(quick.run, tmp_path / "lora")
    name = str(quick.path) if kind == "merged" else "mine"
    port = free_port()
    # vLLM compiles the model first, for minutes where cores are shared.
    with served(
        shell_line(export, "vllm", port),
        f"http://127.0.0.1:{port}/health",
        tmp_path / "log",
        seconds=600,
    ):
        assert same(answers_of(port, name, quick), expected) >= QUESTIONS - 2 * (kind == "adapter")


@only_published
def test_llama_cpp_server_answers_as_transformers(
    quick: Export, expected: list[str], tmp_path: Path
) -> None:
    """Measured: 14 of 16; 1 for the model before its training."""
    try:
        conversion.find_converter()
    except gn.machine.EnvironmentProblem as problem:
        pytest.skip(f"llama.cpp's converter is neither cached here nor to be fetched: {problem}")
    file = tmp_path / "model.gguf"
    port = free_port()
    conversion.convert(quick.path, quick.verification["dtype"], file, "q8_0")
    server = [sys.executable, "-c", LLAMA_SERVER, str(file), str(port)]
    with served(server, f"http://127.0.0.1:{port}/health", tmp_path / "log"):
        assert same(answers_of(port, "mine", quick), expected) >= QUESTIONS * 3 // 4
