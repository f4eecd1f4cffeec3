"""Log-probabilities and entropies of the output layer on a CPU, in tiles that stay in the cache.

TRL's fused head (`add_fused_lm_head`) calls `_ChunkedLogProbFunction`, which Unsloth replaces. On a
CPU Unsloth's version makes a dozen passes over all logits, each into fresh memory, which cost more
than the matrix product (docs/evidence/cpu_step.md). Here the vocabulary is processed in tiles, with
a running sum as in FlashAttention's softmax (arXiv:1805.02867). The same sweep computes the
gradient of the hidden states, for a head that is frozen.

Unsloth's function computes what is not covered: heads that are trained, 16-bit heads, heads with a
bias, and logits that are soft-capped or scaled.
"""

from __future__ import annotations

from typing import Any

from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.upstream.trl import fused_head_namespace

import_unsloth()

import torch

from grpo_nb.cpu.attention import Swap

#: Logits of a tile. 2 MB of float32 stay in the cache between the passes over them.
LOGITS_PER_TILE = 2**19
#: Tokens whose logits are held for the gradient: 100 MB for a vocabulary of 49,000.
TOKENS_PER_SWEEP = 512


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


class _Head:
    """Stand-in for the function that TRL 1.15's fused forward calls.

    Args:
        original: The function that was there. It computes what is not covered here.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def apply(self, *arguments: Any) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, _, softcap, logit_scale, outputs = arguments
        is_autocast = torch.is_autocast_enabled("cpu")
        is_float = hidden.dtype == weight.dtype in (torch.float32, torch.float64)
        is_plain = bias is None and softcap is None and logit_scale == 1.0
        is_known = set(outputs) <= {"log_probs", "entropy"}
        if is_float and not is_autocast and is_plain and not weight.requires_grad and is_known:
            log_probs, entropy = _TiledLogProbs.apply(hidden, weight, targets, temperature)
            return log_probs, entropy if "entropy" in outputs else None, None, None, None
        return self._original.apply(*arguments)


class _TiledLogProbs(torch.autograd.Function):
    """`log_softmax(hidden @ weight.T / temperature)` at the targets, and its entropy.

    Shapes: hidden (N, H), weight (V, H), targets (N). Both results are (N), in nats. The gradient
    of the log-probabilities is computed with them. The gradient of the entropies, which only an
    entropy bonus needs, is computed in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        vocabulary = weight.shape[0]
        log_probs = hidden.new_empty(len(hidden))
        entropy = hidden.new_empty(len(hidden))
        # The gradient of each log-probability with respect to its hidden state.
        direction = None
        all_logits = None
        if ctx.needs_input_grad[0]:
            direction = torch.empty_like(hidden)
            all_logits = hidden.new_empty(min(TOKENS_PER_SWEEP, len(hidden)), vocabulary)
        for rows in _slices(len(hidden), TOKENS_PER_SWEEP):
            states = hidden[rows] / temperature
            target_weights = weight[targets[rows]]
            count = len(states)
            width = max(LOGITS_PER_TILE // count, 64)
            tiles = _slices(vocabulary, width)
            # Running maximum, sum of exponentials, and sum of logits weighted by them.
            highest = states.new_full((count, 1), -torch.inf)
            total = states.new_zeros(count, 1)
            weighted = states.new_zeros(count, 1)
            tile_logits = states.new_empty(count, width)
            scratch = states.new_empty(count, width)
            for tile in tiles:
                size = tile.stop - tile.start
                z = tile_logits[:, :size] if all_logits is None else all_logits[:count, tile]
                torch.mm(states, weight[tile].t(), out=z)
                highest_before = highest
                highest = torch.maximum(highest, z.amax(1, keepdim=True))
                shrink = (highest_before - highest).exp_()
                e = torch.sub(z, highest, out=scratch[:, :size]).exp_()
                total.mul_(shrink).add_(e.sum(1, keepdim=True))
                weighted.mul_(shrink).add_(e.mul_(z).sum(1, keepdim=True))
            normalizer = highest + total.log()
            log_probs[rows] = (states * target_weights).sum(1) - normalizer[:, 0]
            entropy[rows] = (normalizer - weighted / total)[:, 0]
            if all_logits is not None:
                gradient = direction[rows].copy_(target_weights)
                for tile in tiles:
                    p = all_logits[:count, tile].sub_(normalizer).exp_()
                    gradient.addmm_(p, weight[tile], alpha=-1)
                gradient.div_(temperature)
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
        if grad_entropy is None:
            return total, None, None, None
        for rows in _slices(len(hidden), TOKENS_PER_SWEEP):
            with torch.enable_grad():
                states = hidden[rows].detach().requires_grad_()
                all_log_probs = (states @ weight.t() / ctx.temperature).log_softmax(-1)
                entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
                (slope,) = torch.autograd.grad(entropy, states, grad_entropy[rows])
            total[rows] += slope
        return total, None, None, None


#: Within this block, TRL's fused output layers compute in tiles, where this module covers them.
tiled_head = Swap(fused_head_namespace(), "_ChunkedLogProbFunction", _Head)
