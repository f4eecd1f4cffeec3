"""The sizes of a model, from the model itself or its config.json, without its weights. What is not known is None.

The sizes of models that people train first are written down here, as their repositories publish them (without access to the
Hub), so that they can be planned without a network. Tests compare the number of weights that follows with the published
one, exactly. Of any other model the config.json is fetched.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.settings.settings import ALL_LINEAR, EMBEDDED_MODEL

# Decoders with q, k, v, o and a gated MLP of three products, whose weights this module counts exactly (tests compare).
_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"}
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_FIELDS = ("model_type", *_SIZES, "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings", "head_dim")

# The fields of each config.json that weights and memory follow from, in the order of _FIELDS.
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    name: dict(zip(_FIELDS, values, strict=False))
    for name, values in {
        EMBEDDED_MODEL: ("llama", 576, 1536, 30, 9, 49_152, 3, 8192, True),
        "HuggingFaceTB/SmolLM2-360M-Instruct": ("llama", 960, 2560, 32, 15, 49_152, 5, 8192, True),
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": ("llama", 2048, 8192, 24, 32, 49_152, 32, 8192, True),
        "unsloth/Qwen2.5-0.5B-Instruct": ("qwen2", 896, 4864, 24, 14, 151_936, 2, 32_768, True),
        "unsloth/Qwen2.5-1.5B-Instruct": ("qwen2", 1536, 8960, 28, 12, 151_936, 2, 32_768, True),
        "unsloth/Qwen2.5-3B-Instruct": ("qwen2", 2048, 11_008, 36, 16, 151_936, 2, 32_768, True),
        "unsloth/Qwen2.5-7B-Instruct": ("qwen2", 3584, 18_944, 28, 28, 152_064, 4, 32_768, False),
        "unsloth/Qwen2.5-14B-Instruct": ("qwen2", 5120, 13_824, 48, 40, 152_064, 8, 32_768, False),
        "unsloth/Qwen3-0.6B": ("qwen3", 1024, 3072, 28, 16, 151_936, 8, 40_960, True, 128),
        "unsloth/Qwen3-1.7B": ("qwen3", 2048, 6144, 28, 16, 151_936, 8, 40_960, True, 128),
        "unsloth/Qwen3-4B": ("qwen3", 2560, 9728, 36, 32, 151_936, 8, 40_960, True, 128),
        "unsloth/Qwen3-8B": ("qwen3", 4096, 12_288, 36, 32, 151_936, 8, 40_960, False, 128),
        "unsloth/Llama-3.2-1B-Instruct": ("llama", 2048, 8192, 16, 32, 128_256, 8, 131_072, True, 64),
        "unsloth/Llama-3.2-3B-Instruct": ("llama", 3072, 8192, 28, 24, 128_256, 8, 131_072, True, 128),
        "unsloth/Llama-3.1-8B-Instruct": ("llama", 4096, 14_336, 32, 32, 128_256, 8, 131_072, False),
        "unsloth/mistral-7b-instruct-v0.3": ("mistral", 4096, 14_336, 32, 32, 32_768, 8, 32_768, False),
        "unsloth/gemma-2-2b-it": ("gemma2", 2304, 9216, 26, 8, 256_000, 4, 8192, True, 256),
        "unsloth/gemma-3-1b-it": ("gemma3_text", 1152, 6912, 26, 4, 262_144, 1, 32_768, True, 256),
    }.items()
}


@dataclass(frozen=True)
class ModelShape:
    """What a model's memory follows from."""

    source: str
    """Where the sizes come from, in words."""
    hidden: int
    inner: int
    layers: int
    query: int
    """Width of all query heads together."""
    key_value: int
    """Width of all key heads together; as much again for the values."""
    vocabulary: int
    parameters: int
    linear: int
    """Those of the layers' linear projections, which 4-bit loading packs and a LoRA adapts."""

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """`rank x (in + out)` for each adapted projection of each layer (arXiv:2106.09685)."""
        beside_hidden = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.inner)
        beside_hidden |= dict.fromkeys(("q_proj", "o_proj"), self.query)
        beside_hidden |= dict.fromkeys(("k_proj", "v_proj"), self.key_value)
        adapted = beside_hidden if targets == ALL_LINEAR else [name for name in targets if name in beside_hidden]
        return self.layers * rank * sum(self.hidden + beside_hidden[name] for name in adapted)


