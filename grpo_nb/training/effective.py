"""What will really run: the configuration that TRL or Unsloth makes of the settings, beside what was asked."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from grpo_nb.config.dtype import compute_dtype, dtype_of_model
from grpo_nb.config.effective_table import Effect, EffectiveSettings, compared, requested_arguments
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.generation.choice import choose_engine
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.import_unsloth import silently
from grpo_nb.models.match import SHAPE, as_loaded
from grpo_nb.training.prepare import GRPOConfig, grpo_arguments


def configurations(settings: Settings, model: Any = None) -> tuple[Any, Any]:
    """The configuration as for a training, and what TRL alone makes of the same.

    To be called before the trainer is built: each resets what an accelerator holds (transformers, `_setup_devices`).
    """
    # What Unsloth prints of its changes stands in the table.
    with tempfile.TemporaryDirectory() as nowhere, silently():
        handed = grpo_arguments(settings, {}, Path(nowhere), model)
        built = GRPOConfig(**handed)
        # Unsloth's class on a GPU is made of TRL's, and named like it.
        stock = [kind for kind in type(built).__mro__ if kind.__name__ == "GRPOConfig"][-1]
        # One optimizer is known to Unsloth alone.
        known = {field.name for field in dataclasses.fields(stock)} - {"optim"}
        return built, stock(**{name: value for name, value in handed.items() if name in known})


def effective_settings(
    settings: Settings, model: Any = None, *, pair: Any = None
) -> EffectiveSettings:
    """Say which settings will not run as written here, and what runs that nobody asked for, with the reason where it is known.

    The configuration is built as for a training, on this machine, and looked at. What the trainer itself changes afterwards
    stands in `run.json`, as `effective`.

    Args:
        settings: Of the run.
        model: The loaded model, which knows its number type, whether vLLM generates for it, and whether prompts are shared.
        pair: `configurations` that were made already; in place of the first, the `args` of a trainer.

    Raises:
        ValueError: TRL refuses the settings.

    >>> effective_settings(Settings(optim="adamw_8bit")).changed["optim"].runs  # on a CPU
    'adamw_torch_fused'
    """
    require("gn.training.effective_settings(settings, model)", settings=settings)
    gpu = find_gpu()
    has_model = model is not None
    chosen = dtype_of_model(model, settings, gpu) if has_model else compute_dtype(settings, gpu)
    engine = choose_engine(model, settings)
    asked = requested_arguments(settings, gpu=gpu, dtype=chosen.name, has_vllm=engine.is_vllm)
    found = compared(settings, asked, *(pair or configurations(settings, model)))
    loaded = {"dtype": Effect(settings.dtype, chosen.name, chosen.why)}
    shaped = settings if model is None else as_loaded(model, settings)
    for name in SHAPE:
        if getattr(shaped, name) != getattr(settings, name):
            why = "The adapter that the model was loaded with decides it."
            loaded[name] = Effect(getattr(settings, name), getattr(shaped, name), why)
    if settings.num_train_epochs is not None:
        steps = (
            f"{settings.max_steps} steps" if pair else "steps that gn.plan(settings, task) shows"
        )
        why = "Counted in the training questions when the training starts."
        loaded["num_train_epochs"] = Effect(settings.num_train_epochs, steps, why)
    if settings.fast_inference and engine.why_not_vllm is not None:
        loaded["fast_inference"] = Effect(True, False, engine.why_not_vllm)
    if settings.shared_prompts and engine.why_not_cpu_engine is not None:
        loaded["shared_prompts"] = Effect(True, False, engine.why_not_cpu_engine)
    built = dict(found.arguments)
    if settings.num_train_epochs is not None and not pair:
        built.pop("max_steps", None)  # not known yet
    return EffectiveSettings({**loaded, **found.changed}, built)
