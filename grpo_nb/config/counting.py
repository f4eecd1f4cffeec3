"""Count the sizes of a model: a loaded one, or one without weights built from a config.json.

The config is enough, so `gn.plan` works for every family that transformers knows.
`core.processes.run_script` runs this file in a child process, because the user's process must
import unsloth before transformers. The file therefore imports no other module of the kit.
"""

from typing import Any


def answer(request: dict[str, str]) -> dict[str, Any]:
    """Return the sizes of the `model` of a request: a folder, or a Hub id.

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
    return count_sizes(model)


def count_sizes(model: Any) -> dict[str, Any]:
    """Return the fields of `ModelSizes` as a dict.

    A LoRA that the model already has is not counted, and 4-bit weights count as if unpacked.
    """
    import torch

    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    linear_weights = 0
    lora_weights_per_rank = 0
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head and "lora_" not in path:
            linear_weights += module.in_features * module.out_features
            lora_weights_per_rank += module.in_features + module.out_features
    parameters = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            # Two 4-bit weights are packed into a byte. `quant_state` has the shape before packing.
            state = getattr(parameter, "quant_state", None)
            parameters += parameter.numel() if state is None else state.shape.numel()
    # GPT-2's config has no number of key heads, and Gemma 3n's has a list of MLP widths.
    heads = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    mlp_width = getattr(config, "intermediate_size", None)
    return {
        "parameters": parameters,
        "hidden_width": config.hidden_size,
        "mlp_width": mlp_width if isinstance(mlp_width, int) else 4 * config.hidden_size,
        "layers": config.num_hidden_layers,
        "key_value_width": (getattr(config, "num_key_value_heads", None) or heads) * head_width,
        "query_width": heads * head_width,
        "vocabulary": config.vocab_size,
        "linear_weights": linear_weights,
        "lora_weights_per_rank": lora_weights_per_rank,
    }
