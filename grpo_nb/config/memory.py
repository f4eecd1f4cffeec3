"""Estimate the memory of a run by part, from the settings and the sizes of the model.

Bytes per weight: 2 in 16 bit, 4 in float32, 0.516 in 4 bit (4 bits, and 0.127 bits of scales:
QLoRA, arXiv:2305.14314, section 3). On a CPU the estimate is checked against measurements
(benchmarks/results/plan_memory.md). On a GPU it is not.
"""

import functools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import ALL_LINEAR, Settings
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.machine.gpu import Gpu

#: Python with torch, unsloth, transformers, trl, a tokenizer and a task, measured with the pins.
CPU_BASE = 0.72e9
_BYTES_IN_4_BIT = (4 + 0.127) / 8
# CUDA context and fragmentation: a margin, not a measurement.
_GPU_RESERVE = 1.07e9
# Elements of one block of logits (unsloth_zoo/cpu/ops.py, cpu_chunked_log_probs).
_LOGIT_CHUNK = 16 * 1024 * 1024
_COPIES_OF_LOGIT_CHUNK = 4
_BYTES_OF_FLOAT32 = 4
# Unsloth's estimate for a GPU (unsloth_zoo/rl_replacements.py, autotune_batch_and_chunks): bytes of
# each hidden number and each logit with its copies, and the fewest chunks that it splits logits in.
_UNSLOTH_BYTES_PER_NUMBER = 16
_UNSLOTH_LEAST_CHUNKS = 4

