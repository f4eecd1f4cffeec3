"""Sizes of models are counted from their configurations, and plans measure real prompts."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer

import grpo_nb as gn
from grpo_nb.config import model_sizes
from grpo_nb.config.model_sizes import PRESET_MODEL_SIZES, count_sizes, sizes_of
from grpo_nb.core import processes
from grpo_nb.core.processes import ChildError
from tests.support.small_models import FAMILIES, SIZES

# Configurations as their repositories publish them, and the weights in their safetensors files,
# with tied weights counted once. They were written down from memory: no Hub can be reached here.
HEADS = {
    "SmolLM2-135M-Instruct": ("llama", 9, 3, 134_515_008),
    "unsloth/Qwen2.5-1.5B-Instruct": ("qwen2", 12, 2, 1_543_714_304),
    "unsloth/Qwen2.5-3B-Instruct": ("qwen2", 16, 2, 3_085_938_688),
    "unsloth/Qwen2.5-7B-Instruct": ("qwen2", 28, 4, 7_615_616_512),
}
SHAPES = {
    "SmolLM2-135M-Instruct": (576, 1536, 30, 49152),
    "unsloth/Qwen2.5-1.5B-Instruct": (1536, 8960, 28, 151936),
    "unsloth/Qwen2.5-3B-Instruct": (2048, 11008, 36, 151936),
    "unsloth/Qwen2.5-7B-Instruct": (3584, 18944, 28, 152064),
}


@pytest.fixture
def counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count sizes in this process, because another one begins with seconds of imports."""

    def run_script(script: Path, request: dict) -> dict:
        try:
            return json.loads(json.dumps(model_sizes.answer(request)))
        except (OSError, ValueError) as error:
            raise ChildError("ended with 1", [str(error)]) from error

    monkeypatch.setattr(processes, "run_script", run_script)


@pytest.mark.parametrize("name", PRESET_MODEL_SIZES)
def test_published_sizes_equal_the_counted_ones(name: str, counted_here, tmp_path: Path) -> None:
    family, heads, key_heads, weights = HEADS[name]
    hidden, inner, layers, vocabulary = SHAPES[name]
    config = AutoConfig.for_model(
        family,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        tie_word_embeddings="7B" not in name,
    )
    config.save_pretrained(tmp_path)
    assert sizes_of(str(tmp_path)) == sizes_of(name)
    assert sizes_of(name).parameters == weights


def test_sizes_of_another_family_are_counted_without_weights(tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(
        **SIZES, **FAMILIES["gemma3"][1], tie_word_embeddings=True
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    sizes = sizes_of(str(tmp_path))
    linear = [p.numel() for name, p in model.named_parameters() if name.endswith("proj.weight")]
    assert sizes.parameters == sum(p.numel() for p in model.parameters())
    assert sizes.linear_weights == sum(linear)


def test_sizes_of_a_model_with_images_are_counted(counted_here: None, tmp_path: Path) -> None:
    text = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
    config = {"model_type": "qwen2_5_vl", "text_config": text | heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = sizes_of(str(tmp_path))
    assert (sizes.hidden_width, sizes.layers, sizes.vocabulary) == (64, 2, 100)


def test_model_without_attention_is_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, state_size=4, intermediate_size=16
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(
        ValueError, match=r"family 'mamba' has no attention heads.*Take a model with"
    ):
        count_sizes(model)


@pytest.mark.parametrize("name", ["a folder", "nobody/nothing", "no such/folder/at all"])
def test_plan_of_unreadable_model_names_it(name: str, tmp_path: Path, counted_here) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such family"}')
    model = str(tmp_path) if name == "a folder" else name
    with pytest.raises(ValueError, match=f"sizes of '{re.escape(model)}' cannot be read:\n"):
        gn.plan(gn.preset("cpu", model=model))


def test_plan_measures_prompts_with_a_tokenizer(tiny_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    task = gn.load_task("arithmetic", train_size=20, holdout=5)
    plan = gn.plan(gn.preset("cpu"), task, tokenizer=tokenizer)
    assert plan.prompt_tokens == max(task.prompt_lengths(task.train, tokenizer))
    assert plan.prompt_tokens < 256
