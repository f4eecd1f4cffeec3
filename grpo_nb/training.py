"""Build and run the GRPO trainer, begin a run or go on with one, and leave it complete whatever ends it.

On a CPU the trainer is the one of `grpo_nb.shared_trainer`; on a GPU it is the one that Unsloth made of TRL's. Nothing else
differs. Only these two modules, `grpo_nb.priming` and `grpo_nb.dry_runs` import trl.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.alerting import AlertDisplay, HealthAlerts, note_out_of_memory
from grpo_nb.arguments import check_extra
from grpo_nb.base_identity import base_identity, keep_template
from grpo_nb.checkpoints import keep_newest, replace_folder
from grpo_nb.config import Settings
from grpo_nb.contamination import write_trained_questions
from grpo_nb.data import Task
from grpo_nb.effective_rules import requested_arguments
from grpo_nb.environment import find_gpu, require_disk
from grpo_nb.failures import explained, guarded
from grpo_nb.fast_generation import drop_leftovers
from grpo_nb.holdout import HoldoutScore
from grpo_nb.liveness import training_here
from grpo_nb.loading import generation_of, has_engine
from grpo_nb.losses import check_loss
from grpo_nb.metrics import Run, new_run_folder, write_json
from grpo_nb.models import import_unsloth, is_bfloat16_supported
from grpo_nb.planning import plan
from grpo_nb.plots import is_notebook
from grpo_nb.references import BASE_MODEL, START_ADAPTER, Reference, reference_of
from grpo_nb.reporting import check_reporting
from grpo_nb.resume import Resumption, continued_info, find_run, go_back
from grpo_nb.run_info import checked_rewards, run_info

import_unsloth()

from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_nb import shared_prompts
from grpo_nb.recorder import Observer, Recorder
from grpo_nb.resumable import ResumableTrainer
from grpo_nb.shared_trainer import SharedPromptGRPOTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RewardFunction = Callable[..., Sequence[float | None]]
_RUN_BYTES = 200_000_000


class _StockTrainer(ResumableTrainer, GRPOTrainer):
    """TRL's own path, or Unsloth's on a GPU."""


class _SharedTrainer(ResumableTrainer, SharedPromptGRPOTrainer):
    """The kit's path on a CPU."""


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[RewardFunction],
    settings: Settings,
    *,
    name: str | None = None,
    resume: str | Path | None = None,
    observers: Sequence[Observer] = (),
    reference: Reference = "start",
    check_fit: bool = True,
) -> Run:
    """Train the model's LoRA with GRPO (arXiv:2402.03300), with live curves, and return the run.

    Everything that can be checked is checked first: nothing is written and nothing slow starts on bad input. Checkpoints
    are written as `settings.save_steps` says, and whatever ends the training: an interrupt saves the last complete step and
    returns a usable run, an error saves it and is raised. With `resume="auto"` the same cell can be run again and again: it
    begins, goes on after whatever happened, and ends with the same numbers as if nothing had (docs/runs.md).

    Args:
        model: From `load_model`, with a LoRA. It is trained in place; a second call goes on from where it is, but for a
            resumed run, whose checkpoint is loaded.
        tokenizer: From `load_model`.
        task: From `load_task`. Prompts longer than `settings.max_prompt_length` are dropped and counted.
        rewards: Reward functions with TRL's signature. An attribute `weight` is passed on as its `reward_weights`.
        settings: From `preset`.
        name: Of the run's folder under `settings.run_root`; by default the time it starts.
        resume: None begins a new run. "auto" goes on with the newest run under `settings.run_root` (the one called `name`, if
            given) unless it is finished or there is none, and begins a new one then (under another name, or none). The
            path or name of a run goes on with that one, also with a finished one if `max_steps` is more now.
        observers: Asked at each logged step; they may add to its row and may stop the training (`grpo_nb.recorder`).
        reference: What the KL is measured against, if `beta` is above 0: the model as it is when this run starts, with
            what its adapter has learnt already, or the `"base"` model without any adapter. The same for a new adapter. On a
            GPU it is the base model in any case, and a warning says so.
        check_fit: Refuse a run that needs more memory than there is, by `plan`. The plan is arithmetic, for completions that
            are all at their longest: with False its verdict is a warning.

    Raises:
        ValueError: Rewards or settings that cannot work, or that are not those of the run to resume.
        EnvironmentProblem: Too little disk or memory, by the plan beforehand or while training.
        FileExistsError: A run of that name exists.
        FileNotFoundError: There is no run to resume at that path.
        RewardError: A reward failed, with the row and an excerpt of the completion.
    """
    if reference not in ("start", "base"):
        raise ValueError(f"reference = {reference!r} must be 'start' or 'base'.")
    rewards = list(rewards)
    task = task.fit(tokenizer, settings.max_prompt_length)
    weights = checked_rewards(rewards, task, settings)
    _check_extra(settings)
    check_loss(settings)
    check_reporting(settings)
    obstacle = _stock_reason(model, settings)
    _check_memory(model, tokenizer, task, settings, obstacle, is_refused=check_fit)
    resumption = find_run(settings, name, resume)
    info = run_info(settings, task, rewards, weights, obstacle)
    info["generation"] = str(generation_of(model))
    info["base"] = base_identity(model, settings.model)
    if resumption is None:
        require_disk(Path(settings.run_root), _bytes_needed(model), "A run")
        run = Run(new_run_folder(settings.run_root, name), model=model, tokenizer=tokenizer)
        info["reference"] = reference_of(model, settings, reference)
        write_json(run.path / "run.json", info)  # first of all: it is what makes the folder a run
        if info["reference"] == START_ADAPTER:
            model.save_pretrained(run.path / "reference", selected_adapters=["default"])
        # For comparisons and exports of this run by another process, on the same held-out questions.
        kept = task.holdout.select_columns(["prompt", "question", "answer"])
        (run.path / "holdout.jsonl").write_text("".join(json.dumps(row, default=str) + "\n" for row in kept))
        write_trained_questions(run, task.train["question"])
        keep_template(run, tokenizer)
    else:
        info = continued_info(resumption, settings, info)
        run = Run(resumption.run.path, model=model, tokenizer=tokenizer)
        require_disk(run.path, _bytes_needed(model), "Going on with the run")
        go_back(resumption)
    with training_here(run.path):
        write_json(run.path / "run.json", info)
        recorder = Recorder(run, settings, weights, _all_observers(run, task, weights, observers))
        _run_training(model, tokenizer, task, rewards, settings, recorder, info, resumption, obstacle)
    return run


