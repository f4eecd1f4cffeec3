"""`generate` on a CPU: sampling with shared prompts gives the tokens of `model.generate`."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

import grpo_nb as gn
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation.sampling import generate, sample_with_transformers
from tests.support.small_models import FAMILIES, PROMPTS, lora_model

SAMPLING = [
    pytest.param({"temperature": 1.0, "top_k": 0, "top_p": 1.0}, id="plain"),
    pytest.param({"temperature": 0.6, "top_k": 0}, id="temperature"),
    pytest.param({"top_p": 0.8, "top_k": 0}, id="top-p"),
    pytest.param({"top_k": 80, "min_p": 0.002}, id="top-k and min-p"),
    pytest.param({"repetition_penalty": 1.4, "top_k": 0}, id="repetition penalty"),
    pytest.param({"forced_eos_token_id": 7}, id="forced end token"),
]


def generation_config(**changes: object) -> GenerationConfig:
    arguments = {
        "max_new_tokens": 24,
        "pad_token_id": 0,
        "eos_token_id": [2, 7],
        "disable_compile": True,
        "do_sample": True,
        **changes,
    }
    return GenerationConfig(**arguments)


TEN_ROWS = tuple(PROMPTS[index] for index in (0, 0, 0, 0, 1, 1, 1, 1, 2, 2))


def sample_both_ways(
    kind: str, config: GenerationConfig, prompts: Sequence[list[int]] = TEN_ROWS
) -> tuple[list, list]:
    """Return completions of these prompts by the kit's engine and by `model.generate`."""
    model = lora_model(kind)
    torch.manual_seed(11)
    by_engine = CpuEngine(model).sample(prompts, config)
    torch.manual_seed(11)
    return by_engine, sample_with_transformers(model, prompts, config)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_cpu_engine_samples_the_tokens_of_generate(sampling: dict[str, object]) -> None:
    by_engine, expected = sample_both_ways("llama", generation_config(**sampling))
    assert by_engine == expected
    lengths = {len(row) for row in by_engine}
    assert len(lengths) > 1, "no row ended early, so leaving the batch was not tried"


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_cpu_engine_samples_the_tokens_in_every_family(kind: str) -> None:
    config = generation_config(temperature=1.0, top_k=0, top_p=1.0)
    by_engine, expected = sample_both_ways(kind, config)
    assert by_engine == expected
    lengths = {len(row) for row in by_engine}
    assert len(lengths) > 1, "no row ended early, so leaving the batch was not tried"


def test_cpu_engine_samples_after_prompts_of_one_token() -> None:
    config = generation_config(temperature=1.0, top_k=0, top_p=1.0)
    by_engine, expected = sample_both_ways("llama", config, [[5]] * 6 + [[9]] * 6)
    assert by_engine == expected
    lengths = {len(row) for row in by_engine}
    assert len(lengths) > 1, "no row ended early, so leaving the batch was not tried"


def test_cpu_engine_decodes_greedily_as_generate() -> None:
    by_engine, expected = sample_both_ways("llama", generation_config(do_sample=False))
    assert by_engine == expected


def test_tokenizer_without_a_pad_token_samples_by_either_engine() -> None:
    config = generation_config(do_sample=False, pad_token_id=None)
    by_engine, expected = sample_both_ways("llama", config)
    assert by_engine == expected


def test_generate_keeps_order_and_marks_truncated_answers(tiny_folder: Path) -> None:
    model, tokenizer = gn.load_model(gn.preset("cpu", model=str(tiny_folder), dtype="float32"))
    texts = ("Say yes.", "Write a long story about a whale.", "No?")
    chats = [[{"role": "user", "content": text}] for text in texts]
    plain = AutoTokenizer.from_pretrained(tiny_folder)
    ids = plain.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)
    ids = ids["input_ids"]

    def greedy_tokens(end: int) -> list[list[int]]:
        config = GenerationConfig(
            max_new_tokens=20,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=[end],
        )
        return sample_with_transformers(model, ids, config)

    # Another end token, so that the first answer ends and is not truncated.
    end = greedy_tokens(tokenizer.eos_token_id)[0][3]
    tokenizer.eos_token_id = end
    expected = greedy_tokens(end)
    done: list[int] = []
    rows = [{"prompt": chat} for chat in chats]
    completions = generate(
        model, tokenizer, rows, max_completion_length=20, batch_size=2, progress=done.append
    )
    assert done == [2, 3]
    assert [list(one.ids) for one in completions] == expected
    assert [one.is_truncated for one in completions] == [row[-1] != end for row in expected]
    assert not completions[0].is_truncated
    decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in expected]
    assert [one.text for one in completions] == decoded


def test_generate_takes_transformers_for_beams_or_if_asked(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU engine has no beams, and would ignore them. `shared_prompts=False` switches it off."""
    model, tokenizer = gn.load_model(gn.preset("cpu", model=str(tiny_folder), dtype="float32"))
    monkeypatch.setattr(CpuEngine, "sample", None)
    rows = [{"prompt": [{"role": "user", "content": "Say yes."}]}]
    beams = {"num_beams": 2}
    (one,) = generate(
        model, tokenizer, rows, max_completion_length=4, temperature=1.0, sampling_parameters=beams
    )
    assert one.token_count > 0
    (one,) = generate(model, tokenizer, rows, max_completion_length=4, shared_prompts=False)
    assert one.token_count > 0
