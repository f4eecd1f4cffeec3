"""Choice of the engine that samples from a model, with the reason why no faster engine does.

On a GPU, vLLM is the fastest. On a CPU, the kit's `CpuEngine` is, because it computes each distinct
prompt once. If neither can be used, `model.generate` samples: Unsloth's on a GPU, transformers' on
a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_nb.config import hardware
from grpo_nb.generation.vllm import vllm_engine_obstacle
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.load_record import LOAD_RECORDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo_nb.config.settings import Settings


@dataclass(frozen=True)
class EngineChoice:
    """The engine that samples from a model, and why no faster engine does."""

    name: str
    """Name of the engine, for the user to read."""
    vllm_obstacle: str | None
    """Reason why vLLM does not sample; None if it does."""
    cpu_engine_obstacle: str | None
    """Reason why the `CpuEngine` cannot run the model or is switched off; None if it can be used.
    Even then, vLLM takes precedence."""

    @property
    def can_use_cpu_engine(self) -> bool:
        """True if the `CpuEngine` can run the model and the settings allow it."""
        return self.cpu_engine_obstacle is None


def choose_engine(model: PreTrainedModel | None, settings: Settings | None = None) -> EngineChoice:
    """Return the engine that will sample from a model as it is.

    Args:
        model: Loaded model, or None to ask which engine a model of these settings would get.
        settings: Settings of the run, or None to ask about the model alone.
    """
    longest_sequence = None if settings is None else settings.longest_sequence
    if model is None:
        vllm_obstacle = hardware.vllm_loading_obstacle(settings, find_gpu())
    elif hardware.has_vllm_engine(model):
        vllm_obstacle = vllm_engine_obstacle(model, longest_sequence)
    else:
        record = LOAD_RECORDS.get(model)
        recorded_obstacle = None if record is None else record.vllm_obstacle
        vllm_obstacle = recorded_obstacle or "the model was loaded without vLLM"
    cpu_engine_obstacle = _cpu_engine_obstacle(model, settings, longest_sequence)
    # From the fastest to the slowest.
    if vllm_obstacle is None:
        name = "vLLM"
    elif cpu_engine_obstacle is None:
        # This also holds for a model that is on the CPU of a machine with a GPU.
        name = "the kit's CPU engine"
    elif find_gpu() is not None:
        name = "Unsloth's own generation"
    else:
        name = "transformers' own generation"
    return EngineChoice(name, vllm_obstacle, cpu_engine_obstacle)


def _cpu_engine_obstacle(
    model: PreTrainedModel | None, settings: Settings | None, longest_sequence: int | None
) -> str | None:
    """Return why the `CpuEngine` cannot sample with these settings, or None if it can."""
    if model is None and find_gpu() is not None:
        return "it is for CPUs only"
    if settings is not None and not settings.shared_prompts:
        return "shared_prompts=False switches it off"
    # Imported here because it loads unsloth.
    from grpo_nb.cpu.engine import CpuEngine

    extra = {} if settings is None else settings.extra
    if extra.get("gradient_checkpointing"):
        # transformers switches it on when the training begins.
        return "gradient checkpointing drops the key/value cache"
    obstacle = None if model is None else CpuEngine.model_obstacle(model, longest_sequence)
    generation_kwargs = extra.get("generation_kwargs")
    if obstacle is None and generation_kwargs:
        from transformers import GenerationConfig

        config = GenerationConfig(**{"do_sample": True, **generation_kwargs})
        obstacle = CpuEngine.sampling_obstacle(config)
    return obstacle
