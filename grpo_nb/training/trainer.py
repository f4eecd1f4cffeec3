"""The trainer: TRL's `GRPOTrainer` with the kit's parts, built in the same way for a training and for a dry run.

On a CPU it is that of `grpo_nb.training.shared_trainer`; on a GPU the one that Unsloth made of TRL's. Nothing else differs.
Only these two modules and `grpo_nb.training.priming` import trl.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.core.words import EnvironmentProblem, in_line, shorten
from grpo_nb.generation.vllm import drop_leftovers
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.load import hand_copies, has_engine
from grpo_nb.models.match import as_loaded
from grpo_nb.models.unsloth import import_unsloth, tell_unsloth
from grpo_nb.rewards.base import RewardFunction, reward_list
from grpo_nb.settings.effective import requested_arguments
from grpo_nb.settings.number_types import number_type, number_type_of
from grpo_nb.settings.settings import Settings
from grpo_nb.settings.vllm import vllm_obstacle
from grpo_nb.tasks.task import Task
from grpo_nb.training.arguments import require_holdout, require_parts
from grpo_nb.training.errors import explained, guarded
from grpo_nb.training.run_info import checked_rewards

import_unsloth()

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_nb.generation.shared_prompts import shared_prompt_obstacle
from grpo_nb.training.shared_trainer import SharedPromptGRPOTrainer

_CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a training is made of, after everything that can be checked beforehand was."""

    model: Any
    tokenizer: Any
    task: Task
    """Without the prompts that are too long."""
    rewards: list[RewardFunction]
    settings: Settings
    """With what the task gives the chat template, so that the trainer renders its prompts and a run records it."""
    weights: dict[str, float]
    """Of the rewards by name."""
    obstacle: str | None
    """Why TRL's own path computes it, or None if prompts are shared."""

    @classmethod
    def checked(
        cls, model: Any, tokenizer: Any, task: Task, rewards: Sequence[RewardFunction], settings: Settings
    ) -> Prepared:
        """Check what a training is asked for; nothing is written.

        Raises:
            ValueError: Rewards, data or settings that cannot work.
        """
        require_parts(model, tokenizer, task, settings)
        require_holdout(task, settings)
        settings, rewards = task.rendered_by(as_loaded(model, settings)), reward_list(rewards)
        given, task = task, task.fit(tokenizer, settings.max_prompt_length)
        if task.notes != given.notes:  # it says what was left out
            warnings.warn(task.notes[-1], stacklevel=3)
        weights = checked_rewards(rewards, task, settings)
        return cls(
            model=model, tokenizer=tokenizer, task=task, rewards=rewards, settings=settings, weights=weights,
            obstacle=_stock_reason(model, settings),
        )  # fmt: skip


def _stock_reason(model: Any, settings: Settings) -> str | None:
    """Why prompts are not shared, or None if they are; a warning where the user could not know."""
    if not settings.shared_prompts:
        return "it is switched off"
    longest = settings.max_prompt_length + settings.max_completion_length
    obstacle = shared_prompt_obstacle(model, longest)
    if obstacle is not None and find_gpu() is None:
        warnings.warn(f"Prompts are not shared, and a step takes about three times as long: {obstacle}.", stacklevel=4)
    return obstacle


def build_trainer(prepared: Prepared, kind: type) -> Any:
    """Return the trainer, which has nothing on the disk yet: `lead_to` says where it writes.

    Args:
        prepared: What it trains.
        kind: Class that goes in front of TRL's or the kit's.

    Raises:
        ValueError: TRL refuses the settings. Most of what `extra` hands on is looked at by nobody before.
    """
    if has_engine(prepared.model):
        hand_copies()  # also where the model was not loaded by the kit
    drop_leftovers(prepared.model)
    base = GRPOTrainer if prepared.obstacle else SharedPromptGRPOTrainer
    # transformers makes the folder that it is to write to, so it is one that goes away again.
    with kept_precision(prepared.model), tempfile.TemporaryDirectory() as nowhere, refusals(prepared.settings):
        arguments = grpo_arguments(prepared.settings, prepared.weights, Path(nowhere), prepared.model)
        if prepared.task.is_ordered:
            arguments.setdefault("shuffle_dataset", False)
        trainer = type(kind.__name__, (kind, base), {})(
            model=prepared.model,
            processing_class=prepared.tokenizer,
            reward_funcs=[guarded(reward) for reward in prepared.rewards],
            args=GRPOConfig(**arguments),
            train_dataset=prepared.task.train,
        )
    silence(trainer)
    return trainer


@contextlib.contextmanager
def refusals(settings: Settings) -> Iterator[None]:
    """Say what TRL and transformers say of settings as an error of the kit; memory, GPU and disk stay what they are.

    Raises:
        ValueError: They refuse them.
    """
    try:
        yield
    except (OSError, EnvironmentProblem):
        raise
    except Exception as error:
        told = explained(error, None, settings)
        if told is not error:
            raise told from error
        handed = f"extra = {in_line(dict(settings.extra), 200)}" if settings.extra else "the settings"
        said = f"{type(error).__name__}: {shorten(' '.join(str(error).split()), 300)}"
        raise ValueError(
            f"the trainer cannot be built with {handed} ({said}). Nothing was written. "
            "Leave out the argument that it names: settings = settings.replace(extra={...})."
        ) from error


def lead_to(trainer: Any, folder: Path, callback: TrainerCallback) -> None:
    """Have a trainer write its files into the folder of a run, and tell this of each step."""
    trainer.args.output_dir = str(folder / _CHECKPOINTS)
    trainer.add_callback(callback)


def silence(trainer: Any) -> None:
    """Take away transformers' rows of dicts in a cell or terminal, which the figure and the bar replace."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)


@contextlib.contextmanager
def kept_precision(model: Any) -> Iterator[None]:
    """Give the adapter back the numbers that it had before a trainer of TRL was built, also where building it failed.

    TRL 1.15 rounds the adapter of a quantized model to bfloat16, where small updates vanish; Unsloth's on a GPU does not.
    """
    loaded = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            source = loaded.get(name.replace(".ref.", ".default."))
            if source is not None and parameter.dtype != source.dtype:
                parameter.data = source.clone() if ".ref." in name else source


def grpo_arguments(settings: Settings, weights: dict[str, float], folder: Path, model: Any = None) -> dict[str, Any]:
    """Return what GRPOConfig is made of for a run in a folder; without a model, as one would be loaded."""
    gpu = find_gpu()
    if model is None:
        chosen, has_vllm = number_type(settings, gpu).name, vllm_obstacle(settings, gpu, try_import=False) is None
    else:
        # Installed is not enough: told to use vLLM with a model that was loaded without, TRL starts an engine of its own.
        chosen, has_vllm = number_type_of(model, settings, gpu).name, has_engine(model)
    tell_unsloth(chosen)
    return {
        "logging_steps": 1,
        # A NaN in the loss is shown, not replaced by the last good value.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **requested_arguments(settings, gpu=gpu, number_type=chosen, has_vllm=has_vllm),
        "output_dir": str(folder / _CHECKPOINTS),
        "reward_weights": list(weights.values()),
    }


@contextlib.contextmanager
def reference_adapter(model: Any) -> Iterator[None]:
    """Take away the reference adapter that TRL leaves behind: with it, a later load restores only the zeros in it."""
    try:
        yield
    finally:
        if "ref" in model.peft_config:
            model.delete_adapter("ref")