def _run_training(
    model: Any,
    tokenizer: Any,
    task: Task,
    rewards: list[RewardFunction],
    settings: Settings,
    recorder: Recorder,
    info: dict[str, Any],
    resumption: Resumption | None,
    obstacle: str | None,
) -> None:
    """Build the trainer, train, and leave the folder complete, whatever ends it."""
    run, failure, trainer = recorder.run, None, None
    info["status"] = "failed"  # until something better is known; run.json says running meanwhile
    try:
        with _reference_adapter(model):
            try:
                trainer = _build_trainer(model, tokenizer, task, rewards, settings, recorder, obstacle)
                _prepare_resuming(trainer, info, resumption)
                _go(trainer, settings)
                info["status"] = "stopped" if recorder.stopped_by else "finished"
                info["stopped_by"] = recorder.stopped_by
            except KeyboardInterrupt:
                info["status"] = "interrupted"
            except Exception as error:
                failure = explained(error, run.path, note_out_of_memory(error, run.path, settings, recorder.step))
                info["error"] = f"{type(failure).__name__}: {failure}"
            recorder.interrupts.close()
            info["not_saved"] = _save_all(trainer, recorder, info)
    except BaseException:  # a second interrupt, while saving
        info["status"] = "interrupted" if failure is None else "failed"
        raise
    finally:
        recorder.interrupts.close()
        if getattr(trainer, "stock_reason", None):
            info["rollout"] = f"shared prompts, but for some batches stock ({trainer.stock_reason})"
        info["seconds"] = recorder.seconds + getattr(trainer, "seconds_before", 0.0)
        with _noting("run.json", info.setdefault("not_saved", [])):
            write_json(run.path / "run.json", info)
    if failure is not None:
        for lost in info["not_saved"]:
            failure.add_note(f"Not saved: {lost}")
        raise failure
    if info["not_saved"]:
        warnings.warn(f"Not saved: {'; '.join(info['not_saved'])}.", stacklevel=3)


