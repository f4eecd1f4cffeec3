"""The sizes of a model, from the model itself or its configuration, without loading its weights. What is not known is None."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.known_models import KNOWN_MODELS

# Decoders with q, k, v, o and a gated MLP of three products, whose weights this module counts exactly (tests compare).
_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


# Of the models that the presets name and of others that people train first, so that they can be planned before they are
# downloaded.
PUBLISHED: Mapping[str, Mapping[str, Any]] = KNOWN_MODELS


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
        return self.layers * sum(rank * sum(self._sides(name)) for name in targets if name in self._names())

    def _names(self) -> tuple[str, ...]:
        return (*_ATTENTION, "gate_proj", "up_proj", "down_proj")

    def _sides(self, name: str) -> tuple[int, int]:
        if name in _ATTENTION:
            return self.hidden, self.key_value if name in ("k_proj", "v_proj") else self.query
        return self.hidden, self.inner


def shape_of(name: str, model: Any = None) -> ModelShape | None:
    """The sizes of a model, or None where neither the model nor a configuration on this machine tells them.

    Args:
        name: A folder, one of the models in `grpo_nb.known_models`, or a Hub id, whose config.json is fetched if it is not in
            the local cache. Its weights are not.
        model: The loaded model, whose weights are then counted.

    >>> shape_of("SmolLM2-135M-Instruct").layers
    30
    """
    if model is not None:
        config = model.config.get_text_config()
        shape = _from_config(config.to_dict(), "the loaded model")
        return shape and _counted(shape, model)
    found = _read_config(name)
    return None if found is None else _from_config(*found)


def _read_config(name: str) -> tuple[Mapping[str, Any], str] | None:
    file = Path(name).expanduser() / "config.json"
    if file.is_file():
        return json.loads(file.read_text()), "config.json of the folder"
    if name in PUBLISHED:
        return PUBLISHED[name], "its published config.json"
    if name.count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # a path, and none that exists: whether it can be loaded is for load_model to say
        return None
    if isinstance(cached, str):
        return json.loads(Path(cached).read_text()), "config.json in the Hub's cache"
    fetched = _fetched_config(name)
    return None if fetched is None else (json.loads(Path(fetched).read_text()), "its config.json on the Hub")


@functools.cache
def _fetched_config(name: str) -> str | None:
    """The path of a config.json fetched from the Hub, or None where that is not possible; asked once per process."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return hf_hub_download(name, "config.json", etag_timeout=5)
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError, ValueError):
        return None  # the plan then says that the sizes are not known; loading says what is in the way


def _from_config(config: Mapping[str, Any], source: str) -> ModelShape | None:
    kind = config.get("model_type")
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if kind not in _FAMILIES or any(not isinstance(config.get(name), int) for name in needed):
        return None
    hidden, inner, layers, heads, vocabulary = (config[name] for name in needed)
    head = config.get("head_dim") or hidden // heads
    query = heads * head
    key_value = (config.get("num_key_value_heads") or heads) * head
    linear = layers * (2 * hidden * query + 2 * hidden * key_value + 3 * hidden * inner)
    is_gemma = kind.startswith("gemma")
    norms = (4 if kind in ("gemma2", "gemma3_text") else 2) * hidden
    if kind in ("qwen3", "gemma3_text"):
        norms += 2 * head
    if kind == "qwen2":
        norms += query + 2 * key_value  # biases of q, k and v
    tied = config.get("tie_word_embeddings", is_gemma)
    parameters = linear + layers * norms + hidden + vocabulary * hidden * (1 if tied else 2)
    return ModelShape(source, hidden, inner, layers, query, key_value, vocabulary, parameters, linear)


def _counted(shape: ModelShape, model: Any) -> ModelShape:
    """With the number of weights of the model as it is, its adapters left out; packed 4-bit weights by their shape."""
    total = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            state = getattr(parameter, "quant_state", None)
            total += parameter.numel() if state is None else state.shape.numel()
    return ModelShape(**{**vars(shape), "parameters": total})
