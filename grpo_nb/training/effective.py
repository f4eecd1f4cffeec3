"""What will really run: the configuration that TRL or Unsloth makes of the settings, beside what was asked."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from grpo_nb.config.effective_table import Effect, EffectiveSettings, compared, requested_arguments
from grpo_nb.config.number_types import number_type, number_type_of
from grpo_nb.config.settings import Settings, require_settings
from grpo_nb.config.vllm_obstacle import vllm_obstacle
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.import_unsloth import silently
from grpo_nb.models.load import has_engine
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
    require_settings(settings, "gn.training.effective_settings(settings, model)")
    gpu, obstacle = find_gpu(), None
    if model is None:
        chosen, obstacle = (
            number_type(settings, gpu),
            vllm_obstacle(settings, gpu, try_import=False),
        )
        sharing = None if gpu is None else "That is for CPUs."
    else:
        chosen = number_type_of(model, settings, gpu)
        sharing = CpuEngine.obstacle(
            model, settings.max_prompt_length + settings.max_completion_length
        )
        if not has_engine(model):
            obstacle = vllm_obstacle(settings, gpu) or "The model was loaded without vLLM."
    asked = requested_arguments(
        settings, gpu=gpu, number_type=chosen.name, has_vllm=obstacle is None
    )
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
    if settings.fast_inference and obstacle is not None:
        loaded["fast_inference"] = Effect(True, False, str(obstacle))
    if settings.shared_prompts and sharing is not None:
        loaded["shared_prompts"] = Effect(True, False, sharing)
    built = dict(found.arguments)
    if settings.num_train_epochs is not None and not pair:
        built.pop("max_steps", None)  # not known yet
    return EffectiveSettings({**loaded, **found.changed}, built)
