"""Settings that need less memory, one ladder of them: for a plan that does not fit, and after out-of-memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.machine.faults import error_chain, is_out_of_memory, place_of
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.settings.memory import is_standby
from grpo_nb.settings.settings import Settings

_LEAST_SHARE, _MOST_SHARE, _SHORTEST = 0.3, 0.9, 32
# The kinds of changes, the cheapest first: smaller passes train the same. vLLM's share is last, for less is not always better.
_ON_GPU = ("passes", "bits", "length", "group", "share")
_ON_CPU = ("passes", "path", "length", "group")
# Which of them help where it failed. While loading and in generation smaller passes do not.
_BY_PLACE = {
    "loading": ("bits", "share", "no vLLM"),
    "generation": ("share", "path", "length", "group"),
    "the loss": ("passes", "path", "share", "bits", "length", "group"),
}
_FOR_VLLM = ("larger share", "bits", "length", "no vLLM")
_VLLM_IS_SHORT = ("cache blocks", "kv cache")
_OF_A_GPU = ("cuda", "cublas", "gpu", *_VLLM_IS_SHORT)
_WHY = {
    "passes": "Activations grow with the completions of one pass. The same step in smaller passes gives the same result.",
    "path": "TRL's own path keeps no copies of the weights, and takes about three times as long.",
    "larger share": "A larger one has.",
    "share": "vLLM takes its share at once, and what is left was too little for the rest.",
    "no vLLM": "Without vLLM the memory it takes for itself is free; generation is slower.",
    "bits": "The weights in 16 bit are the largest part that is left; in 4 bit they take about a third.",
    "length": "Memory grows with the length of the completions.",
    "group": "Fewer completions are generated at once.",
}


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


def fitting_changes(settings: Settings, fits: Callable[[Settings], bool], *, is_gpu: bool) -> dict[str, Any]:
    """The changes to settings that make `fits(settings)` true, or none: down the ladder, and back where it was not needed."""
    changed, taken = settings, []
    for kind in _ON_GPU if is_gpu else _ON_CPU:
        before, changed = changed, _down(changed, kind, fits)
        taken.append((kind, {name: old for name, old in vars(before).items() if old != getattr(changed, name)}))
    if not fits(changed):
        return {}
    for kind, back in reversed(taken):
        if _is_whole(changed, back):
            changed = _down(changed.replace(**back), kind, fits)
    return {name: value for name, value in vars(changed).items() if value != getattr(settings, name)}


def _down(settings: Settings, kind: str, fits: Callable[[Settings], bool]) -> Settings:
    """Settings with as many steps down of a kind as they need to fit, or as there are."""
    while not fits(settings) and (step := _smaller(settings, kind)):
        settings = settings.replace(**step)
    return settings


def memory_advice(error: BaseException, settings: Settings, *, place: str | None = None) -> MemoryAdvice | None:
    """Say which setting to lower after an out-of-memory error, with the line to paste; None for any other error.

    Args:
        error: What was raised. Errors that it came from are looked at too.
        settings: Of the run that failed.
        place: `loading`, `generation` or `the loss`; by default what the error's traceback says, if it says it.

    >>> memory_advice(RuntimeError("CUDA out of memory"), Settings()).change
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    """
    if not is_out_of_memory(error):
        return None
    said = " ".join(f"{type(cause).__name__} {cause}".lower() for cause in error_chain(error))
    place = place or place_of(error)
    is_gpu = find_gpu() is not None or any(sign in said for sign in _OF_A_GPU)
    is_vllm_short = any(sign in said for sign in _VLLM_IS_SHORT)
    kinds: Iterable[str] = _FOR_VLLM if is_vllm_short else _BY_PLACE[place or "the loss"]
    elsewhere = ("path",) if is_gpu else ("bits", "share", "no vLLM")
    if place != "loading" and place != "generation" and is_standby():
        elsewhere += ("share",)  # it has given its cache back by then
    steps = ((kind, _smaller(settings, kind)) for kind in kinds if kind not in elsewhere)
    kind, change = next(((kind, step) for kind, step in steps if step), ("", {}))
    why = _WHY.get(kind, "No setting of this run is left to lower.")
    if is_vllm_short:
        why = f"vLLM's share of the memory has no room for one sequence beside the model. {why}"
    advice = "Take a smaller model, or a machine with more memory."
    if change:
        written = ", ".join(f"{name}={value!r}" for name, value in change.items())
        advice = f"settings = settings.replace({written}), in a fresh kernel: the failed one still holds its memory."
    names = ["per_device_train_batch_size", "num_generations", "max_completion_length"]
    names += ["gpu_memory_utilization"] * settings.fast_inference
    where = {None: "", "loading": " while loading"}.get(place, f" in {place}")
    message = f"Out of memory{where} with {', '.join(f'{name} {getattr(settings, name)}' for name in names)}."
    return MemoryAdvice(message=message, why=why, advice=advice, change=change, place=place)


def _smaller(settings: Settings, kind: str) -> dict[str, Any]:
    """One step down of a kind, or nothing where there is none."""
    micro, steps = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    length, share = settings.max_completion_length, settings.gpu_memory_utilization
    less, more = round(max(share - 0.1, _LEAST_SHARE), 3), round(min(share + 0.1, _MOST_SHARE), 3)
    parts = next((n for n in range(2, micro + 1) if micro % n == 0), 1)
    candidates: dict[str, tuple[bool, dict[str, Any]]] = {
        "passes": (micro > 1, {"per_device_train_batch_size": micro // parts, "gradient_accumulation_steps": steps * parts}),
        "path": (settings.shared_prompts, {"shared_prompts": False}),
        "share": (settings.fast_inference and share > _LEAST_SHARE, {"gpu_memory_utilization": less}),
        "larger share": (share < _MOST_SHARE, {"gpu_memory_utilization": more}),
        "no vLLM": (settings.fast_inference, {"fast_inference": False}),
        "bits": (not settings.load_in_4bit, {"load_in_4bit": True}),
        "length": (length // 2 > _SHORTEST, {"max_completion_length": length // 2}),
        "group": (settings.num_generations >= 4, {"num_generations": settings.num_generations // 2}),
    }  # fmt: skip
    is_possible, change = candidates[kind]
    return change if is_possible and _is_whole(settings, change) else {}


def _is_whole(settings: Settings, change: Mapping[str, Any]) -> bool:
    """Whether groups stay whole with a change."""
    try:
        settings.replace(**change)
    except ValueError:
        return False
    return True
