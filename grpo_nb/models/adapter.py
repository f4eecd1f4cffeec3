"""LoRA adapters as files: read their settings, save them, and load them with a check."""

import dataclasses
from pathlib import Path
from typing import Any

_CONFIG_FILE = "adapter_config.json"
_TENSOR_FILE = "adapter_model.safetensors"
_LORA_MATRIX_ENDINGS = (".lora_A.weight", ".lora_B.weight")
# Options that change how PEFT computes a layer, so that it is no longer base + lora_alpha / r *
# B @ A. Names and shapes of the tensors do not show them.
_OPTIONS_BEYOND_PLAIN_LORA = (
    "use_rslora",
    "use_dora",
    "alpha_pattern",
    "rank_pattern",
    "fan_in_fan_out",
    "layer_replication",
)
# Initialisations that leave the base model as it is. PiSSA, OLoRA, CorDA and LoftQ change it; MiCA
# computes another forward pass (peft/tuners/lora/layer.py, update_layer).
_PLAIN_INITIALISATIONS = (None, True, False, "gaussian", "eva", "orthogonal")


def read_adapter(folder: Path) -> dict[str, Any]:
    """Return rank, alpha and target modules of a LoRA, as the settings name them.

    An adapter that also trains embeddings or whole modules is refused before the model is loaded.
    An adapter with another scaling or a changed base is refused here because `load_adapter`, which
    compares only names and shapes, would accept it.

    Args:
        folder: Folder that PEFT wrote.

    Raises:
        FileNotFoundError: The folder holds no adapter in PEFT's files.
        ValueError: The adapter is not a plain LoRA.
    """
    from peft import PeftConfig
    from safetensors import safe_open

    # If the configuration is missing, PEFT would look for it on the Hub.
    missing = [name for name in (_CONFIG_FILE, _TENSOR_FILE) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"adapter = {str(folder)!r} is not a LoRA: it has no {' and no '.join(missing)}. Name "
            "the folder that PEFT wrote. In the folder of a run, it is adapter/. For a LoRA of the "
            "Hub, write adapter=huggingface_hub.snapshot_download(...)."
        )
    config = PeftConfig.from_pretrained(str(folder))
    beyond_plain = options_beyond_plain_lora(config)
    with safe_open(folder / _TENSOR_FILE, "pt") as file:
        names = list(file.keys())
    beyond_plain += [name for name in names if not name.endswith(_LORA_MATRIX_ENDINGS)]
    if beyond_plain:
        raise ValueError(
            f"the adapter in {str(folder)!r} is not a plain LoRA ({', '.join(beyond_plain[:3])}): "
            "merge it into its base model (PEFT's merge_and_unload), save that, and name its "
            "folder as the model of the settings."
        )
    # For example "q_proj", from "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
    modules = {name.split(".")[-3] for name in names}
    return {
        "lora_rank": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_target_modules": tuple(sorted(modules)),
    }


def options_beyond_plain_lora(config: Any) -> list[str]:
    """Return the options of a PEFT configuration that a plain LoRA does not have."""
    if config.peft_type != "LORA":
        return [f"peft_type {config.peft_type.value}"]
    # PEFT marks further variants in the class of its configuration (peft/tuners/lora/config.py).
    variants = [
        field.name for field in dataclasses.fields(config) if field.metadata.get("is_lora_variant")
    ]
    names = dict.fromkeys((*_OPTIONS_BEYOND_PLAIN_LORA, *variants))
    options = [name for name in names if getattr(config, name)]
    if config.init_lora_weights not in _PLAIN_INITIALISATIONS:
        options.append(f"init_lora_weights {config.init_lora_weights!r}")
    return options


def save_adapter(model: Any, folder: str | Path) -> None:
    """Save the trained LoRA (`default`) as PEFT does, without PEFT's README.md.

    PEFT's model card is a page of empty headings. The run already has its own card.
    """
    model.save_pretrained(folder, selected_adapters=["default"])
    Path(folder, "README.md").unlink(missing_ok=True)


def load_adapter(model: Any, folder: str | Path, name: str = "default") -> None:
    """Copy the tensors of a saved LoRA into a LoRA of the model, and check that all arrived.

    If the folder also has adapters in subfolders, transformers' own loader loads only those. The
    LoRA of the folder itself then keeps its initial values, without a warning. Therefore this
    function loads the tensors itself and compares them.

    Args:
        model: The model with its LoRA.
        folder: Folder of the saved LoRA.
        name: PEFT's name of the LoRA to fill; `default` is the LoRA that is trained.

    Raises:
        ValueError: The tensors have other names or shapes than the model's LoRA, a value is not
            finite, or a tensor did not arrive.
    """
    import torch
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    saved_tensors = load_file(Path(folder) / _TENSOR_FILE)
    model_tensors = get_peft_model_state_dict(model, adapter_name=name)
    saved_shapes = {key: tensor.shape for key, tensor in saved_tensors.items()}
    if saved_shapes != {key: tensor.shape for key, tensor in model_tensors.items()}:
        raise ValueError(
            f"the adapter in {str(folder)!r} has other tensors than the model's LoRA: it belongs "
            "to another base model, rank or set of target modules, or to some layers alone. Load "
            "the model with the settings of that run."
        )
    for key, tensor in saved_tensors.items():
        # Checked in the model's dtype, in which a large number can become infinite.
        if not torch.isfinite(tensor.to(model_tensors[key].dtype)).all():
            raise ValueError(
                f"the adapter in {str(folder)!r} has values that are not finite, as in {key}. Such "
                "values mean that its training diverged: take an adapter from an earlier step."
            )
    set_peft_model_state_dict(model, saved_tensors, adapter_name=name)
    loaded_tensors = get_peft_model_state_dict(model, adapter_name=name)
    for key, tensor in saved_tensors.items():
        arrived = loaded_tensors[key].cpu()
        if not torch.equal(arrived, tensor.to(arrived.dtype)):
            raise ValueError(
                f"the adapter in {str(folder)!r} was not loaded completely: {key} did not arrive."
            )
