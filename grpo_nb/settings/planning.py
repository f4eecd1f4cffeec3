"""A plan before the run: memory by part beside what is free, tokens, time, disk, and smaller settings where these do not fit.

Nothing here is a promise: memory is arithmetic on sizes (formulas and their sources in `memory`), and time is unknown until
steps were measured. What cannot be known is None and shown as unknown.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.tables import Shown, Table
from grpo_nb.core.text import prompt_lengths
from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.host import free_memory_bytes, usable_memory_gib
from grpo_nb.settings.arguments import check_value
from grpo_nb.settings.memory import CPU_BASE, Part, memory_parts, peak_gb, vllm_cache_gb
from grpo_nb.settings.number_types import NumberType, number_type, number_type_of
from grpo_nb.settings.out_of_memory import fitting_changes
from grpo_nb.settings.presets import find_machine
from grpo_nb.settings.settings import Settings, require_settings
from grpo_nb.settings.sizes import Sizes, sizes_of
from grpo_nb.settings.vllm import vllm_obstacle


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Shown):
    """What a run will need. Shows itself; `require_fit` raises where it cannot fit on a CPU, and warns on a GPU."""

    settings: Settings
    gpu: Gpu | None
    """That trains, or None for a CPU."""
    available_gb: float
    """What the run can have: what is free, and what its model holds already; of a machine that is not here, all."""
    has_vllm: bool
    prompt_tokens: int
    """Of the longest prompt, or `max_prompt_length` where none was measured."""
    sizes: Sizes | None
    """None where the sizes of the model are not known."""
    loaded: NumberType | None = None
    """What a model that is loaded already computes in."""
    seconds_per_step: float | None = None
    """Median of the steps measured so far; None before."""

    @property
    def machine(self) -> str:
        """The card or computer, with the memory that is free."""
        return f"{self.gpu.name if self.gpu else 'this computer'} ({self.available_gb:.1f} GB free)"

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Memory by part in GB; empty where the sizes of the model are not known."""
        if self.sizes is None:
            return ()
        size = (self.loaded or number_type(self.settings, self.gpu)).size
        return tuple(memory_parts(self.settings, self.sizes, self.gpu, size, self.prompt_tokens, self.has_vllm))

    @property
    def memory_gb(self) -> float | None:
        """The peak, every completion at its longest; None if unknown."""
        return peak_gb(self.parts) if self.parts else None

    @property
    def obstacle(self) -> str | None:
        """Why it cannot fit, or None."""
        if self.sizes is None:
            return None
        if self.memory_gb > self.available_gb:
            return f"This run needs about {self.memory_gb:.1f} GB at its peak, but {self.machine} is all there is."
        if self.gpu is not None and self.settings.fast_inference and self.has_vllm:
            left, one = vllm_cache_gb(self.settings, self.sizes, self.gpu, self.prompt_tokens)
            if left < one:
                return (
                    f"vLLM's share of {self.machine} leaves {max(left, 0):.2f} GB for keys and values, and one sequence "
                    f"needs {one:.2f} GB."
                )
        return None

    @property
    def fits(self) -> bool | None:
        """Whether the memory suffices; None if unknown."""
        return self.obstacle is None if self.parts else None

    @functools.cached_property
    def nearest(self) -> Mapping[str, Any]:
        """Changes to the settings with which it fits; none where it fits, or none were found."""
        if self.obstacle is None:
            return {}
        return fitting_changes(
            self.settings, lambda one: dataclasses.replace(self, settings=one).fits, is_gpu=self.gpu is not None
        )

    def require_fit(self) -> None:
        """Raise on a CPU where the run cannot fit, because that ends the kernel; warn on a GPU, which says so itself.

        Raises:
            EnvironmentProblem: With what it needs, what is free, and settings that fit, as a line to paste.
        """
        if self.obstacle is None:
            return
        said = f"{self.obstacle} {self._advice()} (An estimate, with every completion at its longest.)"
        if self.gpu is None:
            raise EnvironmentProblem(said)
        warnings.warn(said, stacklevel=3)

    def refine(self, rows: Sequence[Mapping[str, Any]]) -> Plan:
        """Return the plan with the time of a step as the rows of a run's metrics measured it; the first, which warms up, counts
        only while it is alone."""
        timed = [row["step_time"] for row in rows if row.get("step_time") is not None]
        return dataclasses.replace(self, seconds_per_step=statistics.median(timed[1:] or timed)) if timed else self

    def _advice(self) -> str:
        if not self.nearest:
            return "No smaller settings were found that fit: take a smaller model, or restart other kernels."
        written = ", ".join(f"{name}={value!r}" for name, value in self.nearest.items())
        return f"What fits: settings = settings.replace({written})"

    def _parts(self) -> Iterable[str | Table]:
        yield f"Plan for {self.settings.model}"
        if self.sizes is None:
            yield f"Whether it fits {self.machine} is unknown: no configuration of this model can be had."
        else:
            yield f"\u2717 {self.obstacle} {self._advice()}" if self.obstacle else f"\u2713 Fits {self.machine}."
        yield Table(list(self._rows()), right=(1,), narrow=(1,))

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        settings = self.settings
        for part in self.parts:
            yield part.name, f"{part.gb:.2f} GB", part.how if part.phase == "always" else f"{part.how}; in {part.phase}"
        if self.sizes is not None:
            shown = f"{self.memory_gb:.2f} of {self.available_gb:.1f} GB"
            yield "memory, peak", shown, "the larger of both phases, of what is free"
            lora = self.sizes.lora_parameters(settings.lora_rank, settings.lora_target_modules) * 4 / 1e9
            yield "disk, adapter", f"{lora:.2f} GB", "the LoRA in float32; a checkpoint three times as much"
            yield "disk, merged export", f"{self.sizes.parameters * 2 / 1e9:.2f} GB", "all weights in 16 bit"
        lengths = f"{settings.batch_size} x ({self.prompt_tokens} + {settings.max_completion_length})"
        tokens = settings.batch_size * (self.prompt_tokens + settings.max_completion_length)
        yield "tokens a step", f"up to {tokens:,}", f"{lengths}; {settings.max_steps} steps"
        if self.seconds_per_step is None:
            yield "time", "not measured yet", "known after the first steps: plan.refine(run.rows)"
        else:
            yield "time a step", f"{self.seconds_per_step:.1f} s", "measured, the median"


