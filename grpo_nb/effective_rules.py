"""The changes that Unsloth, TRL and the kit make to settings, one rule each, worked out without loading any of them.

Each rule names the function it was read in (unsloth and unsloth_zoo 2026.10.9, trl 1.15, transformers 5.17). The rules for a
CPU are tested against trainers built here, those for a GPU by running Unsloth's own lines of code, taken from the installed
source, on the same values. Not covered: what a `model` of a certain family makes Unsloth change while it loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config import Settings
from grpo_nb.environment import Gpu
from grpo_nb.vllm_obstacles import VllmObstacle

_SAME_NAME = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "max_completion_length",
    "max_steps", "learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "beta",
    "temperature", "top_p", "top_k", "loss_type", "optim", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """One row: what was asked for, what will run, why, and where that was read."""

    name: str
    asked: Any
    runs: Any
    why: str
    source: str
    is_changed: bool = True
    """False where the value stays but means something else than it seems."""


def requested_arguments(settings: Settings, *, gpu: Gpu | None, has_bf16: bool, has_vllm: bool) -> dict[str, Any]:
    """What the kit hands to `GRPOConfig`, but for the bookkeeping of a run (folders, logging, saving).

    Args:
        settings: Of the run.
        gpu: That trains, or None for a CPU.
        has_bf16: Whether bfloat16 is fast on it.
        has_vllm: Whether vLLM generates: for a loaded model, whether it has an engine.
    """
    vllm = {"use_vllm": True} if settings.fast_inference and gpu is not None and has_vllm else {}
    return {
        **{name: getattr(settings, name) for name in _SAME_NAME},
        **vllm,
        "adam_beta2": 0.99,  # a run of tens of steps forgets the first gradients sooner than 0.999 lets it
        "bf16": has_bf16,
        "fp16": gpu is not None and not has_bf16,
        "gradient_checkpointing": gpu is not None,
        **settings.extra,
    }


def kit_rows(settings: Settings, gpu: Gpu | None, obstacle: VllmObstacle | None) -> list[Effect]:
    rows = []
    has_vllm = obstacle is None
    if settings.fast_inference and gpu is None:
        rows.append(
            Effect(
                "fast_inference", True, False,
                "vLLM needs a GPU. The kit's own rollout generates here, each distinct prompt computed once.",
                "unsloth_zoo/cpu/loader.py, FastCPUModel.from_pretrained, which would raise",
            )
        )  # fmt: skip
    elif settings.fast_inference and not has_vllm:
        rows.append(
            Effect(
                "fast_inference", True, False,
                f"{obstacle.reason}, so Unsloth's own, slower generation is used. {obstacle.fix}.",
                "grpo_nb/vllm_obstacles.py, vllm_obstacle",
            )
        )  # fmt: skip
    if settings.load_in_4bit and gpu is None:
        rows.append(
            Effect(
                "load_in_4bit", True, True,
                "On a CPU 4 bit is about a tenth slower than 16 and cannot be merged without loading the model again; layers "
                "narrower than 64 are loaded in 16 bit.",
                "unsloth_zoo/cpu/loader.py, FastCPUModel.from_pretrained", is_changed=False,
            )
        )  # fmt: skip
    if settings.shared_prompts and gpu is not None:
        rows.append(
            Effect(
                "shared_prompts", True, False,
                "A rollout of the kit for CPUs. On a GPU, vLLM's prefix cache or Unsloth's generation does that work.",
                "grpo_nb/shared_prompts.py, shared_prompt_obstacle",
            )
        )  # fmt: skip
    if settings.lora_dropout and gpu is not None:
        rows.append(
            Effect(
                "lora_dropout", settings.lora_dropout, settings.lora_dropout,
                "Unsloth's fast LoRA kernels want 0; with dropout the layers run through PEFT, more slowly.",
                "unsloth/models/llama.py, FastLlamaModel.get_peft_model", is_changed=False,
            )
        )  # fmt: skip
    share = standby_share(gpu) if settings.fast_inference and has_vllm and gpu is not None else None
    if share is not None and share != settings.gpu_memory_utilization:
        rows.append(
            Effect(
                "gpu_memory_utilization", settings.gpu_memory_utilization, share,
                "Unsloth's standby, which the kit switches on, sets its own share for this card: vLLM gives most of it back "
                "while gradients are computed. To keep yours: UNSLOTH_VLLM_STANDBY=0 before the import.",
                "unsloth_zoo/vllm_utils.py, load_vllm",
            )
        )  # fmt: skip
    return rows


def standby_share(gpu: Gpu) -> float | None:
    """The share of memory that Unsloth's standby mode makes vLLM take, or None where standby is switched off.

    Source: unsloth_zoo/vllm_utils.py, `load_vllm`, for vLLM 0.11 and later: by a tenth of the memory, less 5 percent.
    """
    if (
        os.environ.get("UNSLOTH_VLLM_STANDBY") == "0"
        or os.environ.get("UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE", "0") != "0"
    ):
        return None
    steps = ((4.0, 0.925), (2.5, 0.9), (2.0, 0.825), (1.4, 0.8), (1.0, 0.775))
    share = next((share for least, share in steps if gpu.memory_gib * 0.1 >= least), 0.75)
    return share * 0.95


def _change(
    rows: list[Effect],
    asked: Mapping[str, Any],
    arguments: dict[str, Any],
    name: str,
    value: Any,
    why: str,
    source: str,
) -> None:
    before = arguments.get(name, NOT_SET)
    arguments[name] = value
    if before is NOT_SET or before != value:
        rows.append(Effect(name, asked.get(name, before), value, why, source))


class _NotSet:
    def __repr__(self) -> str:
        return "not set"


NOT_SET = _NotSet()


def on_cpu(settings: Settings, arguments: dict[str, Any], has_bf16: bool) -> list[Effect]:
    rows: list[Effect] = []
    asked = dict(arguments)
    source = "unsloth_zoo/cpu/trainer.py, normalize_cpu_training_arguments"
    arguments["use_cpu"] = True
    if not has_bf16:
        why = "This CPU has no instructions for bfloat16 and would emulate them, several times slower: weights take 4 bytes."
        rows.append(Effect("precision", "bfloat16", "float32", why, "unsloth_zoo/cpu/runtime.py, cpu_bf16_supported"))
    if arguments.get("fp16"):
        why = "On a CPU bfloat16 is taken instead, or float32 where the CPU has no instructions for it."
        arguments["bf16"] = has_bf16
        _change(rows, asked, arguments, "fp16", False, why, source)
    if arguments.get("bf16") is None:  # TRL's word for "unless fp16"
        arguments["bf16"] = has_bf16
    elif arguments["bf16"] and not has_bf16:
        why = "This CPU has no instructions for bfloat16 and would emulate them, several times slower."
        _change(rows, asked, arguments, "bf16", False, why, source)
    optimizer = arguments["optim"].lower()
    if optimizer == "adamw_torch":
        why = "The same optimizer, fused, which is faster over a LoRA's many small tensors."
        _change(rows, asked, arguments, "optim", "adamw_torch_fused", why, source)
    elif any(tag in optimizer for tag in ("8bit", "paged", "bnb", "npu", "xla", "apex")):
        why = "This optimizer has no code for a CPU. The state of a LoRA is small, so nothing is lost."
        _change(rows, asked, arguments, "optim", "adamw_torch_fused", why, source)
    if arguments.get("tf32"):
        _change(rows, asked, arguments, "tf32", None, "A number format of GPUs.", source)
    if arguments.get("dataloader_pin_memory"):
        _change(rows, asked, arguments, "dataloader_pin_memory", False, "Only useful for copies to a GPU.", source)
    if arguments.get("gradient_checkpointing"):
        kwargs = {"use_reentrant": False, **(arguments.get("gradient_checkpointing_kwargs") or {})}
        why = "The way of checkpointing that works with a LoRA on a CPU."
        _change(rows, asked, arguments, "gradient_checkpointing_kwargs", kwargs, why, source)
        if settings.shared_prompts:
            rows.append(
                Effect(
                    "shared_prompts", True, True,
                    "Checkpointing drops the key/value cache that sharing needs, and on a CPU memory is rarely short: leave "
                    "gradient_checkpointing out, or set shared_prompts=False.",
                    "grpo_nb/shared_prompts.py, shared_prompt_obstacle", is_changed=False,
                )
            )  # fmt: skip
    return rows


def on_gpu(settings: Settings, arguments: dict[str, Any], gpu: Gpu) -> list[Effect]:
    rows: list[Effect] = []
    asked = dict(arguments)
    source = "unsloth/models/rl.py, _patch_trl_rl_trainers"
    loss = arguments["loss_type"] = arguments["loss_type"].lower()
    if arguments.get("use_vllm") and not arguments.get("top_k"):
        why = "The same for vLLM, which writes -1 for no limit."
        where = "unsloth/models/rl_replacements.py, grpo_config_fix_vllm_top_k"
        _change(rows, asked, arguments, "top_k", -1, why, where)
    if loss == "dr_grpo":
        scale = arguments.get("scale_rewards", "group")
        if scale is None:
            arguments["scale_rewards"] = True
        elif scale is True or scale == "group":
            why = (
                "The Dr. GRPO paper (arXiv:2503.20783) does not divide advantages by the spread of their group. To divide "
                'all the same: extra={"scale_rewards": None}.'
            )
            _change(rows, asked, arguments, "scale_rewards", False, why, source)
    if loss == "dapo":
        if arguments.get("mask_truncated_completions") is None:
            why = (
                "The DAPO paper (arXiv:2503.14476) leaves completions that were cut out of the loss; if all are cut, nothing "
                'is learnt. To keep them: extra={"mask_truncated_completions": False}.'
            )
            _change(rows, asked, arguments, "mask_truncated_completions", True, why, source)
        if arguments.get("epsilon_high") is None:
            low = arguments.get("epsilon", 0.2)
            why = f'The DAPO paper\'s upper clip. For one equal to the lower: extra={{"epsilon_high": {low}}}.'
            _change(rows, asked, arguments, "epsilon_high", 0.28, why, source)
        if arguments["beta"]:
            why = "Stays, with a printed warning: the DAPO paper has no KL term. Without it there is no KL curve."
            rows.append(Effect("beta", arguments["beta"], arguments["beta"], why, source, is_changed=False))
    if loss == "cispo" and arguments.get("epsilon_high") is None:
        why = "CISPO caps the importance weight at this value itself; the ScaleRL paper (arXiv:2510.13786) takes 5."
        _change(rows, asked, arguments, "epsilon_high", 5.0, why, source)
    if arguments.get("mask_truncated_completions") is None:
        arguments["mask_truncated_completions"] = False
    if arguments.get("use_vllm") and "vllm_importance_sampling_correction" not in arguments:
        why = (
            "TRL corrects for the difference between vLLM's probabilities and those of training, Unsloth does not unless "
            'asked: extra={"vllm_importance_sampling_correction": True}.'
        )
        _change(rows, asked, arguments, "vllm_importance_sampling_correction", False, why, source)
    if arguments.get("gradient_checkpointing"):
        kwargs = {**(arguments.get("gradient_checkpointing_kwargs") or {}), "use_reentrant": True}
        arguments["gradient_checkpointing_kwargs"] = kwargs
    if arguments["fp16"]:
        why = (
            f"{gpu.name} has no bfloat16 (compute capability {gpu.compute_capability[0]}.{gpu.compute_capability[1]})."
        )
        rows.append(Effect("precision", "bfloat16", "float16", why, "grpo_nb/models.py, is_bfloat16_supported"))
    return rows


def by_trl(settings: Settings, arguments: dict[str, Any], *, is_gpu: bool) -> list[Effect]:
    rows: list[Effect] = []
    asked = dict(arguments)
    source = "trl/trainer/grpo_config.py, GRPOConfig.__post_init__"
    if arguments["bf16"] is None:
        arguments["bf16"] = not arguments["fp16"]
    if isinstance(arguments.get("scale_rewards"), bool):
        arguments["scale_rewards"] = "group" if arguments["scale_rewards"] else "none"
    micro = arguments["per_device_train_batch_size"]
    total = settings.generation_batch_size
    arguments |= {"generation_batch_size": total, "steps_per_generation": total // micro}
    step = settings.batch_size
    if total != step:
        updates = total * arguments.get("num_iterations", 1) / step
        why = (
            f"{total} completions are generated at a time and used for {updates:g} optimizer steps of {step}, so the later of "
            "them learn from an older policy; the clipped ratio corrects for that."
            if total > step
            else f"each optimizer step of {step} completions generates {step / total:g} times, {total} at a time."
        )
        rows.append(
            Effect("generation_batch_size", settings.extra.get("generation_batch_size", NOT_SET), total, why, source)
        )
    trainer = "trl/trainer/grpo_trainer.py, GRPOTrainer.__init__"
    if arguments["loss_type"] == "cispo" and arguments.get("epsilon_high") is None:
        why = (
            "Left out, it is epsilon, and CISPO caps the importance weight at this value itself: every weight would be cut. "
            'Write extra={"epsilon_high": 5.0}, as the ScaleRL paper (arXiv:2510.13786) and Unsloth on a GPU do.'
        )
        rows.append(Effect("epsilon_high", NOT_SET, arguments.get("epsilon", 0.2), why, trainer))
    if not is_gpu and arguments["loss_type"] in ("dapo", "dr_grpo"):
        extra = {"dapo": ("mask_truncated_completions", True), "dr_grpo": ("scale_rewards", False)}[settings.loss_type]
        if extra[0] not in arguments:
            why = (
                f"On a CPU TRL's own defaults apply. On a GPU Unsloth would set {extra[0]}={extra[1]}"
                f"{' and epsilon_high=0.28' if settings.loss_type == 'dapo' else ''}, so the same settings train differently "
                "there: write them into extra for one behaviour on both."
            )
            rows.append(Effect("loss_type", settings.loss_type, settings.loss_type, why, trainer, is_changed=False))
    level = arguments.get("importance_sampling_level", "token")
    if level == "sequence" and arguments["loss_type"] in ("bnpo", "dr_grpo", "dapo", "cispo"):
        why = 'This loss then weighs each completion by its length. For GSPO as in arXiv:2507.18071: loss_type="grpo".'
        rows.append(Effect("importance_sampling_level", level, level, why, trainer, is_changed=False))
    if "num_train_epochs" in settings.extra:
        why = f"max_steps = {settings.max_steps} decides how long the run is."
        where = "transformers/trainer.py, Trainer.set_initial_training_values"
        rows.append(Effect("num_train_epochs", asked["num_train_epochs"], "ignored", why, where))
    return rows
