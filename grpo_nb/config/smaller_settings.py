"""Find smaller settings, for a plan that does not fit and after an out-of-memory error.

In both cases the same changes are tried in the same order.
"""

import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from grpo_nb.config.hardware import choose_dtype
from grpo_nb.config.memory import has_weight_copies
from grpo_nb.config.settings import Settings
from grpo_nb.machine.faults import VLLM_CACHE_TOO_SMALL, is_out_of_memory
from grpo_nb.machine.gpu import find_gpu

# Below this share the weights of a model hardly fit into vLLM's memory.
_MIN_VLLM_SHARE = 0.3
_MIN_COMPLETION_LENGTH = 64
# Pattern of a traceback line in `generate` or `_generate`. Training samples only through these
# functions (trl 1.15, transformers 5.17).
_SAMPLING_LINE_PATTERN = ", in _?generate\n"


class MemorySaving(NamedTuple):
    """A change to the settings that saves memory."""

    reason: str
    change: dict[str, Any]


def memory_savings(
    settings: Settings, *, is_on_gpu: bool, dtype: str, phase: str = ""
) -> Iterator[MemorySaving]:
    """Yield the changes that save memory, in the order in which to try them.

    Args:
        settings: Settings of the run.
        is_on_gpu: True if the run is on a GPU.
        dtype: Dtype of the run, from `choose_dtype`.
        phase: `loading`, `generation` or `training`. Changes that do not help there are left out.
    """
    micro_batch = settings.per_device_train_batch_size
    # With steps_per_generation set, half the micro-batch also means half the generation batch. That
    # might split a group.
    can_halve = micro_batch % 2 == 0 and not settings.extra.get("steps_per_generation")
    if can_halve and phase not in ("loading", "generation"):
        # bnpo averages over the tokens of one pass, so in smaller passes each token counts
        # differently.
        yield MemorySaving(
            "Activations grow with the completions of one pass. The step keeps its completions; "
            'only loss_type="bnpo" weighs their tokens a little differently.',
            {
                "per_device_train_batch_size": micro_batch // 2,
                "gradient_accumulation_steps": settings.gradient_accumulation_steps * 2,
            },
        )
    # In standby vLLM frees its cache while gradients are computed. The weights stay, because
    # training uses them too.
    vllm_takes_memory = is_on_gpu and settings.fast_inference and phase != "training"
    share = settings.gpu_memory_utilization
    if vllm_takes_memory and share > _MIN_VLLM_SHARE:
        yield MemorySaving(
            "vLLM takes its share at once, and the remaining memory is too little for the rest.",
            {"gpu_memory_utilization": max(round(share - 0.1, 3), _MIN_VLLM_SHARE)},
        )
    if is_on_gpu and not settings.load_in_4bit and phase != "generation":
        yield MemorySaving(
            "In 4 bit the weights need about a third of the memory.",
            {"load_in_4bit": True},
        )
    has_copies = has_weight_copies(settings, is_on_gpu=is_on_gpu, dtype=dtype)
    if has_copies and phase != "loading":
        yield MemorySaving(
            "Sampling with shared prompts holds two copies of the weights. Without them the "
            "training stays the same, but each step takes longer.",
            {"shared_prompts": False},
        )
    length = settings.max_completion_length
    if length > _MIN_COMPLETION_LENGTH and phase != "loading":
        yield MemorySaving(
            "Memory grows with the length of the completions.",
            {"max_completion_length": max(length // 2, _MIN_COMPLETION_LENGTH)},
        )
    if vllm_takes_memory:
        yield MemorySaving(
            "Without vLLM, the memory of vLLM itself is free, but generation is slower.",
            {"fast_inference": False},
        )


def line_to_write(change: Mapping[str, Any]) -> str:
    """Return the line that changes settings.

    >>> line_to_write({"max_steps": 5})
    'settings = settings.replace(max_steps=5)'
    """
    keywords = ", ".join(f"{name}={value!r}" for name, value in change.items())
    return f"settings = settings.replace({keywords})"


def out_of_memory_advice(
    error: BaseException, settings: Settings, *, model: Any = None, is_loading: bool = False
) -> str | None:
    """Return advice after an out-of-memory error: the setting to lower, and the line to write.

    Args:
        error: The error. Its causes are checked too.
        settings: Settings of the failed run. With `fast_inference`, vLLM was running.
        model: The loaded model. On a CPU, its dtype takes precedence over the settings.
        is_loading: True if the model was being loaded.

    Returns:
        The advice, or None for any other error and for vLLM's own "too few cache blocks", whose
        message already gives the fix.

    >>> "per_device_train_batch_size=8" in out_of_memory_advice(MemoryError(), Settings())
    True
    """
    # The text contains the tracebacks of the causes too.
    text = "".join(traceback.format_exception(error)).lower()
    if not is_out_of_memory(error) or re.search(VLLM_CACHE_TOO_SMALL, text):
        return None
    phase = "loading" if is_loading else "training"
    # Only the traceback shows in which phase of a step an error was raised.
    if not is_loading and re.search(_SAMPLING_LINE_PATTERN, text):
        phase = "generation"
    gpu = find_gpu()
    dtype = choose_dtype(settings, gpu, model).name
    saving = next(
        memory_savings(settings, is_on_gpu=gpu is not None, dtype=dtype, phase=phase), None
    )
    advice = "No setting of this run is left to lower. Take a smaller model"
    if saving is not None:
        advice = f"{saving.reason} Write {line_to_write(saving.change)}"
    return (
        f"Out of memory during {phase}. {advice}, in a fresh kernel: the failed one still holds "
        "its memory."
    )
