"""Memory of a run by part, as arithmetic on the settings and the sizes of the model.

Bytes a weight: 2 in 16 bit, 4 in float32, 0.516 in 4 bit (4 bits, and 0.127 bits of scales: QLoRA, arXiv:2305.14314,
section 3). What is measured is said in docs/reference/settings.md: on a CPU predicted and measured peaks are compared
(benchmarks/results/plan_memory.md); for a GPU nothing is measured here.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import ALL_LINEAR, Settings
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.machine.gpu import Gpu

STANDBY = "UNSLOTH_VLLM_STANDBY"
"""The variable of Unsloth, read when it is imported: vLLM gives its memory back while gradients are computed."""
STANDBY_OF_KIT = "1"
"""The value that the kit sets before it imports unsloth, unless the user has set another."""
CPU_BASE = 0.72e9  # Python with torch, unsloth, transformers, trl, a tokenizer and a task: measured with the pins
_FOUR_BIT = (4 + 0.127) / 8
_GPU_RESERVE = 1.07e9  # for the CUDA context and fragmentation: a margin, not a measurement
_LOGIT_CHUNK = 16 * 1024 * 1024  # elements; unsloth_zoo/cpu/ops.py, cpu_chunked_log_probs

PUBLISHED: Mapping[str, Mapping] = json.loads(
    Path(__file__).with_name("published.json").read_text("utf-8")
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a model's memory follows from."""

    parameters: int
    hidden: int
    inner: int
    layers: int
    key_value: int
    """Width of all key heads together; as much again for the values."""
    query: int
    """Width of all query heads together."""
    vocabulary: int
    projections: Mapping[str, tuple[int, int]]
    """By name of the linear layers of the decoder, which 4-bit loading packs and a LoRA adapts: weights, and inputs and
    outputs, both summed over all layers of that name."""

    @property
    def linear(self) -> int:
        """Weights of the linear layers of the decoder."""
        return sum(weights for weights, _ in self.projections.values())

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """`rank x (in + out)` for each adapted projection (arXiv:2106.09685)."""
        adapted = (
            self.projections if targets == ALL_LINEAR else self.projections.keys() & set(targets)
        )
        return rank * sum(self.projections[name][1] for name in adapted)


@dataclass(frozen=True)
class Part:
    """One line of the estimate."""

    name: str
    gb: float
    how: str
    phase: str = "always"
    """`always`, `generation` or `training`: the peak is that of the larger phase."""


def sizes_of(name: str) -> Sizes | None:
    """The sizes of a model by its name, or None where no configuration of it can be had.

    Args:
        name: One of the models in `PUBLISHED`, a folder, or a Hub id, of which the config.json is fetched.

    >>> sizes_of("SmolLM2-135M-Instruct").layers
    30
    """
    try:
        return Sizes(**(PUBLISHED.get(name) or _count(os.path.expanduser(name))))
    except ChildError:  # loading says what is in the way
        return None


@functools.cache
def _count(name: str) -> dict[str, Any]:
    return run_script(Path(__file__).with_name("counting.py"), {"model": name})


def is_standby() -> bool:
    """Return whether vLLM gives its cache back while gradients are computed: the user's value, else the kit's."""
    return os.environ.get(STANDBY, STANDBY_OF_KIT) != "0"


def peak_gb(parts: Iterable[Part]) -> float:
    """The larger of the two phases, with what both hold."""
    sums = dict.fromkeys(("always", "generation", "training"), 0.0)
    for part in parts:
        sums[part.phase] += part.gb
    return sums["always"] + max(sums["generation"], sums["training"])


def memory_parts(
    settings: Settings, sizes: Sizes, gpu: Gpu | None, size: int, prompt: int
) -> Iterator[Part]:
    """Estimate each part, every completion at its longest.

    Args:
        settings: Of the run; vLLM generates if they say so.
        sizes: Of the model.
        gpu: That trains, or None for a CPU.
        size: Bytes of a number that is not quantized: 2, or 4 for float32.
        prompt: Tokens of the longest prompt.
    """
    weights, bits = (
        _weights(settings, sizes, size),
        "4 bit" if settings.load_in_4bit else f"{8 * size} bit",
    )
    yield _part("weights", weights, f"{sizes.parameters / 1e6:,.0f} million in {bits}")
    lora = sizes.lora_parameters(settings.lora_rank, settings.lora_target_modules)
    yield _part(
        "LoRA", lora * 4, f"rank {settings.lora_rank}: {lora / 1e6:,.1f} million in float32"
    )
    yield _part("gradients", lora * 4, "one for each LoRA weight", "training")
    is_8bit = gpu is not None and "8bit" in settings.optim
    yield _part(
        "optimizer",
        lora * (2 if is_8bit else 8),
        "two states, of 1 byte each" if is_8bit else "two states in float32",
    )
    if gpu is None:
        yield from _on_cpu(settings, sizes, size, prompt)
    else:
        yield from _on_gpu(settings, sizes, gpu, size, prompt)


