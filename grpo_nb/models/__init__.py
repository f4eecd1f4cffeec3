"""A model with its LoRA, and which model it is. Unsloth is imported here, before all that it patches.

Not here: what the model writes (`generation`), and how it changes (`training`).
"""

from grpo_nb.core import open_door
from grpo_nb.models.embedded import cache_root
from grpo_nb.models.identity import (
    base_identity,
    keep_template,
    require_trained_on,
    template_of,
    tokenizer_for,
    weight_files,
    weights_here,
    weights_identity,
)
from grpo_nb.models.load import (
    generation_of,
    hand_copies,
    has_engine,
    load_adapter,
    load_model,
    longest_of,
    resolve_model,
    rest_engine,
    save_adapter,
)
from grpo_nb.models.match import require_same_settings
from grpo_nb.models.unsloth import import_unsloth, tell_unsloth, without_loading_bars

__getattr__, __dir__, __all__ = open_door(globals())
