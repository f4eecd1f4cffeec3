"""Counts the sizes of a model: of the loaded one, or of one without weights that transformers builds from its config.json.

So every family that transformers has can be planned. Imports nothing of the kit, because a model without weights is built in a
process of its own (`grpo_nb.core.processes.run_script`): transformers before unsloth would be too early in the user's.
"""

from __future__ import annotations

from typing import Any


def answer(request: dict[str, str]) -> dict[str, Any]:
    """The sizes of the `model` of a request, a folder or a Hub id, of which the config.json is fetched.

    Raises:
        OSError, ValueError: It has no configuration, or one of a family that transformers does not know.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(request["model"])
    with init_empty_weights(include_buffers=True):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:  # of images too, and with no such class of its own
            model = AutoModelForCausalLM.from_config(config.get_text_config())
    return count_sizes(model)


def count_sizes(model: Any) -> dict[str, Any]:
    """The fields of `Sizes`; of 4-bit weights what they stand for, and without a LoRA."""
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
    return {
        "parameters": sum(_numel(p) for name, p in model.named_parameters() if "lora_" not in name),
        "hidden": config.hidden_size,
        "inner": inner if isinstance(inner, int) else 4 * config.hidden_size,
        "layers": config.num_hidden_layers,
        "key_value": (getattr(config, "num_key_value_heads", None) or heads) * width,
        "query": heads * width,
        "vocabulary": config.vocab_size,
        "projections": projections,
    }


def _numel(parameter: Any) -> int:
    """The number of weights; of packed 4-bit ones by the shape that they stand for."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()
