"""The kit drives a real vLLM without a GPU: transformers' text, and unchanged weights.

vLLM's own build for a CPU is the same Python code that requirements-gpu.txt pins. Only a GPU has
memory that is given back in sleep, 4 bit and CUDA graphs: they are left to the stand-in of
test_vllm.py and to `make gpu-check`.
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
from grpo_nb.config.hardware import has_vllm_engine
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation.choice import choose_engine
from grpo_nb.generation.sampling import generate, sample_with_transformers
from grpo_nb.generation.vllm import (
    sample_with_vllm,
    vllm_engine_obstacle,
    vllm_sampling_arguments,
)
from grpo_nb.upstream.vllm import sequence_limit_of
from scripts.gpu_check import model_runner_class
from tests.support.real_vllm import load_with_engine, needs_vllm, trained_tensors
from tests.support.small_models import drawn_log_probs

pytestmark = [needs_vllm, pytest.mark.begins(120)]

LONGEST_SEQUENCE = 256
LENGTH = 12
SETTINGS = {
    "max_completion_length": LENGTH,
    "num_generations": 4,
    "max_prompt_length": LONGEST_SEQUENCE - LENGTH,
}


@pytest.fixture(scope="module")
def loaded(embedded_folder: Path) -> tuple[Any, Any, gn.tasks.Task]:
    """The embedded model in float32 with a LoRA that has an effect, a real engine, and questions.

    The engine starts inside the kit's own loader, as on a GPU.
    """
    settings = gn.preset("cpu", model=str(embedded_folder), **SETTINGS)
    model, tokenizer = load_with_engine(settings)
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight, std=0.05)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout_size=6, tokenizer=tokenizer)
    return model, tokenizer, task


@pytest.fixture
def model(loaded) -> Iterator[Any]:
    """The model. After each test its trained tensors must be, bit for bit, what they were."""
    before = trained_tensors(loaded[0])
    assert before
    assert all(weight.dtype == torch.float32 for weight in before.values())
    yield loaded[0]
    for name, weight in trained_tensors(loaded[0]).items():
        assert torch.equal(weight, before[name]), f"{name} was changed by sampling"


@pytest.fixture
def prompts(loaded) -> list[list[int]]:
    """Three prompts as token ids."""
    _, tokenizer, task = loaded
    chats = task.holdout["prompt"][:3]
    encoded = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)
    return encoded["input_ids"]


def generation_config(**changes: object) -> GenerationConfig:
    arguments = {
        "max_new_tokens": LENGTH,
        "pad_token_id": 0,
        "eos_token_id": [2],
        "disable_compile": True,
        "do_sample": False,
        **changes,
    }
    return GenerationConfig(**arguments)


def test_engine_starts_in_the_kits_loader(loaded) -> None:
    """vLLM asks for the descriptor of stdout while it makes the process group of a process."""
    model = loaded[0]
    assert has_vllm_engine(model)
    assert choose_engine(model).uses_vllm
    assert sequence_limit_of(model.vllm_engine) == LONGEST_SEQUENCE
    assert vllm_engine_obstacle(model) is None
    # vLLM's build for a CPU has no V2.
    assert model_runner_class(model.vllm_engine).endswith("(V1)")


def test_log_of_vllm_stays_out_of_the_notebook(loaded, capfd) -> None:
    log = logging.getLogger("vllm.v1.executor.abstract")
    log.info("it slept")
    log.warning("Executor is not sleeping.")
    assert capfd.readouterr() == ("", "")


def test_vllm_decodes_greedily_as_transformers(model, prompts) -> None:
    tokens = sample_with_vllm(model, prompts, generation_config())
    assert tokens == sample_with_transformers(model, prompts, generation_config())
    assert tokens == CpuEngine(model).sample(prompts, generation_config())


def test_vllm_decodes_as_transformers_with_the_adapter_off(model, prompts) -> None:
    with_adapter = sample_with_vllm(model, prompts, generation_config())
    with model.disable_adapter():
        tokens = sample_with_vllm(model, prompts, generation_config())
        assert tokens == sample_with_transformers(model, prompts, generation_config())
    assert tokens != with_adapter, "the adapter has no effect, so nothing was tried"


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({}, id="plain"),
        pytest.param({"top_p": 0.8}, id="top-p"),
        pytest.param({"min_p": 0.1, "repetition_penalty": 1.2}, id="min-p and penalty"),
        pytest.param({"top_k": 5}, id="top-k"),
    ],
)
def test_vllm_samples_from_the_distribution_of_transformers(
    model, prompts, sampling: dict[str, Any], tmp_path: Path
) -> None:
    """By the log-probabilities of its tokens, with transformers' processors. Measured: 2e-5."""
    from vllm import SamplingParams

    config = generation_config(do_sample=True, temperature=0.8, **{"top_k": 0, **sampling})
    # Unsloth starts the engine with `processed_logprobs`: those of the distribution sampled from.
    params = SamplingParams(**vllm_sampling_arguments(config), seed=3, logprobs=0)
    (output,) = model.fast_generate(
        [{"prompt_token_ids": prompts[0]}],
        sampling_params=[params],
        use_tqdm=False,
        lora_request=model.load_lora(str(tmp_path / "unused"), load_tensors=True),
    )
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    log_probs = []
    for token, table in zip(tokens, completion.logprobs, strict=True):
        log_probs.append(table[token].logprob)
    expected = drawn_log_probs(model, prompts[0], tokens, config)
    assert log_probs == pytest.approx(expected, abs=1e-4)


