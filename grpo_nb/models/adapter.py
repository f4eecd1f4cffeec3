"""LoRA adapters as files: compare with the settings, save, and load with a check."""

from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings

_TENSOR_FILE = "adapter_model.safetensors"
# Options that change how PEFT computes a layer, so that it is no longer base + lora_alpha / r *
# B @ A. Names and shapes of the tensors do not show them.
_OPTIONS_BEYOND_PLAIN_LORA = (
    "use_rslora",
    "alpha_pattern",
    "rank_pattern",
    "fan_in_fan_out",
    "layer_replication",
    # The fields with `is_lora_variant` of PEFT 0.21.2 (peft/tuners/lora/config.py).
    "use_dora",
    "velora_config",
    "alora_invocation_tokens",
    "monteclora_config",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
)
# Initialisations that leave the base model as it is. PiSSA, OLoRA, CorDA and LoftQ change it; MiCA
# computes another forward pass (peft/tuners/lora/layer.py, update_layer).
_PLAIN_INITIALISATIONS = (None, True, False, "gaussian", "eva", "orthogonal")


def require_same_lora(folder: Path, settings: Settings) -> None:
    """Refuse an adapter that is not the plain LoRA of the settings, before the model is loaded.

    `load_adapter` compares only names and shapes of the tensors, so it would accept another scaling
    or a changed base.

    Args:
        folder: Folder that PEFT wrote.
        settings: Settings that the model will be loaded with.

    Raises:
        FileNotFoundError: The folder holds no adapter in PEFT's files.
        ValueError: The adapter is not a plain LoRA, or the settings have another rank, alpha or
            other target modules.
    """
    from peft import PeftConfig
    from safetensors import safe_open

    if not (folder / _TENSOR_FILE).is_file():
        raise FileNotFoundError(
            f"adapter = {str(folder)!r} is not a LoRA: it has no {_TENSOR_FILE}. Name the folder "
            "that PEFT wrote. In the folder of a run, it is adapter/. For a LoRA of the Hub, write "
            "adapter=huggingface_hub.snapshot_download(...)."
        )
    config = PeftConfig.from_pretrained(str(folder))
    beyond_plain = options_beyond_plain_lora(config)
    if beyond_plain:
        raise ValueError(
            f"the adapter in {str(folder)!r} is not a plain LoRA ({', '.join(beyond_plain)}): "
            "merge it into its base model (PEFT's merge_and_unload), save that, and name its "
            "folder as the model of the settings."
        )
    # The configuration can have a regular expression in place of the names of modules.
    with safe_open(folder / _TENSOR_FILE, "pt") as file:
        names = file.keys()
    # For example "q_proj", from "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
    modules = {name.split(".")[-3] for name in names if name.endswith(".lora_A.weight")}
    adapter_values = (config.r, config.lora_alpha, modules)
    if adapter_values != (
        settings.lora_rank,
        settings.lora_alpha,
        set(settings.lora_target_modules),
    ):
        raise ValueError(
            f"the settings are not those of the adapter in {str(folder)!r}. Write settings = "
            f"settings.replace(lora_rank={config.r}, lora_alpha={config.lora_alpha}, "
            f"lora_target_modules={tuple(sorted(modules))})."
        )


def options_beyond_plain_lora(config: Any) -> list[str]:
    """Return the options of a PEFT configuration that a plain LoRA does not have."""
    if config.peft_type != "LORA":
        return [f"peft_type {config.peft_type.value}"]
    options = [name for name in _OPTIONS_BEYOND_PLAIN_LORA if getattr(config, name)]
    if config.init_lora_weights not in _PLAIN_INITIALISATIONS:
        options.append(f"init_lora_weights {config.init_lora_weights!r}")
    return options


def save_adapter(model: Any, folder: str | Path) -> None:
    """Save the trained LoRA (`default`) as PEFT does, without PEFT's README.md.

    PEFT's model card is a page of empty headings. The run already has its own card.
    """
    # Deleting the card afterwards would be too late: PEFT 0.21 compiles its template at each call,
    # which takes a tenth of the time of a checkpoint.
    model.create_or_update_model_card = lambda folder: None
    try:
        model.save_pretrained(folder, selected_adapters=["default"])
    finally:
        del model.create_or_update_model_card


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
        ValueError: The tensors have other names or shapes than the model's LoRA, a tensor did not
            arrive, or a value is not a number.
    """
    import torch
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    saved_tensors = load_file(Path(folder, _TENSOR_FILE))
    model_tensors = get_peft_model_state_dict(model, adapter_name=name)
    saved_shapes = {key: tensor.shape for key, tensor in saved_tensors.items()}
    if saved_shapes != {key: tensor.shape for key, tensor in model_tensors.items()}:
        raise ValueError(
            f"the adapter in {str(folder)!r} has other tensors than the model's LoRA: it was "
            "trained with another base model, rank or target modules, adapts only some layers, or "
            "contains more than a LoRA. Load the model with the settings that the adapter was "
            "trained with."
        )
    set_peft_model_state_dict(model, saved_tensors, adapter_name=name)
    loaded_tensors = get_peft_model_state_dict(model, adapter_name=name)
    for key, tensor in saved_tensors.items():
        arrived = loaded_tensors[key].cpu()
        if not torch.equal(arrived, tensor.to(arrived.dtype)):
            raise ValueError(
                f"the adapter in {str(folder)!r} was not loaded: {key} did not arrive, or has "
                "values that are not a number because its training diverged."
            )
