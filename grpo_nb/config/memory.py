"""Estimate the memory of a run by part, from the settings and the sizes of the model.

Bytes per weight: 2 in 16 bit, 4 in float32, 0.516 in 4 bit (4 bits, and 0.127 bits of scales:
QLoRA, arXiv:2305.14314, section 3). On a CPU the estimate is checked against measurements
(benchmarks/results/plan_memory.md). On a GPU it is not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_nb.config.model_sizes import ModelSizes
from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import Gpu

#: Python, torch, unsloth, transformers, trl, a tokenizer and a task, measured in pinned versions.
CPU_BASE_BYTES = 0.72e9
_BYTES_OF_FLOAT32 = 4
_BYTES_PER_4_BIT_WEIGHT = (4 + 0.127) / 8
# CUDA context and fragmentation: a margin, not a measurement.
_GPU_RESERVE_BYTES = 1.07e9
# Numbers per token that a layer keeps for the backward pass, for a gated MLP without dropout
# (arXiv:2205.05198, section 4.1): 12 hidden widths (two norms, inputs and outputs of attention,
# residuals) and 4 MLP widths (gate, its activation, up, their product).
_HIDDEN_WIDTHS_PER_TOKEN = 12
_MLP_WIDTHS_PER_TOKEN = 4
# Largest number of logits in one block on a CPU (unsloth_zoo/cpu/ops.py, cpu_chunked_log_probs).
_LOGITS_PER_BLOCK = 2**24
_OPTIMIZERS_IN_8_BIT = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit")
# Unsloth's estimate for a GPU (unsloth_zoo/rl_replacements.py, autotune_batch_and_chunks):
# bytes per hidden number and per logit, copies included.
_UNSLOTH_BYTES_PER_NUMBER = 16
# Minimum number of chunks into which Unsloth splits the logits.
_UNSLOTH_MIN_CHUNKS = 4


@dataclass(frozen=True)
class MemoryPart:
    """One part of a run's memory, such as the weights."""

    name: str
    bytes_needed: float
    explanation: str
    """Numbers that `bytes_needed` was computed from, or its source."""
    phase: str = "always"
    """Phase that needs the part: `in generation`, `in training` or `always`. The peak includes only
    the larger of the two phases."""

    @property
    def gb(self) -> float:
        """Memory in GB."""
        return self.bytes_needed / 1e9


def has_weight_copies(settings: Settings, gpu: Gpu | None, dtype: str) -> bool:
    """Return True if `grpo_nb.cpu` samples with two copies of the weights, kept during training."""
    return (
        gpu is None and dtype == "float32" and settings.shared_prompts and not settings.load_in_4bit
    )


def estimate_memory_parts(
    settings: Settings,
    sizes: ModelSizes,
    gpu: Gpu | None,
    dtype: str,
    prompt_tokens: int,
) -> Iterator[MemoryPart]:
    """Estimate each part, for completions of full length and a LoRA over all linear layers.

    Args:
        settings: Settings of the run. With `fast_inference` on a GPU, vLLM generates.
        sizes: Sizes of the model.
        gpu: GPU that trains, or None for a CPU.
        dtype: Dtype of the numbers that are not quantized, from `choose_dtype`.
        prompt_tokens: Tokens of the longest prompt.
    """
    bytes_per_number = _BYTES_OF_FLOAT32 if dtype == "float32" else 2
    weight_bytes = sizes.parameters * bytes_per_number
    explanation = f"{sizes.parameters / 1e6:,.0f} million in {8 * bytes_per_number} bit"
    if settings.load_in_4bit:
        # 4-bit loading packs only the linear layers.
        weight_bytes -= sizes.linear_weights * (bytes_per_number - _BYTES_PER_4_BIT_WEIGHT)
        explanation += f", except {sizes.linear_weights / 1e6:,.0f} million in 4 bit"
    yield MemoryPart("weights", weight_bytes, explanation)
    # PEFT keeps the LoRA in float32, even over 16-bit weights.
    lora_weights = settings.lora_rank * sizes.lora_weights_per_rank
    explanation = f"rank {settings.lora_rank}: {lora_weights / 1e6:,.1f} million in float32"
    lora_bytes = lora_weights * _BYTES_OF_FLOAT32
    yield MemoryPart("LoRA", lora_bytes, explanation)
    yield MemoryPart("gradients", lora_bytes, "one for each LoRA weight", "in training")
    optimizer_bytes = 2 * lora_bytes
    explanation = "two states in float32"
    # On a CPU, Unsloth replaces 8-bit optimizers by AdamW in float32 (unsloth_zoo/cpu/trainer.py).
    if gpu is not None and settings.optim in _OPTIMIZERS_IN_8_BIT:
        # Their scales are left out: 2 % of the states.
        optimizer_bytes = 2 * lora_weights
        explanation = "two states in 8 bit"
    yield MemoryPart("optimizer", optimizer_bytes, explanation)
    if gpu is None:
        yield MemoryPart(
            "Python and libraries", CPU_BASE_BYTES, "measured with the pinned versions"
        )
    else:
        yield MemoryPart(
            "CUDA and fragmentation", _GPU_RESERVE_BYTES, "a margin, not a measurement"
        )
    if gpu is not None and settings.fast_inference:
        # If the share cannot hold the weights, this part is 0, and `Plan.fits` is False.
        share_bytes = settings.gpu_memory_utilization * gpu.memory_gib * 2**30
        yield MemoryPart(
            "vLLM",
            max(share_bytes - weight_bytes, 0),
            "its share of the GPU, minus the weights, which it shares with training; freed while "
            "gradients are computed",
            "in generation",
        )
    else:
        # On a CPU, and on a GPU without vLLM.
        rows = settings.generation_batch_size
        length = settings.max_completion_length
        # A key and a value in each layer.
        bytes_per_token = 2 * sizes.key_value_width * sizes.layers * bytes_per_number
        yield MemoryPart(
            "KV cache",
            rows * (prompt_tokens + length) * bytes_per_token,
            f"{rows} rows of {prompt_tokens} + {length} tokens",
            "in generation",
        )
    yield from _training_pass_parts(settings, sizes, gpu, bytes_per_number, prompt_tokens)
    if has_weight_copies(settings, gpu, dtype):
        yield MemoryPart(
            "folded weights",
            sizes.linear_weights * _BYTES_OF_FLOAT32,
            "the adapter added to a copy of the linear layers",
        )
        packed_weights = sizes.linear_weights + sizes.vocabulary * sizes.hidden_width
        yield MemoryPart(
            "packed weights",
            packed_weights * _BYTES_OF_FLOAT32,
            "linear and output layers in the order that decoding reads",
        )


