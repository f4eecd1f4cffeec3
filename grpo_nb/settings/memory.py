"""Memory of a run by part, as arithmetic on the settings and the sizes of the model, and the nearest settings that fit.

Bytes a weight: 2 in 16 bit, 4 in float32, 0.516 in 4 bit (4 bits, and 0.127 bits of scales: QLoRA, arXiv:2305.14314,
section 3). What is measured is said in docs/reference/settings.md: on a CPU predicted and measured peaks are compared
(benchmarks/results/plan_memory.md); for a GPU nothing is measured here.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo_nb.machine.gpu import Gpu
from grpo_nb.settings.settings import Settings
from grpo_nb.settings.shapes import ModelShape, shape_of

_FOUR_BIT = (4 + 0.127) / 8
_CPU_BASE = 0.72e9  # Python with torch, unsloth, transformers, trl, a tokenizer and a task: measured with the pins
_GPU_RESERVE = 1.07e9  # for the CUDA context and fragmentation: a margin, not a measurement
_VLLM_AT_LEAST = (0.18 + 0.13) * 2**30  # torch's peak and what is not torch's, at 2048 tokens and 8 sequences at a time
_LOGIT_CHUNK = 16 * 1024 * 1024  # elements; unsloth_zoo/cpu/ops.py, cpu_chunked_log_probs
_LEAST_SHARE = 0.3
_SMALLER = [f"unsloth/Qwen2.5-{size}-Instruct" for size in ("7B", "3B", "1.5B", "0.5B")]


@dataclass(frozen=True)
class Part:
    """One line of the estimate."""

    name: str
    gb: float
    how: str
    phase: str = "always"
    """`always`, `generation` or `training`: the peak is that of the larger phase."""


def is_standby() -> bool:
    """Whether vLLM gives its cache back while gradients are computed, as the kit has it unless it is told otherwise."""
    return os.environ.get("UNSLOTH_VLLM_STANDBY", "1") != "0"


def memory_parts(
    settings: Settings, shape: ModelShape, gpu: Gpu | None, size: int, prompt: int, has_vllm: bool = True
) -> Iterator[Part]:
    """Estimate each part, every completion at its longest.

    Args:
        settings: Of the run.
        shape: Of the model.
        gpu: That trains, or None for a CPU.
        size: Bytes of a number that is not quantized: 2, or 4 for float32.
        prompt: Tokens of the longest prompt.
        has_vllm: Whether vLLM is installed.
    """
    yield from _of_the_model(settings, shape, size, settings.optim if gpu is not None else "adamw_torch")
    if gpu is None:
        yield from _on_cpu(settings, shape, size, prompt)
    else:
        yield from _on_gpu(settings, shape, gpu, size, prompt, has_vllm)


def _of_the_model(settings: Settings, shape: ModelShape, size: int, optimizer: str) -> Iterator[Part]:
    weights, bits = _weights(settings, shape, size), "4 bit" if settings.load_in_4bit else f"{8 * size} bit"
    yield _part("weights", weights, f"{shape.parameters / 1e6:,.0f} million in {bits} ({shape.source})")
    lora = shape.lora_parameters(settings.lora_rank, settings.lora_target_modules)
    yield _part("LoRA", lora * 4, f"rank {settings.lora_rank}: {lora / 1e6:,.1f} million in float32")
    yield _part("gradients", lora * 4, "one for each LoRA weight", "training")
    state, how = 8, "taken as two states in float32"
    if "8bit" in optimizer:
        state, how = 2, "two states of 1 byte (arXiv:2110.02861)"
    elif "adam" in optimizer:
        how = "two states in float32 (arXiv:1412.6980)"
    yield _part("optimizer", lora * state, f"{optimizer}: {how}")
    if settings.beta > 0:
        yield _part("reference", 0, "none of its own: the model with its adapter switched off")


def peak_gb(parts: Iterable[Part]) -> float:
    """The larger of the two phases, with what both hold."""
    sums = dict.fromkeys(("always", "generation", "training"), 0.0)
    for part in parts:
        sums[part.phase] += part.gb
    return sums["always"] + max(sums["generation"], sums["training"])


def _weights(settings: Settings, shape: ModelShape, size: int) -> float:
    packed = _FOUR_BIT if settings.load_in_4bit else size
    return shape.linear * packed + (shape.parameters - shape.linear) * size


def _part(name: str, size: float, how: str, phase: str = "always") -> Part:
    return Part(name, size / 1e9, how, phase)


def _activations(shape: ModelShape, own: int, attended: int, size: int) -> float:
    """Bytes one layer keeps for the backward pass, attention computed without its matrix of scores.

    For each token of its own: 12 hidden widths (two norms, the inputs and outputs of attention, the residuals) and 4 inner
    ones (gate, its activation, up, their product), after Korthikanti et al. (arXiv:2205.05198, section 4.1) for a gated MLP
    and no dropout. For each token attended to: keys and values, as kept and as repeated for all query heads.
    """
    return size * (own * (12 * shape.hidden + 4 * shape.inner) + attended * 2 * (shape.key_value + shape.query))


def _on_cpu(settings: Settings, shape: ModelShape, size: int, prompt: int) -> Iterator[Part]:
    micro, length = settings.per_device_train_batch_size, settings.max_completion_length
    shared = settings.shared_prompts
    yield _part("Python and libraries", _CPU_BASE, "measured with the pinned versions")
    yield _cache(settings, shape, size, prompt)
    prompts = math.ceil(micro / settings.num_generations) if shared else micro
    own, attended = micro * length + prompts * prompt, micro * (prompt + length)
    kept = shape.layers * _activations(shape, own, attended, size)
    yield _part("activations", kept, f"{own:,} tokens in {shape.layers} layers, micro-batch of {micro}", "training")
    chunk = min(micro * length * shape.vocabulary, _LOGIT_CHUNK) * 4 * 4
    yield _part("logits", chunk, f"four copies of a block of {_LOGIT_CHUNK / 1e6:.0f} million", "training")
    if size == 4 and (shared or settings.holdout_every):
        # grpo_nb.generation.folded_lora keeps one more copy of the adapted weights, in float32; with LoRA dropout,
        # which keeps training from using it, for sampling. Held-out answers are sampled that way on either path, and
        # the copy is given back.
        phase = "always" if shared else "generation"
        yield _part("folded weights", shape.linear * 4, "the adapter added to a copy of the linear layers", phase)
        packed = (shape.linear + shape.vocabulary * shape.hidden) * 4
        yield _part("packed weights", packed, "linear and output layers in the order that decoding likes", phase)


def _on_gpu(settings: Settings, shape: ModelShape, gpu: Gpu, size: int, prompt: int, has_vllm: bool) -> Iterator[Part]:
    micro, length = settings.per_device_train_batch_size, prompt + settings.max_completion_length
    yield _part("CUDA and fragmentation", _GPU_RESERVE, "a margin, not a measurement")
    # Unsloth's checkpointing moves the layers' inputs to the computer's memory and recomputes one layer at a time.
    tokens = micro * length
    layer = _activations(shape, tokens, tokens, size) + 2 * tokens * shape.hidden * size
    yield _part("activations", layer, f"{tokens:,} tokens in one layer at a time (checkpointing)", "training")
    # unsloth_zoo/rl_replacements.py, autotune_batch_and_chunks, for the smallest block it goes down to: one row, 4 chunks.
    logits = length * (shape.vocabulary * 16 / (4 * micro) + shape.hidden * 16)
    yield _part("logits", logits, "the smallest block; Unsloth takes more where memory is free", "training")
    if not settings.fast_inference or not has_vllm:
        yield _cache(settings, shape, size, prompt)
        return
    share = settings.gpu_memory_utilization
    beside = max(share * gpu.memory_gib * 2**30 - _weights(settings, shape, size), 0)
    how, phase = ", given back in training (standby)", "generation"
    if not is_standby():
        how, phase = "", "always"
    yield _part("vLLM", beside, f"{share:.0%} of the card less the weights it shares{how}", phase)


def _cache(settings: Settings, shape: ModelShape, size: int, prompt: int) -> Part:
    rows, length = settings.generation_batch_size, settings.max_completion_length
    cache = rows * (prompt + length) * 2 * shape.key_value * shape.layers * size
    return _part("KV cache", cache, f"{rows} rows of {prompt} + {length} tokens", "generation")


def vllm_cache_gb(settings: Settings, shape: ModelShape, gpu: Gpu, prompt: int) -> tuple[float, float]:
    """GB that vLLM has left for keys and values, and GB that one sequence needs; below one it cannot start.

    Out of its share also come the LoRA in 16 bit, its CUDA graphs (estimated as Unsloth does: unsloth_zoo/vllm_utils.py,
    approximate_vllm_memory_usage), and what Unsloth measured for the smallest batch (a table in load_vllm).
    """
    weights = _weights(settings, shape, 2)
    lora = 2 * shape.lora_parameters(settings.lora_rank, settings.lora_target_modules)
    graphs = min(max(172 * shape.hidden * shape.layers * 4, 0.15 * 2**30), 2**30)
    one = (prompt + settings.max_completion_length) * 2 * shape.key_value * shape.layers * 2
    left = settings.gpu_memory_utilization * gpu.memory_gib * 2**30 - weights - lora - graphs - _VLLM_AT_LEAST
    return left / 1e9, one / 1e9


def smaller_settings(settings: Settings) -> dict[str, list[tuple[float, dict[str, Any]]]]:
    """Changes that need less memory, by kind, with what they cost: least are those that train the same.

    `passes` are smaller and more of them, `share` is vLLM's, `path` is TRL's own on a CPU, which has no copies of the weights
    and takes about three times as long.
    """
    micro, steps = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    length, share = settings.max_completion_length, settings.gpu_memory_utilization
    parts = [n for n in range(2, 65) if micro % n == 0] or [micro] * (micro > 1)
    return {
        "passes": [
            (math.log2(n), {"per_device_train_batch_size": micro // n, "gradient_accumulation_steps": steps * n})
            for n in parts
        ],
        "share": [
            (n, {"gpu_memory_utilization": round(max(share - 0.1 * n, _LEAST_SHARE), 3)})
            for n in (1, 2, 3)
            if settings.fast_inference and share - 0.1 * n > _LEAST_SHARE - 0.1
        ],
        "bits": [] if settings.load_in_4bit else [(1.5, {"load_in_4bit": True})],
        "path": [(4, {"shared_prompts": False})] if settings.shared_prompts else [],
        "length": [(5 * n, {"max_completion_length": length >> n}) for n in range(1, 5) if length >> n > 32],
        "group": [(6, {"num_generations": n}) for n in (settings.num_generations // 2,) if n >= 2],
    }


def fitting_changes(
    settings: Settings, fits: Callable[[Settings], bool], *, is_gpu: bool, count: int = 3
) -> list[dict[str, Any]]:
    """The changes to settings that make `fits(settings)` true, the least first, each of another kind.

    Combinations of `smaller_settings`, and on a GPU smaller models of the presets.
    """
    kinds = smaller_settings(settings)
    for elsewhere in ("path",) if is_gpu else ("bits", "share"):
        del kinds[elsewhere]
    if is_gpu and (here := shape_of(settings.model)) is not None:
        models = [name for name in _SMALLER if shape_of(name).parameters < here.parameters]
        kinds["model"] = [(20 + 5 * n, {"model": name}) for n, name in enumerate(models)]
    choices = itertools.product(*([(0, {}), *options] for options in kinds.values()))
    found: list[dict[str, Any]] = []
    for choice in sorted(choices, key=lambda choice: sum(cost for cost, _ in choice)):
        changes = {name: value for _, part in choice for name, value in part.items()}
        if not changes or any(small.keys() <= changes.keys() for small in found):
            continue
        try:
            changed = settings.replace(**changes)
        except ValueError:  # a batch that would cut a group
            continue
        if fits(changed):
            found.append(changes)
            if len(found) == count:
                break
    return found
