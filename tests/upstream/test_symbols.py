"""Every private symbol that the kit relies on is in the installed versions.

Moving a pin shows here at once what breaks.
"""

from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from trl import GRPOTrainer

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.upstream import peft, symbols, transformers, trl, unsloth


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def test_require_symbol_missing_names_symbol_and_versions() -> None:
    with pytest.raises(EnvironmentProblem, match=r"torch\._gone is missing in torch .* torch 1\.0"):
        symbols.require_symbol(torch, "_gone", written_for="torch 1.0")


def test_require_symbol_lost_parameter_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match="no longer takes steps"):
        symbols.require_symbol(torch.nn, "Linear", written_for="torch 1.0", parameters=("steps",))


def test_require_symbol_returns_the_symbol() -> None:
    assert symbols.require_symbol(torch, "ones", written_for="torch 1.0") is torch.ones


def test_require_symbol_takes_any_keyword() -> None:
    owner = SimpleNamespace(function=lambda **kwargs: None)
    found = symbols.require_symbol(
        owner, "function", written_for="trl 1.15.0", parameters=("anything",)
    )
    assert found is owner.function


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(
            module, name, id=name.replace("WRITTEN_FOR", module.__name__.rpartition(".")[2])
        )
        for module, name in [
            (peft, "WRITTEN_FOR"),
            (transformers, "WRITTEN_FOR"),
            (trl, "WRITTEN_FOR"),
            (unsloth, "WRITTEN_FOR"),
            (unsloth, "WRITTEN_FOR_ZOO"),
        ]
    ],
)
def test_written_for_is_the_pinned_version(module: object, name: str) -> None:
    package, _, version = getattr(module, name).partition(" ")
    assert symbols.installed_version(package) == version


def test_trainer_methods_are_in_installed_trl() -> None:
    trl.require_trainer_methods(GRPOTrainer)


@pytest.mark.parametrize("name", sorted(trl.TRAINER_METHODS))
def test_trainer_without_a_method_is_refused(name: str) -> None:
    changed = type("Changed", (GRPOTrainer,), {name: None})
    with pytest.raises(EnvironmentProblem, match=rf"Changed\.{name} is missing in trl"):
        trl.require_trainer_methods(changed)


def test_micro_batch_count_is_the_counter_of_trl() -> None:
    assert trl.micro_batch_count(SimpleNamespace(_step=3)) == 3


def test_micro_batch_count_without_counter_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="_step is missing in trl"):
        trl.micro_batch_count(SimpleNamespace(step=3))


def test_fused_head_function_is_in_installed_trl() -> None:
    assert "_ChunkedLogProbFunction" in trl.fused_head_namespace()


def test_attention_table_of_transformers_has_sdpa() -> None:
    assert callable(transformers.attention_functions()["sdpa"])


def test_sampling_setup_gives_processors_of_generate(model: LlamaForCausalLM) -> None:
    asked = GenerationConfig(max_new_tokens=2, do_sample=True, temperature=0.5, eos_token_id=3)
    config, processors = transformers.sampling_setup(model, asked, prompt_length=4)
    assert type(processors[0]).__name__ == "TemperatureLogitsWarper"
    assert config.max_new_tokens == 2


def test_gguf_reader_has_a_bar_to_silence() -> None:
    transformers.silence_gguf_reader()


def test_forget_quantization_removes_the_marks(model: LlamaForCausalLM) -> None:
    model.config.quantization_config = {"quant_method": "gguf"}
    model.hf_quantizer = object()
    model.is_quantized = True
    model.quantization_method = "gguf"
    transformers.forget_quantization(model)
    assert not hasattr(model.config, "quantization_config")
    assert model.hf_quantizer is None


def test_lora_request_builder_is_in_installed_unsloth(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsloth_zoo import vllm_utils

    original = vllm_utils._build_lora_request
    monkeypatch.setattr(vllm_utils, "_build_lora_request", original)
    unsloth.hand_copies_to_vllm()
    assert vllm_utils._build_lora_request.hands_copies


def test_cpu_dtype_probe_follows_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsloth_zoo.cpu import runtime

    monkeypatch.setenv("UNSLOTH_CPU_BF16", "0")
    unsloth.set_cpu_dtype("UNSLOTH_CPU_BF16", use_bfloat16=True)
    is_bfloat16 = runtime.cpu_bf16_supported()
    unsloth.set_cpu_dtype("UNSLOTH_CPU_BF16", use_bfloat16=False)
    assert is_bfloat16
    assert not runtime.cpu_bf16_supported()


def test_notebook_patch_is_in_installed_unsloth() -> None:
    unsloth.patch_vllm_for_notebooks()