def _prepare_resuming(trainer: ResumableTrainer, info: Mapping[str, Any], resumption: Resumption | None) -> None:
    run = trainer.recorder.run
    trainer.folder = run.path / "checkpoints"
    trainer.reference = None if info["reference"] == BASE_MODEL else run.path / "reference"
    model = trainer.accelerator.unwrap_model(trainer.model)
    if "ref" in model.peft_config and trainer.reference is None:
        # TRL adds a frozen copy of the adapter as the reference. While the adapter is still zero, the reference is
        # the base model, and switching the adapter off gives the same without three products per layer.
        model.delete_adapter("ref")
    elif "ref" not in model.peft_config and trainer.reference is not None:
        raise ValueError(
            f"the run {run.name!r} measures its KL to the adapter that it started from, and Unsloth on a GPU only to the base "
            "model. Go on with it on a CPU, as it began, or begin a new run."
        )
    if resumption is not None:
        trainer.resumed_from = resumption.checkpoint.path
        trainer.seconds_before = trainer.noted_seconds()


def _go(trainer: Any, settings: Settings) -> None:
    if trainer.resumed_from is None:
        trainer.train()
    elif int(trainer.resumed_from.name.rpartition("-")[2]) >= settings.max_steps:
        # It ended after its last step, before the adapter was saved. transformers would do one step more.
        trainer.restore_only()
    else:
        trainer.train(resume_from_checkpoint=str(trainer.resumed_from))


def _save_all(trainer: ResumableTrainer | None, recorder: Recorder, info: Mapping[str, Any]) -> list[str]:
    """Save checkpoint, adapter, figure and card, each as far as possible; return what could not be, with the reason."""
    lost: list[str] = []
    run = recorder.run
    if trainer is not None and trainer.has_note:
        if trainer.is_between_steps:
            with _noting("the checkpoint", lost):
                trainer.save()
            with _noting("the adapter", lost):
                _save_adapter(trainer, run)
        else:
            lost.append("the adapter: an error came while its weights were changed; the last checkpoint is whole")
        if info["status"] == "finished" and not lost:
            keep_newest(trainer.folder, 1)
    with _noting("the figure", lost):
        recorder.close()
        recorder.save_figure()
    if trainer is not None and run.adapter_path.is_dir():
        from grpo_nb.model_card import write_model_card

        with _noting("the model card", lost):
            # Its status is that of run.json, which says running until here.
            write_json(run.path / "run.json", dict(info))
            write_model_card(run)
    return lost


@contextlib.contextmanager
def _noting(what: str, lost: list[str]) -> Iterator[None]:
    """Go on with what can still be saved when one thing cannot be, and keep the reason."""
    try:
        yield
    except Exception as error:
        lost.append(f"{what}: {error}")


def _all_observers(run: Run, task: Task, weights: Mapping[str, float], users: Sequence[Observer]) -> list[Observer]:
    """The held-out score, the user's observers, and last the health rules: they read what all others add to the row."""
    settings = run.settings
    observers: list[Observer] = []
    if settings.holdout_every:
        questions = [task.holdout[i] for i in range(min(settings.holdout_questions, len(task.holdout)))]
        observers.append(
            HoldoutScore(
                run.model, run.tokenizer, questions, task.format,
                every=settings.holdout_every, max_completion_length=settings.max_completion_length,
            )
        )  # fmt: skip
    show = AlertDisplay(run.path, None if is_notebook() else tqdm.write)
    return [*observers, *users, HealthAlerts(run.path, weights, settings, show)]


