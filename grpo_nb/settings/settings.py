"""Settings: one frozen object, checked completely before anything is downloaded or loaded.

Names are TRL's and Unsloth's own, so that their documentation applies. What has no field here is still reachable through
`extra`, whose names are checked against the installed `GRPOConfig` where they are written, and again when training starts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.core.arguments import did_you_mean, require_kind, require_path
from grpo_nb.core.files import write_text
from grpo_nb.core.tables import Shown, Table
from grpo_nb.settings import arguments
from grpo_nb.settings.batches import check_batch, generation_batch_size

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

_LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL_LINEAR = ("all-linear",)
"""PEFT's word for every linear layer but the output's (peft/tuners/tuners_utils.py)."""


def _number(default: float, why: str = "", **bounds: float) -> Any:
    """A field with bounds, by the names that `check_value` knows."""
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

    num_generations: int = _number(8, " (GRPO compares the completions of a group with each other)", least=2, most=4096)
    """Group size. A prompt teaches only if its completions differ in reward, and among 8 they usually do."""
    per_device_train_batch_size: int = _number(16, least=1, most=2**16)
    """Completions per forward pass. Times accumulation, it must be a multiple of the group size: groups stay whole."""
    gradient_accumulation_steps: int = _number(1, least=1, most=2**16)
    """More of these instead of a larger batch when memory is short."""
    max_steps: int = _number(14, least=1, most=10**9)
    """Where the arithmetic task has converged on every seed measured (docs/evidence/quickstart_seeds.md)."""
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
    temperature: float = _number(1.0, " (lower is greedy, and completions are alike)", least=0.01, most=100)
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
    seed: int = _number(3407, " (numpy takes no other)", least=0, most=2**32 - 1)
    shared_prompts: bool = True
    """On a CPU, compute each distinct prompt once per step instead of once per completion (grpo_nb.generation)."""
    run_root: str = "runs"
    """Folder under which each run gets a folder of its own."""
    extra: Mapping[str, Any] = field(default_factory=FrozenDict)
    """Further arguments of TRL's `GRPOConfig` and Unsloth's, checked against the installed version."""

    def __post_init__(self) -> None:
        self._freeze_and_check()
        if self.warmup > max(self.max_steps, _DEFAULTS["warmup_steps"]):
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} is longer than the run (max_steps = {self.max_steps}), which would never "
                f"reach its learning rate: write warmup_steps={self.max_steps // 10}."
            )
        check_loss(self)
        if self.extra:  # else there is nothing to look up in the installed packages, which takes a moment
            known = arguments.installed_arguments()
            # As for a GPU: settings for one are also made and planned elsewhere. Training asks again, for its own machine.
            arguments.check_extra(self.extra, _DEFAULTS, self.extra if known is None else known, has_gpu=True)

    def _freeze_and_check(self) -> None:
        """Check all that needs no look into the installed packages."""
        if not isinstance(self.extra, Mapping) or not all(isinstance(name, str) for name in self.extra):
            raise ValueError(f'extra = {self.extra!r:.80} must be a dict of names: extra={{"epsilon": 0.2}}.')
        object.__setattr__(self, "extra", FrozenDict({name: _plain(value) for name, value in self.extra.items()}))
        object.__setattr__(self, "lora_target_modules", _targets(self.lora_target_modules))
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _plain(getattr(self, f.name)))
            _check_field(f, getattr(self, f.name))
        micro, steps = self.per_device_train_batch_size, self.gradient_accumulation_steps
        check_batch(micro, steps, self.num_generations, self.extra)

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
        require_kind("values", values, Mapping, "what settings.to_dict() gave")
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
        path = require_path("path", path)
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"path = {str(path)!r} must be a file in a folder that is there, such as 'settings.json'.")
        write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """Read what `save` wrote, checked as if it were written in a cell: a setting that is unknown is an error.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: The file is none of the kit, or holds something that this version does not know or cannot run.
        """
        path = require_path("path", path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file of settings {str(path)!r}: write it with settings.save(path).")
        try:
            found = json.loads(path.read_text("utf-8"), object_hook=_decoded)
        except (ValueError, TypeError, RecursionError) as error:
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
        values = {**vars(self), "warmup_steps": self.warmup}.items()
        yield Table([row for row in values if row[1] not in ({}, None)], head=("setting", "value"))


def _known_names_only(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: Settings, **values: Any) -> None:
        _refuse_unknown(values)
        init(self, **values)

    return checked


def _refuse_change(self: Settings, name: str, value: Any = ...) -> None:
    instead = f"settings are frozen: settings = settings.replace({name}={'...' if value is ... else repr(value)})."
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
        f"unknown setting {name!r}{did_you_mean(name, _DEFAULTS)} "
        f"(arguments of TRL that have no field here go into extra={{{name!r}: ...}})"
    )


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def _targets(value: Any) -> tuple[str, ...]:
    """The layers to adapt by name; PEFT would read one text as a pattern."""
    if isinstance(value, str) and value == ALL_LINEAR[0]:
        return ALL_LINEAR
    names = value if isinstance(value, (list, tuple)) else ()
    is_mixed = ALL_LINEAR[0] in names and len(names) > 1
    if names and not is_mixed and all(isinstance(name, str) and name.strip() for name in names):
        return tuple(names)
    raise ValueError(
        f"lora_target_modules = {value!r:.80} must be the names of layers, at least one, or the word for all of them: "
        'lora_target_modules=("q_proj", "v_proj"), or lora_target_modules="all-linear".'
    )


def _check_field(f: dataclasses.Field, value: Any) -> None:
    if "choices" in f.metadata:
        return arguments.check_choice(f.name, value, f.metadata["choices"])
    bounds, why = f.metadata.get("bounds", {}), f.metadata.get("why", "")
    instead = f"; the default is {f.name}={f.default!r}"
    arguments.check_value(f.name, value, f.type, why, instead, **bounds)
    if isinstance(value, str) and not (value.strip() and value.isprintable()):
        raise ValueError(f"{f.name} = {value!r:.80} must be a text on one line, and not empty{instead}.")


def require_settings(settings: Any) -> None:
    """Refuse what stands in the place of settings.

    Raises:
        TypeError: With what was given.

    >>> require_settings(Settings())
    """
    require_kind("settings", settings, Settings, "settings: write settings = gn.preset()")


def check_loss(settings: Settings) -> None:
    """Refuse a loss, an optimizer or a schedule that the installed packages do not have.

    TRL itself notices an unknown loss only at the first one, after the first generation.

    Raises:
        ValueError: With the nearest name.

    >>> check_loss(Settings(loss_type="dr_grpo"))
    """
    require_settings(settings)
    for name in ("loss_type", "optim", "lr_scheduler_type"):
        value = getattr(settings, name)
        if value != _DEFAULTS[name]:  # the defaults need no look into the installed packages
            arguments.check_choice(name, value, sorted(arguments.installed_choices().get(name, [value])))


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
        encoded = ((_encode(k, where, allow_objects), k, v) for k, v in value.items())
        pairs = [[key, _encode(v, f"{where}[{k!r}]", allow_objects)] for key, k, v in encoded]
        is_plain = all(type(key) is str and not key.startswith("__") for key in value)
        return dict(pairs) if is_plain else {"__mapping__": pairs}
    if allow_objects:
        return value
    raise ValueError(f"{where} holds a {type(value).__name__}, which no file can hold. Write the values it is made of.")


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
