"""Sampling with shared prompts draws what `generate` draws."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

import grpo_nb as gn
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation import sampling as rollout
from tests.support.small_models import FAMILIES, PROMPTS, drawn_log_probs, lora_model

SAMPLING = {
    "plain": dict(temperature=1.0, top_k=0, top_p=1.0),
    "temperature": dict(temperature=0.6, top_k=0),
    "top-p": dict(top_p=0.8, top_k=0),
    "top-k and min-p": dict(top_k=80, min_p=0.002),
    "repetition penalty": dict(repetition_penalty=1.4, top_k=0),
}


def config(**kwargs: object) -> GenerationConfig:
    sampling = {"do_sample": True, **kwargs}
    return GenerationConfig(
        max_new_tokens=24, pad_token_id=0, eos_token_id=[2, 7], disable_compile=True, **sampling
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((n, "llama") for n in [*SAMPLING, "greedy"]), *(("plain", k) for k in FAMILIES)],
)
def test_the_same_seed_gives_the_tokens_of_generate(name: str, kind: str) -> None:
    model = lora_model(kind)
    prompts = [PROMPTS[i] for i in (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)]
    settings = config(**SAMPLING.get(name, {"do_sample": False}))
    torch.manual_seed(11)
    got = CpuEngine(model).sample(prompts, settings).tokens
    torch.manual_seed(11)
    expected = rollout._stock_sample(model, prompts, settings).tokens
    assert got == expected
    if name != "greedy":
        assert len({len(row) for row in got}) > 1, (
            "no row ended early, so leaving the batch was not tried"
        )


@pytest.mark.parametrize("name", SAMPLING)
def test_log_probabilities_are_those_of_the_distribution_drawn_from(name: str) -> None:
    model = lora_model()
    settings = config(**SAMPLING[name])
    torch.manual_seed(2)
    samples = CpuEngine(model).sample([PROMPTS[0]] * 6, settings)
    assert [len(row) for row in samples.log_probs] == [len(row) for row in samples.tokens]
    for tokens, log_probs in zip(samples.tokens, samples.log_probs, strict=True):
        assert log_probs == pytest.approx(
            drawn_log_probs(model, PROMPTS[0], tokens, settings), abs=1e-4
        )


def test_generate_keeps_order_and_says_what_was_cut(tiny_folder: Path) -> None:
    model, tokenizer = gn.load_model(gn.preset("cpu", model=str(tiny_folder), dtype="float32"))
    chats = [
        [{"role": "user", "content": text}]
        for text in ("Say yes.", "Write a long story about a whale.", "No?")
    ]
    plain, done = AutoTokenizer.from_pretrained(tiny_folder), []
    ids = plain.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    greedy = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    free = rollout._stock_sample(
        model, ids, GenerationConfig(**greedy, eos_token_id=[tokenizer.eos_token_id])
    ).tokens
    tokenizer.eos_token_id = end = free[0][3]  # so that the first of them ends
    expected = rollout._stock_sample(
        model, ids, GenerationConfig(**greedy, eos_token_id=[end])
    ).tokens
    got = rollout.generate(
        model, tokenizer, chats, max_completion_length=20, batch_size=2, progress=done.append
    )
    assert done == [2, 3] and [list(c.ids) for c in got] == expected
    assert [c.is_cut for c in got] == [row[-1] != end for row in expected] and not got[0].is_cut
    assert [c.text for c in got] == [
        tokenizer.decode(row, skip_special_tokens=True) for row in expected
    ]
