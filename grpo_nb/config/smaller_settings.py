"""Name the setting to lower first: for a plan that does not fit, and after out-of-memory."""

from collections.abc import Mapping
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.problems import error_chain
from grpo_nb.machine.faults import is_out_of_memory, searchable_text
from grpo_nb.machine.gpu import find_gpu

# Below this share the weights of a model hardly fit into vLLM's memory.
_LEAST_SHARE_OF_VLLM = 0.3
_LEAST_COMPLETION_LENGTH = 64


def first_saving(settings: Settings, *, is_gpu: bool, is_loading: bool = False) -> str:
    """Return the change that saves memory and changes the training least; empty if there is none.

    Args:
        settings: Settings of the run.
        is_gpu: True if the run is on a GPU.
        is_loading: If True, leave out changes that do not help while the model is loaded.
    """
    micro = settings.per_device_train_batch_size
    passes = settings.gradient_accumulation_steps
    # With steps_per_generation, halving the pass also halves what is generated at a time, and might
    # split a group.
    can_halve = micro % 2 == 0 and not settings.extra.get("steps_per_generation")
    if can_halve and not is_loading:
        change = {
            "per_device_train_batch_size": micro // 2,
            "gradient_accumulation_steps": passes * 2,
        }
        # The loss bnpo divides by the tokens of each pass.
        return (
            "Activations grow with the completions of one pass. The step keeps its completions; "
            'only loss_type="bnpo" weighs their tokens a little differently. Write '
            f"{replace_line(change)}"
        )
    share = settings.gpu_memory_utilization
    if is_gpu and settings.fast_inference and share > _LEAST_SHARE_OF_VLLM:
        smaller_share = max(round(share - 0.1, 3), _LEAST_SHARE_OF_VLLM)
        return (
            "vLLM takes its share at once, and what is left was too little for the rest. Write "
            f"{replace_line({'gpu_memory_utilization': smaller_share})}"
        )
    if is_gpu and not settings.load_in_4bit:
        return (
            "The weights are the largest part left. In 4 bit they take about a third. Write "
            f"{replace_line({'load_in_4bit': True})}"
        )
    length = settings.max_completion_length
    if length > _LEAST_COMPLETION_LENGTH and not is_loading:
        shorter = max(length // 2, _LEAST_COMPLETION_LENGTH)
        return (
            "Memory grows with the length of the completions. Write "
            f"{replace_line({'max_completion_length': shorter})}"
        )
    return ""


def replace_line(change: Mapping[str, Any]) -> str:
    """Return the line that changes settings.

    >>> replace_line({"max_steps": 5})
    'settings = settings.replace(max_steps=5)'
    """
    keywords = ", ".join(f"{name}={value!r}" for name, value in change.items())
    return f"settings = settings.replace({keywords})"


def memory_advice(
    error: BaseException, settings: Settings, *, is_loading: bool = False
) -> str | None:
    """Return which setting to lower after an out-of-memory error, with the line to write.

    Args:
        error: The error; those that it came from are looked at too.
        settings: Settings of the run that failed; with `fast_inference`, vLLM was running.
        is_loading: True if the model was being loaded.

    Returns:
        None for any other error, and for vLLM's own "too few cache blocks", whose message already
        gives the fix.

    >>> "per_device_train_batch_size=8" in memory_advice(MemoryError(), Settings())
    True
    """
    text = " ".join(map(searchable_text, error_chain(error)))
    if not is_out_of_memory(error) or "cache blocks" in text or "kv cache" in text:
        return None
    saving = first_saving(settings, is_gpu=find_gpu() is not None, is_loading=is_loading)
    advice = saving or "No setting of this run is left to lower. Take a smaller model"
    when = "while loading" if is_loading else "in training"
    return (
        f"Out of memory {when}. {advice}, in a fresh kernel: the failed one still holds its memory."
    )