def shape_of(name: str, model: Any = None) -> ModelShape | None:
    """The sizes of a model, or None where neither the model nor a configuration on this machine tells them.

    Args:
        name: A folder, one of the models in `PUBLISHED`, or a Hub id, whose config.json is fetched if it is not in the local
            cache. Its weights are not.
        model: The loaded model, whose weights are then counted.

    >>> shape_of("SmolLM2-135M-Instruct").layers
    30
    """
    if model is not None:
        shape = _shape(model.config.get_text_config().to_dict(), "the loaded model")
        return shape and dataclasses.replace(shape, parameters=_count(model))
    found = read_config(name, may_fetch=True)
    return found and _shape(*found)


def read_config(name: str, *, may_fetch: bool = False) -> tuple[Mapping[str, Any], str] | None:
    """The config.json of a folder, of a published model or of one in the Hub's cache, with where it is from; else None.

    Args:
        name: A folder or Hub id.
        may_fetch: Ask the Hub for it, where nothing is here.
    """
    file = Path(name).expanduser() / "config.json"
    if file.is_file():
        return json.loads(file.read_text()), "config.json of the folder"
    if name in PUBLISHED:
        return PUBLISHED[name], "its published config.json"
    if name.count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found, source = try_to_load_from_cache(name, "config.json"), "config.json in the Hub's cache"
    except ValueError:  # a path, and none that exists: whether it can be loaded is for load_model to say
        return None
    if may_fetch and not isinstance(found, str):
        found, source = _fetched_config(name), "its config.json on the Hub"
    return (json.loads(Path(found).read_text()), source) if isinstance(found, str) else None


@functools.cache
def _fetched_config(name: str) -> str | None:
    """The path of a config.json fetched from the Hub, or None where that is not possible; asked once per process."""
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download(name, "config.json", etag_timeout=5)
    except (OSError, ValueError):  # all of the Hub's errors are of these kinds
        return None  # the plan then says that the sizes are not known; loading says what is in the way


def _shape(config: Mapping[str, Any], source: str) -> ModelShape | None:
    kind = config.get("model_type")
    if kind not in _FAMILIES or any(not isinstance(config.get(name), int) for name in _SIZES):
        return None
    hidden, inner, layers, heads, vocabulary = (config[name] for name in _SIZES)
    head = config.get("head_dim") or hidden // heads
    query = heads * head
    key_value = (config.get("num_key_value_heads") or heads) * head
    linear = layers * (2 * hidden * query + 2 * hidden * key_value + 3 * hidden * inner)
    norms = (4 if kind in ("gemma2", "gemma3_text") else 2) * hidden
    if kind in ("qwen3", "gemma3_text"):
        norms += 2 * head
    if kind == "qwen2":
        norms += query + 2 * key_value  # biases of q, k and v
    tied = config.get("tie_word_embeddings", kind.startswith("gemma"))
    parameters = linear + layers * norms + hidden + vocabulary * hidden * (1 if tied else 2)
    return ModelShape(source, hidden, inner, layers, query, key_value, vocabulary, parameters, linear)


def _count(model: Any) -> int:
    """The number of weights of the model as it is, its adapters left out; packed 4-bit weights by their shape."""
    states = [(p, getattr(p, "quant_state", None)) for name, p in model.named_parameters() if "lora_" not in name]
    return sum(p.numel() if state is None else state.shape.numel() for p, state in states)
