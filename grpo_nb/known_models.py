"""The published sizes of models that people train first, so that they can be planned without a network.

The fields of each repository's `config.json` that weights and memory follow from, and how many positions the model was trained
for, written down without access to the Hub. Tests compare the number of weights that follows with the published one, exactly.
Any other model works too: its config.json is fetched, never its weights (`grpo_nb.planning_shapes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EMBEDDED = "SmolLM2-135M-Instruct"


def _config(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, positions: int, *,
    tied: bool, head: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    sizes = {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, "tie_word_embeddings": tied,
        "max_position_embeddings": positions,
    }  # fmt: skip
    return sizes if head is None else {**sizes, "head_dim": head}


def _qwen25(hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int = 151_936, *, tied: bool) -> dict:
    return _config("qwen2", hidden, inner, layers, heads, kv, vocab, 32_768, tied=tied)


def _qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> dict:
    return _config("qwen3", hidden, inner, layers, heads, 8, 151_936, 40_960, tied=tied, head=128)


KNOWN_MODELS: Mapping[str, Mapping[str, Any]] = {
    EMBEDDED: _config("llama", 576, 1536, 30, 9, 3, 49_152, 8192, tied=True),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _config("llama", 960, 2560, 32, 15, 5, 49_152, 8192, tied=True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _config("llama", 2048, 8192, 24, 32, 32, 49_152, 8192, tied=True),
    "unsloth/Qwen2.5-0.5B-Instruct": _qwen25(896, 4864, 24, 14, 2, tied=True),
    "unsloth/Qwen2.5-1.5B-Instruct": _qwen25(1536, 8960, 28, 12, 2, tied=True),
    "unsloth/Qwen2.5-3B-Instruct": _qwen25(2048, 11_008, 36, 16, 2, tied=True),
    "unsloth/Qwen2.5-7B-Instruct": _qwen25(3584, 18_944, 28, 28, 4, 152_064, tied=False),
    "unsloth/Qwen2.5-14B-Instruct": _qwen25(5120, 13_824, 48, 40, 8, 152_064, tied=False),
    "unsloth/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "unsloth/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "unsloth/Qwen3-4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "unsloth/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, tied=False),
    "unsloth/Llama-3.2-1B-Instruct": _config("llama", 2048, 8192, 16, 32, 8, 128_256, 131_072, tied=True, head=64),
    "unsloth/Llama-3.2-3B-Instruct": _config("llama", 3072, 8192, 28, 24, 8, 128_256, 131_072, tied=True, head=128),
    "unsloth/Llama-3.1-8B-Instruct": _config("llama", 4096, 14_336, 32, 32, 8, 128_256, 131_072, tied=False),
    "unsloth/mistral-7b-instruct-v0.3": _config("mistral", 4096, 14_336, 32, 32, 8, 32_768, 32_768, tied=False),
    "unsloth/gemma-2-2b-it": _config("gemma2", 2304, 9216, 26, 8, 4, 256_000, 8192, tied=True, head=256),
    "unsloth/gemma-3-1b-it": _config("gemma3_text", 1152, 6912, 26, 4, 1, 262_144, 32_768, tied=True, head=256),
}
