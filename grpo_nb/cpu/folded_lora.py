"""One matrix product per LoRA layer in place of three, on a CPU, with the same result and the same gradient.

PEFT computes `W x + s B (A x)` with three products and two more passes over the result, and a 4-bit `W` is unpacked at every
call. `FoldedLora` adds `s B A` to a copy of `W` once (51 ms for 106 million weights into room kept from the last time) and
computes with the copy. The gradient of A and B follows from the same numbers by the chain rule, so training can use it too.
The trained tensors and the base are read, never written.

Not covered, and left to PEFT: 16-bit weights, where rounding the sum would lose small changes (bfloat16 kept 15 % of a
three-step training) and the samples would not come from the policy that is trained; LoRA dropout while training; DoRA, LoRA
biases and several adapters at once.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import functional

from grpo_nb.upstream.peft import single_plain_adapter

# Numbers in which the sum of weight and LoRA keeps what was learnt. In float64 tests prove that it is the same sum.
_EXACT = (torch.float32, torch.float64)
# Up to this many rows oneDNN with packed weights beats MKL; above it the two are equal (docs/evidence/cpu_step.md).
_FEW_ROWS = 128

Forward = Callable[..., Tensor]


class _FoldedLinear(torch.autograd.Function):
    """`x Wᵀ + bias` with `W = base + s B A` given; gradients for x, A and B."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lora_a: Tensor, lora_b: Tensor, folded: Tensor, bias: Tensor | None, scaling: float
    ) -> Tensor:
        # Saving the folded copy also lets autograd notice if it is written again before the backward pass.
        ctx.save_for_backward(x, lora_a, lora_b, folded)
        ctx.scaling = scaling
        return functional.linear(x, folded, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, lora_a, lora_b, folded = ctx.saved_tensors
        grad_x = grad @ folded if ctx.needs_input_grad[0] else None
        grad, x = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_a = ((grad @ lora_b.to(grad.dtype)) * ctx.scaling).t() @ x
        grad_b = grad.t() @ ((x @ lora_a.to(x.dtype).t()) * ctx.scaling)
        return grad_x, grad_a.to(lora_a.dtype), grad_b.to(lora_b.dtype), None, None, None


class FoldedLora:
    """Folded copies of a model's adapted weights, made anew at each use, in memory that is kept between uses.

    They are never kept from one use to the next: what changed in between (an optimizer step, a loaded adapter) cannot be
    told from the tensors with certainty, and folding is cheap.

    Args:
        model: Plain or wrapped by PEFT. Takes memory for one more copy of the adapted weights, and for decoding a copy of
            all weights of linear layers in oneDNN's own order.
    """

    _living: ClassVar[WeakValueDictionary[int, FoldedLora]] = WeakValueDictionary()

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._room: dict[torch.nn.Module, Tensor] = {}
        self._packed: dict[torch.nn.Module, tuple[tuple[float, ...], Tensor]] = {}

    @classmethod
    def of(cls, model: torch.nn.Module) -> FoldedLora:
        """Return the one that somebody holds for this model, or a new one."""
        return cls._living.setdefault(id(model), cls(model))

    def release(self) -> None:
        """Give the memory back to the system. The next use takes it anew."""
        self._room.clear()
        self._packed.clear()
        trim = _malloc_trim()
        if trim is not None:
            trim(0)

    @contextmanager
    def for_inference(self, *, is_decoding: bool = False) -> Iterator[None]:
        """Within the block, linear layers compute without gradient, with folded weights.

        Args:
            is_decoding: Many passes of few rows follow: weights are packed for oneDNN first.
        """
        patches: dict[torch.nn.Module, Forward] = {}
        can_pack = is_decoding and torch.backends.mkldnn.is_available()
        layers = list(self._model.modules())
        parts = {part for layer in layers if _is_lora(layer) for part in layer.modules()}
        for layer in layers:
            weight = None
            if _is_lora(layer):
                weight, bias = self._fold(layer), layer.get_base_layer().bias
            elif can_pack and layer not in parts and type(layer) is torch.nn.Linear:
                weight, bias = layer.weight.detach(), layer.bias
            if weight is not None and weight.dtype in _EXACT:
                is_packed = can_pack and weight.dtype == torch.float32
                patches[layer] = _linear(weight, bias, self._pack(layer, weight) if is_packed else None)
        with _forwards(patches):
            yield

    @contextmanager
    def for_training(self) -> Iterator[None]:
        """Within the block, LoRA layers run with folded weights and give A and B their gradient.

        The backward pass may come after the block. Layers whose adapter is switched off or has dropout are left as they are.
        """
        patches: dict[torch.nn.Module, Forward] = {}
        for layer in self._model.modules():
            if not _is_lora(layer) or layer.disable_adapters:
                continue
            name = single_plain_adapter(layer)
            if layer.training and getattr(layer.lora_dropout[name], "p", 0.0) > 0:
                continue
            folded = self._fold(layer)
            if folded is not None:
                patches[layer] = _differentiable(layer, name, folded)
        with _forwards(patches):
            yield

    @torch.no_grad()
    def _fold(self, layer: Any) -> Tensor | None:
        base = layer.get_base_layer()
        weight = _plain_weight(base)
        if weight.dtype not in _EXACT:
            return None
        if layer.disable_adapters and weight is base.weight:
            return weight
        room = self._room.get(layer)
        if room is None or room.shape != weight.shape:
            room = self._room[layer] = torch.empty_like(weight)
        if layer.disable_adapters:  # unpacked from 4 bit: else each layer would hold one more copy
            return room.copy_(weight)
        name = single_plain_adapter(layer)
        lora_a, lora_b = (part[name].weight.to(weight.dtype) for part in (layer.lora_A, layer.lora_B))
        return torch.addmm(weight, lora_b, lora_a, alpha=layer.scaling[name], out=room)

    def _pack(self, layer: torch.nn.Module, weight: Tensor) -> Tensor:
        """The weight in oneDNN's order; that of a layer without LoRA is kept while nothing was written to it."""
        # A write through `.data` leaves the version as it was, so the numbers are looked at too: 6 ms where packing takes 24.
        state = () if _is_lora(layer) else (weight.data_ptr(), weight._version, weight.sum().item())
        known, packed = self._packed.get(layer, (None, None))
        if packed is None or not state or known != state:
            # Layer by layer, so that each takes the memory that another has just left: fresh memory costs ten times as much.
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
            self._packed[layer] = state, packed
        return packed


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's function that hands freed memory to the system, or None where the C library has none.

    Left to itself, glibc keeps blocks of this size, 1 to 32 MB, once some were freed (mallopt(3), M_MMAP_THRESHOLD): after a
    training of the embedded model the process kept 3.08 GB, and 1.41 GB with this (benchmarks/results/plan_memory.md).
    """
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def _is_lora(layer: torch.nn.Module) -> bool:
    return single_plain_adapter(layer) is not None


def _plain_weight(linear: torch.nn.Linear) -> Tensor:
    state = getattr(linear.weight, "quant_state", None)
    if state is None:
        return linear.weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(linear.weight.data, state)


def _linear(weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Forward:
    def forward(x: Tensor, *_: Any, **__: Any) -> Tensor:
        x = x.to(weight.dtype)
        if packed is None or x.numel() > _FEW_ROWS * x.shape[-1]:
            return functional.linear(x, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

    return forward


def _differentiable(layer: Any, name: str, folded: Tensor) -> Forward:
    lora_a, lora_b = layer.lora_A[name].weight, layer.lora_B[name].weight
    bias, scaling = layer.get_base_layer().bias, layer.scaling[name]
    return lambda x, *_, **__: _FoldedLinear.apply(x.to(folded.dtype), lora_a, lora_b, folded, bias, scaling)


@contextmanager
def _forwards(patches: dict[torch.nn.Module, Forward]) -> Iterator[None]:
    """Set `forward` on these modules, and put back what was there: hooks of other libraries also stand on the instance."""
    before = {layer: vars(layer)["forward"] for layer in patches if "forward" in vars(layer)}
    try:
        for layer, forward in patches.items():
            layer.forward = forward
        yield
    finally:
        for layer in patches:
            vars(layer).pop("forward", None)
            vars(layer).update({"forward": before[layer]} if layer in before else {})
