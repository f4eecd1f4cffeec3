"""What a training is made of: everything checked before anything slow, and TRL's `GRPOTrainer` built with the kit's parts.

In the same way for a training and for a dry run.
"""

import contextlib
import dataclasses
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.dtype import compute_dtype, dtype_of_model
from grpo_nb.config.effective_table import requested_arguments
from grpo_nb.config.settings import Settings
from grpo_nb.generation.choice import EngineChoice, choose_engine
from grpo_nb.generation.episodes import tool_template
from grpo_nb.generation.vllm import drop_leftovers
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.spinning import yield_cores
from grpo_nb.models.import_unsloth import import_unsloth, tell_unsloth
from grpo_nb.models.load import has_engine
from grpo_nb.models.match import as_loaded, require_same_settings
from grpo_nb.rewards.async_rewards import event_loop
from grpo_nb.rewards.base import RewardFunction, reward_list, weights_by_name
from grpo_nb.rewards.fitting import check_rows
from grpo_nb.runs.groups import OWN_COLUMNS
from grpo_nb.scoring.calls import call_reward, make_batch
from grpo_nb.tasks.task import Task
from grpo_nb.training.errors import explained, guarded
from grpo_nb.upstream.symbols import installed_version
from grpo_nb.upstream.trl import share_event_loop
from grpo_nb.upstream.unsloth import hand_copies_to_vllm

import_unsloth()

from transformers import PrinterCallback, ProgressCallback, TrainerState
from trl import GRPOConfig

from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.training.trainer import KitTrainer

CALL = "gn.{}(model, tokenizer, task, rewards, settings)"
"""The arguments of a training and of a dry run, in their order."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a training is made of, after everything that can be checked beforehand was."""

    model: Any
    tokenizer: Any
    task: Task
    """Without the prompts that are too long."""
    rewards: list[RewardFunction]
    settings: Settings
    """With what the task gives the chat template, so that the trainer renders its prompts and a run records it, and with the
    steps that `num_train_epochs` comes to."""
    weights: dict[str, float]
    """Of the rewards by name."""
    engine: EngineChoice
    """The engine that samples. Prompts are shared if `engine.why_not_cpu_engine` is None."""


def prepare(
    model: Any, tokenizer: Any, task: Task, rewards: Sequence[RewardFunction], settings: Settings
) -> Prepared:
    """Check what a training is asked for; nothing is written.

    Raises:
        ValueError: Rewards, data or settings that cannot work.
    """
    require_same_settings(model, tokenizer, settings)
    if settings.keep_adapter == "best" and not settings.holdout_every:
        raise ValueError(
            "keep_adapter = 'best' needs held-out scores: settings = settings.replace(holdout_every=5)."
        )
    if settings.holdout_every and not len(task.holdout):
        raise ValueError(
            "holdout_every needs held-out questions: holdout_every=0, or gn.load_task(..., holdout=0.2)."
        )
    settings, rewards = task.rendered_by(as_loaded(model, settings)), reward_list(rewards)
    if task.tools is not None:
        tool_template(tokenizer)
        task.tools.require_repeatable(task.train[-1])  # `with_tools` has tried the first
    given, task = task, task.fit(tokenizer, settings.max_prompt_length)
    left_out = sum(task.dropped.values()) - sum(given.dropped.values())
    if left_out:
        warnings.warn(
            f"{left_out} prompts are too long and left out: {task.notes[-1]}.", stacklevel=3
        )
    settings = settings.for_questions(len(task.train))
    weights = tried(rewards, task, settings)
    engine = choose_engine(model, settings)
    if settings.shared_prompts and engine.why_not_cpu_engine is not None and find_gpu() is None:
        warnings.warn(
            "Prompts are not shared, and a step takes about three times as long: "
            f"{engine.why_not_cpu_engine}.",
            stacklevel=3,
        )
    return Prepared(
        model=model,
        tokenizer=tokenizer,
        task=task,
        rewards=rewards,
        settings=settings,
        weights=weights,
        engine=engine,
    )


