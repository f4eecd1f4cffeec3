"""Is this the model that the settings speak of? In a notebook the settings cell is edited, and nothing is loaded again."""

from __future__ import annotations

from typing import Any

from grpo_nb.core.text import require_tokenizer
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.settings.number_types import cpu_number_type, number_type, number_type_of
from grpo_nb.settings.settings import Settings, require_settings

LOADED_WITH = ("model", "load_in_4bit", "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")
"""The settings that are fixed when a model is loaded; its number type and longest sequence are the others."""
_KEPT_ON = "grpo_nb_settings"


def note_settings(model: Any, settings: Settings) -> None:
    """Remember on a model what it was loaded with."""
    setattr(model, _KEPT_ON, settings)


def require_same_settings(model: Any, tokenizer: Any, settings: Settings) -> None:
    """Refuse settings that are not those of the model in hand, for the run would say what it did not do.

    A model that the kit did not load is compared as far as it tells: the LoRA's rank, alpha and layers.

    Raises:
        ValueError: What differs, and the line that loads the model again.
        TypeError: No model with a LoRA, no tokenizer, no settings, or one in the place of another.
    """
    require_settings(settings)
    if hasattr(model, "apply_chat_template") and hasattr(tokenizer, "parameters"):
        raise TypeError("model and tokenizer stand in each other's place: the model comes first.")
    require_tokenizer(tokenizer)
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        raise TypeError(f"the model ({type(model).__name__}) has no LoRA: model, tokenizer = gn.load_model(settings).")
    differences = _differences(model, adapters.get("default"), settings)
    if differences:
        told = "; ".join(f"{name} is {settled!r} and the model has {has!r}" for name, settled, has in differences)
        raise ValueError(
            f"the settings are not those of the model in hand: {told}. Load it again, "
            "model, tokenizer = gn.load_model(settings), or put the old value back into the settings."
        )


def _differences(model: Any, lora: Any, settings: Settings) -> list[tuple[str, Any, Any]]:
    """(setting, its value, what the model was loaded with)."""
    loaded: Settings | None = getattr(model, _KEPT_ON, None)
    if loaded is None:
        has = {"lora_rank": lora.r, "lora_alpha": lora.lora_alpha} if lora is not None else {}
    else:
        has = {name: getattr(loaded, name) for name in LOADED_WITH}
    found = [(name, getattr(settings, name), value) for name, value in has.items() if getattr(settings, name) != value]
    if loaded is None:
        return found
    if settings.dtype != loaded.dtype:
        gpu = find_gpu()
        asked = number_type(settings, gpu) if gpu is not None else cpu_number_type(settings.dtype)
        is_in = number_type_of(model, loaded, gpu)
        if asked.name != is_in.name:
            found.append(("dtype", asked.name, is_in.name))
    longest, room = (s.max_prompt_length + s.max_completion_length for s in (settings, loaded))
    if longest > room:
        found.append(("max_prompt_length + max_completion_length", longest, room))
    return found
