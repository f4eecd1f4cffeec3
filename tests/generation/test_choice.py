"""`choose_engine`: the engine that samples, and why it is not a faster one."""

from types import SimpleNamespace
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.generation import choice
from grpo_nb.generation.choice import choose_engine
from grpo_nb.models.load_record import LOAD_RECORDS, LoadRecord
from tests.support.gpus import GPUS
from tests.support.small_models import lora_model


@pytest.fixture
def model() -> Any:
    return lora_model()


def test_choose_engine_on_a_cpu_is_the_kits(model: Any) -> None:
    engine = choose_engine(model, gn.preset("cpu"))
    assert engine.name == "the kit's CPU engine"
    assert engine.cpu_engine_obstacle is None
    assert engine.vllm_obstacle is not None


def test_choose_engine_names_the_switch_of_shared_prompts(model: Any) -> None:
    engine = choose_engine(model, gn.preset("cpu", shared_prompts=False))
    assert engine.name == "transformers' own generation"
    assert engine.cpu_engine_obstacle == "shared_prompts=False switches it off"


def test_choose_engine_names_generation_kwargs(model: Any) -> None:
    engine = choose_engine(model, gn.preset("cpu", extra={"generation_kwargs": {"num_beams": 2}}))
    assert engine.name == "transformers' own generation"
    assert engine.cpu_engine_obstacle.startswith("generation_kwargs ask for beams")


def test_choose_engine_names_gradient_checkpointing_of_the_training(model: Any) -> None:
    settings = gn.preset("cpu", extra={"gradient_checkpointing": True})
    engine = choose_engine(model, settings)
    assert engine.cpu_engine_obstacle == "gradient checkpointing drops the key/value cache"


def test_choose_engine_allows_plain_generation_kwargs(model: Any) -> None:
    settings = gn.preset("cpu", extra={"generation_kwargs": {"eos_token_id": [1]}})
    assert choose_engine(model, settings).cpu_engine_obstacle is None


def test_choose_engine_names_a_window_that_rows_exceed(model: Any) -> None:
    model.config.layer_types = ["sliding_attention"]
    model.config.sliding_window = 64
    settings = gn.preset("cpu", max_prompt_length=32, max_completion_length=32)
    assert choose_engine(model, settings).cpu_engine_obstacle is None
    too_long = choose_engine(model, settings.replace(max_completion_length=33))
    assert "64 tokens" in too_long.cpu_engine_obstacle


def test_choose_engine_reports_why_vllm_was_left_out(model: Any) -> None:
    settings = gn.preset("cpu", fast_inference=True)
    LOAD_RECORDS[model] = LoadRecord(settings, vllm_obstacle="vLLM did not start (x)")
    engine = choose_engine(model, settings)
    assert engine.vllm_obstacle == "vLLM did not start (x)"
    assert engine.name == "the kit's CPU engine"


def test_choose_engine_with_an_engine_is_vllm(model: Any) -> None:
    model.vllm_engine = object()
    assert choose_engine(model).vllm_obstacle is None
    assert choose_engine(model).name == "vLLM"


def test_choose_engine_compares_the_settings_with_the_engine(model: Any) -> None:
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64))
    model.vllm_engine = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=config))
    settings = gn.preset("cpu", max_prompt_length=32, max_completion_length=33)
    assert "started for 64" in choose_engine(model, settings).vllm_obstacle


def test_choose_engine_for_a_cpu_model_beside_a_gpu(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate` samples from such a model with the `CpuEngine`, so it has that name."""
    monkeypatch.setattr(choice, "find_gpu", lambda: GPUS["t4"])
    assert choose_engine(model, gn.preset("cpu")).name == "the kit's CPU engine"
