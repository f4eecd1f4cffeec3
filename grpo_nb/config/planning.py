"""Plan the memory of a run (`gn.plan`): what it needs, if that fits, and smaller settings that fit.

The memory is computed from the sizes of the model (formulas and sources are in `memory`). It is an
estimate. The time of a step is not estimated.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.counting import count_sizes
from grpo_nb.config.hardware import ComputeDtype, compute_dtype, has_vllm_engine, vllm_obstacle
from grpo_nb.config.memory import CPU_BASE, MemoryPart, Sizes, estimate_parts, sizes_of
from grpo_nb.config.presets import GPUS, PRESETS
from grpo_nb.config.settings import Settings
from grpo_nb.config.smaller_settings import line_to_write, savings
from grpo_nb.core.argument_types import require
from grpo_nb.core.problems import EnvironmentProblem, warn_user
from grpo_nb.core.tables import Shown, Table, bold
from grpo_nb.core.words import require_choice
from grpo_nb.machine.gpu import Gpu, find_gpu, read_gpu
from grpo_nb.machine.host import free_memory_bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Shown):
    """Memory that a run needs, and memory that the machine has for it."""

    settings: Settings
    """Settings that will run: without vLLM where it cannot generate."""
    gpu: Gpu | None
    """GPU that trains, or None for a CPU."""
    available_gb: float
    """Memory for the run: what is free, and what its model holds already. On another machine, all
    memory is assumed to be free."""
    dtype: ComputeDtype
    """Dtype of the numbers that are not quantized."""
    prompt_tokens: int
    """Tokens of the longest prompt, or `max_prompt_length` if no prompt was measured."""
    sizes: Sizes
    """Sizes of the model."""
    why_not_vllm: str | None = None
    """Reason why vLLM does not generate although it was asked for; None otherwise."""

    @property
    def memory_parts(self) -> list[MemoryPart]:
        """Memory by part."""
        bytes_per_number = 4 if self.dtype.name == "float32" else 2
        parts = estimate_parts(
            self.settings, self.sizes, self.gpu, bytes_per_number, self.prompt_tokens
        )
        return list(parts)

    @property
    def peak_gb(self) -> float:
        """Memory of the larger phase, with every completion at its longest."""
        sums: Counter[str] = Counter()
        for part in self.memory_parts:
            sums[part.phase] += part.gb
        return sums["always"] + max(sums["generation"], sums["training"])

    @property
    def fits(self) -> bool:
        """True if the memory is enough."""
        return self.peak_gb <= self.available_gb

    def require_fit(self) -> None:
        """Raise if the run does not fit a CPU; warn if it does not fit a GPU.

        Raises:
            EnvironmentProblem: Gives the memory needed, the memory free, and settings that fit.
        """
        if self.fits:
            return
        message = f"{self._verdict()} (An estimate, with every completion at its longest.)"
        # A GPU that is full raises an error. A computer without memory kills the kernel.
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
            advice = f"What fits: {line_to_write(changes)}"
        return f"This run needs {need}; {free}. {advice}"

    def _fitting_changes(self) -> dict[str, Any]:
        """Return the changes with which the run fits; empty if no smaller settings fit."""
        changes: dict[str, Any] = {}
        plan = self
        # Each saving can be made only finitely often, so the loop ends.
        while not plan.fits:
            for saving in savings(plan.settings, is_gpu=plan.gpu is not None):
                smaller_settings = plan.settings.replace(**saving.change)
                smaller = dataclasses.replace(plan, settings=smaller_settings)
                if smaller.peak_gb < plan.peak_gb:
                    break
            else:
                return {}
            changes |= saving.change
            plan = smaller
        return changes

    def _parts(self) -> Iterable[str | Table]:
        yield f"Plan for {self.settings.model}. {self._verdict()}"
        rows = [*self._rows_of_run(), *self._rows_of_memory()]
        yield Table(rows, head=("", "value", "explanation"), right=(1,), narrow=(0, 1))

    def _rows_of_run(self) -> list[tuple[Any, ...]]:
        """Return what was asked for and what will run."""
        settings = self.settings
        passes = f"{settings.per_device_train_batch_size} x {settings.gradient_accumulation_steps}"
        engine = "vLLM" if settings.fast_inference else "without vLLM"
        why_engine = f"asked: vLLM. {self.why_not_vllm}" if self.why_not_vllm else "as asked"
        return [
            (bold("asked, and what will run"), "", ""),
            ("training steps", f"{settings.max_steps:,}", ""),
            (
                "completions a step",
                settings.batch_size,
                f"{passes}, in groups of {settings.num_generations}",
            ),
            ("dtype", self.dtype.name, f"asked: {settings.dtype}. {self.dtype.why}"),
            ("sampling", engine, why_engine),
        ]

    def _rows_of_memory(self) -> list[tuple[Any, ...]]:
        """Return what the run needs, as estimates, and what is there."""
        rows = []
        for part in self.memory_parts:
            phase = "" if part.phase == "always" else f"; in {part.phase}"
            rows.append((part.name, f"{part.gb:.2f} GB", f"{part.explanation}{phase}"))
        peak = bold(f"{self.peak_gb:.2f} GB")
        disk = f"{self.sizes.parameters * 2 / 1e9:.2f} GB"
        free = f"{self.available_gb:.2f} GB"
        return [
            (bold("what it needs, estimated"), "", ""),
            *rows,
            (bold("memory, peak"), peak, "estimate: the larger of generation and training"),
            ("disk, merged export", disk, "all weights in 16 bit"),
            (bold("what is there"), "", ""),
            ("memory", free, "free for this run"),
        ]


def plan(
    settings: Settings,
    task: Any = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    machine: str | Gpu | None = None,
) -> Plan:
    """Estimate the memory of a run on a machine, and the disk for its export.

    Args:
        settings: Settings of the run.
        task: A `Task`, for the length of its longest prompt. Needs `tokenizer`, which measures it.
        model: The loaded model, whose sizes are counted. Without it, a model without weights is
            built from the configuration, which takes some seconds the first time.
        tokenizer: Measures the prompts of `task`. If one of the two is missing, the longest prompt
            is assumed to have `max_prompt_length` tokens.
        machine: `cpu` (of this computer), or another machine with all its memory free: `t4`, `l4`,
            `a100`, `h100` or a `grpo_nb.machine.gpu.Gpu` such as `Gpu("mine", 24.0, (8, 9))`. By
            default this machine, with the memory that is free now.

    Raises:
        ValueError: The machine is unknown, or the model has no configuration that can be read.

    >>> plan(Settings(), machine="t4").fits
    True
    """
    example = "gn.plan(settings, task, tokenizer=tokenizer)"
    require(example, optional=("task",), settings=settings, task=task)
    if machine is None:
        gpu = find_gpu()
    elif isinstance(machine, Gpu):
        gpu = machine
    else:
        require_choice("machine", machine, PRESETS)
        gpu = GPUS.get(machine)
    # `machine="cpu"` is the CPU of this computer.
    is_another_machine = machine is not None and gpu is not None
    prompt_tokens = settings.max_prompt_length
    if task is not None and tokenizer is not None:
        # Training drops longer prompts.
        longest = max(task.prompt_lengths(task.train, tokenizer))
        prompt_tokens = min(longest, prompt_tokens)
    sizes = sizes_of(settings.model) if model is None else Sizes(**count_sizes(model))
    # How another machine would load the model, and what is installed there, is not known.
    why_not_vllm = None if is_another_machine else _why_not_vllm(settings, gpu, model)
    if why_not_vllm:
        # Plan the run that will happen, not the one that was asked for.
        settings = settings.replace(fast_inference=False)
    return Plan(
        settings=settings,
        gpu=gpu,
        available_gb=_available_bytes(gpu, model, is_another_machine) / 1e9,
        dtype=compute_dtype(settings, gpu, model),
        prompt_tokens=prompt_tokens,
        sizes=sizes,
        why_not_vllm=why_not_vllm,
    )


def _why_not_vllm(settings: Settings, gpu: Gpu | None, model: Any) -> str | None:
    """Return why vLLM does not generate although it was asked for; None otherwise."""
    if not settings.fast_inference:
        return None
    # A model with an engine can also be planned for the CPU, where no engine runs.
    if gpu is None or model is None:
        return vllm_obstacle(settings, gpu)
    return None if has_vllm_engine(model) else "the model was loaded without vLLM"


def _available_bytes(gpu: Gpu | None, model: Any, is_another_machine: bool) -> float:
    """Return the bytes that a run can have: free memory, and what its model holds already."""
    if gpu is None:
        import psutil

        # A model on a GPU, planned for the CPU, holds none of this memory.
        is_on_cpu = model is not None and model.device.type == "cpu"
        held_by_model = model.get_memory_footprint() if is_on_cpu else 0
        # The plan counts Python and its libraries, and those that are loaded already are not free.
        held_by_python = min(psutil.Process().memory_info().rss, CPU_BASE)
        return free_memory_bytes() + held_by_python + held_by_model
    whole = gpu.memory_gib * 2**30
    # An engine does not report how much of its memory it could give back.
    if is_another_machine or has_vllm_engine(model):
        return whole
    free = read_gpu().free_gib * 2**30
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # The loaded model, and memory that torch keeps for its next tensors.
        free += torch.cuda.memory_reserved()
    return min(whole, free)