def _check_memory(
    model: Any, tokenizer: Any, task: Task, settings: Settings, obstacle: str | None, *, is_refused: bool
) -> None:
    """Hold what the run will need against what there is, on the path that it will take."""
    planned = plan(settings.replace(shared_prompts=obstacle is None), model, tokenizer, task)
    if is_refused:
        planned.require_fit()
    elif planned.obstacle is not None:
        warnings.warn(f"Training all the same (check_fit=False), though: {planned.obstacle}", stacklevel=3)


def _bytes_needed(model: Any) -> int:
    """Room for a run: three checkpoints (two and the one being written) with Adam's two moments, an adapter, the logs."""
    trained = [p for p in model.parameters() if p.requires_grad]
    adapter = sum(p.numel() * p.element_size() for p in trained)
    moments = sum(8 * p.numel() for p in trained)
    return _RUN_BYTES + 3 * (adapter + moments) + 2 * adapter


def _stock_reason(model: Any, settings: Settings) -> str | None:
    """Why TRL's own path computes this run, or None if prompts are shared; a warning where the user could not know."""
    if not settings.shared_prompts:
        return "it is switched off"
    longest = settings.max_prompt_length + settings.max_completion_length
    obstacle = shared_prompts.shared_prompt_obstacle(model, longest)
    if obstacle is not None and find_gpu() is None:
        warnings.warn(f"Prompts are not shared, and a step takes about three times as long: {obstacle}.", stacklevel=3)
    return obstacle


def _build_trainer(
    model: Any,
    tokenizer: Any,
    task: Task,
    rewards: list[RewardFunction],
    settings: Settings,
    recorder: Recorder,
    obstacle: str | None,
) -> Any:
    drop_leftovers(model)
    trainer_class = _StockTrainer if obstacle else _SharedTrainer
    arguments = _grpo_arguments(settings, recorder.weights, recorder.run.path, has_vllm=has_engine(model))
    if task.is_ordered:
        arguments.setdefault("shuffle_dataset", False)
    with _kept_precision(model):
        trainer = trainer_class(
            model=model,
            processing_class=tokenizer,
            reward_funcs=[guarded(reward) for reward in rewards],
            args=GRPOConfig(**arguments),
            train_dataset=task.train,
            callbacks=[recorder],
        )
    # Their rows of dicts in a cell or terminal are what the figure and the bar replace.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    recorder.trainer, trainer.recorder = trainer, recorder
    trainer.rewards, trainer.save_steps = rewards, settings.save_steps
    return trainer


@contextlib.contextmanager
def _kept_precision(model: Any) -> Iterator[None]:
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


def _grpo_arguments(
    settings: Settings, weights: dict[str, float], folder: Path, *, has_vllm: bool = False
) -> dict[str, Any]:
    requested = requested_arguments(
        settings,
        gpu=find_gpu(),
        has_bf16=is_bfloat16_supported(),
        # Installed is not enough: told to use vLLM with a model that was loaded without, TRL starts an engine of its own.
        has_vllm=has_vllm,
    )
    return {
        "logging_steps": 1,
        # A NaN in the loss is shown, not replaced by the last good value.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **requested,
        "output_dir": str(folder / "checkpoints"),
        "reward_weights": list(weights.values()),
    }


def _check_extra(settings: Settings) -> None:
    """The installed GRPOConfig decides: TRL raises on unknown names, Unsloth's only warns."""
    known = set(inspect.signature(GRPOConfig).parameters)
    check_extra(settings.extra, {f.name for f in dataclasses.fields(Settings)}, known, has_gpu=find_gpu() is not None)


@contextlib.contextmanager
def _reference_adapter(model: Any) -> Iterator[None]:
    """Take away the reference adapter that TRL leaves behind: with it, a later load restores only the zeros in it."""
    try:
        yield
    finally:
        if "ref" in model.peft_config:
            model.delete_adapter("ref")


def _save_adapter(trainer: GRPOTrainer, run: Run) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    staged = run.path / ".adapter.partial"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        model.save_pretrained(staged, selected_adapters=["default"])
        replace_folder(staged, run.adapter_path)
    finally:  # on a full disk half an adapter would only be in the way
        shutil.rmtree(staged, ignore_errors=True)
