"""The kit drives a real vLLM, without a GPU: what it writes against transformers, and that sampling leaves the weights alone.

vLLM's own build for a CPU is the very Python code that requirements-gpu.txt pins. What a GPU alone has stays with the stand-in
of test_vllm.py and with `make gpu-check`: memory that is given back in sleep, 4 bit, CUDA graphs.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import GenerationConfig

import grpo_nb as gn
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation import sampling, vllm
from grpo_nb.generation.choice import choose_engine
from grpo_nb.lab.examples import sample_group
from grpo_nb.machine.packages import vllm_problem
from grpo_nb.models import import_unsloth
from grpo_nb.models.load import has_engine
from grpo_nb.upstream.vllm import longest_row
from tests.support.real_vllm import load_with_engine, needs_vllm, trained_tensors
from tests.support.small_models import drawn_log_probs

pytestmark = [needs_vllm, pytest.mark.begins(120)]

LONGEST = 256
LENGTH = 12
SETTINGS = {
    "max_completion_length": LENGTH,
    "num_generations": 4,
    "max_prompt_length": LONGEST - LENGTH,
}


@pytest.fixture(scope="module")
def loaded(embedded_folder: Path) -> tuple[Any, Any, gn.tasks.Task, str]:
    """The embedded model in float32 with a LoRA that has an effect, a real engine on it, and questions.

    The engine starts inside the kit's own loader, as on a GPU.
    """
    settings = gn.preset("cpu", model=str(embedded_folder), **SETTINGS)
    model, tokenizer = load_with_engine(settings)
    said = import_unsloth.said_last()
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight, std=0.05)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout_size=6, tokenizer=tokenizer)
    return model, tokenizer, task, said


@pytest.fixture
def model(loaded) -> Iterator[Any]:
    """The model; whatever a test does with it, the tensors that are trained are bit for bit what they were."""
    before = trained_tensors(loaded[0])
    assert before and all(weight.dtype == torch.float32 for weight in before.values())
    yield loaded[0]
    for name, weight in trained_tensors(loaded[0]).items():
        assert torch.equal(weight, before[name]), f"{name} was changed by sampling"


@pytest.fixture
def prompts(loaded) -> list[list[int]]:
    """Three prompts as token ids."""
    _, tokenizer, task, _ = loaded
    chats = task.holdout["prompt"][:3]
    return tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]


def config(**values: object) -> GenerationConfig:
    own = {
        "max_new_tokens": LENGTH,
        "pad_token_id": 0,
        "eos_token_id": [2],
        "disable_compile": True,
    }
    return GenerationConfig(**{**own, "do_sample": False, **values})


def test_the_engine_started_in_the_kits_loader_which_kept_what_it_said(loaded, capfd) -> None:
    """vLLM asks for the descriptor of stdout while it makes its process group, of which there is one in a process."""
    model, _, _, said = loaded
    assert vllm_problem() is None and has_engine(model) and choose_engine(model).is_vllm
    assert longest_row(model.vllm_engine) == LONGEST and vllm.vllm_rollout_obstacle(model) is None
    assert vllm.model_runner_name(model).endswith("(V1)"), "vLLM's build for a CPU has no V2"
    assert "INFO" in said and "[core.py" in said, (
        said
    )  # among the last lines: how long the engine took
    log = logging.getLogger("vllm.v1.executor.abstract")
    log.info("it slept")
    log.warning("it is warned of")
    log.warning(import_unsloth._NOT_SLEEPING)
    out, err = capfd.readouterr()
    assert out == "" and err.endswith("it is warned of\n") and err.count("\n") == 1


def test_greedy_text_is_that_of_transformers_with_the_adapter_and_without(model, prompts) -> None:
    got = vllm.sample_with_vllm(model, prompts, config())
    assert got.tokens == sampling._stock_sample(model, prompts, config()).tokens
    assert got.tokens == CpuEngine(model).sample(prompts, config()).tokens and got.log_probs is None
    with model.disable_adapter():
        base = vllm.sample_with_vllm(model, prompts, config())
        assert base.tokens == sampling._stock_sample(model, prompts, config()).tokens
    assert base.tokens != got.tokens, "the adapter has an effect, or the test shows nothing"


@pytest.mark.parametrize(
    "more", [{}, {"top_p": 0.8}, {"min_p": 0.1, "repetition_penalty": 1.2}, {"top_k": 5}]
)
def test_log_probabilities_are_those_of_the_distribution_drawn_from(model, prompts, more) -> None:
    """With transformers' own processors. Measured: within 2e-5."""
    drawn = config(do_sample=True, temperature=0.8, **{"top_k": 0, **more})
    torch.manual_seed(3)
    first = vllm.sample_with_vllm(model, [prompts[0]] * 2, drawn)
    for tokens, said in zip(first.tokens, first.log_probs, strict=True):
        assert said == pytest.approx(drawn_log_probs(model, prompts[0], tokens, drawn), abs=1e-4)