def plan(
    settings: Settings,
    task: Any = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    machine: str | Gpu | None = None,
    gpu_memory_gb: float | None = None,
) -> Plan:
    """Estimate what a run needs, before it: memory by part beside what is free, tokens, disk; time once steps are measured.

    Args:
        settings: Of the run.
        task: A `Task`, for its training prompts.
        model: The loaded model, which is then counted; without it, one without weights is built from its configuration, which
            takes some seconds the first time.
        tokenizer: With `task`, to measure the longest prompt instead of taking `max_prompt_length`.
        machine: `cpu`, `t4`, `l4`, `a100`, `h100` or a `Gpu`; by default what is here.
        gpu_memory_gb: A GPU of this many GB (10⁹ bytes) with bfloat16, instead of `machine`.

    Raises:
        ValueError: An unknown machine.

    >>> plan(Settings(), machine="t4").fits
    True
    """
    require_settings(settings)
    if gpu_memory_gb is not None:
        check_value("gpu_memory_gb", gpu_memory_gb, "float", above=0)
        machine = Gpu(f"a GPU of {gpu_memory_gb:g} GB", gpu_memory_gb * 1e9 / 2**30, (8, 0))
    gpu, is_here = find_machine(machine)
    longest = settings.max_prompt_length
    if task is not None and tokenizer is not None:
        lengths = prompt_lengths(task.train["prompt"], tokenizer, task.chat_template_kwargs)
        longest = max((length for length in lengths if length <= longest), default=longest)
    return Plan(
        settings=settings,
        gpu=gpu,
        available_gb=_available(gpu, is_here, model) / 1e9,
        has_vllm=not is_here or vllm_obstacle(settings, gpu, try_import=False) is None,
        prompt_tokens=longest,
        sizes=sizes_of(settings.model, model),
        loaded=None if model is None else number_type_of(model, settings, gpu),
    )


def _available(gpu: Gpu | None, is_here: bool, model: Any) -> float:
    """Bytes that a run can have: those that are free, and those that its model, and what it runs on, hold already."""
    whole = (gpu.memory_gib if gpu else usable_memory_gib()) * 2**30
    if not is_here:
        return whole
    own = 0 if model is None else sum(p.numel() * p.element_size() for p in model.parameters())
    if gpu is None:
        held = min(psutil.Process().memory_info().rss, CPU_BASE)
        return min(whole, free_memory_bytes() + held + own)
    torch = sys.modules.get("torch")
    # Of what an engine holds nobody says how much it is, and before torch is there nothing is known.
    if torch is None or not torch.cuda.is_initialized() or hasattr(model, "vllm_engine"):
        return whole
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return min(whole, torch.cuda.mem_get_info()[0] + unused + own)
