"""A plan before the run: memory by part, tokens, time, disk, and the nearest settings that fit where these do not.

Nothing here is a promise: memory is arithmetic on sizes (formulas and their sources in `memory`), and time is unknown until
steps were measured. What cannot be known is None and shown as unknown. `models_for` makes a plan for each of several models.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.tables import Html, Shown, Table, bold, code, escaped
from grpo_nb.core.text import prompt_lengths
from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.host import usable_memory_gib
from grpo_nb.settings.arguments import check_choice, check_value
from grpo_nb.settings.memory import Part, fitting_changes, memory_parts, peak_gb, vllm_cache_gb
from grpo_nb.settings.number_types import NumberType, number_type, number_type_of
from grpo_nb.settings.presets import PRESETS, find_machine, preset
from grpo_nb.settings.settings import Settings, require_settings
from grpo_nb.settings.shapes import PUBLISHED, ModelShape, shape_of
from grpo_nb.settings.vllm import vllm_obstacle

_UNKNOWN = "unknown"
_MARKS = {True: "\u2713 ", False: "\u2717 ", None: ""}

# Two or three for each preset: the one it names first, then others of which `plan` says that they fit with its settings.
SUGGESTED: Mapping[str, tuple[str, ...]] = {
    "cpu": ("SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    "t4": ("unsloth/Qwen2.5-1.5B-Instruct", "unsloth/Qwen3-1.7B", "unsloth/Llama-3.2-3B-Instruct"),
    "l4": ("unsloth/Qwen2.5-3B-Instruct", "unsloth/Qwen3-4B", "unsloth/Llama-3.1-8B-Instruct"),
    "a100": ("unsloth/Qwen2.5-7B-Instruct", "unsloth/Llama-3.1-8B-Instruct", "unsloth/Qwen2.5-14B-Instruct"),
    "h100": ("unsloth/Qwen2.5-7B-Instruct", "unsloth/Llama-3.1-8B-Instruct", "unsloth/Qwen3-8B"),
}
_DISK = {
    "adapter": "the LoRA in float32",
    "one checkpoint": "the LoRA and both states of its optimizer",
    "merged export": "all weights in 16 bit",
}
_STEP = 64
_ORIGIN = (
    "Sizes: the published config.json of each model. Memory: computed from them (formulas in grpo_nb.settings.memory), for the "
    "settings of the preset and every completion at its longest. Not measured on a GPU yet: `make gpu-check` does that."
)
_COLUMNS = {
    "weights, GB": ("weights",),
    "LoRA and optimizer, GB": ("LoRA", "gradients", "optimizer"),
    "activations, GB": ("activations",),
    "logits, GB": ("logits",),
    "vLLM or KV cache, GB": ("vLLM", "KV cache"),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Shown):
    """What a run will need. Shows itself; `require_fit` raises where it cannot fit."""

    settings: Settings
    gpu: Gpu | None
    """That trains, or None for a CPU."""
    available_gb: float
    has_vllm: bool
    prompt_tokens: int
    """Of the longest prompt."""
    prompt_source: str
    shape: ModelShape | None
    """None where the sizes of the model are not known."""
    loaded: NumberType | None = None
    """What a model that is loaded already computes in."""
    seconds_per_step: float | None = None
    """Median of the steps measured so far; None before."""
    seconds_left: float | None = None
    completion_tokens: float | None = None
    """Mean length measured so far; None before."""
    steps_measured: int = 0

    @property
    def machine(self) -> str:
        """The card or computer, with its memory."""
        name, memory = (self.gpu.name, "") if self.gpu else ("this computer", " memory")
        return f"{name} ({self.available_gb:.1f} GB{memory})"

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Memory by part in GB; empty where the sizes of the model are not known."""
        if self.shape is None:
            return ()
        size = (self.loaded or number_type(self.settings, self.gpu)).size
        return tuple(memory_parts(self.settings, self.shape, self.gpu, size, self.prompt_tokens, self.has_vllm))

    @property
    def memory_gb(self) -> float | None:
        """The peak, every completion at its longest; None if unknown."""
        return peak_gb(self.parts) if self.parts else None

    @property
    def obstacle(self) -> str | None:
        """Why it cannot fit, or None."""
        if self.shape is None:
            return None
        if self.memory_gb > self.available_gb:
            return f"This run needs about {self.memory_gb:.1f} GB at its peak, but {self.machine} is all there is."
        if self.gpu is not None and self.settings.fast_inference and self.has_vllm:
            left, one = vllm_cache_gb(self.settings, self.shape, self.gpu, self.prompt_tokens)
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
    def nearest(self) -> list[Mapping[str, Any]]:
        """Changes to the settings that fit, the least first; none where it fits."""
        if self.obstacle is None:
            return []
        return fitting_changes(self.settings, lambda one: self.at(one).fits, is_gpu=self.gpu is not None)

    @property
    def disk_gb(self) -> Mapping[str, float] | None:
        """By what will lie there; None if unknown."""
        if self.shape is None:
            return None
        lora = self.shape.lora_parameters(self.settings.lora_rank, self.settings.lora_target_modules) * 4 / 1e9
        return dict(zip(_DISK, (lora, 3 * lora, self.shape.parameters * 2 / 1e9), strict=True))

    @property
    def tokens_per_step(self) -> tuple[int, int]:
        """Tokens of prompts and of completions of an optimizer step, both at their longest."""
        settings = self.settings
        return settings.batch_size * self.prompt_tokens, settings.batch_size * settings.max_completion_length

    def at(self, settings: Settings) -> Plan:
        """The plan of other settings for the same machine and prompts."""
        require_settings(settings)
        if settings.model == self.settings.model:
            return dataclasses.replace(self, settings=settings)
        return dataclasses.replace(self, settings=settings, shape=shape_of(settings.model), loaded=None)

    @functools.cached_property
    def longest_completion(self) -> tuple[int, str]:
        """Tokens of the longest completion that fits beside the prompt, 0 if none does, and what is in the way of more.

        That is `memory`, or `positions`: the model was trained for no more.
        """
        if not self.parts:
            return 0, "memory"
        positions = PUBLISHED.get(self.settings.model, {}).get("max_position_embeddings")
        most = ((positions or 131_072) - self.settings.max_prompt_length) // _STEP

        def is_too_long(steps: int) -> bool:
            return not self.at(self.settings.replace(max_completion_length=steps * _STEP)).fits

        # Memory only grows with the length.
        steps = bisect.bisect_left(range(1, most + 1), True, key=is_too_long)
        return steps * _STEP, "positions" if positions and steps == most else "memory"

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
        return dataclasses.replace(
            self,
            seconds_per_step=seconds,
            seconds_left=max(self.settings.max_steps - rows[-1]["step"], 0) * seconds,
            completion_tokens=statistics.mean(lengths) if lengths else None,
            steps_measured=len(timed),
        )

    def _advice(self) -> list[str]:
        changes = (", ".join(f"{name}={value!r}" for name, value in change.items()) for change in self.nearest)
        return [f"settings = settings.replace({written})" for written in changes]

    def _parts(self) -> Iterable[str | Html | Table]:
        yield f"Plan for {self.settings.model}"
        verdict = self.obstacle or f"Fits {self.machine}."
        yield _MARKS[self.fits] + (verdict if self.parts else f"Whether it fits {self.machine} is not known.")
        if self.nearest:
            yield "The nearest that fit:"
            yield from map(code, self._advice())
        yield Table(list(self._rows()), right=(1,), narrow=(1,))

    def _rows(self) -> Iterator[tuple[str | Html, str | Html, str | Html, str]]:
        settings, peak = self.settings, self.memory_gb
        for part in self.parts:
            how = part.how if part.phase == "always" else f"{part.how}; in {part.phase}"
            yield part.name, f"{part.gb:.2f} GB", _bar(part.gb / peak), how
        if peak is None:
            yield "memory", _UNKNOWN, "", f"no configuration of {settings.model} on this machine tells its sizes"
        else:
            yield (
                bold("memory, peak"), bold(f"{peak:.2f} of {self.available_gb:.1f} GB"), "", "the larger of both phases"
            )  # fmt: skip
        tokens = sum(self.tokens_per_step)
        lengths = f"{self.prompt_tokens} + {settings.max_completion_length}"
        yield "tokens a step", f"up to {tokens:,}", "", f"{settings.batch_size} x ({lengths}), {self.prompt_source}"
        steps, warmup = settings.max_steps, settings.warmup
        said = f"{steps} step{'s' * (steps > 1)}"
        if steps <= warmup and settings.lr_scheduler_type != "constant":
            said += f", all of them in warmup_steps={warmup}: the learning rate rises to {(steps - 1) / warmup:.0%}"
        yield "tokens in all", f"up to {steps * tokens:,}", "", said
        if self.seconds_per_step is None:
            yield "time", "not measured yet", "", "known after the first steps: plan.refine(run.rows)"
        else:
            measured = f"median of {self.steps_measured} steps, the first left out"
            if self.steps_measured == 1:
                measured = "of the first step, which is also slowed by warming up"
            yield "time a step", f"{self.seconds_per_step:.1f} s", "", measured
            yield "time left", _duration(self.seconds_left), "", "as the steps so far"
        if self.completion_tokens is not None:
            mean = f"{self.completion_tokens:.0f} of {settings.max_completion_length} tokens"
            yield "mean completion", mean, "", "measured"
        for name, how in _DISK.items():
            yield f"disk, {name}", f"{self.disk_gb[name]:.2f} GB" if self.disk_gb else _UNKNOWN, "", how


