"""Settings: one frozen object, checked completely before anything is downloaded or loaded.

Names are TRL's and Unsloth's own, so that their documentation applies. What has no field here is still reachable through
`extra`, whose names are checked against the installed `GRPOConfig` where they are written, and again when training starts.
"""

from __future__ import annotations

import dataclasses
import html
import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.arguments import check_choice, check_extra, did_you_mean, installed_arguments, replacement_of
from grpo_nb.batches import check_batch, generation_batch_size
from grpo_nb.settings_file import decode, encode

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

_LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a run can be told, with the reason of each default. Make one with `preset`, change it with `replace`.

    Raises:
        ValueError: A value that cannot work, with the value seen, why, and what to write instead.

    >>> Settings(num_generations=4, per_device_train_batch_size=8).prompts_per_step
    2
    """

    model: str = EMBEDDED_MODEL
    """A Hub id, a local folder, or the embedded model, which needs no network."""
    load_in_4bit: bool = False
    """4-bit saves memory, which a GPU is short of; on a CPU it only costs time."""
    fast_inference: bool = False
    """vLLM generation. Needs a GPU."""
    gpu_memory_utilization: float = 0.6
    """Share of GPU memory that vLLM may take; the rest is for training. Unused on a CPU, and Unsloth's standby, which the
    kit switches on, replaces it by its own share (see `effective_settings`)."""
    max_prompt_length: int = 256
    """Tokens. Longer prompts are dropped from the data and counted; TRL itself no longer limits them."""
    max_completion_length: int = 48
    """Tokens. The short answers of the arithmetic task need about 32."""

    lora_rank: int = 16
    """Enough for a narrow task; more costs memory and time."""
    lora_alpha: int = 32
    """Twice the rank, the common choice."""
    lora_dropout: float = 0.0
    """A run of this length does not overfit its adapter, and Unsloth's fast layers want 0."""
    lora_target_modules: tuple[str, ...] = _LORA_TARGETS
    """All linear projections: better than attention alone at the same size (arXiv:2305.14314)."""

    num_generations: int = 8
    """Group size. A prompt teaches only if its completions differ in reward, and among 8 they usually do."""
    per_device_train_batch_size: int = 16
    """Completions per forward pass. Times accumulation, it must be a multiple of the group size: groups stay whole."""
    gradient_accumulation_steps: int = 1
    """More of these instead of a larger batch when memory is short."""
    max_steps: int = 14
    """Where the arithmetic task has converged on every seed measured (docs/quickstart_seeds.md)."""
    learning_rate: float = 1e-4
    """High, for a LoRA on a small model and a short run. Larger models want 5e-6 to 2e-5."""
    lr_scheduler_type: str = "constant_with_warmup"
    """A run this short has no time to decay."""
    warmup_steps: int = 4
    """Adam's first steps are as large as the learning rate allows, whatever the gradient: they come in gently."""
    max_grad_norm: float = 0.2
    """RL gradients are noisy; small groups make them more so."""
    weight_decay: float = 0.0
    """The KL term already holds the policy near its start."""
    beta: float = 0.04
    """Weight of the KL to the starting model. Above zero, or there is no KL curve at all."""
    temperature: float = 1.0
    """Sampling from the policy itself. Lower values reduce the spread that GRPO learns from."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off. transformers would otherwise cut to 50 words, and the policy gradient assumes that nothing is cut."""
    loss_type: str = "bnpo"
    """Mean over the tokens of the batch: TRL's default `dapo` for one process, and nothing that Unsloth changes for it."""
    optim: str = "adamw_torch_fused"
    """The optimizer state of a LoRA is small. `adamw_8bit` saves a little more on a GPU."""

    save_steps: int = 0
    """Steps between two checkpoints. 0 saves every three minutes, or less often where saving takes long."""
    holdout_every: int = 0
    """Steps between two scores on held-out questions; 0 is off, for it takes the time of answering them."""
    holdout_questions: int = 32
    """How many of them. The curve is rough at 32, the comparison afterwards asks all."""
    stop_on_alert: str | None = None
    """`"critical"` ends the training, saved and resumable, after a health alert that says it learns nothing or unlearns."""
    seed: int = 3407
    shared_prompts: bool = True
    """On a CPU, compute each distinct prompt once per step instead of once per completion (grpo_nb.rollout)."""
    run_root: str = "runs"
    """Folder under which each run gets a folder of its own."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of TRL's `GRPOConfig` and Unsloth's, checked against the installed version."""

    def __post_init__(self) -> None:
        self._freeze_and_check()
        self._check_choices()
        self._check_extra()

    def _freeze_and_check(self) -> None:
        object.__setattr__(self, "extra", types.MappingProxyType(dict(self.extra)))
        object.__setattr__(self, "lora_target_modules", tuple(self.lora_target_modules))
        self._check_types()
        self._check_ranges()
        self._check_batch()

    @property
    def batch_size(self) -> int:
        """Completions per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def prompts_per_step(self) -> int:
        """Distinct prompts per optimizer step, whole groups only."""
        return self.batch_size // self.num_generations

    @property
    def generation_batch_size(self) -> int:
        """Completions generated at a time: one optimizer step's, unless `extra` has one of TRL's arguments for it."""
        return generation_batch_size(self.per_device_train_batch_size, self.gradient_accumulation_steps, self.extra)

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with some settings changed. Unknown names are errors with the nearest right name."""
        _refuse_unknown(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `Settings.from_dict` takes back, fit for JSON."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**values, "extra": dict(self.extra), "lora_target_modules": list(self.lora_target_modules)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The inverse of `to_dict`.

        Names are not compared with the installed versions here: the record of an old run stays readable. Training compares
        them.
        """
        _refuse_unknown(values)
        settings = object.__new__(cls)
        for f in dataclasses.fields(cls):
            default = {} if f.default is dataclasses.MISSING else f.default
            object.__setattr__(settings, f.name, values.get(f.name, default))
        settings._freeze_and_check()
        return settings

    def save(self, path: str | Path) -> Path:
        """Write the settings to a JSON file that `Settings.load` gives back exactly, with the version of the kit.

        Raises:
            ValueError: `extra` holds an object that JSON has no form for.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "settings.json"
        >>> Settings.load(preset("cpu", max_steps=7).save(path)).max_steps
        7
        """
        from grpo_nb import __version__

        values = {f.name: encode(getattr(self, f.name), f.name) for f in dataclasses.fields(self)}
        path = Path(path)
        path.write_text(json.dumps({"grpo_nb": __version__, "settings": values}, indent=2, allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """Read what `save` wrote, checked as if it were written in a cell: a setting that is unknown is an error.

        Raises:
            ValueError: The file is none of the kit, or holds something that this version does not know or cannot run.
        """
        text = Path(path).read_text()
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{str(path)!r} is not JSON ({error}): write it with settings.save(path).") from error
        if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
            raise ValueError(f"{str(path)!r} holds no settings of this kit: write it with settings.save(path).")
        try:
            _refuse_unknown(found["settings"])
            return cls(**{name: decode(value) for name, value in found["settings"].items()})
        except ValueError as error:
            error.add_note(
                f"Read from {str(path)!r}, which grpo_nb {found.get('grpo_nb', 'of unknown version')} wrote."
            )
            raise

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{name}</td><td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in self.to_dict().items()
            if value not in ({}, None)
        )
        return f"<table><thead><tr><th>setting</th><th>value</th></tr></thead>{rows}</table>"

    def _check_types(self) -> None:
        for f in dataclasses.fields(self):
            value, kind = getattr(self, f.name), f.type
            is_bool = isinstance(value, bool)
            wrong = (
                (kind == "bool" and not is_bool)
                or (kind == "int" and (not isinstance(value, int) or is_bool))
                or (kind == "float" and (not isinstance(value, (int, float)) or is_bool))
                or (kind == "str" and not isinstance(value, str))
            )
            if wrong:
                raise ValueError(f"{f.name} = {value!r} is a {type(value).__name__}, but {f.name} takes {kind}.")

    def _check_ranges(self) -> None:
        least = {
            "max_prompt_length": 1,
            "max_completion_length": 1,
            "lora_rank": 1,
            "lora_alpha": 1,
            "num_generations": 2,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "max_steps": 1,
            "warmup_steps": 0,
            "save_steps": 0,
            "holdout_every": 0,
            "holdout_questions": 1,
            "beta": 0,
            "top_k": 0,
            "weight_decay": 0,
        }
        for name, low in least.items():
            if not getattr(self, name) >= low:
                why = " (GRPO compares the completions of a group with each other)" if name == "num_generations" else ""
                raise ValueError(f"{name} = {getattr(self, name)!r} is too small: it must be at least {low}{why}.")
        for name in ("learning_rate", "temperature", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be above 0.")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora_dropout = {self.lora_dropout!r} must be at least 0 and below 1.")
        for name in ("top_p", "gpu_memory_utilization"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be above 0 and at most 1.")
        if self.stop_on_alert not in (None, "critical"):
            raise ValueError(
                f"stop_on_alert = {self.stop_on_alert!r}: write 'critical', or None to go on whatever happens."
            )

    def _check_choices(self) -> None:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for name in ("loss_type", "optim", "lr_scheduler_type"):
            if getattr(self, name) != defaults[name]:  # the defaults need no look into the installed packages
                check_choice(name, getattr(self, name))

    def _check_extra(self) -> None:
        if not self.extra:
            return
        fields = {f.name for f in dataclasses.fields(self)}
        known = installed_arguments()
        # As for a GPU: settings for one are also made and planned elsewhere. Training asks again, for its own machine.
        check_extra(self.extra, fields, set(self.extra) if known is None else known, has_gpu=True)

    def _check_batch(self) -> None:
        check_batch(
            self.per_device_train_batch_size, self.gradient_accumulation_steps, self.num_generations, self.extra
        )


def _refuse_unknown(names: Iterable[str]) -> None:
    known = {f.name for f in dataclasses.fields(Settings)}
    for name in names:
        if name in known:
            continue
        instead = replacement_of(name)
        if instead is not None:
            raise ValueError(f"unknown setting {name!r}: {instead}.")
        if name in (installed_arguments() or ()):
            raise ValueError(f"{name!r} is an argument of TRL without a field here: write extra={{{name!r}: ...}}.")
        raise ValueError(
            f"unknown setting {name!r}{did_you_mean(name, known)} "
            f"(arguments of TRL that have no field here go into extra={{{name!r}: ...}})"
        )


# Only `cpu` is measured (docs/quickstart_seeds.md). The others are starting points, not measured here: what published guides
# use on such cards, with lengths and batches that `gn.plan` says fit. docs/settings.md has each number with its reason.
_GPU = {
    "model": "unsloth/Qwen2.5-1.5B-Instruct",
    "load_in_4bit": True,
    "fast_inference": True,
    "max_completion_length": 512,
    "lora_rank": 32,
    "lora_alpha": 64,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "learning_rate": 5e-6,
    "lr_scheduler_type": "cosine",
    "max_steps": 250,
    "warmup_steps": 25,
    "max_grad_norm": 0.1,
    "weight_decay": 0.1,
    "optim": "adamw_8bit",
}
_LARGE_GPU = {
    **_GPU,
    "model": "unsloth/Qwen2.5-7B-Instruct",
    "max_prompt_length": 512,
    "max_completion_length": 1024,
    "num_generations": 16,
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-5,
}
PRESETS: Mapping[str, Mapping[str, Any]] = types.MappingProxyType(
    {
        "cpu": {},
        "t4": {
            **_GPU,
            "max_completion_length": 256,
            "lora_rank": 16,
            "lora_alpha": 32,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "gpu_memory_utilization": 0.5,
        },
        "l4": {**_GPU, "model": "unsloth/Qwen2.5-3B-Instruct"},
        "a100": _LARGE_GPU,
        "h100": {
            **_LARGE_GPU,
            "load_in_4bit": False,
            "per_device_train_batch_size": 32,
            "gradient_accumulation_steps": 1,
            "optim": "adamw_torch_fused",
            "gpu_memory_utilization": 0.7,
        },
    }
)


def preset(name: str = "auto", **changes: Any) -> Settings:
    """Return the settings for a kind of machine, with changes.

    Args:
        name: `cpu`, `t4`, `l4`, `a100`, `h100`, or `auto`, which takes the one for the memory of the GPU found, or `cpu`.
        **changes: Any field of `Settings`.

    Raises:
        ValueError: An unknown preset or setting (with the nearest right name), or a value that cannot work.

    >>> preset("cpu", max_steps=5).max_steps
    5
    """
    if name != "auto" and name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}{did_you_mean(name, [*PRESETS, 'auto'])}")
    _refuse_unknown(changes)
    if name == "auto":
        name = _preset_for_this_machine()
    return Settings(**{**PRESETS[name], **changes})


def _preset_for_this_machine() -> str:
    from grpo_nb.environment import find_gpu

    gpu = find_gpu()
    if gpu is None:
        return "cpu"
    if gpu.memory_gib < 20:
        return "t4"
    if gpu.memory_gib < 36:
        return "l4"
    return "h100" if gpu.compute_capability >= (9, 0) else "a100"
