"""Sizes of a model: known for the presets, counted on a loaded model or on one without weights.

A config.json is enough to build a model without weights, so `gn.plan` works for every family with
attention that transformers knows. The user's process must import unsloth before transformers, so
such a model is built in a child process. `core.processes.run_script` runs this file there, without
the kit. Only `sizes_of`, which the child does not call, imports other modules of the kit.
"""

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Sizes of the models of the presets, so that a plan for them needs no download.
PRESET_MODEL_SIZES = json.loads(
    Path(__file__).with_name("preset_model_sizes.json").read_text("utf-8")
)


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model that its memory depends on."""

    parameters: int
    hidden_width: int
    mlp_width: int
    layers: int
    key_value_width: int
    """Width of the keys of all heads together. The values have the same width."""
    query_width: int
    """Width of the queries of all heads together."""
    vocabulary: int
    linear_weights: int
    """Weights of all linear layers except the output layer. 4-bit loading packs these layers."""
    lora_weights_per_rank: int
    """Sum of in_features + out_features over these layers. A LoRA has `rank` times as many weights
    (arXiv:2106.09685)."""


@functools.cache
def sizes_of(name: str) -> ModelSizes:
    """Return the sizes of a model.

    Args:
        name: A model of a preset, a folder, or a Hub id, whose config.json is downloaded.

    Raises:
        ValueError: The model has no configuration that can be read.

    >>> sizes_of("SmolLM2-135M-Instruct").layers
    30
    """
    from grpo_nb.core.processes import ChildError, run_script

    if name in PRESET_MODEL_SIZES:
        return ModelSizes(**PRESET_MODEL_SIZES[name])
    try:
        return ModelSizes(**run_script(Path(__file__), {"model": os.path.expanduser(name)}))
    except ChildError as error:
        # Two lines of advice can follow an error of transformers.
        raise ValueError(f"The sizes of {name!r} cannot be read:\n{error.last(3)}") from None


def answer(request: dict[str, str]) -> dict[str, int]:
    """Return the sizes of the `model` of a request (a folder or a Hub id), in the child process.

    Raises:
        OSError, ValueError: The model has no configuration, or transformers does not know its
            family.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(request["model"])
    with init_empty_weights(include_buffers=True):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:  # a model for images and text, without a class for text alone
            model = AutoModelForImageTextToText.from_config(config)
    return vars(count_sizes(model))


def count_sizes(model: Any) -> ModelSizes:
    """Count the sizes of a model.

    A LoRA that the model already has is not counted, and 4-bit weights count as if unpacked.

    Raises:
        ValueError: The model has no attention heads.
    """
    import torch

    config = model.config.get_text_config()
    if not hasattr(config, "num_attention_heads"):
        raise ValueError(
            f"A model of the family {config.model_type!r} has no attention heads, so its memory "
            "cannot be estimated. Take a model with attention."
        )
    head = model.get_output_embeddings()
    linear_weights = 0
    lora_weights_per_rank = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head and "lora_" not in name:
            linear_weights += module.in_features * module.out_features
            lora_weights_per_rank += module.in_features + module.out_features
    parameters = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            # Two 4-bit weights are packed into a byte. `quant_state` has the shape before packing.
            parameters += getattr(parameter, "quant_state", parameter).shape.numel()
    # GPT-2's config has no number of key heads, and Gemma 3n's has a list of MLP widths.
    heads = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    mlp_width = getattr(config, "intermediate_size", None)
    return ModelSizes(
        parameters=parameters,
        hidden_width=config.hidden_size,
        mlp_width=mlp_width if isinstance(mlp_width, int) else 4 * config.hidden_size,
        layers=config.num_hidden_layers,
        key_value_width=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
        query_width=heads * head_width,
        vocabulary=config.vocab_size,
        linear_weights=linear_weights,
        lora_weights_per_rank=lora_weights_per_rank,
    )
