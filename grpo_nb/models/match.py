"""Is this the model that the settings speak of? In a notebook the settings cell is edited, and nothing is loaded again."""

from __future__ import annotations

from typing import Any

from grpo_nb.core.text import require_tokenizer
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.adapter import SHAPE
from grpo_nb.settings.number_types import number_type, number_type_of
from grpo_nb.settings.settings import Settings, require_settings

_KEPT_ON, _GOES_ON_FROM = "grpo_nb_settings", "grpo_nb_adapter"


def note_settings(model: Any, settings: Settings, adapter: str | None = None) -> None:
    """Remember on a model what it was loaded with, and the adapter that it goes on from."""
    setattr(model, _KEPT_ON, settings)
    setattr(model, _GOES_ON_FROM, adapter)


def as_loaded(model: Any, settings: Settings) -> Settings:
    """The settings; for a model that goes on from somebody's adapter with the shape of that, which wins."""
    if getattr(model, _GOES_ON_FROM, None) is None:
        return settings
    return settings.replace(**{name: getattr(getattr(model, _KEPT_ON), name) for name in SHAPE})


def require_same_settings(model: Any, tokenizer: Any, settings: Settings) -> None:
    """Refuse settings that are not those of the model in hand, for the run would say what it did not do.

    A model that the kit did not load is compared as far as it tells: the LoRA's rank and alpha.

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
    asked, has = _compared(model, adapters.get("default"), as_loaded(model, settings))
    told = "; ".join(
        f"{name} is {asked[name]!r} and the model has {has[name]!r}" for name in has if asked[name] != has[name]
    )
    if told:
        raise ValueError(
            f"the settings are not those of the model in hand: {told}. Load it again, "
            "model, tokenizer = gn.load_model(settings), or put the old value back into the settings."
        )


def _compared(model: Any, lora: Any, settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is fixed when a model is loaded: as the settings have it, and as the model has it."""
    loaded: Settings | None = getattr(model, _KEPT_ON, None)
    if loaded is None:
        has = {"lora_rank": lora.r, "lora_alpha": lora.lora_alpha} if lora is not None else {}
        return settings.to_dict(), has
    names = ("model", "load_in_4bit", "lora_dropout", *SHAPE)
    asked, has = ({name: getattr(of, name) for name in names} for of in (settings, loaded))
    if settings.dtype != loaded.dtype:
        gpu = find_gpu()
        asked["dtype"], has["dtype"] = number_type(settings, gpu).name, number_type_of(model, loaded, gpu).name
    longest, room = (of.max_prompt_length + of.max_completion_length for of in (settings, loaded))
    if longest > room:
        what = "max_prompt_length + max_completion_length"
        asked[what], has[what] = longest, room
    return asked, has
