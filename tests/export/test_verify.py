"""The process that verifies a merge computes in float32 and holds the model in the number type of its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_nb.export.children import verify
from grpo_nb.export.merge import merge

SMALL = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ARCHITECTURES = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},  # biases
    "qwen3": {},  # norms inside the attention
    "mistral": {},
    "gemma2": {"query_pre_attn_scalar": 8},  # scaled embeddings, capped logits
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "phi3": {},  # joined projections
    "granite": {"embedding_multiplier": 3.0},
    "mixtral": {"num_local_experts": 2},  # experts that are no linear layers
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},  # its own kind of linear layer
}


@pytest.fixture(params=ARCHITECTURES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random model of an architecture, saved in bfloat16."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **SMALL, **ARCHITECTURES[request.param])
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def save_adapter(model: torch.nn.Module, folder: Path, **lora: object) -> None:
    """An adapter that has an effect."""
    model = get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", **lora))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)


def logits(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(3, 40).reshape(1, -1)
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def test_a_model_held_in_16_bits_computes_as_in_float32(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_BLOCK", 200)  # several blocks, the last one shorter
    exact = logits(AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32))
    held = verify.widen_while_computing(AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16))
    rounded = logits(AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16)).float()
    found = logits(held)
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5 < (rounded - exact).abs().max()
    linear = [m for m in held.modules() if type(m) is torch.nn.Linear]
    assert all(m.weight.dtype == torch.bfloat16 for m in linear if m.weight is not held.get_input_embeddings().weight)


def test_the_same_with_an_adapter(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters on linear layers; the sum that is expected of a merged file is that of the float32 base, exactly."""
    model = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16)
    names = ["c_attn", "c_proj"] if "gpt2" in model.config.model_type else ["q_proj", "k_proj", "o_proj", "qkv_proj"]
    save_adapter(model, tmp_path / "adapter", target_modules=names)
    assert verify.reference_dtype(saved, tmp_path / "adapter") == torch.float32
    monkeypatch.setattr(verify, "_SMALL", 0)
    assert verify.reference_dtype(saved, tmp_path / "adapter") == torch.bfloat16
    results, sums = [], []
    for widen in (False, True):
        base = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16 if widen else torch.float32)
        base = verify.widen_while_computing(base) if widen else base
        reference = PeftModel.from_pretrained(base, tmp_path / "adapter")
        results.append(logits(reference))
        expected = verify.expected_weights(reference)
        sums.append({name: sum(term.float() for term in terms()) for name, terms in expected.items()})
    assert (results[0] - results[1]).abs().max() < 1e-4
    assert sums[0].keys() == sums[1].keys() and all(torch.equal(t, sums[1][n]) for n, t in sums[0].items())


@pytest.mark.parametrize("on_experts", [False, True])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("mixtral", {"num_local_experts": 2}), ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 16})],
)
def test_a_mixture_of_experts_is_merged_and_verified(
    tmp_path: Path, kind: str, more: dict[str, int], on_experts: bool
) -> None:
    """Its experts are joined while they load and are taken apart again when they are saved."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL, **more)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if on_experts else None
    save_adapter(model, tmp_path / "adapter", target_modules=["q_proj", "v_proj"], target_parameters=experts)
    target = tmp_path / "merged"
    target.mkdir()
    kept = merge(
        tmp_path / "base", tmp_path / "adapter", target, dtype="auto", low_memory="auto", shard_size="5GB",
        report=lambda line: None,
    )  # fmt: skip
    assert kept["dtype"] == "bfloat16" and kept["retained_change"] > 0.99

    def problems() -> list[str]:
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
        base = verify.widen_while_computing(base)
        found = verify.tensor_problems(target, verify.saved_names(base))
        return found + verify.weight_problems(target, PeftModel.from_pretrained(base, tmp_path / "adapter"))

    assert problems() == []
    tensors = load_file(target / "model.safetensors")
    spoiled = next(name for name in tensors if "experts.1." in name)
    tensors[spoiled] = tensors[spoiled].flip(0).contiguous()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    found = problems()
    assert len(found) == 1 and found[0].startswith(f"{spoiled} differs from base plus adapter"), found


@pytest.mark.parametrize(
    "settings",
    [{"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"bias": "lora_only"}, {"init_lora_weights": "pissa"}],
    ids=str,
)
def test_what_more_than_matrices_was_trained_is_held_in_float32(
    tmp_path: Path, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 16 bits the reference itself would be rounded, and the comparison with it worth less."""
    monkeypatch.setattr(verify, "_SMALL", 0)
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen2", **SMALL)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    model = model.float() if settings.get("init_lora_weights") == "pissa" else model
    save_adapter(model, tmp_path / "adapter", target_modules=["q_proj"], **settings)
    assert verify.reference_dtype(tmp_path / "base", tmp_path / "adapter") == torch.float32


def test_small_files_and_those_of_several_number_types_are_held_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"a": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    assert verify.held_dtype(tmp_path) == torch.float32
    monkeypatch.setattr(verify, "_SMALL", 0)
    assert verify.held_dtype(tmp_path) == torch.bfloat16
    save_file({"b": torch.zeros(2)}, tmp_path / "b.safetensors")
    assert verify.held_dtype(tmp_path) == torch.float32
