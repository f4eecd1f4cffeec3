"""What to do after out-of-memory: the settings to write, in the order in which they cost the least."""

from __future__ import annotations

import os

from grpo_nb.config import Settings
from grpo_nb.gpu_errors import error_chain, place_of
from grpo_nb.health_alerts import Alert

_SIGNS = (
    "out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed",
    "unable to allocate", "no available memory for the cache blocks", "failed to allocate", "not enough memory",
    "larger than the available kv cache memory", "tokens that can be stored in kv cache",
)  # fmt: skip
_VLLM_IS_SHORT = ("cache blocks", "kv cache")


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error, or one that it came from, is a lack of memory of the machine or of its GPU."""
    return any(
        isinstance(cause, MemoryError)
        # What a reward says of a completion is not the machine's word.
        or (isinstance(cause, (RuntimeError, OSError, ValueError)) and any(sign in _said(cause) for sign in _SIGNS))
        for cause in error_chain(error)
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".lower()


def explain_out_of_memory(
    error: BaseException, settings: Settings, *, step: int = 0, place: str | None = None
) -> Alert | None:
    """Say which setting to lower after an out-of-memory error, with the line to paste; None for any other error.

    The order is by cost. In the loss, smaller passes with more accumulation compute the same step in less memory. vLLM's share
    comes next, then what changes the training: 4 bit, shorter completions, a smaller group. While loading and in generation
    smaller passes do not help, and the order begins behind them.

    Args:
        error: What was raised. Errors that it came from are looked at too.
        settings: Of the run that failed.
        step: Where it failed, if known.
        place: `loading`, `generation` or `the loss`; by default what the error's traceback says, if it says it.

    >>> explain_out_of_memory(RuntimeError("CUDA out of memory"), Settings()).evidence["change"]
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    >>> explain_out_of_memory(ValueError("no"), Settings()) is None
    True
    """
    if not is_out_of_memory(error):
        return None
    said = " ".join(map(_said, error_chain(error)))
    place = place or place_of(error)
    if any(sign in said for sign in _VLLM_IS_SHORT):
        change, why = _more_for_vllm(settings)
    elif place == "loading":
        change, why = _change_for_loading(settings)
    elif place == "generation":
        change, why = _change_for_generation(settings)
    else:
        change, why = _change(settings)
    written = ", ".join(f"{name}={value!r}" for name, value in change.items())
    if change:
        advice = f"settings = settings.replace({written}), in a fresh kernel: the failed one still holds its memory."
        if "gpu_memory_utilization" in change and _standby_decides():
            why += (
                " For it to count, write before the first import: import os; "
                'os.environ["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"] = "1". Otherwise Unsloth takes a share of its own.'
            )
    else:
        advice = "Take a smaller model, or a machine with more memory: every setting is at its least already."
    where = {"loading": " while loading", "generation": " in generation", "the loss": " in the loss"}.get(
        place or "", ""
    )
    return Alert(
        rule="out_of_memory", severity="critical", step=step, why=why, advice=advice,
        message=f"Out of memory{where} with {_state(settings)}.",
        evidence={"change": change, "place": place, "error": f"{type(error).__name__}: {error}"[:500]},
    )  # fmt: skip


def _state(settings: Settings) -> str:
    names = ["per_device_train_batch_size", "num_generations", "max_completion_length"]
    if settings.fast_inference:
        names.append("gpu_memory_utilization")
    return ", ".join(f"{name} {getattr(settings, name)}" for name in names)


def _standby_decides() -> bool:
    """Whether Unsloth's standby replaces `gpu_memory_utilization` (unsloth_zoo/vllm_utils.py, load_vllm)."""
    is_on = os.environ.get("UNSLOTH_VLLM_STANDBY", "0") != "0"
    return is_on and os.environ.get("UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE", "0") == "0"


def _more_for_vllm(settings: Settings) -> tuple[dict[str, object], str]:
    why = "vLLM's share of the memory has no room for one sequence beside the model."
    if settings.gpu_memory_utilization < 0.9 and not _standby_decides():
        return {"gpu_memory_utilization": round(min(0.9, settings.gpu_memory_utilization + 0.1), 2)}, why
    if not settings.load_in_4bit:
        return {"load_in_4bit": True}, f"{why} In 4 bit the weights take about a third, and the rest is for sequences."
    return _shorter(settings) or ({"fast_inference": False}, why)


def _change_for_loading(settings: Settings) -> tuple[dict[str, object], str]:
    if not settings.load_in_4bit:
        return {"load_in_4bit": True}, "The weights did not fit; in 4 bit they take about a third."
    if settings.fast_inference:
        return _less_for_vllm(settings) or (
            {"fast_inference": False}, "Without vLLM the memory it takes for itself is free; generation is slower."
        )  # fmt: skip
    return {}, "The weights in 4 bit do not fit the memory that is free."


def _change_for_generation(settings: Settings) -> tuple[dict[str, object], str]:
    if settings.fast_inference:
        found = _less_for_vllm(settings)
        if found:
            return found
    return _shorter(settings) or _fewer(settings) or ({}, "No setting of this run is left to lower.")


def _less_for_vllm(settings: Settings) -> tuple[dict[str, object], str] | None:
    if settings.gpu_memory_utilization <= 0.3:
        return None
    less = round(max(0.3, settings.gpu_memory_utilization - 0.1), 2)
    return {
        "gpu_memory_utilization": less
    }, "vLLM takes its share at once, and what is left was too little for the rest."


def _shorter(settings: Settings) -> tuple[dict[str, object], str] | None:
    if settings.max_completion_length <= 64:
        return None
    change = {"max_completion_length": settings.max_completion_length // 2}
    return change, "Memory grows with the length of the completions."


def _fewer(settings: Settings) -> tuple[dict[str, object], str] | None:
    half = settings.num_generations // 2
    if half < 2 or settings.batch_size % half:
        return None
    return {"num_generations": half}, "Fewer completions are generated at once."


def _change(settings: Settings) -> tuple[dict[str, object], str]:
    size = settings.per_device_train_batch_size
    if size > 1:
        # The largest divisor, so that batch times accumulation stays what it is.
        half = max(d for d in range(1, size // 2 + 1) if size % d == 0)
        change = {
            "per_device_train_batch_size": half,
            "gradient_accumulation_steps": settings.gradient_accumulation_steps * size // half,
        }
        why = (
            "Activations grow with the completions of one pass. The same step in smaller passes gives the same result."
        )
        return change, why
    if settings.fast_inference and settings.gpu_memory_utilization > 0.3 and not _standby_decides():
        less = round(max(0.3, settings.gpu_memory_utilization - 0.1), 2)
        why = "vLLM keeps its share for itself, and what is left was too little for training."
        return {"gpu_memory_utilization": less}, why
    if not settings.load_in_4bit:
        why = "The weights in 16 bit are the largest part that is left; in 4 bit they take about a third."
        return {"load_in_4bit": True}, why
    return _shorter(settings) or _fewer(settings) or ({}, "No setting of this run is left to lower.")
