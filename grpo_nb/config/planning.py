"""Plan the memory of a run (`gn.plan`): what it needs, if that fits, and smaller settings that fit.

The memory is estimated from the sizes of the model; `memory` has the formulas and their sources.
The time of a step is not estimated.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.counting import count_sizes
from grpo_nb.config.hardware import ComputeDtype, choose_dtype, has_vllm_engine, vllm_obstacle
from grpo_nb.config.memory import (
    CPU_BASE_BYTES,
    MemoryPart,
    ModelSizes,
    estimate_memory_parts,
    sizes_of,
    vllm_share_bytes,
)
from grpo_nb.config.settings import Settings
from grpo_nb.config.smaller_settings import line_to_write, memory_savings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.problems import EnvironmentProblem, warn_user
from grpo_nb.core.tables import ReprMixin, Table, bold
from grpo_nb.machine.gpu import Gpu, find_gpu, read_gpu
from grpo_nb.machine.host import free_memory_bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(ReprMixin):
    """Memory that a run needs, and memory that the machine has for it."""

    settings: Settings
    """Settings that will run. `fast_inference` is off where vLLM cannot generate."""
    gpu: Gpu | None
    """GPU that trains, or None for a CPU."""
    available_gb: float
    """Memory for the run: the free memory, and the memory that its loaded model holds already."""
    dtype: ComputeDtype
    """Dtype of the numbers that are not quantized."""
    prompt_tokens: int
    """Tokens of the longest prompt, or `max_prompt_length` if no prompt was measured."""
    sizes: ModelSizes
    """Sizes of the model."""
    vllm_obstacle: str | None = None
    """Reason why vLLM does not generate although it was asked for; None otherwise."""

    @property
    def memory_parts(self) -> list[MemoryPart]:
        """Memory by part."""
        parts = estimate_memory_parts(
            self.settings, self.sizes, self.gpu, self.dtype.name, self.prompt_tokens
        )
        return list(parts)

    @property
    def peak_gb(self) -> float:
        """Memory of the larger phase, with completions of full length."""
        sums: Counter[str] = Counter()
        for part in self.memory_parts:
            sums[part.phase] += part.gb
        return sums["always"] + max(sums["generation"], sums["training"])

    @property
    def fits(self) -> bool:
        """True if the memory is enough, and vLLM's share of the GPU holds the weights."""
        return not self._share_problem and self.peak_gb <= self.available_gb

    @property
    def _share_problem(self) -> str:
        """Sentence about a share of vLLM that is too small for the weights; else empty."""
        if self.gpu is None or not self.settings.fast_inference:
            return ""
        share_gb = vllm_share_bytes(self.settings, self.gpu) / 1e9
        (weights,) = (part for part in self.memory_parts if part.name == "weights")
        if share_gb > weights.gb:
            return ""
        return (
            f"vLLM's share of the GPU (gpu_memory_utilization), {share_gb:.1f} GB, is too small "
            f"for the weights, {weights.gb:.1f} GB. "
        )

    def require_fit(self) -> None:
        """Raise if a run on a CPU does not fit; warn if a run on a GPU does not.

        Raises:
            EnvironmentProblem: Shows the memory needed, the free memory, and settings that fit.
        """
        if self.fits:
            return
        message = (
            f"{self._verdict()} (The estimate assumes that every completion has "
            "max_completion_length tokens.)"
        )
        # A full GPU raises an error. On a CPU, the system kills a kernel that needs too much.
        if self.gpu is None:
            raise EnvironmentProblem(message)
        warn_user(message)

    def _verdict(self) -> str:
        machine = self.gpu.name if self.gpu else "this computer"
        free = f"{machine} has {self.available_gb:.1f} GB free"
        need = f"about {self.peak_gb:.1f} GB at its peak"
        if self.fits:
            return f"The run fits {machine}: it needs {need}; {free}."
        changes = self._fitting_changes()
        advice = "No smaller settings fit; take a smaller model."
        if changes:
            advice = f"These settings fit: {line_to_write(changes)}"
        return f"This run needs {need}; {free}. {self._share_problem}{advice}"

    def _fitting_changes(self) -> dict[str, Any]:
        """Return the changes with which the run fits; empty if no smaller settings fit."""
        changes: dict[str, Any] = {}
        current = self
        is_on_gpu = self.gpu is not None
        # Each saving can be repeated only a few times, so the loop ends.
        while not current.fits:
            for saving in memory_savings(
                current.settings, is_on_gpu=is_on_gpu, dtype=self.dtype.name
            ):
                smaller_settings = current.settings.replace(**saving.change)
                smaller = dataclasses.replace(current, settings=smaller_settings)
                # A plan that fits is accepted even at an equal peak: turning vLLM off fixes a share
                # that is too small for the weights, without a lower peak.
                if smaller.fits or smaller.peak_gb < current.peak_gb:
                    break
            else:
                return {}
            changes |= saving.change
            current = smaller
        return changes

    def _shown_parts(self) -> Iterable[str | Table]:
        """Yield the verdict and the table."""
        settings = self.settings
        yield f"Plan for {settings.model}. {self._verdict()}"
        passes = f"{settings.per_device_train_batch_size} x {settings.gradient_accumulation_steps}"
        engine = "vLLM" if settings.fast_inference else "without vLLM"
        why_engine = (
            f"requested: vLLM. {self.vllm_obstacle}" if self.vllm_obstacle else "as requested"
        )
        parts = []
        for part in self.memory_parts:
            phase = "" if part.phase == "always" else f"; in {part.phase}"
            parts.append((part.name, f"{part.gb:.2f} GB", f"{part.explanation}{phase}"))
        rows = [
            (bold("requested and effective"), "", ""),
            ("training steps", f"{settings.max_steps:,}", ""),
            (
                "completions a step",
                settings.completions_per_step,
                f"{passes}, in groups of {settings.num_generations}",
            ),
            ("dtype", self.dtype.name, f"requested: {settings.dtype}. {self.dtype.reason}"),
            ("sampling", engine, why_engine),
            (bold("needed (estimate)"), "", ""),
            *parts,
            (
                bold("memory, peak"),
                bold(f"{self.peak_gb:.2f} GB"),
                "estimate: the larger of generation and training",
            ),
            (
                "disk, merged export",
                f"{self.sizes.parameters * 2 / 1e9:.2f} GB",
                "all weights in 16 bit",
            ),
            (bold("available"), "", ""),
            ("memory", f"{self.available_gb:.2f} GB", "free for this run"),
        ]
        yield Table(rows, head=("", "value", "explanation"), right=(1,), narrow=(0, 1))


