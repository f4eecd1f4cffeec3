"""What to do after out-of-memory: the settings to write, in the order in which they cost the least."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_nb.machine.faults import error_chain, is_out_of_memory, place_of
from grpo_nb.settings.memory import is_standby, smaller_settings
from grpo_nb.settings.settings import Settings

_WEIGHTS_ALONE = "The weights in 4 bit do not fit the memory that is free."
_VLLM_IS_SHORT = ("cache blocks", "kv cache")


@dataclass(frozen=True)
class MemoryAdvice:
    """What ran out of memory, why, and what to write."""

    message: str
    why: str
    advice: str
    change: Mapping[str, object]
    """The settings to write; empty where every setting is at its least already."""
    place: str | None
    """`loading`, `generation`, `the loss`, or None where it is not known."""


def memory_advice(error: BaseException, settings: Settings, *, place: str | None = None) -> MemoryAdvice | None:
    """Say which setting to lower after an out-of-memory error, with the line to paste; None for any other error.

    The order is by cost. In the loss, smaller passes with more accumulation compute the same step in less memory. vLLM's share
    comes next, then what changes the training: 4 bit, shorter completions, a smaller group. While loading and in generation
    smaller passes do not help, and the order begins behind them.

    Args:
        error: What was raised. Errors that it came from are looked at too.
        settings: Of the run that failed.
        place: `loading`, `generation` or `the loss`; by default what the error's traceback says, if it says it.

    >>> memory_advice(RuntimeError("CUDA out of memory"), Settings()).change
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    """
    if not is_out_of_memory(error):
        return None
    said = " ".join(str(cause).lower() for cause in error_chain(error))
    place = place or place_of(error)
    is_vllm_short = any(sign in said for sign in _VLLM_IS_SHORT)
    ways = _FOR_VLLM if is_vllm_short else _BY_PLACE.get(place or "", _BY_PLACE["the loss"])
    nothing_left = _WEIGHTS_ALONE if place == "loading" else "No setting of this run is left to lower."
    change, why = _first_change(settings, ways) or ({}, nothing_left)
    if is_vllm_short:
        why = f"vLLM's share of the memory has no room for one sequence beside the model. {why}"
    written = ", ".join(f"{name}={value!r}" for name, value in change.items())
    if change:
        advice = f"settings = settings.replace({written}), in a fresh kernel: the failed one still holds its memory."
    else:
        advice = "Take a smaller model, or a machine with more memory: every setting is at its least already."
    where = {"loading": " while loading", "generation": " in generation", "the loss": " in the loss"}
    names = ["per_device_train_batch_size", "num_generations", "max_completion_length"]
    names += ["gpu_memory_utilization"] if settings.fast_inference else []
    state = ", ".join(f"{name} {getattr(settings, name)}" for name in names)
    message = f"Out of memory{where.get(place or '', '')} with {state}."
    return MemoryAdvice(message=message, why=why, advice=advice, change=change, place=place)


def _first_change(settings: Settings, ways: Iterable[str]) -> tuple[dict[str, object], str] | None:
    share = settings.gpu_memory_utilization
    kinds = smaller_settings(settings) | {
        "larger share": [(0, {"gpu_memory_utilization": round(min(0.9, share + 0.1), 3)})] if share < 0.9 else [],
        "no vLLM": [(0, {"fast_inference": False})] if settings.fast_inference else [],
        # In standby it has given its cache back by then.
        "share in training": [] if is_standby() else smaller_settings(settings)["share"],
    }
    for way in ways:
        for _, change in kinds[way][:1]:
            with contextlib.suppress(ValueError):  # a group that would be cut
                settings.replace(**change)
                return change, _WHY[way]
    return None


_WHY = {
    "passes": "Activations grow with the completions of one pass. The same step in smaller passes gives the same result.",
    "larger share": "A larger one has.",
    "share": "vLLM takes its share at once, and what is left was too little for the rest.",
    "share in training": "vLLM keeps its share for itself, and what is left was too little for training.",
    "no vLLM": "Without vLLM the memory it takes for itself is free; generation is slower.",
    "bits": "The weights in 16 bit are the largest part that is left; in 4 bit they take about a third.",
    "length": "Memory grows with the length of the completions.",
    "group": "Fewer completions are generated at once.",
}
# The cheapest first.
_FOR_VLLM = ("larger share", "bits", "length", "no vLLM")
_BY_PLACE = {
    "loading": ("bits", "share", "no vLLM"),
    "generation": ("share", "length", "group"),
    "the loss": ("passes", "share in training", "bits", "length", "group"),
}