def test_a_completion_ends_at_the_tokens_asked_for_and_no_others(model, prompts) -> None:
    written = vllm.sample_with_vllm(model, prompts, config()).tokens
    within = written[0][len(written[0]) // 2]
    two = config(eos_token_id=[2, within])
    ended = vllm.sample_with_vllm(model, prompts, two).tokens
    assert ended == CpuEngine(model).sample(prompts, two).tokens
    assert ended[0] == written[0][: written[0].index(within) + 1]
    # The model's own end token, where it is not asked for: left to itself vLLM ends there, and the CPU path goes on.
    own, other = config(max_new_tokens=20), config(max_new_tokens=20, eos_token_id=[5])
    assert model.generation_config.eos_token_id == [2]
    with model.disable_adapter():
        ends = [len(row) for row in vllm.sample_with_vllm(model, prompts, own).tokens]
        assert min(ends) < 20, "or the test shows nothing"
        assert (
            vllm.sample_with_vllm(model, prompts, other).tokens
            == CpuEngine(model).sample(prompts, other).tokens
        )


def test_the_adapter_is_seen_anew_after_an_optimizer_step(loaded, prompts) -> None:
    model, before = loaded[0], trained_tensors(loaded[0])
    first = vllm.sample_with_vllm(model, prompts, config()).tokens
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=5e-3
    )
    ids = torch.tensor([prompts[0]])
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    after = trained_tensors(model)
    second = vllm.sample_with_vllm(model, prompts, config()).tokens
    assert second == CpuEngine(model).sample(prompts, config()).tokens and second != first
    assert all(torch.equal(weight, after[name]) for name, weight in trained_tensors(model).items())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in before:
                weight.copy_(before[name])
    assert vllm.sample_with_vllm(model, prompts, config()).tokens == first


@pytest.mark.parametrize("is_computed", [False, True])
def test_an_interrupt_leaves_an_engine_that_can_be_asked(
    model, prompts, monkeypatch, is_computed: bool
) -> None:
    """A real Ctrl-C between what is scheduled and what is computed, where it nearly always falls, and behind that."""
    expected = vllm.sample_with_vllm(model, prompts, config())
    engine = model.vllm_engine.llm_engine
    executor, steps = engine.model_executor, []
    stock = executor.execute_model

    def execute_model(*args: Any, **named: Any) -> Any:
        steps.append(1)
        computed = stock(*args, **named) if is_computed or len(steps) != 3 else None
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return computed

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute_model", execute_model)
        with pytest.raises(KeyboardInterrupt):
            vllm.sample_with_vllm(model, prompts, config())
    assert len(engine.output_processor.request_states) == len(prompts), (
        "left behind, and it would wait for ever"
    )
    assert vllm.sample_with_vllm(model, prompts, config()) == expected


def test_all_that_asks_a_model_asks_the_engine_and_says_the_same(
    loaded, model, monkeypatch
) -> None:
    """Evaluation, baseline and the lab: through the engine, and greedily as on a CPU."""
    _, tokenizer, task, _ = loaded
    settings = gn.preset("cpu", model=model.get_base_model().config._name_or_path, **SETTINGS)
    asked = Mock(side_effect=model.fast_generate)
    monkeypatch.setattr(model, "fast_generate", asked)

    def evaluated() -> list[str]:
        return [
            row["completion"]
            for row in gn.evaluate((model, tokenizer), task, settings=settings).rows
        ]

    texts = evaluated()
    with monkeypatch.context() as patch:
        patch.setattr(model, "vllm_engine", None)
        assert texts == evaluated() and len(texts) == 6 and asked.call_count == 1
    rewards = [gn.rewards.correctness(), gn.rewards.xml_tags()]
    gate, again = (
        gn.baseline(model, tokenizer, task, rewards, settings, prompts=2) for _ in range(2)
    )
    assert again.tokens == gate.tokens, "the same seed, the same sample"
    group = sample_group(
        model, tokenizer, task.train[0], num_generations=4, max_completion_length=LENGTH
    )
    assert [len(call.args[0]) for call in asked.call_args_list] == [6, 8, 2, 8, 2, 4] and len(
        set(group)
    ) > 1