def _bar(share: float) -> Html:
    return Html("", f"<div style='background:#4878a8;height:.7em;width:{8 * min(share, 1):.2f}em'></div>")


def plan(
    settings: Settings,
    task: Any = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    machine: str | Gpu | None = None,
    gpu_memory_gb: float | None = None,
) -> Plan:
    """Estimate what a run needs, before it: memory by part, tokens, disk; time once steps are measured.

    Args:
        settings: Of the run.
        task: A `Task`, for its training prompts.
        model: The loaded model, whose weights are then counted; without it, its configuration is read.
        tokenizer: With `task`, to measure the longest prompt instead of taking `max_prompt_length`.
        machine: `cpu`, `t4`, `l4`, `a100`, `h100` or a `Gpu`; by default what is here.
        gpu_memory_gb: A GPU of this many GB (10⁹ bytes) with bfloat16, instead of `machine`.

    Raises:
        ValueError: An unknown machine.

    >>> plan(Settings(), machine="t4").fits
    True
    """
    require_settings(settings)
    if task is not None and not hasattr(task, "train"):
        raise TypeError(f"task = {task!r:.60} is no task: task = gn.load_task(<your file>, settings).")
    if model is not None and not hasattr(model, "config"):
        raise TypeError(f"model = {model!r:.60} is no model: model, tokenizer = gn.load_model(settings).")
    if gpu_memory_gb is not None:
        check_value("gpu_memory_gb", gpu_memory_gb, "float", above=0)
        if machine is not None:
            raise ValueError(f"machine = {machine!r:.60} and gpu_memory_gb = {gpu_memory_gb} are two machines.")
        machine = Gpu(f"a GPU of {gpu_memory_gb:g} GB", gpu_memory_gb * 1e9 / 2**30, (8, 0))
    chat = getattr(task, "chat_template_kwargs", None)
    lengths = [] if tokenizer is None or task is None else prompt_lengths(task.train["prompt"], tokenizer, chat)
    kept = [length for length in lengths if length <= settings.max_prompt_length]
    gpu, is_here = find_machine(machine)
    return Plan(
        settings=settings,
        gpu=gpu,
        available_gb=(gpu.memory_gib if gpu else usable_memory_gib()) * 2**30 / 1e9,
        has_vllm=not is_here or vllm_obstacle(settings, gpu, settings.model, try_import=False) is None,
        prompt_tokens=max(kept, default=settings.max_prompt_length),
        prompt_source=f"the longest of {len(kept)} prompts measured" if kept else "prompts taken at max_prompt_length",
        shape=shape_of(settings.model, model),
        loaded=None if model is None else number_type_of(model, settings, gpu),
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True, repr=False)
class ModelTable(Shown):
    """Models for a machine, one a row. Shows itself; `rows` are their plans."""

    machine: str
    rows: tuple[Plan, ...]

    def _parts(self) -> Iterable[str | Html | Table]:
        yield Html(f"Models for {self.machine}", f"Models for <b>{escaped(self.machine)}</b>")
        cells = []
        for row in self.rows:
            settings, (longest, limit) = row.settings, row.longest_completion
            sums = (sum(part.gb for part in row.parts if part.name in names) for names in _COLUMNS.values())
            cells.append(
                (
                    settings.model,
                    "4" if settings.load_in_4bit else "16",
                    *(f"{gb:.2f}" for gb in sums),
                    f"{row.memory_gb:.1f} of {row.available_gb:.1f}" if row.parts else _UNKNOWN,
                    f"{settings.per_device_train_batch_size} x {settings.gradient_accumulation_steps}",
                    f"{settings.max_prompt_length + longest:,} ({limit})" if longest else "does not fit",
                )
            )
        yield Table(cells, head=("model", "bits", *_COLUMNS, "peak of", "batch", "context"))
        yield _ORIGIN


def models_for(machine: str, models: Sequence[str] | None = None, **changes: object) -> ModelTable:
    """Show which models fit a kind of machine with its preset, their memory by part, and the context that can be reached.

    Everything is computed by `plan`, from the models' published sizes; of a model that is not among them the config.json is
    read or fetched, never the weights.

    Args:
        machine: `cpu`, `t4`, `l4`, `a100` or `h100`.
        models: Hub ids or folders; by default two or three that fit.
        **changes: Settings that differ from the preset's.

    Raises:
        ValueError: An unknown machine.

    >>> models_for("t4").rows[0].fits
    True
    """
    check_choice("machine", machine, PRESETS)
    check_value("models", models, "list | None")
    names = SUGGESTED[machine] if models is None else models
    plans = (plan(preset(machine, **{**changes, "model": name}), machine=machine) for name in names)
    return ModelTable(machine, tuple(plans))
