"""`Settings`: all settings of a run in one frozen object.

The names are those of TRL and Unsloth, so that their documentation applies. Numbers, choices and
names are checked when the object is made. TRL checks the optimizer, the scheduler and the values in
`extra` when the trainer is built, before a run has a folder.
"""

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from grpo_nb.config import arguments
from grpo_nb.core.files import write_text
from grpo_nb.core.tables import Shown, Table
from grpo_nb.core.words import did_you_mean

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

#: Value of `lora_target_modules` if every linear layer except the output layer is adapted
#: (peft/tuners/tuners_utils.py).
ALL_LINEAR = ("all-linear",)
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Old names of settings in saved files -> their names now.
_OLD_NAMES = {"keep": "keep_adapter"}


def _number(default: float | None, why: str = "", **bounds: float) -> Any:
    """Return a field with bounds: `least`, `above`, `most`, `below`."""
    return field(default=default, metadata={"why": why, **bounds})


def _choice(default: str | None, *known: str | None) -> Any:
    """Return a field that takes one of the known values."""
    return field(default=default, metadata={"known": known})


@dataclass(frozen=True, kw_only=True)
class Settings(Shown):
    """Settings of a run, with the reason for each default.

    Make them with `preset`, change them with `replace`.

    Raises:
        ValueError: A value cannot work; gives the value, the reason, and what to write instead.

    >>> Settings(per_device_train_batch_size=8, gradient_accumulation_steps=2).batch_size
    16
    """

    model: str = EMBEDDED_MODEL
    """A Hub id, a local folder, or the embedded model, which needs no network."""
    load_in_4bit: bool = False
    """4 bit saves memory, which a GPU is short of. On a CPU it only costs time."""
    dtype: str = _choice("auto", "auto", "float32", "bfloat16", "float16")
    """Compute dtype of the weights that are not quantized. `auto` is float32 on a CPU, and on a GPU
    bfloat16, or float16 where the card has no bfloat16."""
    fast_inference: bool = False
    """Sample with vLLM, which needs a GPU."""
    gpu_memory_utilization: float = _number(0.6, above=0, most=1)
    """Share of GPU memory that vLLM takes. It holds the weights, which training also uses, and
    vLLM's cache. vLLM gives the cache back while gradients are computed (standby, which the kit
    switches on), so the presets of GPUs take more. Unused on a CPU."""
    max_prompt_length: int = _number(256, least=1, most=2**20)
    """Tokens. Longer prompts are dropped from the data and counted; TRL no longer limits them."""
    max_completion_length: int = _number(48, least=1, most=2**20)
    """Tokens. The short answers of the arithmetic task need about 32."""

    lora_rank: int = _number(16, least=1, most=4096)
    """Enough for a narrow task; a larger rank costs memory and time."""
    lora_alpha: int = _number(32, least=1, most=2**20)
    """Twice the rank, the common choice."""
    lora_dropout: float = _number(0.0, least=0, below=1)
    """A short run does not overfit its adapter, and Unsloth's fast layers need 0."""
    lora_target_modules: tuple[str, ...] = _PROJECTIONS
    """All linear projections: better than adapting attention alone with as many LoRA weights
    (arXiv:2305.14314). `"all-linear"` adapts all linear layers of any model."""

    num_generations: int = _number(
        8, " (GRPO compares the completions of a group with each other)", least=2, most=4096
    )
    """Completions per prompt, the group. A prompt teaches only if the rewards in its group differ,
    and among 8 completions they usually do."""
    per_device_train_batch_size: int = _number(16, least=1, most=2**16)
    """Completions per forward pass. Multiplied by `gradient_accumulation_steps`, it must be a
    multiple of `num_generations`."""
    gradient_accumulation_steps: int = _number(1, least=1, most=2**16)
    """Forward passes per step. Take more passes and a smaller batch when memory is short."""
    max_steps: int = _number(
        14, " (for whole passes over the data write num_train_epochs)", least=1, most=10**9
    )
    """14 steps are enough for the arithmetic task on every seed measured
    (docs/evidence/quickstart_seeds.md). With `num_train_epochs` the steps are computed when
    training starts."""
    num_train_epochs: float | None = _number(None, above=0, most=10**6)
    """Passes over the training questions, in place of `max_steps`; `gn.plan(settings, task)` shows
    the steps. Giving both is an error, but a `replace` with one of them drops the other."""
    learning_rate: float = _number(1e-4, above=0, most=1)
    """High, for a LoRA on a small model and a short run. Larger models need 5e-6 to 2e-5."""
    lr_scheduler_type: str = "constant_with_warmup"
    """A run this short has no time to decay."""
    warmup_steps: int | None = _number(4, least=0)
    """Adam's first steps are as large as the learning rate allows, whatever the gradient, so the
    warm-up keeps them small. Four for any `max_steps`, so that a trial of two steps equals the
    start of the real run. `None`, in the presets of GPUs, is a tenth of `max_steps`."""
    max_grad_norm: float = _number(0.2, above=0)
    """RL gradients are noisy, and small groups make them noisier."""
    weight_decay: float = _number(0.0, least=0, most=10)
    """The KL term already keeps the policy near its start."""
    beta: float = _number(0.04, least=0, most=100)
    """Weight of the KL to the starting model. At 0 there is no KL curve."""
    temperature: float = _number(
        1.0, " (lower is greedy, and completions are alike)", least=0.01, most=100
    )
    """Sample from the policy itself. Lower values reduce the variance that GRPO learns from."""
    top_p: float = _number(1.0, above=0, most=1)
    """1 is off, because the policy gradient assumes that no token is left out."""
    top_k: int = _number(0, least=0)
    """0 is off. The default of transformers keeps only the 50 likeliest tokens."""
    loss_type: str = _choice("bnpo", *arguments.LOSS_TYPES)
    """Mean over the tokens of a micro-batch. Equals TRL's default `dapo` for one process and
    `gradient_accumulation_steps=1`. For `dapo` and `dr_grpo` Unsloth also changes other
    settings."""
    optim: str = "adamw_torch_fused"
    """The optimizer state of a LoRA is small. `adamw_8bit` saves a little more on a GPU."""

    save_steps: int = _number(0, least=0)
    """Steps between two checkpoints. With 0 the kit saves by time: every three minutes."""
    holdout_every: int = _number(0, least=0)
    """Steps between two scores on held-out questions. 0 is off, because answering takes time."""
    holdout_questions: int = _number(32, least=1)
    """Held-out questions per score. The curve is rough at 32; the comparison afterwards uses
    all."""
    keep_adapter: str = _choice("last", "last", "best")
    """The adapter that a run leaves: of its last step, or the best by held-out scores, with the
    last beside it."""
    stop_on_alert: str | None = _choice(None, None, "critical")
    """`"critical"` ends the training after a health alert that it learns nothing or unlearns. The
    run is saved and can be resumed."""
    seed: int = _number(3407, " (numpy takes no other)", least=0, most=2**32 - 1)
    """Seed of the data order, of sampling and of the LoRA's initial weights."""
    shared_prompts: bool = True
    """On a CPU, compute each distinct prompt once per step instead of once per completion."""
    run_root: str = "runs"
    """Folder in which each run gets a folder."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of TRL's `GRPOConfig` and Unsloth's, with values that JSON has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", _as_json(self.extra))
        object.__setattr__(self, "lora_target_modules", _layers(self.lora_target_modules))
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if "known" in f.metadata:
                arguments.check_choice(f.name, value, f.metadata["known"])
            elif f.name not in ("extra", "lora_target_modules"):
                arguments.check_value(f.name, value, f.type, **f.metadata)
        # TRL notices an unknown level only at the first loss, after the first generation.
        level = self.extra.get("importance_sampling_level", "token")
        arguments.check_choice(
            "importance_sampling_level", level, arguments.IMPORTANCE_SAMPLING_LEVELS
        )
        self._check_groups()
        if self.num_train_epochs is None:
            self._check_warmup()

    def _check_warmup(self) -> None:
        """Refuse a warm-up longer than the run, unless it is at most the default of four steps.

        So a trial of two steps keeps the default, and equals the start of a longer run.
        """
        if self.warmup > max(self.max_steps, _DEFAULTS["warmup_steps"]):
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} is longer than the run (max_steps = "
                f"{self.max_steps}), which would never reach its learning rate: write "
                f"warmup_steps={self.max_steps // 10}."
            )

    def _check_groups(self) -> None:
        """Refuse a batch that would split a group.

        TRL refuses it too, but Unsloth on a GPU changes the batch size by itself.
        """
        for name in ("steps_per_generation", "generation_batch_size", "num_iterations"):
            value = self.extra.get(name)
            arguments.check_value(f"extra[{name!r}]", value, int | None, least=1)
        total = self.generation_batch_size
        group = self.num_generations
        if total % group == 0:
            return
        micro = self.per_device_train_batch_size
        instead = f"per_device_train_batch_size={math.ceil(micro / group) * group}"
        if self.extra.get("generation_batch_size"):
            unit = math.lcm(micro, group)
            instead = f'extra={{"generation_batch_size": {math.ceil(total / unit) * unit}}}'
        raise ValueError(
            f"{total} completions are generated at a time, which is not a multiple of "
            f"num_generations = {group}. A group must be whole, or its advantages "
            f"mean nothing. Write {instead}."
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
        """Completions generated at a time: one optimizer step's, unless `extra` changes it."""
        steps = self.extra.get("steps_per_generation") or self.gradient_accumulation_steps
        return self.extra.get("generation_batch_size") or self.per_device_train_batch_size * steps

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters besides the temperature, under the names that every engine uses."""
        extra = {
            name: self.extra[name] for name in ("min_p", "repetition_penalty") if name in self.extra
        }
        return {"top_p": self.top_p, "top_k": self.top_k, **extra}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed.

        Raises:
            ValueError: A name is unknown, with the nearest right one, or a value cannot work.
        """
        changes = _one_run_length(changes)
        arguments.check_names(changes, _DEFAULTS)
        if "max_steps" in changes:
            changes = {"num_train_epochs": None, **changes}
        return self.from_dict({**vars(self), **changes})

    def for_questions(self, count: int) -> Self:
        """Return a copy whose `max_steps` is `num_train_epochs` passes over `count` questions.

        Without `num_train_epochs` the settings are returned as they are. As in TRL, a pass leaves
        out questions that are too few for one more generation.

        Raises:
            ValueError: There are too few questions for a single generation, or the warm-up is
                longer than the run.

        >>> Settings(num_train_epochs=3).for_questions(100).max_steps  # 2 questions per step
        150
        """
        if self.num_train_epochs is None:
            return self
        questions_per_generation = self.generation_batch_size // self.num_generations
        generations = count // questions_per_generation
        if not generations:
            raise ValueError(
                f"num_train_epochs = {self.num_train_epochs:g} cannot be counted: there are "
                f"{count} training questions, and one generation takes {questions_per_generation}. "
                f"Write max_steps={self.max_steps}, or a smaller batch."
            )
        # trl 1.15, `GRPOTrainer._get_train_sampler`: each generation is used for several passes.
        passes_per_generation = self.generation_batch_size // self.per_device_train_batch_size
        passes = generations * passes_per_generation * (self.extra.get("num_iterations") or 1)
        steps_per_epoch = max(math.ceil(passes / self.gradient_accumulation_steps), 1)
        steps = math.ceil(self.num_train_epochs * steps_per_epoch)
        settings = self.from_dict({**vars(self), "max_steps": steps})
        settings._check_warmup()
        return settings

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON, from which `Settings.from_dict` makes equal settings."""
        return {**vars(self), "lora_target_modules": list(self.lora_target_modules)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings of `to_dict`, checked; steps and epochs may both be given."""
        values = with_current_names(values)
        arguments.check_names(values, _DEFAULTS)
        settings = object.__new__(cls)
        # A run records both the epochs and the steps computed from them.
        _dataclass_init(settings, **values)
        return settings

    def save(self, path: str | Path) -> Path:
        """Write the settings to a JSON file, from which `Settings.load` makes equal settings.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "settings.json"
        >>> Settings.load(Settings(max_steps=7).save(path)).max_steps
        7
        """
        path = Path(path).expanduser()
        write_text(path, json.dumps(self.to_dict(), indent=2) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the settings in the file that `save` wrote, checked as by `from_dict`.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not JSON, or holds settings that cannot run here.
        """
        return cls.from_dict(json.loads(Path(path).expanduser().read_text("utf-8")))

    def _parts(self) -> Iterable[Table]:
        values = {**vars(self), "warmup_steps": self.warmup}
        if self.num_train_epochs is not None:
            epochs = f"{self.num_train_epochs:g}"
            values["max_steps"] = f"of num_train_epochs={epochs}: gn.plan(settings, task) shows it"
            if self.warmup_steps is None:
                values["warmup_steps"] = "a tenth of the steps"
        rows = [(name, value) for name, value in values.items() if value not in ({}, None)]
        yield Table(rows, head=("setting", "value"))


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Settings)}
_dataclass_init = Settings.__init__


# `wraps` keeps the signature, which editors and `help` show.
@functools.wraps(_dataclass_init)
def _init_with_known_names(self: Settings, *unnamed: Any, **values: Any) -> None:
    """Check the names before `_dataclass_init`, which cannot suggest the right ones."""
    if unnamed:
        raise TypeError(
            f"Settings takes names and values, not {unnamed[0]!r:.60}: gn.Settings(max_steps=100), "
            "or gn.Settings.from_dict(values) for a dict."
        )
    values = _one_run_length(values)
    arguments.check_names(values, _DEFAULTS)
    _dataclass_init(self, **values)


Settings.__init__ = _init_with_known_names


def with_current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings under the names that they have now.

    Both readers of stored settings call it: `Settings.from_dict`, and `read_run_info` for
    `run.json`.

    >>> with_current_names({"keep": "best"})
    {'keep_adapter': 'best'}
    """
    current = dict(values)
    for old_name, new_name in _OLD_NAMES.items():
        # If both names are given, the old one is kept, so that the check of names refuses it.
        if old_name in values and new_name not in values:
            current[new_name] = current.pop(old_name)
    return current


def _one_run_length(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with one length of the run: in steps, or in epochs.

    `max_steps=-1`, which TRL writes if the epochs give the length, is dropped.

    Raises:
        ValueError: Both `max_steps` and `num_train_epochs` give the length of the run.
    """
    epochs = values.get("num_train_epochs")
    if epochs is None or "max_steps" not in values:
        return dict(values)
    steps = values["max_steps"]
    if steps == -1:
        return {name: value for name, value in values.items() if name != "max_steps"}
    raise ValueError(
        f"max_steps = {steps!r} and num_train_epochs = {epochs!r} both say how long the run is: "
        "leave one of them out. (TRL would take max_steps and ignore the epochs.)"
    )


def _as_json(extra: Any) -> dict[str, Any]:
    """Return a copy of `extra` as a file of settings would return it, with lists for tuples."""
    try:
        return dict(json.loads(json.dumps(extra, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"extra = {extra!r:.80} must be a dict of values that JSON has: {error}."
        ) from None


def _layers(value: Any) -> tuple[str, ...]:
    """Return the names of the layers to adapt; PEFT would read a single text as a pattern."""
    if value == ALL_LINEAR[0]:
        return ALL_LINEAR
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not (is_list and all(isinstance(name, str) for name in value)):
        raise ValueError(
            f"lora_target_modules = {value!r:.80} must be names of layers, at least one: "
            'lora_target_modules=("q_proj", "v_proj"), or lora_target_modules="all-linear".'
        )
    return tuple(value)


def refuse_keywords(function: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a public function does not have, with the line that sets them.

    Args:
        function: The public function.
        unknown: The keyword arguments that it has no parameter for.

    Raises:
        TypeError: There are any. Settings and arguments of TRL are named with
            `settings.replace(...)`, other names with the nearest right one.

    >>> refuse_keywords(Settings.load, {})
    """
    if not unknown:
        return
    call = f"gn.{function.__name__}"
    parameters = [name for name in inspect.signature(function).parameters if name != "unknown"]
    problems = []
    known = {}
    for name, value in unknown.items():
        if name in _DEFAULTS or arguments.is_known(name):
            known[name] = value
        else:
            near = did_you_mean(name, [*parameters, *_DEFAULTS])
            problems.append(f"unknown argument {name!r} of {call}{near}")
    correction = arguments.correct_names(known, _DEFAULTS)
    problems += correction.problems
    own_settings = {name: value for name, value in known.items() if name in _DEFAULTS}
    replacement = own_settings | correction.replacement
    if replacement:
        line = arguments.as_keywords(replacement)
        problems.append(
            f"{call} takes settings as one object. Write settings = settings.replace({line})."
        )
    raise TypeError(" ".join(problems))