def plan(settings: Settings, task: Any = None, *, model: Any = None, tokenizer: Any = None) -> Plan:
    """Estimate the memory of a run on this machine, and the disk for its export.

    Args:
        settings: Settings of the run.
        task: A `Task`, whose longest prompt is measured.
        model: The loaded model. If it is missing, its sizes are counted on a model without weights,
            built from the configuration. This takes some seconds the first time.
        tokenizer: Tokenizer that measures the prompts. Without a task or without a tokenizer, the
            longest prompt is assumed to have `max_prompt_length` tokens.

    Raises:
        ValueError: The model has no configuration that can be read.

    >>> plan(Settings(max_steps=3)).settings.max_steps
    3
    """
    example = "gn.plan(settings, task, model=model, tokenizer=tokenizer)"
    optional = ("task", "model", "tokenizer")
    require_types(
        example, optional=optional, settings=settings, task=task, model=model, tokenizer=tokenizer
    )
    gpu = find_gpu()
    prompt_tokens = settings.max_prompt_length
    if task is not None and tokenizer is not None:
        # The training leaves out prompts of more than `max_prompt_length` tokens.
        longest = max(task.prompt_lengths(task.train, tokenizer))
        prompt_tokens = min(longest, prompt_tokens)
    sizes = sizes_of(settings.model) if model is None else ModelSizes(**count_sizes(model))
    obstacle = None
    if settings.fast_inference and not has_vllm_engine(model):
        obstacle = vllm_obstacle(settings, gpu)
        if obstacle is None and model is not None:
            obstacle = "the model was loaded without vLLM"
    if obstacle is not None:
        # Plan the run that will happen, not the one that was asked for.
        settings = settings.replace(fast_inference=False)
    return Plan(
        settings=settings,
        gpu=gpu,
        available_gb=_available_bytes(gpu, model) / 1e9,
        dtype=choose_dtype(settings, gpu, model),
        prompt_tokens=prompt_tokens,
        sizes=sizes,
        vllm_obstacle=obstacle,
    )


def _available_bytes(gpu: Gpu | None, model: Any) -> float:
    """Return the bytes for a run: the free ones, and those that its loaded model holds already."""
    held_by_model = 0 if model is None else model.get_memory_footprint()
    if gpu is None:
        import psutil

        # The plan counts Python and its libraries, so add the memory that they hold already.
        held_by_python = min(psutil.Process().memory_info().rss, CPU_BASE_BYTES)
        return free_memory_bytes() + held_by_python + held_by_model
    total = gpu.memory_gib * 2**30
    # A vLLM engine does not report how much memory it could give back, so assume the whole GPU.
    if has_vllm_engine(model):
        return total
    free = read_gpu().free_gib * 2**30
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # Torch keeps this memory for its next tensors, so the run can use it.
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return min(total, free + held_by_model)
