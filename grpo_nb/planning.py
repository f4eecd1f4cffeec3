"""A plan before the run: memory by part, tokens, time, disk, and the nearest settings that fit where these do not.

Nothing here is a promise: memory is arithmetic on sizes (formulas and their sources in `planning_memory`), and time is unknown
until steps were measured. What cannot be known is None and shown as unknown.
"""

from __future__ import annotations

import dataclasses
import html
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.config import Settings
from grpo_nb.effective import find_machine, has_fast_bfloat16
from grpo_nb.environment import EnvironmentProblem, Gpu, total_memory_gib
from grpo_nb.planning_memory import Part, fitting_changes, memory_parts, peak_gb, vllm_cache_gb
from grpo_nb.planning_shapes import shape_of
from grpo_nb.vllm_obstacles import vllm_obstacle

if TYPE_CHECKING:
    from grpo_nb.data import Task

_UNKNOWN = "unknown"
_DISK = {
    "adapter": "the LoRA in float32",
    "one checkpoint": "the LoRA and both states of its optimizer",
    "merged export": "all weights in 16 bit",
}


@dataclass(frozen=True)
class Plan:
    """What a run will need. Shows itself; `require_fit` raises where it cannot fit."""

    settings: Settings
    machine: str
    available_gb: float
    parts: tuple[Part, ...]
    """Memory by part in GB; empty where the sizes of the model are not known."""
    memory_gb: float | None
    """The peak, every completion at its longest; None if unknown."""
    obstacle: str | None
    """Why it cannot fit, or None."""
    nearest: tuple[Mapping[str, Any], ...]
    """Changes to the settings that fit, the least first."""
    prompt_tokens: int
    prompt_source: str
    disk_gb: Mapping[str, float | None]
    seconds_per_step: float | None = None
    """Median of the steps measured so far; None before."""
    seconds_left: float | None = None
    completion_tokens: float | None = None
    """Mean length measured so far; None before."""
    steps_measured: int = 0

    @property
    def fits(self) -> bool | None:
        """Whether the memory suffices; None if unknown."""
        return None if self.memory_gb is None else self.obstacle is None

    @property
    def tokens_per_step(self) -> tuple[int, int]:
        """Tokens of prompts and of completions of an optimizer step, both at their longest."""
        settings = self.settings
        return settings.batch_size * self.prompt_tokens, settings.batch_size * settings.max_completion_length

    def require_fit(self) -> None:
        """Raise where the run cannot fit.

        Raises:
            EnvironmentProblem: With what it needs, what there is, and the nearest settings that fit, as lines to paste.
        """
        if self.obstacle is None:
            return
        lines = "\n".join(f"  {line}" for line in self._advice())
        advice = f"The nearest that fit:\n{lines}" if lines else "No smaller settings were found that fit."
        raise EnvironmentProblem(
            f"{self.obstacle} {advice}\nThis is an estimate, with every completion at its longest. To train all the same: "
            "gn.train(..., check_fit=False)"
        )

    def refine(self, rows: Sequence[Mapping[str, Any]]) -> Plan:
        """Return the plan with time and length as the rows of a run's metrics measured them.

        The first step of a process also pays for warming up, so it counts only while it is the only one. Rows without
        `step_time` are not counted.
        """
        timed = [row["step_time"] for row in rows if row.get("step_time") is not None]
        if not timed:
            return self
        seconds = statistics.median(timed[1:] or timed)
        lengths = [row["completions/mean_length"] for row in rows if row.get("completions/mean_length") is not None]
        left = max(self.settings.max_steps - rows[-1]["step"], 0)
        return dataclasses.replace(
            self,
            seconds_per_step=seconds,
            seconds_left=left * seconds,
            completion_tokens=statistics.mean(lengths) if lengths else None,
            steps_measured=len(timed),
        )

    def _rows(self) -> list[tuple[str, str, str]]:
        settings = self.settings
        rows = [
            (p.name, f"{p.gb:.2f} GB", p.how + ("" if p.phase == "always" else f"; in {p.phase}")) for p in self.parts
        ]
        if self.memory_gb is None:
            rows = [("memory", _UNKNOWN, f"no configuration of {settings.model} on this machine tells its sizes")]
        else:
            rows.append(
                ("memory, peak", f"{self.memory_gb:.2f} of {self.available_gb:.1f} GB", "the larger of both phases")
            )
        prompts, completions = self.tokens_per_step
        longest = (
            f"{settings.batch_size} x ({self.prompt_tokens} + {settings.max_completion_length}), {self.prompt_source}"
        )
        rows.append(("tokens a step", f"up to {prompts + completions:,}", longest))
        total = settings.max_steps * (prompts + completions)
        rows.append(("tokens in all", f"up to {total:,}", f"{settings.max_steps} steps"))
        if self.seconds_per_step is None:
            rows.append(("time", "not measured yet", "known after the first steps: plan.refine(run.rows)"))
        else:
            measured = "of the first step, which is also slowed by warming up"
            if self.steps_measured > 1:
                measured = f"median of {self.steps_measured} steps, the first left out"
            rows.append(("time a step", f"{self.seconds_per_step:.1f} s", measured))
            rows.append(("time left", _duration(self.seconds_left), "as the steps so far"))
        if self.completion_tokens is not None:
            rows.append(
                (
                    "mean completion",
                    f"{self.completion_tokens:.0f} of {settings.max_completion_length} tokens",
                    "measured",
                )
            )
        for name, size in self.disk_gb.items():
            rows.append((f"disk, {name}", _UNKNOWN if size is None else f"{size:.2f} GB", _DISK[name]))
        return rows

    def _verdict(self) -> str:
        if self.fits is None:
            return f"Whether it fits {self.machine} is not known."
        return self.obstacle or f"Fits {self.machine}."

    def _advice(self) -> list[str]:
        return [f"settings = settings.replace({_written(change)})" for change in self.nearest]

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{name.ljust(widths[0])}  {value.rjust(widths[1])}  {how}".rstrip() for name, value, how in rows]
        advice = ["The nearest that fit:", *self._advice()] if self.nearest else []
        return "\n".join([f"Plan for {self.settings.model}", *lines, self._verdict(), *advice])

    def _repr_html_(self) -> str:
        peak = self.memory_gb or 1
        sizes = {part.name: part.gb for part in self.parts}
        body = ""
        for name, value, how in self._rows():
            width = round(100 * min(sizes.get(name, 0) / peak, 1))
            bar = f"<div style='background:#4878a8;height:.7em;width:{width}%'></div>" if width else ""
            bold = "font-weight:bold" if name == "memory, peak" else ""
            body += (
                f"<tr><td style='text-align:left;{bold}'>{html.escape(name)}</td>"
                f"<td style='text-align:right;white-space:nowrap;{bold}'>{html.escape(value)}</td>"
                f"<td style='width:8em'>{bar}</td><td style='text-align:left'>{html.escape(how)}</td></tr>"
            )
        mark = {True: "&#10003; ", False: "&#10007; ", None: ""}[self.fits]
        advice = "".join(f"<br><code>{html.escape(line)}</code>" for line in self._advice())
        return (
            f"<p>Plan for <b>{html.escape(self.settings.model)}</b>. {mark}{html.escape(self._verdict())}"
            f"{' The nearest that fit:' + advice if advice else ''}</p>"
            f"<table><tbody>{body}</tbody></table>"
        )


