"""Record how a model was loaded, and check that settings are still those of the model.

In a notebook, a user may edit the settings and forget to load the model again.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from grpo_nb.config.settings import Settings
from grpo_nb.tasks.prompts import require_chat_template

# Settings that are fixed when a model is loaded and change the trained weights.
_FIXED_AT_LOADING = (
    "model",
    "load_in_4bit",
    "dtype",
    "lora_rank",
    "lora_alpha",
    "lora_target_modules",
    "lora_dropout",
)


@dataclass(frozen=True)
class LoadRecord:
    """Record of one call of `load_model`."""

    settings: Settings
    """Settings that the model was loaded with."""
    vllm_obstacle: str | None
    """Reason why vLLM does not generate; None if it does."""


#: The record of each model that `load_model` returned. It is dropped with its model.
LOAD_RECORDS: WeakKeyDictionary[Any, LoadRecord] = WeakKeyDictionary()


def require_same_settings(model: Any, tokenizer: Any, settings: Settings) -> None:
    """Refuse settings that differ from those of the loaded model.

    Otherwise the run would record settings that it does not use. A model that the kit did not load
    is not compared.

    Raises:
        ValueError: Settings differ. The message gives names, values and how to load the model.
        TypeError: The model has no LoRA, so all of it would be trained.
    """
    require_chat_template(tokenizer)
    if not getattr(model, "peft_config", None):
        raise TypeError(
            f"the model ({type(model).__name__}) has no LoRA, so all of it would be trained. "
            "Write model, tokenizer = gn.load_model(settings)."
        )
    record = LOAD_RECORDS.get(model)
    if record is None:
        return
    loaded = record.settings
    differences = []
    for name in _FIXED_AT_LOADING:
        value = getattr(settings, name)
        loaded_value = getattr(loaded, name)
        if value != loaded_value:
            differences.append(f"{name} is {value!r} and the model has {loaded_value!r}")
    # A model takes shorter sequences than it was loaded for. vLLM would silently truncate longer
    # ones.
    if settings.longest_sequence > loaded.longest_sequence:
        differences.append(
            f"max_prompt_length + max_completion_length is {settings.longest_sequence} and the "
            f"model has {loaded.longest_sequence}"
        )
    if differences:
        raise ValueError(
            f"the settings are not those of the loaded model: {'; '.join(differences)}. Put the "
            "old values back, or load the model again: model, tokenizer = gn.load_model(settings). "
            "If it was loaded with adapter=, pass the same adapter= again."
        )
