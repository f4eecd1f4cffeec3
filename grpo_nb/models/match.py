"""Is this the model that the settings speak of? In a notebook the settings cell is edited, and nothing is loaded again."""

from __future__ import annotations

from typing import Any

from grpo_nb.core.words import require_tokenizer
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.adapter import SHAPE
from grpo_nb.settings.number_types import number_type, number_type_of
from grpo_nb.settings.settings import Settings

_SETTINGS, _SHAPE = "grpo_nb_settings", "grpo_nb_shape"
_LONGEST = "max_prompt_length + max_completion_length"


def note_settings(model: Any, settings: Settings, *, is_shaped_by_adapter: bool) -> None:
    """Remember on a model what it was loaded with, and whether an adapter that it goes on from decided its LoRA's shape."""
    setattr(model, _SETTINGS, settings)
    setattr(model, _SHAPE, {name: getattr(settings, name) for name in SHAPE} if is_shaped_by_adapter else {})


def as_loaded(model: Any, settings: Settings) -> Settings:
    """The settings; for a model that goes on from somebody's adapter with the shape of that, which wins."""
    return settings.replace(**getattr(model, _SHAPE, {}))


def require_same_settings(model: Any, tokenizer: Any, settings: Settings) -> None:
    """Refuse settings that are not those of the model in hand, for the run would say what it did not do.

    A model that the kit did not load tells too little to be compared.

    Raises:
        ValueError: What differs, and the line that loads the model again.
        TypeError: The model has no LoRA: all of it would be trained.
    """
    require_tokenizer(tokenizer)
    if not getattr(model, "peft_config", None):
        raise TypeError(f"the model ({type(model).__name__}) has no LoRA: model, tokenizer = gn.load_model(settings).")
    settings, loaded = as_loaded(model, settings), getattr(model, _SETTINGS, None)
    if loaded is None:
        return
    asked, has = (
        {name: getattr(these, name) for name in ("model", "load_in_4bit", "lora_dropout", *SHAPE)}
        for these in (settings, loaded)
    )
    if settings.dtype != loaded.dtype:
        gpu = find_gpu()
        asked["dtype"], has["dtype"] = number_type(settings, gpu).name, number_type_of(model, loaded, gpu).name
    lengths = [these.max_prompt_length + these.max_completion_length for these in (settings, loaded)]
    if lengths[0] > lengths[1]:
        asked[_LONGEST], has[_LONGEST] = lengths
    told = [f"{name} is {asked[name]!r} and the model has {has[name]!r}" for name in has if asked[name] != has[name]]
    if told:
        raise ValueError(
            f"the settings are not those of the model in hand: {'; '.join(told)}. Load it again, "
            "model, tokenizer = gn.load_model(settings), or put the old value back into the settings."
        )
