"""A LoRA that somebody brings, to go on from: found, read and looked at before the model is loaded that it is put on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from grpo_nb.models.identity import TEMPLATE_FILE
from grpo_nb.settings.settings import Settings

SHAPE = ("lora_rank", "lora_alpha", "lora_target_modules")
"""The settings that the adapter decides."""
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
# Of PEFT's configuration, what is taken over, and what says nothing of how these tensors are used.
_TAKEN_OR_NOTHING = (
    "r", "lora_alpha", "target_modules", "exclude_modules", "lora_dropout", "task_type", "peft_type", "inference_mode",
    "base_model_name_or_path", "revision", "auto_mapping", "peft_version", "runtime_config",
)  # fmt: skip


def adapter_folder(adapter: str | Path) -> Path:
    """Return the folder of an adapter, from the Hub where it is none here.

    Raises:
        FileNotFoundError: It lacks one of PEFT's two files, of which the tensors must be safetensors.
        RepositoryNotFoundError, ...: The Hub's own words for what cannot be had from it.
    """
    folder = Path(adapter).expanduser()
    if not folder.exists() and str(adapter).count("/") == 1:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(adapter), allow_patterns=[_CONFIG, _TENSORS, TEMPLATE_FILE]))
    for name in (_CONFIG, _TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{str(adapter)!r} is no folder of a LoRA: it has no {name}.")
    return folder


def with_adapter(settings: Settings, folder: Path, source: str) -> tuple[Settings, str]:
    """Return the settings with the rank, alpha and layers of an adapter, and the name of the model that it was trained on.

    Args:
        settings: What else counts.
        folder: Of the adapter.
        source: Folder or Hub id of the model that it is to be put on.

    Raises:
        ValueError: It was trained on another model, or is no plain LoRA.
    """
    from peft import LoraConfig, PeftConfig
    from safetensors import safe_open

    config, plain = PeftConfig.from_pretrained(str(folder)), LoraConfig()
    if not isinstance(config, LoraConfig):
        raise ValueError(f"the adapter in {str(folder)!r} is no LoRA but PEFT's {type(config).__name__}.")
    if not isinstance(config.init_lora_weights, str) or config.init_lora_weights == "gaussian":
        config.init_lora_weights = True  # of no meaning once there are tensors; other words mean a changed base
    names = [field.name for field in dataclasses.fields(plain) if field.name not in _TAKEN_OR_NOTHING]
    unlike = [name for name in names if (getattr(config, name) or None) != (getattr(plain, name) or None)]
    if unlike:
        raise ValueError(
            f"the adapter in {str(folder)!r} is no plain LoRA ({', '.join(unlike)}). Merge it into its base model first "
            "(PEFT's merge_and_unload), save that, and name its folder as the model of the settings."
        )
    base = str(config.base_model_name_or_path)
    are_names = not (Path(base).exists() or Path(source).exists())
    if are_names and _plain_name(base) != _plain_name(source):
        raise ValueError(
            f"the adapter in {str(folder)!r} was trained on {base!r}, and is worth nothing on other weights: "
            f"settings = settings.replace(model={base!r})."
        )
    with safe_open(folder / _TENSORS, "pt") as file:
        layers = {name.partition(".lora_A")[0].rpartition(".")[2] for name in file.keys() if ".lora_A" in name}  # noqa: SIM118
    targets = settings.lora_target_modules
    targets = targets if layers == set(targets) else tuple(sorted(layers))
    return settings.replace(lora_rank=config.r, lora_alpha=int(config.lora_alpha), lora_target_modules=targets), base


def _plain_name(name: str) -> str:
    """Of a model on the Hub, without who offers it and Unsloth's marks of a copy in 4 bit."""
    return name.rpartition("/")[2].lower().removesuffix("-bnb-4bit").removesuffix("-unsloth")
