"""`Settings`: all settings of a run in one frozen object.

The names are those of TRL and Unsloth, so that their documentation applies. pydantic checks the
values, and `preset` and `replace` check the names (`arguments.check_names`). TRL checks the
optimizer, the scheduler and the values in `extra` when the trainer is built, before a run has a
folder.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from grpo_nb.config.arguments import SAMPLING_ARGUMENTS_IN_EXTRA, LossType, check_names
from grpo_nb.core.words import require_whole_number

EMBEDDED_MODEL = "SmolLM2-135M-Instruct"

_PositiveUpToOne = Annotated[float, Field(gt=0, le=1)]


@dataclass(
    frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
)
class Settings:
    """Settings of a run, with the reason for each default.

    Make settings with `preset`, and change them with `replace`. `repr(settings)` is a call that
    makes equal settings.

    Raises:
        ValueError: A name is unknown, or a value cannot work. pydantic's report shows each wrong
            value and what is allowed.

    >>> Settings(per_device_train_batch_size=8, gradient_accumulation_steps=2).completions_per_step
    16
    """

    model: str = EMBEDDED_MODEL
    """A Hub id, a local folder, or the embedded model, which needs no network."""
    load_in_4bit: bool = False
    """Weights in 4 bit save memory, which is short on a GPU. On a CPU they only cost time."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute dtype of the weights that are not quantized. `auto` is float32 on a CPU, and on a GPU
    bfloat16, or float16 where the GPU has no bfloat16."""
    fast_inference: bool = False
    """Sample with vLLM, which needs a GPU."""
    gpu_memory_utilization: _PositiveUpToOne = 0.6
    """Share of GPU memory that vLLM takes. The share holds the weights, which training also uses,
    and vLLM's cache. vLLM gives the cache back while gradients are computed (standby, which the kit
    switches on), so the presets of GPUs have larger shares. Unused on a CPU."""
    max_prompt_length: PositiveInt = 256
    """Tokens. TRL no longer limits prompts, so the kit leaves longer ones out of the training and
    reports how many there are."""
    max_completion_length: PositiveInt = 48
    """Tokens. The short answers of the arithmetic task need about 32."""

    lora_rank: PositiveInt = 16
    """Enough for a narrow task; a larger rank costs memory and time."""
    lora_alpha: PositiveInt = 32
    """Twice the rank, the common choice."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """A short run does not overfit its adapter, and Unsloth's fast layers need 0."""
    # Not strict, so that a list from JSON is accepted. A single string is refused, because PEFT
    # would read it as a pattern.
    lora_target_modules: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """All linear projections: better than adapting attention alone with as many LoRA weights
    (arXiv:2305.14314)."""

    num_generations: Annotated[int, Field(ge=2)] = 8
    """Completions per prompt, the group. A prompt teaches only if the rewards in its group differ,
    and among 8 completions they usually do."""
    per_device_train_batch_size: PositiveInt = 16
    """Completions per forward pass. Multiplied by `gradient_accumulation_steps`, it must be a
    multiple of `num_generations`."""
    gradient_accumulation_steps: PositiveInt = 1
    """Forward passes per step. Take more passes and a smaller batch when memory is short."""
    max_steps: PositiveInt = 14
    """14 steps teach the format of the arithmetic task on every seed measured. The 42 of the preset
    `cpu` also teach the sums (docs/evidence/quickstart_seeds.md)."""
    learning_rate: _PositiveUpToOne = 1e-4
    """High, for a LoRA on a small model and a short run. Larger models need 5e-6 to 2e-5."""
    lr_scheduler_type: str = "constant_with_warmup"
    """A run this short has no time to decay."""
    warmup_steps: NonNegativeInt | NonNegativeFloat = 4
    """Adam's first updates have the full size of the learning rate, however small the gradient. The
    warm-up makes these updates smaller. The default does not depend on `max_steps`, so a trial of
    two steps equals the start of the real run. A number below 1, as in the presets of GPUs, is a
    share of `max_steps`."""
    max_grad_norm: PositiveFloat = 0.2
    """RL gradients are noisy, and small groups make them noisier."""
    weight_decay: NonNegativeFloat = 0.0
    """The KL term already keeps the policy near its start."""
    beta: NonNegativeFloat = 0.04
    """Weight of the KL to the starting model. At 0 there is no KL curve."""
    temperature: Annotated[float, Field(ge=0.01)] = 1.0
    """1 samples from the policy itself. Lower values make completions alike, but GRPO learns from
    their differences."""
    top_p: _PositiveUpToOne = 1.0
    """1 keeps all tokens, as the policy gradient assumes."""
    top_k: NonNegativeInt = 0
    """0 keeps all tokens. The default of transformers keeps only the 50 likeliest."""
    loss_type: LossType = "bnpo"
    """Mean over the tokens of a micro-batch. Equals TRL's default `dapo` for one process and
    `gradient_accumulation_steps=1`. For `dapo` and `dr_grpo` Unsloth also changes other settings
    (docs/reference/settings.md)."""
    optim: str = "adamw_torch_fused"
    """The optimizer state of a LoRA is small. `adamw_8bit` saves a little more on a GPU."""

    save_steps: NonNegativeInt = 0
    """Steps between two checkpoints. With 0 the kit saves by time: every three minutes."""
    holdout_every: NonNegativeInt = 0
    """Steps between two scores on held-out questions. Off (0), because answering takes time."""
    holdout_questions: PositiveInt = 32
    """Held-out questions per score. With 32 the curve is rough; the comparison after the run uses
    all questions."""
    stop_on_alert: Literal["critical"] | None = None
    """`"critical"` ends the training after a critical health alert: the model learns nothing or
    gets worse. The run is saved and can be resumed."""
    seed: NonNegativeInt = 3407
    """Seed of the data order, of sampling and of the LoRA's initial weights."""
    shared_prompts: bool = True
    """On a CPU, use the kit's engine, which computes each distinct prompt once per step instead of
    once per completion."""
    run_root: str = "runs"
    """Folder in which each run gets a folder."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of TRL's `GRPOConfig`, with JSON values."""

    def __post_init__(self) -> None:
        check_names(vars(self), vars(self))
        if isinstance(self.warmup_steps, float) and self.warmup_steps >= 1:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps}: write a whole number of steps, or a share of "
                "max_steps below 1."
            )
        # `generation_batch_size` is computed from this argument. None is TRL's default.
        steps_per_generation = self.extra.get("steps_per_generation")
        if steps_per_generation is not None:
            require_whole_number("steps_per_generation", steps_per_generation, 1)
        # TRL refuses split groups too, but on a GPU Unsloth would change the batch size instead.
        group = self.num_generations
        if self.generation_batch_size % group:
            size = math.ceil(self.per_device_train_batch_size / group) * group
            raise ValueError(
                f"{self.generation_batch_size} completions are generated at a time, which is not a "
                f"multiple of num_generations = {group}. A group must be whole, or its advantages "
                f"mean nothing. Write per_device_train_batch_size={size}."
            )

    @property
    def longest_sequence(self) -> int:
        """Largest number of tokens in a prompt and its completion together."""
        return self.max_prompt_length + self.max_completion_length

    @property
    def completions_per_step(self) -> int:
        """Completions per optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def generation_batch_size(self) -> int:
        """Completions generated at a time.

        Those of one optimizer step, unless `extra` sets `steps_per_generation`.
        """
        steps = self.extra.get("steps_per_generation") or self.gradient_accumulation_steps
        return self.per_device_train_batch_size * steps

    @property
    def sampling_besides_temperature(self) -> dict[str, Any]:
        """Sampling parameters besides the temperature, under the names of transformers and vLLM."""
        sampling = {"top_p": self.top_p, "top_k": self.top_k}
        for name in SAMPLING_ARGUMENTS_IN_EXTRA:
            if name in self.extra:
                sampling[name] = self.extra[name]
        return sampling

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed.

        Raises:
            ValueError: A name is unknown, or a value cannot work.
        """
        return self.from_dict({**vars(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON, from which `Settings.from_dict` makes equal settings.

        >>> Settings.from_dict(Settings(max_steps=7).to_dict()).max_steps
        7
        """
        return json.loads(json.dumps(vars(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return settings with the values of `to_dict`, after checking names and values."""
        check_names(values, cls.__annotations__)
        try:
            return cls(**values)
        except ValidationError as error:
            problem = error.errors()[0]
            if problem["type"] != "value_error":
                raise
            # A sentence of `__post_init__`, without pydantic's text around it.
            raise problem["ctx"]["error"] from None