def tried(rewards: Iterable[RewardFunction], task: Task, settings: Settings) -> dict[str, float]:
    """Return the weight of each reward by its name, after one call of each on the first row.

    What is missing shows before training. The call is that of trl 1.15 at step 0, and what comes back is read as in a training.

    Raises:
        RewardError: One fails, or gives what a training could not use.
        ValueError: Weights, names or columns of the data do not fit.
    """
    weights = weights_by_name(rewards)
    if taken := weights.keys() & OWN_COLUMNS:
        raise ValueError(
            f"{taken} is a column of the record of completions already: give the reward another name."
        )
    row = task.train[0]
    check_rows(rewards, task.train)
    tried_on = task.begun(row)
    state = TrainerState(max_steps=settings.max_steps)
    state.is_trial = True  # not one of TRL's: for rewards that learn from every training call
    for reward in rewards:
        answer = [{"role": "assistant", "content": task.format.render("reasoning", row["answer"])}]
        call_reward(
            guarded(reward),
            make_batch([answer], tried_on, completion_ids=[[0]], trainer_state=state),
        )
    return weights


def build_trainer(prepared: Prepared, kind: type[KitTrainer] | None = None) -> Any:
    """Return the trainer. Where it writes is said later, in `args.output_dir`: it has nothing on the disk yet.

    Args:
        prepared: What it trains.
        kind: A subclass of `KitTrainer`; `KitTrainer` itself if None.
    """
    if has_engine(prepared.model):
        hand_copies_to_vllm()  # also where the model was not loaded by the kit
    drop_leftovers(prepared.model)
    if find_gpu() is None:
        yield_cores()
    can_share = prepared.engine.why_not_cpu_engine is None
    engine = CpuEngine(prepared.model) if can_share else None
    # transformers makes the folder that it is to write to, so it is one that goes away again.
    with (
        explained(prepared.settings),
        kept_precision(prepared.model),
        tempfile.TemporaryDirectory() as nowhere,
    ):
        arguments = grpo_arguments(
            prepared.settings, prepared.weights, Path(nowhere), prepared.model
        )
        if prepared.task.is_ordered:
            arguments.setdefault("shuffle_dataset", False)
        tools = prepared.task.tools
        tool_arguments: dict[str, Any] = {}
        if tools is not None:
            # Of a warning that its interface may change: trl is pinned.
            os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
            arguments["max_tool_calling_iterations"] = tools.rounds
            tool_arguments = {
                "tools": list(tools.functions),
                "environment_factory": tools.fresh_environment,
            }
        trainer = (kind or KitTrainer)(
            model=prepared.model,
            processing_class=prepared.tokenizer,
            reward_funcs=[guarded(reward) for reward in prepared.rewards],
            args=GRPOConfig(**arguments),
            train_dataset=prepared.task.train,
            engine=engine,
            task_tools=tools,
            **tool_arguments,
        )
    share_event_loop(trainer, event_loop(os.getpid()))
    silence(trainer)
    return trainer


def grpo_arguments(
    settings: Settings, weights: dict[str, float], folder: Path, model: Any = None
) -> dict[str, Any]:
    """Return what GRPOConfig is made of for a run in a folder; without a model, as one would be loaded."""
    gpu = find_gpu()
    has_model = model is not None
    chosen = dtype_of_model(model, settings, gpu) if has_model else compute_dtype(settings, gpu)
    # An installed vLLM is not enough: asked to use it with a model that was loaded without it, TRL
    # starts an engine of its own.
    has_vllm = choose_engine(model, settings).is_vllm
    _require_fields(settings)
    tell_unsloth(chosen.name)
    return {
        "logging_steps": 1,
        # A NaN in the loss is shown, not replaced by the last good value.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **requested_arguments(settings, gpu=gpu, dtype=chosen.name, has_vllm=has_vllm),
        "output_dir": str(folder / "checkpoints"),
        "reward_weights": list(weights.values()),
    }


def _require_fields(settings: Settings) -> None:
    """Refuse names in `extra` that the installed class does not have.

    On a GPU Unsloth's class would drop them with a printed line (unsloth/models/rl_config_compat.py,
    `filter_config_init_kwargs`).

    Raises:
        ValueError: With the names.
    """
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    missing = sorted(settings.extra.keys() - fields)
    if missing:
        raise ValueError(
            f"extra holds {', '.join(map(repr, missing))}, and GRPOConfig has no such argument here "
            f"(trl {installed_version('trl')}; some arguments exist only on a GPU, where Unsloth adds "
            "them). Leave it out: it would have no effect."
        )


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


@contextlib.contextmanager
def reference_adapter(model: Any) -> Iterator[None]:
    """Take away the reference adapter that TRL leaves behind: with it, a later load restores only the zeros in it."""
    try:
        yield
    finally:
        if "ref" in model.peft_config:
            model.delete_adapter("ref")
