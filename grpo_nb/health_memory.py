"""What to do after out-of-memory: the settings to write, in the order in which they cost the least."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_nb.config import Settings
from grpo_nb.health_alerts import Alert

_SIGNS = (
    "out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed",
    "unable to allocate", "no available memory for the cache blocks", "failed to allocate", "not enough memory",
)  # fmt: skip
_VLLM_IS_SHORT = ("cache blocks", "kv cache")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error, or one that it came from, is a lack of memory of the machine or of its GPU."""
    return any(
        isinstance(cause, MemoryError)
        # What a reward says of a completion is not the machine's word.
        or (isinstance(cause, (RuntimeError, OSError, ValueError)) and any(sign in _said(cause) for sign in _SIGNS))
        for cause in _chain(error)
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".lower()


def explain_out_of_memory(error: BaseException, settings: Settings, *, step: int = 0) -> Alert | None:
    """Say which setting to lower after an out-of-memory error, with the line to paste; None for any other error.

    The order is by cost. Smaller passes with more accumulation compute the same step in less memory. vLLM's share comes
    next, then what changes the training: 4 bit, shorter completions, a smaller group.

    Args:
        error: What was raised. Errors that it came from are looked at too.
        settings: Of the run that failed.
        step: Where it failed, if known.

    >>> explain_out_of_memory(RuntimeError("CUDA out of memory"), Settings()).evidence["change"]
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    >>> explain_out_of_memory(ValueError("no"), Settings()) is None
    True
    """
    if not is_out_of_memory(error):
        return None
    said = " ".join(map(_said, _chain(error)))
    change, why = _change(settings, vllm_is_short=any(sign in said for sign in _VLLM_IS_SHORT))
    written = ", ".join(f"{name}={value!r}" for name, value in change.items())
    if change:
        advice = f"settings = settings.replace({written}), in a fresh kernel: the failed one still holds its memory."
    else:
        advice = "Take a smaller model, or a machine with more memory: every setting is at its least already."
    return Alert(
        rule="out_of_memory", severity="critical", step=step,
        message=f"Out of memory with {_state(settings)}.", why=why, advice=advice,
        evidence={"change": change, "error": f"{type(error).__name__}: {error}"[:500]},
    )  # fmt: skip


def _state(settings: Settings) -> str:
    names = ["per_device_train_batch_size", "num_generations", "max_completion_length"]
    if settings.fast_inference:
        names.append("gpu_memory_utilization")
    return ", ".join(f"{name} {getattr(settings, name)}" for name in names)


def _change(settings: Settings, *, vllm_is_short: bool) -> tuple[dict[str, object], str]:
    if settings.fast_inference and vllm_is_short and settings.gpu_memory_utilization < 0.9:
        more = round(min(0.9, settings.gpu_memory_utilization + 0.1), 2)
        return {
            "gpu_memory_utilization": more
        }, "vLLM's share of the memory has no room for one sequence beside the model."
    size = settings.per_device_train_batch_size
    if size > 1:
        # The largest divisor, so that batch times accumulation stays what it is.
        half = max(d for d in range(1, size // 2 + 1) if size % d == 0)
        change = {
            "per_device_train_batch_size": half,
            "gradient_accumulation_steps": settings.gradient_accumulation_steps * size // half,
        }
        return (
            change,
            "Activations grow with the completions of one pass. The same step in smaller passes gives the same result.",
        )
    if settings.fast_inference and settings.gpu_memory_utilization > 0.3:
        less = round(max(0.3, settings.gpu_memory_utilization - 0.1), 2)
        return {
            "gpu_memory_utilization": less
        }, "vLLM keeps its share for itself, and what is left was too little for training."
    if not settings.load_in_4bit:
        return {
            "load_in_4bit": True
        }, "The weights in 16 bit are the largest part that is left; in 4 bit they take about a third."
    if settings.max_completion_length > 64:
        return {
            "max_completion_length": settings.max_completion_length // 2
        }, "Memory grows with the length of the completions."
    if settings.num_generations > 2 and settings.batch_size % (settings.num_generations // 2) == 0:
        return {"num_generations": settings.num_generations // 2}, "Fewer completions are generated at once."
    return {}, "No setting of this run is left to lower."
