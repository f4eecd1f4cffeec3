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
        TypeError: No model with a LoRA, no tokenizer, or no settings.
    """
    require_settings(settings)
    require_tokenizer(tokenizer)
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        raise TypeError(f"the model ({type(model).__name__}) has no LoRA: model, tokenizer = gn.load_model(settings).")
    settings, loaded = as_loaded(model, settings), getattr(model, _KEPT_ON, None)
    if loaded is None:
        lora = next(iter(adapters.values()))
        has: dict[str, Any] = {"lora_rank": lora.r, "lora_alpha": lora.lora_alpha}
    else:
        has = {name: getattr(loaded, name) for name in ("model", "load_in_4bit", "lora_dropout", *SHAPE)}
    asked = {name: getattr(settings, name) for name in has}
    if loaded is not None and settings.dtype != loaded.dtype:
        gpu = find_gpu()
        asked["dtype"], has["dtype"] = number_type(settings, gpu).name, number_type_of(model, loaded, gpu).name
    if loaded is not None and _longest(settings) > _longest(loaded):
        what = "max_prompt_length + max_completion_length"
        asked[what], has[what] = _longest(settings), _longest(loaded)
    told = [f"{name} is {asked[name]!r} and the model has {has[name]!r}" for name in has if asked[name] != has[name]]
    if told:
        raise ValueError(
            f"the settings are not those of the model in hand: {'; '.join(told)}. Load it again, "
            "model, tokenizer = gn.load_model(settings), or put the old value back into the settings."
        )


def _longest(settings: Settings) -> int:
    return settings.max_prompt_length + settings.max_completion_length
