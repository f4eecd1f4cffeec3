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

from grpo_nb.config.arguments import check_value
from grpo_nb.config.counting import count_sizes
from grpo_nb.config.memory import CPU_BASE, Part, Sizes, memory_parts, peak_gb, sizes_of
from grpo_nb.config.number_types import number_type, number_type_of
from grpo_nb.config.out_of_memory import fitting_changes, replacing
from grpo_nb.config.presets import find_machine
from grpo_nb.config.settings import Settings, refuse_keywords
from grpo_nb.config.vllm_obstacle import vllm_obstacle
from grpo_nb.core.argument_types import require
from grpo_nb.core.chat import prompt_lengths
from grpo_nb.core.tables import Shown, Table
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.gpu import Gpu, find_gpu, read_gpu
from grpo_nb.machine.host import free_memory_bytes, usable_memory_gib


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Shown):
    """What a run will need. Shows itself; `require_fit` raises where it cannot fit on a CPU, and warns on a GPU."""

    settings: Settings
    """Of the run, without vLLM where that cannot generate."""
    gpu: Gpu | None
    """That trains, or None for a CPU."""
    available_gb: float
    """What the run can have: what is free, and what its model holds already; of a machine that is not here, all."""
    number_size: int
    """Bytes of a number that is not quantized."""
    prompt_tokens: int
    """Of the longest prompt, or `max_prompt_length` where none was measured."""
    sizes: Sizes | None
    """None where the sizes of the model are not known."""
    questions: int | None = None
    """Training questions; None where no task was given."""
    seconds_per_step: float | None = None
    """Median of the steps measured so far; None before."""

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Memory by part in GB; empty where the sizes of the model are not known."""
        if self.sizes is None:
            return ()
        return tuple(
            memory_parts(self.settings, self.sizes, self.gpu, self.number_size, self.prompt_tokens)
        )

    @property
    def memory_gb(self) -> float | None:
        """The peak, every completion at its longest; None if unknown."""
        return peak_gb(self.parts) if self.parts else None

    @property
    def fits(self) -> bool | None:
        """Whether the memory suffices; None if unknown."""
        return self.memory_gb <= self.available_gb if self.parts else None

    @functools.cached_property
    def nearest(self) -> Mapping[str, Any]:
        """Changes to the settings with which it fits; none where it fits, or none were found."""
        is_gpu = self.gpu is not None
        return fitting_changes(
            self.settings, lambda one: dataclasses.replace(self, settings=one).fits, is_gpu=is_gpu
        )

    def require_fit(self) -> None:
        """Raise on a CPU where the run cannot fit, because that ends the kernel; warn on a GPU, which says so itself.

        Raises:
            EnvironmentProblem: With what it needs, what is free, and settings that fit, as a line to paste.
        """
        said = f"{self._verdict()} (An estimate, with every completion at its longest.)"
        if self.fits is False and self.gpu is None:
            raise EnvironmentProblem(said)
        if self.fits is False:
            warnings.warn(said, stacklevel=3)

    def refine(self, rows: Sequence[Mapping[str, Any]]) -> Plan:
        """Return the plan with the time of a step as the rows of a run's metrics measured it; the first, which warms up, counts
        only while it is alone."""
        timed = [row["step_time"] for row in rows if row.get("step_time") is not None]
        return (
            dataclasses.replace(self, seconds_per_step=statistics.median(timed[1:] or timed))
            if timed
            else self
        )

    def _verdict(self) -> str:
        machine = (
            f"{self.gpu.name if self.gpu else 'this computer'} ({self.available_gb:.1f} GB free)"
        )
        if not self.parts:
            return (
                f"Whether it fits {machine} is unknown: no configuration of this model can be had."
            )
        if self.fits:
            return f"It fits {machine}."
        advice = (
            replacing(self.nearest) if self.nearest else "no smaller settings; take a smaller model"
        )
        needs = f"This run needs about {self.memory_gb:.1f} GB at its peak"
        return f"{needs}, but {machine} is all there is. What fits: {advice}"

    def _parts(self) -> Iterable[str | Table]:
        yield f"Plan for {self.settings.model}. {self._verdict()}"
        yield Table(list(self._rows()), right=(1,), narrow=(1,))

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        settings = self.settings
        for part in self.parts:
            yield (
                part.name,
                f"{part.gb:.2f} GB",
                part.how if part.phase == "always" else f"{part.how}; in {part.phase}",
            )
        if self.sizes is not None:
            yield "memory, peak", f"{self.memory_gb:.2f} GB", "the larger of both phases"
            yield (
                "disk, merged export",
                f"{self.sizes.parameters * 2 / 1e9:.2f} GB",
                "all weights in 16 bit",
            )
        length = self.prompt_tokens + settings.max_completion_length
        if settings.num_train_epochs is not None:
            steps = "not known" if self.questions is None else f"{settings.max_steps:,}"
            over = (
                "the questions of a task"
                if self.questions is None
                else f"{self.questions:,} questions"
            )
            yield (
                "training steps",
                steps,
                f"num_train_epochs={settings.num_train_epochs:g} over {over}",
            )
        yield (
            "tokens a step",
            f"up to {settings.batch_size * length:,}",
            f"{settings.batch_size} times {length}",
        )
        time = (
            "not measured yet"
            if self.seconds_per_step is None
            else f"{self.seconds_per_step:.1f} s"
        )
        yield "time a step", time, "the median; known after the first steps: plan.refine(run.rows)"


def plan(
    settings: Settings,
    task: Any = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    machine: str | Gpu | None = None,
    gpu_memory_gb: float | None = None,
    **unknown: Any,
) -> Plan:
    """Estimate what a run needs, before it: memory by part beside what is free, tokens, disk; time once steps are measured.

    Args:
        settings: Of the run.
        task: A `Task`, for its training prompts, and for the steps that `num_train_epochs` comes to.
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
    refuse_keywords(plan, unknown)
    require("gn.plan(settings, task)", optional=("task",), settings=settings, task=task)
    if gpu_memory_gb is not None:
        check_value("gpu_memory_gb", gpu_memory_gb, "float", above=0)
        machine = Gpu(f"a GPU of {gpu_memory_gb:g} GB", gpu_memory_gb * 1e9 / 2**30, (8, 0))
    gpu = find_machine(machine)
    is_elsewhere = gpu != find_gpu()
    has_vllm = is_elsewhere or vllm_obstacle(settings, gpu, try_import=False) is None
    has_vllm = has_vllm if model is None else hasattr(model, "vllm_engine")
    chosen = number_type(settings, gpu) if model is None else number_type_of(model, settings, gpu)
    longest = settings.max_prompt_length
    questions = None if task is None else len(task.train)
    if questions is not None:
        settings = settings.for_questions(questions)
    if task is not None and tokenizer is not None:
        lengths = prompt_lengths(task.begun_prompts(task.train), tokenizer, task.template_kwargs)
        longest = max((length for length in lengths if length <= longest), default=longest)
    return Plan(
        settings=settings if has_vllm else settings.replace(fast_inference=False),
        gpu=gpu,
        available_gb=_available(gpu, model, is_elsewhere) / 1e9,
        number_size=4 if chosen.name == "float32" else 2,
        prompt_tokens=longest,
        questions=questions,
        sizes=sizes_of(settings.model) if model is None else Sizes(**count_sizes(model)),
    )


def _available(gpu: Gpu | None, model: Any, is_elsewhere: bool) -> float:
    """Bytes that a run can have: those that are free, and those that its model, and what it runs on, hold already."""
    whole = (gpu.memory_gib if gpu else usable_memory_gib()) * 2**30
    # What an engine holds, and could give back, nobody says.
    if is_elsewhere or hasattr(model, "vllm_engine"):
        return whole
    own = 0 if model is None else sum(p.numel() * p.element_size() for p in model.parameters())
    if gpu is None:
        import psutil

        held = min(psutil.Process().memory_info().rss, CPU_BASE)
        return min(whole, free_memory_bytes() + held + own)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        own += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return min(whole, read_gpu().free_gib * 2**30 + own)
