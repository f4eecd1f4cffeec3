"""Log-probabilities and entropies of the output layer on a CPU, in tiles that stay in the cache.

TRL's fused head (`add_fused_lm_head`) leaves the arithmetic to a function that Unsloth replaces. On
a CPU that function makes a dozen passes over all logits, each into fresh memory, which cost more
than the matrix product. Here the vocabulary is processed in tiles with running sums, as in the
online softmax (arXiv:1805.02867), and the gradient of a frozen head is computed in the same sweep.

Unsloth's function computes what is not covered: heads that are trained, 16-bit heads, heads with a
bias, and logits that are soft-capped or scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.upstream.trl import fused_head_namespace

import_unsloth()

import torch
from torch import Tensor

#: Logits of a tile. 2 MB of float32 stay in the cache between the passes over them.
LOGITS_PER_TILE = 2**19
#: A tile of fewer tokens of the vocabulary would make the matrix products too thin.
MIN_TILE_WIDTH = 64
#: Tokens whose logits are kept for the gradient: 100 MB for a vocabulary of 49,000.
TOKENS_PER_SWEEP = 512


@contextmanager
def tiled_head() -> Iterator[None]:
    """Let TRL's fused output layers compute in tiles within the block, where covered."""
    namespace = fused_head_namespace()
    original = namespace["_ChunkedLogProbFunction"]
    namespace["_ChunkedLogProbFunction"] = _Head(original)
    try:
        yield
    finally:
        namespace["_ChunkedLogProbFunction"] = original


class _Head:
    """Stand-in for the autograd function that TRL 1.15's fused forward calls.

    Args:
        original: The function that was there. It computes what is not covered here.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def apply(self, *arguments: Any) -> tuple[Tensor | None, ...]:
        """Return log-probabilities, entropies and three outputs that are not asked for.

        The arguments are those of TRL's `_ChunkedLogProbFunction` (trl/trainer/utils.py).
        """
        hidden, weight, bias, targets, temperature, _, softcap, logit_scale, outputs = arguments
        is_float = hidden.dtype == weight.dtype in (torch.float32, torch.float64)
        is_plain = bias is None and softcap is None and logit_scale == 1.0
        is_frozen = not weight.requires_grad and not torch.is_autocast_enabled("cpu")
        is_known = set(outputs) <= {"log_probs", "entropy"}
        if not (is_float and is_plain and is_frozen and is_known):
            return self._original.apply(*arguments)
        log_probs, entropy = _TiledLogProbs.apply(hidden, weight, targets, temperature)
        return log_probs, entropy if "entropy" in outputs else None, None, None, None


class _TiledLogProbs(torch.autograd.Function):
    """`log_softmax(hidden @ weight.T / temperature)` at the targets, and its entropy.

    Shapes: hidden (N, H), weight (V, H), targets (N). Both results are (N), in nats. The gradient
    of the log-probabilities is computed with them. The gradient of the entropies, which only an
    entropy bonus needs, is computed when it is asked for.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        log_probs = hidden.new_empty(len(hidden))
        entropy = hidden.new_empty(len(hidden))
        # Gradient of each log-probability with respect to its hidden state.
        slopes = None
        all_logits = None
        if ctx.needs_input_grad[0]:
            slopes = torch.empty_like(hidden)
            all_logits = hidden.new_empty(min(TOKENS_PER_SWEEP, len(hidden)), len(weight))
        for rows in _slices(len(hidden), TOKENS_PER_SWEEP):
            states = hidden[rows] / temperature
            target_weights = weight[targets[rows]]
            count = len(states)
            width = max(LOGITS_PER_TILE // count, MIN_TILE_WIDTH)
            tiles = _slices(len(weight), width)
            # Running maximum, sum of exponentials, and sum of logits weighted by them.
            highest = states.new_full((count, 1), -torch.inf)
            total = states.new_zeros(count, 1)
            weighted = states.new_zeros(count, 1)
            tile_logits = states.new_empty(count, width)
            scratch = states.new_empty(count, width)
            for tile in tiles:
                size = tile.stop - tile.start
                logits = tile_logits[:, :size] if all_logits is None else all_logits[:count, tile]
                torch.mm(states, weight[tile].t(), out=logits)
                highest_before = highest
                highest = torch.maximum(highest, logits.amax(1, keepdim=True))
                shrink = (highest_before - highest).exp_()
                exponentials = torch.sub(logits, highest, out=scratch[:, :size]).exp_()
                total.mul_(shrink).add_(exponentials.sum(1, keepdim=True))
                weighted.mul_(shrink).add_(exponentials.mul_(logits).sum(1, keepdim=True))
            normalizer = highest + total.log()
            log_probs[rows] = (states * target_weights).sum(1) - normalizer[:, 0]
            entropy[rows] = (normalizer - weighted / total)[:, 0]
            if all_logits is not None:
                # weight[target] minus the mean of the weights under the softmax
                slope = slopes[rows].copy_(target_weights)
                for tile in tiles:
                    probabilities = all_logits[:count, tile].sub_(normalizer).exp_()
                    slope.addmm_(probabilities, weight[tile], alpha=-1)
                slope.div_(temperature)
        ctx.save_for_backward(hidden, weight, slopes)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, slopes = ctx.saved_tensors
        total = torch.zeros_like(hidden) if grad is None else slopes * grad[:, None]
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


def _slices(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]
