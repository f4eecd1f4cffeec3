"""The embedded model is converted once and whole; models are loaded in 4 and 16 bit."""

import shutil
import types
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo_nb as gn
from grpo_nb.config.model_sizes import sizes_of
from grpo_nb.generation.sampling import generate
from grpo_nb.models.adapter import save_adapter
from grpo_nb.upstream.unsloth import STANDBY_ENV, give_vllm_lora_copies


def test_embedded_model_is_an_ordinary_checkpoint(embedded_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(embedded_folder)
    assert model.dtype == torch.bfloat16
    assert model.num_parameters() == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_embedded_tokenizer_splits_bytes_and_digits(embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    backend = tokenizer.backend_tokenizer
    assert backend.decode(backend.encode("é ½ 🎈").ids) == "é ½ 🎈"
    assert backend.encode(", \n7 ²4").tokens == [",", "ĠĊ", "7", "Ġ", "Â²", "4"], (
        "digits apart, before all else"
    )


def test_embedded_model_answers_in_4_bit() -> None:
    """Load in 4 bit, because the quickstart answers in 16 bit everywhere."""
    model, tokenizer = gn.load_model(gn.preset("cpu", load_in_4bit=True))
    assert "Linear4bit" in {type(module).__name__ for module in model.modules()}
    rows = [{"prompt": [{"role": "user", "content": "What is the capital of France?"}]}]
    assert "Paris" in generate(model, tokenizer, rows, max_completion_length=12)[0].text


def test_model_without_a_chat_template_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("chat_template*"))
    settings = gn.preset("cpu", model=str(tmp_path / "bare"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bare")
    with pytest.raises(
        ValueError,
        match="has no chat template, so nothing says how questions are put to this model",
    ):
        gn.load_task("arithmetic", settings, tokenizer=tokenizer)


def test_save_adapter_writes_pefts_files_without_a_card(tiny_folder: Path, tmp_path: Path) -> None:
    model, _ = gn.load_model(gn.preset("cpu", model=str(tiny_folder)))
    save_adapter(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "pefts")
    ours, pefts = (
        {file.name: file.read_bytes() for file in (tmp_path / who).iterdir()}
        for who in ("ours", "pefts")
    )
    assert ours.keys() == {"adapter_model.safetensors", "adapter_config.json"}
    assert pefts.pop("README.md")
    assert pefts == ours


def test_lora_sizes_of_the_plan_are_those_of_peft(tiny_folder: Path) -> None:
    settings = gn.preset("cpu", model=str(tiny_folder), lora_rank=5)
    model, _ = gn.load_model(settings)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert sizes_of(str(tiny_folder)).lora_weights_per_rank * 5 == trained


def test_plan_before_loading_equals_that_of_the_model(tiny_folder: Path) -> None:
    settings = gn.preset("cpu", model=str(tiny_folder), lora_rank=5)
    model, _ = gn.load_model(settings)
    before = gn.plan(settings).memory_parts
    loaded = gn.plan(settings, model=model).memory_parts
    assert [part.name for part in loaded] == [part.name for part in before]
    assert [part.gb for part in loaded] == pytest.approx([part.gb for part in before])


def test_vllm_gets_copies_of_the_tensors_that_are_trained(monkeypatch) -> None:
    """From `load_lora` and from the requests that Unsloth builds without it."""
    from unsloth_zoo import vllm_utils

    trained = {"layer.lora_A.weight": torch.ones(2, 3), "layer.lora_B.weight": torch.ones(3, 2)}

    def built(model, save_directory, load_tensors, lora_request_id, exclude=None):
        return types.SimpleNamespace(lora_tensors=dict(trained) if load_tensors else None)

    monkeypatch.setattr(vllm_utils, "_build_lora_request", built)
    monkeypatch.setattr(vllm_utils, "prepare_merged_rollout", lambda model: None)
    monkeypatch.setattr(vllm_utils, "LORA_REQUEST_ID", None, raising=False)  # made with vLLM alone
    give_vllm_lora_copies()
    left = types.SimpleNamespace(
        state=types.SimpleNamespace(model_ref=lambda: "model"), save_directory="adapter"
    )
    for request in (
        vllm_utils.load_lora("model", "adapter", load_tensors=True),
        vllm_utils._merged_rollout_lora_fallback(left, "a test"),
    ):
        torch.testing.assert_close(request.lora_tensors, trained, rtol=0, atol=0)
        with torch.inference_mode():
            request.lora_tensors["layer.lora_B.weight"].mul_(2.0)  # as vLLM scales it, in place
        assert torch.equal(trained["layer.lora_B.weight"], torch.ones(3, 2))
    assert vllm_utils.load_lora("model", "adapter").lora_tensors is None


def test_variable_of_standby_is_named_in_one_place() -> None:
    package = Path(gn.__file__).parent
    naming = [
        file.name for file in package.rglob("*.py") if f'"{STANDBY_ENV}"' in file.read_text("utf-8")
    ]
    assert naming == ["unsloth.py"]
