"""Memory of a run by part, as arithmetic on the settings and the sizes of the model, and the nearest settings that fit.

Bytes a weight: 2 in 16 bit, 4 in float32, 0.516 in 4 bit (4 bits, and 0.127 bits of scales: QLoRA, arXiv:2305.14314,
section 3). What is measured is said in docs/settings.md: on a CPU predicted and measured peaks are compared
(benchmarks/results/plan_memory.md); for a GPU nothing is measured here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpo_nb.config import Settings
from grpo_nb.effective_rules import standby_share
from grpo_nb.environment import Gpu
from grpo_nb.planning_shapes import PUBLISHED, ModelShape, shape_of

_FOUR_BIT = (4 + 0.127) / 8
_CPU_BASE = 0.72e9  # Python with torch, unsloth, transformers, trl, a tokenizer and a task: measured with the pins
_GPU_RESERVE = 1.07e9  # for the CUDA context and fragmentation: a margin, not a measurement
_VLLM_AT_LEAST = (0.18 + 0.13) * 2**30  # torch's peak and what is not torch's, at 2048 tokens and 8 sequences at a time
_LOGIT_CHUNK = 16 * 1024 * 1024  # elements; unsloth_zoo/cpu/ops.py, cpu_chunked_log_probs
_SMALLER = [f"unsloth/Qwen2.5-{size}-Instruct" for size in ("7B", "3B", "1.5B", "0.5B")]


@dataclass(frozen=True)
class Part:
    """One line of the estimate."""

    name: str
    gb: float
    how: str
    phase: str = "always"
    """`always`, `generation` or `training`: the peak is that of the larger phase."""


def memory_parts(
    settings: Settings, shape: ModelShape, gpu: Gpu | None, *, has_bf16: bool, prompt: int, has_vllm: bool = True
) -> list[Part]:
    """Estimate each part, every completion at its longest.

    Args:
        settings: Of the run.
        shape: Of the model.
        gpu: That trains, or None for a CPU.
        has_bf16: Whether 16 bit is bfloat16 on it; a CPU without it holds weights in float32.
        prompt: Tokens of the longest prompt.
        has_vllm: Whether vLLM is installed.
    """
    wide = 2 if gpu is not None or has_bf16 else 4
    lora = shape.lora_parameters(settings.lora_rank, settings.lora_target_modules)
    packed = _FOUR_BIT if settings.load_in_4bit else wide
    weights = shape.linear * packed + (shape.parameters - shape.linear) * wide
    bits = "4 bit" if settings.load_in_4bit else f"{8 * wide} bit"
    state, state_how = _optimizer_bytes(settings.optim if gpu is not None else "adamw_torch")
    parts = [
        _part("weights", weights, f"{shape.parameters / 1e6:,.0f} million in {bits} ({shape.source})"),
        _part("LoRA", lora * 4, f"rank {settings.lora_rank}: {lora / 1e6:,.1f} million in float32"),
        _part("gradients", lora * 4, "one for each LoRA weight", "training"),
        _part("optimizer", lora * state, state_how),
    ]
    if settings.beta > 0:
        parts.append(_part("reference", 0, "none of its own: the model with its adapter switched off"))
    if gpu is None:
        return parts + _on_cpu(settings, shape, wide, prompt)
    return parts + _on_gpu(settings, shape, gpu, wide, prompt, weights, has_vllm)


def peak_gb(parts: list[Part]) -> float:
    """The larger of the two phases, with what both hold."""
    sums = {phase: sum(p.gb for p in parts if p.phase == phase) for phase in ("always", "generation", "training")}
    return sums["always"] + max(sums["generation"], sums["training"])


def _part(name: str, size: float, how: str, phase: str = "always") -> Part:
    return Part(name, size / 1e9, how, phase)


def _optimizer_bytes(name: str) -> tuple[float, str]:
    if "8bit" in name:
        return 2, f"{name}: two states of 1 byte (arXiv:2110.02861)"
    if "adam" in name:
        return 8, f"{name}: two states in float32 (arXiv:1412.6980)"
    return 8, f"{name}: taken as two states in float32"


def _activations(shape: ModelShape, own: int, attended: int, size: int) -> float:
    """Bytes one layer keeps for the backward pass, attention computed without its matrix of scores.

    For each token of its own: 12 hidden widths (two norms, the inputs and outputs of attention, the residuals) and 4 inner
    ones (gate, its activation, up, their product), after Korthikanti et al. (arXiv:2205.05198, section 4.1) for a gated MLP
    and no dropout. For each token attended to: keys and values, as kept and as repeated for all query heads.
    """
    return size * (own * (12 * shape.hidden + 4 * shape.inner) + attended * 2 * (shape.key_value + shape.query))


def _on_cpu(settings: Settings, shape: ModelShape, wide: int, prompt: int) -> list[Part]:
    micro, length = settings.per_device_train_batch_size, settings.max_completion_length
    total = settings.generation_batch_size
    shared = settings.shared_prompts
    prompts = math.ceil(micro / settings.num_generations) if shared else micro
    own, attended = micro * length + prompts * prompt, micro * (prompt + length)
    kept = shape.layers * _activations(shape, own, attended, wide)
    cache = total * (prompt + length) * 2 * shape.key_value * shape.layers * wide
    chunk = min(micro * length * shape.vocabulary, _LOGIT_CHUNK) * 4 * 4
    parts = [
        _part("Python and libraries", _CPU_BASE, "measured with the pinned versions"),
        _part("KV cache", cache, f"{total} rows of {prompt} + {length} tokens", "generation"),
        _part(
            "activations", kept, f"{own:,} tokens in {shape.layers} layers, at the micro-batch of {micro}", "training"
        ),
        _part("logits", chunk, f"four copies of a block of {_LOGIT_CHUNK / 1e6:.0f} million", "training"),
    ]
    if wide == 4 and (shared or settings.holdout_every):
        # grpo_nb.folded_lora keeps one more copy of the adapted weights, in float32; with LoRA dropout, which keeps training
        # from using it, for sampling. Held-out answers are sampled that way on either path, and the copy is given back.
        phase = "always" if shared else "generation"
        parts.append(
            _part("folded weights", shape.linear * 4, "the adapter added to a copy of the linear layers", phase)
        )
        packed = (shape.linear + shape.vocabulary * shape.hidden) * 4
        how = "linear layers and the output layer in the order that decoding likes"
        parts.append(_part("packed weights", packed, how, phase))
    return parts


def _on_gpu(
    settings: Settings, shape: ModelShape, gpu: Gpu, wide: int, prompt: int, weights: float, has_vllm: bool
) -> list[Part]:
    micro, length = settings.per_device_train_batch_size, settings.max_completion_length
    tokens = micro * (prompt + length)
    # Unsloth's checkpointing moves the layers' inputs to the computer's memory and recomputes one layer at a time.
    layer = _activations(shape, tokens, tokens, wide) + 2 * tokens * shape.hidden * wide
    # unsloth_zoo/rl_replacements.py, autotune_batch_and_chunks, for the smallest block it goes down to: one row, 4 chunks.
    logits = (prompt + length) * (shape.vocabulary * 16 / (4 * micro) + shape.hidden * 16)
    parts = [
        _part("CUDA and fragmentation", _GPU_RESERVE, "a margin, not a measurement"),
        _part("activations", layer, f"{tokens:,} tokens in one layer at a time (checkpointing)", "training"),
        _part("logits", logits, "the smallest block; Unsloth takes more where memory is free", "training"),
    ]
    if settings.fast_inference and has_vllm:
        standby = standby_share(gpu)
        share = settings.gpu_memory_utilization if standby is None else standby
        beside = max(share * gpu.memory_gib * 2**30 - weights, 0)
        how = f"{share:.0%} of the card less the weights it shares"
        if standby is None:
            parts.append(_part("vLLM", beside, how))
        else:
            parts.append(_part("vLLM", beside, f"{how}, given back in training (standby)", "generation"))
    else:
        rows = settings.generation_batch_size
        cache = rows * (prompt + length) * 2 * shape.key_value * shape.layers * wide
        parts.append(_part("KV cache", cache, f"{rows} rows of {prompt} + {length} tokens", "generation"))
    return parts


def vllm_cache_gb(settings: Settings, shape: ModelShape, gpu: Gpu, prompt: int) -> tuple[float, float]:
    """GB that vLLM has left for keys and values, and GB that one sequence needs; below one it cannot start.

    Out of its share also come the LoRA in 16 bit, its CUDA graphs (estimated as Unsloth does: unsloth_zoo/vllm_utils.py,
    approximate_vllm_memory_usage), and what Unsloth measured for the smallest batch (a table in load_vllm).
    """
    share = standby_share(gpu) or settings.gpu_memory_utilization
    packed = _FOUR_BIT if settings.load_in_4bit else 2
    weights = shape.linear * packed + (shape.parameters - shape.linear) * 2
    lora = 2 * shape.lora_parameters(settings.lora_rank, settings.lora_target_modules)
    graphs = min(max(172 * shape.hidden * shape.layers * 4, 0.15 * 2**30), 2**30)
    one = (prompt + settings.max_completion_length) * 2 * shape.key_value * shape.layers * 2
    left = share * gpu.memory_gib * 2**30 - weights - lora - graphs - _VLLM_AT_LEAST
    return left / 1e9, one / 1e9


def fitting_changes(settings: Settings, fits: Any, *, is_gpu: bool, count: int = 3) -> list[dict[str, Any]]:
    """The changes to settings that make `fits(settings)` true, the least first, each of another kind.

    Cheapest is a smaller micro-batch with more accumulation, which trains the same; then 4 bit on a GPU; TRL's own path on a
    CPU, which trains the same without copies of the weights and takes about three times as long; a shorter completion, a
    smaller group and, on a GPU, a smaller model of the presets.
    """
    found: list[dict[str, Any]] = []
    for _, changes in sorted(_candidates(settings, is_gpu), key=lambda item: item[0]):
        if any(set(small) <= set(changes) for small in found):
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


def _candidates(settings: Settings, is_gpu: bool) -> Iterator[tuple[float, dict[str, Any]]]:
    micro, steps = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    batches: list[tuple[float, dict[str, Any]]] = [(0, {})]
    for power in range(1, micro.bit_length()):
        if micro % 2**power == 0:
            smaller = {"per_device_train_batch_size": micro >> power, "gradient_accumulation_steps": steps << power}
            batches.append((power, smaller))
    bits: list[tuple[float, dict[str, Any]]] = [(0, {})]
    if is_gpu and not settings.load_in_4bit:
        bits.append((1.5, {"load_in_4bit": True}))
    paths: list[tuple[float, dict[str, Any]]] = [(0, {})]
    if not is_gpu and settings.shared_prompts:
        paths.append((4, {"shared_prompts": False}))
    groups: list[tuple[float, dict[str, Any]]] = [(0, {})]
    groups += [(6, {"num_generations": n}) for n in (settings.num_generations // 2,) if n >= 2]
    lengths: list[tuple[float, dict[str, Any]]] = [(0, {})]
    for power in range(1, 5):
        shorter = settings.max_completion_length >> power
        if shorter >= 16:
            lengths.append((5 * power, {"max_completion_length": shorter}))
    models: list[tuple[float, dict[str, Any]]] = [(0, {})]
    here = shape_of(settings.model)
    if here is not None and is_gpu:
        smaller_ones = [name for name in _SMALLER if shape_of(name).parameters < here.parameters]
        models += [(20 + 5 * i, {"model": name}) for i, name in enumerate(smaller_ones) if name in PUBLISHED]
    for choice in itertools.product(batches, bits, paths, groups, lengths, models):
        changes: dict[str, Any] = {}
        for _, part in choice:
            changes |= part
        if changes:
            yield sum(cost for cost, _ in choice), changes