def test_vllm_stops_at_the_end_tokens_asked_for(model, prompts) -> None:
    whole = sample_with_vllm(model, prompts, generation_config())
    within = whole[0][len(whole[0]) // 2]
    config = generation_config(eos_token_id=[2, within])
    tokens = sample_with_vllm(model, prompts, config)
    assert tokens == CpuEngine(model).sample(prompts, config)
    assert tokens[0] == whole[0][: whole[0].index(within) + 1]


def test_vllm_does_not_stop_at_the_models_own_end_token(model, prompts) -> None:
    """By default vLLM ends there too, and the CPU path goes on."""
    assert model.generation_config.eos_token_id == [2]
    own = generation_config(max_new_tokens=20)
    other = generation_config(max_new_tokens=20, eos_token_id=[5])
    with model.disable_adapter():
        lengths = [len(row) for row in sample_with_vllm(model, prompts, own)]
        assert min(lengths) < 20, "no completion ended, so nothing was tried"
        expected = CpuEngine(model).sample(prompts, other)
        assert sample_with_vllm(model, prompts, other) == expected


def test_vllm_sees_the_adapter_after_an_optimizer_step(loaded, prompts) -> None:
    model = loaded[0]
    before = trained_tensors(model)
    first = sample_with_vllm(model, prompts, generation_config())
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    ids = torch.tensor([prompts[0]])
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    after = trained_tensors(model)
    second = sample_with_vllm(model, prompts, generation_config())
    assert second == CpuEngine(model).sample(prompts, generation_config())
    assert second != first
    for name, weight in trained_tensors(model).items():
        assert torch.equal(weight, after[name]), f"{name} was changed by sampling"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in before:
                weight.copy_(before[name])
    assert sample_with_vllm(model, prompts, generation_config()) == first


@pytest.mark.parametrize("is_computed", [False, True])
def test_interrupt_leaves_an_engine_that_answers(
    model, prompts, monkeypatch: pytest.MonkeyPatch, is_computed: bool
) -> None:
    """A real Ctrl-C between scheduling and computing, where most fall, and after it."""
    expected = sample_with_vllm(model, prompts, generation_config())
    engine = model.vllm_engine.llm_engine
    executor = engine.model_executor
    original = executor.execute_model
    steps = []

    def execute_model(*args: Any, **kwargs: Any) -> Any:
        steps.append("step")
        is_interrupted = len(steps) == 3
        result = None
        if is_computed or not is_interrupted:
            result = original(*args, **kwargs)
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute_model", execute_model)
        with pytest.raises(KeyboardInterrupt):
            sample_with_vllm(model, prompts, generation_config())
    # They were left behind, and the engine would wait for them for ever.
    assert len(engine.output_processor.request_states) == len(prompts)
    assert sample_with_vllm(model, prompts, generation_config()) == expected


def test_evaluation_baseline_and_lab_ask_the_engine(
    loaded, model, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tokenizer, task = loaded
    settings = gn.preset("cpu", model=model.get_base_model().config._name_or_path, **SETTINGS)
    fast_generate = Mock(side_effect=model.fast_generate)
    monkeypatch.setattr(model, "fast_generate", fast_generate)

    def evaluate() -> list[str]:
        result = gn.evaluate((model, tokenizer), task, settings=settings)
        return [row["completion"] for row in result.rows]

    texts = evaluate()
    assert len(texts) == 6
    with monkeypatch.context() as patch:
        patch.setattr(model, "vllm_engine", None)
        assert texts == evaluate(), "greedily the engine writes what a CPU writes"
    rewards = [gn.rewards.correctness(), gn.rewards.partial_format()]
    first = gn.baseline(model, tokenizer, task, rewards, settings, prompts=2)
    again = gn.baseline(model, tokenizer, task, rewards, settings, prompts=2)
    assert again.scores.completions == first.scores.completions, "the same seed, the same sample"
    rows = [task.train[0]] * 4
    group = generate(model, tokenizer, rows, temperature=1.0, max_completion_length=LENGTH)
    assert len({completion.text for completion in group}) > 1
    sizes = [len(call.args[0]) for call in fast_generate.call_args_list]
    assert sizes == [6, 8, 2, 8, 2, 4]
