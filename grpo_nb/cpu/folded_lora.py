"""One matrix product per LoRA layer instead of three on a CPU, with the same result and gradient.

PEFT computes `W x + s B (A x)` with three products and two more passes over the result.
`FoldedLora` adds `s B A` to a copy of `W` once per use and computes with the copy, the *folded
weight*. For 106 million weights this takes 51 ms if the memory of the last copy is reused. The
trained tensors and the base weights are read, never written. The backward pass computes the
gradients of A and B from the gradient of the output, by the chain rule.

Shapes: W (out, in), A (rank, in), B (out, rank), inputs (..., in), outputs (..., out); s is a
number.

Left to PEFT: layers with DoRA, LoRA biases or several active adapters, and weights in 4 or 16 bits.
In 16 bits, the sum loses small changes by rounding: after three training steps in bfloat16, it
contained 15 % of the change in the LoRA. The samples would then not come from the policy that is
trained.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional

from grpo_nb.upstream.peft import single_plain_adapter

#: Dtypes in which adding the LoRA to the weight loses no learned change. Only tests use float64, to
#: show that the folded weight computes the same function.
FOLDABLE_DTYPES = (torch.float32, torch.float64)
#: Passes of up to this many tokens use oneDNN with packed weights, and longer passes MKL. oneDNN
#: takes 0.87 of MKL's time at 128 tokens. At 256 tokens the gain is within the noise (0.96), and
#: at 480 oneDNN is slower (studies/results/cpu_kernels.md).
MAX_ONEDNN_TOKENS = 128

Forward = Callable[..., Tensor]


class _FoldedProduct(torch.autograd.Function):
    """Product `x W'^T + bias` with the folded weight `W' = W + s B A`; gradients for x, A and B.

    autograd sees A and B as inputs, although only the folded weight is used in `forward`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        lora_a: Tensor,
        lora_b: Tensor,
        folded_weight: Tensor,
        bias: Tensor | None,
        scaling: float,
    ) -> Tensor:
        """Return the output (..., out) for `x` (..., in)."""
        # autograd raises if the folded copy is written again before the backward pass.
        ctx.save_for_backward(x, lora_a, lora_b, folded_weight)
        ctx.scaling = scaling
        return functional.linear(x, folded_weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient per input of `forward`, given that of the output (..., out)."""
        x, lora_a, lora_b, folded_weight = ctx.saved_tensors
        grad_x = grad_output @ folded_weight
        # Now (tokens, out) and (tokens, in).
        grad_output = grad_output.flatten(0, -2)
        x = x.flatten(0, -2)
        # With u = A x, the LoRA adds s B u. `grad_u` is the gradient of u, and `scaled_u` is s u.
        # Both are (tokens, rank), so no matrix of the size of W is computed.
        grad_u = ctx.scaling * (grad_output @ lora_b)
        scaled_u = ctx.scaling * (x @ lora_a.t())
        grad_a = grad_u.t() @ x
        grad_b = grad_output.t() @ scaled_u
        return grad_x, grad_a, grad_b, None, None, None


class FoldedLora:
    """Folded weights of a model, in memory that is kept between uses.

    The folded weights are computed again at each use, because the trained tensors do not show
    reliably if an optimizer step or a loaded adapter changed them. Folding is cheap.

    Args:
        model: Plain or wrapped by PEFT. `FoldedLora` takes memory for one more copy of the adapted
            weights. For decoding, it also takes memory for packed weights: a copy of all linear
            layers in oneDNN's own order.
    """

    # The `FoldedLora` keeps its model alive, so an id is not reused.
    _by_model_id: ClassVar[WeakValueDictionary[int, FoldedLora]] = WeakValueDictionary()

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._folded_weights: dict[torch.nn.Module, Tensor] = {}
        self._packed_weights: dict[torch.nn.Module, Tensor] = {}

    @classmethod
    def of(cls, model: torch.nn.Module) -> FoldedLora:
        """Return the `FoldedLora` of this model, which all its engines share."""
        return cls._by_model_id.setdefault(id(model), cls(model))

    def release(self) -> None:
        """Give the memory back to the system. The next use takes it again.

        Without `malloc_trim`, glibc keeps blocks of 1 to 32 MB once some were freed (mallopt(3),
        M_MMAP_THRESHOLD). After a training of the embedded model the process held 3.08 GB, and with
        this call 1.41 GB (benchmarks/results/plan_memory.md).
        """
        self._folded_weights.clear()
        self._packed_weights.clear()
        with suppress(AttributeError):  # other C libraries do not have this function
            ctypes.CDLL(None).malloc_trim(0)

    @contextmanager
    def applied(self, *, is_decoding: bool = False) -> Iterator[None]:
        """Compute the model's linear layers with folded weights within the block.

        With gradients enabled, A and B get gradients, the backward pass may come after the block,
        and layers whose adapter is off or has dropout are left to PEFT. With gradients disabled,
        dropout is ignored.

        Args:
            is_decoding: True if many passes of few tokens follow. The weights of all linear
                layers are then packed for oneDNN first. Gradients must be disabled, because the
                packed product computes none for A and B.
        """
        can_pack = is_decoding and torch.backends.mkldnn.is_available()
        patches: dict[torch.nn.Module, Forward] = {}
        # Linear layers inside a LoRA layer: its base layer, and the matrices A and B.
        lora_parts = set()
        # `modules` yields a LoRA layer before its parts.
        for layer in self._model.modules():
            adapter = single_plain_adapter(layer)
            is_plain_linear = type(layer) is torch.nn.Linear and layer not in lora_parts
            weight = None
            if adapter is not None:
                lora_parts.update(layer.modules())
                weight = self._fold(layer, adapter)
            elif can_pack and is_plain_linear and layer.weight.dtype == torch.float32:
                weight = layer.weight.detach()
            if weight is None:
                continue  # the layer keeps its own `forward`
            packed_weight = None
            if can_pack and weight.dtype == torch.float32:
                # The packed order is tuned for 16 tokens per pass and correct for any number. The
                # assignment frees this layer's copy of the last use, and the next layer's copy
                # reuses that memory. Packing into new memory takes ten times as long.
                packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
                self._packed_weights[layer] = packed_weight
            patches[layer] = _linear_forward(layer, adapter, weight, packed_weight)
        with _patched_forwards(patches):
            yield

    def _fold(self, layer: Any, adapter: str) -> Tensor | None:
        """Return the weight (out, in) that a layer computes with, or None to leave it to PEFT.

        This is the folded weight, or the base weight if adapters are off.

        Args:
            layer: Linear layer with LoRA.
            adapter: Name of its only active adapter.
        """
        weight = layer.weight.detach()
        if weight.dtype not in FOLDABLE_DTYPES or _must_stay_with_peft(layer, adapter):
            return None
        if layer.disable_adapters:
            return weight
        folded_weight = self._folded_weights.get(layer)
        if folded_weight is None:
            folded_weight = self._folded_weights[layer] = torch.empty_like(weight)
        lora_a = layer.lora_A[adapter].weight.detach().to(weight.dtype)
        lora_b = layer.lora_B[adapter].weight.detach().to(weight.dtype)
        # One call computes the sum and writes it into the kept memory.
        return torch.addmm(weight, lora_b, lora_a, alpha=layer.scaling[adapter], out=folded_weight)


def _must_stay_with_peft(layer: Any, adapter: str) -> bool:
    """Return True if folding would change the gradients of a layer, or leave out its dropout."""
    if not torch.is_grad_enabled():
        return False
    has_dropout = layer.training and getattr(layer.lora_dropout[adapter], "p", 0.0) > 0
    return layer.disable_adapters or has_dropout


def _linear_forward(
    layer: Any, adapter: str | None, weight: Tensor, packed_weight: Tensor | None
) -> Forward:
    """Return a `forward` for a layer that computes with this weight.

    Args:
        layer: Linear layer, or the layer that PEFT put in its place.
        adapter: Name of the adapter, or None for a linear layer without LoRA.
        weight: (out, in), from `_fold`, or the weight of a linear layer without LoRA.
        packed_weight: The same weight in oneDNN's order, for few tokens; or None.

    Returns:
        Function of `x` (..., in) that returns (..., out). It ignores further arguments.
    """

    def forward(x: Tensor, *_: Any, **__: Any) -> Tensor:
        x = x.to(weight.dtype)
        token_count = x.numel() // x.shape[-1]
        if packed_weight is not None and token_count <= MAX_ONEDNN_TOKENS:
            return torch.ops.mkldnn._linear_pointwise(x, packed_weight, layer.bias, "none", [], "")
        if adapter is None:
            return functional.linear(x, weight, layer.bias)
        lora_a = layer.lora_A[adapter].weight
        lora_b = layer.lora_B[adapter].weight
        scaling = layer.scaling[adapter]
        return _FoldedProduct.apply(x, lora_a, lora_b, weight, layer.bias, scaling)

    return forward


@contextmanager
def _patched_forwards(patches: dict[torch.nn.Module, Forward]) -> Iterator[None]:
    """Set `forward` on these modules within the block, and restore the original after it.

    A module can already have its own `forward`, because other libraries set it as a hook.
    """
    originals = {layer: vars(layer).get("forward") for layer in patches}
    try:
        for layer, forward in patches.items():
            layer.forward = forward
        yield
    finally:
        for layer, original in originals.items():
            if original is None:
                del layer.forward
            else:
                layer.forward = original
