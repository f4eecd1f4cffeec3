"""The sizes of a model, counted on the model itself or on one without weights that transformers builds from its config.json.

So every family that transformers has can be planned. Of the models that the presets name the config.json stands in
`published.json`, as their repositories publish it, so that these can be planned without a network.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.settings.settings import ALL_LINEAR

PUBLISHED: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))
_NOT_BUILT = (OSError, ValueError, TypeError, LookupError, AttributeError, ImportError)
_CHILD = "import sys; from grpo_nb.settings.sizes import as_json; print(as_json(sys.argv[1]))"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a model's memory follows from."""

    source: str
    """What was counted, in words."""
    parameters: int
    hidden: int
    inner: int
    layers: int
    key_value: int
    """Width of all key heads together; as much again for the values."""
    query: int
    """Width of all query heads together."""
    vocabulary: int
    projections: Mapping[str, tuple[int, int]]
    """By name of the linear layers of the decoder, which 4-bit loading packs and a LoRA adapts: weights, and inputs and
    outputs, both summed over all layers of that name."""

    @property
    def linear(self) -> int:
        """Weights of the linear layers of the decoder."""
        return sum(weights for weights, _ in self.projections.values())

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """`rank x (in + out)` for each adapted projection (arXiv:2106.09685)."""
        adapted = self.projections if targets == ALL_LINEAR else self.projections.keys() & set(targets)
        return rank * sum(self.projections[name][1] for name in adapted)


def sizes_of(name: str, model: Any = None) -> Sizes | None:
    """The sizes of a model, or None where neither the model nor a configuration that can be had tells them.

    Args:
        name: A folder, one of the models in `PUBLISHED`, or a Hub id, of which the config.json is fetched.
        model: The loaded model, which is then counted.

    >>> sizes_of("SmolLM2-135M-Instruct").layers
    30
    """
    return _count(model, "the loaded model") if model is not None else _sizes_without_weights(name)


@functools.cache
def _sizes_without_weights(name: str) -> Sizes | None:
    # transformers before unsloth would be too early (grpo_nb.models.unsloth), so it is imported elsewhere, once for a model.
    if "transformers" not in sys.modules:
        done = subprocess.run([sys.executable, "-c", _CHILD, name], capture_output=True, text=True)
        return Sizes(**json.loads(done.stdout)) if done.returncode == 0 else None
    try:
        return _build(name)
    except _NOT_BUILT:  # the plan then says that the sizes are not known; loading says what is in the way
        return None


def as_json(name: str) -> str:
    """The sizes of a model without its weights as JSON, for the process that asked."""
    return json.dumps(dataclasses.asdict(_build(name)))


def _build(name: str) -> Sizes:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if name in PUBLISHED:
        published = dict(PUBLISHED[name])
        config = AutoConfig.for_model(published.pop("model_type"), **published)
    else:
        config = AutoConfig.from_pretrained(name)
    with torch.device("meta"):  # as accelerate's init_empty_weights: shapes, and no memory
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:  # of images too, and with no such class of its own
            model = AutoModelForCausalLM.from_config(config.get_text_config())
    return _count(model, "its config.json")


def _count(model: Any, source: str) -> Sizes:
    import torch

    config, head = model.config.get_text_config(), model.get_output_embeddings()
    projections: dict[str, tuple[int, int]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head and "lora_" not in name:
            name = name.removesuffix(".base_layer").rpartition(".")[2]
            weights, ends = projections.get(name, (0, 0))
            inputs, outputs = module.in_features, module.out_features
            projections[name] = (weights + inputs * outputs, ends + inputs + outputs)
    heads = getattr(config, "num_attention_heads", None) or 1
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    inner = getattr(config, "intermediate_size", None)
    return Sizes(
        source=source,
        parameters=sum(_numel(p) for name, p in model.named_parameters() if "lora_" not in name),
        hidden=config.hidden_size,
        inner=inner if isinstance(inner, int) else 4 * config.hidden_size,
        layers=config.num_hidden_layers,
        key_value=(getattr(config, "num_key_value_heads", None) or heads) * width,
        query=heads * width,
        vocabulary=config.vocab_size,
        projections=projections,
    )


def _numel(parameter: Any) -> int:
    """The number of weights; of packed 4-bit ones by the shape that they stand for."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()
