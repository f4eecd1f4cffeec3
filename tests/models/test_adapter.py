"""Adapters are read only if they are plain LoRAs, and a base model is known by its weights."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

import grpo_nb as gn
from grpo_nb.models.adapter import load_adapter, read_adapter, save_adapter
from grpo_nb.models.base_weights import base_weights_hash


def lora_folder(folder: Path, **options: object) -> Path:
    """Write a LoRA of rank 4 on one layer."""
    LoraConfig(r=4, target_modules=["q_proj"], **options).save_pretrained(folder)
    tensors = {"base_model.model.q_proj.lora_A.weight": torch.zeros(4, 8)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("initialisation", [True, "gaussian", "eva", "orthogonal"])
def test_lora_on_an_unchanged_base_is_read(initialisation: object, tmp_path: Path) -> None:
    folder = lora_folder(tmp_path, init_lora_weights=initialisation)
    assert read_adapter(folder)["lora_rank"] == 4


def test_lora_that_changed_its_base_is_refused(tmp_path: Path) -> None:
    folder = lora_folder(tmp_path, init_lora_weights="pissa")
    with pytest.raises(ValueError, match=r"not a plain LoRA \(init_lora_weights 'pissa'\)"):
        read_adapter(folder)


def test_adapter_of_another_kind_is_named(tmp_path: Path) -> None:
    IA3Config(target_modules=["q_proj"], feedforward_modules=[]).save_pretrained(tmp_path)
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"not a plain LoRA \(peft_type IA3\)"):
        read_adapter(tmp_path)


def test_adapter_without_safetensors_is_refused(tmp_path: Path) -> None:
    folder = lora_folder(tmp_path)
    os.rename(folder / "adapter_model.safetensors", folder / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"it has no adapter_model\.safetensors"):
        read_adapter(folder)


@pytest.mark.parametrize("name", ["lm_head.weight", "embed_tokens.lora_embedding_A"])
def test_adapter_with_more_than_lora_matrices_is_refused(name: str, tmp_path: Path) -> None:
    folder = lora_folder(tmp_path)
    file = folder / "adapter_model.safetensors"
    save_file({**load_file(file), name: torch.zeros(4, 8)}, file)
    with pytest.raises(ValueError, match=f"not a plain LoRA .{name}"):
        read_adapter(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_adapter_with_values_that_are_not_finite_is_refused(
    tiny_folder: Path, tmp_path: Path, value: float
) -> None:
    settings = gn.preset("cpu", model=str(tiny_folder))
    model, _ = gn.load_model(settings)
    save_adapter(model, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "lora_B" in name)
    save_file({**tensors, name: torch.full_like(tensors[name], value)}, file)
    before = get_peft_model_state_dict(model)[name].clone()
    with pytest.raises(ValueError, match=f"not finite, as in {name}"):
        load_adapter(model, tmp_path)
    assert torch.equal(get_peft_model_state_dict(model)[name], before), "it was written"


def test_model_made_in_memory_ignores_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path=""))
    assert base_weights_hash(model, "not here") is None
