"""Settings that need less memory, one ladder of them: for a plan that does not fit, and after out-of-memory."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.memory import is_standby
from grpo_nb.config.settings import Settings
from grpo_nb.machine.faults import error_chain, is_out_of_memory
from grpo_nb.machine.gpu import find_gpu

# The ladder: what can be lowered, and why it helps; the cheapest first, for smaller passes train the same.
_LADDER = {
    "passes": "Activations grow with the completions of one pass. The same step in smaller passes gives the same result.",
    "share": "vLLM takes its share at once, and what is left was too little for the rest.",
    "bits": "The weights in 16 bit are the largest part that is left; in 4 bit they take about a third.",
    "length": "Memory grows with the length of the completions.",
    "group": "Fewer completions are generated at once.",
    "no vLLM": "Without vLLM the memory it takes for itself is free; generation is slower.",
}
_USELESS = {"loading": ("passes", "length", "group"), "generation": ("passes", "bits")}
# Every sampling of a training goes through one of these functions (trl 1.15, transformers 5.17).
_SAMPLING = {"generate", "_generate"}


@dataclass(frozen=True)
class MemoryAdvice:
    """What ran out of memory, why, and what to write."""

    message: str
    why: str
    advice: str
    change: Mapping[str, object]
    """The settings to write; empty where every setting is at its least already."""
    place: str | None
    """`loading`, `generation`, or None where it is not known."""


def fitting_changes(
    settings: Settings, fits: Callable[[Settings], bool], *, is_gpu: bool
) -> dict[str, Any]:
    """The changes to settings that make `fits(settings)` true, or none: down the ladder, and back where it was not needed."""
    changed, undone = settings, []
    for kind in _ladder(is_gpu):
        before, changed = changed, _down(changed, kind, fits)
        undone.append((kind, _changes(changed, before)))
    for kind, back in reversed(undone):
        changed = _down(changed.replace(**back), kind, fits)
    return _changes(settings, changed) if fits(changed) else {}


def memory_advice(
    error: BaseException, settings: Settings, *, place: str | None = None
) -> MemoryAdvice | None:
    """Say which setting to lower after an out-of-memory error, with the line to paste.

    Args:
        error: What was raised. Errors that it came from are looked at too.
        settings: Of the run that failed.
        place: `loading` or `generation`; by default the latter where the error's traceback says so.

    Returns:
        None for any other error, and where vLLM's share is too small for it: that vLLM says itself.

    >>> memory_advice(RuntimeError("CUDA out of memory"), Settings()).change
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    """
    chain = list(error_chain(error))
    said = " ".join(f"{type(cause).__name__} {cause}".lower() for cause in chain)
    if not is_out_of_memory(error) or "cache blocks" in said or "kv cache" in said:
        return None
    called = {frame.name for cause in chain for frame in traceback.extract_tb(cause.__traceback__)}
    place = place or ("generation" if called & _SAMPLING else None)
    is_gpu = find_gpu() is not None or any(sign in said for sign in ("cuda", "cublas", "gpu"))
    useless = _USELESS.get(place, ("share",) if is_standby() else ())
    steps = ((kind, _smaller(settings, kind)) for kind in _ladder(is_gpu) if kind not in useless)
    kind, smaller = next((step for step in steps if step[1]), ("", settings))
    change, why = (
        _changes(settings, smaller),
        _LADDER.get(kind, "No setting of this run is left to lower."),
    )
    instead = replacing(change) if change else "Take a smaller model"
    advice = f"{instead}, in a fresh kernel: the failed one still holds its memory."
    where = {None: "", "loading": " while loading"}.get(place, f" in {place}")
    return MemoryAdvice(f"Out of memory{where}.", why, advice, change, place)


def replacing(change: Mapping[str, Any]) -> str:
    """The line that changes settings.

    >>> replacing({"max_steps": 5})
    'settings = settings.replace(max_steps=5)'
    """
    return f"settings = settings.replace({', '.join(f'{name}={value!r}' for name, value in change.items())})"


def _ladder(is_gpu: bool) -> list[str]:
    return [kind for kind in _LADDER if is_gpu or kind not in ("share", "bits", "no vLLM")]


def _down(settings: Settings, kind: str, fits: Callable[[Settings], bool]) -> Settings:
    """Settings with as many steps down of a kind as they need to fit, or as there are."""
    while not fits(settings) and (smaller := _smaller(settings, kind)):
        settings = smaller
    return settings


def _smaller(settings: Settings, kind: str) -> Settings | None:
    """Settings one step down of a kind, or None where there is none."""
    micro, length = settings.per_device_train_batch_size, settings.max_completion_length
    share, least = settings.gpu_memory_utilization, 0.3 if settings.fast_inference else 1.0
    parts = next((n for n in range(2, micro + 1) if micro % n == 0), 1)
    passes = settings.gradient_accumulation_steps * parts
    steps: dict[str, dict[str, Any]] = {
        "passes": {
            "per_device_train_batch_size": micro // parts,
            "gradient_accumulation_steps": passes,
        },
        "share": {"gpu_memory_utilization": max(round(share - 0.1, 3), min(share, least))},
        "bits": {"load_in_4bit": True},
        "length": {"max_completion_length": length // 2 if length > 64 else length},
        "group": {"num_generations": max(settings.num_generations // 2, 2)},
        "no vLLM": {"fast_inference": False},
    }
    try:
        smaller = settings.replace(**steps[kind])
    except ValueError:  # it would cut a group
        return None
    return None if smaller == settings else smaller


def _changes(settings: Settings, to: Settings) -> dict[str, Any]:
    return {name: value for name, value in vars(to).items() if value != getattr(settings, name)}
