"""Adapters are read only if they are plain LoRAs, and a base model is known by its weights."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig
from safetensors.torch import load_file, save_file

import grpo_nb as gn
from grpo_nb.models.adapter import load_adapter, require_same_lora, save_adapter
from grpo_nb.models.base_weights import base_weights_hash

SETTINGS = gn.Settings(lora_rank=4, lora_alpha=8, lora_target_modules=("q_proj",))


def lora_folder(folder: Path, **options: object) -> Path:
    """Write a LoRA of rank 4 on one layer."""
    LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], **options).save_pretrained(folder)
    tensors = {"base_model.model.q_proj.lora_A.weight": torch.zeros(4, 8)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("initialisation", [True, "gaussian", "eva", "orthogonal"])
def test_lora_on_an_unchanged_base_is_allowed(initialisation: object, tmp_path: Path) -> None:
    folder = lora_folder(tmp_path, init_lora_weights=initialisation)
    require_same_lora(folder, SETTINGS)


@pytest.mark.parametrize(
    "change", [{"lora_rank": 8}, {"lora_alpha": 4}, {"lora_target_modules": ("q_proj", "v_proj")}]
)
def test_lora_of_other_settings_is_refused_with_the_line(change: dict, tmp_path: Path) -> None:
    folder = lora_folder(tmp_path)
    line = r"settings\.replace\(lora_rank=4, lora_alpha=8, lora_target_modules=\('q_proj',\)\)"
    with pytest.raises(ValueError, match=line):
        require_same_lora(folder, SETTINGS.replace(**change))


@pytest.mark.parametrize("modules", [["v_proj", "q_proj"], r".*\.[qv]_proj"])
def test_modules_of_an_adapter_are_those_of_its_tensors(modules: object, tmp_path: Path) -> None:
    LoraConfig(r=4, lora_alpha=8, target_modules=modules).save_pretrained(tmp_path)
    names = [f"base_model.model.{module}.lora_A.weight" for module in ("q_proj", "v_proj")]
    tensors = {name: torch.zeros(4, 8) for name in names}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    for order in (("q_proj", "v_proj"), ("v_proj", "q_proj")):
        require_same_lora(tmp_path, SETTINGS.replace(lora_target_modules=order))


def test_lora_that_changed_its_base_is_refused(tmp_path: Path) -> None:
    folder = lora_folder(tmp_path, init_lora_weights="pissa")
    with pytest.raises(ValueError, match=r"not a plain LoRA \(init_lora_weights 'pissa'\)"):
        require_same_lora(folder, SETTINGS)


def test_adapter_of_another_kind_is_named(tmp_path: Path) -> None:
    IA3Config(target_modules=["q_proj"], feedforward_modules=[]).save_pretrained(tmp_path)
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"not a plain LoRA \(peft_type IA3\)"):
        require_same_lora(tmp_path, SETTINGS)


def test_adapter_without_safetensors_is_refused(tmp_path: Path) -> None:
    folder = lora_folder(tmp_path)
    os.rename(folder / "adapter_model.safetensors", folder / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"it has no adapter_model\.safetensors"):
        require_same_lora(folder, SETTINGS)


@pytest.fixture
def saved(tiny_folder: Path, tmp_path: Path) -> tuple[Any, Path]:
    """A model, and the file of its own adapter."""
    model, _ = gn.load_model(gn.preset("cpu", model=str(tiny_folder)))
    save_adapter(model, tmp_path)
    return model, tmp_path / "adapter_model.safetensors"


def test_adapter_of_a_loaded_model_has_its_settings(saved, tiny_folder: Path) -> None:
    require_same_lora(saved[1].parent, gn.preset("cpu", model=str(tiny_folder)))


@pytest.mark.parametrize("name", ["lm_head.weight", "embed_tokens.lora_embedding_A"])
def test_adapter_with_more_than_lora_matrices_is_refused(name: str, saved) -> None:
    model, file = saved
    save_file({**load_file(file), name: torch.zeros(4, 8)}, file)
    with pytest.raises(ValueError, match="has other tensors than the model's LoRA"):
        load_adapter(model, file.parent)


def test_adapter_with_values_that_are_no_number_is_refused(saved) -> None:
    model, file = saved
    tensors = load_file(file)
    name = next(name for name in tensors if "lora_B" in name)
    save_file({**tensors, name: torch.full_like(tensors[name], float("nan"))}, file)
    with pytest.raises(
        ValueError, match=f"{name} did not arrive, or has values that are not a num"
    ):
        load_adapter(model, file.parent)


def test_model_made_in_memory_ignores_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path=""))
    assert base_weights_hash(model, "not here") is None
