"""The output layer on a CPU: the numbers of a plain log-softmax, and what is left to Unsloth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl.trainer import utils

from grpo_nb.cpu import head
from grpo_nb.cpu.head import tiled_head


def call(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, **other: Any
) -> tuple[Any, ...]:
    """As TRL's fused forward calls it."""
    outputs = other.get("outputs", ("log_probs", "entropy"))
    ends = (
        other.get("bias"),
        targets,
        0.7,
        32768,
        other.get("softcap"),
        other.get("scale", 1.0),
        outputs,
    )
    return utils._ChunkedLogProbFunction.apply(hidden, weight, *ends)


def problem(rows: int = 37, words: int = 1001) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 24, generator=generator) * 3
    return (
        hidden,
        torch.randn(words, 24, generator=generator),
        torch.randint(0, words, (rows,), generator=generator),
    )


@pytest.mark.parametrize(
    "tile, rows", [(2**19, 512), (37 * 64, 512), (2**10, 10)], ids=["one", "tiles", "rows too"]
)
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("kind, off", [(torch.float32, 1), (torch.float64, 1e-8)])
def test_it_is_the_plain_log_softmax_with_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
    tile: int,
    rows: int,
    with_entropy: bool,
    kind: torch.dtype,
    off: float,
) -> None:
    monkeypatch.setattr(head, "LOGITS_PER_TILE", tile)
    monkeypatch.setattr(head, "TOKENS_PER_SWEEP", rows)
    hidden, weight, targets = problem()
    weights = torch.linspace(-1, 1, len(hidden), dtype=torch.float64)

    def loss(log_probs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return (weights * log_probs).sum() + (weights * entropy).sum() * with_entropy

    exact = hidden.double().requires_grad_()
    plain = (exact @ weight.double().t() / 0.7).log_softmax(-1)
    expected = plain.gather(1, targets[:, None])[:, 0], -(plain.exp() * plain).sum(-1)
    loss(*expected).backward()
    mine, weight = hidden.to(kind, copy=True).requires_grad_(), weight.to(kind)
    with tiled_head:
        log_probs, entropy, *others = call(mine, weight, targets)
        loss(log_probs, entropy).backward()
    assert others == [None, None, None] and log_probs.dtype == entropy.dtype == kind
    torch.testing.assert_close(log_probs.double(), expected[0], atol=1e-5 * off, rtol=1e-6 * off)
    torch.testing.assert_close(entropy.double(), expected[1], atol=1e-4 * off, rtol=1e-6 * off)
    largest = exact.grad.abs().max().item()
    torch.testing.assert_close(
        mine.grad.double(), exact.grad, atol=1e-5 * off * largest, rtol=1e-4 * off
    )
    with torch.no_grad(), tiled_head:
        again = call(hidden.to(kind), weight, targets)
    torch.testing.assert_close(again[:2], (log_probs.detach(), entropy.detach()))


@pytest.mark.parametrize(
    "other", [{"bias": torch.zeros(1001)}, {"softcap": 30.0}, {"scale": 0.5}, {"outputs": ("log_probs", "is_top1")},
              {"trained": True}, {"dtype": torch.bfloat16}], ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_what_is_not_covered_is_left_to_unsloth(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    hidden, weight, targets = problem()
    hidden, weight = (part.to(other.get("dtype", part.dtype)) for part in (hidden, weight))
    weight.requires_grad_(other.get("trained", False))
    expected = call(hidden, weight, targets, **other)
    monkeypatch.setattr(head, "_TiledLogProbs", None)
    with tiled_head:
        got = call(hidden, weight, targets, **other)
    assert torch.equal(got[0], expected[0])
