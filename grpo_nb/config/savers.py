"""Find smaller settings, for a plan that does not fit and after an out-of-memory error.

Both use one list of savers. A saver is a function that returns a change to the settings, or an
empty one if it cannot save more.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.faults import error_chain, is_out_of_memory
from grpo_nb.machine.gpu import find_gpu

Change = dict[str, Any]

# Below this share the weights of a model hardly fit into vLLM's memory.
_LEAST_SHARE_OF_VLLM = 0.3
_LEAST_COMPLETION_LENGTH = 64
# Every sampling of a training calls one of these functions (trl 1.15, transformers 5.17).
_SAMPLING_FUNCTIONS = {"generate", "_generate"}


def _smaller_passes(settings: Settings) -> Change:
    micro = settings.per_device_train_batch_size
    generated = settings.generation_batch_size
    if settings.extra.get("steps_per_generation"):
        generated //= 2
    # A pass that cannot be halved stays, and groups must be whole.
    if micro % 2 or generated % settings.num_generations:
        return {}
    return {
        "per_device_train_batch_size": micro // 2,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps * 2,
    }


def _smaller_share_of_vllm(settings: Settings) -> Change:
    share = settings.gpu_memory_utilization
    if not settings.fast_inference or share <= _LEAST_SHARE_OF_VLLM:
        return {}
    return {"gpu_memory_utilization": max(round(share - 0.1, 3), _LEAST_SHARE_OF_VLLM)}


def _fewer_bits(settings: Settings) -> Change:
    return {} if settings.load_in_4bit else {"load_in_4bit": True}


def _shorter_completions(settings: Settings) -> Change:
    length = settings.max_completion_length
    if length <= _LEAST_COMPLETION_LENGTH:
        return {}
    return {"max_completion_length": max(length // 2, _LEAST_COMPLETION_LENGTH)}


def _no_vllm(settings: Settings) -> Change:
    return {"fast_inference": False} if settings.fast_inference else {}


@dataclass(frozen=True)
class _Saver:
    """A way to save memory."""

    change: Callable[[Settings], Change]
    why: str
    is_for_gpu: bool = False
    useless_in: tuple[str, ...] = ()
    """Phases in which it does not help: `loading`, `generation` or `training`."""


# The cheapest first: smaller passes change the training least. The loss `bnpo` divides by the
# tokens of each pass, so the weights of short and long completions shift a little.
_SAVERS = (
    _Saver(
        _smaller_passes,
        "Activations grow with the completions of one pass. The step keeps its completions; only "
        'loss_type="bnpo" weighs their tokens a little differently.',
        useless_in=("loading", "generation"),
    ),
    _Saver(
        _smaller_share_of_vllm,
        "vLLM takes its share at once, and what is left was too little for the rest.",
        is_for_gpu=True,
        # In standby vLLM gives the share back while gradients are computed.
        useless_in=("training",),
    ),
    _Saver(
        _fewer_bits,
        "The weights in 16 bit are the largest part left; in 4 bit they take about a third.",
        is_for_gpu=True,
        useless_in=("generation",),
    ),
    _Saver(
        _shorter_completions,
        "Memory grows with the length of the completions.",
        useless_in=("loading",),
    ),
    _Saver(
        _no_vllm,
        "Without vLLM the memory it takes for itself is free; generation is slower.",
        is_for_gpu=True,
    ),
)


def replacing(change: Mapping[str, Any]) -> str:
    """Return the line that changes settings.

    >>> replacing({"max_steps": 5})
    'settings = settings.replace(max_steps=5)'
    """
    keywords = ", ".join(f"{name}={value!r}" for name, value in change.items())
    return f"settings = settings.replace({keywords})"


def fitting_changes(
    settings: Settings, fits: Callable[[Settings], bool], *, is_gpu: bool
) -> Change:
    """Return the changes to settings that make `fits(settings)` true; empty if nothing does.

    Each saver is used as often as needed, the cheapest first. Then the savers are taken back one by
    one, the dearest first, because a later one may have made an earlier one unnecessary.
    """
    savers = [saver for saver in _SAVERS if is_gpu or not saver.is_for_gpu]
    smaller = settings
    for saver in savers:
        smaller = _smaller_until_fits(smaller, saver, fits)
    for saver in reversed(savers):
        original = {name: getattr(settings, name) for name in saver.change(settings)}
        smaller = _smaller_until_fits(smaller.replace(**original), saver, fits)
    return _changes(settings, smaller) if fits(smaller) else {}


def _smaller_until_fits(
    settings: Settings, saver: _Saver, fits: Callable[[Settings], bool]
) -> Settings:
    """Return settings with a saver used as often as they need to fit, or as often as it can be."""
    while not fits(settings) and (change := saver.change(settings)):
        settings = settings.replace(**change)
    return settings


def _changes(old: Settings, new: Settings) -> Change:
    """Return the values of `new` that differ from `old`."""
    return {name: value for name, value in vars(new).items() if value != vars(old)[name]}


def memory_advice(
    error: BaseException, settings: Settings, *, phase: str | None = None
) -> str | None:
    """Return which setting to lower after an out-of-memory error, with the line to write.

    Args:
        error: The error; those that it came from are looked at too.
        settings: Settings of the run that failed.
        phase: `loading`, `generation` or `training`; by default read from the error's traceback.

    Returns:
        None for any other error, and for vLLM's own "too few cache blocks", whose message already
        gives the fix.

    >>> "per_device_train_batch_size=8" in memory_advice(MemoryError(), Settings())
    True
    """
    chain = list(error_chain(error))
    text = " ".join(f"{type(cause).__name__} {cause}".lower() for cause in chain)
    if not is_out_of_memory(error) or "cache blocks" in text or "kv cache" in text:
        return None
    if phase is None:
        phase = "generation" if any(map(_is_in_sampling, chain)) else "training"
    is_gpu = find_gpu() is not None or any(sign in text for sign in ("cuda", "cublas", "gpu"))
    why = "No setting of this run is left to lower."
    instead = "Take a smaller model"
    for saver in _SAVERS:
        is_useful = phase not in saver.useless_in and (is_gpu or not saver.is_for_gpu)
        change = saver.change(settings)
        if is_useful and change:
            why = saver.why
            instead = f"Write {replacing(change)}"
            break
    when = "while loading" if phase == "loading" else f"in {phase}"
    return (
        f"Out of memory {when}. {why} {instead}, in a fresh kernel: the failed one still holds "
        "its memory."
    )


def _is_in_sampling(error: BaseException) -> bool:
    """Return whether an error was raised while completions were sampled."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name in _SAMPLING_FUNCTIONS for frame in frames)
