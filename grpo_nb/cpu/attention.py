"""Grouped-query attention on a CPU without copies of the key/value heads.

With grouped-query attention (arXiv:2305.13245) several query heads share one key/value head. Where
there is a mask, transformers first copies keys and values for each query head. When decoding, it
copies the whole cache, at every layer and every token. For SmolLM2 the copy is three times as large
as the cache. PyTorch's CPU kernel does not need the copies. The results are equal bit for bit. When
decoding, this attention needs 43 % of the time that transformers needs; in a forward and backward
pass over completions it needs 57 % (studies/cpu_kernels.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.upstream.transformers import attention_functions

import_unsloth()

from torch import Tensor
from torch.nn import functional


@contextmanager
def grouped_attention() -> Iterator[None]:
    """Run transformers' `sdpa` attention without copies of key/value heads within the block."""
    # Models look their attention up by name at each call, so the table is changed, not the model.
    functions = attention_functions()
    original = functions["sdpa"]
    functions["sdpa"] = partial(_attention_without_copies, original)
    try:
        yield
    finally:
        functions["sdpa"] = original


def _attention_without_copies(
    original: Any,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute grouped attention with a mask, and leave every other call to `original`.

    Args:
        original: transformers' function for `sdpa`, with the same arguments and result.
        module: Attention layer that calls.
        query: (rows, query heads, tokens, head size).
        key: (rows, key/value heads, cached and new tokens, head size).
        value: Of the same shape as `key`.
        attention_mask: (rows, 1, tokens, cached and new tokens), or None.
        **kwargs: Of these, `dropout` and `scaling` are used here.

    Returns:
        The output (rows, tokens, query heads, head size), and None in place of attention weights.
    """
    is_grouped = query.shape[1] > key.shape[1]
    if not is_grouped or attention_mask is None:
        return original(module, query, key, value, attention_mask, **kwargs)
    output = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=kwargs.get("dropout", 0.0),
        scale=kwargs.get("scaling"),
        enable_gqa=True,
    )
    return output.transpose(1, 2).contiguous(), None
