"""Text from a model, whichever engine writes it: the kit's loop on a CPU, vLLM, Unsloth or llama.cpp.

Not here: loading a model (`models`), and what its text is worth (`rewards`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core import open_door
from grpo_nb.generation.llama_cpp import LlamaCppError, answer, require_llama_cpp, thread_count
from grpo_nb.generation.samples import Completion
from grpo_nb.generation.vllm import drop_leftovers

if TYPE_CHECKING:
    from grpo_nb.generation.folded_lora import FoldedLora
    from grpo_nb.generation.sampling import generate, sample
    from grpo_nb.generation.shared_prompts import batch_obstacle, shared_prompt_logps, shared_prompt_obstacle

__getattr__, __dir__, __all__ = open_door(
    globals(),
    {
        "folded_lora": ("FoldedLora",),
        "sampling": ("generate", "sample"),
        "shared_prompts": ("batch_obstacle", "shared_prompt_logps", "shared_prompt_obstacle"),
    },
)
