"""Settings: one frozen object, checked completely before anything is downloaded or loaded.

Names are TRL's and Unsloth's own, so that their documentation applies. What has no field here is still reachable through
`extra`, whose names are checked against the installed `GRPOConfig` where they are written, and again when training starts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.core import Shown, Table
from grpo_nb.settings import arguments
from grpo_nb.settings.batches import check_batch, generation_batch_size

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

_LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_KINDS = {"bool": bool, "int": int, "float": (int, float), "str": str}
_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def _number(default: float, why: str = "", **bounds: float) -> Any:
    """A field with bounds, by the names in `_BOUNDS`."""
    return field(default=default, metadata={"bounds": bounds, "why": why})


def _choice(*values: str | None) -> Any:
    """A field that takes one of these values, by default the first."""
    return field(default=values[0], metadata={"choices": values})


class FrozenDict(dict):
    """A dict that refuses changes, and can be copied and pickled."""

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError("settings are frozen: write settings = settings.replace(extra={**settings.extra, ...})")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


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
    max_prompt_length: int = _number(256, least=1)
    """Tokens. Longer prompts are dropped from the data and counted; TRL itself no longer limits them."""
    max_completion_length: int = _number(48, least=1)
    """Tokens. The short answers of the arithmetic task need about 32."""

    lora_rank: int = _number(16, least=1)
    """Enough for a narrow task; more costs memory and time."""
    lora_alpha: int = _number(32, least=1)
    """Twice the rank, the common choice."""
    lora_dropout: float = _number(0.0, least=0, below=1)
    """A run of this length does not overfit its adapter, and Unsloth's fast layers want 0."""
    lora_target_modules: tuple[str, ...] = _LORA_TARGETS
    """All linear projections: better than attention alone at the same size (arXiv:2305.14314)."""

    num_generations: int = _number(8, " (GRPO compares the completions of a group with each other)", least=2)
    """Group size. A prompt teaches only if its completions differ in reward, and among 8 they usually do."""
    per_device_train_batch_size: int = _number(16, least=1)
    """Completions per forward pass. Times accumulation, it must be a multiple of the group size: groups stay whole."""
    gradient_accumulation_steps: int = _number(1, least=1)
    """More of these instead of a larger batch when memory is short."""
    max_steps: int = _number(14, least=1)
    """Where the arithmetic task has converged on every seed measured (docs/evidence/quickstart_seeds.md)."""
    learning_rate: float = _number(1e-4, above=0)
    """High, for a LoRA on a small model and a short run. Larger models want 5e-6 to 2e-5."""
    lr_scheduler_type: str = "constant_with_warmup"
    """A run this short has no time to decay."""
    warmup_steps: int = _number(4, least=0)
    """Adam's first steps are as large as the learning rate allows, whatever the gradient: they come in gently."""
    max_grad_norm: float = _number(0.2, above=0)
    """RL gradients are noisy; small groups make them more so."""
    weight_decay: float = _number(0.0, least=0)
    """The KL term already holds the policy near its start."""
    beta: float = _number(0.04, least=0)
    """Weight of the KL to the starting model. Above zero, or there is no KL curve at all."""
    temperature: float = _number(1.0, above=0)
    """Sampling from the policy itself. Lower values reduce the spread that GRPO learns from."""
    top_p: float = _number(1.0, above=0, most=1)
    top_k: int = _number(0, least=0)
    """0 is off. transformers would otherwise cut to 50 words, and the policy gradient assumes that nothing is cut."""
    loss_type: str = "bnpo"
    """Mean over the tokens of the batch: TRL's default `dapo` for one process, and nothing that Unsloth changes for it."""
    optim: str = "adamw_torch_fused"
    """The optimizer state of a LoRA is small. `adamw_8bit` saves a little more on a GPU."""

    save_steps: int = _number(0, least=0)
    """Steps between two checkpoints. 0 saves every three minutes, or less often where saving takes long."""
    holdout_every: int = _number(0, least=0)
    """Steps between two scores on held-out questions; 0 is off, for it takes the time of answering them."""
    holdout_questions: int = _number(32, least=1)
    """How many of them. The curve is rough at 32, the comparison afterwards asks all."""
    keep: str = _choice("last", "best")
    """The adapter that a run leaves: of its last step, or the best by held-out scores, with the last beside it."""
    stop_on_alert: str | None = _choice(None, "critical")
    """`"critical"` ends the training, saved and resumable, after a health alert that says it learns nothing or unlearns."""
    seed: int = 3407
    shared_prompts: bool = True
    """On a CPU, compute each distinct prompt once per step instead of once per completion (grpo_nb.generation)."""
    run_root: str = "runs"
    """Folder under which each run gets a folder of its own."""
    extra: Mapping[str, Any] = field(default_factory=FrozenDict)
    """Further arguments of TRL's `GRPOConfig` and Unsloth's, checked against the installed version."""

    def __post_init__(self) -> None:
        self._freeze_and_check()
        check_loss(self)
        if self.extra:  # else there is nothing to look up in the installed packages, which takes a moment
            known = arguments.installed_arguments()
            # As for a GPU: settings for one are also made and planned elsewhere. Training asks again, for its own machine.
            arguments.check_extra(self.extra, _DEFAULTS, self.extra if known is None else known, has_gpu=True)

    def _freeze_and_check(self) -> None:
        """Check all that needs no look into the installed packages."""
        object.__setattr__(self, "extra", FrozenDict(self.extra))
        object.__setattr__(self, "lora_target_modules", tuple(self.lora_target_modules))
        for f in dataclasses.fields(self):
            _check_field(f, getattr(self, f.name))
        check_batch(
            self.per_device_train_batch_size, self.gradient_accumulation_steps, self.num_generations, self.extra
        )

    @property
    def batch_size(self) -> int:
        """Completions per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def generation_batch_size(self) -> int:
        """Completions generated at a time: one optimizer step's, unless `extra` has one of TRL's arguments for it."""
        return generation_batch_size(self.per_device_train_batch_size, self.gradient_accumulation_steps, self.extra)

    @property
    def sampling(self) -> dict[str, Any]:
        """What narrows the distribution that completions are drawn from, beside the temperature, by its names everywhere."""
        extra = {name: self.extra[name] for name in ("min_p", "repetition_penalty") if name in self.extra}
        return {"top_p": self.top_p, "top_k": self.top_k, **extra}

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with some settings changed. Unknown names are errors with the nearest right name."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return values fit for JSON that `Settings.from_dict` gives back exactly.

        An object in `extra` that JSON has no form for is left as it is: the record of a run then has its text.
        """
        return self._encoded(allow_objects=True)

    def _encoded(self, *, allow_objects: bool) -> dict[str, Any]:
        values = {name: _encode(value, name, allow_objects) for name, value in vars(self).items()}
        return {**values, "lora_target_modules": list(self.lora_target_modules)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The inverse of `to_dict`.

        Names are not compared with the installed versions here: the record of an old run stays readable. Training compares
        them.
        """
        _refuse_unknown(values)
        settings = object.__new__(cls)
        vars(settings).update(_DEFAULTS | json.loads(json.dumps(values, default=str), object_hook=_decoded))
        settings._freeze_and_check()
        return settings

    def save(self, path: str | Path) -> Path:
        """Write the settings to a JSON file that `Settings.load` gives back exactly, with the version of the kit.

        Raises:
            ValueError: `extra` holds an object that JSON has no form for.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "settings.json"
        >>> Settings.load(Settings(max_steps=7).save(path)).max_steps
        7
        """
        from grpo_nb import __version__

        values = {"grpo_nb": __version__, "settings": self._encoded(allow_objects=False)}
        path = Path(path)
        path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """Read what `save` wrote, checked as if it were written in a cell: a setting that is unknown is an error.

        Raises:
            ValueError: The file is none of the kit, or holds something that this version does not know or cannot run.
        """
        text = Path(path).read_text()
        try:
            found = json.loads(text, object_hook=_decoded)
        except json.JSONDecodeError as error:
            raise ValueError(f"{str(path)!r} is not JSON ({error}): write it with settings.save(path).") from error
        if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
            raise ValueError(f"{str(path)!r} holds no settings of this kit: write it with settings.save(path).")
        try:
            return cls(**found["settings"])
        except ValueError as error:
            version = found.get("grpo_nb", "of unknown version")
            error.add_note(f"Read from {str(path)!r}, which grpo_nb {version} wrote.")
            raise

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is not there; notebooks look for many names with an underscore in front.
        raise AttributeError(name if name.startswith("_") else _unknown(name))

    def _parts(self) -> Iterable[Table]:
        values = vars(self).items()
        yield Table([row for row in values if row[1] not in ({}, None)], head=("setting", "value"))


def _known_names_only(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: Settings, **values: Any) -> None:
        _refuse_unknown(values)
        init(self, **values)

    return checked


def _refuse_change(self: Settings, name: str, value: Any = ...) -> None:
    instead = (
        f"settings are frozen: write settings = settings.replace({name}={'...' if value is ... else repr(value)})."
    )
    raise dataclasses.FrozenInstanceError(_unknown(name) or instead)


# Those that `dataclass` made know neither the nearest name nor what to write instead.
Settings.__init__ = _known_names_only(Settings.__init__)
Settings.__setattr__ = Settings.__delattr__ = _refuse_change


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Settings)} | {"extra": FrozenDict()}


def _refuse_unknown(names: Iterable[str]) -> None:
    for problem in filter(None, map(_unknown, names)):
        raise ValueError(problem)


def _unknown(name: str) -> str | None:
    """Why a name is no setting, with what to write instead, or None if it is one."""
    if name in _DEFAULTS:
        return None
    if name in arguments.REPLACED:
        return f"unknown setting {name!r}: {arguments.REPLACED[name]}."
    if name in (arguments.installed_arguments() or ()):
        return f"{name!r} is an argument of TRL without a field here: write extra={{{name!r}: ...}}."
    return (
        f"unknown setting {name!r}{arguments.did_you_mean(name, _DEFAULTS)} "
        f"(arguments of TRL that have no field here go into extra={{{name!r}: ...}})"
    )


def _check_field(f: dataclasses.Field, value: Any) -> None:
    kind = _KINDS.get(f.type)
    if kind is not None and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
        raise ValueError(f"{f.name} = {value!r} is a {type(value).__name__}, but {f.name} takes {f.type}.")
    bounds = f.metadata.get("bounds", {})
    if not all(_BOUNDS[name][1](value, bound) for name, bound in bounds.items()):
        wanted = " and ".join(f"{_BOUNDS[name][0]} {bound}" for name, bound in bounds.items())
        raise ValueError(f"{f.name} = {value!r} must be {wanted}{f.metadata['why']}.")
    if "choices" in f.metadata:
        arguments.check_choice(f.name, value, f.metadata["choices"])


def check_loss(settings: Settings) -> None:
    """Refuse a loss, an importance sampling level, an optimizer or a schedule that the installed packages do not have.

    TRL itself notices an unknown loss only at the first one, after the first generation.

    Raises:
        ValueError: With the nearest name.

    >>> check_loss(Settings(loss_type="dr_grpo"))
    """
    standard = _DEFAULTS | {"importance_sampling_level": "token"}
    for name in ("loss_type", "importance_sampling_level", "optim", "lr_scheduler_type"):
        value = settings.extra.get(name, vars(settings).get(name, standard[name]))
        if value != standard[name]:  # the defaults need no look into the installed packages
            arguments.check_choice(name, value, arguments.installed_choices().get(name, [value]))


def _encode(value: Any, where: str, allow_objects: bool) -> Any:
    """JSON values for `value`: tuples, keys that are no strings and infinities become objects with one marked key."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        items = [_encode(item, where, allow_objects) for item in value]
        return items if type(value) is list else {"__tuple__": items}
    if isinstance(value, Mapping):
        pairs = [
            [_encode(k, where, allow_objects), _encode(v, f"{where}[{k!r}]", allow_objects)] for k, v in value.items()
        ]
        is_plain = all(type(key) is str and not key.startswith("__") for key in value)
        return dict(pairs) if is_plain else {"__mapping__": pairs}
    if allow_objects:
        return value
    raise ValueError(
        f"{where} holds a {type(value).__name__}, which a file of settings has no form for. Write the values it is made of."
    )


def _decoded(value: dict[str, Any]) -> Any:
    """What a JSON object stands for, in which everything is decoded already."""
    match value:
        case {"__float__": text, **rest} if not rest:
            return float(text)
        case {"__tuple__": items, **rest} if not rest:
            return tuple(items)
        case {"__mapping__": pairs, **rest} if not rest:
            return dict(pairs)
    return value
