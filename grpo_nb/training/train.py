"""Train a model with GRPO: start a run, resume one, or return a finished one."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_nb.config.planning import plan
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.files import copy_files, put_in_place, staged_folder
from grpo_nb.core.problems import error_summary, warn_user
from grpo_nb.models.adapter import load_adapter, save_adapter
from grpo_nb.models.templates import save_templates
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.checkpoints import NewestCheckpoint, keep_newest, newest_checkpoint
from grpo_nb.runs.rows import write_json_lines
from grpo_nb.runs.run_folder import Run
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.runs.writing import write_questions, write_run_info
from grpo_nb.tasks.task import Task
from grpo_nb.training.errors import explaining_machine_faults
from grpo_nb.training.kl_reference import (
    START_REFERENCE,
    choose_kl_reference,
    deleting_reference_adapter,
)
from grpo_nb.training.new_run import (
    new_run_info,
    require_free_path,
    require_valid_name,
    write_generation,
)
from grpo_nb.training.prepare import (
    PreparedTraining,
    build_trainer,
    check_training,
    effective_settings,
    try_rewards,
)
from grpo_nb.training.recorder import HoldoutObserver, Observer, Recorder
from grpo_nb.training.resume import FoundRun, claim_run, lock_run, resumed_run_info, rewind
from grpo_nb.training.trainer import restore_states, state_owners_by_key

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[RewardFunction],
    settings: Settings,
    *,
    name: str | None = None,
    resume: str | Path | None = None,
    observers: Observer | Sequence[Observer] = (),
) -> Run:
    """Train the model's LoRA with GRPO (arXiv:2402.03300), with live curves, and return the run.

    All input is checked first: with bad input nothing is written and nothing slow starts. A
    checkpoint is written as often as `settings.save_steps` sets, and at the end. The first Ctrl-C
    ends the training after the current step, the second one at once; `train` then returns the run
    with the status "interrupted". An error or a lost machine costs only the work since the last
    checkpoint. With `resume="auto"` the same cell can be run again and again: it starts the run,
    resumes it if it was interrupted, stopped or failed, and returns it once it is finished. A
    resumed run gets the same numbers as if nothing had happened (docs/guide/runs.md).

    Args:
        model: A model from `load_model`, with a LoRA, which is trained in place. A second call
            continues from the LoRA's current weights; a resumed run loads those of its checkpoint.
        tokenizer: The tokenizer from `load_model`.
        task: A task from `load_task`. Prompts longer than `settings.max_prompt_length` are left out
            and counted.
        rewards: Reward functions with TRL's signature. An attribute `weight` becomes TRL's
            `reward_weights`.
        settings: Settings, for example from `preset`.
        name: Name of the run's folder under `settings.run_root`. Default: the time of the start.
        resume: Which run to resume:

            - None: no run is resumed; a new one starts.
            - "auto": the newest run under `settings.run_root`, or the run called `name`. If there
              is none, a new run starts. A finished run is returned, and its adapter is loaded into
              `model`; if `max_steps` is larger now, it is continued. A run that failed on this
              machine before its first checkpoint is started anew.
            - A path: the run in that folder. If it is finished, `max_steps` must be larger now.

            Other data, rewards or settings (also any part of `extra`) raise an error, except
            settings that do not change how a step trains, such as `save_steps`. A change of such a
            setting, or of dtype, engine, machine or package versions, is only reported. A changed
            reward (its code or state) is reported too, but "auto" refuses a finished run whose
            reward has changed.
        observers: One function or several, called at each logged step. They may add new keys to the
            row of the step, and may stop the training (`gn.training.Observer`).

    Raises:
        TypeError: An argument is of another type, for example because two are swapped.
        ValueError: Settings, weights or data cannot work, or differ from those of the run to
            resume.
        EnvironmentProblem: Too little memory, or the GPU failed. If the training does not fit the
            memory plan (`gn.plan`), a CPU run is refused before it starts; a GPU run only warns.
        OSError: The disk is full. Everything saved before is kept. If only the final adapter
            cannot be written, `train` warns, and returns the run with the status "failed".
            `resume="auto"` writes the adapter later.
        FileExistsError: A new run cannot have this name, because its folder exists.
        FileNotFoundError: There is no run to resume at that path.
        RewardError: A reward failed, in its trial on the first row or in training. The error names
            the row and shows an excerpt of the completion.

    >>> trained = gn.train(model, tokenizer, task, rewards, settings, name="first")
    >>> trained.status, len(trained.metrics)
    ('finished', 2)
    """
    require_types(
        "gn.train(model, tokenizer, task, rewards, settings)",
        model=model,
        tokenizer=tokenizer,
        task=task,
        settings=settings,
    )
    new_name = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S-%f}" if name is None else name
    require_valid_name(new_name)
    folder = Path(settings.run_root).expanduser() / new_name
    # A new run needs a free folder. With "auto", `claim_run` resumes a run of this name instead, or
    # deletes it if it failed before its first checkpoint.
    if resume is None or (resume == "auto" and not (folder / "run.json").is_file()):
        require_free_path(folder)
    observers = [observers] if callable(observers) else list(observers)
    # A class can be called too, but a call makes an observer and observes nothing.
    if any(isinstance(observer, type) or not callable(observer) for observer in observers):
        raise TypeError(
            "an observer is not a function. Write the functions in a list, without calling them: "
            "observers=[function]. Of a class, write an object: observers=[MyObserver()]."
        )
    prepared = check_training(model, tokenizer, task, rewards, settings)
    settings = prepared.settings
    run_info = new_run_info(prepared)
    with ExitStack() as held_locks:
        # 1. Find the run to resume, and check that the training fits into memory.
        found = claim_run(name, resume, run_info, held_locks)
        if found is not None:
            folder = found.run.path
        run = Run(folder, model=model, tokenizer=tokenizer, rewards=prepared.rewards)
        if found is not None and found.needs_no_training:
            return _restore_finished_run(run, found.checkpoint)
        plan(
            prepared.settings_as_run, prepared.task, model=model, tokenizer=tokenizer
        ).require_fit()
        try_rewards(prepared)
        if found is not None:
            run_info = resumed_run_info(found, run_info)
        with deleting_reference_adapter(model):
            # 2. Build the trainer before the run has a folder, so that nothing is left behind if
            # TRL refuses. `effective_settings` builds a `GRPOConfig` too, and each `GRPOConfig`
            # resets accelerate's global state (transformers, `TrainingArguments._setup_devices`).
            # The trainer needs the state that its own `GRPOConfig` left, so it is built last.
            run_info["effective"] = dataclasses.asdict(effective_settings(settings, model))
            with explaining_machine_faults(prepared.settings_as_run):
                trainer = build_trainer(prepared)
            run_info["reference"] = choose_kl_reference(model, run_info.get("reference"))
            if found is not None and run_info["reference"] == START_REFERENCE:
                # TRL made `ref` from the adapter in memory. The run's reference is the adapter that
                # it started from.
                load_adapter(model, run.start_path, "ref")
            if settings.holdout_every:
                holdout_observer = HoldoutObserver(prepared)
                run_info["grader_description"] = holdout_observer.grader.correctness_rule
                observers = [holdout_observer, *observers]
            trainer.state_owners = state_owners_by_key([*prepared.rewards, *observers])
            trainer.states()  # called for its check: an error now, not at the first checkpoint
            # 3. Make the folder of a new run, or rewind the old run to its newest checkpoint.
            if found is None:
                _make_run_folder(run, prepared, run_info, held_locks)
            else:
                rewind(found)
                write_run_info(run, run_info)
            # 4. Train, and complete the folder and its `run_info` however the training ends.
            recorder = Recorder(run, trainer, settings, observers)
            _train_and_complete(recorder, prepared, run_info, found)
    return run


def _restore_finished_run(run: Run, checkpoint: NewestCheckpoint) -> Run:
    """Load the adapter of a finished run and the state of its rewards, and return the run."""
    load_adapter(run.model, run.adapter_path)
    # The checkpoints may be gone from the drive, but the adapter is there.
    if checkpoint.path is not None:
        restore_states(state_owners_by_key(run.rewards), checkpoint.path)
    warn_user(
        f"Run {run.name!r} is already finished; returning it without training. To start a new "
        "run, pass resume=None and another name."
    )
    return run


def _make_run_folder(
    run: Run, prepared: PreparedTraining, run_info: RunInfo, held_locks: ExitStack
) -> None:
    """Make and lock the folder of a new run, and write what the run starts from.

    The files are `run.json`, the adapter, the questions, the training rows and the templates. The
    lock is held until `held_locks` is closed.
    """
    run.path.mkdir(parents=True)
    try:
        lock_run(run.path, held_locks)
        write_run_info(run, run_info)  # first of all files, because it makes the folder a run
        write_questions(run, prepared.task.train["question"], prepared.task.holdout)
        # The first checkpoint has this adapter too, but it is deleted later.
        save_adapter(prepared.model, run.start_path)
        write_json_lines(run.start_path / "train.jsonl", prepared.task.train)
        save_templates(run.path, prepared.tokenizer)
    except BaseException:
        # After an error or Ctrl-C, an incomplete folder would only block the name of the run.
        shutil.rmtree(run.path, ignore_errors=True)
        raise


def _train_and_complete(
    recorder: Recorder,
    prepared: PreparedTraining,
    run_info: RunInfo,
    found: FoundRun | None,
) -> None:
    """Train, and write adapter, figure, card and run.json however the training ends."""
    run = recorder.run
    trainer = recorder.trainer
    max_steps = prepared.settings.max_steps
    # The trainer was built before the run had a folder, so it is connected with the run only here.
    trainer.args.output_dir = str(run.path / "checkpoints")
    trainer.add_callback(recorder)
    trainer.record_generation = partial(write_generation, run)
    # A child that a reward forked runs the `finally` below too, and must not write to the folder.
    training_pid = os.getpid()
    try:
        with (
            explaining_machine_faults(prepared.settings_as_run, run.path),
            recorder.ending_after_step_at_interrupt(),
        ):
            if found is None:
                trainer.train()
            elif found.checkpoint.step < max_steps:
                trainer.train(resume_from_checkpoint=str(found.checkpoint.path))
            else:
                # All steps are in the checkpoint, and only the adapter is missing, which
                # `_complete_folder` writes. transformers would train one more step.
                restore_states(trainer.state_owners, found.checkpoint.path)
                # All steps are done, so the run is finished even if Ctrl-C is pressed now.
                trainer.state.global_step = max_steps
            if recorder.error is not None:
                raise recorder.error
        is_cut_short = trainer.state.global_step < max_steps
        if recorder.is_interrupted and is_cut_short:
            run_info["status"] = "interrupted"
        elif recorder.stopped_by and is_cut_short:
            run_info["status"] = "stopped"
            # Name each only once: two observers can share a name, and two alerts a rule.
            run_info["stopped_by"] = ", ".join(dict.fromkeys(recorder.stopped_by))
        else:
            run_info["status"] = "finished"
    except KeyboardInterrupt:
        run_info["status"] = "interrupted"
    # A reward can call sys.exit(), or pass on the `CancelledError` of asyncio.
    except BaseException as error:
        run_info["status"] = "failed"
        run_info["error"] = error_summary(error)
        raise
    finally:
        if os.getpid() == training_pid:
            _complete_folder(recorder, run_info)


def _complete_folder(recorder: Recorder, run_info: RunInfo) -> None:
    """Write adapter, run.json, figure and card, and delete checkpoints that nobody needs.

    An error is only a warning, because it would hide why the training ended. The adapter is written
    first. If that fails, the run counts as failed and can be resumed.
    """
    run = recorder.run
    try:
        _write_adapter(run, run_info)
    except Exception as error:
        run_info["status"] = "failed"
        # An error that ended the training stays the error of the run.
        run_info.setdefault("error", error_summary(error))
        _warn_of_incomplete_end(error)
    actions = [
        partial(write_run_info, run, run_info),
        recorder.close,
        partial(write_model_card, run),
    ]
    if run_info["status"] == "finished":
        # To add steps later, only the last checkpoint is needed.
        actions.append(partial(keep_newest, run.path / "checkpoints", 1))
    # Try each action, even if an earlier one failed.
    for action in actions:
        try:
            action()
        except Exception as error:
            _warn_of_incomplete_end(error)


def _warn_of_incomplete_end(error: Exception) -> None:
    warn_user(f"The training has ended, but its folder is incomplete: {error_summary(error)}")


def _write_adapter(run: Run, run_info: RunInfo) -> None:
    """Copy the newest checkpoint's adapter with the templates, load it, and record its step.

    Raises:
        ValueError: The run is finished, but its last step has no complete checkpoint.
    """
    source, step, _ = newest_checkpoint(run.path / "checkpoints")
    # A training can end before its first checkpoint.
    if source is not None:
        with staged_folder(run.adapter_path) as staged:
            copy_files(source, staged, "adapter_*")
            # `load_model(adapter=...)` looks for the templates next to the adapter.
            copy_files(run.path, staged, "*_template.*")
            put_in_place(staged, run.adapter_path)
        # Later cells use the model in memory, which must have the adapter that was saved.
        load_adapter(run.model, run.adapter_path)
        run_info["adapter_step"] = step
    # After a divergence the last step has no checkpoint, because `_save_checkpoint` of the trainer
    # refuses values that are not finite.
    if run_info["status"] == "finished" and step != run_info["settings"]["max_steps"]:
        raise ValueError(
            f"the last step has no complete checkpoint, so the adapter is that of step {step}"
        )
