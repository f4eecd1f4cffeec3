"""A model with its LoRA, and which model it is. Unsloth is imported here, before all that it patches.

Not here: what the model writes (`generation`), and how it changes (`training`).
"""

from grpo_nb.models.embedded import cache_root
from grpo_nb.models.identity import (
    base_identity,
    keep_template,
    template_of,
    tokenizer_for,
    weight_files,
    weights_identity,
)
from grpo_nb.models.load import generation_of, has_engine, load_adapter, load_model, longest_of, resolve_model
from grpo_nb.models.match import LOADED_WITH, require_same_settings
from grpo_nb.models.unsloth import import_unsloth, tell_unsloth, without_loading_bars

__all__ = [
    "LOADED_WITH",
    "base_identity",
    "cache_root",
    "generation_of",
    "has_engine",
    "import_unsloth",
    "keep_template",
    "load_adapter",
    "load_model",
    "longest_of",
    "require_same_settings",
    "resolve_model",
    "tell_unsloth",
    "template_of",
    "tokenizer_for",
    "weight_files",
    "weights_identity",
    "without_loading_bars",
]