def _training_pass_parts(
    settings: Settings,
    sizes: ModelSizes,
    gpu: Gpu | None,
    bytes_per_number: int,
    prompt_tokens: int,
) -> Iterator[MemoryPart]:
    """Estimate the memory that one forward and backward pass keeps.

    The layers compute a shared prompt once, so it counts once in the *computed* tokens. Each row
    attends to it, so it counts once per row in the *attended* tokens. For each attended token,
    attention keeps the key and the value (2 x key_value_width numbers), and copies of both,
    repeated for every query head (2 x query_width numbers).
    """
    micro_batch = settings.per_device_train_batch_size
    length = settings.max_completion_length
    computed_prompts = micro_batch
    if settings.shared_prompts and gpu is None:
        # A pass computes each of its prompts once. TRL shuffles the rows of a generation (trl 1.15,
        # `shuffle_sequence_dict`), so one pass can contain every prompt of the generation.
        prompts = settings.generation_batch_size // settings.num_generations
        computed_prompts = min(micro_batch, prompts)
    computed_tokens = micro_batch * length + computed_prompts * prompt_tokens
    attended_tokens = micro_batch * (prompt_tokens + length)
    hidden_numbers_per_token = _HIDDEN_WIDTHS_PER_TOKEN * sizes.hidden_width
    mlp_numbers_per_token = _MLP_WIDTHS_PER_TOKEN * sizes.mlp_width
    attention_numbers_per_token = 2 * (sizes.key_value_width + sizes.query_width)
    computed_numbers = computed_tokens * (hidden_numbers_per_token + mlp_numbers_per_token)
    numbers_per_layer = computed_numbers + attended_tokens * attention_numbers_per_token
    if gpu is not None:
        # Unsloth's checkpointing recomputes one layer at a time.
        layers = 1
        layers_text = "one layer at a time (checkpointing)"
        # Unsloth computes at least one row at a time. It splits the row's logits into
        # 4 x micro_batch chunks and holds one chunk, so a smaller micro-batch has larger chunks.
        chunk_logits_per_token = sizes.vocabulary / (_UNSLOTH_MIN_CHUNKS * micro_batch)
        numbers_per_row = (prompt_tokens + length) * (chunk_logits_per_token + sizes.hidden_width)
        logits_bytes = numbers_per_row * _UNSLOTH_BYTES_PER_NUMBER
        logits_explanation = "the smallest block; Unsloth takes more where memory is free"
    else:
        layers = sizes.layers
        layers_text = f"{layers} layers"
        block = min(micro_batch * length * sizes.vocabulary, _LOGITS_PER_BLOCK)
        # Four copies in float32.
        logits_bytes = 16 * block
        logits_explanation = "four copies of the largest block"
    yield MemoryPart(
        "activations",
        layers * numbers_per_layer * bytes_per_number,
        f"{computed_tokens:,} tokens in {layers_text}, micro-batch of {micro_batch}",
        "in training",
    )
    yield MemoryPart("logits", logits_bytes, logits_explanation, "in training")