def plan(
    settings: Settings,
    model: Any = None,
    tokenizer: Any = None,
    task: Task | None = None,
    *,
    machine: str | Gpu | None = None,
    gpu_memory_gb: float | None = None,
) -> Plan:
    """Estimate what a run needs, before it: memory by part, tokens, disk; time once steps are measured.

    Args:
        settings: Of the run.
        model: The loaded model, whose weights are then counted; without it, its configuration is read.
        tokenizer: With `task`, to measure the longest prompt instead of taking `max_prompt_length`.
        task: Its training prompts.
        machine: `cpu`, `t4`, `l4`, `a100`, `h100` or a `Gpu`; by default what is here.
        gpu_memory_gb: A GPU of this many GB (10⁹ bytes) with bfloat16, instead of `machine`.

    Raises:
        ValueError: An unknown machine.

    >>> plan(Settings(), machine="t4").fits
    True
    """
    if gpu_memory_gb is not None:
        if machine is not None or not gpu_memory_gb > 0:
            raise ValueError(f"gpu_memory_gb = {gpu_memory_gb!r} must be above 0 and stand without machine.")
        machine = Gpu(f"a GPU of {gpu_memory_gb:g} GB", gpu_memory_gb * 1e9 / 2**30, (8, 0))
    gpu, is_here = find_machine(machine)
    has_vllm = not is_here or vllm_obstacle(settings, gpu, settings.model, try_import=False) is None
    available = (gpu.memory_gib if gpu else _usable_memory_gib()) * 2**30 / 1e9
    name = f"{gpu.name} ({available:.1f} GB)" if gpu else f"this computer ({available:.1f} GB memory)"
    prompt, source = _longest_prompt(settings, tokenizer, task)
    has_bf16 = has_fast_bfloat16(gpu)

    def obstacle(changed: Settings, parts: list[Part]) -> str | None:
        peak = peak_gb(parts)
        if peak > available:
            return f"This run needs about {peak:.1f} GB at its peak, but {name} is all there is."
        if gpu is not None and changed.fast_inference and has_vllm:
            left, one = vllm_cache_gb(changed, shape_of(changed.model) or shape, gpu, prompt)
            if left < one:
                return (
                    f"vLLM's share of {name} leaves {max(left, 0):.2f} GB for keys and values, and one sequence needs "
                    f"{one:.2f} GB."
                )
        return None

    def parts_of(changed: Settings) -> list[Part]:
        sizes = shape if changed.model == settings.model else shape_of(changed.model)
        return memory_parts(changed, sizes, gpu, has_bf16=has_bf16, prompt=prompt, has_vllm=has_vllm)

    shape = shape_of(settings.model, model)
    if shape is None:
        return Plan(settings, name, available, (), None, None, (), prompt, source, _disk(settings, None))
    parts = parts_of(settings)
    problem = obstacle(settings, parts)
    nearest: list[dict[str, Any]] = []
    if problem:
        nearest = fitting_changes(
            settings, lambda changed: obstacle(changed, parts_of(changed)) is None, is_gpu=gpu is not None
        )
    disk = _disk(settings, shape)
    return Plan(settings, name, available, tuple(parts), peak_gb(parts), problem, tuple(nearest), prompt, source, disk)


def _usable_memory_gib() -> float:
    """Memory of the machine, or of the container if that has a lower limit (control groups, version 2 and 1)."""
    limits = [total_memory_gib()]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if os.path.isfile(file):
            with open(file) as stream:
                text = stream.read().strip()
            if text.isdigit():
                limits.append(int(text) / 2**30)
    return min(limits)


def _longest_prompt(settings: Settings, tokenizer: Any, task: Task | None) -> tuple[int, str]:
    if tokenizer is None or task is None:
        return settings.max_prompt_length, "prompts taken at max_prompt_length"
    from grpo_nb.data import prompt_lengths

    kept = [n for n in prompt_lengths(task.train["prompt"], tokenizer) if n <= settings.max_prompt_length]
    if not kept:
        return settings.max_prompt_length, "prompts taken at max_prompt_length"
    return max(kept), f"the longest of {len(kept)} prompts measured"


def _disk(settings: Settings, shape: Any) -> dict[str, float | None]:
    if shape is None:
        return dict.fromkeys(_DISK)
    lora = shape.lora_parameters(settings.lora_rank, settings.lora_target_modules) * 4 / 1e9
    return {"adapter": lora, "one checkpoint": 3 * lora, "merged export": shape.parameters * 2 / 1e9}


def _written(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
