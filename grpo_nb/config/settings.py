"""Settings: one frozen object, checked before anything is downloaded or loaded.

Names are TRL's and Unsloth's own, so that their documentation applies. What has no field here is still reachable through
`extra`: its names are checked where they are written, its values by TRL, most of them when the trainer is built, before a run
has a folder.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.config import arguments
from grpo_nb.core.argument_types import require
from grpo_nb.core.files import write_text
from grpo_nb.core.tables import Shown, Table
from grpo_nb.core.words import did_you_mean

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

_LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL_LINEAR = ("all-linear",)
"""PEFT's word for every linear layer but the output's (peft/tuners/tuners_utils.py)."""


def _number(default: float | None, why: str = "", **bounds: float) -> Any:
    """A field with bounds, by the names that `check_value` knows."""
    return field(default=default, metadata={"why": why, **bounds})


def _choice(default: str | None, *others: str | None, known: tuple[str, ...] = ()) -> Any:
    """Return a field that takes its default, one of the others, or one of `known`, in which the order means nothing."""
    return field(default=default, metadata={"known": known or (default, *others)})


@dataclass(frozen=True, kw_only=True)
class Settings(Shown):
    """Everything a run can be told, with the reason of each default. Make one with `preset`, change it with `replace`.

    Raises:
        ValueError: A value that cannot work, with the value seen, why, and what to write instead.

    >>> Settings(per_device_train_batch_size=8, gradient_accumulation_steps=2).batch_size
    16
    """

    model: str = EMBEDDED_MODEL
    """A Hub id, a local folder, or the embedded model, which needs no network."""
    load_in_4bit: bool = False
    """4-bit saves memory, which a GPU is short of; on a CPU it only costs time."""
    dtype: str = _choice("auto", "float32", "bfloat16", "float16")
    """What is not in 4 bit computes in: `auto` is float32 on a CPU, and on a GPU bfloat16, or float16 where it has none. Or
    `float32`, `bfloat16`, `float16`."""
    fast_inference: bool = False
    """vLLM generation. Needs a GPU."""
    gpu_memory_utilization: float = _number(0.6, above=0, most=1)
    """Share of GPU memory that vLLM takes: weights, which training shares, and cache, which it gives back while gradients are
    computed (standby, which the kit switches on). So the presets of GPUs take more. Unused on a CPU."""
    max_prompt_length: int = _number(256, least=1, most=2**20)
    """Tokens. Longer prompts are dropped from the data and counted; TRL itself no longer limits them."""
    max_completion_length: int = _number(48, least=1, most=2**20)
    """Tokens. The short answers of the arithmetic task need about 32."""

    lora_rank: int = _number(16, least=1, most=4096)
    """Enough for a narrow task; more costs memory and time."""
    lora_alpha: int = _number(32, least=1, most=2**20)
    """Twice the rank, the common choice."""
    lora_dropout: float = _number(0.0, least=0, below=1)
    """A run of this length does not overfit its adapter, and Unsloth's fast layers want 0."""
    lora_target_modules: tuple[str, ...] = _LORA_TARGETS
    """All linear projections: better than attention alone at the same size (arXiv:2305.14314). `"all-linear"` takes those of
    any model, whatever they are called."""

    num_generations: int = _number(
        8, " (GRPO compares the completions of a group with each other)", least=2, most=4096
    )
    """Group size. A prompt teaches only if its completions differ in reward, and among 8 they usually do."""
    per_device_train_batch_size: int = _number(16, least=1, most=2**16)
    """Completions per forward pass. Times accumulation, it must be a multiple of the group size: groups stay whole."""
    gradient_accumulation_steps: int = _number(1, least=1, most=2**16)
    """More of these instead of a larger batch when memory is short."""
    max_steps: int = _number(
        14, " (for whole passes over the data write num_train_epochs)", least=1, most=10**9
    )
    """Where the arithmetic task has converged on every seed measured (docs/evidence/quickstart_seeds.md). With
    `num_train_epochs` it is computed when the training starts."""
    num_train_epochs: float | None = _number(None, above=0, most=10**6)
    """Passes over the training questions, in place of a number of steps; `gn.plan(settings, task)` shows the steps. Giving
    both is an error, and the one that `replace` sets later counts."""
    learning_rate: float = _number(1e-4, above=0, most=1)
    """High, for a LoRA on a small model and a short run. Larger models want 5e-6 to 2e-5."""
    lr_scheduler_type: str = "constant_with_warmup"
    """A run this short has no time to decay."""
    warmup_steps: int | None = _number(4, least=0)
    """Adam's first steps are as large as the learning rate allows, whatever the gradient: they come in gently. Four, however
    short the run, so that a trial of two steps is its beginning. `None`, in the presets of GPUs, is a tenth of `max_steps`."""
    max_grad_norm: float = _number(0.2, above=0)
    """RL gradients are noisy; small groups make them more so."""
    weight_decay: float = _number(0.0, least=0, most=10)
    """The KL term already holds the policy near its start."""
    beta: float = _number(0.04, least=0, most=100)
    """Weight of the KL to the starting model. Above zero, or there is no KL curve at all."""
    temperature: float = _number(
        1.0, " (lower is greedy, and completions are alike)", least=0.01, most=100
    )
    """Sampling from the policy itself. Lower values reduce the spread that GRPO learns from."""
    top_p: float = _number(1.0, above=0, most=1)
    top_k: int = _number(0, least=0)
    """0 is off. transformers would otherwise cut to 50 words, and the policy gradient assumes that nothing is cut."""
    loss_type: str = _choice("bnpo", known=arguments.LOSS_TYPES)
    """Mean over the tokens of the batch: TRL's default `dapo` for one process, and nothing that Unsloth changes for it."""
    optim: str = "adamw_torch_fused"
    """The optimizer state of a LoRA is small. `adamw_8bit` saves a little more on a GPU."""

    save_steps: int = _number(0, least=0)
    """Steps between two checkpoints. 0 saves every three minutes, or less often where saving takes long."""
    holdout_every: int = _number(0, least=0)
    """Steps between two scores on held-out questions; 0 is off, for it takes the time of answering them."""
    holdout_questions: int = _number(32, least=1)
    """How many of them. The curve is rough at 32, the comparison afterwards asks all."""
    keep_adapter: str = _choice("last", "best")
    """The adapter that a run leaves: of its last step, or the best by held-out scores, with the last beside it."""
    stop_on_alert: str | None = _choice(None, "critical")
    """`"critical"` ends the training, saved and resumable, after a health alert that says it learns nothing or unlearns."""
    seed: int = _number(3407, " (numpy takes no other)", least=0, most=2**32 - 1)
    shared_prompts: bool = True
    """On a CPU, compute each distinct prompt once per step instead of once per completion (grpo_nb.generation)."""
    run_root: str = "runs"
    """Folder under which each run gets a folder of its own."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of TRL's `GRPOConfig` and Unsloth's, of values that JSON has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", _as_json(self.extra))
        object.__setattr__(self, "lora_target_modules", _layers(self.lora_target_modules))
        for f in dataclasses.fields(self):
            if "known" in f.metadata:
                arguments.check_choice(f.name, getattr(self, f.name), **f.metadata)
            else:
                arguments.check_value(f.name, getattr(self, f.name), f.type, **f.metadata)
        # TRL itself notices an unknown one, and an unknown loss, only at the first loss, after the first generation.
        level = self.extra.get("importance_sampling_level", "token")
        arguments.check_choice(
            "importance_sampling_level", level, arguments.IMPORTANCE_SAMPLING_LEVELS
        )
        self._check_groups()
        if self.num_train_epochs is None:
            self._check_warmup()

    def _check_warmup(self) -> None:
        """Refuse a warm-up that the run would never get to the end of."""
        if self.warmup > max(self.max_steps, _DEFAULTS["warmup_steps"]):
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} is longer than the run (max_steps = {self.max_steps}), which would never "
                f"reach its learning rate: write warmup_steps={self.max_steps // 10}."
            )

    def _check_groups(self) -> None:
        """Refuse a batch that would cut a group; TRL does too, and Unsloth on a GPU changes the batch size by itself."""
        for name in ("steps_per_generation", "generation_batch_size"):
            arguments.check_value(f"extra[{name!r}]", self.extra.get(name), "int | None", least=1)
        total, group, micro = (
            self.generation_batch_size,
            self.num_generations,
            self.per_device_train_batch_size,
        )
        if total % group:
            instead = f"per_device_train_batch_size={-(-micro // group) * group}"
            if self.extra.get("generation_batch_size"):
                unit = math.lcm(micro, group)
                instead = f'extra={{"generation_batch_size": {-(-total // unit) * unit}}}'
            raise ValueError(
                f"{total} completions are generated at a time (per_device_train_batch_size {micro} x {total / micro:g}), which "
                f"cannot be divided into groups of num_generations = {group}: a group must be whole, or its advantages mean "
                f"nothing. Write {instead}."
            )

    @property
    def warmup(self) -> int:
        """Steps of warm-up: `warmup_steps`, or a tenth of the run."""
        return self.max_steps // 10 if self.warmup_steps is None else self.warmup_steps

    @property
    def batch_size(self) -> int:
        """Completions per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def generation_batch_size(self) -> int:
        """Completions generated at a time: one optimizer step's, unless `extra` has one of TRL's arguments for it."""
        steps = self.extra.get("steps_per_generation") or self.gradient_accumulation_steps
        return self.extra.get("generation_batch_size") or self.per_device_train_batch_size * steps

    @property
    def sampling(self) -> dict[str, Any]:
        """What narrows the distribution that completions are drawn from, beside the temperature, by its names everywhere."""
        extra = {
            name: self.extra[name] for name in ("min_p", "repetition_penalty") if name in self.extra
        }
        return {"top_p": self.top_p, "top_k": self.top_k, **extra}

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with some settings changed. Unknown names are errors with the nearest right name."""
        changes = _one_length(changes)
        arguments.check_names(changes, _DEFAULTS)
        if "max_steps" in changes:
            changes = {"num_train_epochs": None, **changes}
        return Settings.from_dict({**vars(self), **changes})

    def for_questions(self, count: int) -> Settings:
        """Return a copy whose `max_steps` is what `num_train_epochs` means for that many training questions.

        Without `num_train_epochs` these are the settings as they are. A pass ends, as in TRL, before questions that are too
        few for one more generation.

        Raises:
            ValueError: There are too few questions for a single generation, or the warm-up is longer than the run.

        >>> Settings(num_train_epochs=3).for_questions(100).max_steps  # 2 questions a step
        150
        """
        if self.num_train_epochs is None:
            return self
        of_generation = self.generation_batch_size // self.num_generations
        generations = count // of_generation
        if not generations:
            raise ValueError(
                f"num_train_epochs = {self.num_train_epochs:g} cannot be counted: there are {count} training questions, and "
                f"one generation takes {of_generation}. Write max_steps={self.max_steps}, or a smaller batch."
            )
        # trl 1.15, `GRPOTrainer._get_train_sampler`: each generation serves so many passes of the model.
        steps_per_generation = self.generation_batch_size // self.per_device_train_batch_size
        passes = generations * steps_per_generation * self.extra.get("num_iterations", 1)
        steps_of_epoch = max(math.ceil(passes / self.gradient_accumulation_steps), 1)
        steps = math.ceil(self.num_train_epochs * steps_of_epoch)
        settings = Settings.from_dict({**vars(self), "max_steps": steps})
        settings._check_warmup()
        return settings

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON that `Settings.from_dict` gives back exactly."""
        return {**vars(self), "lora_target_modules": list(self.lora_target_modules)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings of `to_dict`, checked as if they were written in a cell."""
        values = with_current_names(values)
        arguments.check_names(values, _DEFAULTS)
        settings = object.__new__(cls)
        # Those of a run hold both the epochs that were asked for and the steps that they came to.
        _init(settings, **values)
        return settings

    def save(self, path: str | Path) -> Path:
        """Write the settings to a JSON file that `Settings.load` gives back exactly.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "settings.json"
        >>> Settings.load(Settings(max_steps=7).save(path)).max_steps
        7
        """
        path = Path(path).expanduser()
        write_text(path, json.dumps(self.to_dict(), indent=2) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """Read what `save` wrote, checked as if it were written in a cell.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: It is no JSON, or holds something that cannot run here.
        """
        return cls.from_dict(json.loads(Path(path).expanduser().read_text("utf-8")))

    def _parts(self) -> Iterable[Table]:
        values = {**vars(self), "warmup_steps": self.warmup}
        if self.num_train_epochs is not None:
            values["max_steps"] = (
                f"for num_train_epochs={self.num_train_epochs:g}: gn.plan(settings, task) shows it"
            )
            if self.warmup_steps is None:
                values["warmup_steps"] = "a tenth of the steps"
        yield Table(
            [row for row in values.items() if row[1] not in ({}, None)], head=("setting", "value")
        )


def _known_names_only(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: Settings, *unnamed: Any, **values: Any) -> None:
        if unnamed:
            raise TypeError(
                f"Settings takes names and values, not {unnamed[0]!r:.60}: gn.Settings(max_steps=100), or "
                "gn.Settings.from_dict(values) for a dict."
            )
        values = _one_length(values)
        arguments.check_names(values, _DEFAULTS)
        init(self, **values)

    return checked


def _one_length(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they were written; refuse two lengths of a run at once.

    Raises:
        ValueError: Both `max_steps` and `num_train_epochs` are given.
    """
    if values.get("num_train_epochs") is None or "max_steps" not in values:
        return dict(values)
    steps, epochs = values["max_steps"], values["num_train_epochs"]
    if steps == -1:  # TRL's way to write that the epochs count
        return {name: value for name, value in values.items() if name != "max_steps"}
    raise ValueError(
        f"max_steps = {steps!r} and num_train_epochs = {epochs!r} both say how long the run is: "
        "leave one of them out. (TRL would take max_steps and pass over the epochs.)"
    )


# Names of settings in files that an earlier version wrote, and their names now.
_OLD_NAMES = {"keep": "keep_adapter"}


def with_current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings under the names that they have now.

    Both readers of stored settings call it: `Settings.from_dict`, and `read_run_info` for `run.json`.

    >>> with_current_names({"keep": "best"})
    {'keep_adapter': 'best'}
    """
    current = {}
    for name, value in values.items():
        new_name = _OLD_NAMES.get(name, name)
        current[name if new_name in values else new_name] = value
    return current


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Settings)}
# The one that `dataclass` made knows neither the nearest name nor what to write instead.
_init = Settings.__init__
Settings.__init__ = _known_names_only(_init)


def _as_json(extra: Any) -> dict[str, Any]:
    """A copy of `extra` as a file of settings gives it back: lists for tuples."""
    try:
        return dict(json.loads(json.dumps(extra, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"extra = {extra!r:.80} must be a dict of values that JSON has: {error}."
        ) from None


def _layers(value: Any) -> tuple[str, ...]:
    """The layers to adapt by name; PEFT would read one text as a pattern."""
    names = ALL_LINEAR if value == ALL_LINEAR[0] else value
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        written = 'lora_target_modules=("q_proj", "v_proj"), or lora_target_modules="all-linear"'
        raise ValueError(
            f"lora_target_modules = {value!r:.80} must be names of layers, at least one: {written}."
        )
    return tuple(names)


def require_settings(settings: Any, call: str = "gn.plan(settings, task)") -> None:
    """Refuse what stands in the place of settings.

    Raises:
        TypeError: With what was given.

    >>> require_settings(Settings())
    """
    require(call, settings=settings)


def refuse_keywords(function: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a public function does not have, with the line that sets them.

    Args:
        function: The public function.
        unknown: What it was given besides its own arguments.

    Raises:
        TypeError: For a setting or an argument of TRL with `settings.replace(...)`, for another name with the nearest one.

    >>> refuse_keywords(require_settings, {})
    """
    if not unknown:
        return
    name = function.__name__
    own = {key: value for key, value in unknown.items() if key in _DEFAULTS}
    other = {key: value for key, value in unknown.items() if key not in _DEFAULTS}
    told = []
    if own:
        line = ", ".join(f"{key}={value!r}" for key, value in own.items())
        what = "is a setting" if len(own) == 1 else "are settings"
        told.append(
            f"{line} {what}, and gn.{name} takes settings as one object. Write settings = settings.replace({line})."
        )
    for key, value in other.items():
        own_arguments = [
            known for known in inspect.signature(function).parameters if known != "unknown"
        ]
        try:
            arguments.check_names({key: value}, own_arguments)
        except ValueError as error:
            text = str(error)
            if text.startswith("unknown setting"):
                text = f"unknown argument {key!r} of gn.{name}{did_you_mean(key, [*own_arguments, *_DEFAULTS])}"
            told.append(
                text.replace("write extra=", "write settings = settings.replace(extra=").replace(
                    "}.", "})."
                )
            )
    raise TypeError(" ".join(told))
