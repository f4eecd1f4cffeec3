"""The output layer on a CPU: log-probabilities and entropies in tiles, without more logits than the gradient needs.

TRL's fused head (`add_fused_lm_head`) leaves the arithmetic to a function of its own, which Unsloth serves: on a CPU a dozen
passes over all logits, each into fresh memory, which cost more than the matrix product (docs/evidence/cpu_step.md). Here the
vocabulary is gone through in tiles that stay in the cache, with a running sum as in FlashAttention's softmax
(arXiv:1805.02867), and the gradient of a frozen head is taken in the same sweep.

Not covered, and left to Unsloth: heads that are trained, 16-bit ones, those with a bias, soft-capped or scaled logits.
"""

from __future__ import annotations

from typing import Any

from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.upstream.trl import fused_head_namespace

import_unsloth()

import torch

from grpo_nb.cpu.attention import Swap

# Logits of a tile, 2 MB: they stay in the cache between the passes over them.
_TILE = 2**19
# Tokens whose logits are held for the gradient: 100 MB for a vocabulary of 49,000 words.
_ROWS = 512


def _parts(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


class _Head:
    """What TRL 1.15's fused forward calls, with its arguments and results."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def apply(self, *arguments: Any) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, _, softcap, logit_scale, outputs = arguments
        is_autocast = torch.is_autocast_enabled("cpu")
        is_float = not is_autocast and hidden.dtype == weight.dtype in (torch.float32, torch.float64)
        is_plain = bias is None and softcap is None and logit_scale == 1.0 and not weight.requires_grad
        if is_float and is_plain and set(outputs) <= {"log_probs", "entropy"}:
            log_probs, entropy = _TiledLogProbs.apply(hidden, weight, targets, temperature)
            return log_probs, entropy if "entropy" in outputs else None, None, None, None
        return self._stock.apply(*arguments)


class _TiledLogProbs(torch.autograd.Function):
    """`log_softmax(hidden @ weight.T / temperature)` at the targets, and its entropy.

    Shapes: hidden (N, H), weight (V, H), targets (N); both results (N), in nats. The gradient of the log-probabilities is made
    with them; that of the entropies, which only an entropy bonus asks for, is computed when it is asked for.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = weight.shape[0]
        log_probs, entropy = hidden.new_empty(len(hidden)), hidden.new_empty(len(hidden))
        direction = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        kept = hidden.new_empty(min(_ROWS, len(hidden)), words) if direction is not None else None
        for at in _parts(len(hidden), _ROWS):
            states, gold = hidden[at] / temperature, weight[targets[at]]
            width = max(_TILE // len(states), 64)
            tiles = _parts(words, width)
            highest = states.new_full((len(states), 1), -torch.inf)
            total, weighted = states.new_zeros(len(states), 1), states.new_zeros(len(states), 1)
            logits = states.new_empty(len(states), width)
            scratch = states.new_empty(len(states), width)
            for tile in tiles:
                size = tile.stop - tile.start
                z = kept[: len(states), tile] if kept is not None else logits[:, :size]
                torch.mm(states, weight[tile].t(), out=z)
                before, highest = highest, torch.maximum(highest, z.amax(1, keepdim=True))
                shrink = (before - highest).exp_()
                e = torch.sub(z, highest, out=scratch[:, :size]).exp_()
                total.mul_(shrink).add_(e.sum(1, keepdim=True))
                weighted.mul_(shrink).add_(e.mul_(z).sum(1, keepdim=True))
            normalizer = highest + total.log()
            log_probs[at] = (states * gold).sum(1) - normalizer[:, 0]
            entropy[at] = (normalizer - weighted / total)[:, 0]
            if kept is not None:
                there = direction[at].copy_(gold)
                for tile in tiles:
                    p = kept[: len(states), tile].sub_(normalizer).exp_()
                    there.addmm_(p, weight[tile], alpha=-1)
                there.div_(temperature)
        ctx.save_for_backward(hidden, weight, direction)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, direction = ctx.saved_tensors
        total = torch.zeros_like(hidden) if grad is None else direction * grad[:, None]
        for at in [] if grad_entropy is None else _parts(len(hidden), _ROWS):
            with torch.enable_grad():
                states = hidden[at].detach().requires_grad_()
                words = (states @ weight.t() / ctx.temperature).log_softmax(-1)
                entropy = -(words.exp() * words).sum(-1)
                (slope,) = torch.autograd.grad(entropy, states, grad_entropy[at])
            total[at] += slope
        return total, None, None, None


tiled_head = Swap(fused_head_namespace(), "_ChunkedLogProbFunction", _Head)
"""Within this block, TRL's fused output layers compute in tiles, where this module covers them."""
