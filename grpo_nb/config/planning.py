"""`gn.plan`: what a run needs, whether it fits, and which smaller settings do.

The same list of memory savers serves a plan that does not fit and a run that ran out of memory.
Memory is arithmetic on sizes (formulas and their sources in `memory`), and never a promise. The
time of a step is not estimated.
"""

import dataclasses
import functools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.arguments import as_keywords, check_value
from grpo_nb.config.counting import count_sizes
from grpo_nb.config.dtype import ComputeDtype, compute_dtype, dtype_of_model
from grpo_nb.config.memory import (
    CPU_BASE,
    Part,
    Sizes,
    is_standby,
    memory_parts,
    peak_gb,
    sizes_of,
)
from grpo_nb.config.presets import find_machine
from grpo_nb.config.settings import Settings, refuse_keywords
from grpo_nb.config.vllm_obstacle import vllm_obstacle
from grpo_nb.core.argument_types import require
from grpo_nb.core.tables import Shown, Table, bold
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.faults import error_chain, is_out_of_memory
from grpo_nb.machine.gpu import Gpu, find_gpu, read_gpu
from grpo_nb.machine.host import free_memory_bytes, total_memory_gib


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Shown):
    """Needs of a run beside what the machine has. `require_fit` acts if the run cannot fit."""

    settings: Settings
    """Settings that will run: without vLLM where it cannot generate."""
    gpu: Gpu | None
    """GPU that trains, or None for a CPU."""
    available_gb: float
    """Memory for the run: what is free and what its model holds already. All of it on a machine
    that is not this one."""
    dtype: ComputeDtype
    """Dtype of the numbers that are not quantized."""
    prompt_tokens: int
    """Tokens of the longest prompt, or `max_prompt_length` if no prompt was measured."""
    sizes: Sizes | None
    """Sizes of the model; None if they are not known."""
    questions: int | None = None
    """Number of training questions; None without a task."""
    why_not_vllm: str = ""
    """Reason why vLLM does not generate although it was asked for; empty otherwise."""

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Memory by part in GB; empty if the sizes of the model are not known."""
        if self.sizes is None:
            return ()
        size = self.dtype.bytes
        return tuple(memory_parts(self.settings, self.sizes, self.gpu, size, self.prompt_tokens))

    @property
    def memory_gb(self) -> float | None:
        """Peak of the memory with every completion at its longest; None if it is not known."""
        return peak_gb(self.parts) if self.parts else None

    @property
    def fits(self) -> bool | None:
        """True if the memory is enough; None if that is not known."""
        return self.memory_gb <= self.available_gb if self.parts else None

    @functools.cached_property
    def nearest(self) -> Mapping[str, Any]:
        """Changes to the settings with which the run fits; empty if it fits, or nothing helps."""

        def fits(settings: Settings) -> bool | None:
            return dataclasses.replace(self, settings=settings).fits

        return fitting_changes(self.settings, fits, is_gpu=self.gpu is not None)

    def require_fit(self) -> None:
        """Raise if the run cannot fit a CPU, where the kernel would end; warn if it is a GPU.

        Raises:
            EnvironmentProblem: Gives the memory needed, the memory free, and settings that fit.
        """
        if self.fits is not False:
            return
        message = f"{self._verdict()} (An estimate, with every completion at its longest.)"
        if self.gpu is None:
            raise EnvironmentProblem(message)
        warnings.warn(message, stacklevel=3)

    def _machine(self) -> str:
        return self.gpu.name if self.gpu else "this computer"

    def _verdict(self) -> str:
        free = f"{self._machine()} ({self.available_gb:.1f} GB free)"
        if not self.parts:
            return f"It is unknown if the run fits {free}: this model has no readable config.json."
        if self.fits:
            return f"The run fits {free}: it needs about {self.memory_gb:.1f} GB at its peak."
        advice = "no smaller settings; take a smaller model"
        if self.nearest:
            advice = replacing(self.nearest)
        return (
            f"This run needs about {self.memory_gb:.1f} GB at its peak, more than {free} has. "
            f"What fits: {advice}"
        )

    def _parts(self) -> Iterable[str | Table]:
        yield f"Plan for {self.settings.model}. {self._verdict()}"
        rows = [*self._rows_of_run(), *self._rows_of_memory()]
        yield Table(rows, head=("", "value", "explanation"), right=(1,), narrow=(0, 1))

    def _rows_of_run(self) -> Iterable[tuple[Any, ...]]:
        """Yield what was asked for and what will run."""
        settings = self.settings
        length = self.prompt_tokens + settings.max_completion_length
        epochs = settings.num_train_epochs
        steps = f"{settings.max_steps:,}"
        why_steps = ""
        if epochs is not None and self.questions is None:
            steps = "not known"
            why_steps = f"num_train_epochs={epochs:g} over the questions of a task"
        elif epochs is not None:
            why_steps = f"num_train_epochs={epochs:g} over {self.questions:,} questions"
        engine = "vLLM" if settings.fast_inference else "without vLLM"
        why_engine = "as asked"
        if self.why_not_vllm:
            why_engine = f"asked: vLLM. {self.why_not_vllm}"
        yield bold("asked, and what will run"), "", ""
        yield "training steps", steps, why_steps
        batch = f"{settings.per_device_train_batch_size} x {settings.gradient_accumulation_steps}"
        groups = f"{batch}, in groups of {settings.num_generations}"
        yield "completions a step", f"{settings.batch_size}", groups
        tokens = f"{settings.batch_size} times {length}, every completion at its longest"
        yield "tokens a step", f"up to {settings.batch_size * length:,}", tokens
        yield "time a step", "not measured yet", "run.rows has it after the first steps"
        yield "dtype", self.dtype.name, f"asked: {settings.dtype}. {self.dtype.why}"
        yield "sampling", engine, why_engine

    def _rows_of_memory(self) -> Iterable[tuple[Any, ...]]:
        """Yield what the run needs, as estimates, and what is there."""
        if self.sizes is not None:
            yield bold("what it needs, estimated"), "", ""
            for part in self.parts:
                phase = "" if part.phase == "always" else f"; in {part.phase}"
                yield part.name, f"{part.gb:.2f} GB", f"{part.how}{phase}"
            peak = "estimate: the larger of generation and training"
            yield bold("memory, peak"), bold(f"{self.memory_gb:.2f} GB"), peak
            disk = f"{self.sizes.parameters * 2 / 1e9:.2f} GB"
            yield "disk, merged export", disk, "all weights in 16 bit"
        yield bold("what is there"), "", ""
        yield "memory", f"{self.available_gb:.2f} GB", f"free for this run on {self._machine()}"


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
    """Estimate the memory, tokens and disk that a run needs, beside what the machine has.

    Args:
        settings: Settings of the run.
        task: A `Task`, for the lengths of its prompts and the steps of `num_train_epochs`.
        model: The loaded model, whose sizes are counted. Without it, a model without weights is
            built from the configuration, which takes some seconds the first time.
        tokenizer: With `task`, to measure the longest prompt. Without it, the longest prompt has
            `max_prompt_length` tokens.
        machine: `cpu`, `t4`, `l4`, `a100`, `h100` or a `Gpu`; by default this machine.
        gpu_memory_gb: Memory of a GPU with bfloat16, in GB (10⁹ bytes), in place of `machine`.

    Raises:
        ValueError: The machine is unknown.

    >>> plan(Settings(), machine="t4").fits
    True
    """
    refuse_keywords(plan, unknown)
    require("gn.plan(settings, task)", optional=("task",), settings=settings, task=task)
    if gpu_memory_gb is not None:
        check_value("gpu_memory_gb", gpu_memory_gb, float, above=0)
        machine = Gpu(f"a GPU of {gpu_memory_gb:g} GB", gpu_memory_gb * 1e9 / 2**30, (8, 0))
    gpu = find_machine(machine)
    is_elsewhere = gpu != find_gpu()
    questions = None
    prompt_tokens = settings.max_prompt_length
    if task is not None:
        questions = len(task.train)
        settings = settings.for_questions(questions)
        if tokenizer is not None:
            lengths = task.prompt_lengths(task.train, tokenizer)
            kept = [length for length in lengths if length <= prompt_tokens]
            prompt_tokens = max(kept, default=prompt_tokens)
    if model is None:
        dtype = compute_dtype(settings, gpu)
        sizes = sizes_of(settings.model)
    else:
        dtype = dtype_of_model(model, settings, gpu)
        sizes = Sizes(**count_sizes(model))
    why_not_vllm = _why_not_vllm(settings, gpu, model, is_elsewhere=is_elsewhere)
    return Plan(
        settings=settings.replace(fast_inference=False) if why_not_vllm else settings,
        gpu=gpu,
        available_gb=_available(gpu, model, is_elsewhere) / 1e9,
        dtype=dtype,
        prompt_tokens=prompt_tokens,
        questions=questions,
        sizes=sizes,
        why_not_vllm=why_not_vllm,
    )


def _why_not_vllm(settings: Settings, gpu: Gpu | None, model: Any, *, is_elsewhere: bool) -> str:
    """Return why vLLM does not generate although it was asked for; empty otherwise."""
    if not settings.fast_inference or hasattr(model, "vllm_engine"):
        return ""
    if model is not None:
        return "The model was loaded without it."
    if is_elsewhere and gpu is not None:
        # What is installed on another machine is not known.
        return ""
    return str(vllm_obstacle(settings, gpu, try_import=False) or "")


def _available(gpu: Gpu | None, model: Any, is_elsewhere: bool) -> float:
    """Return the bytes that a run can have: free memory, and what its model holds already."""
    whole = (gpu.memory_gib if gpu else total_memory_gib()) * 2**30
    # An engine does not report how much of its memory it could give back.
    if is_elsewhere or hasattr(model, "vllm_engine"):
        return whole
    held_by_model = 0
    if model is not None:
        held_by_model = sum(p.numel() * p.element_size() for p in model.parameters())
    if gpu is None:
        import psutil

        held_by_python = min(psutil.Process().memory_info().rss, CPU_BASE)
        return min(whole, free_memory_bytes() + held_by_python + held_by_model)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        held_by_model += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return min(whole, read_gpu().free_gib * 2**30 + held_by_model)


@dataclass(frozen=True)
class _Saver:
    """A change of settings that needs less memory."""

    name: str
    why: str
    is_for_gpu: bool = False
    useless_in: tuple[str, ...] = ()
    """Places where it does not help: `loading`, `generation`, `training`."""


# The cheapest first: smaller passes train the same.
_SAVERS = (
    _Saver(
        "passes",
        "Activations grow with the completions of one pass. The same step in smaller passes gives "
        "the same result.",
        useless_in=("loading", "generation"),
    ),
    _Saver(
        "vLLM's share",
        "vLLM takes its share at once, and what is left was too little for the rest.",
        is_for_gpu=True,
        # In standby vLLM gives the share back while gradients are computed.
        useless_in=("training",),
    ),
    _Saver(
        "bits",
        "The weights in 16 bit are the largest part left; in 4 bit they take about a third.",
        is_for_gpu=True,
        useless_in=("generation",),
    ),
    _Saver("length", "Memory grows with the length of the completions.", useless_in=("loading",)),
    _Saver("group", "Fewer completions are generated at once.", useless_in=("loading",)),
    _Saver(
        "no vLLM",
        "Without vLLM the memory it takes for itself is free; generation is slower.",
        is_for_gpu=True,
    ),
)
# Every sampling of a training calls one of these functions (trl 1.15, transformers 5.17).
_SAMPLING_FUNCTIONS = {"generate", "_generate"}


@dataclass(frozen=True)
class MemoryAdvice:
    """Advice after an out-of-memory error."""

    message: str
    why: str
    advice: str
    change: Mapping[str, object]
    """Settings to write; empty if every setting is at its least already."""
    place: str | None
    """`loading`, `generation`, or None if it is not known."""


def fitting_changes(
    settings: Settings, fits: Callable[[Settings], bool | None], *, is_gpu: bool
) -> dict[str, Any]:
    """Return the changes to settings that make `fits(settings)` true; empty if nothing does.

    Each saver is used as often as needed, the cheapest first. Then the savers are taken back one by
    one, the dearest first, because a later one may have made an earlier one unnecessary.
    """
    savers = [saver for saver in _SAVERS if is_gpu or not saver.is_for_gpu]
    changed = settings
    used = []
    for saver in savers:
        smaller = _smaller_until_fits(changed, saver, fits)
        used.append((saver, _changes(smaller, changed)))
        changed = smaller
    for saver, values_before in reversed(used):
        changed = _smaller_until_fits(changed.replace(**values_before), saver, fits)
    return _changes(settings, changed) if fits(changed) else {}


def memory_advice(
    error: BaseException, settings: Settings, *, place: str | None = None
) -> MemoryAdvice | None:
    """Return which setting to lower after an out-of-memory error, with the line to paste.

    Args:
        error: The error; those that it came from are looked at too.
        settings: Settings of the run that failed.
        place: `loading` or `generation`; by default the latter if the error's traceback shows it.

    Returns:
        None for any other error, and where vLLM's share is too small, which vLLM explains itself.

    >>> memory_advice(RuntimeError("CUDA out of memory"), Settings()).change
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2}
    """
    chain = list(error_chain(error))
    text = " ".join(f"{type(cause).__name__} {cause}".lower() for cause in chain)
    if not is_out_of_memory(error) or "cache blocks" in text or "kv cache" in text:
        return None
    if place is None and any(_is_in_sampling(cause) for cause in chain):
        place = "generation"
    is_gpu = find_gpu() is not None or any(sign in text for sign in ("cuda", "cublas", "gpu"))
    change: dict[str, Any] = {}
    why = "No setting of this run is left to lower."
    instead = "Take a smaller model"
    for saver in _SAVERS:
        smaller = _smaller(settings, saver) if is_gpu or not saver.is_for_gpu else None
        if smaller is not None and not _is_useless(saver, place):
            change = _changes(settings, smaller)
            why = saver.why
            instead = replacing(change)
            break
    advice = f"{instead}, in a fresh kernel: the failed one still holds its memory."
    where = {None: "", "loading": " while loading"}.get(place, f" in {place}")
    return MemoryAdvice(f"Out of memory{where}.", why, advice, change, place)


def _is_in_sampling(error: BaseException) -> bool:
    """Return whether an error was raised while completions were sampled."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name in _SAMPLING_FUNCTIONS for frame in frames)


