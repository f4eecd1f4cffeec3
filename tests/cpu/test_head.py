"""The tiled output layer: the numbers of a plain log-softmax, and the calls left to Unsloth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from trl.trainer import utils

from grpo_nb.cpu import head
from grpo_nb.cpu.head import tiled_head

TEMPERATURE = 0.7
VOCABULARY = 1001


def call(hidden: Tensor, weight: Tensor, targets: Tensor, **changes: Any) -> tuple[Any, ...]:
    """Call the function of the output layer as TRL's fused forward does."""
    return utils._ChunkedLogProbFunction.apply(
        hidden,
        weight,
        changes.get("bias"),
        targets,
        TEMPERATURE,
        32768,
        changes.get("softcap"),
        changes.get("scale", 1.0),
        changes.get("outputs", ("log_probs", "entropy")),
    )


def random_problem() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 24, generator=generator) * 3
    weight = torch.randn(VOCABULARY, 24, generator=generator)
    targets = torch.randint(0, VOCABULARY, (37,), generator=generator)
    return hidden, weight, targets


@pytest.mark.parametrize(
    ("logits_per_tile", "tokens_per_sweep"),
    [
        pytest.param(2**19, 512, id="one tile"),
        pytest.param(37 * 64, 512, id="several tiles"),
        pytest.param(2**10, 10, id="several sweeps"),
    ],
)
@pytest.mark.parametrize("has_entropy", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [pytest.param(torch.float32, 1, id="float32"), pytest.param(torch.float64, 1e-8, id="float64")],
)
def test_tiled_head_equals_log_softmax_with_gradients(
    monkeypatch: pytest.MonkeyPatch,
    logits_per_tile: int,
    tokens_per_sweep: int,
    has_entropy: bool,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    monkeypatch.setattr(head, "LOGITS_PER_TILE", logits_per_tile)
    monkeypatch.setattr(head, "TOKENS_PER_SWEEP", tokens_per_sweep)
    hidden, weight, targets = random_problem()
    row_weights = torch.linspace(-1, 1, len(hidden), dtype=torch.float64)

    def loss(log_probs: Tensor, entropy: Tensor) -> Tensor:
        value = (row_weights * log_probs).sum()
        return value + (row_weights * entropy).sum() if has_entropy else value

    exact = hidden.double().requires_grad_()
    plain = (exact @ weight.double().t() / TEMPERATURE).log_softmax(-1)
    expected_log_probs = plain.gather(1, targets[:, None])[:, 0]
    expected_entropy = -(plain.exp() * plain).sum(-1)
    loss(expected_log_probs, expected_entropy).backward()

    mine = hidden.to(dtype, copy=True).requires_grad_()
    weight = weight.to(dtype)
    with tiled_head():
        log_probs, entropy, *others = call(mine, weight, targets)
        loss(log_probs, entropy).backward()
    assert others == [None, None, None]
    assert log_probs.dtype == dtype
    assert entropy.dtype == dtype
    limits = {"atol": 1e-5 * tolerance, "rtol": 1e-6 * tolerance}
    torch.testing.assert_close(log_probs.double(), expected_log_probs, **limits)
    limits = {"atol": 1e-4 * tolerance, "rtol": 1e-6 * tolerance}
    torch.testing.assert_close(entropy.double(), expected_entropy, **limits)
    largest = exact.grad.abs().max().item()
    limits = {"atol": 1e-5 * tolerance * largest, "rtol": 1e-4 * tolerance}
    torch.testing.assert_close(mine.grad.double(), exact.grad, **limits)
    with torch.no_grad(), tiled_head():
        without_gradient = call(hidden.to(dtype), weight, targets)
    torch.testing.assert_close(without_gradient[:2], (log_probs.detach(), entropy.detach()))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"bias": torch.zeros(VOCABULARY)}, id="bias"),
        pytest.param({"softcap": 30.0}, id="softcap"),
        pytest.param({"scale": 0.5}, id="scale"),
        pytest.param({"outputs": ("log_probs", "is_top1")}, id="other output"),
        pytest.param({"is_trained": True}, id="trained head"),
        pytest.param({"dtype": torch.bfloat16}, id="bfloat16"),
    ],
)
def test_tiled_head_leaves_other_calls_to_unsloth(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    hidden, weight, targets = random_problem()
    dtype = changes.get("dtype", torch.float32)
    hidden = hidden.to(dtype)
    weight = weight.to(dtype).requires_grad_(changes.get("is_trained", False))
    expected = call(hidden, weight, targets, **changes)
    monkeypatch.setattr(head, "_TiledLogProbs", None)
    with tiled_head():
        got = call(hidden, weight, targets, **changes)
    assert torch.equal(got[0], expected[0])
