"""Folding changes how a LoRA layer is computed, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

import grpo_nb as gn
from grpo_nb.cpu.folded_lora import FoldedLora
from tests.support.small_models import PROMPTS, lora_model

IDS = torch.tensor([PROMPTS[0]])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.float32, 1e-4, id="float32"),
        # The model's own norms round to float32 all the same.
        pytest.param(torch.float64, 1e-7, id="float64"),
    ],
)
def test_folded_logits_equal_those_of_the_lora_layers(dtype: torch.dtype, tolerance: float) -> None:
    model = lora_model().eval().to(dtype)
    folded = FoldedLora(model)
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        for _ in range(2):  # the second time in memory that is used again
            with folded.for_inference():
                assert folded.copies, "nothing was folded"
                got = model(input_ids=IDS).logits
            torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.float32, 1e-5, id="float32"),
        pytest.param(torch.float64, 1e-8, id="float64"),
    ],
)
def test_folded_logits_without_adapter_equal_the_base(dtype: torch.dtype, tolerance: float) -> None:
    model = lora_model().eval().to(dtype)
    folded = FoldedLora(model)
    with torch.no_grad():
        with_adapter = model(input_ids=IDS).logits
        with folded.for_inference():
            pass  # memory that holds another sum
        with model.disable_adapter():
            plain = model(input_ids=IDS).logits
            with folded.for_inference():
                got = model(input_ids=IDS).logits
    torch.testing.assert_close(got, plain, atol=tolerance, rtol=tolerance)
    assert (with_adapter - plain).abs().max() > 0.01, "the adapter has no effect"


def test_dropout_does_not_keep_sampling_from_folding() -> None:
    """`gn.plan` counts both copies, with dropout too."""
    model = lora_model(dropout=0.5).train()
    folded = FoldedLora(model)
    with torch.no_grad(), folded.for_inference(is_decoding=True):
        assert folded.copies
        assert folded.packed


@pytest.fixture
def four_bit(tiny_folder: Path) -> tuple[Any, torch.Tensor]:
    """A 4-bit model with a LoRA that has an effect, and a prompt."""
    settings = gn.preset("cpu", model=str(tiny_folder), load_in_4bit=True, dtype="float32")
    model, tokenizer = gn.load_model(settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return model, tokenizer("What is 3 + 4?", return_tensors="pt")["input_ids"]


def test_folded_4_bit_logits_equal_those_of_peft(four_bit) -> None:
    model, ids = four_bit
    model.eval()
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with FoldedLora(model).for_inference():
            got = model(input_ids=ids).logits
    torch.testing.assert_close(got, expected, atol=2e-3, rtol=1e-3)


def test_folded_4_bit_base_equals_that_of_peft(four_bit) -> None:
    """The adapter is off, as for the reference of the KL."""
    model, ids = four_bit
    model.eval()
    folded = FoldedLora(model)
    with torch.no_grad():
        with folded.for_inference():
            pass  # memory that holds another sum
        with model.disable_adapter():
            plain = model(input_ids=ids).logits
            with folded.for_inference():
                got = model(input_ids=ids).logits
    torch.testing.assert_close(got, plain, atol=2e-3, rtol=1e-3)


def test_folding_puts_back_forwards_that_others_set() -> None:
    model = lora_model().eval()
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    original = layer.forward
    layer.forward = lambda *args, **kwargs: original(*args, **kwargs)
    hooked = layer.forward
    with FoldedLora(model).for_inference():
        assert layer.forward is not hooked
    assert layer.forward is hooked


def test_16_bit_weights_are_not_folded() -> None:
    """Rounding the sum to 16 bits would lose small changes."""
    model = lora_model().eval().to(torch.bfloat16)
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with FoldedLora(model).for_inference():
            assert torch.equal(model(input_ids=IDS).logits, expected)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # qwen2 has biases
@pytest.mark.parametrize("rows", [1, 3, 16, 130])
def test_decoding_with_packed_weights_sees_changed_weights(architecture: str, rows: int) -> None:
    model = lora_model(architecture).eval()
    folded = FoldedLora(model)
    ids = torch.randint(1, 50, (rows, 1))
    changed = [weight for name, weight in model.named_parameters() if "lora_B" in name]
    changed.append(model.get_output_embeddings().weight)
    with torch.no_grad():
        for _ in range(2):
            expected = model(input_ids=ids).logits
            for _ in range(2):  # the second time over what was packed
                with folded.for_inference(is_decoding=True):
                    got = model(input_ids=ids).logits
                torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
            for weight in changed:
                weight.data.mul_(1.5)  # past autograd, as loaders write
