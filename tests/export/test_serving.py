"""The held-out answers of a run are the same from every server that its exports are for, asked by the real `openai` client.

The quickstart's model, in float32 where a server can be told so: then the texts are equal to the letter. llama.cpp computes in
types of its own, so that of its answers it is counted how many are the same.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.export import conversion
from grpo_nb.export.result import Export
from grpo_nb.export.use import PORTS
from tests.export.test_use import ENVIRONMENT, free_port, run_cell, served
from tests.support.real_vllm import needs_vllm

# After the notebook whose run this is.
pytestmark = pytest.mark.begins(115)

QUESTIONS = 16


@pytest.fixture(scope="module")
def merged(quickstart: tuple[Path, gn.runs.Run]) -> Export:
    """The quickstart's merged model."""
    run = quickstart[1]
    return gn.export.open(run.path.parent.parent / run.exports[0].path, run=run.path)


def chats(merged: Export) -> list[list[dict[str, str]]]:
    """The first held-out questions, as they were asked in training."""
    return [row["prompt"] for row in merged.run.holdout[:QUESTIONS]]


@pytest.fixture(scope="module")
def expected(merged: Export) -> list[str]:
    """What transformers itself answers with the merged folder in float32, question by question."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(merged.path)
    model = AutoModelForCausalLM.from_pretrained(merged.path, dtype="float32")
    texts = []
    for chat in chats(merged):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(**ids, max_new_tokens=merged.run.settings.max_completion_length, do_sample=False)
        texts.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


def answers_of(port: int, model: str, merged: Export) -> list[str]:
    """What a server answers greedily, through the client that its users have."""
    from openai import OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="not needed", max_retries=0)
    limit = merged.run.settings.max_completion_length
    said = [
        client.chat.completions.create(model=model, messages=chat, max_tokens=limit, temperature=0)
        for chat in chats(merged)
    ]
    return [answer.choices[0].message.content for answer in said]


def same(found: list[str], expected: list[str]) -> int:
    return sum(a == b for a, b in zip(found, expected, strict=True))


def test_the_folder_answers_as_base_and_adapter_did(merged: Export, expected: list[str]) -> None:
    """The kit's own comparison, stored with the run: rounding to 16 bit is all that lies between."""
    stored = gn.evaluation.open_comparison(merged.run.path)
    told = {row["question"]: row["completion"] for row in stored.after.rows}
    asked = [row["question"] for row in merged.run.holdout[:QUESTIONS]]
    assert same([told[question] for question in asked], expected) >= QUESTIONS - 2
    assert len(set(expected)) > QUESTIONS // 2, "one answer for all would be the same everywhere"


def test_transformers_serve(merged: Export, expected: list[str], tmp_path: Path) -> None:
    with started(merged, "transformers serve", tmp_path) as port:
        assert answers_of(port, str(merged.path), merged) == expected


@needs_vllm
def test_vllm_serve(merged: Export, expected: list[str], tmp_path: Path, monkeypatch) -> None:
    for name, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_NO_USAGE_STATS", "1")):
        monkeypatch.setitem(ENVIRONMENT, name, value)
    cell = gn.export.inference_commands(merged)["openai client"].code
    with started(merged, "vLLM", tmp_path) as port:
        assert answers_of(port, str(merged.path), merged) == expected
        assert run_cell(cell.replace(f":{PORTS['vLLM']}/", f":{port}/")).strip() == expected[0].strip()


@contextmanager
def started(merged: Export, name: str, place: Path) -> Iterator[int]:
    """A server by the line that the kit prints for it, with a port that is free and in float32; gives the port."""
    port = free_port()
    command = shlex.split(gn.export.inference_commands(merged)[name].code.replace(str(PORTS[name]), str(port)))
    assert command[1:3] == ["serve", str(merged.path)] and "127.0.0.1" in command
    command[0] = str(Path(sys.executable).with_name(command[0]))
    command += ["--dtype", "float32"]
    # vLLM compiles the model first, for minutes where cores are shared.
    with served(command, f"http://127.0.0.1:{port}/health", place / "server.log", seconds=600):
        yield port


@pytest.mark.parametrize(("quantization", "least"), [("f16", QUESTIONS - 1), ("q8_0", QUESTIONS * 3 // 4)])
def test_llama_cpp(quantization: str, least: int, merged: Export, expected: list[str], tmp_path: Path) -> None:
    """Found: 16 of 16 in f16, 14 in q8_0, where two sums are others; of the model before its training 1."""
    try:
        converter = conversion.find_converter()
    except gn.machine.EnvironmentProblem as problem:
        pytest.skip(f"llama.cpp's converter is neither cached here nor to be fetched: {problem}")
    file, port = tmp_path / f"model-{quantization}.gguf", free_port()
    conversion.convert(merged.path, file, quantization, converter, None)
    export = Export(tmp_path, {"checks": {}, "file": file.name}, "gguf")
    code = gn.export.inference_commands(export)["llama.cpp in Python"].code.replace(str(PORTS["llama.cpp"]), str(port))
    # One thread: several wait for each other at every layer, which takes long where cores are shared.
    threads = "params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1\nserver ="
    command = [sys.executable, "-c", code.replace("server =", threads) + "\nimport time; time.sleep(600)"]
    with served(command, f"http://127.0.0.1:{port}/health", tmp_path / "llama.log"):
        assert same(answers_of(port, export.path.name, merged), expected) >= least