def _on_cpu(settings: Settings, sizes: Sizes, size: int, prompt: int) -> Iterator[Part]:
    micro, length = settings.per_device_train_batch_size, settings.max_completion_length
    yield _part("Python and libraries", CPU_BASE, "measured with the pinned versions")
    yield _cache(settings, sizes, size, prompt)
    prompts = math.ceil(micro / settings.num_generations) if settings.shared_prompts else micro
    own, attended = micro * length + prompts * prompt, micro * (prompt + length)
    kept = sizes.layers * _activations(sizes, own, attended, size)
    yield _part(
        "activations",
        kept,
        f"{own:,} tokens in {sizes.layers} layers, micro-batch of {micro}",
        "training",
    )
    chunk = min(micro * length * sizes.vocabulary, _LOGIT_CHUNK) * 4 * 4
    yield _part(
        "logits", chunk, f"four copies of a block of {_LOGIT_CHUNK / 1e6:.0f} million", "training"
    )
    if size == 4 and (settings.shared_prompts or settings.holdout_every):
        # grpo_nb.cpu.folded_lora keeps one more copy of the adapted weights, in float32; with LoRA dropout,
        # which keeps training from using it, for sampling. Held-out answers are sampled that way on either path, and
        # the copy is given back.
        phase = "always" if settings.shared_prompts else "generation"
        yield _part(
            "folded weights",
            sizes.linear * 4,
            "the adapter added to a copy of the linear layers",
            phase,
        )
        packed = (sizes.linear + sizes.vocabulary * sizes.hidden) * 4
        yield _part(
            "packed weights",
            packed,
            "linear and output layers in the order that decoding likes",
            phase,
        )


def _on_gpu(settings: Settings, sizes: Sizes, gpu: Gpu, size: int, prompt: int) -> Iterator[Part]:
    micro, length = settings.per_device_train_batch_size, prompt + settings.max_completion_length
    yield _part("CUDA and fragmentation", _GPU_RESERVE, "a margin, not a measurement")
    # Unsloth's checkpointing moves the layers' inputs to the computer's memory and recomputes one layer at a time.
    tokens = micro * length
    layer = _activations(sizes, tokens, tokens, size) + 2 * tokens * sizes.hidden * size
    yield _part(
        "activations",
        layer,
        f"{tokens:,} tokens in one layer at a time (checkpointing)",
        "training",
    )
    # unsloth_zoo/rl_replacements.py, autotune_batch_and_chunks, for the smallest block it goes down to: one row, 4 chunks.
    logits = length * (sizes.vocabulary * 16 / (4 * micro) + sizes.hidden * 16)
    yield _part(
        "logits", logits, "the smallest block; Unsloth takes more where memory is free", "training"
    )
    if not settings.fast_inference:
        yield _cache(settings, sizes, size, prompt)
        return
    beside = max(
        settings.gpu_memory_utilization * gpu.memory_gib * 2**30 - _weights(settings, sizes, size),
        0,
    )
    how, phase = (
        (", given back in training (standby)", "generation") if is_standby() else ("", "always")
    )
    yield _part(
        "vLLM", beside, f"its share of the card less the weights, which training shares{how}", phase
    )


def _weights(settings: Settings, sizes: Sizes, size: int) -> float:
    packed = _FOUR_BIT if settings.load_in_4bit else size
    return sizes.linear * packed + (sizes.parameters - sizes.linear) * size


def _activations(sizes: Sizes, own: int, attended: int, size: int) -> float:
    """Bytes one layer keeps for the backward pass, attention computed without its matrix of scores.

    For each token of its own: 12 hidden widths (two norms, the inputs and outputs of attention, the residuals) and 4 inner
    ones (gate, its activation, up, their product), after Korthikanti et al. (arXiv:2205.05198, section 4.1) for a gated MLP
    and no dropout. For each token attended to: keys and values, as kept and as repeated for all query heads.
    """
    return size * (
        own * (12 * sizes.hidden + 4 * sizes.inner) + attended * 2 * (sizes.key_value + sizes.query)
    )


def _cache(settings: Settings, sizes: Sizes, size: int, prompt: int) -> Part:
    rows, length = settings.generation_batch_size, settings.max_completion_length
    cache = rows * (prompt + length) * 2 * sizes.key_value * sizes.layers * size
    return _part("KV cache", cache, f"{rows} rows of {prompt} + {length} tokens", "generation")


def _part(name: str, size: float, how: str, phase: str = "always") -> Part:
    return Part(name, size / 1e9, how, phase)
