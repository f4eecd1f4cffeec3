"""Plan the memory of a run (`gn.plan`): what it needs, if that fits, and smaller settings that fit.

The memory is estimated from the sizes of the model; `memory` has the formulas and their sources.
The time of a step is not estimated. After an out-of-memory error, `out_of_memory_advice` proposes
the first of these smaller settings that helps.
"""

import dataclasses
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.hardware import choose_dtype, has_vllm_engine, vllm_loading_obstacle
from grpo_nb.config.memory import (
    CPU_BASE_BYTES,
    MemoryPart,
    estimate_memory_parts,
    has_weight_copies,
)
from grpo_nb.config.model_sizes import ModelSizes, count_sizes, sizes_of
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.problems import EnvironmentProblem, warn_user
from grpo_nb.core.tables import ReprMixin, Table, bold
from grpo_nb.machine.gpu import Gpu, find_gpu, read_gpu_state
from grpo_nb.machine.gpu_errors import VLLM_CACHE_TOO_SMALL, is_out_of_memory
from grpo_nb.machine.host import free_memory_bytes

# Below this share the weights of a model hardly fit into vLLM's memory.
_MIN_VLLM_SHARE = 0.3
_MIN_COMPLETION_LENGTH = 64
# Pattern of a traceback line in `generate` or `_generate`. Training samples only through these
# functions (trl 1.15, transformers 5.17).
_SAMPLING_LINE_PATTERN = ", in _?generate\n"


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(ReprMixin):
    """Memory that a run needs, and memory that the machine has for it."""

    settings: Settings
    """Settings that will run. `fast_inference` is off where vLLM cannot generate."""
    gpu: Gpu | None
    """GPU that trains, or None for a CPU."""
    available_gb: float
    """Memory for the run: the free memory, and the memory that its loaded model holds already."""
    dtype: str
    """Dtype of the numbers that are not quantized."""
    prompt_tokens: int
    """Tokens of the longest prompt, or `max_prompt_length` if no prompt was measured."""
    sizes: ModelSizes
    """Sizes of the model."""
    vllm_obstacle: str | None
    """Reason why vLLM does not generate although it was asked for; None otherwise."""

    @property
    def memory_parts(self) -> list[MemoryPart]:
        """Memory by part."""
        return list(
            estimate_memory_parts(
                self.settings, self.sizes, self.gpu, self.dtype, self.prompt_tokens
            )
        )

    @property
    def peak_gb(self) -> float:
        """Memory of the larger phase, with completions of full length."""
        sums = Counter()
        for part in self.memory_parts:
            sums[part.phase] += part.gb
        return sums["always"] + max(sums["in generation"], sums["in training"])

    @property
    def fits(self) -> bool:
        """True if the memory is enough, and vLLM's share of the GPU holds the weights."""
        return self.peak_gb <= self.available_gb and not self._is_vllm_share_too_small

    @property
    def _is_vllm_share_too_small(self) -> bool:
        # The weights leave nothing of the share for vLLM's cache.
        return any(part.name == "vLLM" and part.bytes_needed <= 0 for part in self.memory_parts)

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
        problem = f"This run needs {need}; {free}."
        if self._is_vllm_share_too_small:
            problem += (
                " vLLM's share of the GPU, gpu_memory_utilization="
                f"{self.settings.gpu_memory_utilization}, is too small for the weights."
            )
        changes = self._fitting_changes()
        if not changes:
            return f"{problem} No smaller settings fit; take a smaller model."
        return f"{problem} These settings fit: {_line_to_write(changes)}"

    def _fitting_changes(self) -> dict[str, Any]:
        """Return the changes with which the run fits; empty if no smaller settings fit."""
        changes = {}
        current = self
        # Each change helps only a few times, so the loop ends.
        while not current.fits:
            for candidate in current._candidate_changes():
                smaller = current.settings.replace(**candidate)
                new_plan = dataclasses.replace(current, settings=smaller)
                # A larger share and turning vLLM off can make a run fit without a lower peak.
                if new_plan.fits or new_plan.peak_gb < current.peak_gb:
                    break
            else:
                return {}
            changes |= candidate
            current = new_plan
        return changes

    def _candidate_changes(self) -> Iterator[dict[str, Any]]:
        """Yield the changes that may help, in the order in which to try them."""
        if self._is_vllm_share_too_small:
            for larger_share in (0.3, 0.6, 0.9):
                yield {"gpu_memory_utilization": larger_share}
            yield {"fast_inference": False}
        for _reason, saving in _memory_savings(self.settings, self.gpu):
            yield saving

    def _shown_parts(self) -> Iterable[str | Table]:
        """Yield the verdict and the table."""
        settings = self.settings
        yield f"Plan for {settings.model}. {self._verdict()}"
        why_engine = (
            f"requested: vLLM. {self.vllm_obstacle}" if self.vllm_obstacle else "as requested"
        )
        part_rows = [
            (part.name, f"{part.gb:.2f} GB", f"{part.explanation}; {part.phase}")
            for part in self.memory_parts
        ]
        rows = [
            (bold("requested and effective"), "", ""),
            ("training steps", settings.max_steps, ""),
            (
                "completions a step",
                settings.completions_per_step,
                f"{settings.per_device_train_batch_size} x {settings.gradient_accumulation_steps}, "
                f"in groups of {settings.num_generations}",
            ),
            ("dtype", self.dtype, f"requested: {settings.dtype}"),
            ("sampling", "vLLM" if settings.fast_inference else "without vLLM", why_engine),
            (bold("needed (estimate)"), "", ""),
            *part_rows,
            (
                bold("memory, peak"),
                f"{self.peak_gb:.2f} GB",
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
        ValueError: The model has no configuration that can be read, or no attention heads.

    >>> plan(Settings(max_steps=3)).settings.max_steps
    3
    """
    require_types(
        "gn.plan(settings, task, model=model, tokenizer=tokenizer)",
        optional=("task", "model"),
        settings=settings,
        task=task,
        model=model,
    )
    gpu = find_gpu()
    prompt_tokens = settings.max_prompt_length
    if task is not None and tokenizer is not None:
        # The training leaves out prompts of more than `max_prompt_length` tokens.
        longest = max(task.prompt_lengths(task.train, tokenizer))
        prompt_tokens = min(longest, prompt_tokens)
    obstacle = None
    if settings.fast_inference and not has_vllm_engine(model):
        obstacle = vllm_loading_obstacle(settings, gpu)
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
        sizes=sizes_of(settings.model) if model is None else count_sizes(model),
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
    # A vLLM engine does not report how much memory it could give back, so assume the whole GPU.
    if has_vllm_engine(model):
        return gpu.memory_gib * 2**30
    free = read_gpu_state().free_gib * 2**30
    if model is not None:
        import torch

        # Torch keeps this memory for its next tensors, so the run can use it.
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free + held_by_model


def _memory_savings(
    settings: Settings, gpu: Gpu | None, phase: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the reason and the changes of each memory saving, in the order in which to try them.

    Args:
        settings: Settings of the run.
        gpu: GPU that trains, or None for a CPU.
        phase: `loading`, `generation` or `training`. Changes that do not help there are left out.
    """
    micro_batch = settings.per_device_train_batch_size
    # With steps_per_generation set, half the micro-batch also means half the generation batch. That
    # might split a group.
    can_halve = micro_batch % 2 == 0 and not settings.extra.get("steps_per_generation")
    if can_halve and phase not in ("loading", "generation"):
        # bnpo averages over the tokens of one pass, so in smaller passes each token counts
        # differently.
        yield (
            "Activations grow with the completions of one pass. The step keeps its completions; "
            'only loss_type="bnpo" weighs their tokens a little differently.',
            {
                "per_device_train_batch_size": micro_batch // 2,
                "gradient_accumulation_steps": settings.gradient_accumulation_steps * 2,
            },
        )
    # In standby vLLM frees its cache while gradients are computed. The weights stay, because
    # training uses them too.
    vllm_takes_memory = gpu is not None and settings.fast_inference and phase != "training"
    smaller_share = round(settings.gpu_memory_utilization - 0.1, 3)
    if vllm_takes_memory and smaller_share >= _MIN_VLLM_SHARE:
        yield (
            "vLLM reserves its whole share when it starts, which leaves too little memory for the "
            "rest.",
            {"gpu_memory_utilization": smaller_share},
        )
    if gpu is not None and not settings.load_in_4bit and phase != "generation":
        yield (
            "In 4 bit the weights need about a third of the memory.",
            {"load_in_4bit": True},
        )
    if has_weight_copies(settings, gpu, choose_dtype(settings, gpu)) and phase != "loading":
        yield (
            "Sampling with shared prompts holds two copies of the weights. Without them the "
            "training stays the same, but each step takes longer.",
            {"shared_prompts": False},
        )
    length = settings.max_completion_length
    if length >= 2 * _MIN_COMPLETION_LENGTH and phase != "loading":
        yield (
            "Memory grows with the length of the completions.",
            {"max_completion_length": length // 2},
        )
    if vllm_takes_memory:
        yield (
            "Without vLLM, the memory that vLLM takes is free, but generation is slower.",
            {"fast_inference": False},
        )


def _line_to_write(changes: Mapping[str, Any]) -> str:
    """Return the line that changes settings, such as `settings = settings.replace(beta=0.1)`."""
    keywords = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return f"settings = settings.replace({keywords})"


def out_of_memory_advice(
    error: BaseException, settings: Settings, *, is_loading: bool = False
) -> str | None:
    """Return advice after an out-of-memory error: the setting to lower, and the line to write.

    Args:
        error: The error. Its causes are checked too.
        settings: Settings of the failed run. With `fast_inference`, vLLM was running.
        is_loading: True if the model was being loaded.

    Returns:
        The advice, or None for any other error and for vLLM's own "too few cache blocks", whose
        message already gives the fix.

    >>> "per_device_train_batch_size=8" in out_of_memory_advice(MemoryError(), Settings())
    True
    """
    # The text contains the tracebacks of the causes too.
    text = "".join(traceback.format_exception(error)).lower()
    if not is_out_of_memory(error) or re.search(VLLM_CACHE_TOO_SMALL, text):
        return None
    if is_loading:
        phase = "loading"
    # Only the traceback shows in which phase of a step an error was raised.
    elif re.search(_SAMPLING_LINE_PATTERN, text):
        phase = "generation"
    else:
        phase = "training"
    advice = "No setting of this run is left to lower. Take a smaller model"
    savings = list(_memory_savings(settings, find_gpu(), phase))
    if savings:
        reason, changes = savings[0]
        advice = f"{reason} Write {_line_to_write(changes)}"
    return (
        f"Out of memory during {phase}. {advice}, in a fresh kernel: the failed one still holds "
        "its memory."
    )
