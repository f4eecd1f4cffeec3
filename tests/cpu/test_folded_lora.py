"""Folding changes how a LoRA layer is computed and nothing else."""

import pytest
import torch

from grpo_nb.cpu.folded_lora import FoldedLora
from tests.support.small_models import (
    PROMPTS,
    assert_same_gradients,
    batch,
    gradients,
    lora_model,
    stock,
)

IDS = torch.tensor([PROMPTS[0]])


@pytest.mark.parametrize("kind, off", [(torch.float32, 1), (torch.float64, 1e-3)])
def test_folding_gives_the_logits_of_the_lora_layers(kind: torch.dtype, off: float) -> None:
    """In float64 the model's own norms round to float32 all the same."""
    model = lora_model().eval().to(kind)
    folded_lora = FoldedLora(model)
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with model.disable_adapter():
            plain = model(input_ids=IDS).logits
        for _ in range(2):  # the second time in memory that is used again
            with folded_lora.applied():
                assert folded_lora._folded_weights, "nothing was folded"
                torch.testing.assert_close(
                    model(input_ids=IDS).logits, expected, atol=1e-4 * off, rtol=1e-4 * off
                )
        with model.disable_adapter(), folded_lora.applied():
            torch.testing.assert_close(
                model(input_ids=IDS).logits, plain, atol=1e-5 * off, rtol=1e-5 * off
            )
    assert (expected - plain).abs().max() > 0.01, "the adapter has no effect"


def test_folded_loss_has_the_gradients_of_the_lora_layers() -> None:
    model = lora_model("qwen2").train()  # with biases
    ids, mask, length = batch(PROMPTS, [0, 1, 2], [5, 3, 4])
    expected = gradients(model, *stock(model, ids, mask, length))
    folded_lora = FoldedLora(model)
    with folded_lora.applied():
        output = stock(model, ids, mask, length)
    assert folded_lora._folded_weights, "nothing was folded"
    assert_same_gradients(gradients(model, *output), expected, relative=1e-5)


def test_folding_again_before_the_backward_pass_raises() -> None:
    """The gradient would be that of other weights."""
    model = lora_model()
    folded_lora = FoldedLora(model)
    with folded_lora.applied():
        loss = model(input_ids=IDS).logits.sum()
    with folded_lora.applied():
        pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_folded_loss_keeps_lora_dropout() -> None:
    model = lora_model(dropout=0.5).train()
    with FoldedLora(model).applied():
        first = model(input_ids=IDS).logits
        second = model(input_ids=IDS).logits
    assert (first - second).abs().max() > 0.01


def test_folded_loss_without_adapter_is_that_of_the_base() -> None:
    model = lora_model().train()
    with model.disable_adapter():
        expected = model(input_ids=IDS).logits
        with FoldedLora(model).applied():
            got = model(input_ids=IDS).logits
    assert torch.equal(got, expected)


def test_sampling_folds_the_lora_despite_dropout() -> None:
    model = lora_model(dropout=0.5).train()
    folded_lora = FoldedLora(model)
    with torch.no_grad(), folded_lora.applied(is_decoding=True):
        assert folded_lora._folded_weights, "the memory plan counts a copy that is not there"
        assert folded_lora._packed_weights, "the memory plan counts a copy that is not there"


def test_folding_puts_back_a_forward_that_was_set() -> None:
    model = lora_model().eval()
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    mine = layer.forward
    layer.forward = lambda *args, **kwargs: mine(*args, **kwargs)
    hooked = layer.forward
    with FoldedLora(model).applied():
        assert layer.forward is not hooked
    assert layer.forward is hooked


def test_folding_leaves_16_bit_weights_out() -> None:
    model = lora_model().eval()
    with torch.no_grad():
        expected = model.to(torch.bfloat16)(input_ids=IDS).logits
        with FoldedLora(model).applied():
            assert torch.equal(model(input_ids=IDS).logits, expected), (
                "rounding would lose small changes"
            )


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # qwen2 has biases
@pytest.mark.parametrize("rows", [1, 3, 16, 130])
def test_decoding_with_packed_weights_sees_what_changed(architecture: str, rows: int) -> None:
    model = lora_model(architecture).eval()
    folded_lora = FoldedLora(model)
    ids = torch.randint(1, 50, (rows, 1))
    changed = [weight for name, weight in model.named_parameters() if "lora_B" in name]
    changed.append(model.get_output_embeddings().weight)
    with torch.no_grad():
        for _ in range(2):
            expected = model(input_ids=ids).logits
            for _ in range(2):  # the second time with what was packed
                with folded_lora.applied(is_decoding=True):
                    torch.testing.assert_close(
                        model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4
                    )
            for weight in changed:
                weight.data.mul_(1.5)  # past autograd, as loaders write
