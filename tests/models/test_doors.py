"""`gn.load_model` goes on from a LoRA that PEFT saved."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import grpo_nb as gn
from grpo_nb.models.templates import load_templates
from grpo_nb.training.kl_reference import START_REFERENCE
from tests.support.tiny import load_tiny


def saved_by_peft(base: Path, folder: Path, **changes: Any) -> Path:
    """Write a LoRA as a supervised training leaves it, with fewer layers and its own template."""
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = LoraConfig(
        r=4, lora_alpha=12, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **changes
    )
    model = get_peft_model(model, lora)
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.05)
    model.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("theirs")
    return folder


# Settings of the LoRA that `saved_by_peft` writes.
THEIR_SETTINGS = {"lora_rank": 4, "lora_alpha": 12, "lora_target_modules": ("q_proj", "v_proj")}


@pytest.fixture(scope="module")
def theirs(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_by_peft(tiny_folder, tmp_path_factory.mktemp("sft") / "lora")


def test_adapter_arrives_with_its_template(tiny_folder: Path, theirs: Path) -> None:
    settings = gn.preset("cpu", model=str(tiny_folder), **THEIR_SETTINGS)
    model, tokenizer = gn.load_model(settings, adapter=str(theirs))
    for name, tensor in load_file(theirs / "adapter_model.safetensors").items():
        mine = model.get_parameter(name.replace(".weight", ".default.weight"))
        assert torch.equal(mine, tensor.to(mine.dtype)), name
    assert tokenizer.chat_template == "theirs"
    ids = tokenizer("What is 3 + 4?", return_tensors="pt")["input_ids"]
    alone = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32), theirs
    )
    with torch.no_grad():
        torch.testing.assert_close(
            model.float().eval()(ids).logits, alone.eval()(ids).logits, atol=1e-3, rtol=1e-3
        )


def test_other_chat_template_drops_an_older_response_template(tmp_path: Path) -> None:
    tokenizer = SimpleNamespace(chat_template="old", response_template={"of": "old"})
    load_templates(tmp_path, tokenizer)
    (tmp_path / "chat_template.jinja").write_text("old")
    load_templates(tmp_path, tokenizer)
    assert tokenizer.response_template == {"of": "old"}
    (tmp_path / "chat_template.jinja").write_text("new")
    load_templates(tmp_path, tokenizer)
    assert tokenizer.response_template is None


def test_training_from_an_adapter_has_it_as_reference(
    tiny_folder: Path, theirs: Path, tmp_path: Path
) -> None:
    changes = {"max_completion_length": 8, "max_steps": 1, "run_root": str(tmp_path)}
    _, _, task, settings = load_tiny(tiny_folder, 8, 2, **changes)
    plain = tmp_path / "lora"
    shutil.copytree(theirs, plain)
    (plain / "chat_template.jinja").unlink()
    settings = settings.replace(**THEIR_SETTINGS)
    model, tokenizer = gn.load_model(settings, adapter=plain)
    run = gn.train(model, tokenizer, task, [gn.rewards.partial_format()], settings, name="on")
    assert run.settings.lora_rank == 4
    assert run.settings.lora_target_modules == ("q_proj", "v_proj")
    assert run.info["reference"] == START_REFERENCE
    reference = load_file(run.path / "start" / "adapter_model.safetensors")
    for name, tensor in load_file(plain / "adapter_model.safetensors").items():
        assert torch.equal(reference[name], tensor.to(reference[name].dtype)), name


def test_adapter_that_is_not_plain_or_of_this_model_is_refused(
    tiny_folder: Path, theirs: Path, tmp_path: Path
) -> None:
    settings = gn.preset("cpu", model=str(tiny_folder), **THEIR_SETTINGS)
    other = tmp_path / "other"
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4)).save_pretrained(other)
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(other)
    with pytest.raises(ValueError, match="another base"):
        gn.load_model(settings, adapter=saved_by_peft(other, tmp_path / "wide"))
    not_plain = ({"use_rslora": True}, {"use_dora": True}, {"alpha_pattern": {"q_proj": 3}})
    for changes in (*not_plain, {"alora_invocation_tokens": [1, 2]}):
        (name,) = changes
        folder = saved_by_peft(tiny_folder, tmp_path / name, **changes)
        with pytest.raises(ValueError, match=f"not a plain LoRA .{name}.*merge_and_unload"):
            gn.load_model(settings, adapter=folder)
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors"):
        gn.load_model(settings, adapter=tiny_folder)
    with pytest.raises(FileNotFoundError, match="'~nobody-here/lora' is not a LoRA"):
        gn.load_model(settings, adapter="~nobody-here/lora")
    with pytest.raises(FileNotFoundError, match=r"gn\.load_model\(settings, adapter="):
        gn.load_model(settings.replace(model=str(theirs)))
