"""What the loaders of Unsloth are told, and which path will generate: decided here, before anything is loaded."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

from grpo_nb.config import Settings
from grpo_nb.environment import EnvironmentProblem, Gpu
from grpo_nb.gpu_errors import VLLM_ALONE, find_fault, gpu_problem
from grpo_nb.health_memory import explain_out_of_memory
from grpo_nb.vllm_obstacles import VllmObstacle

_KEPT_ON = "grpo_nb_generation"
_said: set[str] = set()
_engine: weakref.ref[Any] | None = None


@dataclass(frozen=True)
class Generation:
    """What generates completions for a loaded model."""

    path: str
    """`vllm`, `unsloth` or `kit`."""
    reason: str = ""
    """Why it is not vLLM, where vLLM was asked for."""
    version: str = ""
    """Of vLLM."""

    def __str__(self) -> str:
        if self.path == "vllm":
            return f"vLLM {self.version}".strip()
        name = {"unsloth": "Unsloth's own generation", "kit": "the kit's rollout on a CPU"}[self.path]
        return f"{name}; not vLLM: {self.reason}" if self.reason else name


def loader_arguments(settings: Settings, source: str, gpu: Gpu | None, *, use_vllm: bool) -> dict[str, Any]:
    """The arguments of `FastLanguageModel.from_pretrained`.

    No `dtype` on purpose: Unsloth takes bfloat16 from compute capability 8.0 on, else float16, or float32 for the families
    that overflow in float16, by the same function that the trainer's `bf16` and `fp16` come from
    (`grpo_nb.unsloth_first.is_bfloat16_supported`), so that the two cannot disagree.

    Args:
        settings: Of the run.
        source: A folder or Hub id.
        gpu: That trains, or None for a CPU.
        use_vllm: Whether vLLM generates.
    """
    arguments: dict[str, Any] = {
        "model_name": source,
        "max_seq_length": settings.max_prompt_length + settings.max_completion_length,
        "load_in_4bit": settings.load_in_4bit,
        "load_in_16bit": not settings.load_in_4bit,
        "use_gradient_checkpointing": _checkpointing(gpu),
    }
    if use_vllm:
        arguments |= {
            "fast_inference": True,
            # Unsloth rounds it up to a rank that vLLM has kernels for.
            "max_lora_rank": settings.lora_rank,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
        }
    return arguments


def lora_arguments(settings: Settings, gpu: Gpu | None) -> dict[str, Any]:
    """The arguments of `FastLanguageModel.get_peft_model`, but for the model."""
    return {
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": settings.lora_dropout,
        "target_modules": list(settings.lora_target_modules),
        "use_gradient_checkpointing": _checkpointing(gpu),
        "random_state": settings.seed,
    }


def _checkpointing(gpu: Gpu | None) -> str | bool:
    # It trades time for memory: worth it on a GPU; on a CPU memory is not short, and it drops the key/value cache.
    return "unsloth" if gpu is not None else False


def say_once(obstacle: VllmObstacle) -> None:
    """Warn, the first time in this process, that vLLM was asked for and is not used."""
    if obstacle.reason in _said:
        return
    _said.add(obstacle.reason)
    warnings.warn(
        f"Completions are generated without vLLM, which is slower: {obstacle.reason}. What to do: {obstacle.fix}.",
        stacklevel=3,
    )


def remember_generation(model: Any, generation: Generation) -> None:
    """Note on the model what generates for it."""
    setattr(model, _KEPT_ON, generation)


def generation_of(model: Any) -> Generation:
    """What generates for a loaded model; for one that the kit did not load, by whether it has an engine."""
    noted = getattr(model, _KEPT_ON, None)
    if isinstance(noted, Generation):
        return noted
    if has_engine(model):
        return Generation("vllm")
    return Generation("kit" if next(model.parameters()).device.type == "cpu" else "unsloth")


def has_engine(model: Any) -> bool:
    """Whether a vLLM engine shares the model's weights: then it samples, for the trainer and for everything else."""
    return getattr(model, "vllm_engine", None) is not None


def remember_engine(engine: Any) -> None:
    """Note which vLLM engine this kernel has."""
    global _engine
    _engine = weakref.ref(engine)


def engine_obstacle() -> VllmObstacle | None:
    """Why a second engine cannot be started beside one that this kernel has; the first is put to sleep, so that there is room.

    In standby vLLM's allocator works for one engine of a process, and a second one ends in an assertion
    (vllm/v1/worker/gpu_worker.py, "CuMem allocator can only be used for one instance per process"). Without standby two may
    live side by side.
    """
    if _engine is None or os.environ.get("UNSLOTH_VLLM_STANDBY", "0") == "0":
        return None
    gc.collect()  # one that nobody holds any more is no obstacle
    engine = _engine()
    if engine is None:
        return None
    engine.sleep(1)  # its next sampling wakes it (unsloth_zoo/vllm_utils.py, patch_vllm_enable_sleep_mode)
    return VllmObstacle(
        "a model with vLLM is loaded in this kernel already, and in standby there is one at a time",
        "go on with that model, or restart the kernel before another one is loaded",
    )


def longest_of(engine: Any) -> int:
    """Tokens of prompt and completion together that a vLLM engine was started for; longer ones it cuts without a word."""
    return engine.llm_engine.vllm_config.model_config.max_model_len


def warn_if_shortened(engine: Any, settings: Settings) -> None:
    """Say that vLLM got less room than the settings ask for: it would cut completions there, and refuse longer prompts.

    Unsloth lowers the length by itself where the memory is short, and prints a line about it
    (unsloth_zoo/vllm_utils.py, _fit_max_seq_length_to_kv_cache).
    """
    wanted = settings.max_prompt_length + settings.max_completion_length
    got = longest_of(engine)
    if got < wanted:
        warnings.warn(
            f"vLLM's memory has room for sequences of {got} tokens, and prompt and completion may be {wanted}: longer ones are "
            "cut there. settings = settings.replace(max_completion_length="
            f"{max(got - settings.max_prompt_length, 1)}), or a smaller model (gn.models_for shows those that fit).",
            stacklevel=4,
        )


def loading_problem(error: Exception, settings: Settings, *, with_vllm: bool = False) -> Exception | None:
    """The error to raise when loading failed for a reason that is known, with the setting to change; else None.

    Args:
        error: What was raised.
        settings: Of the run.
        with_vllm: Whether vLLM was loaded with it. Then None also for what may be vLLM's fault alone.
    """
    alert = explain_out_of_memory(error, settings, place="loading")
    if alert is not None:
        problem = EnvironmentProblem(f"{alert.message} {alert.why} Write {alert.advice} ({type(error).__name__})")
        problem.__cause__ = error
        return problem
    fault = find_fault(error)
    if fault is not None and with_vllm and fault.name in VLLM_ALONE:
        return None
    return gpu_problem(error)


def start_obstacle(error: Exception) -> VllmObstacle:
    """Why vLLM is not used after its engine did not start, with what to do."""
    first = (str(error).strip().splitlines() or ["no message"])[0][:300]
    fault = find_fault(error)
    fix = "fast_inference=False skips the attempt" if fault is None else fault.fix
    return VllmObstacle(f"vLLM did not start ({type(error).__name__}: {first})", fix)
