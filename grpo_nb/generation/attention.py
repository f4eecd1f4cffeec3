"""Attention on a CPU that reads shared key/value heads where they are.

With grouped-query attention (arXiv:2305.13245) several query heads share one key/value head. Whenever there is a mask,
transformers first writes a copy of keys and values for each query head: at every layer of every decoded token the whole cache,
three times over for SmolLM2. PyTorch's CPU kernel does not need the copies. The results are the same bit for bit; decoding
attention takes 0.43 of the time, forward and backward over completions 0.57 (studies/cpu_kernels.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from grpo_nb.models.unsloth import import_unsloth

import_unsloth()

import torch
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grpo_nb.generation.swaps import Swap


def _without_copies(
    stock: Callable[..., Any],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    has_bias = kwargs.get("position_bias") is not None
    is_grouped = query.shape[1] > key.shape[1] == value.shape[1]
    if query.device.type != "cpu" or not is_grouped or attention_mask is None or has_bias:
        return stock(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


grouped_attention = Swap(ALL_ATTENTION_FUNCTIONS, "sdpa", lambda stock: functools.partial(_without_copies, stock))
"""Within the block, models whose attention is transformers' `sdpa` do not copy key/value heads on a CPU. Other attention
implementations, devices and calls that this does not cover run as they did."""