def _is_useless(saver: _Saver, place: str | None) -> bool:
    """Return whether a saver does not help in a place; without a place, it is in training."""
    if place is None:
        return "training" in saver.useless_in and is_standby()
    return place in saver.useless_in


def replacing(change: Mapping[str, Any]) -> str:
    """Return the line that changes settings.

    >>> replacing({"max_steps": 5})
    'settings = settings.replace(max_steps=5)'
    """
    return f"settings = settings.replace({as_keywords(change)})"


def _smaller_until_fits(
    settings: Settings, saver: _Saver, fits: Callable[[Settings], bool | None]
) -> Settings:
    """Return settings with a saver used as often as they need to fit, or as often as it can be."""
    while not fits(settings) and (smaller := _smaller(settings, saver)):
        settings = smaller
    return settings


def _smaller(settings: Settings, saver: _Saver) -> Settings | None:
    """Return settings with a saver used once; None if it cannot be used any more."""
    micro = settings.per_device_train_batch_size
    parts = next((n for n in range(2, micro + 1) if micro % n == 0), 1)
    length = settings.max_completion_length
    share = settings.gpu_memory_utilization
    # Below 0.3 the weights of a model hardly fit into vLLM's share.
    least_share = min(share, 0.3) if settings.fast_inference else share
    changes: dict[str, dict[str, Any]] = {
        "passes": {
            "per_device_train_batch_size": micro // parts,
            "gradient_accumulation_steps": settings.gradient_accumulation_steps * parts,
        },
        "vLLM's share": {"gpu_memory_utilization": max(round(share - 0.1, 3), least_share)},
        "bits": {"load_in_4bit": True},
        "length": {"max_completion_length": length // 2 if length > 64 else length},
        "group": {"num_generations": max(settings.num_generations // 2, 2)},
        "no vLLM": {"fast_inference": False},
    }
    try:
        smaller = settings.replace(**changes[saver.name])
    except ValueError:  # a group would be split
        return None
    return None if smaller == settings else smaller


def _changes(settings: Settings, to: Settings) -> dict[str, Any]:
    return {name: value for name, value in vars(to).items() if value != getattr(settings, name)}
