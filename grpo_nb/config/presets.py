"""Presets of settings for kinds of machines."""

from collections.abc import Mapping
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import find_gpu

# Only `cpu` is measured (docs/evidence/quickstart_seeds.md). The others are starting points:
# learning rates come from published guides, lengths and batches fit according to `gn.plan`, and
# gpu_memory_utilization is Unsloth's value for standby (unsloth_zoo/vllm_utils.py, load_vllm).
# docs/reference/settings.md shows the presets side by side.
_GPU_SETTINGS = {
    "model": "unsloth/Qwen2.5-1.5B-Instruct",
    "load_in_4bit": True,
    "fast_inference": True,
    "max_completion_length": 512,
    "lora_rank": 32,
    "lora_alpha": 64,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "cosine",
    "max_steps": 250,
    "warmup_steps": 0.1,
    "max_grad_norm": 0.1,
    "weight_decay": 0.1,
    "optim": "adamw_8bit",
}
_LARGE_GPU_SETTINGS = {
    **_GPU_SETTINGS,
    "model": "unsloth/Qwen2.5-7B-Instruct",
    "gpu_memory_utilization": 0.855,
    "max_prompt_length": 512,
    "max_completion_length": 1024,
    "num_generations": 16,
    "per_device_train_batch_size": 16,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {},
    "t4": {
        **_GPU_SETTINGS,
        "gpu_memory_utilization": 0.76,
        # If the driver is too old for vLLM, a run of this length takes up to 53 minutes (computed,
        # not measured: docs/reference/settings.md).
        "max_completion_length": 256,
        "max_steps": 100,
        "lora_rank": 16,
        "lora_alpha": 32,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
    },
    "l4": {
        **_GPU_SETTINGS,
        "model": "unsloth/Qwen2.5-3B-Instruct",
        "gpu_memory_utilization": 0.784,
        # As in Unsloth's notebooks for GRPO. The other presets for GPUs have twice this rate.
        "learning_rate": 5e-6,
    },
    "a100": _LARGE_GPU_SETTINGS,
    "h100": {
        **_LARGE_GPU_SETTINGS,
        "load_in_4bit": False,
        "gpu_memory_utilization": 0.879,
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 1,
        "optim": "adamw_torch_fused",
    },
}


def preset(name: str = "auto", **changes: Any) -> Settings:
    """Return the settings for a kind of machine, with changes.

    Args:
        name: `cpu`, `t4`, `l4`, `a100`, `h100` or `auto`. `auto` chooses by the memory of the GPU,
            and chooses `cpu` if there is no GPU.
        **changes: Any field of `Settings`.

    Raises:
        ValueError: A preset or setting is unknown, or a value cannot work.

    >>> preset("cpu", max_steps=5).max_steps
    5
    """
    if name == "auto":
        name = _preset_for_this_machine()
    # The error suggests no similar name, because it might be the preset of another machine. A list,
    # unlike a dict, can also be searched for a value that has no hash.
    if name not in list(PRESETS):
        raise ValueError(
            f'preset = {name!r:.80} is unknown. Choose from: {", ".join(PRESETS)}; or "auto", '
            "which chooses by the memory of the GPU, and chooses cpu if there is no GPU."
        )
    return Settings(**PRESETS[name]).replace(**changes)


def _preset_for_this_machine() -> str:
    gpu = find_gpu()
    if gpu is None:
        return "cpu"
    for name, min_memory_gib in (("h100", 70), ("a100", 36), ("l4", 20)):
        if gpu.memory_gib >= min_memory_gib:
            return name
    return "t4"
