"""Attention on a CPU that reads shared key/value heads where they are.

With grouped-query attention (arXiv:2305.13245) several query heads share one key/value head. Whenever there is a mask,
transformers first writes a copy of keys and values for each query head: at every layer of every decoded token the whole cache,
three times over for SmolLM2. PyTorch's CPU kernel does not need the copies. The results are the same bit for bit; decoding
attention takes 0.43 of the time, forward and backward over completions 0.57 (studies/cpu_kernels.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, MutableMapping
from contextlib import ContextDecorator
from typing import Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Swap(ContextDecorator):
    """Within the block, `mapping[key]` is what `made_of` gives for what stood there.

    Blocks may lie inside of each other and in several threads at a time: the first one puts the new value in, and the last
    one that is left, whichever it is, puts the old one back.
    """

    def __init__(self, mapping: MutableMapping[str, Any], key: str, made_of: Callable[[Any], Any]) -> None:
        self._mapping, self._key, self._made_of = mapping, key, made_of
        self._lock, self._depth, self._stock = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._stock = self._mapping[self._key]
                self._mapping[self._key] = self._made_of(self._stock)
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._mapping[self._key], self._stock = self._stock, None


def _without_copies(
    stock: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    has_bias = named.get("position_bias") is not None
    is_grouped = query.shape[1] > key.shape[1] == value.shape[1]
    if query.device.type != "cpu" or not is_grouped or attention_mask is None or has_bias:
        return stock(module, query, key, value, attention_mask, **named)
    how = {"attn_mask": attention_mask, "dropout_p": named.get("dropout", 0.0), "scale": named.get("scaling")}
    out = functional.scaled_dot_product_attention(query, key, value, **how, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


grouped_attention = Swap(ALL_ATTENTION_FUNCTIONS, "sdpa", lambda stock: functools.partial(_without_copies, stock))
"""Within the block, models whose attention is transformers' `sdpa` do not copy key/value heads on a CPU. Other attention
implementations, devices and calls that this does not cover run as they did."""