#: Sizes of the models of the presets, so that a plan for them needs no download.
PUBLISHED: Mapping[str, Mapping] = json.loads(
    Path(__file__).with_name("published.json").read_text("utf-8")
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a model that its memory depends on."""

    parameters: int
    hidden: int
    mlp_width: int
    layers: int
    key_value_width: int
    """Keys of all heads together; the values take as much again."""
    query_width: int
    """Queries of all heads together."""
    vocabulary: int
    projections: Mapping[str, tuple[int, int]]
    """Linear layers of the decoder, which 4-bit loading packs and a LoRA adapts. Layer name ->
    (number of weights, inputs plus outputs), both summed over all layers of that name."""

    @property
    def linear(self) -> int:
        """Weights of the linear layers of the decoder."""
        return sum(weights for weights, _ in self.projections.values())

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Return `rank x (in + out)`, summed over the adapted layers (arXiv:2106.09685)."""
        return rank * sum(in_plus_out for _, in_plus_out in self.adapted(targets))

    def adapted(self, targets: tuple[str, ...]) -> list[tuple[int, int]]:
        """Return the entries of `projections` that a LoRA adapts."""
        if targets == ALL_LINEAR:
            return list(self.projections.values())
        return [sizes for name, sizes in self.projections.items() if name in targets]


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory."""

    name: str
    size: float
    """Bytes."""
    explanation: str
    """Reason for the number."""
    phase: str = "always"
    """`always`, `generation` or `training`: the peak is that of the larger phase."""

    @property
    def gb(self) -> float:
        """Size in GB."""
        return self.size / 1e9


def sizes_of(name: str) -> Sizes:
    """Return the sizes of a model.

    Args:
        name: A model in `PUBLISHED`, a folder, or a Hub id, whose config.json is downloaded.

    Raises:
        ValueError: The model has no configuration that can be read.

    >>> sizes_of("SmolLM2-135M-Instruct").layers
    30
    """
    try:
        return Sizes(**(PUBLISHED.get(name) or _count(os.path.expanduser(name))))
    except ChildError as error:
        raise ValueError(f"The sizes of {name!r} cannot be read: {error.last(1)}") from None


@functools.cache
def _count(name: str) -> dict[str, Any]:
    return run_script(Path(__file__).with_name("counting.py"), {"model": name})


def peak_gb(parts: Iterable[MemoryPart]) -> float:
    """Return the memory of the larger phase, with the parts that both phases hold."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums[part.phase] += part.gb
    return sums["always"] + max(sums["generation"], sums["training"])


def memory_parts(
    settings: Settings,
    sizes: Sizes,
    gpu: Gpu | None,
    *,
    bytes_per_number: int,
    prompt_tokens: int,
) -> Iterator[MemoryPart]:
    """Estimate each part, with every completion at its longest.

    Args:
        settings: Settings of the run; with `fast_inference`, vLLM generates.
        sizes: Sizes of the model.
        gpu: GPU that trains, or None for a CPU.
        bytes_per_number: For numbers that are not quantized: 2, or 4 for float32.
        prompt_tokens: Tokens of the longest prompt.
    """
    bits = 4 if settings.load_in_4bit else 8 * bytes_per_number
    weights = f"{sizes.parameters / 1e6:,.0f} million in {bits} bit"
    yield MemoryPart("weights", _weights(settings, sizes, bytes_per_number), weights)
    # PEFT keeps the LoRA in float32, also over weights in 16 bit.
    lora = sizes.lora_parameters(settings.lora_rank, settings.lora_target_modules)
    rank = f"rank {settings.lora_rank}: {lora / 1e6:,.1f} million in float32"
    yield MemoryPart("LoRA", lora * _BYTES_OF_FLOAT32, rank)
    yield MemoryPart("gradients", lora * _BYTES_OF_FLOAT32, "one for each LoRA weight", "training")
    if gpu is not None and "8bit" in settings.optim:
        yield MemoryPart("optimizer", lora * 2, "two states, of 1 byte each")
    else:
        yield MemoryPart("optimizer", lora * 2 * _BYTES_OF_FLOAT32, "two states in float32")
    if gpu is None:
        yield from _on_cpu(settings, sizes, bytes_per_number, prompt_tokens)
    else:
        yield from _on_gpu(settings, sizes, gpu, bytes_per_number, prompt_tokens)


def _on_cpu(
    settings: Settings, sizes: Sizes, bytes_per_number: int, prompt_tokens: int
) -> Iterator[MemoryPart]:
    micro = settings.per_device_train_batch_size
    length = settings.max_completion_length
    yield MemoryPart("Python and libraries", CPU_BASE, "measured with the pinned versions")
    yield _cache(settings, sizes, bytes_per_number, prompt_tokens)
    # With shared prompts, each group computes its prompt once.
    prompt_copies = micro
    if settings.shared_prompts:
        prompt_copies = math.ceil(micro / settings.num_generations)
    computed_tokens = micro * length + prompt_copies * prompt_tokens
    attended_tokens = micro * (prompt_tokens + length)
    per_layer = _activations(sizes, computed_tokens, attended_tokens, bytes_per_number)
    activations = sizes.layers * per_layer
    tokens = f"{computed_tokens:,} tokens in {sizes.layers} layers, micro-batch of {micro}"
    yield MemoryPart("activations", activations, tokens, "training")
    chunk = min(micro * length * sizes.vocabulary, _LOGIT_CHUNK)
    block = f"four copies of a block of {chunk / 1e6:.0f} million"
    copies = chunk * _COPIES_OF_LOGIT_CHUNK * _BYTES_OF_FLOAT32
    yield MemoryPart("logits", copies, block, "training")
    has_copies = settings.shared_prompts and not settings.load_in_4bit
    if bytes_per_number == _BYTES_OF_FLOAT32 and has_copies:
        # grpo_nb.cpu samples with copies of the weights, and keeps them in training.
        adapted = sum(weights for weights, _ in sizes.adapted(settings.lora_target_modules))
        folded = adapted * _BYTES_OF_FLOAT32
        explanation = "the adapter added to a copy of the linear layers"
        yield MemoryPart("folded weights", folded, explanation)
        packed = (sizes.linear + sizes.vocabulary * sizes.hidden) * _BYTES_OF_FLOAT32
        explanation = "linear and output layers in the order that decoding reads"
        yield MemoryPart("packed weights", packed, explanation)


def _on_gpu(
    settings: Settings, sizes: Sizes, gpu: Gpu, bytes_per_number: int, prompt_tokens: int
) -> Iterator[MemoryPart]:
    micro = settings.per_device_train_batch_size
    length = prompt_tokens + settings.max_completion_length
    yield MemoryPart("CUDA and fragmentation", _GPU_RESERVE, "a margin, not a measurement")
    # Unsloth's checkpointing moves the inputs of the layers to the computer's memory and recomputes
    # one layer at a time.
    tokens = micro * length
    layer = _activations(sizes, tokens, tokens, bytes_per_number)
    layer += 2 * tokens * sizes.hidden * bytes_per_number  # its input and its output
    recomputed = f"{tokens:,} tokens in one layer at a time (checkpointing)"
    yield MemoryPart("activations", layer, recomputed, "training")
    # Unsloth computes at least one row at a time, and divides the vocabulary into 4 x micro chunks.
    logits_at_once = sizes.vocabulary / (_UNSLOTH_LEAST_CHUNKS * micro)
    logits = length * (logits_at_once + sizes.hidden) * _UNSLOTH_BYTES_PER_NUMBER
    smallest = "the smallest block; Unsloth takes more where memory is free"
    yield MemoryPart("logits", logits, smallest, "training")
    if not settings.fast_inference:
        yield _cache(settings, sizes, bytes_per_number, prompt_tokens)
        return
    # vLLM and the training use the same weights, which are counted already.
    share = settings.gpu_memory_utilization * gpu.memory_gib * 2**30
    share_without_weights = max(share - _weights(settings, sizes, bytes_per_number), 0)
    explanation = (
        "its share of the card without the weights, which training uses too; given back in "
        "training (standby)"
    )
    yield MemoryPart("vLLM", share_without_weights, explanation, "generation")


def _weights(settings: Settings, sizes: Sizes, bytes_per_number: int) -> float:
    """Return the bytes of all weights; 4-bit loading packs only the linear layers."""
    bytes_of_linear = _BYTES_IN_4_BIT if settings.load_in_4bit else bytes_per_number
    others = sizes.parameters - sizes.linear
    return sizes.linear * bytes_of_linear + others * bytes_per_number


def _activations(sizes: Sizes, computed: int, attended: int, bytes_per_number: int) -> float:
    """Return the bytes that one layer keeps for the backward pass, without a matrix of scores.

    For each computed token, 12 hidden widths (two norms, inputs and outputs of attention,
    residuals) and 4 inner ones (gate, its activation, up, their product), after Korthikanti et al.
    (arXiv:2205.05198, section 4.1) for a gated MLP and no dropout. For each attended token, keys
    and values, as kept and as repeated for all query heads.
    """
    per_computed = 12 * sizes.hidden + 4 * sizes.mlp_width
    per_attended = 2 * (sizes.key_value_width + sizes.query_width)
    return bytes_per_number * (computed * per_computed + attended * per_attended)


def _cache(
    settings: Settings, sizes: Sizes, bytes_per_number: int, prompt_tokens: int
) -> MemoryPart:
    """Return the keys and values of all rows of one generation."""
    rows = settings.generation_batch_size
    length = settings.max_completion_length
    # A key and a value in each layer.
    numbers_per_token = 2 * sizes.key_value_width * sizes.layers
    cache = rows * (prompt_tokens + length) * numbers_per_token * bytes_per_number
    explanation = f"{rows} rows of {prompt_tokens} + {length} tokens"
    return MemoryPart("KV cache", cache, explanation, "generation")
