"""Is this the model that the settings speak of? In a notebook the settings cell is edited, and nothing is loaded again."""

from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.chat import require_tokenizer

# What an adapter decides that a training goes on from, and what else a loaded model cannot change.
SHAPE = ("lora_rank", "lora_alpha", "lora_target_modules")
_FIXED = ("model", "load_in_4bit", "dtype", "lora_dropout", *SHAPE)
_SETTINGS, _SHAPE = "grpo_nb_settings", "grpo_nb_shape"


def note_settings(model: Any, settings: Settings, *, is_shaped_by_adapter: bool) -> None:
    """Remember on a model what it was loaded with, and whether an adapter that it goes on from decided its LoRA's shape."""
    setattr(model, _SETTINGS, settings)
    setattr(
        model,
        _SHAPE,
        {name: getattr(settings, name) for name in SHAPE} if is_shaped_by_adapter else {},
    )


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
        raise TypeError(
            f"the model ({type(model).__name__}) has no LoRA: model, tokenizer = gn.load_model(settings)."
        )
    settings = as_loaded(model, settings)
    loaded = getattr(model, _SETTINGS, settings)
    pairs = {name: (getattr(settings, name), getattr(loaded, name)) for name in _FIXED}
    told = [
        f"{name} is {asked!r} and the model has {has!r}"
        for name, (asked, has) in pairs.items()
        if asked != has
    ]
    longest, room = (
        these.max_prompt_length + these.max_completion_length for these in (settings, loaded)
    )
    if longest > room:
        told.append(
            f"max_prompt_length + max_completion_length is {longest} and the model has {room}"
        )
    if told:
        raise ValueError(
            f"the settings are not those of the model in hand: {'; '.join(told)}. Load it again, "
            "model, tokenizer = gn.load_model(settings), or put the old value back into the settings."
        )
