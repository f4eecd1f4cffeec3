"""Compare the settings with the configuration that TRL or Unsloth builds from them."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from grpo_nb.config.effective_table import (
    Effect,
    EffectiveSettings,
    compare_configurations,
    requested_arguments,
)
from grpo_nb.config.hardware import compute_dtype, dtype_of_model
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.generation.choice import choose_engine
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.import_unsloth import silently
from grpo_nb.training.prepare import GRPOConfig, grpo_arguments


def stock_configuration(settings: Settings, model: Any = None) -> Any:
    """Return the configuration that TRL alone, without Unsloth, builds for a training.

    Call this before the trainer is built: building a `TrainingArguments` resets the accelerator's
    global state (transformers, `TrainingArguments._setup_devices`).
    """
    # Unsloth's class on a GPU inherits from TRL's and has the same name.
    stock_class = [cls for cls in GRPOConfig.__mro__ if cls.__name__ == "GRPOConfig"][-1]
    # Only Unsloth knows all values of `optim`.
    known = {field.name for field in dataclasses.fields(stock_class)} - {"optim"}
    # The table of effective settings replaces what Unsloth prints about its changes.
    with tempfile.TemporaryDirectory() as folder, silently():
        arguments = grpo_arguments(settings, {}, Path(folder), model)
        return stock_class(**{name: value for name, value in arguments.items() if name in known})


def effective_settings(
    settings: Settings, model: Any = None, *, trained_with: Any = None, stock: Any = None
) -> EffectiveSettings:
    """Return the settings that will not run as written here, what will run instead, and why.

    The configuration is built as for a training and compared with the settings. Changes that the
    trainer itself makes later are in `run.json` under `effective`.

    Args:
        settings: The settings of the run.
        model: The loaded model. It decides the dtype, whether vLLM generates, and whether the
            completions of a group share their prompt.
        trained_with: The `args` of a trainer that exists already. By default a configuration is
            built as for a training.
        stock: The result of `stock_configuration`, if it exists already.

    Raises:
        ValueError: TRL refuses the settings.

    >>> effective_settings(Settings(optim="adamw_8bit")).changed["optim"].runs  # on a CPU
    'adamw_torch_fused'
    """
    require("gn.training.effective_settings(settings, model)", settings=settings)
    gpu = find_gpu()
    has_model = model is not None
    dtype = dtype_of_model(model, settings, gpu) if has_model else compute_dtype(settings, gpu)
    engine = choose_engine(model, settings)
    requested = requested_arguments(settings, gpu=gpu, dtype=dtype.name, has_vllm=engine.is_vllm)
    built = trained_with
    if built is None:
        with tempfile.TemporaryDirectory() as folder, silently():
            built = GRPOConfig(**grpo_arguments(settings, {}, Path(folder), model))
    if stock is None:
        stock = stock_configuration(settings, model)
    result = compare_configurations(settings, requested, built, stock)
    changed = {"dtype": Effect(settings.dtype, dtype.name, dtype.why)}
    if settings.fast_inference and engine.why_not_vllm is not None:
        changed["fast_inference"] = Effect(True, False, engine.why_not_vllm)
    if settings.shared_prompts and not engine.can_share_prompts:
        changed["shared_prompts"] = Effect(True, False, engine.why_not_cpu_engine)
    return EffectiveSettings({**changed, **result.changed}, result.arguments)
